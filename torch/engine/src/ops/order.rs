//! Extremes with their positions, sorting, gathering, norms and variances, and data movement.

use fuseline::fusion::DType;
use fuseline::{Order, Tensor, unchecked};
use smallvec::SmallVec;

use super::arithmetic::{accumulated, reduced};
use super::{at_least_1d, axis, cast, fitted, flat, mean_and_deviations, number, result, stretched};
use crate::call::{Arg, Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "max.dim", lower: |call| extreme(call, Tensor::max, Tensor::argmax) },
    Row { name: "min.dim", lower: |call| extreme(call, Tensor::min, Tensor::argmin) },
    Row { name: "argmin", lower: |call| place(call, Tensor::argmin) },
    Row { name: "argmax", lower: |call| place(call, Tensor::argmax) },
    Row { name: "sort.stable", lower: sort },
    Row { name: "topk", lower: topk },
    Row { name: "median", lower: |call| median(call, Rank::Middle) },
    Row { name: "nanmedian", lower: |call| median(call, Rank::MiddleOfNumbers) },
    Row { name: "median.dim", lower: |call| ranked_along(call, 1, Rank::Middle) },
    Row { name: "nanmedian.dim", lower: |call| ranked_along(call, 1, Rank::MiddleOfNumbers) },
    Row { name: "kthvalue", lower: |call| ranked_along(call, 2, Rank::At(call.int(1)? - 1)) },
    Row { name: "mode", lower: mode },
    Row { name: "cummax", lower: |call| running(call, Tensor::cummax) },
    Row { name: "cummin", lower: |call| running(call, Tensor::cummin) },
    Row {
        name: "_logcumsumexp",
        lower: |call| {
            let x = at_least_1d(&call.tensor(0)?)?;
            if !x.dtype().is_float() {
                return unsupported(format!("logcumsumexp of {} is not supported", x.ty()));
            }
            result(call, x.cumlogsumexp(axis(call.int(1)?, x.rank()) as i64)?)
        },
    },
    Row { name: "gather", lower: gather },
    Row {
        name: "flip",
        lower: |call| {
            let x = call.tensor(0)?;
            let axes: Vec<i64> = call.ints(1)?.iter().map(|&at| axis(at, x.rank()) as i64).collect();
            result(call, if x.rank() == 0 { x } else { x.reverse(&axes)? })
        },
    },
    Row { name: "roll", lower: roll },
    Row {
        name: "prod",
        lower: |call| {
            let x = cast(&call.tensor(0)?, accumulated(call.out(0)?.dtype()))?;
            result(call, x.prod(&reduced(call, 9)?)?)
        },
    },
    Row {
        name: "prod.dim_int",
        lower: |call| {
            let x = cast(&call.tensor(0)?, accumulated(call.out(0)?.dtype()))?;
            result(call, x.prod(&reduced(call, 1)?)?)
        },
    },
    Row {
        name: "cumprod",
        lower: |call| {
            let x = cast(&call.tensor(0)?, accumulated(call.out(0)?.dtype()))?;
            result(call, if x.rank() == 0 { x } else { x.cumprod(axis(call.int(1)?, x.rank()) as i64)? })
        },
    },
    Row { name: "var.correction", lower: |call| spread(call, false, false) },
    Row { name: "std.correction", lower: |call| spread(call, true, false) },
    Row { name: "var_mean.correction", lower: |call| spread(call, false, true) },
    Row { name: "std_mean.correction", lower: |call| spread(call, true, true) },
    Row { name: "linalg_vector_norm", lower: norm },
    Row { name: "mse_loss", lower: mse },
    Row { name: "mse_loss_backward", lower: mse_backward },
    Row {
        name: "leaky_relu",
        lower: |call| {
            let x = call.tensor(0)?;
            let slope = stretched(&call.number(1, x.dtype())?, x.dims())?;
            result(call, is_positive(call, &x)?.select(&x, &x.mul(&slope)?)?)
        },
    },
    Row {
        name: "leaky_relu_backward",
        lower: |call| {
            let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
            let slope = stretched(&call.number(2, x.dtype())?, x.dims())?;
            result(call, is_positive(call, &x)?.select(&grad, &grad.mul(&slope)?)?)
        },
    },
    Row {
        name: "hardtanh",
        lower: |call| {
            let x = call.tensor(0)?;
            let [low, high] = [1, 2].map(|at| stretched(&call.number(at, x.dtype())?, x.dims()));
            result(call, x.maximum(&low?)?.minimum(&high?)?)
        },
    },
    Row {
        name: "hardtanh_backward",
        lower: |call| {
            let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
            let [low, high] = [2, 3].map(|at| stretched(&call.number(at, x.dtype())?, x.dims()));
            let stops = x.less_equal(&low?)?.or(&x.greater_equal(&high?)?)?;
            result(call, stops.select(&call.stream.zeros(grad.dtype(), grad.dims())?, &grad)?)
        },
    },
];

fn is_positive(call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    Ok(x.greater(&number(call, 0.0, x)?)?)
}

/// An empty tensor is an error, which the CPU reports.
fn not_empty(x: &Tensor) -> Result<()> {
    if x.shape().elems().0 == 0 { unsupported("an empty tensor has no maximum or minimum") } else { Ok(()) }
}

fn extreme(
    call: &Call<'_>,
    value: fn(&Tensor, &[i64]) -> fuseline::Result<Tensor>,
    place: fn(&Tensor, i64) -> fuseline::Result<Tensor>,
) -> Result<Results> {
    let x = call.tensor(0)?;
    not_empty(&x)?;
    let along = axis(call.int(1)?, x.rank()) as i64;
    let x = at_least_1d(&x)?;
    Ok(SmallVec::from_iter([
        fitted(&value(&x, &[along])?, call.out(0)?)?,
        fitted(&place(&x, along)?, call.out(1)?)?,
    ]))
}

/// The first of equal elements, and NaN before every number.
fn place(call: &Call<'_>, op: fn(&Tensor, i64) -> fuseline::Result<Tensor>) -> Result<Results> {
    let x = call.tensor(0)?;
    not_empty(&x)?;
    if x.rank() == 0 {
        return result(call, call.stream.zeros(DType::I64, &[])?);
    }
    let (x, along) = match call.arg(1) {
        Arg::None => (flat(&x)?, 0),
        _ => (x.clone(), axis(call.int(1)?, x.rank()) as i64),
    };
    result(call, op(&x, along)?)
}

/// Sorts the elements along a dimension and returns their positions. NaN is above every number, and
/// the sort is stable.
fn sorted(x: &Tensor, along: i64, is_descending: bool) -> Result<(Tensor, Tensor)> {
    if x.dtype() == DType::Bool {
        let (values, places) = sorted(&cast(x, DType::I8)?, along, is_descending)?;
        return Ok((cast(&values, DType::Bool)?, places));
    }
    if !is_descending || !x.dtype().is_float() {
        let order = if is_descending { Order::Descending } else { Order::Ascending };
        return Ok(x.sort_with_places(along, order)?);
    }
    // Reversed twice, because the engine sorts NaN last in either direction.
    let (values, places) = x.reverse(&[along])?.sort_with_places(along, Order::Ascending)?;
    let last = x.on_stream().scalar(x.dims()[along as usize] as i32 - 1).broadcast_to(places.dims())?;
    Ok((values.reverse(&[along])?, last.sub(&places)?.reverse(&[along])?))
}

fn values_and_places(call: &Call<'_>, values: &Tensor, places: &Tensor) -> Result<Results> {
    Ok(SmallVec::from_iter([fitted(values, call.out(0)?)?, fitted(places, call.out(1)?)?]))
}

/// Arguments: whether the sort is stable, which it always is; the dimension; whether it descends.
fn sort(call: &Call<'_>) -> Result<Results> {
    let x = at_least_1d(&call.tensor(0)?)?;
    if x.dtype().is_complex() {
        return unsupported("complex numbers have no order");
    }
    let (values, places) = sorted(&x, axis(call.int_or(2, -1)?, x.rank()) as i64, call.flag_or(3, false)?)?;
    values_and_places(call, &values, &places)
}

/// The largest or smallest elements, in order. PyTorch leaves open which of equal elements is
/// returned, and the order of an unsorted result.
fn topk(call: &Call<'_>) -> Result<Results> {
    let x = at_least_1d(&call.tensor(0)?)?;
    let along = axis(call.int_or(2, -1)?, x.rank()) as i64;
    let count = call.int(1)?;
    let is_largest = call.flag_or(3, true)?;
    if is_largest && x.dtype() != DType::Bool {
        let (values, places) = x.topk(count as usize, along)?;
        return values_and_places(call, &values, &places);
    }
    let (values, places) = sorted(&x, along, is_largest)?;
    values_and_places(call, &values.narrow(along, 0, count)?, &places.narrow(along, 0, count)?)
}

/// A position in ascending order: the `k`-th, or the lower middle of all elements or of those that
/// are not NaN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    At(i64),
    Middle,
    MiddleOfNumbers,
}

/// Selects one element along a dimension, which then has size one, and its position. Where NaN
/// counts, it is the median.
fn ranked(call: &Call<'_>, x: &Tensor, along: i64, rank: Rank) -> Result<(Tensor, Tensor)> {
    not_empty(x)?;
    let (values, places) = sorted(x, along, false)?;
    let size = x.dims()[along as usize] as i64;
    let mut dims = x.dims().to_vec();
    dims[along as usize] = 1;
    let whole =
        |value: i64| -> Result<Tensor> { stretched(&call.constant(value as f64, DType::I64)?, &dims) };
    let at = match rank {
        Rank::At(place) => whole(place)?,
        _ if !x.dtype().is_float() => whole((size - 1) / 2)?,
        _ => {
            let numbers = cast(&values.equal(&values)?, DType::I64)?.sum(&[along])?.reshape(&dims)?;
            match rank {
                Rank::MiddleOfNumbers => {
                    let last = numbers.sub(&whole(1)?)?.maximum(&whole(0)?)?;
                    last.div(&whole(2)?)?
                }
                _ => numbers.less(&whole(size)?)?.select(&numbers, &whole((size - 1) / 2)?)?,
            }
        }
    };
    taken(&values, &places, &at, along)
}

/// Both tensors at positions that exist.
fn taken(values: &Tensor, places: &Tensor, at: &Tensor, along: i64) -> Result<(Tensor, Tensor)> {
    Ok(unchecked(|| {
        Ok::<_, fuseline::Error>((values.take_along(at, along)?, places.take_along(at, along)?))
    })?)
}

fn median(call: &Call<'_>, rank: Rank) -> Result<Results> {
    result(call, ranked(call, &flat(&call.tensor(0)?)?, 0, rank)?.0)
}

/// The element of a rank along the dimension that an argument names.
fn ranked_along(call: &Call<'_>, at: usize, rank: Rank) -> Result<Results> {
    let x = at_least_1d(&call.tensor(0)?)?;
    let along = if call.is_none(at) { -1 } else { call.int(at)? };
    let (values, places) = ranked(call, &x, axis(along, x.rank()) as i64, rank)?;
    values_and_places(call, &values, &places)
}

/// The most frequent element along a dimension, the smallest if several tie, and its last position.
fn mode(call: &Call<'_>) -> Result<Results> {
    let x = at_least_1d(&call.tensor(0)?)?;
    not_empty(&x)?;
    if x.dtype().is_complex() {
        return unsupported("complex numbers have no order");
    }
    let along = axis(call.int_or(1, -1)?, x.rank()) as i64;
    let size = x.dims()[along as usize] as i64;
    let (values, places) = sorted(&x, along, false)?;
    let turns = call.stream.iota(DType::I32, x.dims(), along)?;
    let zero = call.stream.zeros(DType::I32, x.dims())?;
    // The length of the run of equal elements up to each element.
    let is_new = values.narrow(along, 1, size)?.not_equal(&values.narrow(along, 0, size - 1)?)?;
    let first = values.narrow(along, 0, 1)?;
    let is_new = Tensor::concatenate(&[&call.stream.zeros(DType::Bool, first.dims())?, &is_new], along)?;
    let start = is_new.select(&turns, &zero)?.cummax(along)?;
    let longest = turns.sub(&start)?.argmax(along)?.unsqueeze(along)?;
    let (values, places) = taken(&values, &places, &longest, along)?;
    values_and_places(call, &values, &places)
}

/// The running maximum or minimum, and its last position so far.
fn running(call: &Call<'_>, op: fn(&Tensor, i64) -> fuseline::Result<Tensor>) -> Result<Results> {
    let x = at_least_1d(&call.tensor(0)?)?;
    if x.shape().elems().0 == 0 || x.dtype() == DType::Bool {
        return unsupported(format!("cumulative maxima and minima of {} are not supported", x.ty()));
    }
    let along = axis(call.int(1)?, x.rank()) as i64;
    let best = op(&x, along)?;
    let is_new = x.equal(&best)?.or(&x.not_equal(&x)?)?;
    let places = call.stream.iota(DType::I64, x.dims(), along)?;
    let places = is_new.select(&places, &call.stream.zeros(DType::I64, x.dims())?)?.cummax(along)?;
    values_and_places(call, &best, &places)
}

/// The index tensor may be smaller than the tensor in the other dimensions; the rest is cropped.
fn gather(call: &Call<'_>) -> Result<Results> {
    let (x, index) = (at_least_1d(&call.tensor(0)?)?, at_least_1d(&call.tensor(2)?)?);
    let ty = call.out(0)?;
    if ty.elems().0 == 0 {
        return result(call, call.stream.zeros(ty.dtype(), ty.sizes())?);
    }
    if index.rank() != x.rank() {
        return unsupported("the index and the tensor must have the same rank");
    }
    let along = axis(call.int(1)?, x.rank());
    call.check_indices(&index, x.dims()[along], "gather")?;
    let starts = vec![0; x.rank()];
    let limits: Vec<i64> = (0..x.rank())
        .map(|axis| if axis == along { x.dims()[axis] } else { index.dims()[axis] } as i64)
        .collect();
    let cut = x.slice(&starts, &limits, &vec![1; x.rank()])?;
    result(call, unchecked(|| cut.take_along(&index, along as i64))?)
}

/// Rotates along some dimensions, or all elements in row-major order.
fn roll(call: &Call<'_>) -> Result<Results> {
    let mut x = call.tensor(0)?;
    let (shifts, axes) = (call.ints(1)?, call.ints(2)?);
    if x.shape().elems().0 == 0 {
        return result(call, x);
    }
    if axes.is_empty() {
        x = rolled(&flat(&x)?, shifts.first().copied().unwrap_or(0), 0)?;
        return result(call, x);
    }
    for (&shift, &at) in shifts.iter().zip(&axes) {
        x = rolled(&x, shift, axis(at, x.rank()))?;
    }
    result(call, x)
}

fn rolled(x: &Tensor, shift: i64, along: usize) -> Result<Tensor> {
    let size = x.dims()[along] as i64;
    let cut = (-shift).rem_euclid(size);
    if cut == 0 {
        return Ok(x.clone());
    }
    let along = along as i64;
    Ok(Tensor::concatenate(&[&x.narrow(along, cut, size)?, &x.narrow(along, 0, cut)?], along)?)
}

/// Variance or standard deviation with a correction, followed by the mean if requested.
fn spread(call: &Call<'_>, is_root: bool, has_mean: bool) -> Result<Results> {
    let given = call.tensor(0)?;
    if !given.dtype().is_float() {
        return unsupported(format!("the variance of {} is not supported", given.dtype()));
    }
    let x = cast(&given, accumulated(given.dtype()))?;
    let axes = reduced(call, 1)?;
    let count: usize = axes.iter().map(|&axis| x.dims()[axis as usize]).product();
    let correction = if call.is_none(2) { 1.0 } else { call.float(2)? };
    let (mean, deviations) = mean_and_deviations(call, &x, &axes)?;
    let squares = deviations.square()?.sum(&axes)?;
    // With too few elements it is NaN or infinite, never negative.
    let mut value = squares.div(&number(call, (count as f64 - correction).max(0.0), &squares)?)?;
    if is_root {
        value = value.sqrt()?;
    }
    let mut results: Results = SmallVec::from_iter([fitted(&value, call.out(0)?)?]);
    if has_mean {
        results.push(fitted(&mean, call.out(1)?)?);
    }
    Ok(results)
}

/// Norms of order 2, 1, 0 and the infinities.
fn norm(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let ty = call.out(0)?;
    if !x.dtype().is_float() || x.shape().elems().0 == 0 {
        return unsupported(format!("the norm of {} is not supported", x.ty()));
    }
    let x = cast(&cast(&x, ty.dtype())?, accumulated(ty.dtype()))?;
    let axes = reduced(call, 2)?;
    let order = if call.is_none(1) { 2.0 } else { call.float(1)? };
    let value = match order {
        2.0 => x.square()?.sum(&axes)?.sqrt()?,
        1.0 => x.abs()?.sum(&axes)?,
        0.0 => cast(&x.not_equal(&number(call, 0.0, &x)?)?, x.dtype())?.sum(&axes)?,
        f64::INFINITY => x.abs()?.max(&axes)?,
        f64::NEG_INFINITY => x.abs()?.min(&axes)?,
        _ => return unsupported(format!("norms of order {order} are not supported")),
    };
    result(call, value)
}

/// Reductions: 0 none, 1 mean, 2 sum.
fn mse(call: &Call<'_>) -> Result<Results> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    if a.dims() != b.dims() || !a.dtype().is_float() {
        return unsupported("input and target must be float tensors of the same shape");
    }
    let squares = a.sub(&b)?.square()?;
    let axes: Vec<i64> = (0..squares.rank() as i64).collect();
    let count = squares.shape().elems().0 as f64;
    result(
        call,
        match call.int_or(2, 1)? {
            0 => squares,
            1 => squares.sum(&axes)?.div(&call.constant(count, squares.dtype())?)?,
            _ => squares.sum(&axes)?,
        },
    )
}

fn mse_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, a, b) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    if a.dims() != b.dims() || !a.dtype().is_float() {
        return unsupported("input and target must be float tensors of the same shape");
    }
    let factor = if call.int_or(3, 1)? == 1 { 2.0 / a.shape().elems().0 as f64 } else { 2.0 };
    result(call, a.sub(&b)?.mul(&number(call, factor, &a)?)?.mul(&stretched(&grad, a.dims())?)?)
}
