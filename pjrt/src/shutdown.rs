//! Ends that may not come: a plugin's client may hang while it is destroyed, and so may what is destroyed before it.
//!
//! Input: what is to be let go, and how long that may take. Output: it is let go on a thread of its own, which is waited for. If it has not come back in
//! time it is left there with what it holds, counted ([`Counters::leaks`](super::Counters::leaks)) and told, and goes on if the plugin answers after
//! all.
//!
//! Invariants:
//! - K3. Nobody waits longer than the limit, however much is let go one after the other: on such a thread nothing is handed to another one.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_sync::fork::is_forked;
use fuseline_sync::{Condvar, Mutex, Rank, thread};

use super::error::leak;
use super::exit::Inside;

/// Hears how long was waited in vain.
type Tell = Arc<dyn Fn(Duration) + Send + Sync>;

/// For how long an end is waited for.
#[derive(Clone)]
pub struct Patience {
    limit: Duration,
    tell: Tell,
}

fuseline_sync::thread_local! {
    /// This thread may be left in what it does.
    static IS_EXPENDABLE: Cell<bool> = const { Cell::new(false) };
}

impl Patience {
    /// Waits so long, and tells of what has not ended by then.
    pub fn new(limit: Duration, tell: impl Fn(Duration) + Send + Sync + 'static) -> Patience {
        Patience { limit, tell: Arc::new(tell) }
    }

    /// The same, without keeping who is told: nobody is, if they are gone by then. For what they may hold themselves.
    pub fn weak(&self) -> Patience {
        let tell = Arc::downgrade(&self.tell);
        Patience::new(self.limit, move |took| {
            if let Some(tell) = tell.upgrade() {
                tell(took);
            }
        })
    }

    /// Calls `end`, and returns when that has returned or the time is over.
    pub fn wait_for(&self, end: impl FnOnce() + Send + 'static) {
        if is_forked() || IS_EXPENDABLE.try_with(Cell::get).unwrap_or(false) {
            return end();
        }
        let since = Instant::now();
        let ended = Arc::new((Mutex::new(Rank::Ending, false), Condvar::new()));
        let ending = Ending(ended.clone());
        let run = move || {
            let _inside = Inside::enter();
            let _ = IS_EXPENDABLE.try_with(|expendable| expendable.set(true));
            // Told when it is over, by a panic too.
            let _ending = ending;
            end();
        };
        let thread = match thread::spawn("pjrt-end".into(), run) {
            Ok(thread) => thread,
            // No thread to be had: what was not let go with the closure stays.
            Err(error) => return leak(error),
        };
        let Some(until) = since.checked_add(self.limit) else { return drop(thread.join()) };
        let mut is_over = ended.0.lock();
        while !*is_over && Instant::now() < until {
            is_over = ended.1.wait_until(is_over, until);
        }
        if *is_over {
            drop(is_over);
            let _ = thread.join();
        } else {
            drop(is_over);
            self.tell_late(since.elapsed());
        }
    }

    /// Counts and tells that an end was waited for in vain.
    pub fn tell_late(&self, took: Duration) {
        leak(());
        (self.tell)(took);
    }
}

impl std::fmt::Debug for Patience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Patience({:?})", self.limit)
    }
}

/// Says that an end has come, when it is dropped.
struct Ending(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}
