//! Flushes subnormal numbers of the operands and results of a call, for devices that flush them.
//!
//! Input: the data of operands or results, and the types that the call flushes ([`access`]).
//! Output: the same data with each subnormal number replaced by a zero of the same sign.
//!
//! A processor flushes a result that is subnormal after rounding to the precision of normal numbers
//! (x86 detects tininess after rounding: Intel SDM, volume 1, 4.9.1.5). Rounded to the lower
//! precision of subnormal numbers, the same result may be the smallest normal number; see
//! [`underflows`].
//!
//! [`access`]: fuseline_fusion::subnormal::access

use std::sync::Arc;

use fuseline_fusion::element::{Bits, Elements, Store, to_f64};
use fuseline_fusion::subnormal::{flush, has_subnormal};
use fuseline_fusion::{DType, DTypeSet, Literal, OpCode, Signature};

/// Flushes the results of these types.
pub(super) fn flush_all(flushes: DTypeSet, results: &mut [Literal]) {
    let is_flushed = |result: &&mut Literal| flushes.contains(result.dtype().part());
    results.iter_mut().filter(is_flushed).for_each(flush);
}

/// The operands as a flushing op reads them; `None` if nothing changes.
pub(super) fn flushed(flushes: DTypeSet, operands: &[Arc<Literal>]) -> Option<Vec<Arc<Literal>>> {
    let is_changed =
        |operand: &Arc<Literal>| flushes.contains(operand.dtype().part()) && has_subnormal(operand);
    if flushes == DTypeSet::NONE || !operands.iter().any(is_changed) {
        return None;
    }
    let of = |operand: &Arc<Literal>| match is_changed(operand) {
        true => {
            let mut literal = Literal::clone(operand);
            flush(&mut literal);
            Arc::new(literal)
        }
        false => operand.clone(),
    };
    Some(operands.iter().map(of).collect())
}

/// The smallest magnitude that rounds to a normal `f32` with 24 bits of precision: half a unit in
/// the last place below the smallest normal number.
const MIN_ROUNDED_F32: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);

/// Rounds a number to `f32`. A result that would be subnormal becomes a zero of the same sign.
#[inline(always)]
pub(super) fn round_and_flush(x: f64) -> f32 {
    if x.abs() < MIN_ROUNDED_F32 { 0f32.copysign(x as f32) } else { x as f32 }
}

/// Whether a number is the smallest normal one of a type that can be flushed, with either sign.
fn is_min_positive(dtype: DType, bits: Bits) -> bool {
    let (sign, least): (Bits, Bits) = match dtype {
        DType::BF16 => (1 << 15, 1 << 7),
        DType::F32 => (1 << 31, 1 << 23),
        DType::F64 => (1 << 63, 1 << 52),
        _ => return false,
    };
    bits & !sign == least
}

/// Whether a processor that flushes subnormal numbers returns zero, although the interpreter has
/// rounded the result of an op on real numbers up to the smallest normal number. `types` are those
/// of the operands.
fn underflows(op: OpCode, types: [DType; 2], operands: [Bits; 2], result: DType) -> bool {
    let [x, y] = [0, 1].map(|at| to_f64(types[at], operands[at]));
    // No type is longer than f64, so both sides of the comparison are scaled by a power of two.
    const SCALE: f64 = (1u128 << 64) as f64;
    let (small, large) = if x.abs() < y.abs() { (x, y) } else { (y, x) };
    let value = match (op, result) {
        (OpCode::Multiply, DType::F64) => small * SCALE * large,
        (OpCode::Square, DType::F64) => x * SCALE * x,
        (OpCode::Divide, DType::F64) => x * SCALE / y,
        (OpCode::Multiply, _) => x * y,
        (OpCode::Square, _) => x * x,
        (OpCode::Divide, _) => x / y,
        (OpCode::Convert, DType::F32 | DType::BF16) => x,
        _ => return false,
    };
    let least = if result == DType::F64 { f64::MIN_POSITIVE * SCALE } else { MIN_ROUNDED_F32 };
    value.abs() < least
}

/// The result of an op on scalars, or a zero of its sign if it [`underflows`].
pub(super) fn flush_underflow(
    op: OpCode,
    types: [DType; 2],
    operands: [Bits; 2],
    dtype: DType,
    result: Bits,
) -> Bits {
    let is_float = types.iter().all(|dtype| dtype.is_float());
    match is_float && is_min_positive(dtype, result) && underflows(op, types, operands, dtype) {
        true => result & (1 << (dtype.bits() - 1)),
        false => result,
    }
}

/// Flushes the elements of an elementwise result that [`underflows`]. Most results have none and
/// are only scanned.
pub(super) fn flush_underflows(
    signature: &Signature,
    flushes: DTypeSet,
    operands: &[Arc<Literal>],
    results: &mut [Literal],
) {
    let op = signature.op();
    let may_round = matches!(op, OpCode::Multiply | OpCode::Square | OpCode::Divide | OpCode::Convert);
    let [result] = results else { return };
    let dtype = result.dtype();
    if !may_round || !flushes.contains(dtype) {
        return;
    }
    let types = [operands[0].dtype(), operands[operands.len() - 1].dtype()];
    if !has_min_positive(result) || !types.iter().all(|dtype| dtype.is_float()) {
        return;
    }
    let sources = [&operands[0], &operands[operands.len() - 1]].map(|data| Elements::of(data));
    let mut store = Store::of(result);
    for at in 0..result.ty().elems().get() {
        let bits = store.get(at);
        let operands = [sources[0].get(at), sources[1].get(at)];
        store.set(at, flush_underflow(op, types, operands, dtype, bits));
    }
    *result = store.finish();
}

/// Whether any element is the smallest normal number, with either sign.
fn has_min_positive(literal: &Literal) -> bool {
    match literal.dtype() {
        DType::BF16 => any(literal, |word| u16::from_le_bytes(word) & 0x7fff == 1 << 7),
        DType::F32 => any(literal, |word| u32::from_le_bytes(word) & 0x7fff_ffff == 1 << 23),
        DType::F64 => any(literal, |word| u64::from_le_bytes(word) << 1 == 1 << 53),
        _ => false,
    }
}

/// Whether a condition holds for any word. The inner loop has no branch, so that compilers
/// vectorize it.
fn any<const SIZE: usize>(literal: &Literal, holds: impl Fn([u8; SIZE]) -> bool) -> bool {
    let words: &[[u8; SIZE]] = literal.bytes().as_chunks().0;
    words.chunks(1024).any(|words| words.iter().fold(false, |any, word| any | holds(*word)))
}
