//! Ops whose result elements depend on the operand elements at the same position.

use crate::DType;
use crate::dtype::{DTypeClass, DTypeSet};
use crate::error::{OpError, OpErrorKind};
use crate::ir::{OpCode, Results};
use crate::op::def::{Call, one};
use crate::op::enums::{Comparison, ComparisonType};

/// One operand of the row's types. The result has the same type, except for `abs` of complex
/// numbers.
pub(in crate::op) fn unary(call: &Call<'_>) -> Result<Results, OpError> {
    if call.def.code == OpCode::Abs && call.operand(0).dtype().is_complex() {
        return part(call);
    }
    call.dtype_in(0, call.def.dtypes)?;
    Ok(one(call.operand(0).clone()))
}

/// One operand of the row's types. The result has the type of its parts.
pub(in crate::op) fn part(call: &Call<'_>) -> Result<Results, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    Ok(one(call.operand(0).with_dtype(call.operand(0).dtype().part())))
}

/// Two floats of one type. The result is the complex type with these parts.
pub(in crate::op) fn complex(call: &Call<'_>) -> Result<Results, OpError> {
    binary(call)?;
    let dtype = call.operand(0).dtype();
    Ok(one(call.operand(0).with_dtype(dtype.complex().unwrap_or(dtype))))
}

/// One float operand. The result is `bool`.
pub(in crate::op) fn predicate(call: &Call<'_>) -> Result<Results, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    Ok(one(call.operand(0).with_dtype(DType::Bool)))
}

/// Two operands of one type. The result has the same type.
pub(in crate::op) fn binary(call: &Call<'_>) -> Result<Results, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    call.same_dtype(1, 0)?;
    call.same_shape(1, 0)?;
    Ok(one(call.operand(0).clone()))
}

/// `compare`: two operands of one type. The result is `bool`.
pub(in crate::op) fn compare(call: &Call<'_>) -> Result<Results, OpError> {
    call.same_dtype(1, 0)?;
    call.same_shape(1, 0)?;
    let order = call.attr().member(1);
    let fits: &[ComparisonType] = match call.operand(0).dtype().class() {
        DTypeClass::Bool | DTypeClass::Unsigned => &[ComparisonType::Unsigned],
        DTypeClass::Signed => &[ComparisonType::Signed],
        DTypeClass::Float => &[ComparisonType::Float, ComparisonType::TotalOrder],
        DTypeClass::Complex => &[ComparisonType::Float],
    };
    let direction = Comparison::ALL[usize::from(call.attr().member(0))];
    if call.operand(0).dtype().is_complex() && !matches!(direction, Comparison::Eq | Comparison::Ne) {
        return Err(call
            .attr_error(
                format!("comparison_direction is {} for {}", call.attr_text(0), call.operand(0).dtype()),
                "complex numbers have no order: they can only be compared by EQ and NE",
            )
            .hint("compare their real parts, imaginary parts or absolute values"));
    }
    if !fits.iter().any(|&fit| fit as u8 == order) {
        let fits = fits.iter().map(|&fit| call.def.attrs[1].kind.text(&fit.into()).to_string());
        return Err(call.attr_error(
            format!("compare_type is {} for {}", call.attr_text(1), call.operand(0).dtype()),
            format!("it must be {}", fits.collect::<Vec<_>>().join(" or ")),
        ));
    }
    Ok(one(call.operand(0).with_dtype(DType::Bool)))
}

/// `select`: the element of `on_true` where `pred` is true, else that of `on_false`.
pub(in crate::op) fn select(call: &Call<'_>) -> Result<Results, OpError> {
    call.dtype_in(0, DTypeSet::BOOL)?;
    call.same_dtype(2, 1)?;
    call.same_shape(2, 1)?;
    if call.operand(0).rank() != 0 {
        call.same_shape(0, 1)?;
    }
    Ok(one(call.operand(1).clone()))
}

/// `clamp`: `operand` limited to `min` and `max`, which may be scalars.
pub(in crate::op) fn clamp(call: &Call<'_>) -> Result<Results, OpError> {
    for bound in [0, 2] {
        call.same_dtype(bound, 1)?;
        if call.operand(bound).rank() != 0 {
            call.same_shape(bound, 1).map_err(|error| {
                error.hint(format!("make {} a scalar, or give it the same shape", call.name(bound)))
            })?;
        }
    }
    Ok(one(call.operand(1).clone()))
}

/// `convert`: the same values in another element type.
pub(in crate::op) fn convert(call: &Call<'_>) -> Result<Results, OpError> {
    Ok(one(call.operand(0).with_dtype(call.attr().dtype(0))))
}

/// `reduce_precision`: rounds to fewer exponent and mantissa bits.
pub(in crate::op) fn reduce_precision(call: &Call<'_>) -> Result<Results, OpError> {
    call.dtype_in(0, call.def.dtypes)?;
    let (exponent, mantissa) = (call.attr().int(0), call.attr().int(1));
    if exponent < 1 || mantissa < 0 {
        return Err(call.attr_error(
            format!("exponent_bits is {exponent} and mantissa_bits is {mantissa}"),
            "there must be at least 1 exponent bit and 0 mantissa bits",
        ));
    }
    Ok(one(call.operand(0).clone()))
}

/// `bitcast_convert`: the same bits as another element type. Between types of different widths the
/// last dimension indexes the parts: `f32[n]` is `u8[n, 4]`.
pub(in crate::op) fn bitcast_convert(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    let to = call.attr().dtype(0);
    let (from_bits, to_bits) = (operand.dtype().bits(), to.bits());
    if operand.dtype().is_complex() != to.is_complex() {
        return Err(call
            .error(
                OpErrorKind::DType,
                format!("the operand is {operand} and the requested element type is {to}"),
                "complex numbers can only be bit-cast to complex numbers",
            )
            .hint("take the real and the imaginary part first"));
    }
    if from_bits == to_bits {
        return Ok(one(operand.with_dtype(to)));
    }
    let mut dims = operand.dims().to_vec();
    if from_bits > to_bits {
        dims.push(u64::from(from_bits / to_bits));
        return Ok(one(call.ty(to, &dims)?));
    }
    let parts = u64::from(to_bits / from_bits);
    if dims.pop() == Some(parts) {
        return Ok(one(call.ty(to, &dims)?));
    }
    Err(call.error(
        OpErrorKind::Shape,
        format!("the operand is {operand} and the requested element type is {to}"),
        format!(
            "{parts} elements of {} make one {to}, so the last dimension must be {parts}",
            operand.dtype()
        ),
    ))
}
