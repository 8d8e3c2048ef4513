//! The C interface: [`engine::embed`] with opaque ids, plain structures and callbacks, for front
//! ends in any language.
//!
//! Input: calls from C. Output: the engine's results. Nothing is decided here: every function
//! checks its arguments, calls the engine and returns the result. The documentation for users is
//! the header `include/fuseline.h`, which is generated from this source.
//!
//! | file | what |
//! |---|---|
//! | `raw.rs` | pointers of C |
//! | `error.rs` | what a call returns |
//! | `types.rs`, `ops.rs`, `attrs.rs` | element types, the op table, attributes |
//! | `config.rs`, `callback.rs` | configuration of an engine; callbacks |
//! | `session.rs`, `event.rs`, `site.rs` | engines and streams, modes; positions in streams; call sites |
//! | `value.rs`, `record.rs`, `host.rs` | values, ops, the host |
//! | `trace.rs`, `custom.rs`, `cache.rs` | whole graphs, user-defined ops, caches |
//!
//! Invariants, with C1 (no panic leaves), C2 (an error is complete) and C3 (what callbacks are
//! given is freed once):
//! - CAPI-4. A function that fails has changed only what its documentation says, and has not
//!   written any result.
//! - CAPI-5. Additions are functions, constants, settings, or members at the end of a structure
//!   with a `struct_size`. Existing items keep their name, layout and meaning; `tests/abi.rs`
//!   compares names and layouts with the committed ones.
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

/// Version of this interface in the header that a program was compiled with: a thousand times the
/// major version plus the minor version. The library has the same major version and at least the
/// same minor version.
pub const FUSELINE_ABI_VERSION: u32 = 1;

/// Version of the library's interface.
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
