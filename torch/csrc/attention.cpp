// `scaled_dot_product_attention` as ops of this device (engine/src/ops/attention.rs), through
// PyTorch's overrideable backend.
//
// The attention weights are saved for the gradient, in place of the log-sum-exps that other devices
// save. With dropout, with fewer key heads than query heads, or with other ranks, PyTorch's
// composition of ops is used.

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "storage.h"

namespace {

using at::Tensor;
using Scale = std::optional<double>;

int64_t choice(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout, bool,
               Scale, bool grouped) {
  const bool is_plain = dropout == 0.0 && !grouped && query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.numel() > 0 &&
                        key.numel() > 0 && value.numel() > 0 && query.sizes().slice(0, 2) == key.sizes().slice(0, 2) &&
                        key.sizes().slice(0, 3) == value.sizes().slice(0, 3) && at::isFloatingType(query.scalar_type()) &&
                        query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type() &&
                        !(mask && mask->defined() && mask->requires_grad());
  return static_cast<int64_t>(is_plain ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

double scale_of(const Tensor& query, Scale scale) { return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1)))); }

using Forward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, bool, double);
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                            const Tensor&, double);

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias, double dropout, bool is_causal, bool,
    Scale scale) {
  TORCH_CHECK(dropout == 0.0, fuseline::device_name(), ": fused attention does not support dropout");
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fuseline::attention", "").typed<Forward>();
  auto [out, weights] = op.call(query, key, value, bias, is_causal, scale_of(query, scale));
  // Unused results that other devices save. A graph saves every result, and an undefined tensor
  // cannot be saved. This one lives until the process ends.
  static const Tensor& none = *new Tensor(at::empty({0}, query.options().dtype(c10::kLong)));
  return {out, weights, none, none, query.sym_size(2), key.sym_size(2), none, none, none};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                              const Tensor& value, const Tensor& bias, std::array<bool, 4> mask,
                                                              const Tensor& out, const Tensor& weights, const Tensor&, const Tensor&,
                                                              c10::SymInt, c10::SymInt, double, bool, const Tensor&, const Tensor&,
                                                              Scale scale) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fuseline::attention_backward", "").typed<Backward>();
  auto [of_query, of_key, of_value, of_scores] = op.call(grad, query, key, value, out, weights, scale_of(query, scale));
  Tensor of_bias;
  if (mask[3] && bias.defined()) of_bias = of_scores.sum_to_size(bias.sizes()).to(bias.scalar_type());
  return {of_query, of_key, of_value, of_bias};
}

std::tuple<Tensor, Tensor> attention_meta(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>&, bool,
                                          double) {
  return {at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options()),
          at::empty({query.size(0), query.size(1), query.size(2), key.size(2)}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_meta(const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value,
                                                         const Tensor&, const Tensor& weights, double) {
  return {at::empty(query.sizes(), query.options()), at::empty(key.sizes(), query.options()), at::empty(value.sizes(), query.options()),
          at::empty(weights.sizes(), query.options())};
}

TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale) -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor weights, float scale)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(fuseline, Meta, m) {
  m.impl("attention", &attention_meta);
  m.impl("attention_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choice)
}
