//! A hash of what was recorded that is the same in every process and on every machine: where regions end must not depend on a build.

use crate::op::Seeded;

/// The hash of the words added so far. Not an identity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token(u64);

impl Token {
    pub(super) fn new(word: u64) -> Token {
        Token(word)
    }

    /// Adds a word, by a step of SplitMix64.
    pub(super) fn add(&mut self, word: u64) {
        self.0 = Seeded::new(self.0.rotate_left(5).wrapping_add(word)).next_u64();
    }

    pub(super) fn get(self) -> u64 {
        self.0
    }
}
