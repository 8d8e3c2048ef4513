//! Maximum pooling over the last two dimensions, with the position of each maximum, and its
//! gradient.
//!
//! The window is split into slices ([`super::window`]) and the maximum is taken slice by slice.
//! These are elementwise ops, which fuse. So no search finds the positions, and the gradient adds
//! the slices back.

use fuseline::Tensor;
use fuseline::fusion::DType;
use smallvec::SmallVec;

use super::window::{MAX_PLACES, Window};
use super::{fitted, number, result};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "max_pool2d_with_indices", lower: max_pool },
    Row { name: "max_pool2d_with_indices_backward", lower: max_pool_backward },
];

/// The window whose size is argument `at`: height and width of each parameter.
fn window(call: &Call<'_>, at: usize, input: &[usize], output: &[usize]) -> Result<Window> {
    let both = |at: usize, otherwise: &[i64]| -> Result<Vec<i64>> {
        Ok(match *call.ints(at)?.as_slice() {
            [] => otherwise.to_vec(),
            [one] => vec![one; 2],
            [height, width] => vec![height, width],
            _ => return unsupported("windows of more than two dimensions are not supported"),
        })
    };
    let last = |dims: &[usize]| match *dims {
        [.., height, width] => Ok(vec![height as i64, width as i64]),
        _ => unsupported("the input needs at least two dimensions"),
    };
    let size = both(at, &[1; 2])?;
    if size.iter().product::<i64>() > MAX_PLACES {
        return unsupported("windows with so many elements are not supported");
    }
    Ok(Window {
        stride: both(at + 1, &size)?,
        padding: both(at + 2, &[0; 2])?,
        dilation: both(at + 3, &[1; 2])?,
        input: last(input)?,
        output: last(output)?,
        size,
    })
}

/// The row-major position in the input of each window's element at `place`.
fn positions(call: &Call<'_>, window: &Window, dims: &[usize], place: &[i64]) -> Result<Tensor> {
    let mut along: SmallVec<[Tensor; 2]> = SmallVec::new();
    for (axis, place) in place.iter().enumerate() {
        let steps = call.stream.iota(DType::I64, dims, (dims.len() - 2 + axis) as i64)?;
        let first = place * window.dilation[axis] - window.padding[axis];
        let spread = steps.mul(&number(call, window.stride[axis] as f64, &steps)?)?;
        along.push(spread.add(&number(call, first as f64, &steps)?)?);
    }
    let width = number(call, window.input[1] as f64, &along[0])?;
    Ok(along[0].mul(&width)?.add(&along[1])?)
}

/// NaN is above every number, and the first of equal elements counts, as in PyTorch.
fn max_pool(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let ty = call.out(0)?;
    if !x.dtype().is_float() {
        return unsupported(format!("elements of type {} are not supported", x.dtype()));
    }
    let window = window(call, 1, x.dims(), ty.sizes())?;
    let padded = window.padded(&x, &call.constant(f64::NEG_INFINITY, x.dtype())?)?;
    let mut best: Option<(Tensor, Tensor)> = None;
    for place in window.places() {
        let value = window.seen(&padded, &place)?;
        let position = positions(call, &window, value.dims(), &place)?;
        best = Some(match best {
            None => (value, position),
            Some((top, at)) => {
                let is_above = value.greater(&top)?.or(&value.not_equal(&value)?)?;
                (is_above.select(&value, &top)?, is_above.select(&position, &at)?)
            }
        });
    }
    let Some((value, position)) = best else { return unsupported("the window is empty") };
    Ok(SmallVec::from_iter([fitted(&value, ty)?, fitted(&position, call.out(1)?)?]))
}

fn max_pool_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, x, position) = (call.tensor(0)?, call.tensor(1)?, call.tensor(7)?);
    let window = window(call, 2, x.dims(), grad.dims())?;
    let (zero, zeros) = (call.constant(0.0, grad.dtype())?, call.stream.zeros(grad.dtype(), grad.dims())?);
    let mut sum: Option<Tensor> = None;
    for place in window.places() {
        let is_here = position.equal(&positions(call, &window, grad.dims(), &place)?)?;
        let part = is_here.select(&grad, &zeros)?;
        let put = window.put_back(&part, &place, &zero)?;
        sum = Some(match sum {
            None => put,
            Some(sum) => sum.add(&put)?,
        });
    }
    match sum {
        Some(sum) => result(call, sum),
        None => unsupported("the window is empty"),
    }
}
