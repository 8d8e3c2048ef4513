//! A tensor's data on the host: type plus little-endian, row-major bytes.

use std::fmt;

use half::{bf16, f16};

use crate::dtype::{DType, Element};
use crate::shape::{Shape, ShapeError, TensorType};

/// Dense host data: a [`TensorType`] and its elements, row-major, little-endian.
///
/// Invariant: the byte length equals the type's [`TensorType::bytes`], and every `bool` is 0 or 1.
/// Equality is equality of type and bytes, so two NaNs of the same bits are equal and `-0.0` differs from `0.0`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    ty: TensorType,
    bytes: Vec<u8>,
}

/// One element with its type, held inline: what a lifted scalar is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// An element.
    #[must_use]
    pub fn new<T: Element>(value: T) -> Scalar {
        let mut bytes = Vec::with_capacity(8);
        value.write_le(&mut bytes);
        bytes.resize(8, 0);
        Scalar { dtype: T::DTYPE, bits: u64::read_le(&bytes) }
    }

    /// Its type.
    #[must_use]
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// Its bits, zero-extended.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// A rank-0 tensor of it.
    #[must_use]
    pub fn to_literal(self) -> Literal {
        let bytes = self.bits.to_le_bytes()[..self.dtype.size()].to_vec();
        Literal { ty: TensorType::scalar(self.dtype), bytes }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.dtype, self.bits)
    }
}

/// Why bytes and a type do not make a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LiteralError {
    /// The sizes are not a shape.
    Shape(ShapeError),
    /// The data has another length than the type asks for.
    Length {
        /// The type the data was meant for.
        ty: TensorType,
        /// Elements or bytes that the type has.
        wanted: u64,
        /// Elements or bytes that were given.
        given: u64,
    },
    /// A `bool` byte is neither 0 nor 1.
    Bool {
        /// Index of the offending element, row-major.
        index: usize,
        /// Its byte.
        byte: u8,
    },
    /// The literal was asked for as another element type.
    DType {
        /// Element type of the literal.
        stored: DType,
        /// Element type asked for.
        asked: DType,
    },
}

impl fmt::Display for LiteralError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiteralError::Shape(error) => error.fmt(f),
            LiteralError::Length { ty, wanted, given } => {
                write!(f, "{ty} takes {wanted} elements or bytes of data, {given} were given")
            }
            LiteralError::Bool { index, byte } => {
                write!(f, "element {index} of a bool tensor is {byte}; it must be 0 or 1")
            }
            LiteralError::DType { stored, asked } => {
                write!(f, "the tensor holds {stored}, {asked} was asked for")
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

impl Literal {
    /// Pairs a type with its bytes.
    ///
    /// # Errors
    /// When the length does not fit the type, or a `bool` byte is neither 0 nor 1.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Result<Literal, LiteralError> {
        if bytes.len() as u64 != ty.bytes().0 {
            let (wanted, given) = (ty.bytes().0, bytes.len() as u64);
            return Err(LiteralError::Length { ty, wanted, given });
        }
        if ty.dtype() == DType::Bool
            && let Some(index) = bytes.iter().position(|&byte| byte > 1)
        {
            return Err(LiteralError::Bool { index, byte: bytes[index] });
        }
        Ok(Literal { ty, bytes })
    }

    /// A tensor of the given sizes from its elements, row-major.
    ///
    /// # Errors
    /// When the sizes are not a shape or the number of elements is another.
    pub fn from_slice<T: Element>(dims: &[u64], data: &[T]) -> Result<Literal, LiteralError> {
        let ty = TensorType::of(T::DTYPE, dims)?;
        if data.len() as u64 != ty.elems().0 {
            let (wanted, given) = (ty.elems().0, data.len() as u64);
            return Err(LiteralError::Length { ty, wanted, given });
        }
        let mut bytes = Vec::with_capacity(size_of_val(data));
        for &element in data {
            element.write_le(&mut bytes);
        }
        Ok(Literal { ty, bytes })
    }

    /// A rank-0 tensor.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Literal {
        let mut bytes = Vec::with_capacity(T::DTYPE.size());
        value.write_le(&mut bytes);
        Literal { ty: TensorType::scalar(T::DTYPE), bytes }
    }

    /// All zeros (`false` for `bool`).
    #[must_use]
    pub fn zeros(ty: TensorType) -> Literal {
        let bytes = vec![0; usize::try_from(ty.bytes().0).unwrap_or(usize::MAX)];
        Literal { ty, bytes }
    }

    /// Element type and shape.
    #[must_use]
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// Sizes of the dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        self.ty.dims()
    }

    /// The elements as bytes: little-endian, row-major.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the bytes out.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The elements, row-major.
    ///
    /// # Errors
    /// When the literal has another element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, LiteralError> {
        if T::DTYPE != self.dtype() {
            return Err(LiteralError::DType { stored: self.dtype(), asked: T::DTYPE });
        }
        Ok(self.bytes.chunks_exact(T::DTYPE.size()).map(T::read_le).collect())
    }

    /// Whether some element is NaN; false for other types than floats.
    #[must_use]
    pub fn has_nan(&self) -> bool {
        let size = self.dtype().size();
        let mut elements = self.bytes.chunks_exact(size);
        match self.dtype() {
            DType::F16 => elements.any(|raw| f16::read_le(raw).is_nan()),
            DType::BF16 => elements.any(|raw| bf16::read_le(raw).is_nan()),
            DType::F32 => elements.any(|raw| f32::read_le(raw).is_nan()),
            DType::F64 => elements.any(|raw| f64::read_le(raw).is_nan()),
            _ => false,
        }
    }

    /// The same bytes seen with other sizes.
    ///
    /// # Errors
    /// When the element count differs.
    pub fn reshaped(self, shape: Shape) -> Result<Literal, LiteralError> {
        let ty = TensorType::new(self.dtype(), shape)?;
        Literal::from_bytes(ty, self.bytes)
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
    fn wrong_lengths_and_bools_are_refused() {
        let ty = TensorType::of(DType::Bool, &[3]).expect("small");
        assert!(matches!(
            Literal::from_bytes(ty.clone(), vec![0, 1]),
            Err(LiteralError::Length { wanted: 3, given: 2, .. })
        ));
        assert!(matches!(
            Literal::from_bytes(ty, vec![0, 1, 2]),
            Err(LiteralError::Bool { index: 2, byte: 2 })
        ));
        assert!(Literal::from_slice(&[2], &[1i32]).is_err());
    }
}
