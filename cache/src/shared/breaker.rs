//! A circuit breaker for an object store.
//!
//! After several consecutive failures the breaker opens: no requests are sent for a pause. Then one
//! request is sent as a probe. If it succeeds, the breaker closes; if not, the pause doubles, up to
//! a limit. The pause is jittered, so that the machines of a fleet do not all return at once.
//!
//! Input: outcomes of requests, and the time. Output: whether to send a request. It has no clock
//! and no lock.
//!
//! Invariants:
//! - BREAKER-1: while it is open, at most one request that it admitted is in flight.
//! - BREAKER-2: a probe ends in success, failure or [`Breaker::abandon`]; after each of them
//!   another one is possible.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

/// How long requests to a store are paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Number of consecutive failures that open the breaker.
    pub after: u32,
    /// The first pause, with a jitter of 50 %.
    pub first: Duration,
    /// The longest pause. The pause doubles each time that a probe fails, up to this.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { after: 3, first: Duration::from_secs(1), most: Duration::from_secs(300) }
    }
}

/// Whether to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Yes.
    Go,
    /// Yes, as the one request that finds out whether the store is back.
    Probe,
    /// Not before this time.
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
    /// Number of failed probes.
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
                // The outcome of the probe is unknown. Waiters are notified when it ends, or ask
                // again.
                Admission::No(now + self.backoff.first)
            }
            Some(open) if now < open.until => Admission::No(open.until),
            Some(open) => {
                open.probing = true;
                Admission::Probe
            }
        }
    }

    /// A request succeeded. Returns how long the breaker was open, if it was.
    pub(crate) fn succeed(&mut self, now: Instant) -> Option<Duration> {
        self.failures = 0;
        self.open.take().map(|open| now - open.since)
    }

    /// A request failed. Returns the length of the pause, if one begins now.
    pub(crate) fn fail(&mut self, admission: Admission, now: Instant) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        match &mut self.open {
            // A request from before the breaker opened carries no new information.
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

    /// A request ended without an answer from the store, but not because of the store.
    pub(crate) fn abandon(&mut self, admission: Admission) {
        if let (Admission::Probe, Some(open)) = (admission, &mut self.open) {
            open.probing = false;
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Since when the breaker is open.
    pub(crate) fn open_since(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.since)
    }
}

/// The pause, doubled for each failed probe, with a jitter of 50 %, and at most the limit.
fn pause(backoff: Backoff, failed: u32, random: u64) -> Duration {
    let doubled =
        backoff.first.saturating_mul(1u32.checked_shl(failed).unwrap_or(u32::MAX)).min(backoff.most);
    let part = (random >> 32) as u32;
    let jitter = doubled.mul_f64(f64::from(part) / f64::from(u32::MAX));
    (doubled / 2 + jitter).min(backoff.most)
}

/// Random enough to keep machines apart.
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

    /// BREAKER-1 and BREAKER-2.
    #[test]
    fn one_probe_goes_out_when_the_pause_is_over() {
        let now = Instant::now();
        let (mut breaker, pause) = opened(now);
        assert_eq!(breaker.admit(now), Admission::No(now + pause));
        // Failures of requests in flight change nothing.
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
