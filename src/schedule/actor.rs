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
//! - A1: *One thread at a time works on it.* `RUNNING` is entered from `IDLE` or `QUEUED` by one compare-exchange, and only
//!   the thread that entered leaves.
//! - A2: *What was asked for is looked at.* Whatever is published before [`Actor::notify`] is seen by a thread that works on
//!   the actor afterwards: the notifier's read-modify-write is `Release`; the runner's next one, in `start` or `finish`, is
//!   `Acquire`, and cannot miss it, because all of them are read-modify-writes of one word.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::ordering;

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const RUNNING: u32 = 2;
const NOTIFIED: u32 = 3;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Actor(AtomicU32);

/// What [`Actor::notify`] leaves to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Notified {
    /// The caller has to hand the actor to a thread.
    Enqueue,
    /// Somebody will see to it.
    InHand,
}

/// What [`Actor::finish`] leaves to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Finished {
    /// Nothing: others may start.
    Idle,
    /// There is more to look at; the caller still runs.
    Again,
}

impl Actor {
    pub(crate) fn new() -> Actor {
        Actor(AtomicU32::new(IDLE))
    }

    /// Asks for the actor to be worked on.
    pub(crate) fn notify(&self) -> Notified {
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
    pub(crate) fn start(&self) -> bool {
        let next = |state| match state {
            IDLE | QUEUED => RUNNING,
            _ => NOTIFIED,
        };
        let before = self.update(ordering!(AcqRel, "actor_start"), next);
        before == IDLE || before == QUEUED
    }

    /// Starts to work on it, if it is still waiting for a thread.
    pub(crate) fn start_queued(&self) -> bool {
        self.0
            .compare_exchange(QUEUED, RUNNING, ordering!(Acquire, "actor_start_queued"), Ordering::Relaxed)
            .is_ok()
    }

    /// Stops working on it.
    pub(crate) fn finish(&self) -> Finished {
        let next = |state| if state == NOTIFIED { RUNNING } else { IDLE };
        match self.update(ordering!(AcqRel, "actor_finish"), next) {
            NOTIFIED => Finished::Again,
            _ => Finished::Idle,
        }
    }

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
    use crate::schedule::Pool;
    use crate::sync::{Mutex, UnsafeCell};

    /// Items are published by a relaxed store to a cell of their own, so that only the actor's word can make them visible.
    struct Mailbox {
        actor: Actor,
        items: Vec<UnsafeCell<u32>>,
        taken: UnsafeCell<u32>,
    }

    // SAFETY: holds because each item is written by one thread before it notifies, and read by runners only (A1, A2).
    unsafe impl Sync for Mailbox {}
    // SAFETY: holds for the same reason.
    unsafe impl Send for Mailbox {}

    impl Mailbox {
        fn new(items: usize) -> Mailbox {
            Mailbox {
                actor: Actor::new(),
                items: (0..items).map(|_| UnsafeCell::new(0)).collect(),
                taken: UnsafeCell::new(0),
            }
        }

        fn put(&self, item: usize) {
            // SAFETY: holds because one thread puts each item.
            self.items[item].with_mut(|item| unsafe { *item = 1 });
        }

        /// Counts the run; reads the item of a single producer that has notified.
        fn run(&self, item: usize) {
            loop {
                // SAFETY: holds because only the runner touches it (A1).
                self.taken.with_mut(|taken| unsafe { *taken += 1 });
                // SAFETY: holds because the item was put before the notification that started this run (A2).
                assert_eq!(self.items[item].with(|item| unsafe { *item }), 1);
                if self.actor.finish() == Finished::Idle {
                    return;
                }
            }
        }
    }

    /// A producer notifies; a pool thread or the main thread, whoever is first, sees the item.
    #[test]
    fn loom_a_notification_is_seen() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new(1));
            let queue = Arc::new(Mutex::new(Vec::new()));
            let producer = {
                let (mailbox, queue) = (mailbox.clone(), queue.clone());
                loom::thread::spawn(move || {
                    mailbox.put(0);
                    if mailbox.actor.notify() == Notified::Enqueue {
                        queue.lock().push(());
                    }
                })
            };
            producer.join().expect("no panic");
            let worker = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || {
                    if mailbox.actor.start_queued() {
                        mailbox.run(0);
                    }
                })
            };
            if mailbox.actor.start() {
                mailbox.run(0);
            }
            worker.join().expect("no panic");
            mailbox.taken.with(|taken| {
                // SAFETY: holds because every runner has ended.
                assert!(unsafe { *taken } >= 1);
            });
        });
    }

    /// A runner is at work while another thread puts something and notifies: it is looked at before the actor is idle.
    #[test]
    fn loom_a_notification_during_a_run_is_seen() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new(1));
            let seen = Arc::new(crate::sync::atomic::AtomicU32::new(0));
            let runner = {
                let (mailbox, seen) = (mailbox.clone(), seen.clone());
                loom::thread::spawn(move || {
                    if !mailbox.actor.start() {
                        return;
                    }
                    while mailbox.actor.finish() == Finished::Again {
                        // SAFETY: holds because the notification that made us look again came after the put (A2).
                        assert_eq!(mailbox.items[0].with(|item| unsafe { *item }), 1);
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            mailbox.put(0);
            let handed_over = mailbox.actor.notify() == Notified::Enqueue;
            runner.join().expect("no panic");
            // Either the runner saw it, or we were told to find another thread, or the runner came later and saw it at
            // its start.
            if handed_over && mailbox.actor.start_queued() {
                // SAFETY: holds because it was put by this thread.
                assert_eq!(mailbox.items[0].with(|item| unsafe { *item }), 1);
            }
        });
    }

    /// Two threads take over at once: the state is never worked on by both.
    #[test]
    fn loom_one_runner_at_a_time() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new(1));
            mailbox.put(0);
            let queued = mailbox.actor.notify() == Notified::Enqueue;
            assert!(queued);
            let threads: Vec<_> = (0..2)
                .map(|me| {
                    let mailbox = mailbox.clone();
                    loom::thread::spawn(move || {
                        let started =
                            if me == 0 { mailbox.actor.start() } else { mailbox.actor.start_queued() };
                        if started {
                            mailbox.run(0);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
    }

    /// The pool's queue hands each item to one thread, and closing it lets the threads go.
    #[test]
    fn loom_the_pool_runs_everything_it_was_given() {
        loom::model(|| {
            let done = Arc::new(crate::sync::atomic::AtomicU32::new(0));
            let seen = done.clone();
            let pool = Pool::start("test", 1, move |item: u32| {
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
