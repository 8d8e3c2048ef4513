//! Makes choices from the bytes of an input.

use fuseline_testgen::Entropy;

/// The approximate number of bytes that the choices of an op take.
const BYTES_OF_AN_OP: usize = 8;

/// Choices made of bytes, first to last: one byte for a choice of up to 256 things, more bytes for
/// more. When the bytes have run out, it makes the simplest choice.
#[derive(Debug)]
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn new(data: &'a [u8]) -> Bytes<'a> {
        Bytes(data)
    }

    /// Two sources, so that choices from one do not shift those from the other: three quarters, and
    /// the rest.
    pub(super) fn halves(data: &'a [u8]) -> (Bytes<'a>, Bytes<'a>) {
        let (first, second) = data.split_at(data.len() / 4 * 3);
        (Bytes(first), Bytes(second))
    }

    /// The number of ops of a program, limited by the bytes that are left.
    pub(super) fn ops(&self, most: usize, how: &mut Bytes<'_>) -> usize {
        1 + how.draw(most.min(1 + self.0.len() / BYTES_OF_AN_OP) as u32) as usize
    }

    /// Whether all remaining choices are the simplest ones.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The remaining bytes as text.
    pub(super) fn text(self) -> String {
        String::from_utf8_lossy(self.0).into_owned()
    }
}

impl Entropy for Bytes<'_> {
    fn draw(&mut self, below: u32) -> u32 {
        if below <= 1 {
            return 0;
        }
        let wide = (u32::BITS - (below - 1).leading_zeros()).div_ceil(8) as usize;
        let (now, rest) = self.0.split_at(wide.min(self.0.len()));
        self.0 = rest;
        let number = now.iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        // Monotone, as in the generators' own sources: a smaller number is a simpler choice.
        ((number * u64::from(below)) >> (8 * wide)) as u32
    }
}
