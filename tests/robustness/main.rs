//! Hostile input, failing allocations, thousands of threads, and memory over many regions, with a
//! counting allocator.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test, which says its figures")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

#[path = "../alloc_support/mod.rs"]
mod alloc_support;
#[path = "../support/mod.rs"]
mod support;

mod allocation;
mod distinct_regions;
mod hostile;
mod many_threads;
mod soak_memory;
