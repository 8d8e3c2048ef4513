//! Tensor data on the host: a type, and little-endian, row-major bytes.

use std::fmt;

use crate::dtype::{DType, DTypeClass, Element, RealElement};
use crate::element::{self, Elements, Store};
use crate::shape::{Shape, ShapeError, TensorType};

/// Dense host data: a [`TensorType`] and its elements, row-major, little-endian.
///
/// Invariant: the number of bytes is the type's [`TensorType::bytes`], and every element of fewer
/// than 8 bits is in range: a `bool` is 0 or 1, an `i4` -8 to 7. Literals are equal if type and
/// bytes are equal, so two NaNs with the same bits are equal, and `-0.0` differs from `0.0`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    ty: TensorType,
    bytes: Vec<u8>,
}

/// One element with its type, held inline. Lifted scalars have this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// An element of at most 64 bits.
    #[must_use]
    pub fn new<T: RealElement>(value: T) -> Scalar {
        let mut bytes = Vec::with_capacity(8);
        value.write_le(&mut bytes);
        bytes.resize(8, 0);
        Scalar { dtype: T::DTYPE, bits: u64::read_le(&bytes) }
    }

    /// The element of a real type nearest to a number: rounded for floats, truncated and clamped
    /// for integers, `true` for all but zero for `bool`. `None` for complex types.
    #[must_use]
    pub fn from_f64(dtype: DType, value: f64) -> Option<Scalar> {
        let bits = match dtype.class() {
            DTypeClass::Complex => return None,
            DTypeClass::Bool => u128::from(value != 0.0),
            DTypeClass::Float => element::from_f64(dtype, value),
            _ => element::int_from_float(dtype, value),
        };
        Some(Scalar { dtype, bits: bits as u64 })
    }

    /// The element of a rank-0 tensor of a real type; `None` for other tensors.
    #[must_use]
    pub fn of(literal: &Literal) -> Option<Scalar> {
        let real = literal.ty().rank() == 0 && !literal.dtype().is_complex();
        real.then(|| Scalar { dtype: literal.dtype(), bits: Elements::of(literal).get(0) as u64 })
    }

    /// Its type.
    #[inline]
    #[must_use]
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// Its bits, zero-extended.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// A rank-0 tensor with this element.
    #[must_use]
    pub fn to_literal(self) -> Literal {
        Store::filled(TensorType::scalar(self.dtype), self.bits.into()).finish()
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.dtype, self.bits)
    }
}

/// Why bytes and a type do not form a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LiteralError {
    /// The sizes are not a shape.
    Shape(ShapeError),
    /// The length of the data does not fit the type.
    Length {
        /// The expected type.
        ty: TensorType,
        /// Number of elements or bytes that the type has.
        wanted: u64,
        /// Number of elements or bytes that were given.
        given: u64,
    },
    /// An element of fewer than 8 bits has a byte out of the range of its type.
    Range {
        /// The element type.
        dtype: DType,
        /// Index of the offending element, row-major.
        index: usize,
        /// Its byte.
        byte: u8,
    },
    /// The literal was read as another element type.
    DType {
        /// Element type of the literal.
        stored: DType,
        /// The requested element type.
        asked: DType,
    },
}

impl fmt::Display for LiteralError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiteralError::Shape(error) => error.fmt(f),
            LiteralError::Length { ty, wanted, given } => {
                write!(f, "{ty} takes {wanted} elements or bytes of data, but {given} were given")
            }
            LiteralError::Range { dtype, index, byte } => match dtype.class() {
                DTypeClass::Signed => {
                    let half = 1 << (dtype.bits() - 1);
                    let value = *byte as i8;
                    write!(
                        f,
                        "element {index} of a {dtype} tensor is {value}; it must be {} to {}",
                        -half,
                        half - 1
                    )
                }
                DTypeClass::Bool => {
                    write!(f, "element {index} of a {dtype} tensor is {byte}; it must be 0 or 1")
                }
                _ => {
                    let last = (1u32 << dtype.bits()) - 1;
                    write!(f, "element {index} of a {dtype} tensor is {byte}; it must be 0 to {last}")
                }
            },
            LiteralError::DType { stored, asked } => {
                write!(f, "the tensor holds {stored}, but {asked} was requested")
            }
        }
    }
}

impl std::error::Error for LiteralError {}

impl From<ShapeError> for LiteralError {
    fn from(error: ShapeError) -> Self {
        LiteralError::Shape(error)
    }
}

/// Checks that each byte is an element of the type. Types of 8 bits and more accept every byte.
///
/// # Errors
/// Names the first element that is out of range.
pub fn check_range(dtype: DType, bytes: &[u8]) -> Result<(), LiteralError> {
    if dtype.bits() >= 8 {
        return Ok(());
    }
    let fits = |byte: u8| match dtype.class() {
        DTypeClass::Signed => {
            let half = 1 << (dtype.bits() - 1);
            (-half..half).contains(&(byte as i8))
        }
        _ => byte >> dtype.bits() == 0,
    };
    match bytes.iter().position(|&byte| !fits(byte)) {
        Some(index) => Err(LiteralError::Range { dtype, index, byte: bytes[index] }),
        None => Ok(()),
    }
}

/// Encodes all elements of a tensor.
///
/// # Errors
/// If the element type or the number of elements differs from the type's.
pub(crate) fn encoded<T: Element>(ty: &TensorType, elements: &[T]) -> Result<Vec<u8>, LiteralError> {
    if T::DTYPE != ty.dtype() {
        return Err(LiteralError::DType { stored: ty.dtype(), asked: T::DTYPE });
    }
    if elements.len() as u64 != ty.elems().0 {
        let (wanted, given) = (ty.elems().0, elements.len() as u64);
        return Err(LiteralError::Length { ty: ty.clone(), wanted, given });
    }
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|&element| element.write_le(&mut bytes));
    Ok(bytes)
}

/// Decodes all elements of a tensor.
///
/// # Errors
/// If the element type differs.
pub(crate) fn decoded<T: Element>(ty: &TensorType, bytes: &[u8]) -> Result<Vec<T>, LiteralError> {
    if T::DTYPE != ty.dtype() {
        return Err(LiteralError::DType { stored: ty.dtype(), asked: T::DTYPE });
    }
    Ok(T::read_all_le(bytes))
}

impl Literal {
    /// Makes a literal of a type and its bytes.
    ///
    /// # Errors
    /// If the length does not fit the type, or an element of fewer than 8 bits has a byte out of
    /// range.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Result<Literal, LiteralError> {
        if bytes.len() as u64 != ty.bytes().0 {
            let (wanted, given) = (ty.bytes().0, bytes.len() as u64);
            return Err(LiteralError::Length { ty, wanted, given });
        }
        check_range(ty.dtype(), &bytes)?;
        Ok(Literal { ty, bytes })
    }

    /// A tensor of the given sizes, from its elements in row-major order.
    ///
    /// # Errors
    /// If the sizes are not a shape, or the number of elements does not fit them.
    pub fn from_slice<T: Element>(dims: &[u64], data: &[T]) -> Result<Literal, LiteralError> {
        let ty = TensorType::of(T::DTYPE, dims)?;
        let bytes = encoded(&ty, data)?;
        Ok(Literal { ty, bytes })
    }

    /// A rank-0 tensor.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Literal {
        let mut bytes = Vec::with_capacity(T::DTYPE.size());
        value.write_le(&mut bytes);
        Literal { ty: TensorType::scalar(T::DTYPE), bytes }
    }

    /// A rank-0 tensor with the element nearest to a number, as in [`Scalar::from_f64`]. A complex
    /// element has an imaginary part of zero.
    #[must_use]
    pub fn of_f64(dtype: DType, value: f64) -> Literal {
        let part = Scalar::from_f64(dtype.part(), value).map_or(0, Scalar::bits);
        Store::filled(TensorType::scalar(dtype), part.into()).finish()
    }

    /// All zeros (`false` for `bool`). Aborts the process if memory runs out, like any allocation.
    /// For a type from an untrusted source use [`Literal::try_zeros`].
    #[must_use]
    pub fn zeros(ty: TensorType) -> Literal {
        let bytes = vec![0; usize::try_from(ty.bytes().0).unwrap_or(usize::MAX)];
        Literal { ty, bytes }
    }

    /// All zeros, or `None` if memory runs out.
    #[must_use]
    pub fn try_zeros(ty: TensorType) -> Option<Literal> {
        let len = usize::try_from(ty.bytes().0).ok()?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        Some(Literal { ty, bytes })
    }

    /// Element type and shape.
    #[inline]
    #[must_use]
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type.
    #[inline]
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// Sizes of the dimensions, outermost first.
    #[inline]
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        self.ty.dims()
    }

    /// The same as `usize`; see [`Shape::sizes`](crate::Shape::sizes).
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        self.ty.sizes()
    }

    /// The elements as bytes: little-endian, row-major.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The elements, row-major.
    ///
    /// # Errors
    /// If the literal has another element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, LiteralError> {
        decoded(&self.ty, &self.bytes)
    }

    /// Whether some element, or a part of one, is NaN. False for types without NaN.
    #[must_use]
    pub fn has_nan(&self) -> bool {
        let part = self.dtype().part();
        let Some(format) = part.float_format() else { return false };
        self.bytes.chunks_exact(part.size()).any(|raw| {
            let mut wide = [0; 8];
            wide[..raw.len()].copy_from_slice(raw);
            format.is_nan(u64::from_le_bytes(wide))
        })
    }

    /// The same bytes with another shape.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshaped(self, shape: Shape) -> Result<Literal, LiteralError> {
        Literal::from_bytes(TensorType::new(self.dtype(), shape), self.bytes)
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 32;
        write!(f, "{} ", self.ty)?;
        let shown = &self.bytes[..self.bytes.len().min(SHOWN)];
        write!(f, "{shown:02x?}")?;
        if self.bytes.len() > SHOWN {
            write!(f, "...")?;
        }
        Ok(())
    }
}

impl<'a> Elements<'a> {
    /// The elements of a literal, in row-major order.
    #[inline]
    #[must_use]
    pub fn of(literal: &'a Literal) -> Elements<'a> {
        Elements::new(literal.dtype(), literal.bytes())
    }
}

impl Store {
    /// A copy of a literal's elements.
    #[must_use]
    pub fn of(literal: &Literal) -> Store {
        Store::new(literal.ty().clone(), literal.bytes().to_vec())
    }

    /// The literal.
    ///
    /// # Panics
    /// If the bytes are not elements of the type, which only writes through [`Store::bytes_mut`]
    /// can cause.
    #[must_use]
    pub fn finish(self) -> Literal {
        let (ty, bytes) = self.into_parts();
        Literal::from_bytes(ty, bytes).expect("bug: data is not of its type")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_round_trip() {
        let literal = Literal::from_slice(&[2, 2], &[1.5f32, -0.0, f32::NAN, 4.0]).expect("fits");
        let back = literal.to_vec::<f32>().expect("same type");
        assert_eq!(back[0], 1.5);
        assert!(back[1].is_sign_negative() && back[2].is_nan());
        assert!(matches!(literal.to_vec::<i32>(), Err(LiteralError::DType { .. })));
    }

    #[test]
    fn wrong_lengths_and_ranges_are_refused() {
        let ty = TensorType::of(DType::Bool, &[3]).expect("small");
        assert!(matches!(
            Literal::from_bytes(ty.clone(), vec![0, 1]),
            Err(LiteralError::Length { wanted: 3, given: 2, .. })
        ));
        assert!(matches!(
            Literal::from_bytes(ty, vec![0, 1, 2]),
            Err(LiteralError::Range { dtype: DType::Bool, index: 2, byte: 2 })
        ));
        let ty = TensorType::of(DType::I4, &[2]).expect("small");
        let error = Literal::from_bytes(ty.clone(), vec![0xf8, 8]).expect_err("8 is out of range");
        assert_eq!(error.to_string(), "element 1 of a i4 tensor is 8; it must be -8 to 7");
        assert!(Literal::from_bytes(ty, vec![0xf8, 7]).is_ok());
        assert!(Literal::from_slice(&[2], &[1i32]).is_err());
    }
}
