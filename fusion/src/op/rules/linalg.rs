//! Matrix factorisations and normalisation.

use smallvec::smallvec;

use crate::error::OpError;
use crate::op::call::{Call, Results, one};

/// Checks that the last two dimensions of operand 0 are those of a square matrix; returns its size.
fn square(call: &Call<'_>) -> Result<u64, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    let a = call.operand(0);
    match *a.dims() {
        [.., rows, columns] if rows == columns => Ok(rows),
        _ => Err(call.shape_error(
            format!("a has shape {}", a.shape()),
            "it must have two dimensions or more, the last two of them equal",
        )),
    }
}

/// `cholesky`: the triangular factor of each matrix, of the matrix's type.
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
            format!("a has shape {}, b has shape {}", a.shape(), b.shape()),
            "they must agree in all dimensions but the last two",
        ));
    }
    let left = call.attr().bool(0);
    let (along, other) = if left { (batch, batch + 1) } else { (batch + 1, batch) };
    if b.dims()[along] != size {
        let error = call.shape_error(
            format!("a has {size} rows and columns, dimension {along} of b is {}", b.dims()[along]),
            if left {
                "with left_side the rows of b must be as many"
            } else {
                "the columns of b must be as many"
            },
        );
        return Err(if b.dims()[other] == size {
            error.hint(format!("did you mean left_side = {}, or to transpose b?", !left))
        } else {
            error
        });
    }
    Ok(one(b.clone()))
}

/// Checks operand 0 of a normalisation, that the operands `whole` have its type, and that the others have one element
/// per feature.
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
                    "it must have one element per feature, and dimension {axis} of the operand is {features}"
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

/// `batch_norm_training` (operand, scale, offset) and `batch_norm_grad` (operand, scale, mean, variance, gradient of the
/// output): a result like the operand and two like the scale.
pub(in crate::op) fn batch_norm(call: &Call<'_>) -> Result<Results, OpError> {
    features(call, &[4])?;
    let (operand, scale) = (call.operand(0), call.operand(1));
    Ok(smallvec![operand.clone(), scale.clone(), scale.clone()])
}
