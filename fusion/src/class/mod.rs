//! Shape classes: one region for all the sizes that a dimension takes.
//!
//! A program whose sizes change (a cache that grows, batches that are cut short) makes a region of other types each time, and each
//! would be compiled. A *shape class* is what such regions have in common: the same ops, wired alike, with *symbols* in place of
//! the sizes that vary. A region of the class can be computed by a *padded* region, in which each symbol is a larger size, its
//! *bucket*, and the true sizes are lifted scalars; so all sizes of a bucket share one executable.
//!
//! Input: two or more regions ([`ShapeClass::of`]); then one more region ([`ShapeClass::pad`]). Output: a [`Padded`] region, and how data goes into it
//! and comes out ([`resized`]).
//!
//! What lies behind the true size of a padded value is arbitrary, NaN included. So each op needs a rule (`rules.rs`) that keeps it from
//! reaching an element within the true size: most ops keep elements apart by themselves; sums and products over a symbol get a
//! mask first. An op without a rule, over a symbol, has no class; without a symbol in sight every op is copied as it is.
//!
//! Invariants:
//! - O1: within the true sizes, the results of the padded region are those of the region, whatever lies behind: the same operations
//!   on the same numbers if it is not [`Padded::is_masked`] (the same bits by the interpreter), otherwise but for the order of sums
//!   (which also decides what the greater of two is where one is NaN). Combining integers has no order: those are not counted as masked.
//! - O2: the padded region depends on the class and the buckets, not on the true sizes. Those, and the numbers of the region that
//!   vary with them, are lifted scalars.
//! - O3: a region is only padded by a class that it is of: the same ops, wiring, bodies, attributes and sizes, but for symbols and
//!   what varies with them.
//!
//! Shape-polymorphic keys are Burn's relative shape ids and TorchTPU's shapeless keys; the buckets 2^k and 3 * 2^(k-1) waste at most a
//! third (lazy-tracing notes, section 5g).

mod pad;
mod resize;
mod rules;
mod writer;

use std::sync::Arc;

pub use pad::Padded;
pub use resize::resized;
use smallvec::SmallVec;

use crate::attr::{AttrKind, AttrValue};
use crate::canon::CanonRegion;
use crate::graph::{Graph, Ref};
use crate::literal::Literal;
use crate::op::{OpCode, Signature};
use crate::shape::TensorType;

/// Most symbols of a class. What has more is not one program at several sizes.
const MAX_SYMBOLS: usize = 16;

/// Most examples that a class is made of: enough to tell sizes apart that were equal by chance.
const MAX_EXAMPLES: usize = 4;

/// A size that varies, by its place among those of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol(usize);

/// What a symbol is in each example.
type Sizes = SmallVec<[u64; MAX_EXAMPLES]>;

/// Dimensions of a value: fixed, or a symbol.
type Dims = SmallVec<[Option<Symbol>; 6]>;

/// A number that varies with the sizes, and is a lifted scalar of the padded region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    /// Where a slice starts in a dimension.
    Start { node: usize, axis: usize },
    /// The value of a constant, the same in all elements.
    Constant { node: usize },
}

/// Why regions have no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclassed {
    /// They differ in more than sizes.
    Unlike,
    /// This op, by the number of its node, has no rule for what it does with a size that varies.
    NoRule {
        /// Number of the node.
        node: usize,
        /// The op.
        op: OpCode,
    },
}

/// Regions of the same ops at several sizes.
#[derive(Clone, Debug)]
pub struct ShapeClass {
    /// Regions of the class; the first is what others are compared with.
    examples: Vec<Arc<CanonRegion>>,
    /// Of each value, parameters first, then results.
    dims: Vec<Dims>,
    holes: Vec<Hole>,
    /// For each symbol, the one that stands for all that share its bucket, because one becomes the other: a cache before and after a token.
    leaders: Vec<usize>,
}

impl ShapeClass {
    /// The class of two regions.
    ///
    /// # Errors
    /// When they differ in more than sizes, not at all, or an op has no rule.
    pub fn of(one: &Arc<CanonRegion>, other: &Arc<CanonRegion>) -> Result<ShapeClass, Unclassed> {
        ShapeClass::among(vec![one.clone(), other.clone()])
    }

    /// The class that has one more region in it.
    ///
    /// # Errors
    /// As [`ShapeClass::of`].
    pub fn with(&self, region: &Arc<CanonRegion>) -> Result<ShapeClass, Unclassed> {
        let mut examples = self.examples.clone();
        if examples.len() == MAX_EXAMPLES {
            examples.remove(0);
        }
        examples.push(region.clone());
        ShapeClass::among(examples)
    }

    fn among(examples: Vec<Arc<CanonRegion>>) -> Result<ShapeClass, Unclassed> {
        let (first, others) = examples.split_first().ok_or(Unclassed::Unlike)?;
        let mut holes = Vec::new();
        for other in others {
            for hole in differences(first, other).ok_or(Unclassed::Unlike)? {
                if !holes.contains(&hole) {
                    holes.push(hole);
                }
            }
        }
        let (dims, sizes) = symbols(&examples).ok_or(Unclassed::Unlike)?;
        let leaders = leaders(first, &dims, &sizes);
        let class = ShapeClass { examples, dims, holes, leaders };
        // Whether there are rules for all that it does.
        class.pad(&class.examples[0], &bucket)?;
        Ok(class)
    }

    /// The padded region that computes `region`. `bucket` says what a size is padded to, which is at least as much.
    ///
    /// # Errors
    /// When the region is not of the class.
    pub fn pad(&self, region: &CanonRegion, bucket: &dyn Fn(u64) -> u64) -> Result<Padded, Unclassed> {
        let sizes = self.sizes(region).ok_or(Unclassed::Unlike)?;
        let mut padded = vec![0; sizes.len()];
        for (&size, &leader) in sizes.iter().zip(&self.leaders) {
            padded[leader] = u64::max(padded[leader], bucket(size).max(size));
        }
        let padded = self.leaders.iter().map(|&leader| padded[leader]).collect();
        pad::padded(self, region, sizes, padded)
    }

    /// The size of each symbol in a region of the class; `None` for a region that is not (O3).
    fn sizes(&self, region: &CanonRegion) -> Option<Vec<u64>> {
        let holes = differences(&self.examples[0], region)?;
        if holes.iter().any(|hole| !self.holes.contains(hole)) {
            return None;
        }
        let mut sizes = vec![None; self.leaders.len()];
        let known = types(self.examples[0].graph());
        for ((dims, known), ty) in self.dims.iter().zip(known).zip(types(region.graph())) {
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
        // No size of nothing: an empty tensor has no element to start a maximum from.
        sizes.into_iter().map(|size| size.filter(|&size| size > 0 && i32::try_from(size).is_ok())).collect()
    }

    fn dims_of(&self, graph: &Graph, value: Ref) -> &Dims {
        &self.dims[place(graph, value)]
    }
}

/// What a size is padded to by default: the next of 8, 12, 16, 24, 32, ...
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

/// The place of a value in the order of [`types`].
fn place(graph: &Graph, value: Ref) -> usize {
    match value {
        Ref::Param(index) => index as usize,
        Ref::Result(index) => graph.params().len() + index as usize,
    }
}

/// In which numbers two regions differ that are the same ops, wired alike; `None` if they differ in other things than types and such
/// numbers.
fn differences(one: &CanonRegion, other: &CanonRegion) -> Option<Vec<Hole>> {
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

/// Notes in which numbers two calls differ; `None` if they differ in other things than types and such numbers.
fn differ(a: &Signature, b: &Signature, node: usize, holes: &mut Vec<Hole>) -> Option<()> {
    if a.op() != b.op() || a.bodies() != b.bodies() {
        return None;
    }
    for ((value, other), def) in a.attrs().values().iter().zip(b.attrs().values()).zip(a.def().attrs) {
        match (a.op(), value, other) {
            _ if value == other => {}
            // The shape of the result, which is looked at by itself.
            _ if def.kind == AttrKind::Shape => {}
            (OpCode::DynamicSlice, AttrValue::Ints(_), AttrValue::Ints(_)) => {}
            (OpCode::Slice, AttrValue::Ints(_), AttrValue::Ints(_)) => {}
            (OpCode::Constant, AttrValue::Dense(value), AttrValue::Dense(other)) => {
                let is_number = |value: &Literal| !value.dtype().is_complex();
                if splat(value)? != splat(other)? || value.dtype() != other.dtype() {
                    is_number(value).then(|| holes.push(Hole::Constant { node }))?;
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
                holes.push(Hole::Start { node, axis });
            }
        }
    }
    Some(())
}

/// The one element that a constant consists of, if it does.
fn splat(value: &Literal) -> Option<&[u8]> {
    let size = value.dtype().size();
    let mut elements = value.bytes().chunks_exact(size);
    let first = elements.next()?;
    elements.all(|element| element == first).then_some(first)
}

/// Symbols for the sizes that differ among regions, one for each sequence of sizes, and those sequences. `None` if types differ in more than
/// sizes, none does, or too many do.
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
        // Of nothing there is no element, and it is another program for a maximum.
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

/// For each symbol the one whose bucket it has: itself, or one that it becomes, or came from, by a fixed number of elements more or less.
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
