//! Samples times: a sample is a batch, and a figure is the median of the samples.

use std::time::{Duration, Instant};

use crate::figures::Time;

/// How long one subject is sampled.
pub(crate) const LONG: Duration = Duration::from_millis(300);

/// The minimum number of samples.
pub(crate) const FEWEST: usize = 15;

/// Samples for long enough and often enough.
pub(crate) fn sample(mut once: impl FnMut() -> f64) -> Time {
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < FEWEST || start.elapsed() < LONG {
        samples.push(once());
    }
    Time::of(samples)
}
