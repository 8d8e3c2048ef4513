//! Random calls and programs for tests. Other crates use this one only in their tests, benches and
//! fuzz targets.
//!
//! Each op has a function that generates a valid call from a source of choices and a pool of
//! existing values ([`Sampler`]; `table.rs` maps op codes to these functions). Property tests build
//! whole programs this way ([`ProgramSampler`]), and per-op tests cover every element type, so a
//! new op is tested as soon as its row is in the op table.
//!
//! A choice is a number below a bound ([`Entropy`]), and 0 is the simplest choice: the first value
//! of the pool, the smallest shape, the first attribute. A test framework that shrinks choices
//! towards 0 therefore shrinks programs.
//!
//! Invariants:
//! - SAMPLE-1: a [`Sample`] passes [`fuseline_fusion::Signature::infer`] for the types of its
//!   operands.
//! - SAMPLE-2: the interpreter runs it with any data: no sample has results that are left to the
//!   plugin.
//! - SAMPLE-3: with [`Aim::Portable`], executors that follow the specification or XLA agree on the
//!   result up to rounding, for finite data. If the two differ, or the specification leaves
//!   something open, there is no portable sample.
#![forbid(unsafe_code)]

mod bodies;
mod chlo;
mod collective;
mod composite;
mod contraction;
mod control;
mod data;
mod dynamic;
mod elementwise;
mod flow;
mod graph;
mod grow;
mod handler;
mod indexing;
mod linalg;
mod movement;
mod program;
mod reduction;
mod resized;
mod source;
mod table;

use std::sync::Arc;

pub use data::fill;
use fuseline_fusion::{Attrs, Body, DType, DTypeSet, Literal, OpDef, TensorType};
pub use graph::{graph_of, sampled_region};
pub use program::{ProgramOptions, ProgramSampler, Sampled, SampledValue, rounding};
pub use resized::sample_sizes;

/// A source of choices.
pub trait Entropy {
    /// A number from 0 to `below - 1`; 0 if `below` is 0 or 1.
    fn draw(&mut self, below: u32) -> u32;
}

/// Choices from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
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

/// Scales a fraction of `u32::MAX` to a number below a bound. It is monotone, so a smaller fraction
/// is a simpler choice.
fn scaled(fraction: u32, below: u32) -> u32 {
    ((u64::from(fraction) * u64::from(below)) >> 32) as u32
}

impl Entropy for Seeded {
    fn draw(&mut self, below: u32) -> u32 {
        if below <= 1 { 0 } else { scaled((self.next_u64() >> 32) as u32, below) }
    }
}

/// Choices from a list that a test framework generated and can shrink; 0 after its end.
#[derive(Clone, Debug)]
pub struct Choices<'a>(&'a [u32]);

impl<'a> Choices<'a> {
    /// Takes the choices from `list`, first to last.
    #[must_use]
    pub fn new(list: &'a [u32]) -> Choices<'a> {
        Choices(list)
    }
}

impl Entropy for Choices<'_> {
    fn draw(&mut self, below: u32) -> u32 {
        if below <= 1 {
            return 0;
        }
        match self.0.split_first() {
            Some((&fraction, rest)) => {
                self.0 = rest;
                scaled(fraction, below)
            }
            None => 0,
        }
    }
}

/// The purpose of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Comparing executors: calls and data on which all agree up to rounding (SAMPLE-3).
    Portable,
    /// Testing one implementation against itself: every call that the op table accepts and the
    /// interpreter runs, with arbitrary bits such as NaN, infinities and the bounds of the types.
    Everything,
}

/// The data of a fresh operand, for ops where not every value makes a useful test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Small numbers of both signs, and special ones with [`Aim::Everything`].
    Any,
    /// Numbers from 1/4 to 4: safe as divisors and operands of logarithms and roots.
    Positive,
    /// Integers that are indices into a dimension of this size, some of them out of bounds on
    /// either side.
    Index {
        /// The size of the dimension.
        size: u64,
    },
    /// Shift amounts: integers from 0 to the bit width.
    Amount,
    /// Small non-negative integers: exponents, orders, sizes of groups.
    Exponent,
    /// Numbers between -1 and 1, not near these bounds or 0: for `asin`, `atanh` and `erf_inv`.
    Unit,
    /// Numbers from 5/4 to 5: for `acosh` and the order of `zeta`.
    AboveOne,
    /// Square matrices in the last two dimensions, positive definite and well-conditioned:
    /// symmetric and diagonally dominant. For floats.
    PositiveDefinite,
}

/// An operand of a sampled call.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleOperand {
    /// The value of the pool with this index.
    Pool(usize),
    /// A new value of this type.
    Fresh(TensorType, Domain),
    /// A new value with this data, which makes the call portable: an identity element, indices in
    /// order.
    Given(Arc<Literal>),
}

impl SampleOperand {
    /// Type of the operand, given the types of the pool.
    #[must_use]
    pub fn ty<'a>(&'a self, pool: &'a [TensorType]) -> &'a TensorType {
        match self {
            SampleOperand::Pool(index) => &pool[*index],
            SampleOperand::Fresh(ty, _) => ty,
            SampleOperand::Given(data) => data.ty(),
        }
    }
}

/// A call that the op table accepts.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The operands.
    pub operands: Vec<SampleOperand>,
    /// The attributes.
    pub attrs: Attrs,
    /// The bodies.
    pub bodies: Vec<Arc<Body>>,
}

impl Sample {
    /// A call without bodies.
    fn plain(operands: impl IntoIterator<Item = SampleOperand>, attrs: Attrs) -> Sample {
        Sample { operands: operands.into_iter().collect(), attrs, bodies: Vec::new() }
    }
}

/// The state for the generator of an op.
pub struct Sampler<'a> {
    def: &'static OpDef,
    entropy: &'a mut dyn Entropy,
    pool: &'a [TensorType],
    dtypes: DTypeSet,
    aim: Aim,
    replicas: usize,
    /// The size of fresh dimensions that are larger than [`MAX_FIXED_DIM`].
    varying_size: Option<u64>,
    /// Nesting of bodies around the call.
    depth: usize,
}

impl std::fmt::Debug for Sampler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sampler({}, {} values, {:?})", self.def.name, self.pool.len(), self.aim)
    }
}

/// Maximum number of elements of a sampled operand: large enough for every path, small enough for
/// thousands of programs.
const MAX_ELEMS: u64 = 256;

/// Maximum size of a sampled dimension.
const MAX_DIM: u32 = 5;

/// Largest size that stays the same in programs that differ in a size.
const MAX_FIXED_DIM: u32 = 2;

/// Maximum rank of a sampled value.
const MAX_SAMPLED_RANK: u32 = 4;

impl<'a> Sampler<'a> {
    /// Samples calls of the op with row `def` on the values of `pool`. Fresh operands only have the
    /// given types.
    pub fn new(
        def: &'static OpDef,
        entropy: &'a mut dyn Entropy,
        pool: &'a [TensorType],
        dtypes: DTypeSet,
        aim: Aim,
    ) -> Sampler<'a> {
        Sampler { def, entropy, pool, dtypes, aim, depth: 0, replicas: 1, varying_size: None }
    }

    /// Samples calls for a program with `replicas` replicas. The default is 1.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Sampler<'a> {
        self.replicas = replicas.max(1);
        self
    }

    /// Sets the size of the fresh dimensions that are larger than 2. By default they keep theirs.
    #[must_use]
    pub fn varying_size(mut self, size: Option<u64>) -> Sampler<'a> {
        self.varying_size = size;
        self
    }

    /// A call of the op; `None` if the choices do not lead to one.
    #[must_use]
    pub fn sample(mut self) -> Option<Sample> {
        table::generator(self.def.code)(&mut self)
    }

    /// Whether the call must be portable.
    fn portable(&self) -> bool {
        self.aim == Aim::Portable
    }

    /// A number below `below`.
    fn below(&mut self, below: usize) -> usize {
        self.entropy.draw(u32::try_from(below).unwrap_or(u32::MAX)) as usize
    }

    /// A number from 0 to `most`.
    fn up_to(&mut self, most: u64) -> u64 {
        self.below(usize::try_from(most).unwrap_or(usize::MAX).saturating_add(1)) as u64
    }

    /// One item of a list; `None` if it is empty.
    fn one_of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len());
        items.get(index).copied()
    }

    /// True once in `times`.
    fn rarely(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// A permutation of the numbers below `count`; choices of 0 give the identity.
    fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..count).collect();
        (0..count)
            .map(|_| {
                let index = self.below(left.len());
                left.remove(index)
            })
            .collect()
    }

    /// Some of the numbers below `count`, in order; choices of 0 give the first ones.
    fn subset(&mut self, count: usize, size: usize) -> Vec<usize> {
        let mut chosen = self.permutation(count);
        chosen.truncate(size);
        chosen.sort_unstable();
        chosen
    }

    /// The row's element types that the test wants.
    fn row_dtypes(&self) -> DTypeSet {
        self.def.dtypes.and(self.dtypes)
    }

    /// An element type of a set.
    fn dtype_of(&mut self, set: DTypeSet) -> Option<DType> {
        let dtypes: Vec<DType> = set.and(self.dtypes).iter().collect();
        self.one_of(&dtypes)
    }

    /// The element type, or occasionally a wider one of its family.
    fn widened(&mut self, dtype: DType) -> DType {
        let wider = |to: &DType| *to == dtype || (to.class() == dtype.class() && to.bits() > dtype.bits());
        let mut dtypes: Vec<DType> = self.dtypes.iter().filter(wider).collect();
        dtypes.sort_by_key(|&to| (to != dtype, to.bits()));
        if dtypes.is_empty() || !self.rarely(4) { dtype } else { self.one_of(&dtypes).unwrap_or(dtype) }
    }

    /// A size, rarely 0 and more often 1.
    fn dim(&mut self) -> u64 {
        if self.rarely(24) {
            return 0;
        }
        let size = 1 + self.entropy.draw(MAX_DIM);
        let varying_size = self.varying_size.filter(|_| size > MAX_FIXED_DIM);
        varying_size.unwrap_or(size.into())
    }

    /// A shape of at least `min_rank` dimensions.
    fn dims(&mut self, min_rank: u32) -> Vec<u64> {
        let rank = min_rank + self.entropy.draw(MAX_SAMPLED_RANK.saturating_sub(min_rank) + 1);
        let dims = (0..rank).map(|_| self.dim()).collect();
        limited(dims)
    }

    /// Indices of the pool's values that `accept` accepts.
    fn matching(&self, accept: impl Fn(&TensorType) -> bool) -> Vec<usize> {
        (0..self.pool.len()).filter(|&index| accept(&self.pool[index])).collect()
    }

    /// An operand of one of the element types with at least `min_rank` dimensions, mostly from the
    /// pool.
    fn operand(&mut self, set: DTypeSet, min_rank: u32) -> Option<(SampleOperand, TensorType)> {
        self.operand_in(set, min_rank, Domain::Any)
    }

    /// As [`Sampler::operand`], but more often fresh if a domain is required.
    fn operand_in(
        &mut self,
        set: DTypeSet,
        min_rank: u32,
        domain: Domain,
    ) -> Option<(SampleOperand, TensorType)> {
        let set = set.and(self.dtypes);
        let fitting = self.matching(|ty| {
            set.contains(ty.dtype())
                && ty.rank() >= min_rank as usize
                && ty.rank() <= MAX_SAMPLED_RANK as usize
                && ty.elems().0 <= MAX_ELEMS
        });
        if !fitting.is_empty() && !self.rarely(if domain == Domain::Any { 4 } else { 2 }) {
            let index = self.one_of(&fitting)?;
            return Some((SampleOperand::Pool(index), self.pool[index].clone()));
        }
        let dtype = self.dtype_of(set)?;
        let dims = self.dims(min_rank);
        let ty = TensorType::of(dtype, &dims).ok()?;
        Some((SampleOperand::Fresh(ty.clone(), domain), ty))
    }

    /// An operand of exactly this type, from the pool if possible.
    fn operand_like(&mut self, ty: &TensorType, domain: Domain) -> SampleOperand {
        let fitting = self.matching(|candidate| candidate == ty);
        if domain == Domain::Any
            && !self.rarely(4)
            && let Some(index) = self.one_of(&fitting)
        {
            return SampleOperand::Pool(index);
        }
        SampleOperand::Fresh(ty.clone(), domain)
    }

    /// An operand with this element type and these sizes.
    fn operand_of(&mut self, dtype: DType, dims: &[u64]) -> Option<SampleOperand> {
        let ty = TensorType::of(dtype, dims).ok()?;
        Some(self.operand_like(&ty, Domain::Any))
    }
}

/// The sizes, with 1 in place of those that would give too many elements.
fn limited(mut dims: Vec<u64>) -> Vec<u64> {
    let mut elems = 1;
    for dim in &mut dims {
        if elems * *dim > MAX_ELEMS {
            *dim = 1;
        }
        elems *= (*dim).max(1);
    }
    dims
}

/// Dimension numbers in attribute form.
fn axes(axes: &[usize]) -> Vec<i64> {
    axes.iter().map(|&axis| axis as i64).collect()
}
