//! Sealed regions, as events, errors and explanations describe them.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::{OpCode, RegionSeq, Site, StreamId};
use fuseline_sync::atomic::{AtomicU64, Ordering};

/// Identifies a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRef {
    /// The stream.
    pub stream: StreamId,
    /// The region's number within the stream.
    pub seq: RegionSeq,
    /// Its key.
    pub key: RegionKey,
    /// Number of its ops.
    pub ops: usize,
}

impl fmt::Display for RegionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}.{} (key {}, {} ops)", self.stream, self.seq, self.key.short(), self.ops)
    }
}

/// The description of a sealed region, for events, errors and explanations.
#[derive(Debug)]
pub(crate) struct RegionInfo {
    pub(crate) reference: RegionRef,
    pub(crate) canon: Arc<CanonRegion>,
    /// Where each op was recorded.
    pub(crate) sites: Arc<Vec<Site>>,
    /// Its number among the launched regions of its stream, from 1 on; 0 before the launch.
    launched: AtomicU64,
}

impl RegionInfo {
    pub(crate) fn new(reference: RegionRef, canon: Arc<CanonRegion>, sites: Arc<Vec<Site>>) -> RegionInfo {
        RegionInfo { reference, canon, sites, launched: AtomicU64::new(0) }
    }

    /// Sets the number of the launch, before any result is visible.
    pub(crate) fn set_launched(&self, number: u64) {
        self.launched.store(number, Ordering::Relaxed);
    }

    /// The number of the launch. Set once any result is visible.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// Op and call site of a node.
    pub(crate) fn address(&self, node: usize) -> (Option<OpCode>, Site) {
        let op = self.canon.graph().nodes().get(node).map(|node| node.signature().op());
        (op, self.sites.get(node).cloned().unwrap_or_default())
    }
}

/// What a sealed region waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Wait {
    /// The compile of its executable.
    Compile,
    /// The interpreter.
    Interpreter,
    /// An input that another stream computes.
    Input,
    /// The in-flight limit. Or memory had run out, and regions in flight had to end.
    InFlight,
}

impl Wait {
    /// A short name for logs and reports (`in_flight`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Wait::Compile => "compile",
            Wait::Interpreter => "interpreter",
            Wait::Input => "input",
            Wait::InFlight => "in_flight",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wait::Compile => "its compile",
            Wait::Interpreter => "the interpreter",
            Wait::Input => "an input from another stream",
            Wait::InFlight => "earlier regions in flight",
        })
    }
}
