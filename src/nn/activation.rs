//! Activation functions, which are elementwise.

use std::f64::consts::PI;

use fuseline_runtime::Result;

use crate::handle::Tensor;
use crate::tensor::{constant_like, plus, times};

/// `max(x, 0)`.
///
/// # Errors
/// When a Debug stream finds that an op failed.
#[track_caller]
pub fn relu(x: &Tensor) -> Result<Tensor> {
    x.maximum(&x.on_stream().zeros(x.dtype(), &[])?)
}

/// `min(max(x, 0), 6)` (Krizhevsky, "Convolutional deep belief networks on CIFAR-10", 2010).
///
/// # Errors
/// When a Debug stream finds that an op failed.
#[track_caller]
pub fn relu6(x: &Tensor) -> Result<Tensor> {
    hard_tanh(x, 0.0, 6.0)
}

/// `x` where it is positive, else `slope * x`.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn leaky_relu(x: &Tensor, slope: f64) -> Result<Tensor> {
    positive(x)?.select(x, &times(x, slope)?)
}

/// `x` where it is positive, else `slope * x`, where `slope` is learned (He, Zhang, Ren and Sun,
/// "Delving deep into rectifiers", 2015). It broadcasts: a scalar, or one slope per feature with
/// the features last.
///
/// # Errors
/// When the operands do not promote or broadcast.
#[track_caller]
pub fn prelu(x: &Tensor, slope: &Tensor) -> Result<Tensor> {
    positive(x)?.select(x, &x.mul(slope)?)
}

/// `x` where it is positive, else `alpha (exp(x) - 1)` (Clevert, Unterthiner and Hochreiter, "Fast
/// and accurate deep network learning by exponential linear units", 2016).
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn elu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    positive(x)?.select(x, &times(&x.expm1()?, alpha)?)
}

/// [`elu`] with the `alpha` and the factor that preserve mean 0 and variance 1 (Klambauer,
/// Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", 2017).
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn selu(x: &Tensor) -> Result<Tensor> {
    times(&elu(x, 1.673_263_242_354_377_2)?, 1.050_700_987_355_480_5)
}

/// `max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)`: [`elu`] with a continuous derivative for every
/// `alpha` (Barron, "Continuously differentiable exponential linear units", 2017).
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn celu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    let bent = times(&times(x, 1.0 / alpha)?.expm1()?, alpha)?;
    positive(x)?.select(x, &bent)
}

/// `log(1 + exp(x))`, computed as `max(x, 0) + log1p(exp(-|x|))`, which neither overflows nor loses
/// small values.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn softplus(x: &Tensor) -> Result<Tensor> {
    relu(x)?.add(&x.abs()?.neg()?.exp()?.log1p()?)
}

/// `log(logistic(x))`, as `min(x, 0) - log1p(exp(-|x|))`.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    let low = x.minimum(&x.on_stream().zeros(x.dtype(), &[])?)?;
    low.sub(&x.abs()?.neg()?.exp()?.log1p()?)
}

/// `x * logistic(x)`, also called swish.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x.mul(&x.logistic()?)
}

/// `x * tanh(softplus(x))` (Misra, "Mish: a self regularized non-monotonic activation function",
/// 2020).
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn mish(x: &Tensor) -> Result<Tensor> {
    x.mul(&softplus(x)?.tanh()?)
}

/// The Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, "Gaussian error linear
/// units", 2016): `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    let cube = x.mul(x)?.mul(x)?;
    let inner = x.add(&times(&cube, 0.044_715)?)?;
    let gate = times(&inner, (2.0 / PI).sqrt())?.tanh()?;
    times(x, 0.5)?.mul(&plus(&gate, 1.0)?)
}

/// The exact Gaussian error linear unit: `x` times the normal distribution function at `x`,
/// computed as `x erfc(-x / sqrt(2)) / 2`, which keeps the small values far below zero.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn gelu_exact(x: &Tensor) -> Result<Tensor> {
    let tail = times(x, -std::f64::consts::FRAC_1_SQRT_2)?.erfc()?;
    times(x, 0.5)?.mul(&tail)
}

/// `min(max(x, low), high)`. NaN stays.
///
/// # Errors
/// When a Debug stream finds that an op failed.
#[track_caller]
pub fn hard_tanh(x: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    x.clamp(&constant_like(x, low)?, &constant_like(x, high)?)
}

/// `min(max(x + 3, 0), 6) / 6`: a piecewise linear approximation of the logistic function.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn hard_sigmoid(x: &Tensor) -> Result<Tensor> {
    times(&relu6(&plus(x, 3.0)?)?, 1.0 / 6.0)
}

/// `x * hard_sigmoid(x)` (Howard et al., "Searching for MobileNetV3", 2019).
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn hard_swish(x: &Tensor) -> Result<Tensor> {
    x.mul(&hard_sigmoid(x)?)
}

/// `x / (1 + |x|)`.
///
/// # Errors
/// When the elements are not floats.
#[track_caller]
pub fn softsign(x: &Tensor) -> Result<Tensor> {
    x.div(&plus(&x.abs()?, 1.0)?)
}

/// The first half of dimension `axis` times the logistic function of the second (Dauphin, Fan, Auli
/// and Grangier, "Language modeling with gated convolutional networks", 2017).
///
/// # Errors
/// When the elements are not floats, or the dimension does not exist or has an odd size.
#[track_caller]
pub fn glu(x: &Tensor, axis: i64) -> Result<Tensor> {
    let place = x.axis(crate::OpCode::Slice, axis)?;
    let size = x.dims()[place] as i64;
    if size % 2 != 0 {
        let given = format!("dimension {axis} of {} cannot be halved", x.ty());
        return Err(super::unfit("slice", given, "its size must be even"));
    }
    x.narrow(axis, 0, size / 2)?.mul(&x.narrow(axis, size / 2, size)?.logistic()?)
}

/// Where `x` is above 0.
#[track_caller]
fn positive(x: &Tensor) -> Result<Tensor> {
    x.greater(&x.on_stream().zeros(x.dtype(), &[])?)
}
