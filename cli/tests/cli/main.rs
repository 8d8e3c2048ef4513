//! Tests of the command-line tool.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test, which says its figures")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

#[path = "../../../tests/support/answer.rs"]
mod answer;
#[path = "../../../tests/support/mod.rs"]
mod support;

mod cache_command;
mod commands;
mod ops_command;
mod qualify_command;
mod why_command;
