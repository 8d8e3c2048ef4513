//! The implementation under loom, which explores every access of a small model in every schedule
//! with a bounded number of preemptions.
//!
//! loom has no clock, so a deadline never passes here: a model that would wait for one deadlocks
//! and is reported.
#![allow(missing_docs, reason = "as `std_impl`")]

use std::time::Instant;

use super::lock_rank::Rank;

pub use loom::sync::MutexGuard;

pub mod atomic {
    pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
}

#[derive(Debug)]
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.0.with(f)
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}

#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(_rank: Rank, value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("loom stops at the first panic")
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("loom stops at the first panic")
    }
}

#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("loom stops at the first panic")
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

/// Thread-local variables. They are those of the real thread, which all threads of a model share.
/// No model reads one.
pub use std::thread_local;

pub mod thread {
    use std::time::Instant;

    pub use loom::thread::{JoinHandle, current, park};

    pub fn spawn(name: String, f: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        loom::thread::Builder::new().name(name).spawn(f)
    }

    /// Models have no priorities.
    pub fn lower_priority() {}

    pub fn park_until(_deadline: Instant) {
        park();
    }
}
