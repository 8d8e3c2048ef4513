// Checks of composed ops that PyTorch makes on the CPU only: there they have a kernel of their own,
// or reading values costs nothing. The wrappers take the place of the composed kernels, with
// gradients (AutogradPrivateUse1) and without (PrivateUse1).

#include <ATen/core/Tensor.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/max_pool1d_native.h>
#include <ATen/ops/nanquantile_native.h>
#include <ATen/ops/quantile_native.h>
#include <torch/library.h>

#include "device.h"
#include "engine.h"
#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

using Dim = std::optional<int64_t>;

at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil_mode) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"max_pool1d_impl\" not implemented for '", self.scalar_type(), "'");
  return at::native::max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode);
}

// Like an index out of range, a share that is none is an error at the next read.
void check_shares(const at::Tensor& q) {
  // A tensor of a tracer has no values.
  const bool has_values = is_ours(q) && !q.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize}));
  if (!has_values || !flt_checks() || !at::isFloatingType(q.scalar_type()) || q.numel() == 0) return;
  const CallSite site;
  at::_assert_async(q.detach().ge(0).logical_and_(q.detach().le(1)).all(), "quantile() q values must be in the range [0, 1]");
}

at::Tensor quantile(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim, c10::string_view interpolation) {
  at::Tensor result = at::native::quantile(self, q, dim, keepdim, interpolation);
  check_shares(q);
  return result;
}
at::Tensor& quantile_out(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim, c10::string_view interpolation, at::Tensor& out) {
  at::native::quantile_out(self, q, dim, keepdim, interpolation, out);
  check_shares(q);
  return out;
}
at::Tensor nanquantile(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim, c10::string_view interpolation) {
  at::Tensor result = at::native::nanquantile(self, q, dim, keepdim, interpolation);
  check_shares(q);
  return result;
}
at::Tensor& nanquantile_out(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim, c10::string_view interpolation, at::Tensor& out) {
  at::native::nanquantile_out(self, q, dim, keepdim, interpolation, out);
  check_shares(q);
  return out;
}

}  // namespace

void register_composites() {
  static torch::Library plain(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library graded(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  for (torch::Library* library : {&plain, &graded}) {
    library->impl("max_pool1d", &max_pool1d);
    library->impl("quantile", &quantile);
    library->impl("quantile.out", &quantile_out);
    library->impl("nanquantile", &nanquantile);
    library->impl("nanquantile.out", &nanquantile_out);
  }
}

}  // namespace fuseline
