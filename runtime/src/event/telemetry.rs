//! The event sink and the counters of an engine.

use std::sync::Arc;

use super::{Event, EventSink, Events};
use crate::counters::AtomicCounters;
use crate::user_code::call_user;

/// The event sink and the counters of an engine. Threads of the plugin hold this instead of the
/// engine. Dropping an engine waits for its threads, and these may be waiting for the plugin's
/// threads.
#[derive(Debug, Clone)]
pub struct Telemetry {
    events: Events,
    counters: Arc<AtomicCounters>,
}

impl Telemetry {
    pub(crate) fn to(sink: Option<Arc<dyn EventSink>>) -> Telemetry {
        Telemetry { events: Events::to(sink), counters: Arc::new(AtomicCounters::new()) }
    }

    #[inline]
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    #[inline]
    pub(crate) fn counters(&self) -> &AtomicCounters {
        &self.counters
    }

    /// Counts data that was copied to the device.
    pub fn note_up(&self, bytes: usize) {
        self.counters.bytes_up.add(bytes as u64);
    }

    /// Counts data that was copied to the host.
    pub(crate) fn note_down(&self, bytes: usize) {
        self.counters.bytes_down.add(bytes as u64);
    }

    /// Calls a callback of the user from any thread of the engine; see [`call_user`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn call_back(&self, callback: &'static str, f: impl FnOnce()) {
        if let Err(message) = call_user(f) {
            self.counters.panics.add(1);
            self.events.emit(|| Event::Panicked { callback, message });
        }
    }
}
