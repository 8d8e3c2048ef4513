//! Legalizes ops on the bits of numbers.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Builder, Lowered, complex, expanded, in_f32, unsigned};
use crate::attr::Attrs;
use crate::dtype::{DType, DTypeClass};
use crate::error::OpError;
use crate::float::FloatFormat;
use crate::ir::{Body, OpCode, Ref};
use crate::literal::Literal;
use crate::op::attrs;
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::shape::{Shape, TensorType};

impl Builder {
    /// Whether each element of a float is NaN: without the sign, its bits are above those of
    /// infinity. XLA would misfold a comparison of a constant with itself.
    pub(super) fn is_nan(&mut self, value: Ref, ty: &TensorType) -> Result<Ref, OpError> {
        let word = unsigned(ty.dtype().bits());
        let bits = self.op(OpCode::BitcastConvert, attrs::convert(word), &[value])?;
        let one = self.word(1, word, ty.shape())?;
        let magnitude = self.op(OpCode::ShiftLeft, Attrs::none(), &[bits, one])?;
        let edge = self.word(infinity_bits(ty.dtype()) << 1, word, ty.shape())?;
        self.op(OpCode::Compare, attrs::compare_for(Comparison::Gt, word), &[magnitude, edge])
    }
}

/// Stored mantissa bits of a float type.
fn mantissa_bits(dtype: DType) -> u32 {
    dtype.float_format().map_or(0, |format| format.mantissa)
}

/// Bits of positive infinity, for a float type that has one.
fn infinity_bits(dtype: DType) -> u64 {
    dtype.float_format().and_then(FloatFormat::infinity).unwrap_or(0)
}

/// Unary ops that XLA computes wrongly.
///
/// It computes some functions of `f16` from other functions and rounds each step. That leaves
/// errors of up to 3 units in the last place (`logistic`), and zero where the quotient of two
/// rounded numbers is subnormal. Computed in `f32`, they round once.
pub(in crate::op) fn unary(call: &Call<'_>) -> Lowered {
    match call.def.code {
        OpCode::Cbrt | OpCode::ExponentialMinusOne | OpCode::LogPlusOne | OpCode::Logistic
            if call.operand(0).dtype() == DType::F16 =>
        {
            expanded(in_f32(call, DType::F16))
        }
        // Floats of 8 bits and fewer are computed in longer types, where their subnormal numbers
        // are normal.
        OpCode::Ceil | OpCode::Floor if !call.operand(0).dtype().is_small_float() => {
            expanded(separate_subnormals(call))
        }
        _ if call.operand(0).dtype().is_complex() => complex::unary(call),
        OpCode::CountLeadingZeros if call.operand(0).dtype().class() == DTypeClass::Signed => {
            expanded(zeros_of_words(call))
        }
        _ => Lowered::Itself,
    }
}

/// XLA's folder sign-extends a negative constant to 64 bits before it counts leading zeros, and
/// returns -32 for 32 bits. An unsigned constant is zero-extended.
fn zeros_of_words(call: &Call<'_>) -> Result<Lowered, OpError> {
    let dtype = call.operand(0).dtype();
    let (mut graph, params) = Builder::of(call);
    let word = attrs::convert(unsigned(dtype.bits()));
    let bits = graph.op(OpCode::BitcastConvert, word, &params)?;
    let zeros = graph.op(OpCode::CountLeadingZeros, Attrs::none(), &[bits])?;
    let result = graph.op(OpCode::BitcastConvert, attrs::convert(dtype), &[zeros])?;
    Ok(graph.returning(&[result]))
}

/// Corrects subnormal operands. XLA's CPU backend reads them as zero. For most ops the error is a
/// subnormal number; for `ceil` of a positive and `floor` of a negative one it is 1. Their bits
/// identify them.
fn separate_subnormals(call: &Call<'_>) -> Result<Lowered, OpError> {
    let operand = call.operand(0);
    let (dtype, shape) = (operand.dtype(), operand.shape());
    let word = unsigned(dtype.bits());
    let mantissa = mantissa_bits(dtype);
    // The subnormal numbers of the relevant sign lie between two bit patterns. After subtracting
    // the first pattern, one comparison finds them.
    let (smallest, edge) = match call.def.code {
        OpCode::Ceil => (1, 1.0),
        _ => ((1u64 << (dtype.bits() - 1)) + 1, -1.0),
    };
    let (mut graph, params) = Builder::of(call);
    let rounded = graph.op(call.def.code, Attrs::none(), &params)?;
    let bits = graph.op(OpCode::BitcastConvert, attrs::convert(word), &params)?;
    let first = graph.word(smallest, word, shape)?;
    let count = graph.word((1u64 << mantissa) - 1, word, shape)?;
    let offset = graph.op(OpCode::Subtract, Attrs::none(), &[bits, first])?;
    let compare = attrs::compare_for(Comparison::Lt, word);
    let subnormal = graph.op(OpCode::Compare, compare, &[offset, count])?;
    let edge = graph.splat(edge, dtype, shape)?;
    let result = graph.op(OpCode::Select, Attrs::none(), &[subnormal, edge, rounded])?;
    Ok(graph.returning(&[result]))
}

/// Without mantissa bits NaN has no representation, so the specification returns an infinity. XLA's
/// CPU backend returns NaN.
pub(in crate::op) fn reduce_precision(call: &Call<'_>) -> Lowered {
    if call.attr().int(1) > 0 { Lowered::Itself } else { expanded(nan_to_infinity(call)) }
}

fn nan_to_infinity(call: &Call<'_>) -> Result<Lowered, OpError> {
    let operand = call.operand(0);
    let (dtype, shape) = (operand.dtype(), operand.shape());
    let word = unsigned(dtype.bits());
    let (mut graph, params) = Builder::of(call);
    let reduced = graph.op(OpCode::ReducePrecision, call.attrs.clone(), &params)?;
    let is_nan = graph.is_nan(params[0], operand)?;
    let bits = graph.op(OpCode::BitcastConvert, attrs::convert(word), &params)?;
    let sign_bit = graph.word(1u64 << (dtype.bits() - 1), word, shape)?;
    let sign = graph.op(OpCode::And, Attrs::none(), &[bits, sign_bit])?;
    let infinity = graph.word(infinity_bits(dtype), word, shape)?;
    let signed = graph.op(OpCode::Or, Attrs::none(), &[sign, infinity])?;
    let signed = graph.op(OpCode::BitcastConvert, attrs::convert(dtype), &[signed])?;
    let result = graph.op(OpCode::Select, Attrs::none(), &[is_nan, signed, reduced])?;
    Ok(graph.returning(&[result]))
}

/// `bitcast_convert` between an element of fewer than 8 bits, a *digit*, and a longer one packs or
/// unpacks bits. XLA's CPU backend stores a `bool` as a byte and crashes on this op (a segmentation
/// fault in the compiler, API 0.81). Digits of 2 and 4 bits are carried in bytes
/// ([`crate::lower`]).
pub(in crate::op) fn bitcast_convert(call: &Call<'_>) -> Lowered {
    let (from, to) = (call.operand(0).dtype(), call.attr().dtype(0));
    match from.bits().cmp(&to.bits()) {
        _ if from.is_complex() => expanded(complex::bitcast(call)),
        Ordering::Less if from.bits() < 8 => expanded(pack_bits(call, to)),
        Ordering::Greater if to.bits() < 8 => expanded(unpack_bits(call, to)),
        Ordering::Less | Ordering::Greater => expanded(bitcast_by_parts(call)),
        Ordering::Equal => Lowered::Itself,
    }
}

/// Hides one of two bitcasts. XLA's simplifier merges them, and its verifier rejects the result if
/// both change the width: `f64` as `i8`s as `u64`, or a lifted `f64`, which arrives as two words,
/// as `i8`s. The simplifier does not look through a barrier.
fn bitcast_by_parts(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let hidden = graph.op(OpCode::OptimizationBarrier, Attrs::none(), &params)?;
    let result = graph.op(OpCode::BitcastConvert, call.attrs.clone(), &[hidden])?;
    Ok(graph.returning(&[result]))
}

impl Builder {
    /// For each position along a dimension, the offset in bits of its digit.
    fn places(&mut self, word: DType, shape: &Shape, axis: usize, bits: u32) -> Result<Ref, OpError> {
        let index = self.op(OpCode::Iota, attrs::iota(word, shape.clone(), axis as i64), &[])?;
        if bits == 1 {
            return Ok(index);
        }
        let bits = self.word(bits.into(), word, shape)?;
        self.op(OpCode::Multiply, Attrs::none(), &[index, bits])
    }

    /// Reinterprets the bits as another type of the same width.
    fn cast(&mut self, value: Ref, from: DType, to: DType) -> Result<Ref, OpError> {
        if from == to { Ok(value) } else { self.op(OpCode::BitcastConvert, attrs::convert(to), &[value]) }
    }
}

/// Packs digits along the last dimension, lowest first, into one number.
fn pack_bits(call: &Call<'_>, to: DType) -> Result<Lowered, OpError> {
    let (from, shape) = (call.operand(0).dtype(), call.operand(0).shape());
    let last = shape.rank() - 1;
    let word = unsigned(to.bits());
    let (mut graph, params) = Builder::of(call);
    let digits = match from {
        DType::Bool => params[0],
        _ => graph.cast(params[0], from, unsigned(from.bits()))?,
    };
    let digits = graph.op(OpCode::Convert, attrs::convert(word), &[digits])?;
    let places = graph.places(word, shape, last, from.bits())?;
    let placed = graph.op(OpCode::ShiftLeft, Attrs::none(), &[digits, places])?;
    let scalar = TensorType::scalar(word);
    let zero = graph.op(OpCode::Constant, attrs::constant(Arc::new(Literal::zeros(scalar.clone()))), &[])?;
    let or = Arc::new(Body::binary(OpCode::Or, scalar)?);
    let along = attrs::dimensions(&[last as i64]);
    let packed = graph.0.push(OpCode::Reduce, along, &[or], &[placed, zero])?[0];
    let result = graph.cast(packed, word, to)?;
    Ok(graph.returning(&[result]))
}

/// Unpacks a number into digits along a new last dimension, lowest first.
fn unpack_bits(call: &Call<'_>, to: DType) -> Result<Lowered, OpError> {
    let operand = call.operand(0);
    let word = unsigned(operand.dtype().bits());
    let dims = [operand.dims(), &[u64::from(operand.dtype().bits() / to.bits())]].concat();
    let shape = call.ty(to, &dims)?.shape().clone();
    let kept: Vec<i64> = (0..operand.rank() as i64).collect();
    let (mut graph, params) = Builder::of(call);
    let words = graph.cast(params[0], operand.dtype(), word)?;
    let repeated =
        graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &kept), &[words])?;
    let places = graph.places(word, &shape, operand.rank(), to.bits())?;
    let moved = graph.op(OpCode::ShiftRightLogical, Attrs::none(), &[repeated, places])?;
    let result = match to {
        DType::Bool => {
            let one = graph.word(1, word, &shape)?;
            let low = graph.op(OpCode::And, Attrs::none(), &[moved, one])?;
            graph.op(OpCode::Compare, attrs::compare_for(Comparison::Eq, word), &[low, one])?
        }
        // Converting to the digit's type keeps the low bits.
        _ => {
            let digit = unsigned(to.bits());
            let digits = graph.op(OpCode::Convert, attrs::convert(digit), &[moved])?;
            graph.cast(digits, digit, to)?
        }
    };
    Ok(graph.returning(&[result]))
}
