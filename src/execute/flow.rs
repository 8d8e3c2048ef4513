//! How much of a stream may be on the device at once.
//!
//! A region is in flight from its launch until the device says that it is done. Beyond a number of regions or bytes of
//! results the driver waits, which in the end lets the recording thread wait: memory is bounded by the limits and not by
//! how far the program is ahead.

use std::sync::{Arc, Weak};

use fuseline_fusion::Bytes;

use crate::stream::StreamShared;
use crate::sync::Mutex;

#[derive(Debug, Default)]
struct State {
    regions: usize,
    bytes: Bytes,
    /// The driver waits for something to be done.
    waiting: bool,
}

/// What is in flight of one stream.
#[derive(Debug)]
pub(crate) struct Flow {
    max_regions: usize,
    max_bytes: Bytes,
    state: Mutex<State>,
}

impl Flow {
    pub(crate) fn new(max_regions: usize, max_bytes: Bytes) -> Flow {
        Flow { max_regions, max_bytes, state: Mutex::new(State::default()) }
    }

    /// Whether a region with results of so many bytes may be launched. If not, the stream is notified when that may have
    /// changed. A region larger than the limit goes when nothing else is in flight.
    pub(super) fn admits(&self, bytes: Bytes) -> bool {
        let mut state = self.state.lock();
        let fits = state.regions < self.max_regions && state.bytes.saturating_add(bytes) <= self.max_bytes;
        if fits || state.regions == 0 {
            return true;
        }
        state.waiting = true;
        false
    }

    /// Whether nothing is in flight. If something is, the stream is notified when that may have changed.
    pub(super) fn drained(&self, _stream: &StreamShared) -> bool {
        let mut state = self.state.lock();
        state.waiting = state.regions > 0;
        state.regions == 0
    }

    /// A region takes off; it must [`Flow::land`].
    pub(super) fn take_off(&self, bytes: Bytes) {
        let mut state = self.state.lock();
        state.regions += 1;
        state.bytes = state.bytes.saturating_add(bytes);
    }

    /// A region is done.
    pub(super) fn land(self: &Arc<Self>, bytes: Bytes, stream: &Weak<StreamShared>) {
        let mut state = self.state.lock();
        state.regions -= 1;
        state.bytes = state.bytes.saturating_sub(bytes);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // This may be a thread of the plugin, where nothing may be torn down: a stream that we turn out to be the last to
        // hold is handed to a thread of ours.
        if waiting && let Some(stream) = stream.upgrade() {
            StreamShared::notify_from_outside(stream);
        }
    }
}
