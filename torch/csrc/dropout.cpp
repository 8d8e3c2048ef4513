// Dropout.
//
// PyTorch's decomposition is written in Python and calls PyTorch's meta functions. This one draws
// the same random numbers, so that a compiled function drops the same elements as an eager one.

#include <ATen/core/Tensor.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

namespace fuseline {
namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const auto truth = input.options().dtype(at::kBool);
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, truth)};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, truth)};
  TORCH_CHECK_TYPE(at::isFloatingType(input.scalar_type()) || input.is_complex(),
                   "result type Float can't be cast to the desired output type ",
                   input.scalar_type());
  const at::Tensor mask = at::rand_like(input).gt(p);
  return {at::mul(mask, input).mul(1 / (1 - p)), mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  return grad.mul(mask.to(grad.scalar_type()).mul(scale));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
}

}  // namespace
}  // namespace fuseline
