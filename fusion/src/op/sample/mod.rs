//! Valid calls for generated tests.
//!
//! Each row of the op table has a function that makes a call of the op from a source of choices and a pool of values
//! that already exist. Property tests build whole programs that way, and per-op tests cover every element type, so that
//! a new op is tested the day its row is added.
//!
//! A choice is a number below a bound, and 0 is the simplest choice: the first value of the pool, the smallest shape,
//! the first attribute. A test framework that shrinks choices towards 0 therefore shrinks programs.

pub(super) mod contraction;
pub(super) mod elementwise;
pub(super) mod indexing;
pub(super) mod movement;
pub(super) mod reduction;
pub(super) mod source;

use std::sync::Arc;

use crate::attr::Attrs;
use crate::dtype::{DType, DTypeSet};
use crate::graph::Body;
use crate::op::OpDef;
use crate::shape::TensorType;

/// A source of choices.
pub trait Entropy {
    /// A number from 0 to `below - 1`; 0 when `below` is 0 or 1.
    fn draw(&mut self, below: u32) -> u32;
}

/// Choices from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Starts from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Seeded {
        Seeded(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Entropy for Seeded {
    fn draw(&mut self, below: u32) -> u32 {
        if below <= 1 { 0 } else { (((self.next_u64() >> 32) * u64::from(below)) >> 32) as u32 }
    }
}

/// Which data a fresh operand should have, where not every value makes a useful test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Small numbers of both signs, the special ones included where a test asks for them.
    Any,
    /// Numbers from 1/4 to 4: safe to divide by, to take the logarithm and the root of.
    Positive,
    /// Integers that are indices into a dimension of this size, some of them outside on either side.
    Index {
        /// The size of the dimension.
        size: u64,
    },
    /// Shift amounts and exponents: integers from 0 to the bit width.
    Amount,
}

/// An operand of a sampled call.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleOperand {
    /// The value of the pool with this index.
    Pool(usize),
    /// A new value of this type.
    Fresh(TensorType, Domain),
}

/// A call that fits the op table.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The operands.
    pub operands: Vec<SampleOperand>,
    /// The attributes.
    pub attrs: Attrs,
    /// The bodies.
    pub bodies: Vec<Arc<Body>>,
}

/// What a row's generator works with.
pub struct Sampler<'a> {
    def: &'static OpDef,
    entropy: &'a mut dyn Entropy,
    pool: &'a [TensorType],
    dtypes: DTypeSet,
}

impl std::fmt::Debug for Sampler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sampler({}, {} values)", self.def.name, self.pool.len())
    }
}

/// Most elements of a sampled value: large enough for every path, small enough for thousands of programs.
const MAX_ELEMS: u64 = 256;

/// Largest size of a sampled dimension.
const MAX_DIM: u32 = 5;

/// Largest rank of a sampled value.
const MAX_SAMPLED_RANK: u32 = 4;

impl<'a> Sampler<'a> {
    /// Samples calls of the op with row `def` over the values of `pool`, with fresh operands of the given types only.
    pub fn new(
        def: &'static OpDef,
        entropy: &'a mut dyn Entropy,
        pool: &'a [TensorType],
        dtypes: DTypeSet,
    ) -> Sampler<'a> {
        Sampler { def, entropy, pool, dtypes }
    }

    /// A call of the op; `None` when the choices lead nowhere.
    #[must_use]
    pub fn sample(mut self) -> Option<Sample> {
        (self.def.sample)(&mut self)
    }

    /// A number below `below`.
    pub(super) fn below(&mut self, below: usize) -> usize {
        self.entropy.draw(u32::try_from(below).unwrap_or(u32::MAX)) as usize
    }

    /// One of a list; `None` when it is empty.
    pub(super) fn one_of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len());
        items.get(index).copied()
    }

    /// True once in `times`.
    pub(super) fn rarely(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// The row's element types among those the test wants.
    pub(super) fn row_dtypes(&self) -> DTypeSet {
        self.def.dtypes.and(self.dtypes)
    }

    /// An element type of the row.
    pub(super) fn dtype(&mut self) -> Option<DType> {
        self.dtype_of(self.row_dtypes())
    }

    /// An element type of a set.
    pub(super) fn dtype_of(&mut self, set: DTypeSet) -> Option<DType> {
        let dtypes: Vec<DType> = set.and(self.dtypes).iter().collect();
        self.one_of(&dtypes)
    }

    /// A shape of at least `min_rank` dimensions; now and then with a dimension of size 0 or 1.
    pub(super) fn dims(&mut self, min_rank: u32) -> Vec<u64> {
        let rank = min_rank + self.entropy.draw(MAX_SAMPLED_RANK - min_rank + 1);
        let mut dims = Vec::new();
        let mut elems = 1;
        for _ in 0..rank {
            let dim = if self.rarely(24) { 0 } else { 1 + u64::from(self.entropy.draw(MAX_DIM)) };
            let dim = if elems * dim > MAX_ELEMS { 1 } else { dim };
            elems *= dim.max(1);
            dims.push(dim);
        }
        dims
    }

    /// Indices of the pool's values that `accept` takes.
    pub(super) fn matching(&self, accept: impl Fn(&TensorType) -> bool) -> Vec<usize> {
        (0..self.pool.len()).filter(|&index| accept(&self.pool[index])).collect()
    }

    /// An operand of one of the element types and at least `min_rank` dimensions: mostly from the pool.
    pub(super) fn operand(&mut self, set: DTypeSet, min_rank: u32) -> Option<(SampleOperand, TensorType)> {
        let set = set.and(self.dtypes);
        let fitting = self.matching(|ty| {
            set.contains(ty.dtype()) && ty.rank() >= min_rank as usize && ty.elems().0 <= MAX_ELEMS
        });
        if !fitting.is_empty() && !self.rarely(4) {
            let index = self.one_of(&fitting)?;
            return Some((SampleOperand::Pool(index), self.pool[index].clone()));
        }
        let dtype = self.dtype_of(set)?;
        let dims = self.dims(min_rank);
        let ty = TensorType::of(dtype, &dims).ok()?;
        Some((SampleOperand::Fresh(ty.clone(), Domain::Any), ty))
    }

    /// An operand of exactly this type: from the pool where there is one, else fresh.
    pub(super) fn operand_like(&mut self, ty: &TensorType, domain: Domain) -> SampleOperand {
        let fitting = self.matching(|candidate| candidate == ty);
        if domain == Domain::Any
            && !self.rarely(4)
            && let Some(index) = self.one_of(&fitting)
        {
            return SampleOperand::Pool(index);
        }
        SampleOperand::Fresh(ty.clone(), domain)
    }
}
