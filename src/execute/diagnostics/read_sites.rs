//! Reads in a hot loop.
//!
//! A read that ends a region costs a call of the device and a wait for its answer, tens of
//! microseconds at best, and the device idles meanwhile. Behind a training step that is nothing;
//! behind a few ops it is most of the time. So what counts is how much the program records before
//! each.

use std::time::Duration;

use fuseline_fusion::{Graph, Site};
use fuseline_interp as interp;
use rustc_hash::FxHashMap;

/// Boundaries by one call site that are looked at together. Setting up and evaluating read now and
/// then; what does so 64 times is a loop.
pub(super) const MANY: u32 = 64;

/// Ops before each boundary, on average, that are few. A replayed op costs the program 65 ns and a
/// read at least 20 us (README.md), so up to some hundred ops the read is what costs; but it is
/// worth a word only where the loop can do with fewer of them. Of the programs in
/// `benches/programs`, logistic regression, which asks the host after each of its small rounds
/// whether to go on, is below; so is a chain of ten ops that is measured for what a read costs.
/// Every one that does a step of work before it reads is above.
const FEW: u64 = 24;

/// Work before each boundary, on average, that is little: what takes the interpreter as long
/// ([`interp::estimate`]) takes a device a small part of it, and so no more than the read. Ten ops
/// on millions of elements are few and much.
const LITTLE: Duration = Duration::from_millis(1);

/// What lies between two boundaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    ops: u64,
    /// What interpreting it would take. Of more than a few ops it does not matter, and is not
    /// looked at.
    work: Duration,
}

impl Load {
    pub(super) fn add(&mut self, graph: &Graph) {
        let ops = graph.nodes().len() as u64;
        self.ops = self.ops.saturating_add(ops);
        let work = if ops <= 4 * FEW { interp::estimate(graph) } else { None };
        self.work = self.work.saturating_add(work.unwrap_or(MANY * LITTLE));
    }

    pub(super) fn is_nothing(self) -> bool {
        self.ops == 0
    }
}

/// Call sites that are watched; what reads at more than these places is not one loop.
const SITES: usize = 1_024;

#[derive(Debug, Default)]
struct Count {
    reads: u32,
    before: Load,
    told: bool,
}

/// The boundaries that reads of one stream have made, by call site.
#[derive(Debug, Default)]
pub(super) struct Reads(FxHashMap<Site, Count>);

impl Reads {
    /// A read was a boundary, so much after the one before it. How many ops there were before the
    /// latest [`MANY`], if that is to be told.
    pub(super) fn ended(&mut self, site: &Site, load: Load) -> Option<u64> {
        if !self.0.contains_key(site) {
            if self.0.len() >= SITES {
                return None;
            }
            self.0.insert(site.clone(), Count::default());
        }
        let count = self.0.get_mut(site)?;
        let Load { ops, work } = count.before;
        count.before = Load { ops: ops.saturating_add(load.ops), work: work.saturating_add(load.work) };
        count.reads += 1;
        if count.told || count.reads < MANY {
            return None;
        }
        let Load { ops, work } = count.before;
        let told = ops <= FEW * u64::from(MANY) && work <= LITTLE * MANY;
        *count = Count { told, ..Count::default() };
        told.then_some(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(ops: u64, work: Duration) -> Load {
        Load { ops, work }
    }

    #[test]
    fn many_reads_with_little_before_them_are_told_once() {
        let site = |name: &str| Site::Host(name.into());
        let mut reads = Reads::default();
        let few = load(3, LITTLE / 10);
        let told: Vec<u64> = (0..1_000).filter_map(|_| reads.ended(&site("loop"), few)).collect();
        assert_eq!(told, [3 * u64::from(MANY)]);
        let many = [load(FEW + 1, LITTLE / 10), load(3, LITTLE + Duration::from_nanos(1))];
        for much in many {
            assert!((0..10 * MANY).all(|_| reads.ended(&site("step"), much).is_none()));
        }
        // A loop may become one later.
        let told = (0..2 * MANY).filter_map(|_| reads.ended(&site("step"), load(FEW, LITTLE))).count();
        assert_eq!(told, 1);
    }

    #[test]
    fn places_are_bounded() {
        let mut reads = Reads::default();
        for place in 0..2 * SITES {
            assert!(reads.ended(&Site::Host(place.to_string().into()), load(1, Duration::ZERO)).is_none());
        }
        assert_eq!(reads.0.len(), SITES);
    }
}
