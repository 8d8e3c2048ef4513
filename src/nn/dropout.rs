//! Dropout.

use fuseline_runtime::Result;

use super::unset;
use crate::handle::Tensor;
use crate::random::Generator;

/// Replaces each element by zero with probability `rate` and divides the others by `1 - rate`, so
/// that the mean is preserved (Srivastava et al., "Dropout: a simple way to prevent neural networks
/// from overfitting", 2014). The rate is a lifted scalar.
///
/// # Errors
/// When the rate is not from 0 to 1, or the elements are not floats.
#[track_caller]
pub fn dropout(x: &Tensor, rate: f64, generator: &mut Generator) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&rate) || !x.dtype().is_float() {
        let given = format!("the rate is {rate} and the tensor is {}", x.ty());
        return Err(unset("dropout", given, "the rate must be from 0 to 1, and the elements must be floats"));
    }
    let zero = x.on_stream().zeros(x.dtype(), &[])?;
    let kept = generator.bernoulli(1.0 - rate, x.dims())?;
    let factor = if rate < 1.0 { 1.0 / (1.0 - rate) } else { 0.0 };
    kept.select(&(x * factor)?, &zero)
}
