//! The implementation under shuttle: random schedules of larger programs, sequentially consistent.
//!
//! shuttle has no clock, so a deadline never passes here.
#![allow(missing_docs, reason = "as `std_impl`")]

use std::time::Instant;

use super::lock_rank::Rank;

pub use shuttle::sync::MutexGuard;

pub mod atomic {
    pub use shuttle::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
}

#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[derive(Debug)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(_rank: Rank, value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("shuttle stops at the first panic")
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("shuttle stops at the first panic")
    }
}

#[derive(Debug)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("shuttle stops at the first panic")
    }

    pub fn wait_until<'a, T>(&self, guard: MutexGuard<'a, T>, _deadline: Instant) -> MutexGuard<'a, T> {
        self.wait(guard)
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Thread-local variables of a thread of the scenario. Those of `std` would be shared by all,
/// because they run on one real thread.
pub use shuttle::thread_local;

pub mod thread {
    use std::time::Instant;

    pub use shuttle::thread::{JoinHandle, current, park};

    pub fn spawn(name: String, f: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        shuttle::thread::Builder::new().name(name).spawn(f)
    }

    /// Models have no priorities.
    pub fn lower_priority() {}

    pub fn park_until(_deadline: Instant) {
        park();
    }
}
