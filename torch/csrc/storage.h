// Storages whose bytes are a value of the engine's.
//
// A storage of the device has no memory that the host could read. Its data pointer is the address
// of a Buf, which holds one value for all of the storage; views are sizes, strides and offsets of
// ATen's own. A kernel reads a tensor as a value (`read`) and writes one (`write`), which replaces
// the value of the storage. So views alias as on any device, and in-place ops are functional ones
// with a write.
//
// Invariants:
// - SB1: a Buf belongs to one storage and dies with it (the deleter of its data pointer). That is
//   when its value's life ends in the program.
// - SB2: the value of a Buf covers the storage: elements times their size are its bytes. `dtype`
//   and `dims` are its own. A null value is a storage that nobody has written to.
// - SB3: the value is replaced under the lock; forward and backward run on different threads.
// - SB5: PyTorch also makes storages of a bare data pointer (`from_blob`: what pickles and DLPack
//   do), which has no deleter of ours. Such a pointer is followed where it leads to a Buf, and
//   whoever made it sees to it that the Buf outlives it, as on any device. A Buf knows itself by
//   its mark, which is gone when it is.
// - SB4: a value of a graph that is being recorded (graph.h) is in storages that were made
//   meanwhile, on the same thread, and in no other.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <mutex>

#include "engine.h"

namespace fuseline {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

// A hold on a value, or none.
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
  // Where a function of the engine's puts a value; there is none yet.
  FltValue* out() { return &value_; }

 private:
  FltValue value_{};
};
static_assert(sizeof(Value) == sizeof(FltValue), "a list of values is a list of words");

struct Buf {
  // Its own address, changed (SB5).
  uint64_t mark = 0;
  // Of the storage.
  size_t bytes = 0;
  std::mutex mutex;
  Value value;
  // Type and sizes of the value. The sizes are of no tensor where they are not known.
  c10::ScalarType dtype = c10::ScalarType::Byte;
  c10::SmallVector<int64_t, 5> dims;
  // The recording of a graph that it was made in; zero for none.
  uint64_t recording = 0;
};

// What this thread records a graph as; zero if it does not.
uint64_t recording();
void set_recording(uint64_t number);

// Throws what the engine said.
void check(FltStatus status);
// The same, in these words.
[[noreturn]] void raise_last(FltStatus status);
std::string last_message();

// The engine's code of an element type; 0 for one that it has not.
uint32_t code_of(c10::ScalarType dtype);
FltType type_of(c10::ScalarType dtype, c10::IntArrayRef dims);

bool is_ours(const at::Tensor& tensor);
Buf& buf_of(const at::Tensor& tensor);

// What a tensor of the device is, in row-major order.
Value read(const at::Tensor& tensor);
// The value of its storage if that is exactly what the tensor is, else null: no op has to be
// recorded then.
Value read_whole(const at::Tensor& tensor);
// Lets a tensor be this value, which has the tensor's type and sizes.
void write(const at::Tensor& tensor, Value value);
// The value in another element type, and in sizes that it broadcasts to.
Value converted(Value value, c10::ScalarType dtype, c10::IntArrayRef dims);
// The value of a storage whose bytes are just those of the tensor, whatever its elements are; else
// null.
Value read_bytes(const at::Tensor& tensor);
// Lets a storage be the value of another one, if both tensors are all of their storages and no
// graph is recorded; says whether they were.
bool share(const at::Tensor& from, const at::Tensor& to);
// The value of all of its storage, as elements of its type; throws where they are of another.
Value read_storage(const at::Tensor& tensor);
// A new tensor that is this value.
at::Tensor make(Value value, c10::ScalarType dtype, c10::IntArrayRef dims);
// The value of a tensor of the CPU, converted to a type.
Value upload(const at::Tensor& cpu);
// The storage gets this many bytes; what was there stays.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

c10::Allocator* allocator();

// Warns of what the engine has turned off by itself since it was asked last.
void warn_of_troubles();

}  // namespace fuseline
