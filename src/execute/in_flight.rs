//! How much of a stream may be on the device at once.
//!
//! A region is in flight from its launch until the device says that it is done. Beyond a number of regions or bytes of
//! results the driver waits, which in the end lets the recording thread wait: memory is bounded by the limits and not by
//! how far the program is ahead.

use std::fmt;
use std::sync::{Arc, Weak};

use fuseline_fusion::Bytes;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use crate::stream::StreamShared;

#[derive(Default)]
struct State {
    regions: usize,
    bytes: Bytes,
    /// Regions that ever took off.
    launched: u64,
    /// The driver waits for something to be done.
    waiting: bool,
    /// What others wait for: so many regions to be done.
    landings: Vec<(usize, Landed)>,
}

/// Called when what was waited for is done.
type Landed = Box<dyn FnOnce() + Send>;

/// What is in flight of one stream.
pub(crate) struct Flow {
    max_regions: usize,
    max_bytes: Bytes,
    state: Mutex<State>,
}

impl Flow {
    pub(crate) fn new(max_regions: usize, max_bytes: Bytes) -> Flow {
        Flow { max_regions, max_bytes, state: Mutex::new(Rank::Flow, State::default()) }
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

    /// Calls `landed` when as many regions are done as are in flight now, which are those unless the device changes their order: on any
    /// thread, at once if none is. Returns their number.
    pub(super) fn when_landed(&self, landed: impl FnOnce() + Send + 'static) -> usize {
        let mut state = self.state.lock();
        let regions = state.regions;
        if regions > 0 {
            state.landings.push((regions, Box::new(landed)));
            return regions;
        }
        drop(state);
        landed();
        0
    }

    /// A region takes off; it must [`Flow::land`].
    pub(super) fn take_off(&self, bytes: Bytes) {
        let mut state = self.state.lock();
        state.regions += 1;
        state.launched += 1;
        state.bytes = state.bytes.saturating_add(bytes);
    }

    /// How many regions ever took off, and how many of these are done.
    pub(super) fn progress(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.launched, state.launched - state.regions as u64)
    }

    /// A region is done.
    pub(super) fn land(self: &Arc<Self>, bytes: Bytes, stream: &Weak<StreamShared>) {
        let mut state = self.state.lock();
        state.regions -= 1;
        state.bytes = state.bytes.saturating_sub(bytes);
        let waiting = std::mem::take(&mut state.waiting);
        let mut landed: SmallVec<[Landed; 1]> = SmallVec::new();
        if !state.landings.is_empty() {
            for (left, waiter) in std::mem::take(&mut state.landings) {
                match left - 1 {
                    0 => landed.push(waiter),
                    left => state.landings.push((left, waiter)),
                }
            }
        }
        drop(state);
        landed.into_iter().for_each(|landed| landed());
        // This may be a thread of the plugin, where nothing may be torn down: a stream that we turn out to be the last to
        // hold is handed to a thread of ours.
        if waiting && let Some(stream) = stream.upgrade() {
            StreamShared::notify_from_outside(stream);
        }
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Flow({} regions, {} of results)", state.regions, state.bytes)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// Regions and bytes are limits of their own, both of what is in flight now, and what is larger than all of it goes alone.
    #[test]
    fn as_much_is_in_flight_as_the_limits_say() {
        let flow = Arc::new(Flow::new(3, Bytes(100)));
        let land = |bytes| flow.land(Bytes(bytes), &Weak::new());
        assert!(flow.admits(Bytes(1_000)), "nothing else is in flight");
        flow.take_off(Bytes(60));
        assert!(flow.admits(Bytes(40)) && !flow.admits(Bytes(41)));
        flow.take_off(Bytes(40));
        assert!(flow.admits(Bytes(0)) && !flow.admits(Bytes(1)), "the third region has no bytes to spare");
        flow.take_off(Bytes(0));
        assert!(!flow.admits(Bytes(0)), "three are in flight");
        land(60);
        assert!(flow.admits(Bytes(60)) && !flow.admits(Bytes(61)));
        land(40);
        assert!(flow.admits(Bytes(100)) && !flow.admits(Bytes(101)));
        assert_eq!(flow.progress(), (3, 2));
        land(0);
        assert!(flow.admits(Bytes(1_000)));
        flow.take_off(Bytes(1_000));
        assert!(!flow.admits(Bytes(0)), "it is larger than all");
    }
}
