//! The C interface: the seam of [`engine::embed`] by opaque ids, plain structures and callbacks,
//! for front ends in any language.
//!
//! Input: calls from C. Output: what the engine says. Nothing is decided here: every function
//! checks what it was given, asks the engine, and hands out what that says. The documentation for
//! users is the header, `include/fuseline.h`, which is made from this source.
//!
//! | file | what |
//! |---|---|
//! | `raw.rs` | pointers of C |
//! | `error.rs` | what a call returns |
//! | `types.rs`, `ops.rs`, `attrs.rs` | element types, the op table, attributes |
//! | `config.rs`, `callback.rs` | how an engine is to be; callbacks |
//! | `session.rs`, `event.rs`, `site.rs` | engines and streams, modes; places in streams; call sites |
//! | `value.rs`, `record.rs`, `host.rs` | values, ops, the host |
//! | `trace.rs`, `custom.rs`, `cache.rs` | whole graphs, ops of the front end's own, caches |
//!
//! Invariants, with C1 (no panic leaves), C2 (an error is complete) and C3 (what callbacks are
//! given is freed once):
//! - C4. A function that fails has changed nothing that its documentation does not say, and has not
//!   written to where results go.
//! - C5. What is added is a function, a constant, a setting, or a member at the end of a structure
//!   with a `struct_size`. What is there keeps its name, its layout and its meaning; `tests/abi.rs`
//!   compares both with what is committed.
#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(missing_debug_implementations, reason = "C cannot print them")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what holds for all stands in the header: pointers are null or what their type says"
)]
#![allow(unreachable_pub, reason = "C is who reaches them")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "there is one obligation for all that a call is given, and the header has it"
)]

mod attrs;
mod cache;
mod callback;
mod config;
mod custom;
mod error;
mod event;
mod host;
mod ops;
mod raw;
mod record;
mod session;
mod site;
mod trace;
mod types;
mod value;

use std::ffi::c_char;

/// Version of this interface, as of the header that a program was compiled with: a thousand times
/// the first number plus the second. The library has the same first number, and at least the same
/// second one.
pub const FUSELINE_ABI_VERSION: u32 = 1;

/// Version of the interface that the library has.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_abi_version() -> u32 {
    FUSELINE_ABI_VERSION
}

/// Version of the library, as text. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
