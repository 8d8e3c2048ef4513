//! The scheduling state of a stream.
//!
//! # States and transitions
//!
//! | state | meaning |
//! |---|---|
//! | `IDLE` | nobody works on it and nobody was asked to |
//! | `QUEUED` | it was asked for and waits for a thread |
//! | `RUNNING` | a thread works on it |
//! | `NOTIFIED` | a thread works on it and was asked to look once more |
//!
//! | transition | who |
//! |---|---|
//! | `IDLE -> QUEUED`, `RUNNING -> NOTIFIED` | anybody, by [`Actor::notify`] |
//! | `IDLE -> RUNNING`, `QUEUED -> RUNNING` | a thread that takes it over, by [`Actor::start`] |
//! | `RUNNING -> IDLE`, `NOTIFIED -> RUNNING` | the thread that works on it, by [`Actor::finish`] |
//!
//! # Safety argument
//!
//! - A1: *One thread at a time works on it.* `RUNNING` is entered from `IDLE` or `QUEUED` by one
//!   compare-exchange, and only the thread that entered leaves.
//! - A2: *What was asked for is looked at.* Whatever is published before [`Actor::notify`] is seen
//!   by a thread that works on the actor afterwards: the notifier's read-modify-write is `Release`;
//!   the runner's next one, in `start` or `finish`, is `Acquire`, and cannot miss it, because all
//!   of them are read-modify-writes of one word.

use crate::atomic::{AtomicU32, Ordering};

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const RUNNING: u32 = 2;
const NOTIFIED: u32 = 3;

/// See the module's documentation.
#[derive(Debug)]
pub struct Actor(AtomicU32);

/// What [`Actor::notify`] leaves to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Notified {
    /// The caller has to hand the actor to a thread.
    Enqueue,
    /// Somebody will see to it.
    InHand,
}

/// What [`Actor::finish`] leaves to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// Nothing: others may start.
    Idle,
    /// There is more to look at; the caller still runs.
    Again,
}

/// Dropped by a panic of whoever works on it, it leaves the actor as one that nobody works on,
/// rather than one that runs for ever.
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
    /// An actor that nobody works on.
    #[inline]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "what is idle is said")]
    pub fn new() -> Actor {
        Actor(AtomicU32::new(IDLE))
    }

    /// Asks for the actor to be worked on.
    #[inline]
    pub fn notify(&self) -> Notified {
        let next = |state| match state {
            IDLE => QUEUED,
            RUNNING => NOTIFIED,
            // Stored again all the same: the read-modify-write is what publishes (A2).
            state => state,
        };
        match self.update(ordering!(Release, "actor_notify"), next) {
            IDLE => Notified::Enqueue,
            _ => Notified::InHand,
        }
    }

    /// Starts to work on it, if nobody does. If somebody does, they look once more.
    #[inline]
    pub fn start(&self) -> bool {
        let next = |state| match state {
            IDLE | QUEUED => RUNNING,
            _ => NOTIFIED,
        };
        let before = self.update(ordering!(AcqRel, "actor_start"), next);
        before == IDLE || before == QUEUED
    }

    /// Starts to work on it, if it is still waiting for a thread.
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

    /// An actor, what is asked of it, and what whoever works on it has seen. Demands are plain
    /// relaxed stores, as `StreamShared::demand` makes them, so only the actor's own word can make
    /// them visible.
    struct Desk {
        actor: Actor,
        demanded: [AtomicU32; 2],
        /// Touched by whoever works on the actor, and by the test when nobody does any more.
        seen: UnsafeCell<[u32; 2]>,
    }

    // SAFETY: holds because `seen` is touched by one runner at a time (A1), which is what the
    // models check.
    unsafe impl Sync for Desk {}
    // SAFETY: holds for the same reason.
    unsafe impl Send for Desk {}

    impl Desk {
        fn new() -> Arc<Desk> {
            let demanded = [AtomicU32::new(0), AtomicU32::new(0)];
            Arc::new(Desk { actor: Actor::new(), demanded, seen: UnsafeCell::new([0; 2]) })
        }

        /// What a runner does until there is nothing left: looks at the demands.
        fn run(&self) {
            loop {
                let found = [0, 1].map(|who: usize| self.demanded[who].load(Ordering::Relaxed));
                // SAFETY: holds because only one thread works on the actor (A1).
                self.seen.with_mut(|seen| unsafe { *seen = found });
                if self.actor.finish() == Finished::Idle {
                    return;
                }
            }
        }

        /// Demands something and sees to it that somebody looks; true if that has to be another
        /// thread, later.
        fn ask(&self, who: usize) -> bool {
            self.demanded[who].store(1, Ordering::Relaxed);
            self.actor.notify() == Notified::Enqueue
        }

        /// As [`Desk::ask`], by a thread that is about to wait and works on the actor itself.
        fn ask_here(&self, who: usize) {
            self.demanded[who].store(1, Ordering::Relaxed);
            if self.actor.start() {
                self.run();
            }
        }

        /// What the last runner saw; every other thread has been joined.
        fn seen(&self) -> [u32; 2] {
            // SAFETY: holds because every runner has ended.
            self.seen.with(|seen| unsafe { *seen })
        }
    }

    /// The actor waits for a thread of the pool while somebody else asks for something more:
    /// whoever takes it over sees that, or the asker is told to find another thread.
    #[test]
    fn loom_what_is_asked_of_a_queued_actor_is_seen() {
        loom::model(|| {
            let desk = Desk::new();
            assert!(desk.ask(0));
            let asker = {
                let desk = desk.clone();
                loom::thread::spawn(move || desk.ask(1))
            };
            if desk.actor.start_queued() {
                desk.run();
            }
            let again = asker.join().expect("no panic");
            if again {
                assert!(desk.actor.start_queued());
                desk.run();
            }
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// The same, and a thread that is about to wait takes the actor over from the pool.
    #[test]
    fn loom_what_is_asked_of_an_actor_that_is_taken_over_is_seen() {
        loom::model(|| {
            let desk = Desk::new();
            assert!(desk.ask(0));
            let asker = {
                let desk = desk.clone();
                loom::thread::spawn(move || desk.ask(1))
            };
            if desk.actor.start() {
                desk.run();
            }
            if asker.join().expect("no panic") {
                assert!(desk.actor.start_queued());
                desk.run();
            }
            assert!(!desk.actor.start_queued());
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// Two threads are about to wait. One of them works; the other leaves a note that is looked at.
    #[test]
    fn loom_two_that_wait_are_both_served() {
        loom::model(|| {
            let desk = Desk::new();
            let other = {
                let desk = desk.clone();
                loom::thread::spawn(move || desk.ask_here(1))
            };
            desk.ask_here(0);
            other.join().expect("no panic");
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// A thread of the pool and one that is about to wait go for it at once: it is never worked on
    /// by both (loom sees to that at `seen`), and nothing is forgotten.
    #[test]
    fn loom_one_runner_at_a_time() {
        loom::model(|| {
            let desk = Desk::new();
            assert!(desk.ask(0));
            let worker = {
                let desk = desk.clone();
                loom::thread::spawn(move || {
                    if desk.actor.start_queued() {
                        desk.run();
                    }
                })
            };
            desk.ask_here(1);
            worker.join().expect("no panic");
            assert_eq!(desk.seen(), [1, 1]);
        });
    }

    /// The pool's queue hands each item to one thread, and closing it lets the threads go.
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
