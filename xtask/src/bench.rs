//! `cargo xtask bench`: builds and runs the harness.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::host::{self, Host};
use crate::micro;

/// Builds the command-line tool and the harness, and runs the harness. Returns its exit status. A
/// full run first measures the cost of an op and of a region, for the report.
pub(crate) fn run(host: &Host, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let selects = |argument: &OsString| {
        let argument = argument.to_string_lossy();
        ["--quick", "--only", "--help", "-h"].iter().any(|name| argument.split('=').next() == Some(*name))
    };
    if !arguments.iter().any(selects) {
        let file = output(arguments).join("micro.json").into_os_string();
        // A failure here does not prevent the other measurements.
        match micro::run(host, &["--output".into(), file]) {
            Ok(code) if code == ExitCode::SUCCESS => {}
            Ok(_) => eprintln!("bench: stages were not measured; see above"),
            Err(error) => eprintln!("bench: stages were not measured: {error:#}"),
        }
    }
    host.build(&["--release", "--package", "fuseline-cli"])?;
    let mut bench = host.cargo();
    bench
        .args(["run", "--quiet", "--locked", "--release", "--package", "fuseline-harness", "--"])
        .args(arguments);
    host::exit_code(bench.status().context("could not start cargo")?)
}

/// The folder in which the harness puts its results.
fn output(arguments: &[OsString]) -> PathBuf {
    let mut rest = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(argument) = rest.next() {
        let folder = match argument.split_once('=') {
            Some(("--output", folder)) => Some(folder.to_owned()),
            _ if argument == "--output" => rest.next().map(|folder| folder.into_owned()),
            _ => None,
        };
        if let Some(folder) = folder {
            return PathBuf::from(folder);
        }
    }
    PathBuf::from("bench-report")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_where_the_harness_puts_them() {
        for (line, folder) in [
            ("", "bench-report"),
            ("--fresh --output there", "there"),
            ("--output=there --fresh", "there"),
            ("--json x", "bench-report"),
        ] {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(output(&arguments), PathBuf::from(folder), "{line}");
        }
    }
}
