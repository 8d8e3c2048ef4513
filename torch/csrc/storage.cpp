#include "storage.h"

#include "device.h"
#include "site.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/strides.h>

#include <array>
#include <atomic>
#include <fcntl.h>
#include <optional>
#include <sstream>
#include <unistd.h>

namespace fuseline {

std::string last_message() {
  size_t len = 0;
  const char* text = flt_message(&len);
  return std::string(text, len);
}

void raise_last(FltStatus status) {
  if (status == FLT_FAILED || status == FLT_OUT_OF_RANGE) want_sites();
  std::string message = last_message();
  TORCH_CHECK(status != FLT_WRONG, message);
  TORCH_CHECK_NOT_IMPLEMENTED(status != FLT_UNSUPPORTED, device_name(), ": ", message);
  TORCH_CHECK_INDEX(status != FLT_OUT_OF_RANGE, device_name(), ": ", message);
  TORCH_CHECK(false, device_name(), ": ", message);
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
  TORCH_CHECK_NOT_IMPLEMENTED(code_of(dtype) != 0, device_name(), ": there are no tensors of type ", dtype,
                              " on this device");
  return FltType{code_of(dtype), static_cast<uint32_t>(dims.size()), dims.data()};
}

namespace {

thread_local uint64_t current = 0;

constexpr uint64_t kMark = 0x9e6c63d0876a9f1b;
uint64_t mark_of(const Buf* buf) { return reinterpret_cast<uintptr_t>(buf) ^ kMark; }

// Bytes and number of allocations of storages. The counters are only added to and subtracted from,
// so nothing is ordered by them.
struct Held {
  std::atomic<int64_t> bytes{0}, count{0}, peak_bytes{0}, peak_count{0}, all_bytes{0}, all_count{0};

  static void raise(std::atomic<int64_t>& peak, int64_t now) {
    int64_t before = peak.load(std::memory_order_relaxed);
    while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
  }
  void add(int64_t more, int64_t storages) {
    raise(peak_bytes, bytes.fetch_add(more, std::memory_order_relaxed) + more);
    all_bytes.fetch_add(more, std::memory_order_relaxed);
    if (storages == 0) return;
    raise(peak_count, count.fetch_add(storages, std::memory_order_relaxed) + storages);
    all_count.fetch_add(storages, std::memory_order_relaxed);
  }
  void remove(int64_t less, int64_t storages) {
    bytes.fetch_sub(less, std::memory_order_relaxed);
    if (storages != 0) count.fetch_sub(storages, std::memory_order_relaxed);
  }
};
Held held;

void delete_buf(void* context) {
  Buf* buf = static_cast<Buf*>(context);
  held.remove(static_cast<int64_t>(buf->bytes), 1);
  buf->mark = 0;
  delete buf;
}

// The storages as a PyTorch allocator. It caches nothing, so reserved equals allocated memory.
class Bufs final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Buf* buf = new Buf;
    buf->mark = mark_of(buf);
    buf->bytes = bytes;
    buf->recording = recording();
    held.add(static_cast<int64_t>(bytes), 1);
    return {buf, buf, &delete_buf, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_buf; }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_device({kDevice, index});
    const auto stat = [](const std::atomic<int64_t>& now, const std::atomic<int64_t>& peak, const std::atomic<int64_t>& all) {
      c10::CachingAllocator::Stat stat;
      stat.current = now.load();
      stat.peak = peak.load();
      stat.allocated = all.load();
      stat.freed = stat.allocated - stat.current;
      return stat;
    };
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto bytes = stat(held.bytes, held.peak_bytes, held.all_bytes), count = stat(held.count, held.peak_count, held.all_count);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* one : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) (*one)[kAll] = bytes;
    for (auto* one : {&stats.allocation, &stats.segment, &stats.active}) (*one)[kAll] = count;
    return stats;
  }
  // Freed memory is computed as allocated minus live memory, so both restart there.
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    check_device({kDevice, index});
    held.all_bytes = held.bytes.load();
    held.all_count = held.count.load();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    check_device({kDevice, index});
    held.peak_bytes = held.bytes.load();
    held.peak_count = held.count.load();
  }
  // Host memory: plugins do not report the memory of other devices.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_device({kDevice, index});
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return {page * static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)), page * static_cast<size_t>(sysconf(_SC_PHYS_PAGES))};
  }
  // Clones an allocation: the same value in another storage.
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

// The Buf at an address that other code has put into a storage, or null (STORAGE-5). The mark is
// read through a file, because a read of invalid memory through a file returns an error.
Buf* buf_at(void* data) {
  Buf* buf = static_cast<Buf*>(data);
  static const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  uint64_t mark = 0;
  if (data == nullptr || memory < 0) return nullptr;
  const auto place = static_cast<off_t>(reinterpret_cast<uintptr_t>(&buf->mark));
  return pread(memory, &mark, sizeof mark, place) == sizeof mark && mark == mark_of(buf) ? buf : nullptr;
}

bool is_own(const c10::StorageImpl* storage) { return storage->data_ptr().get_deleter() == &delete_buf; }

Buf& buf_of(c10::StorageImpl* storage) {
  const c10::DataPtr& data = storage->data_ptr();
  if (C10_LIKELY(data.get_deleter() == &delete_buf)) return *static_cast<Buf*>(data.get_context());
  Buf* buf = buf_at(data.get());
  // Fake tensors have the device but no data.
  TORCH_CHECK(buf != nullptr, device_name(),
              ": expected a tensor with data, but got one without, such as a fake tensor");
  return *buf;
}

// Zeros for a storage, recorded in the graph if the storage was made there (STORAGE-4).
Value zeros_for(const Buf& buf, const FltType& type) {
  Value zeros;
  check(flt_zeros(&type, buf.recording != 0 && buf.recording == recording(), zeros.out()));
  return zeros;
}

// The value of a storage after a write through a view, and its sizes.
Value written(const Value& base, const FltType& type, const int64_t* strides, int64_t offset, const Value& value,
              c10::SmallVector<int64_t, 5>& dims) {
  Value next;
  std::array<int64_t, FLT_MAX_RANK> sizes;
  size_t rank = 0;
  check(flt_write(base.get(), &type, strides, offset, value.get(), next.out(), sizes.data(), &rank));
  dims.assign(sizes.begin(), sizes.begin() + rank);
  return next;
}

// The value of a tensor's storage, or zeros if nothing was written. Needs the lock.
const Value& base_of(Buf& buf, const at::Tensor& tensor) {
  if (!buf.value) {
    const int64_t size = tensor.dtype().itemsize();
    buf.dtype = tensor.scalar_type();
    buf.dims = {static_cast<int64_t>(buf.bytes) / size};
    buf.value = zeros_for(buf, type_of(buf.dtype, buf.dims));
  }
  return buf.value;
}

// Whether a tensor covers its storage in row-major order.
bool covers(const Buf& buf, const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         static_cast<size_t>(tensor.numel()) * tensor.dtype().itemsize() == buf.bytes;
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
  // A storage that was filled as bytes, as file readers do, and is read as numbers holds numbers
  // from now on. Bool is excluded: any byte is a bool.
  const bool is_plain = recording() == 0 && buf.dtype == c10::ScalarType::Byte && tensor.scalar_type() != c10::ScalarType::Bool;
  if (is_plain && tensor.scalar_type() != c10::ScalarType::Byte && covers(buf, tensor)) {
    buf.value = value.another();
    buf.dtype = tensor.scalar_type();
    buf.dims = tensor.sizes();
  }
  return value;
}

Value read_bytes(const at::Tensor& tensor) {
  Buf& buf = buf_of(tensor);
  std::scoped_lock lock(buf.mutex);
  // A byte other than 0 or 1 must be converted to a bool.
  if (!buf.value || (tensor.scalar_type() == c10::ScalarType::Bool && buf.dtype != c10::ScalarType::Bool)) return Value();
  return covers(buf, tensor) ? buf.value.another() : Value();
}

bool share(const at::Tensor& from, const at::Tensor& to) {
  Buf &source = buf_of(from), &target = buf_of(to);
  if (&source == &target || recording() != 0) return false;
  std::scoped_lock lock(source.mutex, target.mutex);
  if (!source.value || source.bytes != target.bytes || !covers(source, from) || !covers(target, to)) return false;
  target.value = source.value.another();
  target.dtype = source.dtype;
  target.dims = source.dims;
  return true;
}

Value read_storage(const at::Tensor& tensor) {
  Buf& buf = buf_of(tensor);
  std::scoped_lock lock(buf.mutex);
  const Value& value = base_of(buf, tensor);
  TORCH_CHECK(buf.dtype == tensor.scalar_type(), device_name(), ": a storage with elements of type ",
              buf.dtype, " cannot be read as ",
              tensor.scalar_type());
  return value.another();
}

namespace {

// A view of the tensor in which dimensions of stride zero, which repeat elements, have size one. Of
// the value, the last of the repeated elements are kept.
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
  int64_t last = 0;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) last += (tensor.size(axis) - sizes[axis]) * strides[axis];
  FltType type = type_of(tensor.scalar_type(), sizes);
  Value part;
  check(flt_read(value.get(), &type, strides.data(), last, part.out()));
  value = std::move(part);
  return few;
}

}  // namespace

void write(const at::Tensor& tensor, Value value) {
  // Of elements at one place the last one is written, as on the CPU (overlap.h).
  if (const auto few = without_repeats(tensor, value)) return write(*few, std::move(value));
  Buf& buf = buf_of(tensor);
  TORCH_CHECK(recording() == 0 || buf.recording == recording(),
              device_name(), ": a graph writes to a tensor that is not one of its inputs");
  std::scoped_lock lock(buf.mutex);
  if (covers(buf, tensor)) {
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
  TORCH_CHECK(is_own(storage), device_name(), ": a storage made from a data pointer cannot be resized");
  Buf& buf = buf_of(storage);
  std::scoped_lock lock(buf.mutex);
  const auto more = static_cast<int64_t>(bytes) - static_cast<int64_t>(buf.bytes);
  more > 0 ? held.add(more, 0) : held.remove(-more, 0);
  buf.bytes = bytes;
  if (buf.value && bytes != storage->nbytes()) {
    const size_t size = c10::elementSize(buf.dtype);
    const size_t shared = std::min(bytes, storage->nbytes()) / size;
    if (bytes % size != 0 || shared == 0) {
      // Nothing is left, or no whole number of elements: the storage counts as newly allocated.
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

void warn_of_troubles() {
  if (C10_LIKELY(!flt_has_warnings())) return;
  check(flt_warnings());
  std::istringstream lines(last_message());
  for (std::string line; std::getline(lines, line);)
    TORCH_WARN(device_name(), ": ", line, " (torch.", device_name(), ".explain() lists later ones)");
}

}  // namespace fuseline
