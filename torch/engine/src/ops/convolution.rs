//! Convolutions of every kind and their gradients: over one to three dimensions, in groups, transposed.
//!
//! A transposed convolution is the gradient of a convolution to its input (Dumoulin and Visin, "A guide to convolution arithmetic for deep learning",
//! 2016), so that there are three functions for six cases. They are computed with the features last, for which XLA's CPU backend has fast ones.

use fuseline::Tensor;
use fuseline::nn::grad::Convolution;

use super::networks::{asked, per_channel};
use super::{cast, fitted, result};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "convolution", lower: convolution },
    Row { name: "convolution_backward", lower: convolution_backward },
];

/// From features in the second dimension to features in the last, or back.
fn moved(x: &Tensor, is_last: bool) -> Result<Tensor> {
    let rank = x.rank() as i64;
    let order: Vec<i64> = match is_last {
        false => std::iter::once(0).chain(2..rank).chain([1]).collect(),
        true => [0, rank - 1].into_iter().chain(1..rank - 1).collect(),
    };
    Ok(x.transpose(&order)?)
}

/// Sizes of a tensor with its features last.
fn moved_dims(dims: &[u64]) -> Vec<u64> {
    [&dims[..1], &dims[2..], &dims[1..2]].concat()
}

/// A kernel `[out, in, space..]` as `[space.., in, out]`.
fn turned(kernel: &Tensor) -> Result<Tensor> {
    let rank = kernel.rank() as i64;
    Ok(kernel.transpose(&(2..rank).chain([1, 0]).collect::<Vec<_>>())?)
}

fn turned_dims(dims: &[u64]) -> Vec<u64> {
    [&dims[2..], &[dims[1], dims[0]]].concat()
}

/// The same back.
fn turned_back(kernel: &Tensor) -> Result<Tensor> {
    let rank = kernel.rank() as i64;
    Ok(kernel.transpose(&[rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect::<Vec<_>>())?)
}

/// The window, and whether it is transposed: stride, padding, dilation, transposed, padding of the output, groups from an argument on.
fn window(call: &Call<'_>, at: usize, rank: usize) -> Result<(Convolution, bool)> {
    if rank < 3 {
        return unsupported("a convolution over no dimension");
    }
    let whole = |at| -> Result<Vec<i64>> {
        let given = call.ints(at)?;
        Ok(if given.len() == 1 { vec![given[0]; rank - 2] } else { given.to_vec() })
    };
    let mut window = Convolution::new(rank - 2);
    window.stride = whole(at)?;
    window.padding = whole(at + 1)?.into_iter().map(|pad| (pad, pad)).collect();
    window.dilation = whole(at + 2)?;
    window.groups = call.int(at + 5)?;
    Ok((window, call.flag(at + 3)?))
}

/// Nothing to sum over, or to sum: XLA has no such convolutions.
fn not_empty(tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().any(|tensor| tensor.shape().elems().0 == 0) {
        true => unsupported("a convolution of nothing"),
        false => Ok(()),
    }
}

fn convolution(call: &Call<'_>) -> Result<Results> {
    let (x, kernel) = (call.tensor(0)?, call.tensor(1)?);
    not_empty(&[&x, &kernel])?;
    let (window, is_transposed) = window(call, 3, x.rank())?;
    let (x, kernel) = (moved(&x, false)?, turned(&kernel)?);
    let y = match is_transposed {
        false => window.apply(&x, &kernel)?,
        true => window.input_gradient(&moved_dims(call.out(0)?.dims()), &kernel, &x)?,
    };
    let y = moved(&y, true)?;
    let y = match call.maybe_tensor(2)? {
        Some(bias) => y.add(&per_channel(&cast(&bias, y.dtype())?, y.dims())?)?,
        None => y,
    };
    result(call, y)
}

fn convolution_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, x, kernel) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    not_empty(&[&grad, &x, &kernel])?;
    let (window, is_transposed) = window(call, 4, x.rank())?;
    let (x_last, kernel_last, grad_last) = (moved(&x, false)?, turned(&kernel)?, moved(&grad, false)?);
    let mask = asked(call, 10)?;
    let mut outs = call.outs.iter();
    let mut results = Results::new();
    let mut give = |value: Tensor| -> Result<()> {
        match outs.next() {
            Some(ty) => results.push(fitted(&value, ty)?),
            None => return unsupported("more gradients than types"),
        }
        Ok(())
    };
    if mask[0] {
        let of_input = match is_transposed {
            false => window.input_gradient(x_last.dims(), &kernel_last, &grad_last)?,
            true => {
                // Padding of the output may have room for one more window.
                let all = window.apply(&grad_last, &kernel_last)?;
                let limits: Vec<i64> = x_last.dims().iter().map(|&dim| dim as i64).collect();
                all.slice(&vec![0; limits.len()], &limits, &vec![1; limits.len()])?
            }
        };
        give(moved(&of_input, true)?)?;
    }
    if mask[1] {
        // What the window moves over is the result of a transposed convolution.
        let (wide, narrow) = if is_transposed { (&grad_last, &x_last) } else { (&x_last, &grad_last) };
        give(turned_back(&window.kernel_gradient(wide, &turned_dims(kernel.dims()), narrow)?)?)?;
    }
    if mask[2] {
        let axes: Vec<i64> = (0..grad.rank() as i64).filter(|axis| *axis != 1).collect();
        give(grad.sum(&axes)?)?;
    }
    Ok(results)
}
