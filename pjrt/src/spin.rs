//! How long a thread that waits for the plugin polls before it blocks.
//!
//! Waking a blocked thread takes 3 to 40 µs on the machines of docs/figures.md, as long as a small
//! execution. So a waiting thread first polls. As for the adaptive mutexes of glibc, the limit
//! follows the waits before: where polling does not help, it would only take a core from the
//! plugin's threads. How long a blocked thread waited says little, because that includes the time
//! to wake it. So where nobody polls, now and then a thread tries.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The longest time that a thread polls.
const MAX: Duration = Duration::from_micros(50);

/// The weight of a new wait in the mean, as a shift: one eighth, as in glibc.
const WEIGHT: u32 = 3;

/// What a failure takes from the mean, as a shift.
const PENALTY: u32 = 2;

/// A mean below this number of nanoseconds is zero: not even a poll fits in.
const MIN_MEAN: u32 = 200;

/// If the mean is zero, one in this many waits polls. The others would gain 40 µs each, and this
/// one loses [`MAX`].
const TRIAL: u32 = 16;

/// Number of threads that poll. At least one core is left to the plugin.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// Number of threads that may poll at once.
fn max_polling() -> usize {
    static MAX_POLLING: OnceLock<usize> = OnceLock::new();
    *MAX_POLLING.get_or_init(|| available_parallelism().map_or(0, |cores| cores.get() - 1))
}

/// How long the waits for the executions of a client take.
#[derive(Debug, Default)]
pub(super) struct WaitHistory {
    /// The mean, in nanoseconds, of waits that ended while the thread polled. Zero if polling does
    /// not help.
    mean: AtomicU32,
    /// Number of waits while the mean was zero.
    idle: AtomicU32,
}

impl WaitHistory {
    /// Waits for something that `is_ready` tells and `block` waits for.
    pub(super) fn wait<E>(
        &self,
        is_ready: impl Fn() -> bool,
        block: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        // Waits that are over before they begin say nothing about the others.
        if !is_ready() {
            self.poll(is_ready);
        }
        block()
    }

    /// The longest time to poll in this wait.
    fn limit(&self) -> Duration {
        match self.mean.load(Ordering::Relaxed) {
            0 if self.idle.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIAL) => MAX,
            mean => Duration::from_nanos(2 * u64::from(mean)).min(MAX),
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
            self.note(outcome);
        }
        POLLING.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes how long a thread has polled, or that the limit was too low.
    fn note(&self, outcome: Option<Duration>) {
        // Another thread may note a wait meanwhile; one of the two is lost.
        let mean = self.mean.load(Ordering::Relaxed);
        let next = match outcome.map(|waited| waited.min(MAX).as_nanos() as u32) {
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
        history.note(Some(Duration::from_micros(20)));
        assert_eq!(history.limit(), Duration::from_micros(40));
        (0..100).for_each(|_| history.note(Some(Duration::from_micros(5))));
        assert!(history.limit() < Duration::from_micros(11), "{:?}", history.limit());
        history.note(Some(Duration::from_secs(1)));
        assert!(history.limit() <= MAX);
        (0..100).for_each(|_| history.note(None));
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
