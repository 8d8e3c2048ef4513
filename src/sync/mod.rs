//! The one place that names synchronisation primitives.
//!
//! Normal builds get `std` and `parking_lot`; `--cfg loom` gets loom's models and `--cfg shuttle` shuttle's, so that the
//! same protocol code runs under all three. Everything else in the crate imports atomics, cells, locks and threads from
//! here (`clippy.toml` forbids the originals).
//!
//! - Payload that a protocol protects lives in [`UnsafeCell`] of this module: loom checks accesses to its own cells and
//!   is blind to plain fields.
//! - Waiting is by parking ([`thread::park`], [`Condvar`]), never by spinning: two busy cores are the normal case.

#[cfg(loom)]
mod loom_impl;
#[cfg(shuttle)]
mod shuttle_impl;
#[cfg(not(any(loom, shuttle)))]
mod std_impl;

#[cfg(loom)]
pub(crate) use loom_impl::*;
#[cfg(shuttle)]
pub(crate) use shuttle_impl::*;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std_impl::*;
