//! A set of weak references.

use std::sync::{Arc, Weak};

/// Weak references. Dead ones are removed now and then. With a removal at each insertion, opening
/// ten thousand streams would take a minute.
#[derive(Debug)]
pub struct WeakSet<T: ?Sized> {
    all: Vec<Weak<T>>,
    least: usize,
    /// Size at which dead references are removed.
    sweep_at: usize,
}

impl<T: ?Sized> WeakSet<T> {
    /// Creates a set that removes nothing while it has fewer than `least` references.
    #[must_use]
    pub const fn new(least: usize) -> WeakSet<T> {
        WeakSet { all: Vec::new(), least, sweep_at: least }
    }

    /// Adds a reference.
    pub fn push(&mut self, new: Weak<T>) {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|one| one.strong_count() > 0);
            self.sweep_at = self.least.max(2 * self.all.len());
        }
        self.all.push(new);
    }

    /// The objects that are alive.
    pub fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        self.all.iter().filter_map(Weak::upgrade)
    }
}
