//! Entries of the log of a stream.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Mode, TraceOp};
use fuseline_sync::once::{Abandoned, Once, Promise};

use crate::replay_trace::ReplayTrace;
use crate::value::{Outcome, ValueCell, ValuePromise};

/// How a tape ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program has asked for a boundary.
    Asked(Boundary),
    /// A round is complete.
    Iteration,
    /// Something else has come than what was expected.
    Astray,
}

/// One entry of a stream's log.
#[derive(Debug)]
pub enum Entry<O: Outcome> {
    /// An op was recorded.
    Op(TraceOp<ValuePromise<O>>),
    /// The last handle on a value was dropped.
    Release(Arc<ValueCell<O>>),
    /// The outside needs a value: a boundary, if a pending op makes it.
    Demand(Arc<ValueCell<O>>, Boundary),
    /// A boundary wherever the stream stands.
    Flush(Boundary),
    /// A boundary, and everything before it is to be finished before the promise is kept.
    Fence(FencePromise),
    /// A boundary, and nothing after it runs before this place of another stream is reached.
    WaitFor(Arc<Fence>),
    /// Ops and releases that were recorded before in the same order, and how far they were what was
    /// expected.
    Replayed(Box<ReplayTrace<O>>, End),
    /// An op that was given up, because for too long there was no room.
    Dropped,
}

impl<O: Outcome> Entry<O> {
    /// Whether the program asks for something by it, so that there may be a boundary.
    pub fn is_ask(&self) -> bool {
        matches!(
            self,
            Entry::Demand(..) | Entry::Flush(_) | Entry::Fence(_) | Entry::Replayed(_, End::Asked(_))
        )
    }

    /// Whether the driver is to go through the log up to here.
    pub fn is_demanded(&self) -> bool {
        match self {
            Entry::Op(op) => op.mode != Mode::Fused || op.effect != Effect::Pure,
            Entry::Release(_) | Entry::Dropped => false,
            Entry::Replayed(_, end) => *end != End::Astray,
            Entry::Demand(..) | Entry::Flush(_) | Entry::Fence(_) | Entry::WaitFor(_) => true,
        }
    }
}

/// Whether everything before a fence is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// It is.
    Done,
    /// The stream is gone.
    Abandoned,
}

impl Abandoned for Fenced {
    fn abandoned() -> Fenced {
        Fenced::Abandoned
    }
}

/// A place in a stream that can be waited for.
pub struct Fence(Once<Fenced>);

/// The duty to say when a fence is reached.
pub type FencePromise = Promise<Fenced, Fence>;

impl Fence {
    /// A fence, and the promise to say when it is reached.
    #[must_use]
    pub fn new() -> (Arc<Fence>, FencePromise) {
        Promise::new(Fence(Once::pending()))
    }
}

impl AsRef<Once<Fenced>> for Fence {
    fn as_ref(&self) -> &Once<Fenced> {
        &self.0
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fence")
    }
}
