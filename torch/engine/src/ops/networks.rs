//! Softmax, losses, activations, norms, convolutions, embeddings; and their gradients.

use fuseline::{Tensor, nn, unchecked};
use smallvec::SmallVec;

use super::arithmetic::accumulated;
use super::{at_least_1d, axis, cast, fitted, mean_and_deviations, number, result, stretched};
use crate::call::{Arg, Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "_softmax", lower: |call| along(call, |x, axis| nn::softmax(x, axis)) },
    Row { name: "_log_softmax", lower: |call| along(call, |x, axis| nn::log_softmax(x, axis)) },
    Row {
        name: "_softmax_backward_data",
        lower: |call| {
            backward_along(call, |grad, y, axis| {
                let product = grad.mul(y)?;
                let sum = product.sum(&[axis])?.unsqueeze(axis)?;
                product.sub(&y.mul(&sum.broadcast_to(y.dims())?)?)
            })
        },
    },
    Row {
        name: "_log_softmax_backward_data",
        lower: |call| {
            backward_along(call, |grad, y, axis| {
                let sum = grad.sum(&[axis])?.unsqueeze(axis)?;
                grad.sub(&y.exp()?.mul(&sum.broadcast_to(y.dims())?)?)
            })
        },
    },
    Row { name: "nll_loss_forward", lower: nll },
    Row { name: "nll_loss_backward", lower: nll_backward },
    Row { name: "threshold_backward", lower: threshold_backward },
    Row { name: "tanh_backward", lower: |call| derivative(call, |y, one| one.sub(&y.mul(y)?)) },
    Row { name: "sigmoid_backward", lower: |call| derivative(call, |y, one| y.mul(&one.sub(y)?)) },
    Row { name: "silu", lower: |call| wide(call, |x| x.mul(&x.logistic()?)) },
    Row { name: "silu_backward", lower: |call| derivative_of_input(call, nn::grad::silu) },
    Row { name: "gelu", lower: |call| wide(call, if is_tanh(call, 1)? { nn::gelu } else { nn::gelu_exact }) },
    Row {
        name: "gelu_backward",
        lower: |call| {
            derivative_of_input(call, if is_tanh(call, 2)? { nn::grad::gelu } else { nn::grad::gelu_exact })
        },
    },
    Row { name: "native_layer_norm", lower: layer_norm },
    Row { name: "native_layer_norm_backward", lower: layer_norm_backward },
    Row { name: "native_group_norm", lower: group_norm },
    Row { name: "native_batch_norm", lower: batch_norm },
    Row { name: "native_batch_norm_backward", lower: batch_norm_backward },
    Row { name: "index_select", lower: index_select },
    Row { name: "embedding_dense_backward", lower: embedding_backward },
];

/// A tensor in the type that short floats are computed in.
pub(super) fn float(call: &Call<'_>, at: usize) -> Result<Tensor> {
    let x = call.tensor(at)?;
    cast(&x, accumulated(x.dtype()))
}

fn wide(call: &Call<'_>, op: fn(&Tensor) -> fuseline::Result<Tensor>) -> Result<Results> {
    result(call, op(&float(call, 0)?)?)
}

fn along(call: &Call<'_>, op: fn(&Tensor, i64) -> fuseline::Result<Tensor>) -> Result<Results> {
    let x = float(call, 0)?;
    result(call, op(&at_least_1d(&x)?, axis(call.int(1)?, x.rank()) as i64)?)
}

fn backward_along(
    call: &Call<'_>,
    op: fn(&Tensor, &Tensor, i64) -> fuseline::Result<Tensor>,
) -> Result<Results> {
    let (grad, y) = (float(call, 0)?, float(call, 1)?);
    let along = axis(call.int(2)?, y.rank()) as i64;
    result(call, op(&at_least_1d(&grad)?, &at_least_1d(&y)?, along)?)
}

/// The gradient times a derivative that is a function of the result.
fn derivative(call: &Call<'_>, op: fn(&Tensor, &Tensor) -> fuseline::Result<Tensor>) -> Result<Results> {
    let (grad, y) = (float(call, 0)?, float(call, 1)?);
    let one = number(call, 1.0, &y)?;
    result(call, grad.mul(&op(&y, &one)?)?)
}

/// A gradient that is a function of the operand and the gradient.
fn derivative_of_input(
    call: &Call<'_>,
    op: fn(&Tensor, &Tensor) -> fuseline::Result<Tensor>,
) -> Result<Results> {
    let (grad, x) = (float(call, 0)?, float(call, 1)?);
    result(call, op(&x, &grad)?)
}

fn is_tanh(call: &Call<'_>, at: usize) -> Result<bool> {
    Ok(call.text(at)? == Some("tanh"))
}

fn threshold_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
    let limit = stretched(&call.number(2, x.dtype())?, x.dims())?;
    // The gradient passes where the operand is NaN, as in PyTorch.
    let stops = x.less_equal(&limit)?;
    result(call, stops.select(&number(call, 0.0, &grad)?, &grad)?)
}

/// The weights of the targets.
struct Targets {
    /// The class weight at the class of each element, zero elsewhere and for ignored elements.
    weights: Tensor,
    /// Sum of the weights.
    total: Tensor,
}

fn targets(
    call: &Call<'_>,
    scores: &Tensor,
    target: usize,
    weight: usize,
    ignored: usize,
    is_checked: bool,
) -> Result<Targets> {
    let target = call.tensor(target)?;
    let (rank, classes) = (scores.rank(), scores.dims()[scores.rank() - 1]);
    if rank > 2 || target.rank() + 1 != rank {
        return unsupported("the ranks of input and target are not supported");
    }
    let is_ignored = target.equal(&stretched(&call.number(ignored, target.dtype())?, target.dims())?)?;
    if is_checked && call.stream.checks_indices() {
        let first = number(call, 0.0, &target)?;
        is_ignored.select(&first, &target)?.check_indices(classes, "nll_loss")?;
    }
    // A target that is no class, such as the ignored index, becomes a row of zeros.
    let mut weights = unchecked(|| target.one_hot(classes, scores.dtype()))?;
    if let Some(weight) = call.maybe_tensor(weight)? {
        weights = weights.mul(&cast(&weight, scores.dtype())?.broadcast_to(weights.dims())?)?;
    }
    let ignored = is_ignored.unsqueeze(-1)?.broadcast_to(weights.dims())?;
    let weights = ignored.select(&number(call, 0.0, &weights)?, &weights)?;
    let axes: Vec<i64> = (0..weights.rank() as i64).collect();
    Ok(Targets { total: weights.sum(&axes)?, weights })
}

/// Reductions: 0 none, 1 mean, 2 sum.
fn nll(call: &Call<'_>) -> Result<Results> {
    let scores = float(call, 0)?;
    let Targets { weights, total } = targets(call, &scores, 1, 2, 4, true)?;
    // An infinite score that is ignored must not contribute.
    let zero = number(call, 0.0, &weights)?;
    let counts = weights.not_equal(&zero)?;
    let losses = counts.select(&scores.mul(&weights)?.neg()?, &zero)?;
    let each = losses.sum(&[losses.rank() as i64 - 1])?;
    let all: Vec<i64> = (0..each.rank() as i64).collect();
    let (value, total) = match call.int(3)? {
        0 => (each, number(call, 0.0, &total)?),
        1 => (each.sum(&all)?.div(&total)?, total),
        _ => (each.sum(&all)?, total),
    };
    Ok(SmallVec::from_iter([fitted(&value, call.out(0)?)?, fitted(&total, call.out(1)?)?]))
}

fn nll_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, scores) = (float(call, 0)?, float(call, 1)?);
    let Targets { weights, .. } = targets(call, &scores, 2, 3, 5, false)?;
    let grad = match call.int(4)? {
        0 => grad.unsqueeze(-1)?.broadcast_to(weights.dims())?,
        1 => grad.div(&cast(&call.tensor(6)?, grad.dtype())?)?.broadcast_to(weights.dims())?,
        _ => grad.broadcast_to(weights.dims())?,
    };
    // The loss of no elements is NaN and its gradient zero.
    let zero = number(call, 0.0, &weights)?;
    let value = weights.not_equal(&zero)?.select(&weights.mul(&grad)?.neg()?, &zero)?;
    result(call, value)
}

/// The sizes as rows that are normalized together: the number of rows and of elements in each.
fn rows(dims: &[usize], normalized: usize) -> [usize; 2] {
    let (outer, inner) = dims.split_at(dims.len() - normalized);
    [outer.iter().product(), inner.iter().product()]
}

fn repeated(column: &Tensor, dims: &[usize]) -> Result<Tensor> {
    Ok(column.broadcast_in_dim(dims, &[0])?)
}

/// The mean of each row.
fn means(call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    let sum = x.sum(&[1])?;
    let count = number(call, x.dims()[1] as f64, &sum)?;
    Ok(sum.div(&count)?)
}

fn layer_norm(call: &Call<'_>) -> Result<Results> {
    let input = float(call, 0)?;
    let dims = rows(input.dims(), call.ints(1)?.len());
    let x = input.reshape(&dims)?;
    let (mean, deviations) = mean_and_deviations(call, &x, &[1])?;
    let variance = means(call, &deviations.square()?)?;
    let rstd = variance.add(&stretched(&call.number(4, x.dtype())?, variance.dims())?)?.rsqrt()?;
    let mut y = deviations.mul(&repeated(&rstd, &dims)?)?;
    for (at, op) in [(2, Tensor::mul as fn(&Tensor, &Tensor) -> _), (3, Tensor::add)] {
        if let Some(part) = call.maybe_tensor(at)? {
            let part = cast(&part, x.dtype())?.reshape(&[dims[1]])?;
            y = op(&y, &part.broadcast_to(&dims)?)?;
        }
    }
    Ok(SmallVec::from_iter([
        fitted(&y, call.out(0)?)?,
        fitted(&mean, call.out(1)?)?,
        fitted(&rstd, call.out(2)?)?,
    ]))
}

/// Arguments: the batch, scales and biases of channels, the sizes `[batch, channels, positions]`,
/// the number of groups, the epsilon added to variances.
fn group_norm(call: &Call<'_>) -> Result<Results> {
    let input = float(call, 0)?;
    let [batch, channels, places] = [3, 4, 5].map(|at| call.int(at).map(|size| size as usize));
    let (batch, channels, places, groups) = (batch?, channels?, places?, call.int(6)? as usize);
    if input.shape().elems().0 == 0 || groups == 0 {
        return unsupported("empty groups are not supported");
    }
    let dims = [batch * groups, channels / groups * places];
    let x = input.reshape(&dims)?;
    let (mean, deviations) = mean_and_deviations(call, &x, &[1])?;
    let variance = means(call, &deviations.square()?)?;
    let rstd = variance.add(&stretched(&call.number(7, x.dtype())?, variance.dims())?)?.rsqrt()?;
    let dims = [batch, channels, places];
    let mut y = deviations.mul(&repeated(&rstd, deviations.dims())?)?.reshape(&dims)?;
    for (at, op) in [(1, Tensor::mul as fn(&Tensor, &Tensor) -> _), (2, Tensor::add)] {
        if let Some(part) = call.maybe_tensor(at)? {
            y = op(&y, &per_channel(&cast(&part, x.dtype())?, &dims)?)?;
        }
    }
    Ok(SmallVec::from_iter([
        fitted(&y, call.out(0)?)?,
        fitted(&mean, call.out(1)?)?,
        fitted(&rstd, call.out(2)?)?,
    ]))
}

fn layer_norm_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, input) = (float(call, 0)?, float(call, 1)?);
    let dims = rows(input.dims(), call.ints(2)?.len());
    let (grad, x) = (grad.reshape(&dims)?, input.reshape(&dims)?);
    let column =
        |at| -> Result<Tensor> { repeated(&cast(&call.tensor(at)?, x.dtype())?.reshape(&dims[..1])?, &dims) };
    let rstd = column(4)?;
    let normed = x.sub(&column(3)?)?.mul(&rstd)?;
    let mut scaled = grad.clone();
    if let Some(weight) = call.maybe_tensor(5)? {
        scaled = scaled.mul(&cast(&weight, x.dtype())?.reshape(&[dims[1]])?.broadcast_to(&dims)?)?;
    }
    let first = repeated(&means(call, &scaled)?, &dims)?;
    let second = normed.mul(&repeated(&means(call, &scaled.mul(&normed)?)?, &dims)?)?;
    let of_input = scaled.sub(&first)?.sub(&second)?.mul(&rstd)?;
    let parts = [of_input, grad.mul(&normed)?.sum(&[0])?, grad.sum(&[0])?];
    masked(call, 7, parts)
}

/// The requested gradients in their result types. One that is not requested has no type.
fn masked(call: &Call<'_>, mask: usize, parts: [Tensor; 3]) -> Result<Results> {
    let asked = output_mask(call, mask)?;
    let parts = parts.iter().zip(asked).filter(|(_, is_asked)| *is_asked);
    parts.zip(call.outs).map(|((part, _), ty)| fitted(part, ty)).collect()
}

pub(super) fn output_mask(call: &Call<'_>, mask: usize) -> Result<[bool; 3]> {
    match call.arg(mask) {
        Arg::Ints([input, weight, bias]) => Ok([*input != 0, *weight != 0, *bias != 0]),
        _ => unsupported("the output mask is missing"),
    }
}

/// The sizes of an image batch as `[outer, channels, inner]`.
fn channels(dims: &[usize]) -> [usize; 3] {
    [dims[0], dims[1], dims[2..].iter().product()]
}

pub(super) fn per_channel(part: &Tensor, dims: &[usize]) -> Result<Tensor> {
    Ok(part.broadcast_in_dim(dims, &[1])?)
}

/// The new running statistics follow the three results, because the schema does not say that they
/// are written.
fn batch_norm(call: &Call<'_>) -> Result<Results> {
    let input = float(call, 0)?;
    if input.rank() < 2 {
        return unsupported("the input has no channel dimension");
    }
    let dims = channels(input.dims());
    let x = input.reshape(&dims)?;
    let (dtype, count) = (x.dtype(), (dims[0] * dims[2]) as f64);
    let is_training = call.flag(5)?;
    let small = call.number(7, dtype)?;
    let rstd_of = |variance: &Tensor| -> Result<Tensor> {
        Ok(variance.add(&stretched(&small, variance.dims())?)?.rsqrt()?)
    };
    let running =
        |at| -> Result<Option<Tensor>> { call.maybe_tensor(at)?.map(|part| cast(&part, dtype)).transpose() };
    let (old_mean, old_variance) = (running(3)?, running(4)?);
    let (mean, variance, deviations) = match (is_training, &old_mean, &old_variance) {
        (false, Some(mean), Some(variance)) => {
            (mean.clone(), variance.clone(), x.sub(&per_channel(mean, &dims)?)?)
        }
        (false, ..) => return unsupported("evaluation without running statistics is not supported"),
        (true, ..) => {
            let (mean, deviations) = mean_and_deviations(call, &x, &[0, 2])?;
            let squares = deviations.square()?.sum(&[0, 2])?;
            let variance = squares.div(&number(call, count, &squares)?)?;
            (mean, variance, deviations)
        }
    };
    let rstd = rstd_of(&variance)?;
    let mut y = deviations.mul(&per_channel(&rstd, &dims)?)?;
    for (at, op) in [(1, Tensor::mul as fn(&Tensor, &Tensor) -> _), (2, Tensor::add)] {
        if let Some(part) = call.maybe_tensor(at)? {
            y = op(&y, &per_channel(&cast(&part, dtype)?, &dims)?)?;
        }
    }
    // Evaluation saves nothing.
    let mut results: Results = SmallVec::from_iter([fitted(&y, call.out(0)?)?]);
    for (at, part) in [(1, &mean), (2, &rstd)] {
        let ty = call.out(at)?;
        let is_saved = ty.elems().0 == part.shape().elems().0;
        results.push(if is_saved { fitted(part, ty)? } else { call.stream.zeros(ty.dtype(), ty.sizes())? });
    }
    if is_training && let (Some(old_mean), Some(old_variance)) = (old_mean, old_variance) {
        let share = stretched(&call.number(6, dtype)?, mean.dims())?;
        let moved =
            |old: &Tensor, new: &Tensor| -> Result<Tensor> { Ok(old.add(&new.sub(old)?.mul(&share)?)?) };
        let unbiased = variance.mul(&number(call, count / (count - 1.0), &variance)?)?;
        let kept = [moved(&old_mean, &mean)?, moved(&old_variance, &unbiased)?];
        for (at, part) in [3, 4].into_iter().zip(kept) {
            results.push(cast(&part, call.tensor(at)?.dtype())?);
        }
    }
    Ok(results)
}

fn batch_norm_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, input) = (float(call, 0)?, float(call, 1)?);
    if input.rank() < 2 {
        return unsupported("the input has no channel dimension");
    }
    let dims = channels(input.dims());
    let (grad, x) = (grad.reshape(&dims)?, input.reshape(&dims)?);
    let dtype = x.dtype();
    let is_training = call.flag(7)?;
    let (mean, rstd) = if is_training {
        (cast(&call.tensor(5)?, dtype)?, cast(&call.tensor(6)?, dtype)?)
    } else {
        let variance = cast(&call.tensor(4)?, dtype)?;
        let small = stretched(&call.number(8, dtype)?, variance.dims())?;
        (cast(&call.tensor(3)?, dtype)?, variance.add(&small)?.rsqrt()?)
    };
    let spread = |part: &Tensor| per_channel(part, &dims);
    let normed = x.sub(&spread(&mean)?)?.mul(&spread(&rstd)?)?;
    let of_bias = grad.sum(&[0, 2])?;
    let of_weight = grad.mul(&normed)?.sum(&[0, 2])?;
    let mut of_input = grad.clone();
    if is_training {
        let count = number(call, (dims[0] * dims[2]) as f64, &of_bias)?;
        let first = spread(&of_bias.div(&count)?)?;
        let second = normed.mul(&spread(&of_weight.div(&count)?)?)?;
        of_input = of_input.sub(&first)?.sub(&second)?;
    }
    let mut scale = rstd;
    if let Some(weight) = call.maybe_tensor(2)? {
        scale = scale.mul(&cast(&weight, dtype)?)?;
    }
    masked(call, 9, [of_input.mul(&spread(&scale)?)?, of_weight, of_bias])
}

/// Converts indices that count from the end.
fn index_select(call: &Call<'_>) -> Result<Results> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    if x.rank() == 0 {
        call.check_indices(&index, 1, "index_select")?;
        return result(call, x.broadcast_to(call.out(0)?.sizes())?);
    }
    let along = axis(call.int(1)?, x.rank());
    call.check_indices(&index, x.dims()[along], "index_select")?;
    result(call, unchecked(|| x.take(&index, along as i64))?)
}

fn embedding_backward(call: &Call<'_>) -> Result<Results> {
    let (mut grad, indices) = (float(call, 0)?, call.tensor(1)?);
    if call.flag(4)? {
        return unsupported("scale_grad_by_freq is not supported");
    }
    let padding = call.int(3)?;
    if padding >= 0 {
        let is_padding = indices.equal(&stretched(&call.number(3, indices.dtype())?, indices.dims())?)?;
        let is_padding = is_padding.unsqueeze(-1)?.broadcast_to(grad.dims())?;
        grad = is_padding.select(&number(call, 0.0, &grad)?, &grad)?;
    }
    let words = usize::try_from(call.int(2)?).unwrap_or_default();
    // The forward op has checked the indices.
    result(call, unchecked(|| nn::grad::embedding(words, &indices, &grad))?)
}
