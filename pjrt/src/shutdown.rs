//! Time-limited shutdown: destroying a plugin's client may hang, and so may destroying objects
//! before it.
//!
//! Input: a function that drops something, and a time limit. Output: the function runs on its own
//! thread, and the caller waits for it. If it does not return in time, the thread is abandoned with
//! everything it holds, counted ([`Counters::leaks`](super::Counters::leaks)) and reported. It
//! finishes if the plugin answers later.
//!
//! Invariants:
//! - CLIENT-3. Nobody waits longer than the limit, however many objects are dropped in sequence: on
//!   such a thread nothing is handed to another one.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_sync::fork::is_forked;
use fuseline_sync::{Condvar, Mutex, Rank, thread};

use super::error::leak;
use super::plugin_scope::PluginScope;

/// Receives the time of a wait that was given up.
type ReportTimeout = Arc<dyn Fn(Duration) + Send + Sync>;

/// How long to wait for a shutdown.
#[derive(Clone)]
pub struct ShutdownTimeout {
    limit: Duration,
    report: ReportTimeout,
}

fuseline_sync::thread_local! {
    /// This thread may be abandoned.
    static IS_EXPENDABLE: Cell<bool> = const { Cell::new(false) };
}

impl ShutdownTimeout {
    /// Creates a limit. `report` is called when something has not ended by then.
    pub fn new(limit: Duration, report: impl Fn(Duration) + Send + Sync + 'static) -> ShutdownTimeout {
        ShutdownTimeout { limit, report: Arc::new(report) }
    }

    /// The same, but with a weak reference to the receiver of reports. For owners that the receiver
    /// may itself hold.
    pub fn weak(&self) -> ShutdownTimeout {
        let report = Arc::downgrade(&self.report);
        ShutdownTimeout::new(self.limit, move |took| {
            if let Some(report) = report.upgrade() {
                report(took);
            }
        })
    }

    /// Calls `end` on another thread, and returns when it has returned or the time is over.
    pub fn wait_for(&self, end: impl FnOnce() + Send + 'static) {
        if is_forked() || IS_EXPENDABLE.try_with(Cell::get).unwrap_or(false) {
            return end();
        }
        let since = Instant::now();
        let ended = Arc::new((Mutex::new(Rank::Ending, false), Condvar::new()));
        let (ending, inside) = (Ending(ended.clone()), PluginScope::enter());
        let run = move || {
            let _inside = inside;
            let _ = IS_EXPENDABLE.try_with(|expendable| expendable.set(true));
            // Signals the end, also after a panic.
            let _ending = ending;
            end();
        };
        let thread = match thread::spawn("pjrt-end".into(), run) {
            Ok(thread) => thread,
            // Without a thread, anything that was not dropped with the closure stays.
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
            self.report_late(since.elapsed());
        }
    }

    /// Counts and reports a shutdown that took too long.
    pub fn report_late(&self, took: Duration) {
        leak(());
        (self.report)(took);
    }
}

impl std::fmt::Debug for ShutdownTimeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShutdownTimeout({:?})", self.limit)
    }
}

/// Signals the end when it is dropped.
struct Ending(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}
