//! `cargo xtask bench`: the harness, built and run.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::host::{self, Host};

/// Builds the command-line tool and the harness, and runs the harness. Its exit status becomes this command's.
pub(crate) fn run(host: &Host, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    host.build(&["--release", "--package", "fuseline", "--bin", "fuseline"])?;
    let mut bench = host.cargo();
    bench
        .args(["run", "--quiet", "--locked", "--release", "--package", "fuseline-harness", "--"])
        .args(arguments);
    host::exit_code(bench.status().context("could not start cargo")?)
}
