//! The one place that names synchronisation primitives.
//!
//! Normal builds get `std` and `parking_lot`; `--cfg loom` gets loom's models and `--cfg shuttle` shuttle's, so that the
//! same protocol code runs under all three. Everything else in the crate imports atomics, cells, locks and threads from
//! here (`clippy.toml` forbids the originals).
//!
//! - Payload that a protocol protects lives in [`UnsafeCell`] of this module: loom checks accesses to its own cells and
//!   is blind to plain fields.
//! - Each lock has a [`Rank`], and locks nest in the order of their ranks, which builds with debug assertions check ([`rank`]).
//! - Waiting is by parking ([`thread::park`], [`Condvar`]), never by spinning: two busy cores are the normal case.

/// A memory ordering with a name. In a loom build the environment variable `FUSELINE_WEAKEN=NAME` makes the orderings of
/// that name `Relaxed`; `cargo xtask test loom-weakened` does so for each name and expects a model to fail, which is what
/// shows that the ordering is needed and that the models would notice.
macro_rules! ordering {
    ($ordering:ident, $name:literal) => {
        if cfg!(loom) && $crate::sync::weakened($name) {
            $crate::sync::atomic::Ordering::Relaxed
        } else {
            $crate::sync::atomic::Ordering::$ordering
        }
    };
}
pub(crate) use ordering;

/// Whether the ordering of this name is to be weakened in this run. Always false outside of loom builds.
#[inline(always)]
pub(crate) fn weakened(name: &str) -> bool {
    #[cfg(loom)]
    {
        static WEAKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        WEAKEN.get_or_init(|| std::env::var("FUSELINE_WEAKEN").ok()).as_deref() == Some(name)
    }
    #[cfg(not(loom))]
    {
        let _ = name;
        false
    }
}

/// A fence of a named ordering, or none where that is weakened.
#[inline(always)]
pub(crate) fn fence(ordering: atomic::Ordering) {
    if ordering != atomic::Ordering::Relaxed {
        atomic::fence(ordering);
    }
}

pub(crate) mod fork;
mod living;
#[cfg(loom)]
mod loom_impl;
pub(crate) mod rank;
#[cfg(shuttle)]
mod shuttle_impl;
#[cfg(not(any(loom, shuttle)))]
mod std_impl;

pub(crate) use living::Living;
#[cfg(loom)]
pub(crate) use loom_impl::*;
pub(crate) use rank::Rank;
#[cfg(shuttle)]
pub(crate) use shuttle_impl::*;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std_impl::*;

/// A number that tells what has happened and decides nothing: model checkers need not see it. It changes where locks are held that they do
/// not see either (those of the cache), and must not let them run another thread there, which would wait for such a lock for ever.
pub(crate) use std::sync::atomic::AtomicU64 as Tally;

/// A number that the process has not got from here before, from 1 on. It is no part of any protocol, so model checkers need
/// not see it; it is here because it names an atomic.
pub(crate) fn next_block() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
