//! What a recording thread does when the log of its stream is full.
//!
//! The log of a stream is bounded, and the driver makes room in it as fast as the device computes.
//! A thread that records meanwhile waits for at most [`Deadlines::wait`](crate::deadlines::Deadlines::wait).
//! Without that deadline it waits until there is room, with one exception. The stream may be
//! blocked by a promised value that is not delivered, possibly by this very thread. Then the limit
//! is [`Deadlines::promise`](crate::deadlines::Deadlines::promise).
//!
//! When the limit has passed, the op is given up and its call returns an error. An event sink must
//! not wait. What it records is limited in another way ([`EventSink`](crate::event::EventSink)).

use std::sync::Arc;
use std::time::Instant;

use fuseline_fusion::Site;
use fuseline_record::entry::TraceEnd;

use crate::engine::Entry;
use crate::engine::promises::after;
use crate::engine::stream::{StreamShared, TensorHandle};
use crate::engine::value::Outcome;
use crate::error::{Activity, Error, Failure, Result, Stage, StallReport};
use crate::limits::MAX_SINK_OPS;
use crate::region::Wait;

impl StreamShared {
    /// The deadline of an entry that waits for room in the log; `None` if it waits forever.
    #[cold]
    pub(crate) fn patience(&self, entry: &Entry) -> Option<Instant> {
        match entry {
            // The requesting thread waits for the answer, with its own deadline.
            Entry::Demand(..) | Entry::Fence(_) | Entry::Trace(_, TraceEnd::Boundary(_)) => {
                Some(Instant::now())
            }
            Entry::Op(_) => self.room_deadline(),
            // They are about as many as ops, and no caller can get an error.
            Entry::Release(_) | Entry::Flush(_) | Entry::WaitFor(_) | Entry::Trace(..) | Entry::Dropped => {
                match self.engine().deadline() {
                    Some(_) => Some(Instant::now()),
                    None => self.room_deadline(),
                }
            }
        }
    }

    /// The deadline of a recording thread that waits for room; `None` if it waits forever. Without
    /// [`Deadlines::wait`](crate::deadlines::Deadlines::wait) it is the time of the next check for an overdue
    /// promise, or now if one is overdue already.
    #[cold]
    pub(crate) fn room_deadline(&self) -> Option<Instant> {
        self.engine().deadline().or_else(|| match self.overdue()? {
            Ok(_) => Some(Instant::now()),
            Err(next) => Some(next),
        })
    }

    /// A later deadline for an entry whose deadline has passed; `None` if it is given up.
    #[cold]
    pub(crate) fn waits_on(&self, entry: &Entry) -> Option<Instant> {
        match entry {
            Entry::Demand(..) | Entry::Fence(_) | Entry::Trace(_, TraceEnd::Boundary(_)) => None,
            _ => self.waits_longer(),
        }
    }

    /// A later deadline for a recording thread whose deadline has passed; `None` if it gives up.
    #[cold]
    pub(crate) fn waits_longer(&self) -> Option<Instant> {
        match self.engine().deadline() {
            Some(_) => None,
            None => self.overdue()?.err(),
        }
    }

    /// A description of the promise that blocks the stream for too long, or else the time of the
    /// next check. `None` if promises have no deadline.
    fn overdue(&self) -> Option<std::result::Result<String, Instant>> {
        // Concurrency models have no clock.
        let most = self.engine().config().deadlines.promise.filter(|_| cfg!(not(any(loom, shuttle))))?;
        let is_elsewhere = |stand: StallReport| !matches!(stand.doing, Activity::Waits(Wait::Input));
        // A stream that is busy with something else is not blocked by a promise.
        Some(match self.activity().look().is_some_and(is_elsewhere) {
            true => Err(after(Instant::now(), most)),
            false => self.engine().promises().overdue(most),
        })
    }

    /// Counts an op that the thread is about to record inside an event sink. That is done when the
    /// sink calls, because the thread that holds the lock of the trace cache may append the entry.
    ///
    /// # Errors
    /// When the sink would cause its own events for ever.
    #[cold]
    pub(crate) fn count_sink_op(&self, site: &Site) -> Result<()> {
        if self.engine().events().admits_op(self.engine().counters().ops.get()) {
            return Ok(());
        }
        let message = format!(
            "an event sink has recorded {MAX_SINK_OPS} ops more than the program, and is told of each: it \
             would go on for ever; record fewer"
        );
        Err(Error::misuse(message, site.clone()))
    }

    /// The entry to record instead of one whose deadline has passed. An op with results becomes
    /// `Entry::Dropped`, and its results fail. Other entries stay.
    #[cold]
    pub(crate) fn give_up(&self, entry: Entry) -> Entry {
        let op = match entry {
            Entry::Op(op) if !op.results.is_empty() => op,
            other => return other,
        };
        let failure = Arc::new(Failure {
            stage: Stage::Wait,
            op: Some(op.signature.op()),
            site: op.site.clone(),
            region: None,
            message: format!(
                "it was given up, since there was no room in the log of stream {} in time",
                self.id()
            ),
            resource_exhausted: false,
            plugin: None,
        });
        for promise in op.results {
            drop(promise.resolve(Outcome::Failed(failure.clone())));
        }
        Entry::Dropped
    }

    /// The error of an op that was given up, or not recorded, because the stream makes no progress.
    #[cold]
    pub(crate) fn no_room(&self) -> Error {
        let waits = self.engine().config().deadlines;
        if waits.wait.is_none()
            && let Some(Ok(promise)) = self.overdue()
        {
            let waited = waits.promise.unwrap_or_default();
            return Error::timeout(
                waited,
                format!("room in the log of stream {}, which {promise}", self.id()),
                None,
            );
        }
        let waited = waits.wait.unwrap_or_default();
        Error::timeout(waited, format!("room in the log of stream {}", self.id()), self.activity().look())
    }

    /// Whether the op with this result was given up. If another thread gives it up later, its
    /// results fail instead.
    #[inline(always)]
    pub(crate) fn was_given_up(&self, result: Option<&TensorHandle>) -> bool {
        // Usually the value has no outcome yet.
        match result.and_then(|result| result.cell().outcome().get()) {
            Some(Outcome::Failed(failure)) => failure.stage == Stage::Wait,
            _ => false,
        }
    }
}
