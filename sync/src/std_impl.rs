//! The implementation of normal builds: `std` atomics and threads, `parking_lot` locks.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this is the one place that names them"
)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use super::lock_rank::{Held, Rank, Ranked};

/// Atomics.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
}

/// A cell whose accesses a model checker can see.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    #[inline]
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer to read through. The caller's protocol must exclude concurrent
    /// writes.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer to write through. The caller's protocol must exclude every other
    /// access.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A lock that does not poison: state that a panic may leave half changed records that in its own
/// state word. The rank determines how locks nest ([`crate::lock_rank`]).
pub struct Mutex<T> {
    lock: parking_lot::Mutex<T>,
    rank: Ranked,
}

#[cfg(not(debug_assertions))]
const _: () = assert!(size_of::<Mutex<u64>>() == size_of::<parking_lot::Mutex<u64>>());

impl<T> Mutex<T> {
    /// A lock on `value`, of this rank.
    #[inline]
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { lock: parking_lot::Mutex::new(value), rank: Ranked::new(rank) }
    }

    /// Waits for the lock and holds it until the guard is dropped.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.rank.take();
        MutexGuard { guard: self.lock.lock(), held }
    }

    /// The guarded value. `&mut self` excludes other users.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// A [`Mutex`] that this thread holds.
pub struct MutexGuard<'a, T> {
    guard: parking_lot::MutexGuard<'a, T>,
    held: Held,
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Waiting for a condition on state under a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A condition that nobody waits for.
    #[inline]
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Releases the lock, waits until notified and takes the lock again; may wake early.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard.held.before_wait();
        self.0.wait(&mut guard.guard);
        guard
    }

    /// As [`Condvar::wait`], at most until `deadline`.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait_until<'a, T>(&self, mut guard: MutexGuard<'a, T>, deadline: Instant) -> MutexGuard<'a, T> {
        guard.held.before_wait();
        self.0.wait_until(&mut guard.guard, deadline);
        guard
    }

    /// Wakes one thread that waits.
    #[inline]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Variables of a thread.
pub use std::thread_local;

/// Threads.
pub mod thread {
    use std::time::Instant;

    use crate::lock_rank::before;

    pub use std::thread::{JoinHandle, current};

    /// Parks until unparked; may wake early.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn park() {
        before("waits");
        std::thread::park();
    }

    /// Starts a thread with a name that shows in debuggers and panics.
    pub fn spawn(name: String, f: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name).spawn(f)
    }

    /// Added to the nice value of a low-priority thread. If all cores are busy, it gets a tenth of
    /// the time of another thread (Linux's weights are 110 and 1,024): little enough not to be
    /// noticed, and enough to finish if somebody comes to wait for it. At 19 it would be a
    /// seventieth.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;

    /// Permanently lowers the priority of the calling thread. Does nothing on systems other than
    /// Linux, where the nice value belongs to the process, and where it is not allowed.
    pub fn lower_priority() {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICE);
    }

    /// Parks until unparked or until `deadline`; may wake early.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn park_until(deadline: Instant) {
        before("waits");
        std::thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}
