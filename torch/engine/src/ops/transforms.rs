//! Fourier transforms over any dimensions, three at a time, with PyTorch's normalization
//! (`at::native::fft_norm_mode`: none, by the root of the number of elements, by the number).

use fuseline::fusion::DType;
use fuseline::{Tensor, fft};

use super::{axis, cast, inverse, result, times};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "_fft_c2c", lower: c2c },
    Row { name: "_fft_r2c", lower: r2c },
    Row { name: "_fft_c2r", lower: c2r },
];

/// The maximum number of dimensions of one transform.
const AT_ONCE: usize = 3;

type Transform = fn(&Tensor, usize) -> fuseline::Result<Tensor>;

fn dims(call: &Call<'_>, x: &Tensor) -> Result<Vec<usize>> {
    if x.shape().elems().0 == 0 || !matches!(x.dtype(), DType::F32 | DType::F64 | DType::C64 | DType::C128) {
        return unsupported(format!("Fourier transforms of {} are not supported", x.ty()));
    }
    Ok(call.ints(1)?.iter().map(|&at| axis(at, x.rank())).collect())
}

/// Transforms some dimensions by moving them to the end.
fn over(x: &Tensor, dims: &[usize], transform: Transform) -> Result<Tensor> {
    let mut x = x.clone();
    for some in dims.chunks(AT_ONCE) {
        let others = (0..x.rank()).filter(|axis| !some.contains(axis));
        let order: Vec<i64> = others.chain(some.iter().copied()).map(|axis| axis as i64).collect();
        x = transform(&x.transpose(&order)?, some.len())?.transpose(&inverse(&order))?;
    }
    Ok(x)
}

/// Applies the normalization of the mode for this many elements. The engine's inverse has already
/// divided by their number.
fn scaled(call: &Call<'_>, x: Tensor, elements: f64, is_inverse: bool) -> Result<Tensor> {
    let factor = match call.int(2)? {
        0 => 1.0,
        1 => 1.0 / elements.sqrt(),
        _ => 1.0 / elements,
    };
    times(call, x, if is_inverse { factor * elements } else { factor })
}

fn count(dims: &[usize], of: &[usize]) -> f64 {
    dims.iter().map(|&axis| of[axis] as f64).product()
}

/// Arguments: the operand, dimensions, mode, and whether the transform is forward.
fn c2c(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let dims = dims(call, &x)?;
    let is_inverse = !call.flag(3)?;
    let y = over(&x, &dims, if is_inverse { fft::ifft } else { fft::fft })?;
    result(call, scaled(call, y, count(&dims, x.dims()), is_inverse)?)
}

/// Arguments: the operand, dimensions, mode, and whether to return only half of the last dimension.
fn r2c(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let dims = dims(call, &x)?;
    let Some((last, others)) = dims.split_last() else {
        return unsupported("at least one dimension is required");
    };
    let y = match call.flag(3)? {
        true => over(&over(&x, &[*last], fft::rfft)?, others, fft::fft)?,
        false => over(&cast(&x, call.out(0)?.dtype())?, &dims, fft::fft)?,
    };
    result(call, scaled(call, y, count(&dims, x.dims()), false)?)
}

/// Arguments: the operand, dimensions, mode, and the size of the last dimension.
fn c2r(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let dims = dims(call, &x)?;
    let Some((last, others)) = dims.split_last() else {
        return unsupported("at least one dimension is required");
    };
    let size = call.out(0)?.sizes()[*last];
    // Drops what exceeds the needed half.
    let half = x.narrow(*last as i64, 0, (size / 2 + 1) as i64)?;
    let y = over(&half, others, fft::ifft)?;
    let order: Vec<i64> =
        (0..x.rank()).filter(|axis| axis != last).chain([*last]).map(|axis| axis as i64).collect();
    let y = fft::irfft(&y.transpose(&order)?, 1, size)?.transpose(&inverse(&order))?;
    result(call, scaled(call, y, count(&dims, call.out(0)?.sizes()), true)?)
}
