//! Synchronization primitives of Fuseline, the same under `std`, loom and shuttle.
//!
//! This is the only crate that names synchronization primitives. Normal builds use `std` and
//! `parking_lot`. With `--cfg loom` they are loom's models and with `--cfg shuttle` shuttle's, so
//! the same protocol code runs under all three. The crates above import atomics, cells, locks and
//! threads from here (`clippy.toml` forbids the originals).
//!
//! It is published for the `fuseline` crate, and its API follows that crate's needs.
//!
//! # Contents
//!
//! | | |
//! |---|---|
//! | [`atomic`], [`UnsafeCell`], [`ordering!`], [`fence`] | what lock-free protocols are made of |
//! | [`Mutex`], [`Condvar`], [`lock_rank`] | locks, and the order in which they nest |
//! | [`LeafGuard`] | locks of other crates, under which nothing else happens |
//! | [`thread`], [`thread_local!`] | named threads, parking, thread-local variables |
//! | [`once`] | a value that is set once and that any thread can wait for |
//! | [`schedule`] | actors, thread pools, a watchdog |
//! | [`fork`] | detects forked copies of a process that was using the library |
//! | [`WeakSet`], [`StatCounter`], [`next_block`] | weak references, counts and numbers that no protocol depends on |
//!
//! # Rules
//!
//! - Data that a protocol protects lives in [`UnsafeCell`] of this crate: loom checks accesses to
//!   its own cells and does not see plain fields.
//! - Each lock has a [`Rank`], and locks nest in the order of their ranks. Builds with debug
//!   assertions check that ([`lock_rank`]).
//! - Threads wait by parking ([`thread::park`], [`Condvar`]), never by spinning: two busy cores are
//!   the normal case.
//! - An ordering that a protocol needs has a name ([`ordering!`]), and a model fails without it.
//!
//! There is one [`Promise`](once::Promise) for each [`Once`](once::Once). The type of the holder
//! cannot express that; creating a second one breaks the safety argument of that module.

/// A memory ordering with a name. In a loom build the environment variable `FUSELINE_WEAKEN=NAME`
/// makes the orderings of that name `Relaxed`. `cargo xtask test loom-weakened` does so for each
/// name and expects a model to fail, which shows that the ordering is needed and that the models
/// notice.
#[macro_export]
macro_rules! ordering {
    ($ordering:ident, $name:literal) => {
        if $crate::weakened($name) {
            $crate::atomic::Ordering::Relaxed
        } else {
            $crate::atomic::Ordering::$ordering
        }
    };
}

/// Whether the ordering of this name is weakened in this run. Always false outside of loom builds.
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub fn weakened(name: &str) -> bool {
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

/// A fence of a named ordering. No fence if that is weakened.
#[inline(always)]
pub fn fence(ordering: atomic::Ordering) {
    if ordering != atomic::Ordering::Relaxed {
        atomic::fence(ordering);
    }
}

pub mod fork;
mod leaf;
pub mod lock_rank;
#[cfg(loom)]
mod loom_impl;
pub mod once;
pub mod oneshot;
pub mod schedule;
#[cfg(shuttle)]
mod shuttle_impl;
#[cfg(not(any(loom, shuttle)))]
mod std_impl;
mod weak_set;

pub use leaf::LeafGuard;
pub use lock_rank::Rank;
#[cfg(loom)]
pub use loom_impl::*;
#[cfg(shuttle)]
pub use shuttle_impl::*;
#[cfg(not(any(loom, shuttle)))]
pub use std_impl::*;
pub use weak_set::WeakSet;

/// A counter for statistics, on which no protocol depends, so model checkers need not see it. It
/// changes while locks are held that model checkers do not see either (those of the cache). They
/// must not switch threads there, because the other thread would wait for such a lock for ever.
pub use std::sync::atomic::AtomicU64 as StatCounter;

/// Returns a number that the process has not got from here before, from 1 on. No protocol depends
/// on it, so model checkers need not see it. It is in this crate because it uses an atomic.
#[inline]
#[must_use]
pub fn next_block() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
