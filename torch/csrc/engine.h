// The C declarations of the engine (torch/engine/src/abi/).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A reference to a value: two words that the engine fills. Both are zero if there is no value.
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
  FLT_DRAW,
};

// The largest rank of a value.
constexpr size_t FLT_MAX_RANK = 16;

enum FltStatus : int32_t { FLT_OK, FLT_FAILED, FLT_UNSUPPORTED, FLT_WRONG, FLT_OUT_OF_RANGE };

struct FltSite;
// The call site of a text. It lives as long as the process.
const FltSite* flt_site(const char* text, size_t len);
void flt_at(const FltSite* site);

const char* flt_message(size_t* len);
size_t flt_op_count();
const char* flt_op_name(size_t op, size_t* len);
FltStatus flt_record(size_t op, const FltArg* args, size_t arg_count, const FltType* outs, size_t out_count,
                     FltValue* results, size_t room, size_t* made);
FltStatus flt_upload(const FltType* type, const void* bytes, size_t len, FltValue* out);
FltStatus flt_download(const FltValue* value, void* bytes, size_t len);
// Starts to read a value. `heard` is called once, on any thread, possibly before this returns, with
// `given`, whether there is data, and the bytes or the error message. It must not wait for the
// device.
FltStatus flt_fetch(const FltValue* value, void (*heard)(void* given, bool ok, const uint8_t* bytes, size_t len),
                    void* given);
// A value whose data comes later. The promise must be consumed once, by any thread, with the data
// or with an error.
struct FltPromise;
FltStatus flt_promise(const FltType* type, FltValue* out, FltPromise** promise);
FltStatus flt_keep(FltPromise* promise, const void* bytes, size_t len);
FltStatus flt_break(FltPromise* promise, const char* why, size_t len);
// The number of replicas. Before the engine is open, the number that was requested.
size_t flt_replicas_asked();
FltStatus flt_replicas(size_t* count);
// Transfers the elements of all replicas, one replica after the other.
FltStatus flt_upload_replicas(const FltType* type, const void* bytes, size_t len, FltValue* out);
FltStatus flt_download_replicas(const FltValue* value, void* bytes, size_t len);
FltStatus flt_read(const FltValue* base, const FltType* type, const int64_t* strides, int64_t offset, FltValue* out);
FltStatus flt_write(const FltValue* base, const FltType* type, const int64_t* strides, int64_t offset,
                    const FltValue* value, FltValue* out, int64_t* sizes, size_t* rank);
FltStatus flt_convert(const FltValue* value, const FltType* type, FltValue* out);
FltStatus flt_bits(const FltValue* value, bool conjugates, bool negates, FltValue* out);
FltStatus flt_zeros(const FltType* type, bool in_graph, FltValue* out);
FltStatus flt_graph_begin(const char* name, size_t name_len);
FltStatus flt_graph_param(const FltType* type, FltValue* out);
FltStatus flt_graph_end(const FltValue* const* returns, size_t count, uint64_t* number, size_t* draws);
FltStatus flt_graph_abort();
FltStatus flt_graph_forget(uint64_t number);
FltStatus flt_graph_call(uint64_t number, bool is_apart, const FltValue* const* inputs, size_t input_count, const uint64_t (*draws)[2],
                         size_t draw_count, FltValue* results, size_t room);
void flt_retain(const FltValue* value, FltValue* out);
FltStatus flt_quick_number(size_t op, const FltValue* a, double b, FltValue* out);
FltStatus flt_quick_one(size_t op, const FltValue* a, FltValue* out);
FltStatus flt_quick_sum(const FltValue* a, const int64_t* axes, size_t count, bool keeps, FltValue* out);
FltStatus flt_quick_where(const FltValue* condition, const FltValue* a, const FltValue* b, FltValue* out);
FltStatus flt_quick(size_t op, const FltValue* a, const FltValue* b, FltValue* out);
void flt_release(FltValue* value);
FltStatus flt_event_record(bool is_timed, uint64_t* event);
FltStatus flt_event_query(uint64_t event, bool* is_reached);
FltStatus flt_event_wait(uint64_t event);
FltStatus flt_event_elapsed(uint64_t from, uint64_t to, double* milliseconds);
FltStatus flt_event_close(uint64_t event);
FltStatus flt_is_idle(bool* is_idle);
FltStatus flt_custom_arity(size_t op, size_t* operands, size_t* results);
// There is room for eight sizes.
FltStatus flt_custom_type(size_t op, bool is_result, size_t at, int64_t* dims, FltType* type);
FltStatus flt_custom_call(size_t op, const FltValue* operands, size_t count, FltValue* results, size_t room);
FltStatus flt_profile_mark(const char* name, size_t len);
FltStatus flt_synchronize();
FltStatus flt_flush();
FltStatus flt_set_mode(uint32_t mode);
FltStatus flt_mode(uint32_t* mode);
FltStatus flt_counters();
bool flt_has_warnings();
// Whether values are checked that only reads can check, such as indices.
bool flt_checks();
FltStatus flt_warnings();
bool flt_is_open();
void flt_pause_background_compiles();
}
