//! Events: positions in streams, by id.
//!
//! An event is reached when everything recorded on its stream before it has been computed. It can
//! be queried, waited for, subscribed to, and waited for by another stream. Values need no events:
//! an op that reads a value of another stream waits for it. Events are for everything else: when
//! host memory may be reused, how long something took, and the order of effects on two streams.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_fusion::Site;
use fuseline_record::entry::{Fence, FenceOutcome};
use fuseline_runtime::internals::may_wait;
use fuseline_runtime::{Error, Result};

use super::report::told;
use super::table::Missing;
use super::{Session, StreamHandle, asking, handles};

handles! {
    /// Id of an event of a session.
    EventHandle, "event";
}

impl Session {
    /// Records an event at the current position of a stream. It ends the region that is being
    /// recorded there and launches it; does not wait.
    ///
    /// # Errors
    /// When the id is invalid or of a trace, or there are too many events.
    pub fn record_event(&self, stream: StreamHandle) -> Result<EventHandle> {
        told(self.stream(stream, "record_event").and_then(|stream| {
            let fence = stream.shared().place(&asking())?;
            let added = self.0.events.insert(fence).map(EventHandle);
            added.map_err(|missing| Error::misuse(format!("a new event: the table {missing}"), asking()))
        }))
    }

    fn fence(&self, event: EventHandle, what: &str) -> Result<Arc<Fence>> {
        let found = self.0.events.get(event.0);
        found.map_err(|missing: Missing| event.missing(missing, what, &asking()))
    }

    /// Whether an event has been reached. Never waits.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn is_reached(&self, event: EventHandle) -> Result<bool> {
        told(self.fence(event, "is_reached")).map(|fence| (*fence).as_ref().get().is_some())
    }

    /// Waits at most for `timeout` until an event has been reached. Failures of values stay with
    /// the values.
    ///
    /// # Errors
    /// When the id is invalid, its stream was abandoned, the timeout has passed, or in a callback.
    pub fn wait_event(&self, event: EventHandle, timeout: Option<Duration>) -> Result<()> {
        told(self.fence(event, "wait_event").and_then(|fence| {
            may_wait()?;
            let start = Instant::now();
            let given = timeout.and_then(|timeout| start.checked_add(timeout));
            let deadline = given.or_else(|| self.engine().shared().deadline());
            match (*fence).as_ref().wait(deadline) {
                Some(FenceOutcome::Done) => Ok(()),
                Some(FenceOutcome::Abandoned) => Err(Error::abandoned()),
                None => Err(Error::timeout(start.elapsed(), event.to_string(), None)),
            }
        }))
    }

    /// Calls `callback` when an event is reached, immediately if it has been. See the module on
    /// where callbacks run.
    ///
    /// # Errors
    /// When the id is invalid; `callback` is dropped.
    pub fn on_event(
        &self,
        event: EventHandle,
        callback: impl FnOnce(EventHandle) + Send + 'static,
    ) -> Result<()> {
        told(self.fence(event, "on_event")).map(|fence| {
            let telemetry = self.engine().shared().telemetry().clone();
            let tell = move || telemetry.call_back("event", || callback(event));
            (*fence).as_ref().subscribe(tell);
        })
    }

    /// Makes everything recorded on a stream from now on run after an event of another stream. Does
    /// not wait.
    ///
    /// # Errors
    /// When an id is invalid, or the stream is a trace.
    pub fn wait_on_stream(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        told(self.stream(stream, "wait_on_stream").and_then(|stream| {
            let fence = self.fence(event, "wait_on_stream")?;
            stream.shared().run_after(fence, &asking())
        }))
    }

    /// Releases the id of an event. Its waiters go on waiting.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn close_event(&self, event: EventHandle) -> Result<()> {
        let gone = self.0.events.release(event.0);
        told(gone.map(drop).map_err(|missing| event.missing(missing, "close_event", &asking())))
    }
}
