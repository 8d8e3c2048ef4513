//! Entries of the log of a stream.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Mode, TraceOp};
use fuseline_sync::once::{Abandoned, Once, Promise};

use crate::replay_trace::ReplayTrace;
use crate::value::{Outcome, ValueCell, ValuePromise};

/// Why a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEnd {
    /// The program requested a boundary.
    Boundary(Boundary),
    /// A loop iteration is complete.
    Iteration,
    /// The program left the template.
    Mismatch,
}

/// One entry of a stream's log.
#[derive(Debug)]
pub enum Entry<O: Outcome> {
    /// An op was recorded.
    Op(TraceOp<ValuePromise<O>>),
    /// The last handle on a value was dropped.
    Release(Arc<ValueCell<O>>),
    /// The program or another stream needs a value. It is a boundary if a pending op produces the
    /// value.
    Demand(Arc<ValueCell<O>>, Boundary),
    /// A boundary at this position.
    Flush(Boundary),
    /// A boundary. The promise is resolved when everything before it has finished.
    Fence(FencePromise),
    /// A boundary. Nothing after it runs before another stream has reached this fence.
    WaitFor(Arc<Fence>),
    /// A trace: ops and releases that follow a template, and why the trace ended.
    Trace(Box<ReplayTrace<O>>, TraceEnd),
    /// Takes the place of an op that was given up because the log was full for too long.
    Dropped,
}

impl<O: Outcome> Entry<O> {
    /// Whether the program requests something with it, so that it may be a boundary.
    pub fn is_boundary_request(&self) -> bool {
        matches!(
            self,
            Entry::Demand(..) | Entry::Flush(_) | Entry::Fence(_) | Entry::Trace(_, TraceEnd::Boundary(_))
        )
    }

    /// Whether the driver has to process the log up to this entry.
    pub fn is_demanded(&self) -> bool {
        match self {
            Entry::Op(op) => op.mode != Mode::Fused || op.effect != Effect::Pure,
            Entry::Release(_) | Entry::Dropped => false,
            Entry::Trace(_, end) => *end != TraceEnd::Mismatch,
            Entry::Demand(..) | Entry::Flush(_) | Entry::Fence(_) | Entry::WaitFor(_) => true,
        }
    }
}

/// The outcome of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceOutcome {
    /// Everything before the fence has finished.
    Done,
    /// The stream was dropped first.
    Abandoned,
}

impl Abandoned for FenceOutcome {
    fn abandoned() -> FenceOutcome {
        FenceOutcome::Abandoned
    }
}

/// A position in a stream that can be waited for.
pub struct Fence(Once<FenceOutcome>);

/// The promise that is resolved when a fence is reached.
pub type FencePromise = Promise<FenceOutcome, Fence>;

impl Fence {
    /// A fence and its promise.
    #[must_use]
    pub fn new() -> (Arc<Fence>, FencePromise) {
        Promise::new(Fence(Once::pending()))
    }
}

impl AsRef<Once<FenceOutcome>> for Fence {
    fn as_ref(&self) -> &Once<FenceOutcome> {
        &self.0
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fence")
    }
}
