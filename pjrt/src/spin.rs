//! Adaptive spinning: how long a thread that waits for the plugin polls before it blocks.
//!
//! Waking a blocked thread takes as long as a small execution. A product of 64x64 takes 28 µs with
//! a blocking wait and 17 µs with polling (medians of a loop of bare PJRT calls that was not kept,
//! API 0.106, 2 cores of an Intel Xeon, 2026-11-29). So a waiting thread polls first. As in
//! glibc's adaptive mutexes, the limit follows earlier waits. Where polling does not help, it only
//! takes a core from the plugin's threads.
//!
//! The time that a blocked thread waited is not used, because it includes the time to wake it. A
//! client that does not poll tries it again now and then instead.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The longest time that a thread polls.
const MAX_POLL: Duration = Duration::from_micros(50);

/// The weight of a new wait in the mean, as a shift: one eighth, as in glibc.
const WEIGHT: u32 = 3;

/// The share of the mean that a failed poll removes, as a shift.
const PENALTY: u32 = 2;

/// The smallest mean, in nanoseconds. A smaller one becomes zero, because a single poll takes about
/// as long.
const MIN_MEAN: u32 = 200;

/// While the mean is zero, one in this many waits polls.
const TRIAL_INTERVAL: u32 = 16;

/// Number of threads that poll now.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// Number of threads that may poll at once. It leaves one core to the plugin.
fn max_polling() -> usize {
    static MAX_POLLING: OnceLock<usize> = OnceLock::new();
    *MAX_POLLING.get_or_init(|| available_parallelism().map_or(0, |cores| cores.get() - 1))
}

/// The durations of earlier waits for a client's executions.
#[derive(Debug, Default)]
pub(super) struct WaitHistory {
    /// The mean, in nanoseconds, of waits that ended during the poll. Zero if polling does not
    /// help.
    mean: AtomicU32,
    /// Number of waits while the mean was zero.
    waits_at_zero: AtomicU32,
}

impl WaitHistory {
    /// Polls `is_ready`, and then calls `block`, which waits if that is still necessary.
    pub(super) fn wait<E>(
        &self,
        is_ready: impl Fn() -> bool,
        block: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        // If the result is there already, nothing can be learned.
        if !is_ready() {
            self.poll(is_ready);
        }
        block()
    }

    /// The longest time to poll in this wait.
    fn limit(&self) -> Duration {
        match self.mean.load(Ordering::Relaxed) {
            0 if self.waits_at_zero.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIAL_INTERVAL) => {
                MAX_POLL
            }
            mean => Duration::from_nanos(2 * u64::from(mean)).min(MAX_POLL),
        }
    }

    fn poll(&self, is_ready: impl Fn() -> bool) {
        let limit = self.limit();
        if limit.is_zero() {
            return;
        }
        if POLLING.fetch_add(1, Ordering::Relaxed) < max_polling() {
            let start = Instant::now();
            let outcome = loop {
                let waited = start.elapsed();
                match is_ready() {
                    true => break Some(waited),
                    false if waited > limit => break None,
                    false => std::hint::spin_loop(),
                }
            };
            self.record(outcome);
        }
        POLLING.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records how long a successful poll took. `None` means that the poll reached its limit.
    fn record(&self, outcome: Option<Duration>) {
        // If two threads record at once, one of the records is lost.
        let mean = self.mean.load(Ordering::Relaxed);
        let next = match outcome.map(|waited| waited.min(MAX_POLL).as_nanos() as u32) {
            Some(waited) if mean == 0 => waited,
            Some(waited) => mean - (mean >> WEIGHT) + (waited >> WEIGHT),
            None => mean - (mean >> PENALTY),
        };
        self.mean.store(if next < MIN_MEAN { 0 } else { next }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_limit_follows_the_waits_before() {
        let history = WaitHistory::default();
        let trials = |waits: usize| (0..waits).filter(|_| !history.limit().is_zero()).count();
        assert_eq!(trials(64), 4, "only now and then while polling does not help");
        history.record(Some(Duration::from_micros(20)));
        assert_eq!(history.limit(), Duration::from_micros(40));
        (0..100).for_each(|_| history.record(Some(Duration::from_micros(5))));
        assert!(history.limit() < Duration::from_micros(11), "{:?}", history.limit());
        history.record(Some(Duration::from_secs(1)));
        assert!(history.limit() <= MAX_POLL);
        (0..100).for_each(|_| history.record(None));
        assert_eq!(trials(64), 4);
    }

    #[test]
    fn a_wait_ends_with_the_outcome_of_the_blocking_call() {
        let history = WaitHistory::default();
        let (asked, blocked) = (Cell::new(0), Cell::new(0));
        for ready_after in [0, 1, 3, u32::MAX] {
            asked.set(0);
            let is_ready = || asked.replace(asked.get() + 1) >= ready_after;
            let block = || {
                blocked.set(blocked.get() + 1);
                Err("the computation failed")
            };
            assert_eq!(history.wait(is_ready, block), Err("the computation failed"));
        }
        assert_eq!(blocked.get(), 4);
    }
}
