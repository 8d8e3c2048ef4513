//! The engine through its public interface: modes, regions, cache, memory, failures and threads.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test, which says its figures")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

#[path = "../support/exported.rs"]
mod exported;
#[path = "../support/mod.rs"]
mod support;

mod ahead_of_time;
mod bodies;
mod classes;
mod cold;
mod collective;
mod contract;
mod custom;
mod determinism;
mod disk_cache;
mod donation;
mod embed;
mod events;
mod fork;
mod function;
mod handler;
mod hang;
mod host_eval;
mod joined;
mod miss;
mod module_size;
mod out_of_memory;
mod panics;
mod poison;
mod priority;
mod quick;
mod replay;
mod shadow;
mod shutdown;
mod specialise;
mod timeline;
mod trace;
mod trace_refused;
mod variants;
mod why;
