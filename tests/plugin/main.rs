//! Everything that a plugin can do wrong, on one that does it when told to (`tests/fakeplugin`).
//!
//! Each test has the plugin to itself ([`FakePlugin::alone`]), and each shows by the plugin's counts that what it planned has happened. The
//! long versions are ignored: `cargo test --release --test plugin -- --ignored`.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

#[path = "../support/mod.rs"]
mod support;

mod conformance;

use fuseline::{Engine, Result, Tensor};
use support::fakeplugin::FakePlugin;

const COMPILE: &str = "PJRT_Client_Compile";
const EXECUTE: &str = "PJRT_LoadedExecutable_Execute";
