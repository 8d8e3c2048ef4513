//! Ops whose result elements depend on the operand elements at the same position.

use fuseline_fusion::op::{Comparison, ComparisonType, attrs};
use fuseline_fusion::{Attrs, DType, DTypeSet, OpCode, TensorType};

use super::{Domain, Sample, SampleOperand, Sampler};

pub(crate) fn unary(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let domain = match sampler.def.code {
        _ if !sampler.portable() => Domain::Any,
        OpCode::Log | OpCode::LogPlusOne | OpCode::Rsqrt | OpCode::Sqrt => Domain::Positive,
        OpCode::Digamma | OpCode::Lgamma => Domain::Positive,
        OpCode::Acos | OpCode::Asin | OpCode::Atanh | OpCode::ErfInv => Domain::Unit,
        OpCode::Acosh => Domain::AboveOne,
        _ => Domain::Any,
    };
    let (operand, _) = sampler.operand_in(sampler.row_dtypes(), 0, domain)?;
    Some(Sample::plain([operand], Attrs::none()))
}

pub(crate) fn binary(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let op = sampler.def.code;
    let base = match op {
        OpCode::Power if sampler.portable() => Domain::Positive,
        OpCode::Zeta if sampler.portable() => Domain::AboveOne,
        OpCode::Polygamma if sampler.portable() || !sampler.rarely(4) => Domain::Exponent,
        _ => Domain::Any,
    };
    let (lhs, ty) = sampler.operand_in(sampler.row_dtypes(), 0, base)?;
    let domain = match op {
        OpCode::ShiftLeft | OpCode::ShiftRightArithmetic | OpCode::ShiftRightLogical
            if !sampler.rarely(4) =>
        {
            Domain::Amount
        }
        // Most other exponents are negative, or give 0.
        OpCode::Power if ty.dtype().is_int() && !sampler.rarely(3) => Domain::Exponent,
        OpCode::Zeta | OpCode::Polygamma if sampler.portable() => Domain::Positive,
        OpCode::Divide | OpCode::Remainder if sampler.portable() && !sampler.rarely(3) => Domain::Positive,
        _ => Domain::Any,
    };
    let rhs = sampler.operand_like(&ty, domain);
    Some(Sample::plain([lhs, rhs], Attrs::none()))
}

pub(crate) fn compare(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (lhs, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let rhs = sampler.operand_like(&ty, Domain::Any);
    let directions = if ty.dtype().is_complex() { &Comparison::ALL[..2] } else { &Comparison::ALL };
    let direction = sampler.one_of(directions)?;
    let attrs = if ty.dtype().is_float() && sampler.rarely(2) {
        attrs::compare(direction, ComparisonType::TotalOrder)
    } else {
        attrs::compare_for(direction, ty.dtype())
    };
    Some(Sample::plain([lhs, rhs], attrs))
}

/// An operand that is either a scalar or of the shape of `ty`.
fn scalar_or_like(sampler: &mut Sampler<'_>, dtype: DType, ty: &TensorType) -> Option<SampleOperand> {
    let dims = if sampler.rarely(3) { &[] } else { ty.dims() };
    sampler.operand_of(dtype, dims)
}

pub(crate) fn select(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (on_true, ty) = sampler.operand(DTypeSet::ANY, 0)?;
    let on_false = sampler.operand_like(&ty, Domain::Any);
    let pred = scalar_or_like(sampler, DType::Bool, &ty)?;
    Some(Sample::plain([pred, on_true, on_false], Attrs::none()))
}

pub(crate) fn clamp(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let min = scalar_or_like(sampler, ty.dtype(), &ty)?;
    let max = scalar_or_like(sampler, ty.dtype(), &ty)?;
    Some(Sample::plain([min, operand, max], Attrs::none()))
}

pub(crate) fn convert(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, _) = sampler.operand(sampler.row_dtypes(), 0)?;
    let to = sampler.dtype_of(DTypeSet::ANY)?;
    Some(Sample::plain([operand], attrs::convert(to)))
}

pub(crate) fn bitcast_convert(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let to = sampler.dtype_of(DTypeSet::ANY)?;
    let alike = if to.is_complex() { DTypeSet::COMPLEX } else { DTypeSet::ORDERED };
    let (mut operand, ty) = sampler.operand(sampler.row_dtypes().and(alike), 0)?;
    let (from_bits, to_bits) = (ty.dtype().bits(), to.bits());
    if from_bits < to_bits {
        let parts = u64::from(to_bits / from_bits);
        if ty.dims().last() != Some(&parts) {
            let dims = [ty.dims(), &[parts]].concat();
            operand = sampler.operand_of(ty.dtype(), &dims)?;
        }
    }
    Some(Sample::plain([operand], attrs::convert(to)))
}

pub(crate) fn reduce_precision(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, _) = sampler.operand(sampler.row_dtypes(), 0)?;
    let widest = if sampler.portable() { 0 } else { 2 };
    let most = i32::MAX.into();
    let exponent = [8, 5, 4, 2, 11, 3, 1, 6, most, 64];
    let mantissa = [7, 10, 3, 23, 1, 0, 52, 22, most, 64];
    let exponent = sampler.one_of(&exponent[..8 + widest])?;
    let mantissa = sampler.one_of(&mantissa[..8 + widest])?;
    Some(Sample::plain([operand], attrs::reduce_precision(exponent, mantissa)))
}
