//! Keeps the remains of donated buffers until they can be destroyed without waiting.
//!
//! XLA's CPU backend holds a donated buffer from the call that takes it until the computation has
//! run, and destroying the buffer waits for that (API 0.81). A driver that dropped its inputs at
//! once would wait for every execution that updates in place, and so would a recording thread that
//! drives. So the buffers that an execution took are kept here until the execution is done and the
//! stream has launched something later. They own no memory any more and are not counted.
//!
//! Invariants:
//! - FREE-1: only buffers that the plugin reports as gone are kept. A buffer that it did not take
//!   is dropped at once, with its memory. So is one with a buffer for each of several replicas.
//! - FREE-2: no buffer is destroyed inside a callback of the plugin, where nothing may wait for an
//!   execution.
//!
//! The number of kept buffers is bounded by what the executions in flight have taken
//! ([`InFlight`]), and those that were done since the latest launch.

use std::collections::VecDeque;

use fuseline_pjrt::PluginScope;
use fuseline_sync::{Mutex, Rank, thread};
use smallvec::SmallVec;

use super::in_flight::InFlight;
use crate::device::DonatedBuffer;

/// The donated buffers of a stream, each with the number of the execution that took it.
pub(crate) struct DeferredFrees(Mutex<VecDeque<(u64, DonatedBuffer)>>);

impl DeferredFrees {
    pub(crate) fn new() -> DeferredFrees {
        DeferredFrees(Mutex::new(Rank::DeferredFrees, VecDeque::new()))
    }

    /// Keeps what the latest execution took, and destroys what finished executions took.
    pub(crate) fn keep(&self, latest: SmallVec<[DonatedBuffer; 8]>, in_flight: &InFlight) {
        let (launched, landed) = in_flight.progress();
        let mut kept = self.0.lock();
        kept.extend(latest.into_iter().map(|remains| (launched, remains)));
        // Executions end in the order of their launches unless the device reorders them. Then
        // dropping one of these may wait a little.
        let done = kept.iter().take_while(|&&(taken_by, _)| taken_by <= landed).count();
        let gone: SmallVec<[(u64, DonatedBuffer); 8]> = kept.drain(..done).collect();
        drop(kept);
        drop(gone);
    }
}

impl Drop for DeferredFrees {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut *self.0.lock());
        if kept.is_empty() || !fuseline_pjrt::inside_callback() {
            return;
        }
        // FREE-2. Without a thread the buffers are dropped here: such a process can do little else.
        let inside = PluginScope::enter();
        let _ = thread::spawn("fuseline-destroy".to_owned(), move || {
            drop(kept);
            drop(inside);
        });
    }
}

impl std::fmt::Debug for DeferredFrees {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeferredFrees({})", self.0.lock().len())
    }
}
