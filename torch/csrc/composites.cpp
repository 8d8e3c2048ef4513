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

at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()),
                              "\"max_pool1d_impl\" not implemented for '", self.scalar_type(), "'");
  return at::native::max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode);
}

// A probability outside of [0, 1] is an error at the next read, as an index out of range is.
void check_probabilities(const at::Tensor& q) {
  using c10::DispatchKey;
  // A tensor of a tracer has no values.
  const c10::DispatchKeySet tracers({DispatchKey::Python, DispatchKey::Functionalize});
  const bool has_values = is_ours(q) && !q.key_set().has_any(tracers);
  if (!has_values || !flt_checks() || !at::isFloatingType(q.scalar_type()) || q.numel() == 0) return;
  const CallSite site;
  at::_assert_async(q.detach().ge(0).logical_and_(q.detach().le(1)).all(),
                    "quantile() q values must be in the range [0, 1]");
}

using Quantile = at::Tensor(const at::Tensor&, const at::Tensor&, Dim, bool, c10::string_view);
using QuantileOut = at::Tensor&(const at::Tensor&, const at::Tensor&, Dim, bool, c10::string_view,
                                at::Tensor&);

// A quantile kernel that PyTorch composes, with a check of its probabilities.
template <Quantile* kKernel>
at::Tensor quantile(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim,
                    c10::string_view interpolation) {
  at::Tensor result = kKernel(self, q, dim, keepdim, interpolation);
  check_probabilities(q);
  return result;
}
template <QuantileOut* kKernel>
at::Tensor& quantile_out(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim,
                         c10::string_view interpolation, at::Tensor& out) {
  kKernel(self, q, dim, keepdim, interpolation, out);
  check_probabilities(q);
  return out;
}

}  // namespace

void register_composites() {
  using c10::DispatchKey;
  using torch::Library;
  static Library kernels(Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static Library autograd(Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  for (Library* library : {&kernels, &autograd}) {
    library->impl("max_pool1d", &max_pool1d);
    library->impl("quantile", &quantile<at::native::quantile>);
    library->impl("quantile.out", &quantile_out<at::native::quantile_out>);
    library->impl("nanquantile", &quantile<at::native::nanquantile>);
    library->impl("nanquantile.out", &quantile_out<at::native::nanquantile_out>);
  }
}

}  // namespace fuseline
