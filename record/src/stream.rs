//! What the recorder asks of the stream that it records for.

use std::sync::Arc;
use std::time::Instant;

use crate::entry::Entry;
use crate::handle::Handle;

/// What becomes of the values of a stream.
pub type OutcomeOf<S> = <<S as Stream>::Handle as Handle<S>>::Outcome;

/// A stream with a log, which a driver reads.
pub trait Stream: Sized + Send + Sync + 'static {
    /// A front end's handle on a value of a stream.
    type Handle: Handle<Self>;
    /// Counts how long a thread is held up, until it is dropped.
    type Stall<'a>;

    /// Whether the calling thread is one that a driver may wait for, so that it must not wait for a
    /// driver.
    fn is_driving() -> bool;

    /// Whether a pure op that is recorded now may be on a trace.
    fn may_replay(&self) -> bool;

    /// Puts an entry into the log, and has it read if somebody waits for it.
    fn append(self: &Arc<Self>, entry: Entry<OutcomeOf<Self>>);

    /// Has the log read.
    fn notify(self: &Arc<Self>);

    /// The calling thread is about to wait for room.
    fn stall(&self) -> Self::Stall<'_>;

    /// Until when a thread that records waits for room; for ever if that is not said.
    fn room_deadline(&self) -> Option<Instant>;

    /// Until when a thread waits on whose time to wait for room is over.
    fn waits_longer(&self) -> Option<Instant>;

    /// What is recorded instead of an entry that has waited in vain.
    fn give_up(&self, entry: Entry<OutcomeOf<Self>>) -> Entry<OutcomeOf<Self>>;
}
