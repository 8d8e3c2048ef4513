//! The maximum of a window that moves over the last two dimensions, with the place of each, and its gradient.
//!
//! A window of `h * w` places is as many slices of the padded input, each with all windows' elements at one place of theirs, and the maximum is taken
//! from slice to slice: elementwise ops, which are fused. So a place is known without a search, and the gradient is the slices put back.

use fuseline::Tensor;
use fuseline::fusion::DType;
use smallvec::SmallVec;

use super::{fitted, result, stretched};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "max_pool2d_with_indices", lower: max_pool },
    Row { name: "max_pool2d_with_indices_backward", lower: max_pool_backward },
];

/// Most places of a window that is taken apart.
const MOST_PLACES: i64 = 64;

/// A window, and the sizes it moves over: height and width of each.
struct Window {
    size: [i64; 2],
    stride: [i64; 2],
    padding: [i64; 2],
    dilation: [i64; 2],
    input: [i64; 2],
    output: [i64; 2],
}

impl Window {
    /// From the arguments behind `at`, which is the size.
    fn of(call: &Call<'_>, at: usize, input: &[u64], output: &[u64]) -> Result<Window> {
        let both = |at: usize, otherwise: [i64; 2]| -> Result<[i64; 2]> {
            Ok(match *call.ints(at)?.as_slice() {
                [] => otherwise,
                [one] => [one, one],
                [height, width] => [height, width],
                _ => return unsupported("a window of more than two dimensions"),
            })
        };
        let last = |dims: &[u64]| match *dims {
            [.., height, width] => Ok([height as i64, width as i64]),
            _ => unsupported("fewer than two dimensions"),
        };
        let size = both(at, [1; 2])?;
        if size[0] * size[1] > MOST_PLACES {
            return unsupported("a window of many places");
        }
        Ok(Window {
            size,
            stride: both(at + 1, size)?,
            padding: both(at + 2, [0; 2])?,
            dilation: both(at + 3, [1; 2])?,
            input: last(input)?,
            output: last(output)?,
        })
    }

    fn places(&self) -> impl Iterator<Item = [i64; 2]> + use<> {
        let [height, width] = self.size;
        (0..height).flat_map(move |row| (0..width).map(move |column| [row, column]))
    }

    /// From the window's first place on, elements of an axis that the windows reach.
    fn reach(&self, axis: usize) -> i64 {
        (self.output[axis] - 1) * self.stride[axis] + (self.size[axis] - 1) * self.dilation[axis] + 1
    }

    /// Where in the input the element of each window at a place lies, in row-major order.
    fn positions(&self, call: &Call<'_>, dims: &[u64], place: [i64; 2]) -> Result<Tensor> {
        let mut along: SmallVec<[Tensor; 2]> = SmallVec::new();
        for (axis, place) in place.into_iter().enumerate() {
            let steps = call.stream.iota(DType::I64, dims, (dims.len() - 2 + axis) as i64)?;
            let whole =
                |value: i64| -> Result<Tensor> { stretched(&call.constant(value as f64, DType::I64)?, dims) };
            let first = place * self.dilation[axis] - self.padding[axis];
            along.push(steps.mul(&whole(self.stride[axis])?)?.add(&whole(first)?)?);
        }
        let width = stretched(&call.constant(self.input[1] as f64, DType::I64)?, dims)?;
        Ok(along[0].mul(&width)?.add(&along[1])?)
    }
}

/// Lists of one number for each dimension, which the last two differ in.
fn for_all(rank: usize, others: i64, last: [i64; 2]) -> Vec<i64> {
    let mut list = vec![others; rank - 2];
    list.extend(last);
    list
}

/// A NaN is above every number, and of equal ones the first counts, as in PyTorch.
fn max_pool(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let (ty, rank) = (call.out(0)?, x.rank());
    if !x.dtype().is_float() {
        return unsupported(format!("elements of type {}", x.dtype()));
    }
    let window = Window::of(call, 1, x.dims(), ty.dims())?;
    let [low, high] = [0, 1].map(|end| {
        [0, 1].map(|axis| match end {
            0 => window.padding[axis],
            // What no window reaches is cut off.
            _ => window.reach(axis) - window.padding[axis] - window.input[axis],
        })
    });
    let nothing = call.constant(f64::NEG_INFINITY, x.dtype())?;
    let padded =
        x.pad(&nothing, &for_all(rank, 0, low), &for_all(rank, 0, high), &for_all(rank, 0, [0, 0]))?;
    let mut best: Option<(Tensor, Tensor)> = None;
    for place in window.places() {
        let starts = [0, 1].map(|axis| place[axis] * window.dilation[axis]);
        let limits = [0, 1].map(|axis| starts[axis] + (window.output[axis] - 1) * window.stride[axis] + 1);
        let mut ends: Vec<i64> = padded.dims().iter().map(|&dim| dim as i64).collect();
        ends[rank - 2..].copy_from_slice(&limits);
        let value = padded.slice(&for_all(rank, 0, starts), &ends, &for_all(rank, 1, window.stride))?;
        let position = window.positions(call, value.dims(), place)?;
        best = Some(match best {
            None => (value, position),
            Some((top, at)) => {
                let is_above = value.greater(&top)?.or(&value.not_equal(&value)?)?;
                (is_above.select(&value, &top)?, is_above.select(&position, &at)?)
            }
        });
    }
    let Some((value, position)) = best else { return unsupported("a window of no places") };
    Ok(SmallVec::from_iter([fitted(&value, ty)?, fitted(&position, call.out(1)?)?]))
}

fn max_pool_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, x, position) = (call.tensor(0)?, call.tensor(1)?, call.tensor(7)?);
    let rank = x.rank();
    let window = Window::of(call, 2, x.dims(), grad.dims())?;
    let (zero, zeros) = (call.constant(0.0, grad.dtype())?, call.stream.zeros(grad.dtype(), grad.dims())?);
    let mut sum: Option<Tensor> = None;
    for place in window.places() {
        let is_here = position.equal(&window.positions(call, grad.dims(), place)?)?;
        let part = is_here.select(&grad, &zeros)?;
        let low = [0, 1].map(|axis| place[axis] * window.dilation[axis] - window.padding[axis]);
        let high = [0, 1]
            .map(|axis| window.input[axis] - low[axis] - (window.output[axis] - 1) * window.stride[axis] - 1);
        let apart = window.stride.map(|step| step - 1);
        let put =
            part.pad(&zero, &for_all(rank, 0, low), &for_all(rank, 0, high), &for_all(rank, 0, apart))?;
        sum = Some(match sum {
            None => put,
            Some(sum) => sum.add(&put)?,
        });
    }
    match sum {
        Some(sum) => result(call, sum),
        None => unsupported("a window of no places"),
    }
}
