//! Softmax, and the logarithm of sums of exponentials.
//!
//! All of them subtract the largest element first, so that nothing overflows. The maximum may
//! ignore NaN, because the sum contains it.

use fuseline_runtime::Result;

use crate::handle::Tensor;

/// `x` minus its largest element along `axis`, in at least 32 bits.
#[track_caller]
fn shifted(x: &Tensor, axis: i64) -> Result<Tensor> {
    let x = x.widened()?;
    x.sub(&x.max_of_numbers(&[axis])?.expand_dims(&[axis])?)
}

/// `exp(x) / sum(exp(x))` along `axis`. A row whose elements are all minus infinity gives NaN; see
/// [`masked_softmax`].
///
/// Two reductions and three passes over the elements.
///
/// # Errors
/// When the elements are not floats or the dimension does not exist.
#[track_caller]
pub fn softmax(x: &Tensor, axis: i64) -> Result<Tensor> {
    let powers = shifted(x, axis)?.exp()?;
    let total = powers.sum(&[axis])?.expand_dims(&[axis])?;
    powers.div(&total)?.narrowed(x.dtype())
}

/// The logarithm of [`softmax`], without computing it: `x - max - log(sum(exp(x - max)))`.
///
/// # Errors
/// When the elements are not floats or the dimension does not exist.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: i64) -> Result<Tensor> {
    let shifted = shifted(x, axis)?;
    let total = shifted.exp()?.sum(&[axis])?.expand_dims(&[axis])?;
    shifted.sub(&total.log()?)?.narrowed(x.dtype())
}

/// `log(sum(exp(x)))` over the given dimensions, which disappear. Minus infinity if there are no
/// elements, or if all are minus infinity.
///
/// # Errors
/// When the elements are not floats or a dimension does not exist.
#[track_caller]
pub fn logsumexp(x: &Tensor, axes: &[i64]) -> Result<Tensor> {
    let wide = x.widened()?;
    let largest = wide.max_of_numbers(axes)?;
    // Infinity minus infinity would be NaN, so subtract 0 there; the sum yields the infinity again.
    let zero = x.on_stream().zeros(wide.dtype(), &[])?;
    let finite = largest.is_finite()?.select(&largest, &zero)?;
    let powers = wide.sub(&finite.expand_dims(axes)?)?.exp()?;
    powers.sum(axes)?.log()?.add(&finite)?.narrowed(x.dtype())
}

/// [`softmax`] over the elements for which `mask`, of bool, is true; the others get 0, as does a
/// row without any true element. `mask` broadcasts to the shape of `x`. Without a mask, rows that
/// are minus infinity throughout get 0 as well.
///
/// The cost above `softmax` is one selection, and four ops on one number per row.
///
/// # Errors
/// When the elements are not floats, the dimension does not exist, or the mask is not a bool tensor
/// or does not broadcast.
#[track_caller]
pub fn masked_softmax(x: &Tensor, mask: Option<&Tensor>, axis: i64) -> Result<Tensor> {
    let wide = x.widened()?;
    let stream = x.on_stream();
    let zero = stream.zeros(wide.dtype(), &[])?;
    let visible = match mask {
        Some(mask) => mask.select(&wide, &crate::tensor::constant_like(&wide, f64::NEG_INFINITY)?)?,
        None => wide,
    };
    let largest = visible.max_of_numbers(&[axis])?;
    let empty = largest.equal(&crate::tensor::constant_like(&largest, f64::NEG_INFINITY)?)?;
    let largest = empty.select(&zero, &largest)?.expand_dims(&[axis])?;
    let powers = visible.sub(&largest)?.exp()?;
    // Where the total is 0, divide by 1, which gives 0. A row with a NaN has a total that is not 0.
    let total = powers.sum(&[axis])?;
    let one = crate::tensor::constant_like(&total, 1.0)?;
    let total = total.equal(&zero)?.select(&one, &total)?.expand_dims(&[axis])?;
    powers.div(&total)?.narrowed(x.dtype())
}
