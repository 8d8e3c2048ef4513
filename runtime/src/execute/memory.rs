//! Handles regions for which memory runs out or would run out.
//!
//! Input: a region that could not be compiled or executed for lack of memory, or whose executable
//! plans to need much more than its ops one by one. Output: the region tried again or run in parts,
//! and in the end a failure at the op that asked.
//!
//! ```text
//! out of memory ─► unused executables are dropped; what is in flight, on any stream, is waited for ─► tried again
//!       again ───► the units of a merged region, or two halves; each is a region and begins above
//!       one op ──► fails, with what it asked for and what is alive
//! ```
//!
//! Invariants:
//! - MEMORY-1: a region is tried again only if nothing of it can have happened: its inputs have
//!   data, and it has no effect on the outside.
//! - MEMORY-2: a job waits, never a thread. The driver goes on, and the stream is notified.
//! - MEMORY-3: that a region did not fit as a whole is cached with its key, so the next execution
//!   begins with the parts. It is tried as a whole again after as many uses as a failed compile,
//!   until an executable of it has run. Single ops are always tried. A background compile, for
//!   which nobody frees memory, counts only if no job will ever wait for it.
//! - MEMORY-4: only an op that fails by itself fails its results.
//!
//! How much memory is free depends on everything that runs on the device. So whether a region runs
//! in parts is the one decision here that the record does not determine. It does determine where
//! the region is cut (`EagerMemory::middle`).

use std::sync::Arc;

use fuseline_fusion::Bytes;
use fuseline_sync::oneshot;

use crate::device::{DeviceError, after};
use crate::engine::EngineShared;
use crate::engine::value::{Outcome, ValueCell};
use crate::error::{Stage, bug};
use crate::event::{Event, Remedy};
use crate::region::RegionRef;
use crate::user_code::is_driving;

/// The result of a copy to the host.
type Copied = Result<Vec<u8>, DeviceError>;

impl EngineShared {
    /// Drops the unused executables, and calls `then` when everything now in flight has ended: on
    /// any thread, possibly before this returns.
    pub(super) fn free_memory(&self, then: impl FnOnce() + Send + 'static) -> Remedy {
        let evicted = self.cache().drop_unused();
        self.report_evicted(&evicted);
        let bytes = evicted.iter().fold(Bytes(0), |sum, entry| sum.saturating_add(Bytes(entry.bytes)));
        let all_in_flight = self.all_in_flight();
        let landed = after(all_in_flight.len() + 1, move |_| then());
        let in_flight = all_in_flight.iter().map(|in_flight| {
            let landed = landed.clone();
            in_flight.on_done(move || landed(Ok(())))
        });
        let in_flight = in_flight.sum();
        landed(Ok(()));
        Remedy::Freed { executables: evicted.len(), bytes, in_flight }
    }

    pub(super) fn report_out_of_memory(
        &self,
        region: Option<RegionRef>,
        stage: Stage,
        asked: Bytes,
        remedy: Remedy,
    ) {
        self.emit(|| Event::OutOfMemory { region, stage, asked, remedy });
    }

    /// Reports an out-of-memory error without a remedy and returns it with details. `asked` is the
    /// size of what could not be allocated.
    pub(super) fn without_remedy(
        &self,
        region: Option<RegionRef>,
        error: &DeviceError,
        asked: Bytes,
    ) -> DeviceError {
        self.report_out_of_memory(region, error.stage, asked, Remedy::None);
        let (values, held) = self.device().live().read();
        let cached = Bytes(self.cache().stats().bytes);
        let message = format!(
            "{}; {asked} were asked for while {values} values hold {held} on the device, and the \
             executables in the cache {cached}: \
             drop tensors that are not needed any more, or work on less at a time",
            error.message
        );
        DeviceError { message, ..error.clone() }
    }

    /// Runs `attempt`, which moves `asked` bytes of data. If memory runs out, frees some and tries
    /// once more. Waits for what is in flight if the thread may wait.
    pub fn with_room<T>(
        &self,
        asked: Bytes,
        mut attempt: impl FnMut() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let error = match attempt() {
            // If the computation that produced the value ran out of memory, another copy does not
            // help.
            Err(error) if error.is_out_of_memory() && error.stage == Stage::Transfer => error,
            other => return other,
        };
        self.counters().out_of_memory.add(1);
        let (ended, room) = oneshot::channel();
        let remedy = self.free_memory(move || ended.send(()));
        self.report_out_of_memory(None, error.stage, asked, remedy);
        if !is_driving() {
            // Closed, if what was in flight was abandoned: then nothing is left to wait for.
            let _ = room.recv(None);
        }
        attempt().map_err(|error| self.finally(error, asked))
    }

    /// The error of a second attempt.
    fn finally(&self, error: DeviceError, asked: Bytes) -> DeviceError {
        match error.is_out_of_memory() {
            true => self.without_remedy(None, &error, asked),
            false => error,
        }
    }

    /// Copies a value that has data to the host. `put` is called on any thread, possibly before
    /// this returns. As [`EngineShared::with_room`], but without waiting, and only while somebody
    /// else holds the value: a read does not prevent its donation.
    pub(crate) fn download_async(
        self: &Arc<Self>,
        value: &Arc<ValueCell>,
        put: impl FnOnce(Copied) + Send + 'static,
    ) {
        // The copy may end on a plugin thread, which must not drop the last reference to the
        // engine.
        let (engine, again) = (Arc::downgrade(self), Arc::downgrade(value));
        self.download_once(value, move |copied| match copied {
            Err(error) if error.is_out_of_memory() => {
                EngineShared::on_own_thread(&engine, move |engine| match engine.zip(again.upgrade()) {
                    Some((engine, value)) => engine.download_again(value, error, put),
                    None => put(Err(error)),
                })
            }
            other => put(other),
        });
    }

    /// Continues [`EngineShared::download_async`] after an attempt that failed with `error`, on a
    /// thread of the engine. It first waits for the computation of the value: if that is what
    /// failed, there is nothing to try.
    fn download_again(
        self: Arc<Self>,
        value: Arc<ValueCell>,
        error: DeviceError,
        put: impl FnOnce(Copied) + Send + 'static,
    ) {
        if let Some(Outcome::Data { buffer, .. }) = value.outcome().get()
            && let Err(own) = buffer.wait()
        {
            return put(Err(own));
        }
        let (stage, asked) = (Stage::Transfer, value.ty().bytes());
        self.counters().out_of_memory.add(1);
        let weak = Arc::downgrade(&self);
        let engine = weak.clone();
        let again = move |running: Option<Arc<EngineShared>>| {
            let Some(running) = running else { return put(Err(error)) };
            running.download_once(&value, move |copied| match copied {
                Err(error) if error.is_out_of_memory() => {
                    EngineShared::on_own_thread(&weak, move |engine| match engine {
                        Some(engine) => put(Err(engine.finally(DeviceError { stage, ..error }, asked))),
                        None => put(Err(error)),
                    });
                }
                other => put(other),
            });
        };
        let remedy = self.free_memory(move || EngineShared::on_own_thread(&engine, again));
        self.report_out_of_memory(None, stage, asked, remedy);
    }

    fn download_once(&self, value: &ValueCell, put: impl FnOnce(Copied) + Send + 'static) {
        match value.outcome().get() {
            Some(Outcome::Data { buffer, .. }) => self.device().download_async(buffer, put),
            other => {
                let error = bug!("a value with the outcome {other:?} is copied");
                put(Err(DeviceError::new(Stage::Transfer, error.to_string())));
            }
        }
    }
}
