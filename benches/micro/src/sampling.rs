//! Times, by sampling: a sample is a batch, a figure the median of the samples.

use std::time::{Duration, Instant};

use crate::figures::Time;

/// How long one thing is sampled.
pub(crate) const LONG: Duration = Duration::from_millis(300);

/// Fewest samples of a thing.
pub(crate) const FEWEST: usize = 15;

/// Samples until it has been long enough, and there are enough.
pub(crate) fn sample(mut once: impl FnMut() -> f64) -> Time {
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < FEWEST || start.elapsed() < LONG {
        samples.push(once());
    }
    Time::of(samples)
}
