//! Shape classes: one region for all the sizes that a dimension takes.
//!
//! A program with changing sizes (a growing cache, truncated batches) makes a region with other
//! types each time, and each would be compiled. A *shape class* describes what such regions have in
//! common: the same ops and wiring, with *symbols* in place of the varying sizes. A *padded* region
//! can compute every region of the class. In it each symbol is a larger size, its *bucket*, and the
//! true sizes are lifted scalars. All sizes of a bucket thus share one executable.
//!
//! Input: two or more regions ([`ShapeClass::of`]); then one more region ([`ShapeClass::pad`]).
//! Output: a [`Padded`] region, and how data goes into it and comes out ([`resized`]).
//!
//! The padding of a value is arbitrary, NaN included. Each op therefore needs a rule (`rules.rs`)
//! that keeps padding from affecting the elements within the true sizes. Most ops keep elements
//! apart anyway; sums and products over a symbol mask the padding first. Regions that have an op
//! without a rule over a symbol have no class. An op without symbols is copied unchanged.
//!
//! Invariants:
//! - CLASS-1: within the true sizes, the results of the padded region are those of the region, for
//!   any padding. If it is not [`Padded::is_masked`], it applies the same operations to the same
//!   numbers (the same bits in the interpreter). Otherwise only the order of sums may differ (which
//!   also decides what a maximum written with a comparison returns for NaN). Combining integers
//!   does not depend on the order, so it does not count as masked.
//! - CLASS-2: the padded region depends on the class and the buckets, not on the true sizes. True
//!   sizes, and numbers of the region that vary with them, are lifted scalars.
//! - CLASS-3: a class pads only its own regions: those with the same ops, wiring, bodies,
//!   attributes and sizes, except for symbols and what varies with them.
//!
//! Similar mechanisms are Burn's relative shape ids and TorchTPU's shapeless keys. The buckets 2^k
//! and 3 * 2^(k-1) waste at most a third (lazy-tracing notes, section 5g).

mod pad;
mod resize;
mod rules;
mod writer;

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

pub use pad::Padded;
pub use resize::resized;
use smallvec::SmallVec;

use crate::attr::{AttrKind, AttrValue};
use crate::canon::CanonRegion;
use crate::ir::{Graph, OpCode, Ref, Signature};
use crate::literal::Literal;
use crate::shape::TensorType;

/// Maximum number of symbols of a class. Regions with more are not one program at several sizes.
const MAX_SYMBOLS: usize = 16;

/// Maximum number of examples of a class: enough to separate sizes that were equal by chance.
const MAX_EXAMPLES: usize = 4;

/// A varying size, by its index in the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol(usize);

/// The size of a symbol in each example.
type Sizes = SmallVec<[u64; MAX_EXAMPLES]>;

/// Dimensions of a value: fixed, or a symbol.
type Dims = SmallVec<[Option<Symbol>; 6]>;

/// A number that varies with the sizes. It is a lifted scalar of the padded region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VaryingField {
    /// The start of a slice in a dimension.
    Start { node: usize, axis: usize },
    /// The value of a constant with equal elements.
    Constant { node: usize },
}

/// Why regions have no common class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeClassError {
    /// They differ in more than sizes.
    Unlike,
    /// An op has no rule for a varying size.
    NoRule {
        /// Number of the node.
        node: usize,
        /// The op.
        op: OpCode,
    },
}

/// A set of regions with the same ops at several sizes.
#[derive(Clone, Debug)]
pub struct ShapeClass {
    /// Regions of the class. Others are compared with the first.
    examples: Vec<Arc<CanonRegion>>,
    /// The dimensions of each value: parameters first, then results.
    dims: Vec<Dims>,
    holes: Vec<VaryingField>,
    /// For each symbol, the representative of those that share its bucket, because one turns into
    /// the other: a cache before and after a token.
    leaders: Vec<usize>,
}

impl ShapeClass {
    /// The class of two regions.
    ///
    /// # Errors
    /// If they differ in more than sizes, do not differ, or an op has no rule.
    pub fn of(one: &Arc<CanonRegion>, other: &Arc<CanonRegion>) -> Result<ShapeClass, ShapeClassError> {
        ShapeClass::among(vec![one.clone(), other.clone()])
    }

    /// The class extended by one more region.
    ///
    /// # Errors
    /// As [`ShapeClass::of`].
    pub fn with(&self, region: &Arc<CanonRegion>) -> Result<ShapeClass, ShapeClassError> {
        let mut examples = self.examples.clone();
        if examples.len() == MAX_EXAMPLES {
            examples.remove(0);
        }
        examples.push(region.clone());
        ShapeClass::among(examples)
    }

    fn among(examples: Vec<Arc<CanonRegion>>) -> Result<ShapeClass, ShapeClassError> {
        let (first, others) = examples.split_first().ok_or(ShapeClassError::Unlike)?;
        let mut holes = Vec::new();
        for other in others {
            for hole in differences(first, other).ok_or(ShapeClassError::Unlike)? {
                if !holes.contains(&hole) {
                    holes.push(hole);
                }
            }
        }
        let (dims, sizes) = symbols(&examples).ok_or(ShapeClassError::Unlike)?;
        let leaders = leaders(first, &dims, &sizes);
        let class = ShapeClass { examples, dims, holes, leaders };
        // Checks that there is a rule for every op.
        class.pad(&class.examples[0], &bucket)?;
        Ok(class)
    }

    /// The padded region that computes `region`. `bucket` returns the padded size for a size, which
    /// is at least as large.
    ///
    /// # Errors
    /// If the region does not belong to the class.
    pub fn pad(&self, region: &CanonRegion, bucket: &dyn Fn(u64) -> u64) -> Result<Padded, ShapeClassError> {
        let sizes = self.sizes(region).ok_or(ShapeClassError::Unlike)?;
        let mut padded = vec![0; sizes.len()];
        for (&size, &leader) in sizes.iter().zip(&self.leaders) {
            padded[leader] = u64::max(padded[leader], bucket(size).max(size));
        }
        let padded = self.leaders.iter().map(|&leader| padded[leader]).collect();
        pad::padded(self, region, sizes, padded)
    }

    /// The size of each symbol in a region; `None` if the region does not belong to the class
    /// (CLASS-3).
    fn sizes(&self, region: &CanonRegion) -> Option<Vec<u64>> {
        let holes = differences(&self.examples[0], region)?;
        if holes.iter().any(|hole| !self.holes.contains(hole)) {
            return None;
        }
        let mut sizes = vec![None; self.leaders.len()];
        let known = types(self.examples[0].graph());
        for ((dims, known), ty) in self.dims.iter().zip(known).zip(types(region.graph())) {
            if ty.dtype() != known.dtype() || ty.rank() != known.rank() {
                return None;
            }
            for ((symbol, &known), &size) in dims.iter().zip(known.dims()).zip(ty.dims()) {
                let wanted = match *symbol {
                    None => known,
                    Some(Symbol(symbol)) => *sizes[symbol].get_or_insert(size),
                };
                if size != wanted {
                    return None;
                }
            }
        }
        // Sizes of 0 are excluded: a maximum over an empty tensor has no element to start from.
        sizes.into_iter().map(|size| size.filter(|&size| size > 0 && i32::try_from(size).is_ok())).collect()
    }

    fn dims_of(&self, graph: &Graph, value: Ref) -> &Dims {
        &self.dims[place(graph, value)]
    }
}

/// A hash that the regions of a class share: of their ops, and of the element types and ranks of
/// their values.
#[must_use]
pub fn family_of(region: &CanonRegion) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    for node in region.graph().nodes() {
        node.signature().op().number().hash(&mut hasher);
    }
    for ty in types(region.graph()) {
        (ty.dtype(), ty.rank()).hash(&mut hasher);
    }
    hasher.finish()
}

/// The default bucket of a size: the next of 8, 12, 16, 24, 32, ...
#[must_use]
pub fn bucket(size: u64) -> u64 {
    const LEAST: u64 = 8;
    let size = size.max(LEAST);
    let Some(power) = size.checked_next_power_of_two() else { return size };
    let between = power / 4 * 3;
    if size <= between && between >= LEAST { between } else { power }
}

/// Types of all values: parameters first, then results.
fn types(graph: &Graph) -> impl Iterator<Item = &TensorType> {
    graph.params().iter().chain(graph.nodes().iter().flat_map(|node| node.signature().results()))
}

/// The position of a value in the order of [`types`].
fn place(graph: &Graph, value: Ref) -> usize {
    match value {
        Ref::Param(index) => index as usize,
        Ref::Result(index) => graph.params().len() + index as usize,
    }
}

/// The numbers in which two regions differ; `None` if they differ in more than types and such
/// numbers.
fn differences(one: &CanonRegion, other: &CanonRegion) -> Option<Vec<VaryingField>> {
    let (a, b) = (one.graph(), other.graph());
    let is_alike = one.lifted() == other.lifted() && a.nodes().len() == b.nodes().len();
    if !is_alike {
        return None;
    }
    let mut holes = Vec::new();
    for (index, (x, y)) in a.nodes().iter().zip(b.nodes()).enumerate() {
        if x.operands() != y.operands() {
            return None;
        }
        differ(x.signature(), y.signature(), index, &mut holes)?;
    }
    Some(holes)
}

/// Collects the numbers in which two calls differ; `None` if they differ in more than types and
/// such numbers.
fn differ(a: &Signature, b: &Signature, node: usize, holes: &mut Vec<VaryingField>) -> Option<()> {
    if a.op() != b.op() || a.bodies() != b.bodies() {
        return None;
    }
    for ((value, other), def) in a.attrs().values().iter().zip(b.attrs().values()).zip(a.def().attrs) {
        match (a.op(), value, other) {
            _ if value == other => {}
            // The shape of the result, which is compared with the types.
            _ if def.kind == AttrKind::Shape => {}
            (OpCode::DynamicSlice, AttrValue::Ints(_), AttrValue::Ints(_)) => {}
            (OpCode::Slice, AttrValue::Ints(_), AttrValue::Ints(_)) => {}
            (OpCode::Constant, AttrValue::Dense(value), AttrValue::Dense(other)) => {
                let is_number = |value: &Literal| !value.dtype().is_complex();
                if splat(value)? != splat(other)? || value.dtype() != other.dtype() {
                    is_number(value).then(|| holes.push(VaryingField::Constant { node }))?;
                }
            }
            _ => return None,
        }
    }
    if a.op() == OpCode::Slice {
        let (a, b) = (a.attrs().view(), b.attrs().view());
        let (starts, limits, strides) = (0, 1, 2);
        if a.ints(strides) != b.ints(strides) {
            return None;
        }
        for axis in 0..a.ints(strides).len() {
            let is_same = |place: usize| a.ints(place)[axis] == b.ints(place)[axis];
            if a.ints(strides)[axis] != 1 && !(is_same(starts) && is_same(limits)) {
                return None;
            }
            if !is_same(starts) {
                holes.push(VaryingField::Start { node, axis });
            }
        }
    }
    Some(())
}

/// The common element of a constant; `None` if its elements differ.
fn splat(value: &Literal) -> Option<&[u8]> {
    let size = value.dtype().size();
    let mut elements = value.bytes().chunks_exact(size);
    let first = elements.next()?;
    elements.all(|element| element == first).then_some(first)
}

/// Assigns symbols to the sizes that differ among regions, one for each distinct sequence of sizes;
/// returns the sequences too. `None` if types differ in more than sizes, no size differs, or too
/// many do.
fn symbols(examples: &[Arc<CanonRegion>]) -> Option<(Vec<Dims>, Vec<Sizes>)> {
    let (mut dims, mut sizes) = (Vec::new(), Vec::<Sizes>::new());
    let mut rows: Vec<_> = examples.iter().map(|region| types(region.graph())).collect();
    loop {
        let each: Vec<Option<&TensorType>> = rows.iter_mut().map(Iterator::next).collect();
        let Some(each) = each.into_iter().collect::<Option<Vec<_>>>() else { break };
        let ty = each[0];
        if each.iter().any(|other| other.dtype() != ty.dtype() || other.rank() != ty.rank()) {
            return None;
        }
        // An empty tensor has no element, so for a maximum it is another program.
        let empty = each.iter().filter(|ty| ty.elems().0 == 0).count();
        if empty > 0 && empty < each.len() {
            return None;
        }
        let symbol = |axis: usize| {
            let seen: Sizes = each.iter().map(|ty| ty.dims()[axis]).collect();
            if seen.iter().all(|&size| size == seen[0]) {
                return None;
            }
            let known = sizes.iter().position(|sizes| *sizes == seen);
            Some(Symbol(known.unwrap_or_else(|| {
                sizes.push(seen);
                sizes.len() - 1
            })))
        };
        dims.push((0..ty.rank()).map(symbol).collect());
    }
    (!sizes.is_empty() && sizes.len() <= MAX_SYMBOLS).then_some((dims, sizes))
}

/// For each symbol, the one whose bucket it shares: itself, or one that differs from it by a fixed
/// number of elements through a concatenation, slice or padding.
fn leaders(region: &CanonRegion, dims: &[Dims], sizes: &[Sizes]) -> Vec<usize> {
    let mut leaders: Vec<usize> = (0..sizes.len()).collect();
    let graph = region.graph();
    for node in graph.nodes() {
        if !matches!(node.signature().op(), OpCode::Concatenate | OpCode::Slice | OpCode::Pad) {
            continue;
        }
        let Some(result) = node.results().next() else { continue };
        for &operand in node.operands() {
            for (from, to) in dims[place(graph, operand)].iter().zip(&dims[place(graph, result)]) {
                let (Some(Symbol(from)), Some(Symbol(to))) = (*from, *to) else { continue };
                let more = |(&from, &to): (&u64, &u64)| to.wrapping_sub(from);
                let mut differences = sizes[from].iter().zip(&sizes[to]).map(more);
                let first = differences.next();
                if differences.all(|difference| Some(difference) == first) {
                    let (kept, gone) = (leaders[from], leaders[to]);
                    leaders.iter_mut().filter(|leader| **leader == gone).for_each(|leader| *leader = kept);
                }
            }
        }
    }
    leaders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_at_least_the_size_and_few() {
        let sizes: Vec<u64> = (1..=64).map(bucket).collect();
        assert!(
            (1..=64).zip(&sizes).all(|(size, &bucket)| size <= bucket && (size < 8 || 2 * size > bucket))
        );
        let mut distinct = sizes.clone();
        distinct.dedup();
        assert_eq!(distinct, [8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(bucket(u64::MAX), u64::MAX);
    }
}
