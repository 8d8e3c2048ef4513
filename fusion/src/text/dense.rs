//! Constant data: all spellings of `dense<...>`, and the numbers in it.
//!
//! The elements are a nested list, one element for all, or a string of hexadecimal digits with
//! their bytes.

use super::error::Result;
use super::scan::{Scanner, hex_digit, other, unsupported};
use crate::dtype::{DType, DTypeClass};
use crate::element::{Bits, from_f64, mask, to_int};
use crate::literal::Literal;
use crate::shape::TensorType;

/// The data of a constant.
pub(super) enum Dense {
    /// Every element, or the only one.
    Full(Literal),
    /// A splat: the common element (a scalar), and the type.
    Splat(Literal, TensorType),
}

impl Dense {
    /// All elements, at most `most`: a short text can represent any number of them.
    pub(super) fn full(self, most: u64, at: usize) -> Result<Literal> {
        match self {
            Dense::Full(data) => Ok(data),
            Dense::Splat(element, ty) if ty.elems().0 <= most => {
                let bytes = element.bytes().repeat(ty.elems().get());
                literal(ty, bytes, at)
            }
            Dense::Splat(_, ty) => {
                Err(other(at, format!("{ty} is too large for a constant of an attribute")))
            }
        }
    }
}

fn literal(ty: TensorType, bytes: Vec<u8>, at: usize) -> Result<Literal> {
    Literal::from_bytes(ty, bytes).map_err(|error| other(at, error.to_string()))
}

impl<'t> Scanner<'t> {
    /// `dense<...> : tensor<...>`.
    pub(super) fn dense(&mut self) -> Result<Dense> {
        let at = self.place();
        if self.eat_word("dense_resource") {
            return Err(unsupported(
                at,
                "data outside the text (`dense_resource`) is not supported: print the module with its large constants",
            ));
        }
        self.expect_word("dense")?;
        // The type, which determines how to read the elements, comes after them.
        let mut elements = *self;
        self.skip_brackets(true)?;
        self.expect(":")?;
        let ty = self.ty()?;
        elements.expect("<")?;
        let data = elements.elements(&ty)?;
        elements.expect(">")?;
        Ok(data)
    }

    fn elements(&mut self, ty: &TensorType) -> Result<Dense> {
        let at = self.place();
        let mut bytes = Vec::new();
        match self.peek() {
            Some(b'>') if ty.elems().0 == 0 => {}
            Some(b'"') => return self.hexadecimal(ty),
            Some(b'[') => self.nested(ty.dtype(), ty.dims(), &mut bytes)?,
            _ => {
                self.element(ty.dtype(), &mut bytes)?;
                return splat(bytes, ty, at);
            }
        }
        Ok(Dense::Full(literal(ty.clone(), bytes, at)?))
    }

    fn nested(&mut self, dtype: DType, dims: &[u64], bytes: &mut Vec<u8>) -> Result<()> {
        let Some((&dim, rest)) = dims.split_first() else { return self.element(dtype, bytes) };
        let at = self.place();
        let mut count = 0;
        self.list(["[", "]"], |scanner| {
            count += 1;
            scanner.nested(dtype, rest, bytes)
        })?;
        if count == dim {
            Ok(())
        } else {
            Err(other(at, format!("the list has {count} entries, but the type has {dim}")))
        }
    }

    /// Reads the bytes of all elements, or of one for all.
    fn hexadecimal(&mut self, ty: &TensorType) -> Result<Dense> {
        let at = self.place();
        let text = self.string()?;
        let digits = text.strip_prefix("0x").unwrap_or("").as_bytes();
        let (pairs, odd) = digits.as_chunks::<2>();
        let byte = |&[high, low]: &[u8; 2]| Some(hex_digit(high)? << 4 | hex_digit(low)?);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let mut bytes = bytes
            .filter(|bytes| odd.is_empty() && !bytes.is_empty())
            .ok_or_else(|| other(at, "data in quotes must be `0x` and two hexadecimal digits per byte"))?;
        let (elems, size) = (ty.elems().0, ty.dtype().size());
        if ty.dtype() == DType::Bool {
            // One byte per element; a splat is 0 or 255. Older modules have one bit per element.
            let count = bytes.len() as u64;
            if count != elems && elems > 8 && count == elems.div_ceil(8) {
                bytes = (0..elems as usize).map(|index| bytes[index / 8] >> (index % 8) & 1).collect();
            } else if count == 1 && bytes[0] == u8::MAX {
                bytes[0] = 1;
            }
        } else if ty.dtype().bits() < 8 {
            // Clears the unused high bits.
            let dtype = ty.dtype();
            bytes.iter_mut().for_each(|byte| *byte = stored(dtype, Bits::from(*byte) & mask(dtype)) as u8);
        }
        if bytes.len() == size && elems != 1 {
            return splat(bytes, ty, at);
        }
        Ok(Dense::Full(literal(ty.clone(), bytes, at)?))
    }

    /// Reads one element and appends its bytes.
    fn element(&mut self, dtype: DType, bytes: &mut Vec<u8>) -> Result<()> {
        if dtype.is_complex() {
            self.expect("(")?;
            self.element(dtype.part(), bytes)?;
            self.expect(",")?;
            self.element(dtype.part(), bytes)?;
            return self.expect(")");
        }
        let at = self.place();
        let bits = match dtype.class() {
            DTypeClass::Bool if self.eat_word("true") => 1,
            DTypeClass::Bool if self.eat_word("false") => 0,
            DTypeClass::Float => self.float(dtype)?,
            class => {
                let value = self.wide_integer()?;
                let ones = mask(dtype) as i128;
                // A signless type accepts the signed and the unsigned value of its bits.
                let least = if class == DTypeClass::Signed { -(ones / 2) - 1 } else { 0 };
                if value < least || value > ones {
                    return Err(other(at, format!("{value} does not fit into {dtype}")));
                }
                value as Bits & mask(dtype)
            }
        };
        bytes.extend_from_slice(&stored(dtype, bits).to_le_bytes()[..dtype.size()]);
        Ok(())
    }

    /// Reads an integer, decimal or hexadecimal.
    fn wide_integer(&mut self) -> Result<i128> {
        let start = self.place();
        let negative = self.take_adjacent(b'-');
        let digits = self.run(|byte| byte.is_ascii_alphanumeric());
        let parsed = match digits.strip_prefix("0x") {
            Some(digits) => i128::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        match parsed {
            Ok(value) if negative => Ok(-value),
            Ok(value) => Ok(value),
            Err(_) => {
                let mut here = *self;
                here.back_to(start);
                Err(here.expected("an integer"))
            }
        }
    }

    /// Reads the bits of a float: a decimal number with a point, or the bits in hexadecimal.
    pub(super) fn float(&mut self, dtype: DType) -> Result<Bits> {
        let start = self.place();
        let negative = self.take_adjacent(b'-');
        let integer = self.run(|byte| byte.is_ascii_digit());
        if integer == "0" && !negative && self.take_adjacent(b'x') {
            let digits = self.run(|byte| byte.is_ascii_hexdigit());
            return match Bits::from_str_radix(digits, 16) {
                Ok(bits) if bits <= mask(dtype) => Ok(bits),
                _ => Err(other(start, format!("these are not the bits of an element of {dtype}"))),
            };
        }
        let has_point = !integer.is_empty() && self.take_adjacent(b'.');
        self.run(|byte| byte.is_ascii_digit());
        if matches!(self.peek_adjacent(), Some(b'e' | b'E')) {
            self.run(|byte| matches!(byte, b'e' | b'E'));
            self.run(|byte| matches!(byte, b'+' | b'-'));
            self.run(|byte| byte.is_ascii_digit());
        }
        match self.since(start).parse::<f64>() {
            Ok(value) if has_point => Ok(from_f64(dtype, value)),
            _ => {
                let mut here = *self;
                here.back_to(start);
                Err(here.expected("a float such as `1.0`, `1.5e-3` or its bits as `0x7FC00000`"))
            }
        }
    }
}

/// A splat.
fn splat(bytes: Vec<u8>, ty: &TensorType, at: usize) -> Result<Dense> {
    match ty.elems().0 {
        0 => Ok(Dense::Full(literal(ty.clone(), Vec::new(), at)?)),
        1 => Ok(Dense::Full(literal(ty.clone(), bytes, at)?)),
        _ => Ok(Dense::Splat(literal(TensorType::scalar(ty.dtype()), bytes, at)?, ty.clone())),
    }
}

/// An element as in the bytes of a literal: signed integers of fewer than 8 bits are sign-extended.
fn stored(dtype: DType, bits: Bits) -> Bits {
    if dtype.class() == DTypeClass::Signed { to_int(dtype, bits) as Bits } else { bits }
}
