//! A thread that watches the others.
//!
//! Input: a function that looks, abandons late threads, and returns when the next one will be late.
//! Output: calls of it in time.
//!
//! The watchdog is not told what begins. It looks at least once per period, which is no longer than
//! the shortest limit. So the next look sees everything that began after the previous one before it
//! is late, and late threads are found at that moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock_rank::before_end;
use crate::thread::{self, JoinHandle};
use crate::{Condvar, Mutex, Rank};

/// A watchdog thread.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watchdog {
    /// Calls `look` every `period`, and at the times that it returns.
    pub fn start(
        period: Duration,
        mut look: impl FnMut(Instant) -> Option<Instant> + Send + 'static,
    ) -> std::io::Result<Watchdog> {
        let shared = Arc::new((Mutex::new(Rank::Watchdog, false), Condvar::new()));
        let inner = shared.clone();
        let work = move || {
            let (is_closed, changed) = &*inner;
            loop {
                let now = Instant::now();
                let next = look(now).into_iter().chain(now.checked_add(period)).min();
                let mut closed = is_closed.lock();
                // Do not look after a spurious wake-up.
                while !*closed && next.is_none_or(|next| Instant::now() < next) {
                    closed = match next {
                        Some(next) => changed.wait_until(closed, next),
                        None => changed.wait(closed),
                    };
                }
                if *closed {
                    return;
                }
            }
        };
        let thread = thread::spawn("fuseline-watch".to_owned(), work)?;
        Ok(Watchdog { shared, thread: Mutex::new(Rank::WatchdogThread, Some(thread)) })
    }

    /// Ends the thread and waits for it, unless it is the calling one.
    pub fn shut_down(&self) {
        *self.shared.0.lock() = true;
        self.shared.1.notify_all();
        let thread = self.thread.lock().take();
        before_end("waits for the watch");
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}
