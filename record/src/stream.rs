//! The interface between the recorder and the stream that it records for.

use std::sync::Arc;
use std::time::Instant;

use crate::entry::Entry;
use crate::handle::Handle;

/// The outcome type of the values of a stream.
pub type OutcomeOf<S> = <<S as Stream>::Handle as Handle<S>>::Outcome;

/// A stream with a log, which a driver reads.
pub trait Stream: Sized + Send + Sync + 'static {
    /// A front end's handle on a value of a stream.
    type Handle: Handle<Self>;
    /// A guard that measures how long a thread is blocked.
    type Stall<'a>;

    /// Whether a driver may be waiting for the calling thread. Such a thread must not wait for a
    /// driver.
    fn is_driving() -> bool;

    /// Whether a pure op that is recorded now may go to a trace.
    fn may_replay(&self) -> bool;

    /// Appends an entry to the log. Notifies the driver if the entry is demanded.
    fn append(self: &Arc<Self>, entry: Entry<OutcomeOf<Self>>);

    /// Notifies the driver.
    fn notify(self: &Arc<Self>);

    /// Counts the calling thread as blocked, because it is about to wait for room.
    fn stall(&self) -> Self::Stall<'_>;

    /// The deadline of a recording thread that waits for room; `None` if it waits forever.
    fn room_deadline(&self) -> Option<Instant>;

    /// A later deadline for a thread whose deadline has passed, or `None` if it has to give up.
    fn waits_longer(&self) -> Option<Instant>;

    /// The entry to record instead of one whose deadline has passed.
    fn give_up(&self, entry: Entry<OutcomeOf<Self>>) -> Entry<OutcomeOf<Self>>;
}
