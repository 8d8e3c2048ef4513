//! The scheduling state of a stream.
//!
//! # States and transitions
//!
//! | state | meaning |
//! |---|---|
//! | `IDLE` | no thread works on it, and none was asked to |
//! | `QUEUED` | work was requested; it waits for a thread |
//! | `RUNNING` | a thread works on it |
//! | `NOTIFIED` | a thread works on it and was asked to look again |
//!
//! | transition | who |
//! |---|---|
//! | `IDLE -> QUEUED`, `RUNNING -> NOTIFIED` | anybody, by [`Actor::notify`] |
//! | `IDLE -> RUNNING`, `QUEUED -> RUNNING` | a thread that takes it over, by [`Actor::start`] |
//! | `RUNNING -> IDLE`, `NOTIFIED -> RUNNING` | the thread that works on it, by [`Actor::finish`] |
//!
//! # Safety argument
//!
//! - ACTOR-1: *One thread at a time works on it.* `RUNNING` is entered from `IDLE` or `QUEUED` by
//!   one compare-exchange, and only the thread that entered leaves it.
//! - ACTOR-2: *Every request is seen.* Whatever is published before [`Actor::notify`] is seen by a
//!   thread that works on the actor afterwards. The notifier's read-modify-write is `Release`. The
//!   runner's next one, in `start` or `finish`, is `Acquire`. It cannot miss the first one, because
//!   both are read-modify-writes of one word.

use crate::atomic::{AtomicU32, Ordering};

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const RUNNING: u32 = 2;
const NOTIFIED: u32 = 3;

/// See the module's documentation.
#[derive(Debug)]
pub struct Actor(AtomicU32);

/// What the caller of [`Actor::notify`] has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Notified {
    /// The caller has to hand the actor to a thread.
    Enqueue,
    /// Nothing: a thread will look.
    InHand,
}

/// What the caller of [`Actor::finish`] has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// Nothing: others may start.
    Idle,
    /// Look again: the caller still runs.
    Again,
}

/// Dropped during a panic, it leaves the actor idle instead of running for ever.
#[derive(Debug)]
pub struct Unwinding<'a>(pub &'a Actor);

impl Drop for Unwinding<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            while self.0.finish() == Finished::Again {}
        }
    }
}

impl Actor {
    /// Creates an idle actor.
    #[inline]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "what is idle is said")]
    pub fn new() -> Actor {
        Actor(AtomicU32::new(IDLE))
    }

    /// Requests work on the actor.
    #[inline]
    pub fn notify(&self) -> Notified {
        let next = |state| match state {
            IDLE => QUEUED,
            RUNNING => NOTIFIED,
            // Stored again on purpose: the read-modify-write publishes (ACTOR-2).
            state => state,
        };
        match self.update(ordering!(Release, "actor_notify"), next) {
            IDLE => Notified::Enqueue,
            _ => Notified::InHand,
        }
    }

    /// Starts working on it, if no thread does. Otherwise the running thread looks again.
    #[inline]
    pub fn start(&self) -> bool {
        let next = |state| match state {
            IDLE | QUEUED => RUNNING,
            _ => NOTIFIED,
        };
        let before = self.update(ordering!(AcqRel, "actor_start"), next);
        before == IDLE || before == QUEUED
    }

    /// Starts working on it, if it still waits for a thread.
    #[inline]
    pub fn start_queued(&self) -> bool {
        self.0
            .compare_exchange(QUEUED, RUNNING, ordering!(Acquire, "actor_start_queued"), Ordering::Relaxed)
            .is_ok()
    }

    /// Stops working on it.
    #[inline]
    pub fn finish(&self) -> Finished {
        let next = |state| if state == NOTIFIED { RUNNING } else { IDLE };
        match self.update(ordering!(AcqRel, "actor_finish"), next) {
            NOTIFIED => Finished::Again,
            _ => Finished::Idle,
        }
    }

    #[inline]
    fn update(&self, success: Ordering, next: impl Fn(u32) -> u32) -> u32 {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(state, next(state), success, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(now) => state = now,
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::UnsafeCell;
    use crate::schedule::{Pool, Priority};

    /// An actor, its requests, and what its runner has seen. Requests are plain relaxed stores, as
    /// in `StreamShared::demand`, so only the actor's own word can make them visible.
    struct Desk {
        actor: Actor,
        demanded: [AtomicU32; 2],
        /// Accessed by the runner, and by the test when nobody runs any more.
        seen: UnsafeCell<[u32; 2]>,
    }

    // SAFETY: holds because `seen` is touched by one runner at a time (ACTOR-1), which is what the
    // models check.
    unsafe impl Sync for Desk {}
    // SAFETY: holds for the same reason.
    unsafe impl Send for Desk {}

    impl Desk {
        fn new() -> Arc<Desk> {
            let demanded = [AtomicU32::new(0), AtomicU32::new(0)];
            Arc::new(Desk { actor: Actor::new(), demanded, seen: UnsafeCell::new([0; 2]) })
        }

        /// What a runner does until nothing is left: reads the requests.
        fn run(&self) {
            loop {
                let found = [0, 1].map(|who: usize| self.demanded[who].load(Ordering::Relaxed));
                // SAFETY: holds because only one thread works on the actor (ACTOR-1).
                self.seen.with_mut(|seen| unsafe { *seen = found });
                if self.actor.finish() == Finished::Idle {
                    return;
                }
            }
        }

        /// Requests something and makes sure that a thread looks. Returns true if that has to be
        /// another thread, later.
        fn request(&self, who: usize) -> bool {
            self.demanded[who].store(1, Ordering::Relaxed);
            self.actor.notify() == Notified::Enqueue
        }

        /// As [`Desk::ask`], for a thread that is about to wait and works on the actor itself.
        fn request_and_run(&self, who: usize) {
            self.demanded[who].store(1, Ordering::Relaxed);
            if self.actor.start() {
                self.run();
            }
        }

        /// What the last runner saw. All other threads have been joined.
        fn seen(&self) -> [u32; 2] {
            // SAFETY: holds because every runner has ended.
            self.seen.with(|seen| unsafe { *seen })
        }
    }

    /// The actor waits for a thread of the pool while another thread requests more. Whoever takes
    /// it over sees that, or the requester is told to find another thread.
    #[test]
    fn loom_a_request_to_a_queued_actor_is_served() {
        loom::model(|| {
            let desk = Desk::new();
            assert!(desk.request(0));
            let requester = {
                let desk = desk.clone();
                loom::thread::spawn(move || desk.request(1))
            };
            if desk.actor.start_queued() {
                desk.run();
            }
            let again = requester.join().expect("no panic");
            if again {
                assert!(desk.actor.start_queued());
                desk.run();
            }
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// The same, but a thread that is about to wait takes the actor over from the pool.
    #[test]
    fn loom_a_request_to_an_actor_that_is_taken_over_is_served() {
        loom::model(|| {
            let desk = Desk::new();
            assert!(desk.request(0));
            let requester = {
                let desk = desk.clone();
                loom::thread::spawn(move || desk.request(1))
            };
            if desk.actor.start() {
                desk.run();
            }
            if requester.join().expect("no panic") {
                assert!(desk.actor.start_queued());
                desk.run();
            }
            assert!(!desk.actor.start_queued());
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// Two threads are about to wait. One of them runs; the other leaves a request that is seen.
    #[test]
    fn loom_two_that_wait_are_both_served() {
        loom::model(|| {
            let desk = Desk::new();
            let other = {
                let desk = desk.clone();
                loom::thread::spawn(move || desk.request_and_run(1))
            };
            desk.request_and_run(0);
            other.join().expect("no panic");
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// A thread of the pool and one that is about to wait compete for the actor. They never both
    /// work on it (loom checks that at `seen`), and no request is lost.
    #[test]
    fn loom_one_runner_at_a_time() {
        loom::model(|| {
            let desk = Desk::new();
            assert!(desk.request(0));
            let worker = {
                let desk = desk.clone();
                loom::thread::spawn(move || {
                    if desk.actor.start_queued() {
                        desk.run();
                    }
                })
            };
            desk.request_and_run(1);
            worker.join().expect("no panic");
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// The pool's queue hands each item to one thread, and closing it ends the threads.
    #[test]
    fn loom_the_pool_runs_everything_it_was_given() {
        loom::model(|| {
            let done = Arc::new(AtomicU32::new(0));
            let seen = done.clone();
            let pool = Pool::start("test", 1, Priority::Normal, move |item: u32| {
                seen.fetch_add(item, Ordering::Relaxed);
            })
            .expect("threads");
            pool.push(1);
            pool.push(2);
            pool.shut_down();
            assert_eq!(done.load(Ordering::Relaxed), 3);
        });
    }
}
