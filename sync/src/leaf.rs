//! Leaf locks: locks of other crates under which nothing is called, taken or waited for.
//!
//! They have no rank. [`crate::lock_rank`] checks that a thread holds none when it takes a ranked
//! lock, waits or calls out. Builds without debug assertions do not count them.

use std::marker::PhantomData;

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether the calling thread holds a leaf lock.
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
pub(crate) fn holds_leaf() -> bool {
    HELD.get() > 0
}

/// Counts a leaf lock while it is held, on the thread that took it.
#[derive(Debug)]
pub struct LeafGuard(PhantomData<*const ()>);

impl LeafGuard {
    /// Counts a leaf lock that the calling thread is about to take.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "making one says that a lock is taken")]
    pub fn new() -> LeafGuard {
        #[cfg(debug_assertions)]
        HELD.set(HELD.get() + 1);
        LeafGuard(PhantomData)
    }
}

#[cfg(debug_assertions)]
impl Drop for LeafGuard {
    #[inline]
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}
