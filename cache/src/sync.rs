//! The lock and the atomics of this crate. Its critical sections call nothing that blocks, waits or
//! leaves the crate, so a model checker may treat each as one step.
#![allow(clippy::disallowed_types, reason = "this is the one place of the crate that names them")]

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(feature = "shared")]
use std::time::Instant;

use std::ops::{Deref, DerefMut};

use fuseline_sync::LeafGuard;

/// A lock that does not poison; no panic can happen while it is held.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

/// A locked [`Mutex`].
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    guard: parking_lot::MutexGuard<'a, T>,
    _held: LeafGuard,
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
        MutexGuard { guard: self.0.lock(), _held: LeafGuard::new() }
    }
}

/// Waits for a change under a [`Mutex`], always with a deadline.
#[cfg(feature = "shared")]
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

#[cfg(feature = "shared")]
impl Condvar {
    /// Waits until it is notified, or until `end`.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) {
        self.0.wait_until(&mut guard.guard, end);
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
