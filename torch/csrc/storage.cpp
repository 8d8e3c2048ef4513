#include "storage.h"

#include "site.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/strides.h>

#include <array>
#include <optional>

namespace fuseline {

std::string last_message() {
  size_t len = 0;
  const char* text = flt_message(&len);
  return std::string(text, len);
}

void raise_last(FltStatus status) {
  if (status == FLT_FAILED) want_sites();
  std::string message = last_message();
  TORCH_CHECK(status != FLT_WRONG, message);
  TORCH_CHECK_NOT_IMPLEMENTED(status != FLT_UNSUPPORTED, "fuseline: ", message);
  TORCH_CHECK(false, "fuseline: ", message);
}

void check(FltStatus status) {
  if (C10_UNLIKELY(status != FLT_OK)) raise_last(status);
}

uint32_t code_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool: return 1;
    case c10::ScalarType::Char: return 2;
    case c10::ScalarType::Short: return 3;
    case c10::ScalarType::Int: return 4;
    case c10::ScalarType::Long: return 5;
    case c10::ScalarType::Byte: return 6;
    case c10::ScalarType::UInt16: return 7;
    case c10::ScalarType::UInt32: return 8;
    case c10::ScalarType::UInt64: return 9;
    case c10::ScalarType::Half: return 10;
    case c10::ScalarType::BFloat16: return 11;
    case c10::ScalarType::Float: return 12;
    case c10::ScalarType::Double: return 13;
    case c10::ScalarType::ComplexFloat: return 18;
    case c10::ScalarType::ComplexDouble: return 19;
    case c10::ScalarType::Float8_e4m3fn: return 20;
    case c10::ScalarType::Float8_e5m2: return 21;
    case c10::ScalarType::Float8_e4m3fnuz: return 24;
    case c10::ScalarType::Float8_e5m2fnuz: return 25;
    default: return 0;
  }
}

FltType type_of(c10::ScalarType dtype, c10::IntArrayRef dims) {
  TORCH_CHECK_NOT_IMPLEMENTED(code_of(dtype) != 0, "fuseline: there are no tensors of type ", dtype, " on this device");
  return FltType{code_of(dtype), static_cast<uint32_t>(dims.size()), dims.data()};
}

namespace {

thread_local uint64_t current = 0;

void delete_buf(void* context) { delete static_cast<Buf*>(context); }

class Bufs final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t) override {
    Buf* buf = new Buf;
    buf->recording = recording();
    return {buf, buf, &delete_buf, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_buf; }
  // What a clone of an allocation does: the same value in another storage.
  void copy_data(void* to, const void* from, std::size_t) const override {
    Buf* source = const_cast<Buf*>(static_cast<const Buf*>(from));
    Buf* target = static_cast<Buf*>(to);
    std::scoped_lock lock(source->mutex, target->mutex);
    target->value = source->value ? source->value.another() : Value();
    target->dtype = source->dtype;
    target->dims = source->dims;
  }
};

Bufs bufs;

Buf& buf_of(c10::StorageImpl* storage) {
  const c10::DataPtr& data = storage->data_ptr();
  // Fake tensors have the device and no data.
  TORCH_CHECK(data.get_deleter() == &delete_buf, "fuseline: a tensor without data is used as one of the device");
  return *static_cast<Buf*>(data.get_context());
}

// Zeros for a storage, in the graph if that is where it was made (SB4).
Value zeros_for(const Buf& buf, const FltType& type) {
  Value zeros;
  check(flt_zeros(&type, buf.recording != 0 && buf.recording == recording(), zeros.out()));
  return zeros;
}

// What a storage is after a write through a view, and the sizes that it has then.
Value written(const Value& base, const FltType& type, const int64_t* strides, int64_t offset, const Value& value,
              c10::SmallVector<int64_t, 5>& dims) {
  Value next;
  std::array<int64_t, FLT_MAX_RANK> sizes;
  size_t rank = 0;
  check(flt_write(base.get(), &type, strides, offset, value.get(), next.out(), sizes.data(), &rank));
  dims.assign(sizes.begin(), sizes.begin() + rank);
  return next;
}

// The value of the storage of a tensor; zeros if nobody has written to it. Under the lock.
const Value& base_of(Buf& buf, const at::Tensor& tensor) {
  if (!buf.value) {
    const int64_t size = tensor.dtype().itemsize();
    buf.dtype = tensor.scalar_type();
    buf.dims = {static_cast<int64_t>(tensor.storage().nbytes()) / size};
    buf.value = zeros_for(buf, type_of(buf.dtype, buf.dims));
  }
  return buf.value;
}

// Whether a tensor is all of its storage, in row-major order.
bool covers(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         static_cast<size_t>(tensor.numel()) * tensor.dtype().itemsize() == tensor.storage().nbytes();
}

}  // namespace

uint64_t recording() { return current; }
void set_recording(uint64_t number) { current = number; }

c10::Allocator* allocator() { return &bufs; }
REGISTER_ALLOCATOR(kDevice, &bufs);

bool is_ours(const at::Tensor& tensor) { return tensor.device().type() == kDevice; }

Buf& buf_of(const at::Tensor& tensor) { return buf_of(tensor.storage().unsafeGetStorageImpl()); }

Value read_whole(const at::Tensor& tensor) {
  Buf& buf = buf_of(tensor);
  std::scoped_lock lock(buf.mutex);
  const bool is_whole = buf.value && buf.dtype == tensor.scalar_type() && tensor.storage_offset() == 0 &&
                        tensor.sizes() == c10::IntArrayRef(buf.dims) && tensor.is_contiguous();
  return is_whole ? buf.value.another() : Value();
}

Value read(const at::Tensor& tensor) {
  if (Value whole = read_whole(tensor)) return whole;
  Buf& buf = buf_of(tensor);
  std::scoped_lock lock(buf.mutex);
  FltType type = type_of(tensor.scalar_type(), tensor.sizes());
  Value value;
  check(flt_read(base_of(buf, tensor).get(), &type, tensor.strides().data(), tensor.storage_offset(), value.out()));
  return value;
}

Value read_storage(const at::Tensor& tensor) {
  Buf& buf = buf_of(tensor);
  std::scoped_lock lock(buf.mutex);
  const Value& value = base_of(buf, tensor);
  TORCH_CHECK(buf.dtype == tensor.scalar_type(), "fuseline: elements of ", buf.dtype, " are seen as ", tensor.scalar_type());
  return value.another();
}

namespace {

// The elements of a tensor whose dimensions of stride zero, which repeat them, are one long; and the value for these, of which the first is taken.
std::optional<at::Tensor> without_repeats(const at::Tensor& tensor, Value& value) {
  c10::SmallVector<int64_t, 5> sizes(tensor.sizes());
  bool repeats = false;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.stride(axis) != 0 || sizes[axis] <= 1) continue;
    sizes[axis] = 1;
    repeats = true;
  }
  if (!repeats || tensor.numel() == 0) return std::nullopt;
  at::Tensor few = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  few.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  few.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, tensor.strides());
  const auto strides = c10::contiguous_strides(tensor.sizes());
  FltType type = type_of(tensor.scalar_type(), sizes);
  Value part;
  check(flt_read(value.get(), &type, strides.data(), 0, part.out()));
  value = std::move(part);
  return few;
}

}  // namespace

void write(const at::Tensor& tensor, Value value) {
  // What is written several times is the same each time, or the CPU leaves open which it is.
  if (const auto few = without_repeats(tensor, value)) return write(*few, std::move(value));
  Buf& buf = buf_of(tensor);
  TORCH_CHECK(recording() == 0 || buf.recording == recording(), "fuseline: a graph writes to a tensor that is none of its inputs");
  std::scoped_lock lock(buf.mutex);
  if (covers(tensor)) {
    buf.value = std::move(value);
    buf.dtype = tensor.scalar_type();
    buf.dims = tensor.sizes();
    return;
  }
  if (tensor.numel() == 0) return;
  const FltType type = type_of(tensor.scalar_type(), tensor.sizes());
  buf.value = written(base_of(buf, tensor), type, tensor.strides().data(), tensor.storage_offset(), value, buf.dims);
  buf.dtype = tensor.scalar_type();
}

Value converted(Value value, c10::ScalarType dtype, c10::IntArrayRef dims) {
  FltType type = type_of(dtype, dims);
  Value other;
  check(flt_convert(value.get(), &type, other.out()));
  return other;
}

at::Tensor make(Value value, c10::ScalarType dtype, c10::IntArrayRef dims) {
  at::Tensor tensor = at::detail::empty_generic(dims, &bufs, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype,
                                                std::nullopt);
  Buf& buf = buf_of(tensor);
  buf.value = std::move(value);
  buf.dtype = dtype;
  buf.dims = dims;
  return tensor;
}

Value upload(const at::Tensor& cpu) {
  at::Tensor data = cpu.contiguous();
  FltType type = type_of(data.scalar_type(), data.sizes());
  Value value;
  check(flt_upload(&type, data.const_data_ptr(), data.nbytes(), value.out()));
  return value;
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  Buf& buf = buf_of(storage);
  std::scoped_lock lock(buf.mutex);
  if (buf.value && bytes != storage->nbytes()) {
    const size_t size = c10::elementSize(buf.dtype);
    const size_t shared = std::min(bytes, storage->nbytes()) / size;
    if (bytes % size != 0 || shared == 0) {
      // Nothing is left, or what is left is no whole elements: as memory that was just allocated.
      buf.value = Value();
    } else {
      const std::array<int64_t, 1> kept{static_cast<int64_t>(shared)}, one{1};
      FltType type = type_of(buf.dtype, kept);
      Value part;
      check(flt_read(buf.value.get(), &type, one.data(), 0, part.out()));
      c10::SmallVector<int64_t, 5> dims{static_cast<int64_t>(bytes / size)};
      if (dims[0] > kept[0]) {
        const Value zeros = zeros_for(buf, type_of(buf.dtype, dims));
        part = written(zeros, type, one.data(), 0, part, dims);
      }
      buf.value = std::move(part);
      buf.dims = dims;
    }
  }
  storage->set_nbytes(bytes);
}

}  // namespace fuseline
