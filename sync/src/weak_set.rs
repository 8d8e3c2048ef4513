//! What is alive of what was put in.

use std::sync::{Arc, Weak};

/// Weak references of which those are left out now and then that have nothing left: to look at all
/// of them each time would take ten thousand streams a minute.
#[derive(Debug)]
pub struct Living<T: ?Sized> {
    all: Vec<Weak<T>>,
    least: usize,
    /// With so many it is worth a look.
    sweep_at: usize,
}

impl<T: ?Sized> Living<T> {
    /// With fewer than `least` nothing is left out.
    #[must_use]
    pub const fn new(least: usize) -> Living<T> {
        Living { all: Vec::new(), least, sweep_at: least }
    }

    /// Puts one in.
    pub fn push(&mut self, new: Weak<T>) {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|one| one.strong_count() > 0);
            self.sweep_at = self.least.max(2 * self.all.len());
        }
        self.all.push(new);
    }

    /// What is alive.
    pub fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        self.all.iter().filter_map(Weak::upgrade)
    }
}
