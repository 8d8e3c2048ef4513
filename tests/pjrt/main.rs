//! The PJRT layer on the real plugin and on fake ones, and the engine on a plugin with planned
//! faults.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test, which says its figures")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

mod fixtures;
#[path = "../support/mod.rs"]
mod support;

mod client;
mod cost;
mod discovery;
mod fake;
mod lifecycle;
mod plugin;
