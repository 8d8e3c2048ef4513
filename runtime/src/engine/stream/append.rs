//! Appends entries to the log of a stream, for the recorder.

use std::sync::Arc;
use std::time::Instant;

use fuseline_record::log::{PushOutcome, Ticket};
use fuseline_sync::atomic::Ordering;

use super::{StreamShared, TensorHandle};
use crate::counters::Stall;
use crate::engine::Entry;
use crate::event::is_counted;
use crate::limits::ENTRIES_PER_HINT;
use crate::user_code::is_driving;

impl StreamShared {
    /// Appends an entry to the log and notes the demand, if it is one. Only the trace cache calls
    /// this; other callers use [`Replay::submit`](crate::engine::Replay::submit).
    #[inline(always)]
    pub(crate) fn append(self: &Arc<Self>, entry: Entry) {
        let is_demanded = entry.is_demanded();
        let ticket = self.push(entry);
        if is_demanded {
            self.demand(ticket);
        }
    }

    // Runs twice per op: when it is recorded and when its result is dropped.
    #[inline(always)]
    pub(crate) fn push(self: &Arc<Self>, entry: Entry) -> Ticket {
        // The driver may be waiting for this thread, so this thread must not wait for the driver.
        let PushOutcome { ticket, awaited } = match is_driving() {
            true => self.log.push_at_once(entry),
            false => self.log.push_within(
                entry,
                |ticket, entry| {
                    // The driver makes room only when it has passed this ticket, so demand every
                    // entry before it that is still unwritten.
                    self.demand(ticket);
                    self.notify();
                    (self.engine().counters().stall(), self.patience(entry))
                },
                |entry| self.waits_on(entry),
                |entry| self.give_up(entry),
            ),
        };
        if awaited || ticket.is_every(ENTRIES_PER_HINT) {
            self.notify();
        }
        ticket
    }

    /// Makes the driver process everything up to and including `ticket`.
    fn demand(&self, ticket: Ticket) {
        self.demanded.fetch_max(ticket.next().to_raw(), Ordering::Relaxed);
    }
}

impl fuseline_record::stream::Stream for StreamShared {
    type Handle = TensorHandle;
    type Stall<'a> = Stall<'a>;

    #[inline(always)]
    fn is_driving() -> bool {
        is_driving()
    }

    #[inline(always)]
    fn may_replay(&self) -> bool {
        self.is_fused() && !self.engine.captures().is_on() && !is_counted()
    }

    #[inline(always)]
    fn append(self: &Arc<Self>, entry: Entry) {
        self.append(entry);
    }

    fn notify(self: &Arc<Self>) {
        self.notify();
    }

    fn stall(&self) -> Stall<'_> {
        self.engine.counters().stall()
    }

    fn room_deadline(&self) -> Option<Instant> {
        self.room_deadline()
    }

    fn waits_longer(&self) -> Option<Instant> {
        self.waits_longer()
    }

    fn give_up(&self, entry: Entry) -> Entry {
        self.give_up(entry)
    }
}
