//! Limits how much of a stream may be on the device at once.
//!
//! A region is in flight from its launch until the device reports that it is done. Beyond a number
//! of regions or bytes of results the driver stops launching. In the end the recording thread waits
//! too: memory is bounded by the limits and not by how far the program is ahead.

use std::fmt;

use fuseline_fusion::Bytes;
use fuseline_pjrt::PluginScope;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::completion::register_deferred;

#[derive(Default)]
struct InFlightState {
    regions: usize,
    bytes: Bytes,
    /// Regions launched so far.
    launched: u64,
    /// The driver waits for a region to be done.
    waiting: bool,
    /// Callbacks, each with the number of regions that still have to be done.
    waiters: Vec<(usize, OnDone)>,
    /// Exists while regions are in flight, because the plugin's threads run them.
    inside: Option<PluginScope>,
}

/// Called when the awaited regions are done.
type OnDone = Box<dyn FnOnce() + Send>;

/// The regions of one stream that are in flight.
pub(crate) struct InFlight {
    max_regions: usize,
    max_bytes: Bytes,
    state: Mutex<InFlightState>,
}

impl InFlight {
    pub(crate) fn new(max_regions: usize, max_bytes: Bytes) -> InFlight {
        InFlight { max_regions, max_bytes, state: Mutex::new(Rank::InFlight, InFlightState::default()) }
    }

    /// Whether a region with this many bytes of results may be launched. If not, the stream is
    /// notified when that may have changed. A region larger than the limit is admitted when nothing
    /// else is in flight.
    pub(crate) fn admits(&self, bytes: Bytes) -> bool {
        if self.fits(&self.state.lock(), bytes) {
            return true;
        }
        // DEFER-1: the stream waits for one of the regions.
        register_deferred();
        let mut state = self.state.lock();
        let fits = self.fits(&state, bytes);
        state.waiting |= !fits;
        fits
    }

    fn fits(&self, state: &InFlightState, bytes: Bytes) -> bool {
        let fits = state.regions < self.max_regions && state.bytes.saturating_add(bytes) <= self.max_bytes;
        fits || state.regions == 0
    }

    /// Whether nothing is in flight. If something is, the stream is notified when that may have
    /// changed.
    pub(crate) fn drained(&self) -> bool {
        register_deferred();
        let mut state = self.state.lock();
        state.waiting = state.regions > 0;
        state.regions == 0
    }

    /// Calls `done` when as many regions are done as are in flight now. These are the same
    /// regions unless the device reorders them. The call comes on any thread, at once if nothing is
    /// in flight. Returns the number of regions.
    pub(crate) fn on_done(&self, done: impl FnOnce() + Send + 'static) -> usize {
        register_deferred();
        let mut state = self.state.lock();
        let regions = state.regions;
        if regions > 0 {
            state.waiters.push((regions, Box::new(done)));
            return regions;
        }
        drop(state);
        done();
        0
    }

    /// Counts a launched region. Each call needs one of [`InFlight::release`].
    pub(crate) fn acquire(&self, bytes: Bytes) {
        let mut state = self.state.lock();
        state.inside.get_or_insert_with(PluginScope::enter);
        state.regions += 1;
        state.launched += 1;
        state.bytes = state.bytes.saturating_add(bytes);
    }

    /// How many regions were ever launched, and how many of these are done.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.launched, state.launched - state.regions as u64)
    }

    /// A region is done. Whether the stream waits for that, and has to be notified.
    #[must_use]
    pub(crate) fn release(&self, bytes: Bytes) -> bool {
        let mut state = self.state.lock();
        state.regions -= 1;
        state.bytes = state.bytes.saturating_sub(bytes);
        let waiting = std::mem::take(&mut state.waiting);
        let mut done: SmallVec<[OnDone; 1]> = SmallVec::new();
        if !state.waiters.is_empty() {
            for (left, waiter) in std::mem::take(&mut state.waiters) {
                match left - 1 {
                    0 => done.push(waiter),
                    left => state.waiters.push((left, waiter)),
                }
            }
        }
        let is_idle = state.regions == 0;
        let inside = state.inside.take_if(|_| is_idle);
        drop(state);
        done.into_iter().for_each(|done| done());
        drop(inside);
        waiting
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "InFlight({} regions, {} of results)", state.regions, state.bytes)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// Regions and bytes are separate limits on what is in flight. A region larger than the limit
    /// runs alone.
    #[test]
    fn as_much_is_in_flight_as_the_limits_say() {
        let in_flight = InFlight::new(3, Bytes(100));
        let land = |bytes| {
            let _is_awaited = in_flight.release(Bytes(bytes));
        };
        assert!(in_flight.admits(Bytes(1_000)), "nothing else is in flight");
        in_flight.acquire(Bytes(60));
        assert!(in_flight.admits(Bytes(40)) && !in_flight.admits(Bytes(41)));
        in_flight.acquire(Bytes(40));
        assert!(
            in_flight.admits(Bytes(0)) && !in_flight.admits(Bytes(1)),
            "the third region has no bytes to spare"
        );
        in_flight.acquire(Bytes(0));
        assert!(!in_flight.admits(Bytes(0)), "three are in flight");
        land(60);
        assert!(in_flight.admits(Bytes(60)) && !in_flight.admits(Bytes(61)));
        land(40);
        assert!(in_flight.admits(Bytes(100)) && !in_flight.admits(Bytes(101)));
        assert_eq!(in_flight.progress(), (3, 2));
        land(0);
        assert!(in_flight.admits(Bytes(1_000)));
        in_flight.acquire(Bytes(1_000));
        assert!(!in_flight.admits(Bytes(0)), "it is larger than all");
    }
}
