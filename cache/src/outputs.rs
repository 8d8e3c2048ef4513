//! Sets of outputs.

use std::fmt;

use smallvec::SmallVec;

/// A set of result numbers of one region: the results that a variant returns, or that a caller
/// needs.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct OutputSet {
    /// Bit `i % 64` of word `i / 64`. No trailing zero words, so that equal sets compare equal.
    words: SmallVec<[u64; 2]>,
}

impl OutputSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> OutputSet {
        OutputSet::default()
    }

    /// Adds a result.
    pub fn insert(&mut self, output: u32) {
        let word = (output / 64) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (output % 64);
    }

    /// Whether a result is in the set.
    #[must_use]
    pub fn contains(&self, output: u32) -> bool {
        self.words.get((output / 64) as usize).is_some_and(|word| word & (1 << (output % 64)) != 0)
    }

    /// Whether every result of `other` is in this set.
    #[must_use]
    pub fn includes(&self, other: &OutputSet) -> bool {
        other.words.len() <= self.words.len() && other.words.iter().zip(&self.words).all(|(o, s)| o & !s == 0)
    }

    /// Adds every result of `other`.
    pub fn extend(&mut self, other: &OutputSet) {
        if other.words.len() > self.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Number of results.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The results, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.words).flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }
}

impl FromIterator<u32> for OutputSet {
    fn from_iter<I: IntoIterator<Item = u32>>(outputs: I) -> Self {
        let mut set = OutputSet::new();
        outputs.into_iter().for_each(|output| set.insert(output));
        set
    }
}

impl fmt::Debug for OutputSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(a in prop::collection::btree_set(0u32..200, 0..40),
                            b in prop::collection::btree_set(0u32..200, 0..40)) {
            let (x, y): (OutputSet, OutputSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert!(x.iter().eq(a.iter().copied()));
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.includes(&y), a.is_superset(&b));
            prop_assert_eq!(x == y, a == b);
            for output in 0..200 {
                prop_assert_eq!(x.contains(output), a.contains(&output));
            }
            let mut union = x.clone();
            union.extend(&y);
            let both: BTreeSet<u32> = a.union(&b).copied().collect();
            prop_assert!(union.iter().eq(both.iter().copied()));
            prop_assert_eq!(union, both.into_iter().collect());
        }
    }
}
