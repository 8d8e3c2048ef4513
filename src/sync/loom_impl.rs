//! Under loom: every access of a small model is explored, in every schedule with a bounded number
//! of preemptions.
//!
//! loom has no clock, so a deadline never passes here: a model that would wait for one deadlocks and is reported.
#![allow(dead_code, reason = "models exercise a part of the crate")]

use std::time::Instant;

use super::rank::Rank;

pub(crate) use loom::sync::MutexGuard;

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
}

#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.0.with(f)
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}

#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(_rank: Rank, value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("loom stops at the first panic")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("loom stops at the first panic")
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("loom stops at the first panic")
    }

    pub(crate) fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _deadline: Instant,
    ) -> MutexGuard<'a, T> {
        self.wait(guard)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Variables of a thread; those of the real thread, which all threads of a model share. No model reads one.
pub(crate) use std::thread_local;

pub(crate) mod thread {
    use std::time::Instant;

    pub(crate) use loom::thread::{JoinHandle, current, park};

    pub(crate) fn spawn(name: String, f: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        loom::thread::Builder::new().name(name).spawn(f)
    }

    /// Priorities are no part of a model.
    pub(crate) fn lower_priority() {}

    pub(crate) fn park_until(_deadline: Instant) {
        park();
    }
}
