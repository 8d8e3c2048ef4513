//! Elements as bits, and the number types that they are computed in.
//!
//! [`Bits`] holds an element in its low bits; the others are zero. Moving, selecting and comparing
//! for equality need nothing else, so an element that is moved keeps its NaN payload. A complex
//! number has its real part in the low half of its bits and its imaginary part above. Arithmetic
//! decodes a float to `f64`, a complex number to two of them and any other element to `i128`, all
//! exactly. It encodes the result once: [`from_f64`] rounds to nearest even, [`from_int`] wraps.

use num_complex::Complex;

use crate::dtype::{DType, DTypeClass};
use crate::shape::TensorType;

/// The bits of one element.
pub type Bits = u128;

/// A complex number in arithmetic.
pub type Complex64 = Complex<f64>;

/// All bits of the type set: 1 for `bool`.
#[inline]
#[must_use]
pub const fn mask(dtype: DType) -> Bits {
    Bits::MAX >> (Bits::BITS - dtype.bits())
}

/// Value of the bits of a float.
#[inline]
#[must_use]
pub fn to_f64(dtype: DType, bits: Bits) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => f32::from_bits((bits as u32) << 16).into(),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F64 => f64::from_bits(bits as u64),
        _ => match dtype.float_format() {
            Some(format) => format.decode(bits as u64),
            None => to_int(dtype, bits) as f64,
        },
    }
}

/// Value of the bits of an integer or `bool`.
#[inline]
#[must_use]
pub fn to_int(dtype: DType, bits: Bits) -> i128 {
    match dtype.class() {
        DTypeClass::Signed => {
            let unused = Bits::BITS - dtype.bits();
            (bits << unused) as i128 >> unused
        }
        _ => bits as i128,
    }
}

/// Bits of an integer, wrapped to the type; the lowest bit for `bool`.
#[inline]
#[must_use]
pub const fn from_int(dtype: DType, value: i128) -> Bits {
    value as Bits & mask(dtype)
}

/// Bits of a float, rounded to nearest even. A NaN stays a NaN of the same sign.
#[inline]
#[must_use]
pub fn from_f64(dtype: DType, value: f64) -> Bits {
    match dtype {
        DType::F64 => value.to_bits().into(),
        DType::F32 => (value as f32).to_bits().into(),
        // `half` is no alternative: it rounds twice. It goes through `f32` where the processor has
        // conversions, and drops low bits elsewhere.
        _ => dtype.float_format().expect("bug: a float has a format").encode(value).into(),
    }
}

/// Bits of the parts of a complex element.
#[inline]
#[must_use]
pub const fn parts(dtype: DType, bits: Bits) -> (Bits, Bits) {
    let half = dtype.bits() / 2;
    (bits & (Bits::MAX >> (Bits::BITS - half)), bits >> half)
}

/// Bits of a complex element with the given parts.
#[inline]
#[must_use]
pub const fn joined(dtype: DType, re: Bits, im: Bits) -> Bits {
    re | im << (dtype.bits() / 2)
}

/// Value of the bits of a complex number; other types get an imaginary part of zero.
#[inline]
#[must_use]
pub fn to_complex(dtype: DType, bits: Bits) -> Complex64 {
    if !dtype.is_complex() {
        return Complex::new(to_f64(dtype, bits), 0.0);
    }
    let (re, im) = parts(dtype, bits);
    Complex::new(to_f64(dtype.part(), re), to_f64(dtype.part(), im))
}

/// Bits of a complex number, each part rounded to nearest even.
#[inline]
#[must_use]
pub fn from_complex(dtype: DType, value: Complex64) -> Bits {
    joined(dtype, from_f64(dtype.part(), value.re), from_f64(dtype.part(), value.im))
}

/// Bits of an integer converted to a float, rounded once.
#[must_use]
pub fn float_from_int(dtype: DType, value: i128) -> Bits {
    if dtype == DType::F64 {
        return (value as f64).to_bits().into();
    }
    // Round to odd: an `f64` whose last bit records whether bits were dropped rounds to any shorter
    // format as the integer itself would.
    let magnitude = value.unsigned_abs();
    let excess = (u128::BITS - magnitude.leading_zeros()).saturating_sub(f64::MANTISSA_DIGITS);
    let kept = magnitude >> excess;
    let lost = magnitude & ((1 << excess) - 1) != 0;
    let odd = (kept | u128::from(lost)) as f64 * f64::from(excess).exp2();
    from_f64(dtype, if value < 0 { -odd } else { odd })
}

/// Bits of a float converted to an integer type: truncated towards zero, clamped to the range, 0
/// for NaN.
#[inline]
#[must_use]
pub fn int_from_float(dtype: DType, value: f64) -> Bits {
    let bits = dtype.bits();
    let (least, greatest) = match dtype.class() {
        DTypeClass::Signed => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        _ => (0, (1i128 << bits) - 1),
    };
    from_int(dtype, (value as i128).clamp(least, greatest))
}

/// The elements of a literal, as bits.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    bytes: &'a [u8],
    dtype: DType,
}

/// The bits of an element in host memory, where signed integers of fewer than 8 bits are
/// sign-extended.
#[inline]
fn load(bytes: &[u8], dtype: DType, index: usize) -> Bits {
    let size = dtype.size();
    let mut wide = [0; 16];
    let first = index * size;
    wide[..size].copy_from_slice(&bytes[first..first + size]);
    Bits::from_le_bytes(wide) & mask(dtype)
}

/// An element as in host memory; the bytes past its size have no meaning.
#[inline]
fn stored(dtype: DType, bits: Bits) -> [u8; 16] {
    if dtype.class() == DTypeClass::Signed { to_int(dtype, bits).to_le_bytes() } else { bits.to_le_bytes() }
}

impl<'a> Elements<'a> {
    /// Wraps the bytes of elements in host memory.
    #[inline]
    pub(crate) fn new(dtype: DType, bytes: &'a [u8]) -> Elements<'a> {
        Elements { bytes, dtype }
    }

    /// The number of elements.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Element `index`.
    ///
    /// # Panics
    /// If there are no more than `index` elements.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Bits {
        load(self.bytes, self.dtype, index)
    }
}

/// The elements of a literal under construction, as bits.
#[derive(Debug)]
pub struct Store {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Store {
    /// Elements of a type, from their bytes in host memory.
    pub(crate) fn new(ty: TensorType, bytes: Vec<u8>) -> Store {
        Store { ty, bytes }
    }

    /// The type, and the bytes of the elements.
    pub(crate) fn into_parts(self) -> (TensorType, Vec<u8>) {
        (self.ty, self.bytes)
    }

    /// All elements with the given bits.
    #[must_use]
    pub fn filled(ty: TensorType, bits: Bits) -> Store {
        let bytes = match bits {
            0 => vec![0; ty.elems().get() * ty.dtype().size()],
            _ => stored(ty.dtype(), bits)[..ty.dtype().size()].repeat(ty.elems().get()),
        };
        Store { ty, bytes }
    }

    /// Stores elements given in row-major order.
    #[must_use]
    pub fn collect(ty: TensorType, bits: impl Iterator<Item = Bits>) -> Store {
        let (dtype, size) = (ty.dtype(), ty.dtype().size());
        let mut bytes = Vec::with_capacity(ty.elems().get() * size);
        bits.for_each(|bits| bytes.extend_from_slice(&stored(dtype, bits)[..size]));
        Store { ty, bytes }
    }

    /// Element `index`.
    ///
    /// # Panics
    /// If there are no more than `index` elements.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Bits {
        load(&self.bytes, self.ty.dtype(), index)
    }

    /// Overwrites element `index`.
    ///
    /// # Panics
    /// If there are no more than `index` elements.
    #[inline]
    pub fn set(&mut self, index: usize, bits: Bits) {
        let dtype = self.ty.dtype();
        let (first, size) = (index * dtype.size(), dtype.size());
        self.bytes[first..first + size].copy_from_slice(&stored(dtype, bits)[..size]);
    }

    /// The elements as in memory.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_of_a_short_format_survives_a_round_trip() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float() && dtype.bits() <= 16) {
            let format = dtype.float_format().expect("a float");
            for bits in 0..1u128 << dtype.bits() {
                let value = to_f64(dtype, bits);
                let back = from_f64(dtype, value);
                if value.is_nan() {
                    let again = to_f64(dtype, back);
                    let sign = (again.is_sign_negative(), value.is_sign_negative());
                    assert!(again.is_nan() && sign.0 == sign.1, "{dtype} {bits:#06x} became {back:#06x}");
                } else {
                    assert_eq!(back, bits, "{dtype} {bits:#06x} is {value}");
                }
                assert_eq!(format.is_nan(bits as u64), value.is_nan(), "{dtype} {bits:#06x}");
            }
        }
    }

    /// Between two neighbours `low` and `high` of a format, the midpoint rounds to the even one,
    /// and any other number to the nearer one, however close it is to the midpoint.
    #[test]
    fn rounding_is_to_nearest_even_in_one_step() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let format = dtype.float_format().expect("a float");
            let mantissa_bits = format.mantissa;
            let infinity = Bits::from(format.infinity().expect("an IEEE format"));
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
            assert_eq!(float_from_int(DType::F32, value), Bits::from((value as f32).to_bits()), "{value}");
        }
        // 2^60 + 2^52 is a tie between two bf16 numbers; an f64 loses the 1 that breaks it.
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
