//! Optimisers.

use fuseline_runtime::Result;

use super::unfit;
use crate::handle::Tensor;
use crate::tensor::constant_like;
use crate::trace::TensorTree;

/// Settings of [`adam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Step size.
    pub learning_rate: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the mean of squares.
    pub epsilon: f64,
    /// Decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization",
    /// 2019); 0 for plain Adam.
    pub weight_decay: f64,
}

impl Default for Adam {
    /// 0.001, 0.9, 0.999, 1e-8, no decay.
    fn default() -> Self {
        Adam { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// A parameter and the two running means of Adam.
#[derive(Clone, Debug)]
pub struct AdamState {
    /// The parameter.
    pub value: Tensor,
    /// Running mean of its gradients.
    pub mean: Tensor,
    /// Running mean of the squared gradients.
    pub square: Tensor,
}

/// A loop may carry it.
impl TensorTree for AdamState {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> AdamState {
        AdamState { value: f(&self.value), mean: f(&self.mean), square: f(&self.square) }
    }
}

impl AdamState {
    /// A parameter before its first step.
    ///
    /// # Errors
    /// When the zeros cannot be made.
    #[track_caller]
    pub fn new(value: Tensor) -> Result<AdamState> {
        let stream = value.on_stream();
        let mean = stream.zeros(value.dtype(), value.dims())?;
        let square = stream.zeros(value.dtype(), value.dims())?;
        Ok(AdamState { value, mean, square })
    }
}

/// One step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015). `step`
/// counts from 1. Numbers that change from step to step (bias corrections, a learning-rate
/// schedule) are lifted and compile nothing. The old state is consumed, so that its memory is
/// donated to the new one.
///
/// # Errors
/// When the gradient does not have the type of the parameter.
#[track_caller]
pub fn adam(state: AdamState, gradient: &Tensor, step: u32, settings: &Adam) -> Result<AdamState> {
    let AdamState { value, mean, square } = state;
    if gradient.ty() != value.ty() {
        let given = format!("the parameter is {} and its gradient {}", value.ty(), gradient.ty());
        return Err(unfit("subtract", given, "they must have the same type"));
    }
    let Adam { learning_rate, beta1, beta2, epsilon, weight_decay } = *settings;
    let power = f64::from(step);
    let fresh = gradient.mul(&constant_like(gradient, 1.0 - beta1)?)?;
    let mean = mean.mul(&constant_like(gradient, beta1)?)?.add(&fresh)?;
    let squared = gradient.mul(gradient)?;
    let fresh = squared.mul(&constant_like(gradient, 1.0 - beta2)?)?;
    let square = square.mul(&constant_like(gradient, beta2)?)?.add(&fresh)?;
    let corrected = (&square * (1.0 / (1.0 - beta2.powf(power))))?;
    let root = corrected.sqrt()?.add(&constant_like(gradient, epsilon)?)?;
    let change = (&mean * (learning_rate / (1.0 - beta1.powf(power))))?.div(&root)?;
    let value = if weight_decay == 0.0 { value } else { (&value * (1.0 - learning_rate * weight_decay))? };
    Ok(AdamState { value: value.sub(&change)?, mean, square })
}
