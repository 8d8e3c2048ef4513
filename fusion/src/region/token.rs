//! A stable hash of recorded ops: the same in every process and on every machine, because region
//! boundaries must not depend on the build.

/// The hash of the words added so far. It is not an identity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token(u64);

impl Token {
    pub(super) fn new(word: u64) -> Token {
        Token(word)
    }

    /// Adds a word, with a step of SplitMix64.
    pub(super) fn add(&mut self, word: u64) {
        self.0 = mixed(self.0.rotate_left(5).wrapping_add(word));
    }

    pub(super) fn get(self) -> u64 {
        self.0
    }
}

/// A step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014).
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
