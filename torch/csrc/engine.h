// The engine's side (torch/engine/src/abi.rs), as C.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A hold on a value: two words that the engine's side fills. No value where both are zero.
struct FltValue {
  uintptr_t words[2];
};

struct FltType {
  uint32_t dtype;
  uint32_t rank;
  const int64_t* dims;
};

struct FltArg {
  uint32_t tag;
  uint32_t count;
  union {
    const FltValue* value;
    const FltValue* const* values;
    int64_t integer;
    double number;
    const int64_t* ints;
    const double* numbers;
    const char* text;
  };
};

enum FltKind : uint32_t {
  FLT_NONE,
  FLT_VALUE,
  FLT_VALUES,
  FLT_INT,
  FLT_FLOAT,
  FLT_BOOL,
  FLT_INTS,
  FLT_FLOATS,
  FLT_TEXT,
  FLT_DTYPE,
  FLT_COMPLEX,
};

enum FltStatus : int32_t { FLT_OK, FLT_FAILED, FLT_UNSUPPORTED };

const char* flt_message(size_t* len);
size_t flt_op_count();
const char* flt_op_name(size_t op, size_t* len);
FltStatus flt_record(size_t op, const FltArg* args, size_t arg_count, const FltType* outs, size_t out_count,
                     FltValue* results, size_t room, size_t* made);
FltStatus flt_upload(const FltType* type, const void* bytes, size_t len, FltValue* out);
FltStatus flt_download(const FltValue* value, void* bytes, size_t len);
// Starts to read a value. `heard` is called once, on any thread, possibly before this returns: with what it was given, whether there is data, and the
// bytes of it, or what went wrong. It must not wait for the device.
FltStatus flt_fetch(const FltValue* value, void (*heard)(void* given, bool ok, const uint8_t* bytes, size_t len),
                    void* given);
// A value whose data is to come, and the duty to bring it: given back once, by any thread, with the data or with why there is none.
struct FltPromise;
FltStatus flt_promise(const FltType* type, FltValue* out, FltPromise** promise);
FltStatus flt_keep(FltPromise* promise, const void* bytes, size_t len);
FltStatus flt_break(FltPromise* promise, const char* why, size_t len);
FltStatus flt_read(const FltValue* base, const FltType* type, const int64_t* strides, int64_t offset, FltValue* out);
FltStatus flt_write(const FltValue* base, const FltType* type, const int64_t* strides, int64_t offset,
                    const FltValue* value, FltValue* out);
FltStatus flt_convert(const FltValue* value, const FltType* type, FltValue* out);
FltStatus flt_bits(const FltValue* value, bool conjugates, bool negates, FltValue* out);
FltStatus flt_zeros(const FltType* type, FltValue* out);
void flt_retain(const FltValue* value, FltValue* out);
FltStatus flt_quick_number(size_t op, const FltValue* a, double b, FltValue* out);
FltStatus flt_quick(size_t op, const FltValue* a, const FltValue* b, FltValue* out);
void flt_release(FltValue* value);
FltStatus flt_synchronize();
FltStatus flt_flush();
FltStatus flt_set_mode(uint32_t mode);
FltStatus flt_mode(uint32_t* mode);
FltStatus flt_counters();
}
