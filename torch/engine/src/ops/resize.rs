//! Average pooling and image resizing, with their gradients.

use fuseline::Tensor;
use fuseline::nn::{self, Layout, Method, Pool, Resize, grad};

use super::networks::float;
use super::{result, times};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "avg_pool2d", lower: |call| avg_pool(call, 2) },
    Row { name: "avg_pool3d", lower: |call| avg_pool(call, 3) },
    Row { name: "avg_pool2d_backward", lower: |call| avg_pool_backward(call, 2) },
    Row { name: "avg_pool3d_backward", lower: |call| avg_pool_backward(call, 3) },
    Row { name: "_adaptive_avg_pool2d", lower: |call| adaptive(call, 2) },
    Row { name: "_adaptive_avg_pool3d", lower: |call| adaptive(call, 3) },
    Row { name: "_adaptive_avg_pool2d_backward", lower: |call| adaptive_backward(call, 2) },
    Row { name: "_adaptive_avg_pool3d_backward", lower: |call| adaptive_backward(call, 3) },
    Row { name: "upsample_nearest1d", lower: |call| resized(call, Method::Nearest) },
    Row { name: "upsample_nearest2d", lower: |call| resized(call, Method::Nearest) },
    Row { name: "upsample_nearest3d", lower: |call| resized(call, Method::Nearest) },
    Row { name: "_upsample_nearest_exact1d", lower: |call| resized(call, Method::NearestExact) },
    Row { name: "_upsample_nearest_exact2d", lower: |call| resized(call, Method::NearestExact) },
    Row { name: "_upsample_nearest_exact3d", lower: |call| resized(call, Method::NearestExact) },
    Row { name: "upsample_linear1d", lower: |call| resized(call, Method::Linear) },
    Row { name: "upsample_bilinear2d", lower: |call| resized(call, Method::Linear) },
    Row { name: "upsample_trilinear3d", lower: |call| resized(call, Method::Linear) },
    Row { name: "upsample_bicubic2d", lower: |call| resized(call, Method::Cubic) },
    Row { name: "upsample_nearest1d_backward", lower: |call| resized_backward(call, Method::Nearest) },
    Row { name: "upsample_nearest2d_backward", lower: |call| resized_backward(call, Method::Nearest) },
    Row { name: "upsample_nearest3d_backward", lower: |call| resized_backward(call, Method::Nearest) },
    Row {
        name: "_upsample_nearest_exact1d_backward",
        lower: |call| resized_backward(call, Method::NearestExact),
    },
    Row {
        name: "_upsample_nearest_exact2d_backward",
        lower: |call| resized_backward(call, Method::NearestExact),
    },
    Row {
        name: "_upsample_nearest_exact3d_backward",
        lower: |call| resized_backward(call, Method::NearestExact),
    },
    Row { name: "upsample_linear1d_backward", lower: |call| resized_backward(call, Method::Linear) },
    Row { name: "upsample_bilinear2d_backward", lower: |call| resized_backward(call, Method::Linear) },
    Row { name: "upsample_trilinear3d_backward", lower: |call| resized_backward(call, Method::Linear) },
    Row { name: "upsample_bicubic2d_backward", lower: |call| resized_backward(call, Method::Cubic) },
];

/// Adds a batch dimension if there is none.
fn batched(x: &Tensor, space: usize) -> Result<Tensor> {
    match x.dtype().is_float() {
        false => unsupported(format!("windows over {} are not supported", x.ty())),
        true if x.rank() == space + 2 => Ok(x.clone()),
        true => Ok(x.unsqueeze(0)?),
    }
}

/// Zeros if the operand or the result is empty.
fn unless_empty(call: &Call<'_>, value: impl FnOnce() -> Result<Tensor>) -> Result<Results> {
    let (given, ty) = (call.tensor(0)?, call.out(0)?);
    if given.shape().elems().0 == 0 || ty.elems().0 == 0 {
        return result(call, call.stream.zeros(ty.dtype(), ty.sizes())?);
    }
    result(call, value()?)
}

/// The window of an average, and the factor of a custom divisor. The arguments from `at` on are
/// size, stride, padding, rounding, whether padding counts, and the divisor.
fn pool(call: &Call<'_>, at: usize, space: usize) -> Result<(Pool, f64)> {
    let each = |at: usize, otherwise: &[usize]| -> Result<Vec<usize>> {
        let given: Vec<usize> = call.ints(at)?.iter().map(|&size| size.max(0) as usize).collect();
        Ok(match given.as_slice() {
            [] => otherwise.to_vec(),
            [one] => vec![*one; space],
            _ => given,
        })
    };
    let size = each(at, &[])?;
    let mut pool = Pool {
        stride: each(at + 1, &size)?,
        padding: each(at + 2, &vec![0; space])?,
        ceil_mode: call.flag_or(at + 3, false)?,
        count_padding: call.flag_or(at + 4, true)?,
        ..Pool::new(&size)
    };
    if call.is_none(at + 5) {
        return Ok((pool, 1.0));
    }
    if pool.ceil_mode {
        return unsupported("divisor_override with ceil_mode is not supported");
    }
    pool.count_padding = true;
    Ok((pool, size.iter().product::<usize>() as f64 / call.float(at + 5)?))
}

fn avg_pool(call: &Call<'_>, space: usize) -> Result<Results> {
    let (pool, factor) = pool(call, 1, space)?;
    let x = batched(&call.tensor(0)?, space)?;
    unless_empty(call, || times(call, nn::avg_pool(&x, &pool)?, factor))
}

fn avg_pool_backward(call: &Call<'_>, space: usize) -> Result<Results> {
    let (gradient, x) = (batched(&call.tensor(0)?, space)?, batched(&call.tensor(1)?, space)?);
    let (pool, factor) = pool(call, 2, space)?;
    unless_empty(call, || times(call, grad::avg_pool(x.dims(), &pool, &gradient)?, factor))
}

fn adaptive(call: &Call<'_>, space: usize) -> Result<Results> {
    let x = batched(&call.tensor(0)?, space)?;
    let sizes = &call.out(0)?.sizes()[call.out(0)?.rank() - space..];
    unless_empty(call, || Ok(nn::adaptive_avg_pool(&x, sizes, Layout::ChannelsFirst)?))
}

fn adaptive_backward(call: &Call<'_>, space: usize) -> Result<Results> {
    let (gradient, x) = (batched(&call.tensor(0)?, space)?, batched(&call.tensor(1)?, space)?);
    unless_empty(call, || Ok(grad::adaptive_avg_pool(x.dims(), Layout::ChannelsFirst, &gradient)?))
}

/// Settings of a resize. The arguments from `at` on say whether corners are aligned, if the method
/// has that, and a scale for each dimension. A scale that disagrees with the sizes is not covered.
fn settings(call: &Call<'_>, method: Method, at: usize, from: &[usize], to: &[usize]) -> Result<Resize> {
    let has_corners = matches!(method, Method::Linear | Method::Cubic);
    let align_corners = has_corners && call.flag(at)?;
    if from.contains(&0) || to.contains(&0) {
        return unsupported("empty images are not supported");
    }
    for (axis, (&from, &to)) in from.iter().zip(to).enumerate() {
        let at = at + usize::from(has_corners) + axis;
        if !align_corners && !call.is_none(at) && call.float(at)? * from as f64 != to as f64 {
            return unsupported("scale factors that differ from the ratio of the sizes are not supported");
        }
    }
    Ok(Resize { method, align_corners, layout: Layout::ChannelsFirst })
}

fn resized(call: &Call<'_>, method: Method) -> Result<Results> {
    let x = float(call, 0)?;
    if !x.dtype().is_float() {
        return unsupported(format!("images of {} are not supported", x.dtype()));
    }
    let sizes = &call.out(0)?.sizes()[2..];
    let settings = settings(call, method, 2, &x.dims()[2..], sizes)?;
    result(call, nn::resize(&x, sizes, settings)?)
}

fn resized_backward(call: &Call<'_>, method: Method) -> Result<Results> {
    let gradient = float(call, 0)?;
    let dims = call.out(0)?.sizes();
    let settings = settings(call, method, 3, &dims[2..], &gradient.dims()[2..])?;
    result(call, grad::resize(dims, settings, &gradient)?)
}
