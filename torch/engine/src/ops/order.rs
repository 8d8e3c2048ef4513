//! Extremes with their places, sorting, gathering; sums of powers; what moves elements.

use fuseline::fusion::DType;
use fuseline::{Order, Tensor};
use smallvec::SmallVec;

use super::arithmetic::{accumulated, reduced};
use super::{axis, cast, fitted, result, stretched};
use crate::call::{Arg, Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "max.dim", lower: |call| extreme(call, Tensor::max, Tensor::argmax) },
    Row { name: "min.dim", lower: |call| extreme(call, Tensor::min, Tensor::argmin) },
    Row { name: "argmin", lower: |call| place(call, Tensor::argmin) },
    Row { name: "argmax", lower: |call| place(call, Tensor::argmax) },
    Row { name: "sort.stable", lower: sort },
    Row { name: "topk", lower: topk },
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
    Ok(x.greater(&stretched(&call.constant(0.0, x.dtype())?, x.dims())?)?)
}

/// Where there is nothing to choose from PyTorch has an error, which the CPU tells.
fn not_empty(x: &Tensor) -> Result<()> {
    if x.shape().elems().0 == 0 { unsupported("an extreme of nothing") } else { Ok(()) }
}

fn extreme(
    call: &Call<'_>,
    value: fn(&Tensor, &[i64]) -> fuseline::Result<Tensor>,
    place: fn(&Tensor, i64) -> fuseline::Result<Tensor>,
) -> Result<Results> {
    let x = call.tensor(0)?;
    not_empty(&x)?;
    let along = axis(call.int(1)?, x.rank()) as i64;
    let x = if x.rank() == 0 { x.reshape(&[1])? } else { x };
    Ok(SmallVec::from_iter([
        fitted(&value(&x, &[along])?, call.out(0)?)?,
        fitted(&place(&x, along)?, call.out(1)?)?,
    ]))
}

/// The first of equal ones, and a NaN before every number.
fn place(call: &Call<'_>, op: fn(&Tensor, i64) -> fuseline::Result<Tensor>) -> Result<Results> {
    let x = call.tensor(0)?;
    not_empty(&x)?;
    if x.rank() == 0 {
        return result(call, call.stream.zeros(DType::I64, &[])?);
    }
    let (x, along) = match call.arg(1) {
        Arg::None => (x.reshape(&[x.shape().elems().0])?, 0),
        _ => (x.clone(), axis(call.int(1)?, x.rank()) as i64),
    };
    result(call, op(&x, along)?)
}

fn order(descending: bool) -> Order {
    if descending { Order::Descending } else { Order::Ascending }
}

/// Arguments: whether it is stable, which it always is; the dimension; whether it descends.
fn sort(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    if x.dtype() == DType::Bool || x.dtype().is_float() && call.flag_or(3, false)? {
        // NaN comes first then.
        return unsupported("descending floats, and truth values");
    }
    let along = axis(call.int_or(2, -1)?, x.rank()) as i64;
    let x = if x.rank() == 0 { x.reshape(&[1])? } else { x };
    let (values, places) = x.sort_with_places(along, order(call.flag_or(3, false)?))?;
    Ok(SmallVec::from_iter([fitted(&values, call.out(0)?)?, fitted(&places, call.out(1)?)?]))
}

/// The largest, in order; PyTorch leaves open which of equal ones, and in what order where it is not asked for.
fn topk(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    if !call.flag_or(3, true)? || x.dtype() == DType::Bool || x.rank() == 0 {
        return unsupported("the smallest");
    }
    let (values, places) = x.topk(call.int(1)? as u64, axis(call.int_or(2, -1)?, x.rank()) as i64)?;
    Ok(SmallVec::from_iter([fitted(&values, call.out(0)?)?, fitted(&places, call.out(1)?)?]))
}

/// The indices may be of fewer places than the tensor in the other dimensions: what is beyond is cut off.
fn gather(call: &Call<'_>) -> Result<Results> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let ty = call.out(0)?;
    if ty.elems().0 == 0 || x.rank() == 0 || index.rank() != x.rank() {
        return unsupported("gathering without dimensions");
    }
    let along = axis(call.int(1)?, x.rank());
    let starts = vec![0; x.rank()];
    let limits: Vec<i64> = (0..x.rank())
        .map(|axis| if axis == along { x.dims()[axis] } else { index.dims()[axis] } as i64)
        .collect();
    let cut = x.slice(&starts, &limits, &vec![1; x.rank()])?;
    result(call, cut.take_along(&index, along as i64)?)
}

/// Around each of some dimensions, or of all elements in their order.
fn roll(call: &Call<'_>) -> Result<Results> {
    let mut x = call.tensor(0)?;
    let (shifts, axes) = (call.ints(1)?, call.ints(2)?);
    if x.shape().elems().0 == 0 {
        return result(call, x);
    }
    if axes.is_empty() {
        x = rolled(&x.reshape(&[x.shape().elems().0])?, shifts.first().copied().unwrap_or(0), 0)?;
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

/// Variance or deviation with a correction, with the mean behind it if that is asked for too.
fn spread(call: &Call<'_>, is_root: bool, has_mean: bool) -> Result<Results> {
    let given = call.tensor(0)?;
    if !given.dtype().is_float() {
        return unsupported(format!("the variance of {}", given.dtype()));
    }
    let x = cast(&given, accumulated(given.dtype()))?;
    let axes = reduced(call, 1)?;
    let count: u64 = axes.iter().map(|&axis| x.dims()[axis as usize]).product();
    let correction = if call.is_none(2) { 1.0 } else { call.float(2)? };
    let others: Vec<i64> = (0..x.rank() as i64).filter(|axis| !axes.contains(axis)).collect();
    let by = |sum: &Tensor, count: f64| -> Result<Tensor> {
        Ok(sum.div(&stretched(&call.constant(count, x.dtype())?, sum.dims())?)?)
    };
    let mean = by(&x.sum(&axes)?, count as f64)?;
    let centred = x.sub(&mean.broadcast_in_dim(x.dims(), &others)?)?;
    // Of too few elements it is NaN or infinite, never negative.
    let mut value = by(&centred.square()?.sum(&axes)?, (count as f64 - correction).max(0.0))?;
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
        return unsupported(format!("the norm of {}", x.ty()));
    }
    let x = cast(&cast(&x, ty.dtype())?, accumulated(ty.dtype()))?;
    let axes = reduced(call, 2)?;
    let order = if call.is_none(1) { 2.0 } else { call.float(1)? };
    let zero = || stretched(&call.constant(0.0, x.dtype())?, x.dims());
    let value = match order {
        2.0 => x.square()?.sum(&axes)?.sqrt()?,
        1.0 => x.abs()?.sum(&axes)?,
        0.0 => cast(&x.not_equal(&zero()?)?, x.dtype())?.sum(&axes)?,
        f64::INFINITY => x.abs()?.max(&axes)?,
        f64::NEG_INFINITY => x.abs()?.min(&axes)?,
        _ => return unsupported(format!("a norm of order {order}")),
    };
    result(call, value)
}

/// Reductions: 0 none, 1 mean, 2 sum.
fn mse(call: &Call<'_>) -> Result<Results> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    if a.dims() != b.dims() || !a.dtype().is_float() {
        return unsupported("operands of two shapes");
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
        return unsupported("operands of two shapes");
    }
    let factor = if call.int_or(3, 1)? == 1 { 2.0 / a.shape().elems().0 as f64 } else { 2.0 };
    let factor = stretched(&call.constant(factor, a.dtype())?, a.dims())?;
    result(call, a.sub(&b)?.mul(&factor)?.mul(&stretched(&grad, a.dims())?)?)
}
