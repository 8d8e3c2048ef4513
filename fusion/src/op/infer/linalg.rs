//! Fourier transforms, matrix factorisations and normalisation.

use smallvec::smallvec;

use crate::dtype::DTypeSet;
use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::op::def::{Call, one};
use crate::op::enums::FftType;

/// `fft`: transforms of one to three dimensions. For complex to complex, the specification leaves
/// open what a length other than the size of its dimension means; such a call is rejected.
pub(in crate::op) fn fft(call: &Call<'_>) -> Result<Results, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    let (operand, lengths) = (call.operand(0), call.attr().ints(1));
    let kind = FftType::ALL[usize::from(call.attr().member(0))];
    let real = kind == FftType::Rfft;
    if operand.dtype().is_complex() == real {
        let error = call.error(
            OpErrorKind::DType,
            format!("the operand is {operand} and fft_type is {}", call.attr_text(0)),
            format!("the element type must be {}", if real { DTypeSet::FLOAT } else { DTypeSet::COMPLEX }),
        );
        return Err(match kind {
            FftType::Rfft => error.hint("did you mean FFT?"),
            FftType::Fft => error.hint("did you mean RFFT, or to convert to complex?"),
            _ => error,
        });
    }
    if !(1..=3).contains(&lengths.len()) || lengths.len() > operand.rank() {
        return Err(call.attr_error(
            format!("fft_length has {} entries and the operand has rank {}", lengths.len(), operand.rank()),
            "it must have 1 to 3, and at most one per dimension",
        ));
    }
    let half = |length: u64| if length == 0 { 0 } else { length / 2 + 1 };
    let mut dims = operand.dims().to_vec();
    let first = dims.len() - lengths.len();
    let last = dims.len() - 1;
    for (axis, &length) in (first..).zip(lengths) {
        let size = u64::try_from(length).ok().filter(|&length| match kind {
            FftType::Irfft if axis == last => half(length) == dims[axis],
            _ => length == dims[axis],
        });
        let Some(size) = size else {
            return Err(call.attr_error(
                format!("fft_length is {length} for dimension {axis} of size {}", dims[axis]),
                if kind == FftType::Irfft && axis == last {
                    "half the length, rounded down, and 1 must be the size of the dimension"
                } else {
                    "the length must be the size of the dimension"
                },
            ));
        };
        dims[axis] = if real && axis == last { half(size) } else { size };
    }
    let dtype = match kind {
        FftType::Rfft => operand.dtype().complex().unwrap_or(operand.dtype()),
        FftType::Irfft => operand.dtype().part(),
        _ => operand.dtype(),
    };
    Ok(one(call.ty(dtype, &dims)?))
}

/// Checks that the last two dimensions of operand 0 form a square matrix; returns its size.
fn square(call: &Call<'_>) -> Result<u64, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    let a = call.operand(0);
    match *a.dims() {
        [.., rows, columns] if rows == columns => Ok(rows),
        _ => Err(call.shape_error(
            format!("a has shape {}", a.shape()),
            "it must have at least two dimensions, and the last two must be equal",
        )),
    }
}

/// `cholesky`: the triangular factor of each matrix, with the operand's type.
pub(in crate::op) fn cholesky(call: &Call<'_>) -> Result<Results, OpError> {
    square(call)?;
    Ok(one(call.operand(0).clone()))
}

/// `triangular_solve`: `x` of `op(a) x = b` or `x op(a) = b`, of the type of `b`.
pub(in crate::op) fn triangular_solve(call: &Call<'_>) -> Result<Results, OpError> {
    let size = square(call)?;
    call.same_dtype(1, 0)?;
    let (a, b) = (call.operand(0), call.operand(1));
    let batch = a.rank() - 2;
    if a.rank() != b.rank() || a.dims()[..batch] != b.dims()[..batch] {
        return Err(call.shape_error(
            format!("a has shape {}, but b has shape {}", a.shape(), b.shape()),
            "they must agree in all dimensions but the last two",
        ));
    }
    let left = call.attr().bool(0);
    let (along, other) = if left { (batch, batch + 1) } else { (batch + 1, batch) };
    if b.dims()[along] != size {
        let error = call.shape_error(
            format!("a has {size} rows and columns, but dimension {along} of b is {}", b.dims()[along]),
            if left { "with left_side, b must have as many rows" } else { "b must have as many columns" },
        );
        return Err(if b.dims()[other] == size {
            error.hint(format!("did you mean left_side = {}, or to transpose b?", !left))
        } else {
            error
        });
    }
    Ok(one(b.clone()))
}

/// Checks operand 0 of a normalisation, that the operands `whole` have its type, and that the
/// others have one element per feature.
fn features(call: &Call<'_>, whole: &[usize]) -> Result<(), OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    let operand = call.operand(0);
    let axis = call.axis("feature_index", call.attr().int(1), operand.rank())?;
    let features = operand.dims()[axis];
    for index in 1..call.operands.len() {
        call.same_dtype(index, 0)?;
        if whole.contains(&index) {
            call.same_shape(index, 0)?;
        } else if call.operand(index).dims() != [features] {
            return Err(call.shape_error(
                format!("{} has shape {}", call.name(index), call.operand(index).shape()),
                format!(
                    "it must have one element per feature, but dimension {axis} of the operand is {features}"
                ),
            ));
        }
    }
    Ok(())
}

/// `batch_norm_inference`: operand, scale, offset, mean, variance.
pub(in crate::op) fn batch_norm_inference(call: &Call<'_>) -> Result<Results, OpError> {
    features(call, &[])?;
    Ok(one(call.operand(0).clone()))
}

/// `batch_norm_training` (operand, scale, offset) and `batch_norm_grad` (operand, scale, mean,
/// variance, gradient of the output): a result like the operand and two like the scale.
pub(in crate::op) fn batch_norm(call: &Call<'_>) -> Result<Results, OpError> {
    features(call, &[4])?;
    let (operand, scale) = (call.operand(0), call.operand(1));
    Ok(smallvec![operand.clone(), scale.clone(), scale.clone()])
}
