//! What becomes of a thread that finds no room to record in.
//!
//! The log of a stream is bounded, and the driver makes room in it as fast as the device computes.
//! A thread that records meanwhile waits: for as long as
//! [`Deadlines::wait`](crate::Deadlines::wait) says; if that says nothing, until there is room,
//! unless what holds the stream up is a value that somebody has promised and does not bring, which
//! may be this very thread ([`Deadlines::promise`](crate::Deadlines::promise)). Then its op is
//! given up, and its call says so. An event sink must not wait, and what it records is bounded
//! otherwise ([`crate::EventSink`]).

use std::sync::Arc;
use std::time::Instant;

use fuseline_fusion::Site;

use fuseline_record::entry::End;

use crate::error::{Activity, Error, Failure, Stage, StallReport};
use crate::event::{Wait, is_telling, note_replayed};
use crate::limits::MAX_SINK_OPS;
use crate::promised::after;
use crate::record::Entry;
use crate::stream::StreamShared;
use crate::tensor::Tensor;
use crate::value::Outcome;

impl StreamShared {
    /// Until when an entry waits for room in the log; for ever if that is not said.
    #[cold]
    pub(crate) fn patience(&self, entry: &Entry) -> Option<Instant> {
        match entry {
            // Who asks waits for the answer, and for no longer than it wants to.
            Entry::Demand(..) | Entry::Fence(_) | Entry::Replayed(_, End::Asked(_)) => Some(Instant::now()),
            Entry::Op(_) => self.room_deadline(),
            // There are as many as ops, and nobody to be told.
            Entry::Release(_)
            | Entry::Flush(_)
            | Entry::WaitFor(_)
            | Entry::Replayed(..)
            | Entry::Dropped => match self.engine().deadline() {
                Some(_) => Some(Instant::now()),
                None => self.room_deadline(),
            },
        }
    }

    /// Until when a thread that records waits for room; for ever if that is not said. If nothing
    /// else limits it, until it is to be looked whether a promise that nobody keeps holds the
    /// stream up: now, if one has for too long.
    #[cold]
    pub(crate) fn room_deadline(&self) -> Option<Instant> {
        self.engine().deadline().or_else(|| match self.overdue()? {
            Ok(_) => Some(Instant::now()),
            Err(next) => Some(next),
        })
    }

    /// Until when an entry waits on whose time to wait for room is over.
    #[cold]
    pub(crate) fn waits_on(&self, entry: &Entry) -> Option<Instant> {
        match entry {
            Entry::Demand(..) | Entry::Fence(_) | Entry::Replayed(_, End::Asked(_)) => None,
            _ => self.waits_longer(),
        }
    }

    /// Until when a thread that records waits on whose time to wait for room is over.
    #[cold]
    pub(crate) fn waits_longer(&self) -> Option<Instant> {
        match self.engine().deadline() {
            Some(_) => None,
            None => self.overdue()?.err(),
        }
    }

    /// The promise that holds the stream up for too long, in words, or when to look next; nothing
    /// if that is not limited.
    fn overdue(&self) -> Option<Result<String, Instant>> {
        // Models have no clock.
        let most = self.engine().config().waits().promise.filter(|_| cfg!(not(any(loom, shuttle))))?;
        let is_elsewhere = |stand: StallReport| !matches!(stand.doing, Activity::Waits(Wait::Input));
        // Held up by something of its own, it is not held up by a promise.
        Some(match self.activity().look().is_some_and(is_elsewhere) {
            true => Err(after(Instant::now(), most)),
            false => self.engine().promises().overdue(most),
        })
    }

    /// What an event sink records, or what is recorded instead if it would feed itself for ever.
    #[cold]
    pub(crate) fn unless_fed(&self, entry: Entry) -> Entry {
        let admits_op = || self.engine().events().admits_op(self.engine().counters().ops.get());
        match entry {
            Entry::Op(_) if !admits_op() => return self.give_up(entry),
            Entry::Replayed(..) => note_replayed(),
            _ => {}
        }
        entry
    }

    /// What is recorded instead of an entry that has waited in vain: nothing, if somebody can be
    /// told.
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
        });
        for promise in op.results {
            drop(promise.resolve(Outcome::Failed(failure.clone())));
        }
        Entry::Dropped
    }

    /// An op was given up, or more of them would be too much, because the stream does not go on.
    #[cold]
    pub(crate) fn no_room(&self, site: &Site) -> Error {
        if is_telling() {
            let message = format!(
                "an event sink has recorded {MAX_SINK_OPS} ops more than the program, and is told of each: it would go on for ever; record fewer"
            );
            return Error::misuse(message, site.clone());
        }
        let waits = self.engine().config().waits();
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

    /// Whether an op with this result was given up. Not known of one that another thread sees to;
    /// its results have failed then.
    #[inline(always)]
    pub(crate) fn was_given_up(&self, result: Option<&Tensor>) -> bool {
        // As a rule nobody has come to it yet.
        match result.and_then(|result| result.cell().outcome().get()) {
            Some(Outcome::Failed(failure)) => failure.stage == Stage::Wait,
            _ => false,
        }
    }
}
