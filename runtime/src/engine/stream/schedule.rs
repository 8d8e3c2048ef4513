//! Decides which thread drives a stream, one at a time.

use std::sync::Arc;
use std::time::Instant;

use fuseline_pjrt::PluginScope;
use fuseline_sync::schedule::actor::{Finished, Notified, Unwinding};

use super::StreamShared;
use crate::engine::queue_item::QueueItem;

impl StreamShared {
    /// Schedules the stream on the driver pool, unless a thread is driving it already.
    pub(crate) fn notify(self: &Arc<Self>) {
        if self.actor.notify() == Notified::Enqueue {
            self.engine.threads().drive().push(QueueItem::new(self.clone()));
        }
    }

    /// As [`StreamShared::notify`], from a thread on which the stream must not be dropped.
    pub(crate) fn notify_from_outside(this: Arc<Self>) {
        // Push the stream even if a thread is driving it: the thread of the pool finds out, and the
        // stream is dropped there.
        let _ = this.actor.notify();
        let pool = this.engine.threads().drive().clone();
        pool.push(QueueItem::new(this));
    }

    /// Drives the stream if it is still queued. Called by the pool.
    pub(crate) fn run_queued(self: &Arc<Self>) {
        if self.actor.start_queued() {
            self.run(false);
        }
    }

    /// Drives the stream on this thread if no other thread does. Another driving thread sees
    /// everything that was demanded so far.
    fn run_here(self: &Arc<Self>) {
        if self.actor.start() {
            let _inside = PluginScope::enter();
            self.run(true);
        }
    }

    /// Drives the stream. A thread that waits for a value (`is_reader`) stops when the value is
    /// there and leaves the rest to the pool.
    fn run(self: &Arc<Self>, is_reader: bool) {
        // A panic in the driver is a bug of the engine.
        let unwinding = Unwinding(&self.actor);
        let mut is_left = false;
        loop {
            if let Some(driver) = self.driver.lock().as_mut().filter(|_| !is_left) {
                is_left = driver.run(is_reader, self);
            }
            if self.actor.finish() == Finished::Idle {
                break;
            }
        }
        std::mem::forget(unwinding);
        if is_left {
            self.notify();
        }
    }

    /// Drives the stream on this thread, or notifies the pool if there is a deadline.
    pub(super) fn run_by(self: &Arc<Self>, deadline: Option<Instant>) {
        match deadline {
            None => self.run_here(),
            Some(_) => self.notify(),
        }
    }

    /// From now on no thread of the engine drives the stream. The caller does, stage by stage.
    #[cfg(feature = "stages")]
    pub(crate) fn hold(&self) -> bool {
        self.actor.start()
    }
}
