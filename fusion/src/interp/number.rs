//! Elements as bits, and the two kinds of numbers they are computed in.
//!
//! An element travels as its bits in the low end of a `u64`, the rest zero: moving, selecting and comparing for
//! equality need nothing else, and what is moved keeps its NaN payload. Arithmetic decodes a float to `f64` and anything
//! else to `i128`, both exactly, and encodes the result once: [`from_f64`] rounds to nearest even, [`from_int`] wraps.

use crate::dtype::{DType, DTypeClass};
use crate::literal::Literal;
use crate::shape::TensorType;

/// The bits of one element.
pub(crate) type Bits = u64;

/// Bits of a significand of an `f64`, without the leading one.
const F64_MANTISSA: u32 = 52;

/// Exponent and mantissa bits of a float type; `None` for the others.
pub(crate) const fn float_format(dtype: DType) -> Option<(u32, u32)> {
    match dtype {
        DType::F16 => Some((5, 10)),
        DType::BF16 => Some((8, 7)),
        DType::F32 => Some((8, 23)),
        DType::F64 => Some((11, F64_MANTISSA)),
        _ => None,
    }
}

/// All ones in the bits of the type: 1 for `bool`.
pub(crate) const fn mask(dtype: DType) -> u64 {
    u64::MAX >> (64 - dtype.bits())
}

/// Value of the bits of a float.
pub(crate) fn to_f64(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => f32::from_bits((bits as u32) << 16).into(),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F64 => f64::from_bits(bits),
        _ => to_int(dtype, bits) as f64,
    }
}

/// Value of the bits of an integer or `bool`.
pub(crate) fn to_int(dtype: DType, bits: u64) -> i128 {
    match dtype.class() {
        DTypeClass::Signed => {
            let unused = 64 - dtype.bits();
            i128::from((bits << unused) as i64 >> unused)
        }
        _ => bits.into(),
    }
}

/// Bits of an integer, wrapped to the type; the lowest bit for `bool`.
pub(crate) const fn from_int(dtype: DType, value: i128) -> u64 {
    value as u64 & mask(dtype)
}

/// Bits of a float, rounded to nearest even. A NaN stays one of the same sign.
pub(crate) fn from_f64(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::F64 => value.to_bits(),
        DType::F32 => (value as f32).to_bits().into(),
        // `half` goes through `f32` where the processor helps and drops low bits where it does not, which rounds twice.
        DType::F16 => narrow(value, 5, 10),
        _ => narrow(value, 8, 7),
    }
}

/// `value >> shift`, rounded to nearest even.
fn shift_rounding(value: u64, shift: u32) -> u64 {
    match shift {
        0 => value,
        // Below half of the last place that is kept.
        65.. => 0,
        _ => {
            let kept = value.checked_shr(shift).unwrap_or(0);
            let rest = value << (64 - shift);
            let half = 1 << 63;
            kept + u64::from(rest > half || (rest == half && kept & 1 == 1))
        }
    }
}

/// Bits of the value in a smaller IEEE format.
fn narrow(value: f64, exponent_bits: u32, mantissa_bits: u32) -> u64 {
    let sign = u64::from(value.is_sign_negative()) << (exponent_bits + mantissa_bits);
    let infinity = ((1u64 << exponent_bits) - 1) << mantissa_bits;
    let magnitude = value.to_bits() & (u64::MAX >> 1);
    let dropped = F64_MANTISSA - mantissa_bits;
    if value.is_nan() {
        let quiet = 1 << (mantissa_bits - 1);
        let payload = magnitude >> dropped & ((1 << mantissa_bits) - 1);
        return sign | infinity | quiet | payload;
    }
    let bias = (1i64 << (exponent_bits - 1)) - 1;
    let biased = (magnitude >> F64_MANTISSA) as i64 - 1023 + bias;
    let significand = magnitude & ((1 << F64_MANTISSA) - 1) | 1 << F64_MANTISSA;
    let rounded = if biased >= 1 {
        // The leading one of the significand adds the last 1 to the exponent, and so does a carry out of it.
        ((biased as u64 - 1) << mantissa_bits) + shift_rounding(significand, dropped)
    } else {
        // A subnormal of the format has the exponent of the smallest normal number.
        shift_rounding(significand, dropped + u32::try_from(1 - biased).unwrap_or(u32::MAX).min(64))
    };
    sign | rounded.min(infinity)
}

/// Bits of an integer as a float, rounded once.
pub(crate) fn float_from_int(dtype: DType, value: i128) -> u64 {
    if dtype == DType::F64 {
        return (value as f64).to_bits();
    }
    // An `f64` that keeps a trace of the bits it drops in its last place (rounding to odd) rounds on to any shorter
    // format as the integer itself would.
    let magnitude = value.unsigned_abs();
    let excess = (u128::BITS - magnitude.leading_zeros()).saturating_sub(F64_MANTISSA + 1);
    let kept = magnitude >> excess;
    let lost = magnitude & ((1 << excess) - 1) != 0;
    let odd = (kept | u128::from(lost)) as f64 * f64::from(excess).exp2();
    from_f64(dtype, if value < 0 { -odd } else { odd })
}

/// Bits of a float as an integer type: towards zero, to the nearest end of the range where it is outside, 0 for NaN.
pub(crate) fn int_from_float(dtype: DType, value: f64) -> u64 {
    let bits = dtype.bits();
    let (least, greatest) = match dtype.class() {
        DTypeClass::Signed => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        _ => (0, (1i128 << bits) - 1),
    };
    from_int(dtype, (value as i128).clamp(least, greatest))
}

/// The elements of a literal, as bits.
#[derive(Clone, Copy)]
pub(crate) struct Elements<'a> {
    bytes: &'a [u8],
    size: usize,
}

fn load(bytes: &[u8], size: usize, index: usize) -> u64 {
    let mut wide = [0; 8];
    let first = index * size;
    wide[..size].copy_from_slice(&bytes[first..first + size]);
    u64::from_le_bytes(wide)
}

impl<'a> Elements<'a> {
    pub(crate) fn of(literal: &'a Literal) -> Elements<'a> {
        Elements { bytes: literal.bytes(), size: literal.dtype().size() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.size
    }

    pub(crate) fn get(&self, index: usize) -> Bits {
        load(self.bytes, self.size, index)
    }
}

/// An index element, moved into `0..=last`.
pub(crate) fn clamp_index(dtype: DType, bits: u64, last: u64) -> u64 {
    to_int(dtype, bits).clamp(0, last.into()) as u64
}

/// The elements of a literal under construction, as bits.
pub(crate) struct Store {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Store {
    /// All elements have the given bits.
    pub(crate) fn filled(ty: TensorType, bits: u64) -> Store {
        let bytes = match bits {
            0 => vec![0; ty.elems().get() * ty.dtype().size()],
            _ => bits.to_le_bytes()[..ty.dtype().size()].repeat(ty.elems().get()),
        };
        Store { ty, bytes }
    }

    /// The elements in row-major order.
    pub(crate) fn collect(ty: TensorType, bits: impl Iterator<Item = u64>) -> Store {
        let size = ty.dtype().size();
        let mut bytes = Vec::with_capacity(ty.elems().get() * size);
        bits.for_each(|bits| bytes.extend_from_slice(&bits.to_le_bytes()[..size]));
        Store { ty, bytes }
    }

    /// The elements of a literal, of its type.
    pub(crate) fn of(literal: &Literal) -> Store {
        Store { ty: literal.ty().clone(), bytes: literal.bytes().to_vec() }
    }

    pub(crate) fn get(&self, index: usize) -> Bits {
        load(&self.bytes, self.ty.dtype().size(), index)
    }

    pub(crate) fn set(&mut self, index: usize, bits: u64) {
        let size = self.ty.dtype().size();
        let first = index * size;
        self.bytes[first..first + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }

    pub(crate) fn finish(self) -> Literal {
        Literal::from_bytes(self.ty, self.bytes)
            .expect("bug: the interpreter made data that is not of its type")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_number_of_a_short_format_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            for dtype in [DType::F16, DType::BF16] {
                let value = to_f64(dtype, bits.into());
                let (is_nan, back) = match dtype {
                    DType::F16 => (
                        f16::from_bits(bits).is_nan(),
                        f16::from_bits(from_f64(dtype, value) as u16).to_f64(),
                    ),
                    _ => (
                        bf16::from_bits(bits).is_nan(),
                        bf16::from_bits(from_f64(dtype, value) as u16).to_f64(),
                    ),
                };
                if is_nan {
                    assert!(
                        back.is_nan() && back.is_sign_negative() == (bits >> 15 == 1),
                        "{dtype} {bits:#06x}"
                    );
                } else {
                    assert_eq!(from_f64(dtype, value), u64::from(bits), "{dtype} {bits:#06x}");
                }
            }
        }
    }

    /// Between two neighbours `low` and `high` of a format: the middle goes to the even one, anything off the middle to the
    /// nearer one, however little it is off.
    #[test]
    fn rounding_is_to_nearest_even_in_one_step() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let (exponent_bits, mantissa_bits) = float_format(dtype).expect("a float");
            let infinity = ((1u64 << exponent_bits) - 1) << mantissa_bits;
            // Around zero, subnormals, the smallest normal number, one, and the largest number.
            for low in [0, 1, 2, (1 << mantissa_bits) - 1, 1 << mantissa_bits, infinity / 2, infinity - 2] {
                let (a, b) = (to_f64(dtype, low), to_f64(dtype, low + 1));
                let middle = a + (b - a) / 2.0;
                let even = if low % 2 == 0 { low } else { low + 1 };
                assert_eq!(from_f64(dtype, middle), even, "{dtype} {low:#x}");
                assert_eq!(from_f64(dtype, middle.next_down()), low, "{dtype} {low:#x}");
                assert_eq!(from_f64(dtype, middle.next_up()), low + 1, "{dtype} {low:#x}");
            }
            let largest = to_f64(dtype, infinity - 1);
            let past = largest + (largest - to_f64(dtype, infinity - 2)) / 2.0;
            assert_eq!(from_f64(dtype, past), infinity, "{dtype}");
            assert_eq!(from_f64(dtype, past.next_down()), infinity - 1, "{dtype}");
            assert_eq!(from_f64(dtype, f64::INFINITY), infinity);
            assert_eq!(from_f64(dtype, f64::MIN_POSITIVE), 0);
            assert_eq!(from_f64(dtype, 5e-324), 0);
        }
    }

    #[test]
    fn integers_become_floats_in_one_rounding() {
        for value in [0i128, 1, -1, (1 << 24) + 1, i64::MAX.into(), i64::MIN.into(), u64::MAX.into()] {
            assert_eq!(float_from_int(DType::F32, value), u64::from((value as f32).to_bits()), "{value}");
        }
        // 2^60 + 2^52 is half way between two bf16 numbers; an f64 loses the 1 that decides.
        let tie = (1i128 << 60) + (1 << 52);
        assert_eq!(to_f64(DType::BF16, float_from_int(DType::BF16, tie)), 2f64.powi(60));
        assert_eq!(to_f64(DType::BF16, float_from_int(DType::BF16, tie + 1)), 2f64.powi(60) + 2f64.powi(53));
        assert_eq!(
            to_f64(DType::BF16, float_from_int(DType::BF16, -tie - 1)),
            -(2f64.powi(60) + 2f64.powi(53))
        );
        assert_eq!(to_f64(DType::F16, float_from_int(DType::F16, 65_519)), 65_504.0);
        assert_eq!(to_f64(DType::F16, float_from_int(DType::F16, 65_520)), f64::INFINITY);
    }

    #[test]
    fn floats_become_integers_by_truncation_within_the_range() {
        for (dtype, value, wanted) in [
            (DType::I8, 1.9, 1),
            (DType::I8, -1.9, -1),
            (DType::I8, 200.0, 127),
            (DType::I8, -200.0, -128),
            (DType::U8, -0.9, 0),
            (DType::U8, -5.0, 0),
            (DType::U8, 255.9, 255),
            (DType::U8, 256.0, 255),
            (DType::I32, f64::NAN, 0),
            (DType::I64, f64::INFINITY, i64::MAX.into()),
            (DType::I64, f64::NEG_INFINITY, i64::MIN.into()),
            (DType::U64, f64::INFINITY, u64::MAX.into()),
            (DType::U64, 1e300, u64::MAX.into()),
        ] {
            assert_eq!(to_int(dtype, int_from_float(dtype, value)), wanted, "{value} as {dtype}");
        }
    }
}
