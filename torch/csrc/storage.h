// Storages whose bytes are a value of the engine.
//
// A storage of the device has no memory that the host can read. Its data pointer is the address of
// a Buf, which holds one value for the whole storage. Views are ATen's sizes, strides and offsets.
// A kernel reads a tensor as a value (`read`) and writes one (`write`), which replaces the value of
// the storage. So views alias as on any device, and in-place ops are functional ops with a write.
//
// Invariants:
// - STORAGE-1: a Buf belongs to one storage and dies with it (the deleter of its data pointer).
//   This drops the handle on its value.
// - STORAGE-2: the value of a Buf covers the storage: the number of elements times their size is
//   its bytes. `dtype` and `dims` are those of the value. A null value is a storage that was never
//   written.
// - STORAGE-3: the value is replaced under the lock; forward and backward run on different threads.
// - STORAGE-5: PyTorch also makes storages of a bare data pointer (`from_blob`, which pickle and
//   DLPack use), which lacks our deleter. Such a pointer is followed if it leads to a Buf. Whoever
//   made it keeps the Buf alive, as on any device. A Buf is recognized by its mark, which its
//   destructor clears.
// - STORAGE-4: a value of a graph that is being recorded (graph.cpp) is only in storages that the
//   same thread made during the recording.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <mutex>
#include <string>

#include "engine.h"

namespace fuseline {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

// The device string: `fuseline`, or the name that a vendor gave it.
inline std::string device_name() { return c10::get_privateuse1_backend(); }

// A reference to a value, or none.
class Value {
 public:
  Value() = default;
  Value(Value&& other) noexcept : value_(other.value_) { other.value_ = {}; }
  Value& operator=(Value&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() {
    if (*this) flt_release(&value_);
  }
  const FltValue* get() const { return &value_; }
  explicit operator bool() const { return (value_.words[0] | value_.words[1]) != 0; }
  Value another() const {
    Value other;
    flt_retain(&value_, &other.value_);
    return other;
  }
  // Where a function of the engine stores a value. Must be empty.
  FltValue* out() { return &value_; }

 private:
  FltValue value_{};
};
static_assert(sizeof(Value) == sizeof(FltValue), "a list of values is a list of words");

struct Buf {
  // The Buf's own address, scrambled (STORAGE-5).
  uint64_t mark = 0;
  // The size of the storage.
  size_t bytes = 0;
  std::mutex mutex;
  Value value;
  // Type and sizes of the value. The sizes match no tensor if they are not known.
  c10::ScalarType dtype = c10::ScalarType::Byte;
  c10::SmallVector<int64_t, 5> dims;
  // The graph recording that the storage was made in, or zero.
  uint64_t recording = 0;
};

// The number of this thread's graph recording, or zero.
uint64_t recording();
void set_recording(uint64_t number);

// Throws the engine's error, if there is one.
void check(FltStatus status);
// Throws the engine's error in its words.
[[noreturn]] void raise_last(FltStatus status);
std::string last_message();

// The engine's code of an element type, or 0 if it lacks the type.
uint32_t code_of(c10::ScalarType dtype);
FltType type_of(c10::ScalarType dtype, c10::IntArrayRef dims);

bool is_ours(const at::Tensor& tensor);
Buf& buf_of(const at::Tensor& tensor);

// The elements of a tensor of the device, in row-major order.
Value read(const at::Tensor& tensor);
// The storage's value if it is exactly the tensor, else null. Nothing is recorded.
Value read_whole(const at::Tensor& tensor);
// Writes a value of the tensor's type and sizes to a tensor.
void write(const at::Tensor& tensor, Value value);
// The value converted to another element type and broadcast to these sizes.
Value converted(Value value, c10::ScalarType dtype, c10::IntArrayRef dims);
// The storage's value if its bytes are exactly those of the tensor, whatever the element type, else
// null.
Value read_bytes(const at::Tensor& tensor);
// Makes one storage share the value of another, if both tensors cover their storages and no graph
// is being recorded. Returns whether it did.
bool share(const at::Tensor& from, const at::Tensor& to);
// The value of the whole storage. Throws if its element type differs from the tensor's.
Value read_storage(const at::Tensor& tensor);
// A new tensor with this value.
at::Tensor make(Value value, c10::ScalarType dtype, c10::IntArrayRef dims);
// Uploads a tensor of the CPU.
Value upload(const at::Tensor& cpu);
// Resizes a storage. The old contents stay.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

c10::Allocator* allocator();

// Warns about what the engine turned off by itself since the previous call.
void warn_of_troubles();

}  // namespace fuseline
