//! Streams: program-ordered sequences of ops on one device.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_fusion::StreamId;
use fuseline_fusion::region::{Boundary, Mode};
use fuseline_runtime::Result;
use fuseline_runtime::internals::{StreamShared, here};

/// A program-ordered sequence of ops on the engine's device.
///
/// Ops go to the stream of their first operand. An engine starts with one stream. A program with
/// independent parts may open more, so that the compiles and back-pressure of one part do not delay
/// the others. Streams are cheap to clone and `Send + Sync`: any thread may record on any stream.
#[derive(Clone)]
pub struct Stream(Arc<StreamShared>);

impl Stream {
    pub(crate) fn of(shared: Arc<StreamShared>) -> Stream {
        Stream(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<StreamShared> {
        &self.0
    }

    /// The number of the stream within the engine.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.0.id()
    }

    /// Sets the mode of ops recorded on this stream from now on. `None` means the engine's mode. A
    /// mode set by [`crate::with_mode`] takes precedence.
    pub fn set_mode(&self, mode: Option<Mode>) {
        self.0.set_mode(mode);
    }

    /// The mode in force for an op that the calling thread records on this stream now.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Ends the region that is being recorded and lets it run. Returns at once. A flush is never
    /// needed for a correct result, but it can make the device start earlier.
    pub fn flush(&self) {
        self.0.flush(Boundary::Flush);
    }

    /// Waits until everything recorded on this stream so far has been computed.
    ///
    /// Failures of single values are not reported here. They stay with the values.
    ///
    /// # Errors
    /// When called from an event sink or callback, which must not wait; when it takes longer than
    /// [`Deadlines::wait`](crate::Deadlines::wait), if that is set; when a check of a recorded op
    /// has failed ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)).
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize(None, &here())
    }

    /// As [`Stream::synchronize`], for at most `timeout`.
    ///
    /// # Errors
    /// When `timeout` has passed. Everything recorded continues to run.
    #[track_caller]
    pub fn synchronize_for(&self, timeout: Duration) -> Result<()> {
        self.0.synchronize(Instant::now().checked_add(timeout), &here())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
