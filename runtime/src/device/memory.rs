//! Memory of a device: what an executable plans to use, and what values hold.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::Bytes;
use fuseline_pjrt::CompiledMemoryStats;
use fuseline_sync::atomic::{AtomicU64, Ordering};

use crate::limits::{MAX_MORE_SHARE, MIN_SAVED_SHARE};

/// Memory that one execution of a region needs on each replica, in bytes, as planned by the
/// compiler. It is read once, after the compile and before the region runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// All arguments.
    pub arguments: Bytes,
    /// All outputs.
    pub outputs: Bytes,
    /// The part of the outputs that lies in the memory of donated arguments.
    pub aliased: Bytes,
    /// Scratch.
    pub temporaries: Bytes,
}

impl MemoryPlan {
    /// Returns `None` if the plugin reports something impossible.
    pub(super) fn of(stats: &CompiledMemoryStats) -> Option<MemoryPlan> {
        let bytes = |number: i64| u64::try_from(number).ok().map(Bytes);
        Some(MemoryPlan {
            arguments: bytes(stats.arguments)?,
            outputs: bytes(stats.outputs)?,
            aliased: bytes(stats.aliased)?,
            temporaries: bytes(stats.temporaries)?,
        })
    }

    /// The maximum in use at once: arguments, outputs and scratch, without what is counted twice.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        let all = self.arguments.saturating_add(self.outputs).saturating_add(self.temporaries);
        all.saturating_sub(self.aliased)
    }

    /// The plan of an executable that needs this much more scratch.
    pub(super) fn with_scratch(self, more: Bytes) -> MemoryPlan {
        MemoryPlan { temporaries: self.temporaries.saturating_add(more), ..self }
    }

    /// Whether the plan needs much more than the `eager` bytes that the ops would hold one by one,
    /// and more than `slack` more.
    pub(crate) fn is_oversized(&self, eager: Bytes, slack: Bytes) -> bool {
        let more = self.peak().saturating_sub(eager);
        more.0 > eager.0 / MAX_MORE_SHARE && more > slack
    }

    /// Whether a part of a region that needs `whole` saves enough of it.
    pub(crate) fn saves_of(&self, whole: Bytes) -> bool {
        self.peak().0 <= whole.0 - whole.0 / MIN_SAVED_SHARE
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryPlan { arguments, outputs, aliased, temporaries } = self;
        write!(
            f,
            "{}: arguments {arguments}, outputs {outputs} of which {aliased} in their memory, scratch {temporaries}",
            self.peak()
        )
    }
}

/// The memory that the values of an engine hold on its device.
#[derive(Debug)]
pub struct LiveMemory {
    values: AtomicU64,
    bytes: AtomicU64,
}

impl LiveMemory {
    pub(super) fn new() -> Arc<LiveMemory> {
        Arc::new(LiveMemory { values: AtomicU64::new(0), bytes: AtomicU64::new(0) })
    }

    /// Number of values with data, and their bytes on all replicas.
    pub fn read(&self) -> (u64, Bytes) {
        (self.values.load(Ordering::Relaxed), Bytes(self.bytes.load(Ordering::Relaxed)))
    }
}

/// The share of one value in [`LiveMemory`], as long as it has data.
pub(crate) struct LiveMemoryGuard {
    live: Arc<LiveMemory>,
    bytes: u64,
}

impl LiveMemoryGuard {
    pub(super) fn of(live: &Arc<LiveMemory>, bytes: u64) -> LiveMemoryGuard {
        // Relaxed: no other data depends on these counters.
        live.values.fetch_add(1, Ordering::Relaxed);
        live.bytes.fetch_add(bytes, Ordering::Relaxed);
        LiveMemoryGuard { live: live.clone(), bytes }
    }
}

impl Drop for LiveMemoryGuard {
    fn drop(&mut self) {
        self.live.values.fetch_sub(1, Ordering::Relaxed);
        self.live.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_oversized_by_share_and_by_slack() {
        let plan = |temporaries| MemoryPlan {
            arguments: Bytes(100),
            outputs: Bytes(40),
            aliased: Bytes(40),
            temporaries: Bytes(temporaries),
        };
        assert_eq!(plan(20).peak(), Bytes(120));
        let is_oversized = |temporaries, slack| plan(temporaries).is_oversized(Bytes(120), Bytes(slack));
        assert!(!is_oversized(50, 0) && is_oversized(51, 0), "a quarter more than 120 are 150");
        assert!(!is_oversized(51, 31) && is_oversized(51, 30));
        assert!(!is_oversized(0, 0), "it may need less");
        assert!(plan(50).saves_of(Bytes(200)) && !plan(51).saves_of(Bytes(200)));
        let mut stats = CompiledMemoryStats::default();
        assert!(MemoryPlan::of(&stats).is_some());
        stats.arguments = -1;
        assert_eq!(MemoryPlan::of(&stats), None);
    }
}
