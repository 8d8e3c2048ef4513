//! The interpreter tier: the first executions of a new region.
//!
//! A compile takes 30 ms to more than a second, and many regions run once: those that set a program
//! up, or that have a new shape in each iteration. The interpreter finishes small ones long before
//! their compile would. So a new region is interpreted until that has taken about as long as a
//! compile, by the estimate of [`fuseline_interp::estimate`], and at most [`MAX_RUNS`] times. After
//! that it waits for its executable. Whatever the number of executions turns out to be, this costs
//! at most about twice the optimum (the ski rental of competitive analysis: Karlin et al.,
//! Competitive snoopy caching, Algorithmica 3, 1988). `tier.rs` decides when the compile starts.
//!
//! Input: the executions of regions. Output: their [`History`].
//!
//! The tier exists only where data is in the host's memory (XLA's CPU backend), in Fused mode, with
//! one replica and `Numerics::Fast`. Merged regions are not interpreted; their units are.

use fuseline_fusion::Graph;
use fuseline_fusion::canon::RegionKey;
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use super::cost::break_even;
use super::{History, InterpretedRun, MAX_RUNS};
use crate::limits::MAX_INTERPRETED_REGIONS;

/// Maximum for a region that comes at many sizes, however little time an execution takes.
const MAX_PATIENCE: u32 = 1_000;

/// How many sizes a region has that is not padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShapeCount {
    /// Too many to compile each.
    Many,
    Few,
}

/// How often a new region is interpreted before it is compiled.
pub(crate) fn planned_runs(graph: &Graph, sizes: ShapeCount) -> u32 {
    match sizes {
        ShapeCount::Many => patience(graph),
        ShapeCount::Few => break_even(graph).min(MAX_RUNS),
    }
}

/// How often a region is interpreted that is one of many sizes, each of which is rare.
pub(crate) fn patience(graph: &Graph) -> u32 {
    break_even(graph).min(MAX_PATIENCE)
}

/// The regions that are being interpreted, in a bounded map that forgets the oldest.
pub(crate) struct InterpreterTier(Mutex<BoundedFifoMap<RegionKey, InterpretedRun>>);

impl InterpreterTier {
    pub(crate) fn new() -> InterpreterTier {
        InterpreterTier(Mutex::new(Rank::InterpreterTier, BoundedFifoMap::with_room(MAX_INTERPRETED_REGIONS)))
    }

    /// Counts the next execution of a region. `None` if it was not interpreted recently or has been
    /// [promoted](InterpreterTier::promote).
    pub(crate) fn count(&self, key: RegionKey) -> Option<History> {
        let mut runs = self.0.lock();
        let run = runs.get_mut(&key)?;
        run.number = run.number.saturating_add(1);
        Some(if run.number > run.of { History::Overdue(*run) } else { History::Planned(*run) })
    }

    /// The region is not interpreted any more.
    pub(crate) fn promote(&self, key: RegionKey) {
        self.0.lock().remove(&key);
    }

    /// A new region begins the executions of its plan.
    pub(crate) fn begin(&self, key: RegionKey, first: InterpretedRun) {
        self.0.lock().insert(key, first);
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::canon::{CanonRegion, EnvFingerprint};
    use fuseline_fusion::{Attrs, DType, OpCode, TensorType};

    use super::*;

    fn region(ops: usize, size: u64) -> (RegionKey, Graph) {
        let mut graph = Graph::new();
        let mut value = graph.param(TensorType::of(DType::F32, &[size]).unwrap());
        for _ in 0..ops {
            value = graph.push(OpCode::Negate, Attrs::none(), &[], &[value]).unwrap()[0];
        }
        let canon = CanonRegion::new(graph.clone(), Box::new([false]));
        (canon.key(&EnvFingerprint::of(b"test")), graph)
    }

    #[test]
    fn what_is_large_is_compiled_at_once() {
        assert_eq!(planned_runs(&region(10, 100).1, ShapeCount::Few), MAX_RUNS);
        let some = planned_runs(&region(10, 1_000_000).1, ShapeCount::Few);
        assert!(1 < some && some < MAX_RUNS, "{some}");
        assert_eq!(planned_runs(&region(10, 100_000_000).1, ShapeCount::Few), 0);
    }

    /// TIER-1.
    #[test]
    fn runs_are_counted() {
        let tier = InterpreterTier::new();
        let (key, graph) = region(10, 10_000);
        let of = planned_runs(&graph, ShapeCount::Few);
        assert_eq!(tier.count(key), None);
        tier.begin(key, InterpretedRun { number: 1, of });
        for number in 2..=of {
            assert_eq!(tier.count(key), Some(History::Planned(InterpretedRun { number, of })));
        }
        for number in [of + 1, of + 2] {
            assert_eq!(tier.count(key), Some(History::Overdue(InterpretedRun { number, of })));
        }
        tier.promote(key);
        assert_eq!(tier.count(key), None);
    }
}
