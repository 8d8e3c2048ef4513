//! Functions that networks are made of, recorded as primitive ops.
//!
//! None of them is an op of its own: each records what it stands for, and the region it lands in is fused as if the user
//! had written the primitives. Shapes are given outermost first; `axis` counts from the back if negative. Every function
//! fails where one of its ops is refused, with the call site of the function.

use fuseline_fusion::op::attrs::DotDimensionNumbers;
use fuseline_fusion::{DType, Fault, OpError, Site};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Reduces over `axis` and keeps it as a dimension of size 1.
#[track_caller]
fn keep(x: &Tensor, axis: i64, reduce: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let reduced = reduce(x)?;
    let place = if axis < 0 { axis + dims.len() as i64 } else { axis };
    // The reduction has checked the axis.
    dims[place as usize] = 1;
    reduced.reshape(&dims)
}

/// `max(x, 0)`.
///
/// # Errors
/// When the elements are bool.
#[track_caller]
pub fn relu(x: &Tensor) -> Result<Tensor> {
    let zero = x.on_stream().zeros(x.dtype(), x.dims())?;
    x.maximum(&zero)
}

/// `x * logistic(x)`, also called swish.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x.mul(&x.logistic()?)
}

/// The Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, "Gaussian error linear units", 2016):
/// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    let constant = |value: f64| crate::tensor::constant_like(x, value);
    let cube = x.mul(x)?.mul(x)?;
    let inner = x.add(&cube.mul(&constant(0.044_715)?)?)?;
    let gate = inner.mul(&constant((2.0 / std::f64::consts::PI).sqrt())?)?.tanh()?;
    x.mul(&constant(0.5)?)?.mul(&gate.add(&constant(1.0)?)?)
}

/// `exp(x) / sum(exp(x))` along `axis`, computed from `x - max(x)` so that nothing overflows.
///
/// # Errors
/// When the elements are not floats or the dimension does not exist.
#[track_caller]
pub fn softmax(x: &Tensor, axis: i64) -> Result<Tensor> {
    let largest = keep(x, axis, |x| x.max(&[axis]))?;
    let powers = x.sub(&largest)?.exp()?;
    let total = keep(&powers, axis, |powers| powers.sum(&[axis]))?;
    powers.div(&total)
}

/// The logarithm of [`softmax`], without computing it.
///
/// # Errors
/// When the elements are not floats or the dimension does not exist.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: i64) -> Result<Tensor> {
    let largest = keep(x, axis, |x| x.max(&[axis]))?;
    let shifted = x.sub(&largest)?;
    let total = keep(&shifted.exp()?, axis, |powers| powers.sum(&[axis]))?;
    shifted.sub(&total.log()?)
}

/// The mean cross-entropy between logits `[batch..., classes]` and integer labels `[batch...]`, in nats.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let Some(&classes) = logits.dims().last() else {
        let error = OpError::new("reduce", Fault::Shape, "the logits are a scalar", "they need a dimension of classes");
        return Err(Error::op(error, Site::Rust(std::panic::Location::caller())));
    };
    let hot = labels.one_hot(classes, logits.dtype())?;
    let picked = log_softmax(logits, -1)?.mul(&hot)?;
    let axes: Vec<i64> = (0..picked.rank() as i64).collect();
    let count = labels.ty().elems().0.max(1);
    let total = picked.sum(&axes)?.neg()?;
    total.div(&crate::tensor::constant_like(&total, count as f64)?)
}

/// Layer normalisation over the last dimension (Ba, Kiros and Hinton, 2016): `(x - mean) / sqrt(variance + epsilon)`, times
/// `gamma`, plus `beta`, both of the size of that dimension. The variance is the biased one.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, epsilon: f64) -> Result<Tensor> {
    let (normal, _) = normalize(x, epsilon)?;
    normal.mul(gamma)?.add(beta)
}

/// The normalised tensor of [`layer_norm`] and the factor `1 / sqrt(variance + epsilon)`, which its gradient needs.
///
/// # Errors
/// When `x` is a scalar or its elements are not floats.
#[track_caller]
pub fn normalize(x: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor)> {
    let centered = x.sub(&keep(x, -1, |x| x.mean(&[-1]))?)?;
    let variance = keep(&centered.mul(&centered)?, -1, |squares| squares.mean(&[-1]))?;
    let scale = variance.add(&crate::tensor::constant_like(&variance, epsilon)?)?.rsqrt()?;
    Ok((centered.mul(&scale)?, scale))
}

/// Scaled dot-product attention: `softmax(q k^T / sqrt(width) + mask) v` for `q`, `k`, `v` of shape
/// `[batch, heads, length, width]`. `mask` is added to the scores and broadcasts to `[batch, heads, length, length]`; see
/// [`causal_mask`]. Also returns the weights.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
    let width = q.dims().last().copied().unwrap_or(1);
    let batch = [0, 1];
    let scores = q.dot_general(
        k,
        DotDimensionNumbers {
            lhs_batching: &batch,
            rhs_batching: &batch,
            lhs_contracting: &[3],
            rhs_contracting: &[3],
        },
    )?;
    let scores = scores.mul(&crate::tensor::constant_like(&scores, 1.0 / (width as f64).sqrt())?)?;
    let scores = match mask {
        Some(mask) => scores.add(mask)?,
        None => scores,
    };
    let weights = softmax(&scores, -1)?;
    let mixed = weights.dot_general(
        v,
        DotDimensionNumbers {
            lhs_batching: &batch,
            rhs_batching: &batch,
            lhs_contracting: &[3],
            rhs_contracting: &[2],
        },
    )?;
    Ok((mixed, weights))
}

/// A mask for [`attention`] in which each place sees itself and the places before it: 0 there, a large negative number
/// elsewhere. Shape `[length, length]`.
///
/// # Errors
/// When the element type is no float.
#[track_caller]
pub fn causal_mask(like: &Tensor, length: u64) -> Result<Tensor> {
    let stream = like.on_stream();
    let (row, column) = (stream.iota(DType::I32, &[length, length], 0)?, stream.iota(DType::I32, &[length, length], 1)?);
    let seen = row.greater_equal(&column)?;
    let zero = stream.zeros(like.dtype(), &[])?;
    let hidden = crate::tensor::constant_like(&zero, -1e9)?;
    seen.select(&zero, &hidden)
}

/// Rows of `table`, `[words, width]`, by integer `indices` of any shape: `[indices..., width]`.
///
/// # Errors
/// When the table has no dimension or the indices are not integers.
#[track_caller]
pub fn embedding(table: &Tensor, indices: &Tensor) -> Result<Tensor> {
    table.take(indices, 0)
}

/// Settings of [`adam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Step size.
    pub learning_rate: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the latter.
    pub epsilon: f64,
    /// Decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019); 0 for plain Adam.
    pub weight_decay: f64,
}

impl Default for Adam {
    /// 0.001, 0.9, 0.999, 1e-8, no decay.
    fn default() -> Self {
        Adam { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// A parameter with the two running means of Adam.
#[derive(Clone, Debug)]
pub struct AdamState {
    /// The parameter.
    pub value: Tensor,
    /// Running mean of its gradients.
    pub mean: Tensor,
    /// Running mean of their squares.
    pub square: Tensor,
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

/// One step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015). `step` counts from 1. What changes
/// from step to step (bias corrections, a learning-rate schedule) is lifted and compiles nothing; the old state dies here, so
/// its memory is reused for the new one.
///
/// # Errors
/// When the gradient does not have the parameter's type.
#[track_caller]
pub fn adam(state: AdamState, gradient: &Tensor, step: u32, settings: &Adam) -> Result<AdamState> {
    let AdamState { value, mean, square } = state;
    let Adam { learning_rate, beta1, beta2, epsilon, weight_decay } = *settings;
    let power = f64::from(step);
    let constant = |value: f64| crate::tensor::constant_like(gradient, value);
    let mean = mean.mul(&constant(beta1)?)?.add(&gradient.mul(&constant(1.0 - beta1)?)?)?;
    let squared = gradient.mul(gradient)?;
    let square = square.mul(&constant(beta2)?)?.add(&squared.mul(&constant(1.0 - beta2)?)?)?;
    let corrected = (&square * (1.0 / (1.0 - beta2.powf(power))))?;
    let root = corrected.sqrt()?.add(&constant(epsilon)?)?;
    let change = (&mean * (learning_rate / (1.0 - beta1.powf(power))))?.div(&root)?;
    let value = if weight_decay == 0.0 { value } else { (&value * (1.0 - learning_rate * weight_decay))? };
    Ok(AdamState { value: value.sub(&change)?, mean, square })
}
