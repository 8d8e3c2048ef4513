//! Subnormal numbers on devices that flush them to zero.
//!
//! Input: a call, or the data of a value. Output: how the call treats subnormal numbers of the
//! types that the device flushes, or the same data with each subnormal number replaced by a zero of
//! the same sign.
//!
//! A processor in this mode (x86: `FTZ` and `DAZ`) flushes when it computes, not when it moves
//! bits. [`access`] follows it: an op that computes reads and writes subnormal numbers as zero; an
//! op that moves, negates or selects keeps them, unless their type is in [`PROMOTED`]. The lowering
//! makes the plugin follow the same rule (`fusion/src/lower/subnormal.rs`).

use crate::dtype::{DType, DTypeSet};
use crate::element::Bits;
use crate::ir::{OpCode, Signature};
use crate::literal::Literal;
use crate::op::{ComparisonType, Fusibility};

/// Types that LLVM promotes to a longer one in registers, so any op on them may flush.
///
/// With the instructions of `AVX512_BF16`, LLVM promotes a `bf16` that crosses basic blocks to
/// `f32`. The conversion back, `vcvtneps2bf16`, flushes subnormal numbers. Which loads and stores
/// share a block depends on shapes, on fusion and on the optimization level.
pub const PROMOTED: DTypeSet = DTypeSet::of(&[DType::BF16]);

/// How an op treats subnormal numbers of a flushed type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Keeps them, except for types in [`PROMOTED`], whose subnormal numbers are read and written
    /// as zero.
    Bits,
    /// Reads and writes them as zero.
    Flushes,
}

impl Access {
    /// The flushed types whose subnormal numbers the op treats as zero.
    #[inline]
    #[must_use]
    pub fn flushes(self, flushed: DTypeSet) -> DTypeSet {
        match self {
            Access::Bits => flushed.and(PROMOTED),
            Access::Flushes => flushed,
        }
    }
}

/// How a call treats subnormal numbers of flushed types. For an op with bodies, their ops decide.
#[must_use]
pub fn access(signature: &Signature) -> Access {
    let def = signature.def();
    if !def.bodies.is_empty() {
        return Access::Bits;
    }
    match def.code {
        OpCode::Abs if signature.operands()[0].dtype().is_complex() => Access::Flushes,
        // Compares the parts and returns one of the operands.
        OpCode::Maximum | OpCode::Minimum if signature.operands()[0].dtype().is_complex() => Access::Bits,
        // These inspect bits, move them or change the sign.
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
        // The lowering handles subnormal operands separately, because a number that rounds up to 1
        // must not be flushed.
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

/// A `bf16` is the upper half of an `f32`, so widening it only moves bits. So does making a complex
/// number from a part, or taking a part.
fn conversion(from: DType, to: DType) -> Access {
    match (from.part(), to.part()) {
        (from, to) if from == to => Access::Bits,
        (DType::BF16, DType::F32) => Access::Bits,
        _ => Access::Flushes,
    }
}

/// Replaces a subnormal number of the type by a zero of the same sign, in each part of a complex
/// number.
#[inline]
#[must_use]
pub fn flushed_bits(dtype: DType, bits: Bits) -> Bits {
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

/// Replaces a subnormal number by a zero of the same sign.
#[inline(always)]
#[must_use]
pub fn flushed_f32(x: f32) -> f32 {
    f32::from_bits(flush_u32(x.to_bits()))
}

macro_rules! flushes {
    ($name:ident, $word:ty, $sign:literal, $mantissa:literal) => {
        #[inline(always)]
        fn $name(bits: $word) -> $word {
            // Without its sign, a subnormal number is below the smallest normal one.
            if bits & !$sign < 1 << $mantissa { bits & $sign } else { bits }
        }
    };
}

flushes!(flush_u16, u16, 0x8000, 7);
flushes!(flush_u32, u32, 0x8000_0000, 23);
flushes!(flush_u64, u64, 0x8000_0000_0000_0000, 52);

/// Maps the words of a literal.
fn rewrite<const SIZE: usize>(literal: &mut Literal, flush: impl Fn([u8; SIZE]) -> [u8; SIZE]) {
    let ty = literal.ty().clone();
    let mut bytes = std::mem::replace(literal, Literal::scalar(false)).into_bytes();
    bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = flush(*word));
    *literal = Literal::from_bytes(ty, bytes).expect("bug: flushing changed the size of data");
}

/// Flushes the elements of a literal of a flushed type. Most data has no subnormal number and is
/// only scanned.
pub fn flush(literal: &mut Literal) {
    if !has_subnormal(literal) {
        return;
    }
    match literal.dtype().part() {
        DType::BF16 => rewrite(literal, |word| flush_u16(u16::from_le_bytes(word)).to_le_bytes()),
        DType::F32 => rewrite(literal, |word| flush_u32(u32::from_le_bytes(word)).to_le_bytes()),
        _ => rewrite(literal, |word| flush_u64(u64::from_le_bytes(word)).to_le_bytes()),
    }
}

/// Whether flushing changes any element.
#[must_use]
pub fn has_subnormal(literal: &Literal) -> bool {
    // Without branches per element, so that compilers vectorize the loop.
    fn any<const SIZE: usize>(literal: &Literal, changes: impl Fn([u8; SIZE]) -> bool) -> bool {
        let words: &[[u8; SIZE]] = literal.bytes().as_chunks().0;
        words.chunks(1024).any(|words| words.iter().fold(false, |any, word| any | changes(*word)))
    }
    match literal.dtype().part() {
        DType::BF16 => any(literal, |word| flush_u16(u16::from_le_bytes(word)) != u16::from_le_bytes(word)),
        DType::F32 => any(literal, |word| flush_u32(u32::from_le_bytes(word)) != u32::from_le_bytes(word)),
        DType::F64 => any(literal, |word| flush_u64(u64::from_le_bytes(word)) != u64::from_le_bytes(word)),
        _ => false,
    }
}
