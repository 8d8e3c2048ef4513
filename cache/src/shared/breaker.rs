//! When to ask a store, and when to leave it alone.
//!
//! After some failures in a row a breaker opens: nothing is asked for a while. Then one request
//! goes out as a probe. If it succeeds the breaker is closed; if not, the while is twice as long,
//! up to a limit. The while is jittered, so that the workers of a fleet do not all come back at
//! once.
//!
//! Input: what requests ended with, and the time. Output: whether to ask. No clock and no lock of
//! its own.
//!
//! Invariants:
//! - B1: while it is open, at most one request is under way that it let through.
//! - B2: a probe ends in success, failure or [`Breaker::abandon`]; after each of them another one
//!   is possible.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

/// How long to leave a store alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After how many failures in a row.
    pub after: u32,
    /// The first time, give or take a half.
    pub first: Duration,
    /// Most: each time that a probe fails, it is twice as long as before, up to this.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { after: 3, first: Duration::from_secs(1), most: Duration::from_secs(300) }
    }
}

/// Whether to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// As usual.
    Go,
    /// As the one request that finds out whether the store is back.
    Probe,
    /// Not before this.
    No(Instant),
}

#[derive(Debug)]
pub(crate) struct Breaker {
    backoff: Backoff,
    failures: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    until: Instant,
    /// How many probes failed.
    failed: u32,
    probing: bool,
}

impl Breaker {
    pub(crate) fn new(backoff: Backoff) -> Breaker {
        Breaker { backoff, failures: 0, open: None }
    }

    pub(crate) fn admit(&mut self, now: Instant) -> Admission {
        match &mut self.open {
            None => Admission::Go,
            Some(open) if open.probing => {
                // Nobody knows yet. Whoever waits is told when the probe ends, or looks again.
                Admission::No(now + self.backoff.first)
            }
            Some(open) if now < open.until => Admission::No(open.until),
            Some(open) => {
                open.probing = true;
                Admission::Probe
            }
        }
    }

    /// A request was answered. Returns how long the store was left alone, if it was.
    pub(crate) fn succeed(&mut self, now: Instant) -> Option<Duration> {
        self.failures = 0;
        self.open.take().map(|open| now - open.since)
    }

    /// A request failed. Returns for how long nothing will be asked, if that begins now.
    pub(crate) fn fail(&mut self, admission: Admission, now: Instant) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        match &mut self.open {
            // One of those that were under way when it opened: it says nothing new.
            Some(_) if admission != Admission::Probe => None,
            Some(open) => {
                open.failed = open.failed.saturating_add(1);
                open.probing = false;
                let pause = pause(self.backoff, open.failed, random());
                open.until = now + pause;
                Some(pause)
            }
            None if self.failures < self.backoff.after => None,
            None => {
                let pause = pause(self.backoff, 0, random());
                self.open = Some(Open { since: now, until: now + pause, failed: 0, probing: false });
                Some(pause)
            }
        }
    }

    /// A request ended without an answer of the store, nor for want of one.
    pub(crate) fn abandon(&mut self, admission: Admission) {
        if let (Admission::Probe, Some(open)) = (admission, &mut self.open) {
            open.probing = false;
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Since when nothing but probes goes out.
    pub(crate) fn open_since(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.since)
    }
}

/// Doubled for each failed probe, then between a half and one and a half of that, and never more
/// than the limit.
fn pause(backoff: Backoff, failed: u32, random: u64) -> Duration {
    let doubled =
        backoff.first.saturating_mul(1u32.checked_shl(failed).unwrap_or(u32::MAX)).min(backoff.most);
    let part = (random >> 32) as u32;
    let jitter = doubled.mul_f64(f64::from(part) / f64::from(u32::MAX));
    (doubled / 2 + jitter).min(backoff.most)
}

/// Good enough to keep machines apart.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { after: 3, first: Duration::from_secs(10), most: Duration::from_secs(100) };

    fn opened(now: Instant) -> (Breaker, Duration) {
        let mut breaker = Breaker::new(BACKOFF);
        assert_eq!(breaker.fail(Admission::Go, now), None);
        assert_eq!(breaker.fail(Admission::Go, now), None);
        let pause = breaker.fail(Admission::Go, now).expect("the third in a row");
        (breaker, pause)
    }

    #[test]
    fn a_success_between_failures_keeps_it_closed() {
        let now = Instant::now();
        let mut breaker = Breaker::new(BACKOFF);
        for _ in 0..10 {
            assert_eq!(breaker.fail(Admission::Go, now), None);
            assert_eq!(breaker.fail(Admission::Go, now), None);
            assert_eq!(breaker.succeed(now), None);
        }
        assert_eq!(breaker.admit(now), Admission::Go);
    }

    /// B1 and B2.
    #[test]
    fn one_probe_goes_out_when_the_pause_is_over() {
        let now = Instant::now();
        let (mut breaker, pause) = opened(now);
        assert_eq!(breaker.admit(now), Admission::No(now + pause));
        // Those that were under way change nothing.
        assert_eq!(breaker.fail(Admission::Go, now), None);
        let later = now + pause;
        assert_eq!(breaker.admit(later), Admission::Probe);
        assert!(matches!(breaker.admit(later), Admission::No(_)));
        breaker.abandon(Admission::Go);
        assert!(matches!(breaker.admit(later), Admission::No(_)), "the probe is still out");
        breaker.abandon(Admission::Probe);
        assert_eq!(breaker.admit(later), Admission::Probe);
        let longer = breaker.fail(Admission::Probe, later).expect("it stays open");
        assert_eq!(breaker.admit(later), Admission::No(later + longer));
        assert_eq!(breaker.admit(later + longer), Admission::Probe);
        assert_eq!(breaker.succeed(later + longer), Some(pause + longer));
        assert_eq!(breaker.admit(later + longer), Admission::Go);
    }

    #[test]
    fn pauses_double_up_to_the_limit_and_are_jittered() {
        let secs = Duration::from_secs;
        for (failed, least, most) in [(0, 5, 15), (1, 10, 30), (2, 20, 60), (3, 40, 100), (9, 50, 100)] {
            assert_eq!(pause(BACKOFF, failed, 0), secs(least), "{failed}");
            assert_eq!(pause(BACKOFF, failed, u64::MAX), secs(most), "{failed}");
        }
        assert_eq!(pause(BACKOFF, u32::MAX, u64::MAX), secs(100));
        let drawn: std::collections::BTreeSet<Duration> =
            (0..20).map(|_| pause(BACKOFF, 0, random())).collect();
        assert!(drawn.len() > 1, "machines come back at different times");
    }
}
