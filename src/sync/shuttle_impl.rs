//! Under shuttle: random schedules of larger programs, under sequential consistency.
//!
//! shuttle has no clock, so a deadline never passes here.
#![allow(dead_code, reason = "tests exercise a part of the crate")]

use std::time::Instant;

use super::rank::Rank;

pub(crate) use shuttle::sync::MutexGuard;

pub(crate) mod atomic {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
}

#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[derive(Debug)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(_rank: Rank, value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("shuttle stops at the first panic")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("shuttle stops at the first panic")
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("shuttle stops at the first panic")
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

/// Variables of a thread of the scenario; `std`'s would be shared by all, which run on one real thread.
pub(crate) use shuttle::thread_local;

pub(crate) mod thread {
    use std::time::Instant;

    pub(crate) use shuttle::thread::{JoinHandle, current, park};

    pub(crate) fn spawn(name: String, f: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        shuttle::thread::Builder::new().name(name).spawn(f)
    }

    /// Priorities are no part of a model.
    pub(crate) fn lower_priority() {}

    pub(crate) fn park_until(_deadline: Instant) {
        park();
    }
}
