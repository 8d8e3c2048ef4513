//! What is left of donated buffers, until it can be destroyed without waiting.
//!
//! XLA's CPU backend holds a donated buffer from the call that takes it until the computation has run, and destroying the buffer waits for that
//! (API 0.81). A driver that let go of its inputs at once sat out every execution that updates in place, and with it the thread that recorded,
//! if that drove. So the buffers that an execution took are kept here until the stream has launched something later and the execution is done.
//! They have no memory any more, and count for none.
//!
//! Invariants:
//! - D1: only what the plugin says is gone is kept: a buffer that it did not take after all is dropped at once, with its memory. What has a
//!   buffer for each of several replicas is dropped at once too.
//! - D2: none is destroyed inside a callback of the plugin, where nothing may wait for an execution.
//!
//! There are at most as many as the executions in flight have taken ([`Flow`]), and those that were done since the latest launch.

use std::collections::VecDeque;

use fuseline_sync::{Mutex, Rank, thread};
use smallvec::SmallVec;

use super::flow::Flow;
use crate::device::Remains;
use crate::pjrt;

/// The donated buffers of a stream, each with the number of the execution that took it.
pub(crate) struct Donated(Mutex<VecDeque<(u64, Remains)>>);

impl Donated {
    pub(crate) fn new() -> Donated {
        Donated(Mutex::new(Rank::Donated, VecDeque::new()))
    }

    /// Keeps what the latest execution took, and destroys what those took that are done.
    pub(super) fn keep(&self, latest: SmallVec<[Remains; 8]>, flow: &Flow) {
        let (launched, landed) = flow.progress();
        let mut kept = self.0.lock();
        kept.extend(latest.into_iter().map(|remains| (launched, remains)));
        // Executions end in the order of their launches unless the device changes it. Then one of these may have to wait a little.
        let done = kept.iter().take_while(|&&(taken_by, _)| taken_by <= landed).count();
        let gone: SmallVec<[(u64, Remains); 8]> = kept.drain(..done).collect();
        drop(kept);
        drop(gone);
    }
}

impl Drop for Donated {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut *self.0.lock());
        if kept.is_empty() || !pjrt::inside_callback() {
            return;
        }
        // D2. If there is no thread to be had it is done here: there is little else to be done in such a process.
        let _ = thread::spawn("fuseline-destroy".to_owned(), move || drop(kept));
    }
}

impl std::fmt::Debug for Donated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Donated({})", self.0.lock().len())
    }
}
