//! Ops that produce data: constants, `iota`, random bits.

use smallvec::smallvec;

use super::dynamic::sizes_fit;
use crate::dtype::{DType, DTypeSet};
use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::limits::MAX_CONSTANT_BYTES;
use crate::op::def::{Call, one};
use crate::op::enums::{RngAlgorithm, RngDistribution};
use crate::shape::TensorType;

/// `constant`: the data is an attribute, hence part of the key.
pub(in crate::op) fn constant(call: &Call<'_>) -> Result<Results, OpError> {
    let ty = call.attr().dense(0).ty();
    if ty.bytes().0 > MAX_CONSTANT_BYTES {
        return Err(call
            .error(
                OpErrorKind::Limit,
                format!("the constant {ty} has {}", ty.bytes()),
                format!(
                    "a constant may have at most {MAX_CONSTANT_BYTES} bytes, because it is part of the key"
                ),
            )
            .hint("pass it as host data"));
    }
    Ok(one(ty.clone()))
}

/// `iota`: counts along one dimension.
pub(in crate::op) fn iota(call: &Call<'_>) -> Result<Results, OpError> {
    let ty = TensorType::new(call.attr().dtype(0), call.attr().shape(1).clone());
    call.axis("iota_dimension", call.attr().int(2), ty.rank())?;
    if !DTypeSet::NUMBER.contains(ty.dtype()) {
        return Err(call.error(
            OpErrorKind::DType,
            format!("the result is {ty}"),
            format!("its element type must be {}", DTypeSet::NUMBER),
        ));
    }
    Ok(one(ty))
}

/// Types of 8 to 64 random bits.
pub const RANDOM_BITS: DTypeSet = DTypeSet::WIDE_INT.or(DTypeSet::WIDE_FLOAT);

/// `rng_bit_generator`: takes a state; returns the next state and uniformly distributed bits.
pub(in crate::op) fn rng_bit_generator(call: &Call<'_>) -> Result<Results, OpError> {
    let state = call.operand(0);
    let words: &[u64] = match call.attr().member(0) {
        code if code == RngAlgorithm::ThreeFry as u8 => &[2],
        code if code == RngAlgorithm::Philox as u8 => &[2, 3],
        _ => &[2, 3],
    };
    if state.dtype() != DType::U64 || state.rank() != 1 || !words.contains(&state.dims()[0]) {
        return Err(call.error(
            OpErrorKind::DType,
            format!("the state is {state}"),
            format!("it must be u64 with {words:?} elements"),
        ));
    }
    let output = TensorType::new(call.attr().dtype(1), call.attr().shape(2).clone());
    if !RANDOM_BITS.contains(output.dtype()) {
        return Err(call
            .error(
                OpErrorKind::DType,
                format!("the output is {output}"),
                format!("its element type must be {RANDOM_BITS}"),
            )
            .hint("draw unsigned bits and convert them"));
    }
    Ok(smallvec![state.clone(), output])
}

/// `rng`: `a` and `b` are the parameters of the distribution; the third operand repeats the shape.
pub(in crate::op) fn rng(call: &Call<'_>) -> Result<Results, OpError> {
    let normal = call.attr().member(0) == RngDistribution::Normal as u8;
    call.dtype_in(0, if normal { DTypeSet::WIDE_FLOAT } else { call.def.dtypes })?;
    call.same_dtype(1, 0)?;
    call.scalar(0)?;
    call.scalar(1)?;
    let shape = call.attr().shape(1);
    sizes_fit(call, 2, shape.rank(), "dimension of the result")?;
    Ok(one(TensorType::new(call.operand(0).dtype(), shape.clone())))
}
