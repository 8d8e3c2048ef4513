//! Normalisation: mean 0 and variance 1 over some of the dimensions.

use fuseline_fusion::{DType, OpCode};
use fuseline_runtime::Result;

use super::{unfit, unset};
use crate::handle::Tensor;
use crate::promote::promote_types;
use crate::tensor::plus;
use crate::trace::TensorTree;

/// `(x - mean) / sqrt(variance + epsilon)` over the given dimensions, and the factor `1 /
/// sqrt(variance + epsilon)`, which a gradient needs and which has size 1 in those dimensions. The
/// variance is the biased one. Both results have at least 32 bits.
///
/// Two reductions and four passes over the elements.
///
/// # Errors
/// When a dimension does not exist or the elements are not floats.
#[track_caller]
pub fn normalize(x: &Tensor, axes: &[i64], epsilon: f64) -> Result<(Tensor, Tensor)> {
    let wide = x.widened()?;
    let centered = wide.sub(&wide.mean(axes)?.expand_dims(axes)?)?;
    let variance = centered.mul(&centered)?.mean(axes)?.expand_dims(axes)?;
    let scale = plus(&variance, epsilon)?.rsqrt()?;
    Ok((centered.mul(&scale)?, scale))
}

/// `normal * gamma + beta`, in the type that `x` and the weights promote to.
#[track_caller]
fn affine(x: DType, normal: &Tensor, gamma: &Tensor, beta: Option<&Tensor>) -> Result<Tensor> {
    let result = match beta {
        Some(beta) => normal.mul(gamma)?.add(beta)?,
        None => normal.mul(gamma)?,
    };
    let weights = [Some(gamma), beta].into_iter().flatten();
    let dtype = weights.map(Tensor::dtype).try_fold(x, promote_types);
    match dtype {
        Some(dtype) if dtype != result.dtype() => result.convert(dtype),
        _ => Ok(result),
    }
}

/// The last dimensions, as many as `weights` has, checked.
#[track_caller]
fn trailing(op: &'static str, x: &Tensor, weights: &[&Tensor]) -> Result<Vec<i64>> {
    let Some(first) = weights.first() else { return Ok(Vec::new()) };
    let fits = !first.dims().is_empty() && x.dims().ends_with(first.dims());
    if !fits || weights.iter().any(|other| other.dims() != first.dims()) {
        let each: Vec<String> = weights.iter().map(|weight| weight.ty().to_string()).collect();
        let given = format!("the tensor is {} and the weights are {}", x.ty(), each.join(" and "));
        return Err(unfit(
            op,
            given,
            "the weights must have the sizes of the last dimensions, which are normalised",
        ));
    }
    Ok((1..=first.rank() as i64).map(|axis| -axis).collect())
}

/// Layer normalisation (Ba, Kiros and Hinton, "Layer normalization", 2016): `(x - mean) /
/// sqrt(variance + epsilon)` over the last dimensions, as many as `gamma` and `beta` have, times
/// `gamma`, plus `beta`.
///
/// # Errors
/// When the weights do not have the sizes of the last dimensions, or the elements are not floats.
#[track_caller]
pub fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, epsilon: f64) -> Result<Tensor> {
    let axes = trailing("layer_norm", x, &[gamma, beta])?;
    let (normal, _) = normalize(x, &axes, epsilon)?;
    affine(x.dtype(), &normal, gamma, Some(beta))
}

/// Root mean square normalisation (Zhang and Sennrich, 2019): `x / sqrt(mean(x^2) + epsilon)` over
/// the last dimensions, as many as `gamma` has, times `gamma`.
///
/// # Errors
/// When `gamma` does not have the sizes of the last dimensions, or the elements are not floats.
#[track_caller]
pub fn rms_norm(x: &Tensor, gamma: &Tensor, epsilon: f64) -> Result<Tensor> {
    let axes = trailing("rms_norm", x, &[gamma])?;
    let wide = x.widened()?;
    let square = wide.mul(&wide)?.mean(&axes)?.expand_dims(&axes)?;
    let normal = wide.mul(&plus(&square, epsilon)?.rsqrt()?)?;
    affine(x.dtype(), &normal, gamma, None)
}

/// A vector with one number per feature, reshaped so that it broadcasts along dimension `axis` of a
/// tensor.
#[track_caller]
fn along(op: &'static str, x: &Tensor, axis: usize, vector: &Tensor) -> Result<Tensor> {
    if vector.dims() != [x.dims()[axis]] {
        let given = format!(
            "the tensor is {}, its feature dimension is {axis}, and a weight is {}",
            x.ty(),
            vector.ty()
        );
        return Err(unfit(op, given, "weights must be vectors with one number per feature"));
    }
    let mut dims = vec![1; x.rank() - axis];
    dims[0] = x.dims()[axis];
    vector.reshape(&dims)
}

/// Group normalisation (Wu and He, 2018): the features, dimension `axis`, are split into `groups`
/// of adjacent ones. Each group of each sample (dimension 0) is normalised over its features and
/// all other dimensions, then multiplied by `gamma` and added to `beta`, vectors with one number
/// per feature. With one group per feature this is instance normalisation.
///
/// # Errors
/// When the dimension does not exist or is 0, its size is not a multiple of `groups`, or the
/// weights do not fit.
#[track_caller]
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    axis: i64,
    gamma: &Tensor,
    beta: &Tensor,
    epsilon: f64,
) -> Result<Tensor> {
    let place = x.axis(OpCode::Reduce, axis)?;
    let features = x.dims()[place];
    if place == 0 || groups == 0 || !features.is_multiple_of(groups) {
        let given = format!("dimension {axis} of {} cannot be normalised in {groups} groups", x.ty());
        let rule =
            "dimension 0 is the batch, and the number of features must be a multiple of the number of groups";
        return Err(unset("group_norm", given, rule));
    }
    let (gamma, beta) = (along("group_norm", x, place, gamma)?, along("group_norm", x, place, beta)?);
    let (before, after) = (&x.dims()[..place], &x.dims()[place + 1..]);
    let split = x.reshape(&[before, &[groups, features / groups], after].concat())?;
    let axes: Vec<i64> = (1..split.rank() as i64).filter(|&axis| axis != place as i64).collect();
    let (normal, _) = normalize(&split, &axes, epsilon)?;
    affine(x.dtype(), &normal.reshape(x.dims())?, &gamma, Some(&beta))
}

/// Mean and variance of each feature, which batch normalisation collects in training for
/// evaluation.
#[derive(Clone, Debug)]
pub struct RunningStatistics {
    /// The means, a vector.
    pub mean: Tensor,
    /// The variances, a vector.
    pub variance: Tensor,
}

/// A loop may carry them.
impl TensorTree for RunningStatistics {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> RunningStatistics {
        RunningStatistics { mean: f(&self.mean), variance: f(&self.variance) }
    }
}

/// Batch normalisation in evaluation (Ioffe and Szegedy, 2015): `(x - mean) / sqrt(variance +
/// epsilon) * gamma + beta` for each feature, dimension `axis`, with the statistics given.
///
/// Scale and shift are computed per feature, so that one pass over the tensor remains:
/// `x * scale + shift`.
///
/// # Errors
/// When the dimension does not exist, or statistics or weights are not vectors with one number per
/// feature.
#[track_caller]
pub fn batch_norm(
    x: &Tensor,
    statistics: &RunningStatistics,
    gamma: &Tensor,
    beta: &Tensor,
    axis: i64,
    epsilon: f64,
) -> Result<Tensor> {
    let place = x.axis(OpCode::Reduce, axis)?;
    let scale = plus(&statistics.variance.widened()?, epsilon)?.rsqrt()?.mul(gamma)?;
    let shift = beta.sub(&statistics.mean.mul(&scale)?)?;
    let (scale, shift) = (along("batch_norm", x, place, &scale)?, along("batch_norm", x, place, &shift)?);
    let result = x.widened()?.mul(&scale)?.add(&shift)?;
    // The statistics do not affect the type of the result, because they may be kept in more bits.
    match [gamma.dtype(), beta.dtype()].into_iter().try_fold(x.dtype(), promote_types) {
        Some(dtype) if dtype != result.dtype() => result.convert(dtype),
        _ => Ok(result),
    }
}

/// Batch normalisation in training: as [`batch_norm`], with mean and biased variance of this batch
/// over all dimensions but `axis`. Also returns the running statistics after this batch, `(1 -
/// momentum) * before + momentum * now`, for which the variance is the unbiased one.
///
/// # Errors
/// When the dimension does not exist, or statistics or weights are not vectors with one number per
/// feature.
#[track_caller]
pub fn batch_norm_train(
    x: &Tensor,
    statistics: &RunningStatistics,
    gamma: &Tensor,
    beta: &Tensor,
    axis: i64,
    momentum: f64,
    epsilon: f64,
) -> Result<(Tensor, RunningStatistics)> {
    let place = x.axis(OpCode::Reduce, axis)?;
    let features = x.dims()[place];
    let (gamma, beta) = (along("batch_norm", x, place, gamma)?, along("batch_norm", x, place, beta)?);
    let axes: Vec<i64> = (0..x.rank() as i64).filter(|&axis| axis != place as i64).collect();
    let wide = x.widened()?;
    let mean = wide.mean(&axes)?;
    let centered = wide.sub(&mean.expand_dims(&axes)?)?;
    let variance = centered.mul(&centered)?.mean(&axes)?;
    let scale = plus(&variance, epsilon)?.rsqrt()?.expand_dims(&axes)?;
    let result = affine(x.dtype(), &centered.mul(&scale)?, &gamma, Some(&beta))?;

    let count: usize = axes.iter().map(|&axis| x.dims()[axis as usize]).product();
    let unbiased = if count > 1 { count as f64 / (count - 1) as f64 } else { 1.0 };
    let before = &statistics.mean;
    if before.dims() != [features] || statistics.variance.dims() != [features] {
        let given = format!("there are {features} features, but the running mean is {}", before.ty());
        return Err(unfit(
            "batch_norm",
            given,
            "running statistics must be vectors with one number per feature",
        ));
    }
    let mean = running(before, &mean, momentum, 1.0)?;
    let variance = running(&statistics.variance, &variance, momentum, unbiased)?;
    Ok((result, RunningStatistics { mean, variance }))
}

/// A running statistic after one more batch, in its own type.
#[track_caller]
fn running(before: &Tensor, now: &Tensor, momentum: f64, correction: f64) -> Result<Tensor> {
    let kept = crate::tensor::times(before, 1.0 - momentum)?;
    let sum = kept.add(&crate::tensor::times(now, momentum * correction)?)?;
    if sum.dtype() == before.dtype() { Ok(sum) } else { sum.convert(before.dtype()) }
}
