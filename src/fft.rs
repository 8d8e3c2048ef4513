//! Fourier transforms over the last dimensions, with NumPy's conventions: the forward transform is
//! unscaled, and the inverse is divided by the number of elements. One op each.

use fuseline_fusion::op::{FftType, attrs};
use fuseline_fusion::{OpCode, OpError, OpErrorKind, Site};
use fuseline_runtime::internals::bug;
use fuseline_runtime::{Error, Result};

use crate::handle::Tensor;
use crate::promote::{Weak, promote_number};

/// The transform over the last `count` dimensions, 1 to 3. Real elements count as complex ones.
///
/// # Errors
/// When the tensor has fewer dimensions or the element type has no complex one.
#[track_caller]
pub fn fft(x: &Tensor, count: usize) -> Result<Tensor> {
    transformed(FftType::Fft, &complex(x)?, count, None)
}

/// The inverse of [`fft`].
///
/// # Errors
/// As [`fft`].
#[track_caller]
pub fn ifft(x: &Tensor, count: usize) -> Result<Tensor> {
    transformed(FftType::Ifft, &complex(x)?, count, None)
}

/// The transform of real elements. It is Hermitian, so only half of it is returned: the last
/// dimension has `size / 2 + 1` elements.
///
/// # Errors
/// When the tensor has fewer dimensions or the elements are not floats.
#[track_caller]
pub fn rfft(x: &Tensor, count: usize) -> Result<Tensor> {
    transformed(FftType::Rfft, &x.widened()?, count, None)
}

/// The inverse of [`rfft`]. `size` is that of the last dimension of the result, because the half
/// spectrum fits two sizes.
///
/// # Errors
/// As [`fft`], and when the last dimension does not have `size / 2 + 1` elements.
#[track_caller]
pub fn irfft(x: &Tensor, count: usize, size: usize) -> Result<Tensor> {
    transformed(FftType::Irfft, &complex(x)?, count, Some(size))
}

#[track_caller]
fn complex(x: &Tensor) -> Result<Tensor> {
    match promote_number(x.dtype(), Weak::Complex) {
        Some(dtype) if dtype == x.dtype() => Ok(x.clone()),
        Some(dtype) => x.convert(dtype),
        None => {
            let given = format!("the tensor is {}", x.ty());
            let error = OpError::new(
                OpCode::Fft.name(),
                OpErrorKind::DType,
                given,
                "its elements cannot be promoted to complex numbers",
            );
            Err(Error::op(error, Site::Rust(std::panic::Location::caller())))
        }
    }
}

#[track_caller]
fn transformed(kind: FftType, x: &Tensor, count: usize, last: Option<usize>) -> Result<Tensor> {
    let first = x.rank().saturating_sub(count);
    let mut lengths: Vec<i64> = x.dims()[first..].iter().map(|&dim| dim as i64).collect();
    if let (Some(length), Some(size)) = (lengths.last_mut(), last) {
        *length = i64::try_from(size).unwrap_or(i64::MAX);
    }
    // The op itself rejects more dimensions than there are.
    if lengths.len() < count {
        lengths.resize(count.min(4), 1);
    }
    let mut results = x.on_stream().record(OpCode::Fft, attrs::fft(kind, &lengths), &[], &[x])?;
    results.pop().ok_or_else(|| bug!("fft has a result"))
}
