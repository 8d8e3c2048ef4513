//! Detects reads in a hot loop.
//!
//! A read that ends a region costs a device call and a wait for the result, at least tens of
//! microseconds in which the device is idle. That is nothing after a training step, but most of the
//! time after a few ops. So the rule counts how much the program records before each read.

use std::time::Duration;

use fuseline_fusion::{Graph, Site};
use fuseline_interp as interp;
use rustc_hash::FxHashMap;

/// Number of boundaries of one call site that are judged together. Set-up and evaluation read now
/// and then; 64 reads are a loop.
pub(super) const MANY: u32 = 64;

/// Maximum average number of ops before each boundary that counts as few. A replayed op costs the
/// program 65 ns and a read at least 20 us (README.md), so the read dominates up to some hundred
/// ops. But a warning pays only where the loop can do with fewer reads. Of the programs in
/// `benches/programs`, two are below this limit: logistic regression, which asks the host after
/// each small iteration whether to go on, and a chain of ten ops that measures the cost of a read.
/// Every program that does a step of work before it reads is above.
const FEW: u64 = 24;

/// Maximum average work before each boundary that counts as little. What takes the interpreter this
/// long ([`interp::estimate`]) takes a device a fraction of it, and so no more than the read. Ten
/// ops on millions of elements are few ops but much work.
const LITTLE: Duration = Duration::from_millis(1);

/// What was recorded between two boundaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    ops: u64,
    /// Estimated time to interpret it. It is not computed for many ops, where it does not matter.
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

/// Maximum number of call sites that are watched. Reads at more places than that are not one loop.
const SITES: usize = 1_024;

#[derive(Debug, Default)]
struct Count {
    reads: u32,
    before: Load,
    told: bool,
}

/// The boundaries of one stream that reads caused, by call site.
#[derive(Debug, Default)]
pub(super) struct Reads(FxHashMap<Site, Count>);

impl Reads {
    /// A read was a boundary, with `load` recorded since the previous one. Returns the number of
    /// ops before the latest [`MANY`] reads if that is to be reported.
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
        // It may become a hot loop later.
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
