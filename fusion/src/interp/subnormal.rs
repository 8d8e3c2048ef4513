//! Subnormal numbers on devices that count them as zero.
//!
//! Input: the operands or results of a call, and the element types whose subnormal numbers the
//! device flushes. Output: the same data with a zero of the same sign in place of each subnormal
//! number.
//!
//! A processor in this mode (x86: `FTZ` and `DAZ`) flushes where it computes and not where it moves
//! bits. So does [`access`]: an op that computes reads and writes subnormal numbers as zero; an op
//! that moves, negates or selects keeps them, unless they are of a type in [`PROMOTED`]. The
//! lowering holds the plugin to the same rule (`fusion/src/lower/subnormal.rs`).
//!
//! A processor flushes a result that is subnormal when it is rounded to the precision of normal
//! numbers (x86 detects tininess after rounding: Intel SDM, volume 1, 4.9.1.5). Rounded to the
//! precision of subnormal numbers, which is less, it may be the least normal number; see
//! [`underflows`].

use std::sync::Arc;

use super::number::{Bits, Elements, Store, to_f64};
use crate::dtype::{DType, DTypeSet};
use crate::literal::Literal;
use crate::op::{ComparisonType, Fusibility, OpCode, Signature};

/// Types that LLVM promotes to a longer one in registers, so that any op on them may flush.
///
/// With the instructions of `AVX512_BF16`, LLVM promotes a `bf16` that crosses basic blocks to
/// `f32`. The conversion back, `vcvtneps2bf16`, counts subnormal numbers as zero. Which loads and
/// stores share a block depends on shapes, on fusion and on the optimisation level.
pub(crate) const PROMOTED: DTypeSet = DTypeSet::of(&[DType::BF16]);

/// What an op does with subnormal numbers of a flushed type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads and writes them as they are; those of a type in [`PROMOTED`] as zero.
    Bits,
    /// Reads and writes them as zero.
    Flushes,
}

impl Access {
    /// The types whose subnormal numbers the op counts as zero, of those that the device flushes.
    pub(crate) fn flushes(self, flushed: DTypeSet) -> DTypeSet {
        match self {
            Access::Bits => flushed.and(PROMOTED),
            Access::Flushes => flushed,
        }
    }
}

/// What a call does with subnormal numbers where its types are flushed. An op with bodies leaves
/// that to their ops.
pub(crate) fn access(signature: &Signature) -> Access {
    let def = signature.def();
    if !def.bodies.is_empty() {
        return Access::Bits;
    }
    match def.code {
        OpCode::Abs if signature.operands()[0].dtype().is_complex() => Access::Flushes,
        // The parts decide, and one of the operands is the result.
        OpCode::Maximum | OpCode::Minimum if signature.operands()[0].dtype().is_complex() => Access::Bits,
        // These look at bits, move them or change the sign.
        OpCode::Abs
        | OpCode::Conj
        | OpCode::Negate
        | OpCode::Select
        | OpCode::Complex
        | OpCode::Real
        | OpCode::Imag
        | OpCode::BitcastConvert
        | OpCode::IsFinite
        | OpCode::IsInf
        | OpCode::IsPosInf
        | OpCode::IsNegInf
        | OpCode::ReducePrecision => Access::Bits,
        // The lowering sets subnormal operands apart: what rounds up to 1 must not vanish.
        OpCode::Ceil | OpCode::Floor => Access::Bits,
        // The number next to zero is subnormal.
        OpCode::NextAfter => Access::Bits,
        OpCode::Compare if signature.attrs().view().member(1) == ComparisonType::TotalOrder as u8 => {
            Access::Bits
        }
        OpCode::Convert => conversion(signature.operands()[0].dtype(), signature.attrs().view().dtype(0)),
        OpCode::Cholesky
        | OpCode::TriangularSolve
        | OpCode::Fft
        | OpCode::BatchNormGrad
        | OpCode::BatchNormInference
        | OpCode::BatchNormTraining => Access::Flushes,
        _ => match def.fusibility {
            Fusibility::Elementwise | Fusibility::Contraction => Access::Flushes,
            _ => Access::Bits,
        },
    }
}

/// A `bf16` is the upper half of an `f32`, so widening it moves bits, as does making a complex
/// number of its part, or the part of it.
fn conversion(from: DType, to: DType) -> Access {
    match (from.part(), to.part()) {
        (from, to) if from == to => Access::Bits,
        (DType::BF16, DType::F32) => Access::Bits,
        _ => Access::Flushes,
    }
}

/// A zero of the same sign in place of a subnormal number of the type, in each part of a complex
/// one.
pub(super) fn flushed_bits(dtype: DType, bits: Bits) -> Bits {
    let half = dtype.bits() / 2;
    match dtype {
        DType::BF16 => flush_u16(bits as u16).into(),
        DType::F32 => flush_u32(bits as u32).into(),
        DType::F64 => flush_u64(bits as u64).into(),
        DType::C64 => {
            Bits::from(flush_u32(bits as u32)) | Bits::from(flush_u32((bits >> half) as u32)) << half
        }
        DType::C128 => {
            Bits::from(flush_u64(bits as u64)) | Bits::from(flush_u64((bits >> half) as u64)) << half
        }
        _ => bits,
    }
}

/// The number, or a zero of its sign if it is subnormal.
#[inline(always)]
pub(super) fn flushed_f32(x: f32) -> f32 {
    f32::from_bits(flush_u32(x.to_bits()))
}

macro_rules! flushes {
    ($name:ident, $word:ty, $sign:literal, $mantissa:literal) => {
        #[inline(always)]
        fn $name(bits: $word) -> $word {
            // Without its sign, a subnormal number is below the least normal one.
            if bits & !$sign < 1 << $mantissa { bits & $sign } else { bits }
        }
    };
}

flushes!(flush_u16, u16, 0x8000, 7);
flushes!(flush_u32, u32, 0x8000_0000, 23);
flushes!(flush_u64, u64, 0x8000_0000_0000_0000, 52);

/// Below this a result that is computed in `f32` is rounded to less than the least normal number:
/// half a unit in the last place of 24 bits below it.
const LEAST_ROUNDED_F32: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);

/// A number as an `f32`, or a zero of its sign if it is subnormal.
#[inline(always)]
pub(super) fn flushed_wide(x: f64) -> f32 {
    if x.abs() < LEAST_ROUNDED_F32 { 0f32.copysign(x as f32) } else { x as f32 }
}

/// Whether a result is the least normal number of a type that can be flushed, with either sign.
fn is_least(dtype: DType, bits: Bits) -> bool {
    let (sign, least): (Bits, Bits) = match dtype {
        DType::BF16 => (1 << 15, 1 << 7),
        DType::F32 => (1 << 31, 1 << 23),
        DType::F64 => (1 << 63, 1 << 52),
        _ => return false,
    };
    bits & !sign == least
}

/// Whether the least normal number, which an op on real numbers gave, is a subnormal number to a
/// processor that flushes them. `types` are those of the operands.
fn underflows(op: OpCode, types: [DType; 2], operands: [Bits; 2], result: DType) -> bool {
    let [x, y] = [0, 1].map(|at| to_f64(types[at], operands[at]));
    // Of f64 there is no longer type: both sides are larger by a power of two.
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
    let least = if result == DType::F64 { f64::MIN_POSITIVE * SCALE } else { LEAST_ROUNDED_F32 };
    value.abs() < least
}

/// A result of a step on scalars, flushed if it [`underflows`].
pub(super) fn flushed_least(
    op: OpCode,
    types: [DType; 2],
    operands: [Bits; 2],
    dtype: DType,
    result: Bits,
) -> Bits {
    let is_float = types.iter().all(|dtype| dtype.is_float());
    match is_float && is_least(dtype, result) && underflows(op, types, operands, dtype) {
        true => result & (1 << (dtype.bits() - 1)),
        false => result,
    }
}

/// Flushes the elements of an elementwise result that [`underflows`] says are subnormal. Most results
/// are only looked at.
pub(super) fn flush_least(
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
    if !has_least(result) || !types.iter().all(|dtype| dtype.is_float()) {
        return;
    }
    let sources = [&operands[0], &operands[operands.len() - 1]].map(|data| Elements::of(data));
    let mut store = Store::of(result);
    for at in 0..result.ty().elems().get() {
        let bits = store.get(at);
        let operands = [sources[0].get(at), sources[1].get(at)];
        store.set(at, flushed_least(op, types, operands, dtype, bits));
    }
    *result = store.finish();
}

/// Whether an element is the least normal number, with either sign.
fn has_least(literal: &Literal) -> bool {
    match literal.dtype() {
        DType::BF16 => any(literal, |word| u16::from_le_bytes(word) & 0x7fff == 1 << 7),
        DType::F32 => any(literal, |word| u32::from_le_bytes(word) & 0x7fff_ffff == 1 << 23),
        DType::F64 => any(literal, |word| u64::from_le_bytes(word) << 1 == 1 << 53),
        _ => false,
    }
}

/// Whether a condition holds of any word. Without a branch for each, so that compilers make vectors
/// of it.
fn any<const SIZE: usize>(literal: &Literal, holds: impl Fn([u8; SIZE]) -> bool) -> bool {
    let words: &[[u8; SIZE]] = literal.bytes().as_chunks().0;
    words.chunks(1024).any(|words| words.iter().fold(false, |any, word| any | holds(*word)))
}

/// Rewrites the words of a literal.
fn rewrite<const SIZE: usize>(literal: &mut Literal, flush: impl Fn([u8; SIZE]) -> [u8; SIZE]) {
    let ty = literal.ty().clone();
    let mut bytes = std::mem::replace(literal, Literal::scalar(false)).into_bytes();
    bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = flush(*word));
    *literal = Literal::from_bytes(ty, bytes).expect("bug: flushing changed the size of data");
}

/// Flushes the elements of a literal of a flushed type. Most data has no subnormal number and is
/// only looked at.
pub(crate) fn flush(literal: &mut Literal) {
    if !has_subnormal(literal) {
        return;
    }
    match literal.dtype().part() {
        DType::BF16 => rewrite(literal, |word| flush_u16(u16::from_le_bytes(word)).to_le_bytes()),
        DType::F32 => rewrite(literal, |word| flush_u32(u32::from_le_bytes(word)).to_le_bytes()),
        _ => rewrite(literal, |word| flush_u64(u64::from_le_bytes(word)).to_le_bytes()),
    }
}

/// Whether flushing the type changes any of these elements.
pub(crate) fn has_subnormal(literal: &Literal) -> bool {
    match literal.dtype().part() {
        DType::BF16 => any(literal, |word| flush_u16(u16::from_le_bytes(word)) != u16::from_le_bytes(word)),
        DType::F32 => any(literal, |word| flush_u32(u32::from_le_bytes(word)) != u32::from_le_bytes(word)),
        DType::F64 => any(literal, |word| flush_u64(u64::from_le_bytes(word)) != u64::from_le_bytes(word)),
        _ => false,
    }
}

/// Flushes the results that are of these types.
pub(super) fn flush_all(flushes: DTypeSet, results: &mut [Literal]) {
    let is_flushed = |result: &&mut Literal| flushes.contains(result.dtype().part());
    results.iter_mut().filter(is_flushed).for_each(flush);
}

/// The operands as an op that flushes reads them; `None` where they are the same.
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
