// Optimizer steps over all parameters in one call (`fused=True` in `torch.optim`), as ops of the
// device. Recorded ops are fused anyway, and no step waits for a value. Formulas and their order
// are those of PyTorch's CPU kernels, in at least 32 bits.
//
// With a gradient scaler (torch.amp.GradScaler), gradients are divided by its factor in place. If
// it found infinite gradients, nothing else changes.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <cmath>
#include <optional>

namespace {

using at::Tensor;
using at::TensorList;
using Maybe = std::optional<Tensor>;

Tensor wide(const Tensor& x) {
  const auto dtype = x.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? x.to(at::kFloat) : x;
}

// What all optimizers do with a gradient, and whether the step is taken.
struct Step {
  Maybe scale, found;
  bool maximize;
  double decay;

  static Maybe given(const Maybe& tensor) { return tensor && tensor->defined() ? tensor : std::nullopt; }
  Step(const Maybe& grad_scale, const Maybe& found_inf, bool is_maximized, double weight_decay)
      : scale(given(grad_scale)), found(given(found_inf)), maximize(is_maximized), decay(weight_decay) {}

  void set(const Tensor& target, const Tensor& value) const {
    target.copy_(found ? at::where(found->eq(1).reshape({}), wide(target), value) : value);
  }
  // The gradient without the scale, negated to maximize, with weight decay added.
  Tensor gradient(const Tensor& grad, const Tensor& param) const {
    Tensor value = wide(grad);
    if (scale) {
      value = value.div(scale->reshape({}));
      set(grad, value);
    }
    if (maximize) value = value.neg();
    if (decay != 0.0) value = value.add(param, decay);
    return value;
  }
};

// A learning rate: a number or a tensor with one element.
struct Rate {
  std::optional<double> number;
  Tensor tensor;

  explicit Rate(double rate) : number(rate) {}
  explicit Rate(const Tensor& rate) {
    if (rate.device().is_cpu()) {
      number = rate.item().toDouble();
    } else {
      tensor = rate.reshape({});
    }
  }
  Tensor times(const Tensor& x) const { return number ? x.mul(*number) : x.mul(tensor); }
};

// `1 - beta^step`, without the cancellation that a 32-bit subtraction would have.
Tensor correction(const Tensor& step, double beta) { return step.mul(std::log(beta)).expm1().neg(); }

template <bool is_decoupled>
void adam(TensorList params, TensorList grads, TensorList means, TensorList squares, TensorList most, TensorList steps, const Rate& rate,
          double beta1, double beta2, double weight_decay, double eps, bool amsgrad, bool maximize, const Maybe& scale, const Maybe& found) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Step step(scale, found, maximize, is_decoupled ? 0.0 : weight_decay);
  for (size_t at = 0; at < params.size(); ++at) {
    Tensor param = wide(params[at]);
    const Tensor grad = step.gradient(grads[at], param);
    if (is_decoupled && weight_decay != 0.0) param = param.sub(rate.times(param), weight_decay);
    const Tensor mean = wide(means[at]).lerp(grad, 1.0 - beta1);
    const Tensor square = wide(squares[at]).mul(beta2).addcmul(grad, grad, 1.0 - beta2);
    Tensor spread = square;
    if (amsgrad) {
      spread = wide(most[at]).maximum(square);
      step.set(most[at], spread);
    }
    const Tensor number = steps[at].reshape({});
    const Tensor divisor = spread.sqrt().div(correction(number, beta2).sqrt()).add(eps);
    step.set(params[at], param.sub(rate.times(mean.div(divisor)).div(correction(number, beta1))));
    step.set(means[at], mean);
    step.set(squares[at], square);
  }
}

// With the learning rate as a number and as a tensor.
template <bool is_decoupled, class Given>
void fused_adam(TensorList params, TensorList grads, TensorList means, TensorList squares, TensorList most, TensorList steps, Given rate,
                double beta1, double beta2, double weight_decay, double eps, bool amsgrad, bool maximize, const Maybe& scale,
                const Maybe& found) {
  adam<is_decoupled>(params, grads, means, squares, most, steps, Rate(rate), beta1, beta2, weight_decay, eps, amsgrad, maximize, scale, found);
}

template <class Given>
void fused_sgd(TensorList params, TensorList grads, TensorList momenta, double weight_decay, double momentum, Given given, double dampening,
               bool nesterov, bool maximize, bool is_first_step, const Maybe& scale, const Maybe& found) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Step step(scale, found, maximize, weight_decay);
  const Rate rate(given);
  for (size_t at = 0; at < params.size(); ++at) {
    const Tensor param = wide(params[at]);
    Tensor grad = step.gradient(grads[at], param);
    if (momentum != 0.0) {
      const Tensor kept = is_first_step ? grad : wide(momenta[at]).mul(momentum).add(grad, 1.0 - dampening);
      step.set(momenta[at], kept);
      grad = nesterov ? grad.add(kept, momentum) : kept;
    }
    step.set(params[at], param.sub(rate.times(grad)));
  }
}

template <class Given>
void fused_adagrad(TensorList params, TensorList grads, TensorList sums, TensorList steps, Given given, double lr_decay, double weight_decay,
                   double eps, bool maximize, const Maybe& scale, const Maybe& found) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Step step(scale, found, maximize, weight_decay);
  const Rate rate(given);
  for (size_t at = 0; at < params.size(); ++at) {
    const Tensor param = wide(params[at]);
    const Tensor grad = step.gradient(grads[at], param);
    const Tensor sum = wide(sums[at]).addcmul(grad, grad, 1.0);
    const Tensor slower = steps[at].reshape({}).sub(1).mul(lr_decay).add(1);
    step.set(params[at], param.sub(rate.times(grad).div(slower).div(sum.sqrt().add(eps))));
    step.set(sums[at], sum);
  }
}

// Multiplies gradients by the inverse of the scale, and sets `found` if one is not finite.
void unscale(TensorList grads, Tensor& found, const Tensor& inverse) {
  at::AutoDispatchBelowADInplaceOrView guard;
  for (const Tensor& grad : grads) {
    const Tensor value = wide(grad);
    found.copy_(found.maximum(value.isfinite().all().logical_not().to(found.scalar_type()).expand_as(found)));
    grad.copy_(value.mul(inverse.reshape({})));
  }
}

// Updates the scale: smaller after a gradient that was not finite, and larger, if that is finite,
// after `interval` steps without one.
Tensor& update_scale(Tensor& scale, Tensor& tracker, const Tensor& found, double growth, double backoff, int64_t interval) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor is_bad = found.gt(0).reshape(scale.sizes());
  const Tensor good = tracker.add(1);
  const Tensor is_due = good.eq(interval);
  const Tensor greater = scale.mul(growth);
  const Tensor grown = at::where(is_due.reshape(scale.sizes()).logical_and(greater.isfinite()), greater, scale);
  tracker.copy_(good.mul(is_due.logical_or(is_bad.reshape(tracker.sizes())).logical_not()));
  scale.copy_(at::where(is_bad, scale.mul(backoff), grown));
  return scale;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_amp_foreach_non_finite_check_and_unscale_", &unscale);
  m.impl("_amp_update_scale_", &update_scale);
  m.impl("_fused_adam_", &fused_adam<false, double>);
  m.impl("_fused_adam_.tensor_lr", &fused_adam<false, const Tensor&>);
  m.impl("_fused_adamw_", &fused_adam<true, double>);
  m.impl("_fused_adamw_.tensor_lr", &fused_adam<true, const Tensor&>);
  m.impl("_fused_sgd_", &fused_sgd<double>);
  m.impl("_fused_sgd_.tensor_lr", &fused_sgd<const Tensor&>);
  m.impl("_fused_adagrad_", &fused_adagrad<double>);
  m.impl("_fused_adagrad_.tensor_lr", &fused_adagrad<const Tensor&>);
}

}  // namespace
