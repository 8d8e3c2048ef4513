// What every device implements: factories, copies, views, and resizing of storages. No arithmetic.

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/addr.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/all.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "device.h"
#include "kernel.h"
#include "overlap.h"
#include "replicas.h"
#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  if (device) check_device(*device);
  TORCH_CHECK(!layout || *layout == c10::kStrided, device_name(), ": the device supports only strided tensors");
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool>) {
  if (device) check_device(*device);
  TORCH_CHECK(!layout || *layout == c10::kStrided, device_name(), ": the device supports only strided tensors");
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
}

// Copies the elements of a tensor of the device to the CPU.
at::Tensor download(const at::Tensor& tensor) {
  TORCH_CHECK(!is_decomposing() || replicas() == 1,
              device_name(), ": the op depends on data that only replica 0 would supply: compute it on "
              "CPU tensors from torch.", device_name(), ".per_replica");
  at::Tensor cpu = at::empty(tensor.sizes(), tensor.options().device(c10::kCPU));
  if (tensor.numel() == 0) return cpu;
  // If the tensor is its whole storage, read the storage as it is: reading it as another type would
  // record ops.
  Value value = read_bytes(tensor);
  if (!value) value = read(tensor);
  check(flt_download(value.get(), cpu.mutable_data_ptr(), cpu.nbytes()));
  return cpu;
}

// Resolves the conjugate bit and the negative bit of a tensor.
at::Tensor without_bits(at::Tensor tensor) {
  if (tensor.is_conj()) tensor = tensor.conj();
  if (tensor.is_neg()) tensor = tensor._neg_view();
  return tensor;
}

Value with_bits_of(const at::Tensor& tensor, Value value) {
  if (tensor.is_conj() || tensor.is_neg()) {
    Value meant;
    check(flt_bits(value.get(), tensor.is_conj(), tensor.is_neg(), meant.out()));
    return meant;
  }
  return value;
}

at::Tensor copy_elements(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.numel() == 0) return dst;
  const CallSite site;
  TORCH_CHECK(is_ours(self) || self.device().is_cpu(), device_name(), ": cannot copy from the device ", self.device());
  TORCH_CHECK(is_ours(dst) || dst.device().is_cpu(), device_name(), ": cannot copy to the device ", dst.device());
  at::assert_no_internal_overlap(dst);
  if (is_ours(self) && is_ours(dst)) at::assert_no_partial_overlap(dst, self);
  if (!is_ours(dst)) {
    at::Tensor cpu = download(without_bits(self));
    if (self.is_conj()) cpu = cpu.conj();
    if (self.is_neg()) cpu = cpu._neg_view();
    dst.copy_(cpu);
    return dst;
  }
  const bool is_same = is_ours(self) && self.scalar_type() == dst.scalar_type() && self.sizes() == dst.sizes() &&
                       self.is_conj() == dst.is_conj() && self.is_neg() == dst.is_neg();
  if (is_same && share(self, dst)) return dst;
  Value value = is_ours(self) ? with_bits_of(self, read(without_bits(self)))
                              : upload(self.to(dst.scalar_type()).resolve_conj().resolve_neg());
  const bool is_other_type = is_ours(self) && self.scalar_type() != dst.scalar_type();
  if (is_other_type || self.sizes() != dst.sizes()) value = converted(std::move(value), dst.scalar_type(), dst.sizes());
  write(without_bits(dst), with_bits_of(dst, std::move(value)));
  return dst;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  at::Tensor copied = copy_elements(self, dst);
  warn_of_troubles();
  return copied;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (self.sizes() != dst.sizes()) {
    TORCH_CHECK(is_ours(dst), device_name(), ": a CPU tensor has different sizes than the tensor that is copied to it");
    set_sizes(dst, self.sizes());
  }
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const CallSite site;
  // RP2: programs branch on such numbers.
  if (c10::isIntegralType(self.scalar_type(), true) && replicas() > 1) return agreed(self);
  at::Tensor cpu = at::empty(self.sizes(), self.options().device(c10::kCPU));
  copy_from(self, cpu, false);
  return cpu.item();
}

// Views record nothing, but their gradients do. Errors then name the line of the view.
at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  const CallSite site;
  return at::native::view(self, size);
}
at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  const CallSite site;
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  const CallSite site;
  return at::native::_reshape_alias(self, size, stride);
}

// Grows a storage to what a tensor with these strides needs.
void grow(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const size_t bytes = at::detail::computeStorageNbytes(size, stride, tensor.dtype().itemsize(), tensor.storage_offset());
  if (bytes > tensor.storage().nbytes()) resize_storage(impl->unsafe_storage().unsafeGetStorageImpl(), bytes);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  set_sizes(self, size);
  if (format && *format != c10::MemoryFormat::Preserve) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

// Memory is freed in the order of the only stream, so it is never reused too early.
void record_stream(at::Tensor&, c10::Stream) {}

// Waits, because the result is a bool.
bool equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  return a.numel() == 0 || at::eq(a, b).all().item<bool>();
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(source.device().type() == kDevice,
              device_name(), ": expected a storage on the device ", device_name(), ", but got one on ",
              source.device());
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  c10::SmallVector<int64_t, 5> strides(stride.begin(), stride.end());
  if (strides.empty() && !size.empty()) strides = c10::contiguous_strides(size);
  impl->set_sizes_and_strides(size, strides);
  grow(self, size, strides);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto elems = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elems}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  at::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  return set_storage(self, std::move(storage), 0, {0}, {1});
}

// PyTorch's own kernels use dispatch stubs that list only its own devices.
at::Tensor& conj_physical_(at::Tensor& self) { return self.is_complex() ? self.copy_(self.conj()) : self; }

at::Tensor& conj_physical_out(const at::Tensor& self, at::Tensor& out) {
  check_target(out, {self});
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "Found dtype ", out.scalar_type(),
              " but expected ", self.scalar_type());
  prepare_target(out, self.scalar_type(), self.sizes(), true);
  return out.copy_(self.conj());
}

// PyTorch's kernel for devices other than the CPU composes this op, without a check of the result.
at::Tensor& addr_out(const at::Tensor& self, const at::Tensor& first, const at::Tensor& second, const at::Scalar& beta,
                     const at::Scalar& alpha, at::Tensor& out) {
  check_target(out, {self, first, second});
  const at::Tensor sum = at::addr(self, first, second, beta, alpha);
  prepare_target(out, sum.scalar_type(), sum.sizes(), true);
  return out.copy_(sum);
}

// The CPU's checks.
at::Tensor narrow_copy(const at::Tensor& self, int64_t dim, int64_t start, int64_t length) {
  TORCH_CHECK(dim < self.dim(), "Expected dim < self.dim() to be true, but got false.");
  TORCH_CHECK(length >= 0, "narrow(): length must be non-negative.");
  return self.narrow(dim, start, length).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

void prepare_target(const at::Tensor& target, c10::ScalarType dtype, c10::IntArrayRef dims, bool is_out) {
  TORCH_CHECK(is_out || target.sizes() == dims, "output with shape ", target.sizes(), " doesn't match the broadcast shape ", dims);
  set_sizes(target, dims);
  TORCH_CHECK(c10::canCast(dtype, target.scalar_type()), "result type ", dtype, " can't be cast to the desired output type ",
              target.scalar_type());
}

void set_sizes(const at::Tensor& tensor, c10::IntArrayRef dims) {
  if (tensor.sizes() == dims) return;
  const CallSite site;
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(dims);
  grow(tensor, dims, tensor.strides());
}

namespace {

using OptionalTensor = std::optional<at::Tensor>;

// The variants of batch norm whose schemas say that they write the running statistics, as graphs
// use them. The row of the plain variant also writes them.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                                          at::Tensor& mean, at::Tensor& variance, bool training, double momentum, double eps) {
  return at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm_without(const at::Tensor& input, const OptionalTensor& weight,
                                                                  const OptionalTensor& bias, bool training, double momentum, double eps) {
  return at::native_batch_norm(input, weight, bias, std::nullopt, std::nullopt, training, momentum, eps);
}

}  // namespace

void register_basics() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("equal", &equal);
  library.impl("record_stream", &record_stream);
  library.impl("view", &view);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("conj_physical_", &conj_physical_);
  library.impl("conj_physical.out", &conj_physical_out);
  library.impl("addr.out", &addr_out);
  library.impl("narrow_copy", &narrow_copy);
  library.impl("unfold", &at::native::unfold);
  library.impl("alias", &at::native::alias);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("resize_", &resize_);
  library.impl("_native_batch_norm_legit", &batch_norm);
  library.impl("_native_batch_norm_legit.no_stats", &batch_norm_without);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_source_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_nothing);
  // A copy handles the bits itself; resolving them would make another copy.
  static torch::Library conjugate(torch::Library::IMPL, "aten", c10::DispatchKey::Conjugate, __FILE__, __LINE__);
  static torch::Library negative(torch::Library::IMPL, "aten", c10::DispatchKey::Negative, __FILE__, __LINE__);
  for (torch::Library* bits : {&conjugate, &negative}) bits->impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace fuseline

// Called once by the Python module. Returns null, or an error message.
extern "C" __attribute__((visibility("default"))) const char* fuseline_torch_init() {
  static std::string wrong;
  try {
    fuseline::register_device();
    fuseline::register_fallback();
    fuseline::register_basics();
    fuseline::register_composites();
    fuseline::register_kernels();
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
  return nullptr;
}

extern "C" __attribute__((visibility("default"))) const char* fuseline_torch_fallbacks() {
  static thread_local std::string text;
  return (text = fuseline::fallbacks().lines()).c_str();
}

extern "C" __attribute__((visibility("default"))) const char* fuseline_torch_decomposed() {
  static thread_local std::string text;
  return (text = fuseline::decomposed().lines()).c_str();
}
