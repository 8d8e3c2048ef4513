//! Packs the lifted scalars of an execution into one `ui32` vector.
//!
//! An argument costs 0.17 µs per execution on XLA's CPU backend and a transfer of its own, so a
//! region with ten lifted scalars passes one argument. A scalar of up to 32 bits takes one word
//! (its bits zero-extended), one of 64 bits takes two (low word first). The zero for the fences of
//! an exact region ([`super::Numerics`]) takes one more word.
//!
//! On that backend, scalars are separate arguments, each with its own words, if the arguments take
//! less than a hundredth of the time of the region's ops. XLA generates code for equal fusions
//! once. Offsets in a packed vector make otherwise equal fusions differ, such as those of a loop
//! that the program has unrolled. Compiles of the same module, packed and separate (2 cores, API
//! 0.81, 2026-11-24): `stencil/512x512` 0.33 and 0.17 s, `nbody/512` 0.97 and 0.60, `gpt2/width
//! 256` 1.6 and 1.5, `resnet/32x32` 1.55 and 1.4.

use std::ops::Range;

use super::unsteady::has_zero;
use super::{Numerics, Target};
use crate::canon::CanonRegion;
use crate::dtype::DType;
use crate::literal::Scalar;
use crate::shape::TensorType;
use smallvec::{SmallVec, smallvec};

/// The position of each lifted scalar of a region in the packed vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalarPack {
    /// For each lifted parameter, in order: its element type and first word.
    slots: Vec<(DType, usize)>,
    words: usize,
    /// Index of the word that is zero in every execution.
    zero: Option<usize>,
    /// Whether each scalar is a separate argument.
    is_apart: bool,
}

/// Minimum number of ops for separate scalars: a smaller region hardly has equal fusions.
const MANY_OPS: usize = 32;

/// Maximum number of separate scalars: compile time grows with the arguments, by a second at 512.
const MAX_SEPARATE: usize = 128;

/// Minimum number of elements that the region computes per separate scalar: at 0.1 ns or more each,
/// they take 80 times as long as the argument.
const ELEMENTS: u64 = 1 << 17;

/// Words that a scalar of this type takes.
const fn words(dtype: DType) -> usize {
    if dtype.size() > 4 { 2 } else { 1 }
}

/// The type of an argument of `words` words.
pub(super) fn packed(words: usize) -> TensorType {
    TensorType::of(DType::U32, &[words as u64]).expect("as many words as a region has scalars")
}

impl ScalarPack {
    /// The layout for a region.
    #[must_use]
    pub fn of(target: Target, region: &CanonRegion, numerics: Numerics) -> ScalarPack {
        let mut slots = Vec::new();
        let mut next = 0;
        for (ty, &lifted) in region.graph().params().iter().zip(region.lifted()) {
            if lifted {
                slots.push((ty.dtype(), next));
                next += words(ty.dtype());
            }
        }
        let zero = has_zero(region, numerics).then_some(next);
        let is_apart = matches!(target, Target::Cpu { .. })
            && numerics == Numerics::Fast
            && is_long(region, slots.len());
        ScalarPack { slots, words: next + usize::from(zero.is_some()), zero, is_apart }
    }

    /// The words of each argument, in order: one range for all scalars, one per scalar, or none.
    pub fn arguments(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let apart = self.slots.iter().filter(|_| self.is_apart);
        let apart = apart.map(|&(dtype, first)| first..first + words(dtype));
        apart.chain((!self.is_apart && self.words > 0).then_some(0..self.words))
    }

    /// The parameter types of the region's module: its tensor parameters, then the arguments for
    /// scalars.
    #[must_use]
    pub fn parameters(&self, region: &CanonRegion) -> Vec<TensorType> {
        let all = region.graph().params().iter().zip(region.lifted());
        let tensors = all.filter(|(_, lifted)| !**lifted).map(|(ty, _)| ty.clone());
        tensors.chain(self.arguments().map(|range| packed(range.len()))).collect()
    }

    /// Number of words; 0 if the region has neither lifted scalars nor fences, and so no argument
    /// for them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words
    }

    /// Whether there is nothing to pack.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// The word that is zero in every execution, if there is one.
    pub(super) fn zero(&self) -> Option<usize> {
        self.zero
    }

    /// Element type and first word of each lifted scalar, in the order of the parameters.
    #[must_use]
    pub fn slots(&self) -> &[(DType, usize)] {
        &self.slots
    }

    /// Packs the scalars of one execution, given in the order of the lifted parameters.
    ///
    /// # Panics
    /// If their number or an element type is not the region's.
    #[must_use]
    pub fn pack(&self, scalars: impl Iterator<Item = Scalar>) -> SmallVec<[u32; 16]> {
        let mut packed = smallvec![0; self.words];
        let mut filled = 0;
        for (scalar, &(dtype, first)) in scalars.zip(&self.slots) {
            assert_eq!(scalar.dtype(), dtype, "lifted scalar {filled} has another type");
            packed[first] = scalar.bits() as u32;
            if words(dtype) == 2 {
                packed[first + 1] = (scalar.bits() >> 32) as u32;
            }
            filled += 1;
        }
        assert_eq!(filled, self.slots.len(), "one value per lifted scalar");
        packed
    }
}

/// Whether the region's ops take so long that the time for `scalars` arguments is negligible.
fn is_long(region: &CanonRegion, scalars: usize) -> bool {
    let nodes = region.graph().nodes();
    if nodes.len() < MANY_OPS || scalars > MAX_SEPARATE {
        return false;
    }
    let results = nodes.iter().flat_map(|node| node.signature().results());
    let made = results.fold(0u64, |sum, ty| sum.saturating_add(ty.elems().0));
    made / ELEMENTS >= scalars as u64
}

/// The same scalars as separate arguments.
#[must_use]
pub fn taken_apart(pack: ScalarPack) -> ScalarPack {
    ScalarPack { is_apart: true, ..pack }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::ir::{Graph, OpCode};
    use crate::shape::TensorType;

    #[test]
    fn they_travel_apart_where_that_costs_nothing() {
        let is_apart = |ops: usize, size: u64, target, numerics| {
            let ty = |dims: &[u64]| TensorType::of(DType::F32, dims).unwrap();
            let mut graph = Graph::new();
            let [data, number] = [ty(&[size]), ty(&[])].map(|ty| graph.param(ty));
            let attrs = crate::op::attrs::broadcast_in_dim(crate::shape::Shape::new(&[size]).unwrap(), &[]);
            let number = graph.push(OpCode::BroadcastInDim, attrs, &[], &[number]).unwrap()[0];
            let mut value = data;
            for _ in 1..ops {
                value = graph.push(OpCode::Multiply, Attrs::none(), &[], &[value, number]).unwrap()[0];
            }
            let region = CanonRegion::new(graph, Box::new([false, true]));
            ScalarPack::of(target, &region, numerics).is_apart
        };
        assert!(is_apart(32, 1 << 12, Target::CPU, Numerics::Fast));
        assert!(!is_apart(31, 1 << 20, Target::CPU, Numerics::Fast), "few ops");
        assert!(!is_apart(32, 1 << 11, Target::CPU, Numerics::Fast), "soon done");
        assert!(!is_apart(32, 1 << 12, Target::Any, Numerics::Fast));
        assert!(!is_apart(32, 1 << 12, Target::CPU, Numerics::Exact));
    }
}
