//! A thread that looks after the others.
//!
//! Input: a function that looks, gives up who is late, and says when the next one will be. Output: calls of it in time.
//!
//! Nobody tells the thread what is begun: it looks at least once in a period that is no longer than the shortest limit, so whatever is
//! begun after a look is seen by the next one before it is late, and what is late is found at that moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rank::before_end;
use crate::thread::{self, JoinHandle};
use crate::{Condvar, Mutex, Rank};

/// See the module's documentation.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Calls `look` every `period` and when it says.
    pub fn start(
        period: Duration,
        mut look: impl FnMut(Instant) -> Option<Instant> + Send + 'static,
    ) -> std::io::Result<Watch> {
        let shared = Arc::new((Mutex::new(Rank::Watch, false), Condvar::new()));
        let inner = shared.clone();
        let work = move || {
            let (is_closed, changed) = &*inner;
            loop {
                let now = Instant::now();
                let next = look(now).into_iter().chain(now.checked_add(period)).min();
                let mut closed = is_closed.lock();
                // A wake-up before the time is no reason to look.
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
        Ok(Watch { shared, thread: Mutex::new(Rank::WatchThread, Some(thread)) })
    }

    /// Ends the thread and waits for that, unless it is the calling one.
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
