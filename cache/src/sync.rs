//! The lock and the atomics this crate uses. Its critical sections call nothing that blocks, waits or leaves the crate,
//! so a model checker may treat each as one step.
#![allow(clippy::disallowed_types, reason = "this is the one place of the crate that names them")]

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(feature = "shared")]
use std::time::Instant;

use std::ops::{Deref, DerefMut};

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether the calling thread holds a lock of this crate, for those who check that it leaves the crate with none. Always false in builds
/// without debug assertions.
#[must_use]
pub fn holds_a_lock() -> bool {
    #[cfg(debug_assertions)]
    {
        HELD.get() > 0
    }
    #[cfg(not(debug_assertions))]
    false
}

/// Counts a lock of this crate for as long as it is held; nothing in builds without debug assertions.
#[derive(Debug)]
pub(crate) struct Held(());

impl Held {
    #[inline(always)]
    pub(crate) fn new() -> Held {
        #[cfg(debug_assertions)]
        HELD.set(HELD.get() + 1);
        Held(())
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// A lock that does not poison; no panic can happen while it is held.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

/// A [`Mutex`] that this thread holds.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    guard: parking_lot::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: self.0.lock(), _held: Held::new() }
    }
}

/// Waits for what another thread changes under a [`Mutex`], never without an end.
#[cfg(feature = "shared")]
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

#[cfg(feature = "shared")]
impl Condvar {
    /// Waits until it is notified, at most until `end`.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) {
        self.0.wait_until(&mut guard.guard, end);
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
