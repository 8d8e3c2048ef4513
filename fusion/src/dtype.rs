//! Element types: their StableHLO names, sizes and families.
//!
//! The codes of [`DType`] are part of the canonical encoding and of saved programs, so they never
//! change.

use std::fmt;

use half::{bf16, f16};
use num_complex::Complex;

use crate::float::{FloatFormat, Specials};

/// Type of one element of a tensor.
///
/// `Display` gives the name Rust users know (`bool`, `u32`); [`DType::mlir`] gives StableHLO's
/// (`i1`, `ui32`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "the variants are the names")]
pub enum DType {
    Bool = 1,
    I8 = 2,
    I16 = 3,
    I32 = 4,
    I64 = 5,
    U8 = 6,
    U16 = 7,
    U32 = 8,
    U64 = 9,
    F16 = 10,
    BF16 = 11,
    F32 = 12,
    F64 = 13,
    I2 = 14,
    I4 = 15,
    U2 = 16,
    U4 = 17,
    C64 = 18,
    C128 = 19,
    F8E4M3FN = 20,
    F8E5M2 = 21,
    F8E4M3 = 22,
    F8E3M4 = 23,
    F8E4M3FNUZ = 24,
    F8E5M2FNUZ = 25,
    F8E4M3B11FNUZ = 26,
    F8E8M0FNU = 27,
    F4E2M1FN = 28,
}

/// Family of an element type. The rules of ops are written in terms of families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypeClass {
    /// `bool`.
    Bool,
    /// Signed two's complement integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Binary floating point numbers.
    Float,
    /// Pairs of a real and an imaginary part.
    Complex,
}

impl DType {
    /// Every element type, in code order.
    pub const ALL: [DType; 28] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::I2,
        DType::I4,
        DType::U2,
        DType::U4,
        DType::C64,
        DType::C128,
        DType::F8E4M3FN,
        DType::F8E5M2,
        DType::F8E4M3,
        DType::F8E3M4,
        DType::F8E4M3FNUZ,
        DType::F8E5M2FNUZ,
        DType::F8E4M3B11FNUZ,
        DType::F8E8M0FNU,
        DType::F4E2M1FN,
    ];

    /// Stable one-byte code, used by the canonical encoding.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Inverse of [`DType::code`].
    #[must_use]
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.code() == code)
    }

    /// Name in the program format (`i1`, `ui32`, `bf16`, `c64`). StableHLO's text uses the same
    /// names, except that it builds those of complex types from the type of their parts.
    #[must_use]
    pub const fn mlir(self) -> &'static str {
        match self {
            DType::Bool => "i1",
            DType::I2 => "i2",
            DType::I4 => "i4",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U2 => "ui2",
            DType::U4 => "ui4",
            DType::U8 => "ui8",
            DType::U16 => "ui16",
            DType::U32 => "ui32",
            DType::U64 => "ui64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
            DType::C128 => "c128",
            DType::F8E4M3FN => "f8E4M3FN",
            DType::F8E5M2 => "f8E5M2",
            DType::F8E4M3 => "f8E4M3",
            DType::F8E3M4 => "f8E3M4",
            DType::F8E4M3FNUZ => "f8E4M3FNUZ",
            DType::F8E5M2FNUZ => "f8E5M2FNUZ",
            DType::F8E4M3B11FNUZ => "f8E4M3B11FNUZ",
            DType::F8E8M0FNU => "f8E8M0FNU",
            DType::F4E2M1FN => "f4E2M1FN",
        }
    }

    /// Name in StableHLO's text (`complex<f32>`).
    #[must_use]
    pub const fn stablehlo(self) -> &'static str {
        match self {
            DType::C64 => "complex<f32>",
            DType::C128 => "complex<f64>",
            _ => self.mlir(),
        }
    }

    /// Inverse of [`DType::mlir`].
    #[must_use]
    pub fn from_mlir(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.mlir() == name)
    }

    /// Size of one element in host memory, in bytes. Types of fewer than 8 bits take one byte: a
    /// `bool` is 0 or 1, signed integers are sign-extended, the others zero-extended.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
            _ => 1,
        }
    }

    /// Number of bits that carry the value; 1 for `bool`.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            DType::Bool => 1,
            DType::I2 | DType::U2 => 2,
            DType::I4 | DType::U4 | DType::F4E2M1FN => 4,
            _ => self.size() as u32 * 8,
        }
    }

    /// Family of this type.
    #[inline]
    #[must_use]
    pub const fn class(self) -> DTypeClass {
        match self {
            DType::Bool => DTypeClass::Bool,
            DType::I2 | DType::I4 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => DTypeClass::Signed,
            DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => DTypeClass::Unsigned,
            DType::C64 | DType::C128 => DTypeClass::Complex,
            _ => DTypeClass::Float,
        }
    }

    /// The bit layout of a float; `None` for other types.
    #[inline]
    #[must_use]
    pub const fn float_format(self) -> Option<FloatFormat> {
        use Specials::{ExponentOnly, Finite, NanIsNegativeZero, NanOnly};
        Some(match self {
            DType::F16 => FloatFormat::ieee(5, 10),
            DType::BF16 => FloatFormat::ieee(8, 7),
            DType::F32 => FloatFormat::ieee(8, 23),
            DType::F64 => FloatFormat::ieee(11, 52),
            DType::F8E5M2 => FloatFormat::ieee(5, 2),
            DType::F8E4M3 => FloatFormat::ieee(4, 3),
            DType::F8E3M4 => FloatFormat::ieee(3, 4),
            DType::F8E4M3FN => FloatFormat::special(4, 3, 7, NanOnly),
            DType::F8E4M3FNUZ => FloatFormat::special(4, 3, 8, NanIsNegativeZero),
            DType::F8E5M2FNUZ => FloatFormat::special(5, 2, 16, NanIsNegativeZero),
            DType::F8E4M3B11FNUZ => FloatFormat::special(4, 3, 11, NanIsNegativeZero),
            DType::F8E8M0FNU => FloatFormat::special(8, 0, 127, ExponentOnly),
            DType::F4E2M1FN => FloatFormat::special(2, 1, 1, Finite),
            _ => return None,
        })
    }

    /// Whether this is a binary floating point type, 8-bit and 4-bit formats included. Complex
    /// types are not.
    #[inline]
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.class(), DTypeClass::Float)
    }

    /// Whether this is a float of fewer than 16 bits.
    #[inline]
    #[must_use]
    pub const fn is_small_float(self) -> bool {
        self.is_float() && self.size() == 1
    }

    /// Whether this is a signed or unsigned integer. `bool` is not.
    #[inline]
    #[must_use]
    pub const fn is_int(self) -> bool {
        matches!(self.class(), DTypeClass::Signed | DTypeClass::Unsigned)
    }

    /// Whether this is a complex type.
    #[inline]
    #[must_use]
    pub const fn is_complex(self) -> bool {
        matches!(self.class(), DTypeClass::Complex)
    }

    /// The type of the real and imaginary parts. A type that is not complex is its own part.
    #[inline]
    #[must_use]
    pub const fn part(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            real => real,
        }
    }

    /// The complex type with parts of this type, if there is one.
    #[inline]
    #[must_use]
    pub const fn complex(self) -> Option<DType> {
        match self {
            DType::F32 => Some(DType::C64),
            DType::F64 => Some(DType::C128),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bool => "bool",
            DType::U2 => "u2",
            DType::U4 => "u4",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            other => other.mlir(),
        })
    }
}

/// A set of element types. The op table states with it which types an operand may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DTypeSet(u32);

impl DTypeSet {
    /// No type.
    pub const NONE: DTypeSet = DTypeSet(0);
    /// `bool` only.
    pub const BOOL: DTypeSet = DTypeSet(1 << DType::Bool.code());
    /// `i2` to `i64`.
    pub const SIGNED: DTypeSet = DTypeSet::of_class(DTypeClass::Signed);
    /// `u2` to `u64`.
    pub const UNSIGNED: DTypeSet = DTypeSet::of_class(DTypeClass::Unsigned);
    /// Signed and unsigned integers.
    pub const INT: DTypeSet = DTypeSet::SIGNED.or(DTypeSet::UNSIGNED);
    /// Every binary floating point type.
    pub const FLOAT: DTypeSet = DTypeSet::of_class(DTypeClass::Float);
    /// `f16`, `bf16`, `f32`, `f64`: the floats with hardware arithmetic.
    pub const WIDE_FLOAT: DTypeSet = DTypeSet::of(&[DType::F16, DType::BF16, DType::F32, DType::F64]);
    /// `complex<f32>`, `complex<f64>`.
    pub const COMPLEX: DTypeSet = DTypeSet::of_class(DTypeClass::Complex);
    /// Integers of 8 bits and more.
    pub const WIDE_INT: DTypeSet = DTypeSet::of(&[
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ]);
    /// Floats and complex numbers.
    pub const FLOAT_COMPLEX: DTypeSet = DTypeSet::FLOAT.or(DTypeSet::COMPLEX);
    /// Integers and floats.
    pub const REAL: DTypeSet = DTypeSet::INT.or(DTypeSet::FLOAT);
    /// Integers, floats and complex numbers.
    pub const NUMBER: DTypeSet = DTypeSet::REAL.or(DTypeSet::COMPLEX);
    /// Integers and `bool`.
    pub const INT_BOOL: DTypeSet = DTypeSet::INT.or(DTypeSet::BOOL);
    /// Every type with an order.
    pub const ORDERED: DTypeSet = DTypeSet::REAL.or(DTypeSet::BOOL);
    /// Every type.
    pub const ANY: DTypeSet = DTypeSet::NUMBER.or(DTypeSet::BOOL);
    /// The types of 2 and 4 bits.
    pub const NARROW: DTypeSet = DTypeSet::of(&[DType::I2, DType::I4, DType::U2, DType::U4, DType::F4E2M1FN]);
    /// Every type whose elements occupy whole bytes: all but those of 2 and 4 bits.
    pub const WHOLE_BYTES: DTypeSet = DTypeSet(DTypeSet::ANY.0 & !DTypeSet::NARROW.0);
    /// Signed integers and floats: the real types with a sign.
    pub const SIGNED_FLOAT: DTypeSet = DTypeSet::SIGNED.or(DTypeSet::FLOAT);
    /// The types with a sign or a direction.
    pub const SIGNED_NUMBER: DTypeSet = DTypeSet::SIGNED_FLOAT.or(DTypeSet::COMPLEX);

    const fn of_class(class: DTypeClass) -> DTypeSet {
        let (mut bits, mut i) = (0, 0);
        while i < DType::ALL.len() {
            if DType::ALL[i].class() as u8 == class as u8 {
                bits |= 1 << DType::ALL[i].code();
            }
            i += 1;
        }
        DTypeSet(bits)
    }

    /// The set of the given types.
    #[must_use]
    pub const fn of(dtypes: &[DType]) -> DTypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < dtypes.len() {
            bits |= 1 << dtypes[i].code();
            i += 1;
        }
        DTypeSet(bits)
    }

    /// The set without one type.
    #[inline]
    #[must_use]
    pub const fn without(self, dtype: DType) -> DTypeSet {
        DTypeSet(self.0 & !(1 << dtype.code()))
    }

    /// Union.
    #[inline]
    #[must_use]
    pub const fn or(self, other: DTypeSet) -> DTypeSet {
        DTypeSet(self.0 | other.0)
    }

    /// Intersection.
    #[inline]
    #[must_use]
    pub const fn and(self, other: DTypeSet) -> DTypeSet {
        DTypeSet(self.0 & other.0)
    }

    /// Whether `dtype` is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, dtype: DType) -> bool {
        self.0 & (1 << dtype.code()) != 0
    }

    /// The members, in code order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(move |dtype| self.contains(*dtype))
    }
}

impl fmt::Display for DTypeSet {
    /// The set in words, for messages: `a float`, `an integer or bool`, or the list of names. A set
    /// that lacks a single type is `any type but` that one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (DTypeSet::NONE, "no type"),
            (DTypeSet::ANY, "any type"),
            (DTypeSet::ORDERED, "a real type"),
            (DTypeSet::NUMBER, "a number"),
            (DTypeSet::REAL, "an integer or float"),
            (DTypeSet::INT_BOOL, "an integer or bool"),
            (DTypeSet::INT, "an integer"),
            (DTypeSet::FLOAT, "a float"),
            (DTypeSet::FLOAT_COMPLEX, "a float or complex"),
            (DTypeSet::COMPLEX, "complex"),
            (DTypeSet::SIGNED_FLOAT, "a signed integer or float"),
            (DTypeSet::SIGNED_NUMBER, "a signed integer, float or complex"),
            (DTypeSet::SIGNED, "a signed integer"),
            (DTypeSet::UNSIGNED, "an unsigned integer"),
            (DTypeSet::BOOL, "bool"),
            (DTypeSet::WHOLE_BYTES, "a type of whole bytes"),
        ];
        if let Some((_, name)) = words.iter().find(|(set, _)| set == self) {
            return f.write_str(name);
        }
        let mut absent = DTypeSet::ANY.iter().filter(|&dtype| !self.contains(dtype));
        if let (Some(dtype), None) = (absent.next(), absent.next()) {
            return write!(f, "any type but {dtype}");
        }
        let count = self.iter().count();
        for (i, dtype) in self.iter().enumerate() {
            let separator = match i {
                0 => "",
                i if i + 1 == count => " or ",
                _ => ", ",
            };
            write!(f, "{separator}{dtype}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DTypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that represents one [`DType`] on the host. Sealed, because the element types are a
/// closed set.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// The element type.
    const DTYPE: DType;

    /// Appends the little-endian bytes of `self`.
    fn write_le(self, out: &mut Vec<u8>);

    /// Reads one element from exactly [`DType::size`] little-endian bytes.
    ///
    /// # Panics
    /// When `bytes` has another length.
    fn read_le(bytes: &[u8]) -> Self;

    /// Reads as many elements as `bytes` has, little-endian, one after the other.
    #[must_use]
    fn read_all_le(bytes: &[u8]) -> Vec<Self> {
        // This size is a constant, so that the loop is a copy of memory. `DType::size` is not.
        bytes.chunks_exact(size_of::<Self>()).map(Self::read_le).collect()
    }
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl RealElement for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn write_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn read_le(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$ty>()];
                raw.copy_from_slice(bytes);
                <$ty>::from_le_bytes(raw)
            }
        }
    )*};
}

element! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}

macro_rules! complex_element {
    ($($part:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for Complex<$part> {}
        impl Element for Complex<$part> {
            const DTYPE: DType = DType::$dtype;
            fn write_le(self, out: &mut Vec<u8>) {
                self.re.write_le(out);
                self.im.write_le(out);
            }
            #[inline]
            fn read_le(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(size_of::<$part>());
                Complex::new(<$part>::read_le(re), <$part>::read_le(im))
            }
        }
    )*};
}

complex_element!(f32 => C64, f64 => C128);

/// An [`Element`] that is not complex. It fits in 64 bits and can be lifted.
pub trait RealElement: Element {}

impl sealed::Sealed for bool {}
impl RealElement for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write_le(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
    #[inline]
    fn read_le(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), 1, "a bool is one byte");
        bytes[0] != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!(DType::from_mlir(dtype.mlir()), Some(dtype));
        }
        assert_eq!(DType::from_code(0), None);
        assert_eq!(DType::from_mlir("bool"), None);
    }

    #[test]
    fn sets_read_as_words() {
        assert_eq!(DTypeSet::FLOAT.to_string(), "a float");
        assert_eq!(DTypeSet::of(&[DType::U32, DType::U64]).to_string(), "u32 or u64");
        assert!(DTypeSet::ANY.iter().eq(DType::ALL));
    }
}
