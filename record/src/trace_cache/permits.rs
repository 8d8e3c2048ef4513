//! Limits the number of entries that are deferred to a lock holder.
//!
//! The holder of a [combining lock](super::combining_lock) may be delayed: it was preempted, or the
//! log is full. Meanwhile other threads that record on the stream defer their entries to it, which
//! takes memory. So each deferred entry has a [`Permit`], and a thread that finds none left waits.
//!
//! Invariants:
//! - TRACE-7: at most [`MAX_DEFERRED`] entries that may wait have permits. A waiting thread is
//!   woken when there are fewer, or when its deadline passes. Entries that must not wait for the
//!   lock holder (the driver's entries, and releases, which may be the holder's own) are counted
//!   and do not wait.

use std::sync::Arc;
use std::time::Instant;

use fuseline_sync::atomic::{AtomicU32, Ordering};
use fuseline_sync::{Condvar, Mutex, Rank};

use crate::limits::MAX_DEFERRED;

/// The permits of one stream.
pub(super) struct Permits {
    /// Number of permits in use. A thread that is about to wait has one for a moment.
    in_use: AtomicU32,
    lock: Mutex<()>,
    returned: Condvar,
}

/// The right to defer an entry. Dropping it returns the permit.
pub(super) struct Permit(Arc<Permits>);

/// The result of [`Permits::get`].
pub(super) enum PermitOutcome {
    Permit(Permit),
    /// There was none, and the thread has waited until there is one. It has to look at the lock
    /// again.
    Waited,
    /// The deadline has passed.
    Late,
}

impl Permits {
    pub(super) fn new() -> Arc<Permits> {
        Arc::new(Permits {
            in_use: AtomicU32::new(0),
            lock: Mutex::new(Rank::Permits, ()),
            returned: Condvar::new(),
        })
    }

    /// Gets a permit. If there is none and `may_wait` is true, the thread waits until `deadline`,
    /// which `waits_on` may extend. Neither closure is called under the lock of the permits.
    pub(super) fn get(
        self: &Arc<Self>,
        may_wait: bool,
        deadline: impl FnOnce() -> Option<Instant>,
        mut waits_on: impl FnMut() -> Option<Instant>,
    ) -> PermitOutcome {
        // Relaxed: it is only a number, and waiting threads read it under the lock.
        let in_use = self.in_use.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.clone());
        if in_use < MAX_DEFERRED || !may_wait {
            return PermitOutcome::Permit(permit);
        }
        drop(permit);
        let mut until = deadline();
        let mut lock = self.lock.lock();
        while self.in_use.load(Ordering::Relaxed) >= MAX_DEFERRED {
            lock = match until {
                None => self.returned.wait(lock),
                Some(until) if Instant::now() < until => self.returned.wait_until(lock, until),
                Some(_) => {
                    drop(lock);
                    until = waits_on();
                    if until.is_none() {
                        return PermitOutcome::Late;
                    }
                    self.lock.lock()
                }
            };
        }
        PermitOutcome::Waited
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.0.in_use.fetch_sub(1, Ordering::Relaxed) >= MAX_DEFERRED {
            // Under the lock, so that no thread is between its check and its wait.
            let _lock = self.0.lock.lock();
            self.0.returned.notify_all();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use fuseline_sync::thread;

    use super::*;

    /// TRACE-7.
    #[test]
    fn a_thread_without_a_permit_waits_until_one_is_returned() {
        let permits = Permits::new();
        let permit = |may_wait, until: Option<Instant>| match permits.get(may_wait, || until, || None) {
            PermitOutcome::Permit(permit) => Some(permit),
            PermitOutcome::Waited | PermitOutcome::Late => None,
        };
        let mut in_use: Vec<Permit> = (0..MAX_DEFERRED).map(|_| permit(true, None).unwrap()).collect();
        // A thread that must not wait gets one more.
        in_use.push(permit(false, None).unwrap());
        // A thread whose deadline passes gets none.
        let until = Instant::now() + Duration::from_millis(1);
        assert!(
            matches!(permits.get(true, || Some(until), || None), PermitOutcome::Late)
                && Instant::now() >= until
        );
        let (send, waited) = mpsc::channel();
        let shared = permits.clone();
        let thread = thread::spawn("waits".into(), move || {
            send.send(matches!(shared.get(true, || None, || None), PermitOutcome::Waited)).unwrap();
        })
        .unwrap();
        assert!(waited.recv_timeout(Duration::from_millis(50)).is_err(), "it did not wait");
        in_use.pop();
        assert!(waited.recv_timeout(Duration::from_millis(50)).is_err(), "there is none yet");
        in_use.pop();
        assert_eq!(waited.recv_timeout(Duration::from_secs(20)), Ok(true));
        thread.join().unwrap();
        assert!(permit(true, None).is_some());
    }
}
