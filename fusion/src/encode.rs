//! Bytes of the canonical encoding: a writer and a reader for a self-delimiting format.
//!
//! Every item states its length before its content, so a concatenation of items has exactly one
//! reading. The encoding is thus injective, and its hash can serve as a key. Integers are LEB128.
//! The reader rejects the longer spellings that LEB128 allows, so each integer has exactly one
//! spelling.

use std::fmt;

/// Collects encoded bytes.
#[derive(Debug, Default, Clone)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty writer with capacity for `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer(Vec::with_capacity(bytes))
    }

    /// Appends one byte.
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Appends an unsigned integer.
    pub fn uint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Appends a signed integer in zigzag form, so that small magnitudes are short.
    pub fn int(&mut self, value: i64) {
        self.uint(((value << 1) ^ (value >> 63)) as u64);
    }

    /// Appends a length.
    pub fn len(&mut self, len: usize) {
        self.uint(len as u64);
    }

    /// Appends a length and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Appends bytes that are self-delimiting.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The bytes so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}

/// Why bytes are not a valid encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Offset of the first unexpected byte.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: expected {}", self.offset, self.expected)
    }
}

impl std::error::Error for DecodeError {}

/// Reads encoded bytes. It never panics and never allocates more than the length of the input.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, offset: 0 }
    }

    /// An error at the current offset.
    #[must_use]
    pub fn error(&self, expected: &'static str) -> DecodeError {
        DecodeError { offset: self.offset, expected }
    }

    /// One byte.
    ///
    /// # Errors
    /// At the end of the input.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.bytes.get(self.offset).ok_or_else(|| self.error("a byte"))?;
        self.offset += 1;
        Ok(byte)
    }

    /// An unsigned integer in its shortest spelling.
    ///
    /// # Errors
    /// At the end of the input, above `u64::MAX`, or for a spelling that is not the shortest.
    pub fn uint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let payload = u64::from(byte & 0x7f);
            if shift == 63 && payload > 1 {
                return Err(self.error("an integer of 64 bits"));
            }
            value |= payload << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.error("the shortest encoding of an integer"));
                }
                return Ok(value);
            }
        }
        Err(self.error("an integer of 64 bits"))
    }

    /// A signed integer.
    ///
    /// # Errors
    /// As [`Reader::uint`].
    pub fn int(&mut self) -> Result<i64, DecodeError> {
        let raw = self.uint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A number of items, which cannot exceed the number of bytes left.
    ///
    /// # Errors
    /// As [`Reader::uint`], and if the input is shorter than the number of items.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let len = self.uint()?;
        match usize::try_from(len) {
            Ok(len) if len <= self.bytes.len() - self.offset => Ok(len),
            _ => Err(self.error("as many items as the length announces")),
        }
    }

    /// A length and that many bytes.
    ///
    /// # Errors
    /// As [`Reader::count`].
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.count()?;
        let bytes = &self.bytes[self.offset..self.offset + len];
        self.offset += len;
        Ok(bytes)
    }

    /// Checks that the whole input was read.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.offset == self.bytes.len() { Ok(()) } else { Err(self.error("the end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_round_trip(unsigned: u64, signed: i64) {
            let mut writer = Writer::new();
            writer.uint(unsigned);
            writer.int(signed);
            let bytes = writer.into_vec();
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.uint(), Ok(unsigned));
            prop_assert_eq!(reader.int(), Ok(signed));
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn any_bytes_have_at_most_one_reading(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            if let Ok(value) = reader.uint() {
                let mut writer = Writer::new();
                writer.uint(value);
                prop_assert!(bytes.starts_with(writer.as_slice()));
            }
        }
    }

    #[test]
    fn long_spellings_and_lying_lengths_are_refused() {
        assert!(Reader::new(&[0x80, 0x00]).uint().is_err());
        assert!(Reader::new(&[0xff; 10]).uint().is_err());
        assert!(Reader::new(&[5, 1, 2]).bytes().is_err());
    }
}
