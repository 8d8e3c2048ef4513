//! The fuzz targets, as functions of bytes that panic on an error.
//!
//! libFuzzer (`fuzz_targets/`) runs these functions, and so do `tests/fuzz_regressions.rs`, over
//! `corpus/` and `regressions/` in every test run, and `cargo xtask soak`. Programs and calls come
//! from the generators of the property tests, so an op is fuzzed as soon as it has a row in the op
//! table.
//!
//! To add a target, add a module here, a line in [`TARGETS`], a file in `fuzz_targets/`, a
//! `[[bin]]` in `Cargo.toml` and a folder `corpus/NAME`. A test reports what is missing.
#![allow(dead_code, missing_docs, unreachable_pub, unused_imports, reason = "each build uses a part")]

mod bytes;

mod api_program;
mod canon_decode;
mod canon_meta;
mod disk_ops;
mod emit_verify;
mod entry_parse;
mod fault_plan;
mod program_json;
mod shape;
mod text;

#[path = "../../tests/alloc_support/mod.rs"]
mod alloc_support;
#[path = "../../fusion/tests/support/answer.rs"]
mod answer;
#[path = "../../cache/tests/support/mod.rs"]
mod disk_support;
#[path = "../../fusion/tests/support/draft.rs"]
mod draft;
#[path = "../../fusion/tests/support/hostile.rs"]
mod hostile;
#[path = "../../fusion/tests/support/recording.rs"]
mod recording;
#[path = "../../tests/support/script.rs"]
mod script;

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 10] = [
    ("api_program", api_program::run),
    ("canon_decode", canon_decode::run),
    ("canon_meta", canon_meta::run),
    ("disk_ops", disk_ops::run),
    ("emit_verify", emit_verify::run),
    ("entry_parse", entry_parse::run),
    ("fault_plan", fault_plan::run),
    ("program_json", program_json::run),
    ("shape", shape::run),
    ("text", text::run),
];

/// Returns the target with this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn target(name: &str) -> fn(&[u8]) {
    let found = TARGETS.iter().find(|target| target.0 == name);
    found.unwrap_or_else(|| panic!("there is no target {name}")).1
}
