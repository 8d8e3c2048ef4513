//! `cargo xtask micro`: measures time and instructions of recording an op and running a region,
//! stage by stage.
//!
//! gungraun counts instructions under Callgrind. Its runner must have the same version as the
//! library. It is built once into `target/tools/`, from the version and with the hashes that its
//! package pins.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;

use crate::host::{self, Host};

/// The package of the measurements.
const PACKAGE: &str = "fuseline-micro";

/// Builds and runs the measurements. Returns their exit status.
pub(crate) fn run(host: &Host, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    host.build(&["--release", "--package", PACKAGE, "--bin", "micro"])?;
    let mut micro = host.cargo();
    micro.args(["run", "--quiet", "--locked", "--release", "--package", PACKAGE, "--bin", "micro", "--"]);
    micro.args(arguments);
    let is_given = |names: &[&str]| names.iter().any(|name| arguments.iter().any(|given| given == name));
    if !is_given(&["--no-counts", "--help", "-h"]) {
        match host.which("valgrind") {
            Some(_) => drop(micro.arg("--counts").arg(count(host)?)),
            None => eprintln!(
                "micro: instructions are not counted, because valgrind is not installed (Debian: apt install valgrind)"
            ),
        }
    }
    host::exit_code(micro.status().context("could not start cargo")?)
}

/// Counts instructions. Returns the folder of the counts.
fn count(host: &Host) -> anyhow::Result<PathBuf> {
    let runner = runner(host)?;
    let folder = host.target_dir().join("gungraun");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    let bar = spinner("counting instructions (about a minute)");
    let mut bench = host.cargo();
    bench.args(["bench", "--quiet", "--locked", "--package", PACKAGE, "--bench", "counts", "--"]);
    bench.arg("--save-summary=json").arg(format!("--home={}", folder.display()));
    bench.env("GUNGRAUN_RUNNER", runner);
    let output = bench.output().context("could not start cargo")?;
    bar.finish_and_clear();
    if !output.status.success() {
        let words = [output.stdout, output.stderr].concat();
        bail!("instructions could not be counted ({}):\n{}", output.status, String::from_utf8_lossy(&words));
    }
    Ok(folder)
}

/// Returns gungraun's runner, and builds it if it is missing.
fn runner(host: &Host) -> anyhow::Result<PathBuf> {
    let lock = fs::read_to_string(host.root.join("Cargo.lock")).context("Cargo.lock cannot be read")?;
    let version = locked(&lock, "gungraun").context("Cargo.lock does not name gungraun")?;
    let folder = host.target_dir().join("tools").join(format!("gungraun-runner-{version}"));
    let runner = folder.join("bin/gungraun-runner");
    if runner.exists() {
        return Ok(runner);
    }
    let bar = spinner("building gungraun's runner (once, takes minutes)");
    let mut install = host.cargo();
    install.args(["install", "--quiet", "--locked", "gungraun-runner", "--version", &format!("={version}")]);
    install.arg("--root").arg(&folder);
    let output = install.output().context("could not start cargo")?;
    bar.finish_and_clear();
    if !output.status.success() {
        bail!("gungraun's runner cannot be built:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(runner)
}

fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    if bar.is_hidden() {
        eprintln!("micro: {what}");
    }
    bar
}

/// The version of a package in a lock file.
fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let entry = lock.split("[[package]]").find(|entry| {
        entry
            .lines()
            .any(|line| line.strip_prefix("name = ").is_some_and(|name| name.trim_matches('"') == package))
    })?;
    entry.lines().find_map(|line| Some(line.strip_prefix("version = ")?.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a-b\"\nversion = \"1.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.1\"\n";
        assert_eq!(locked(lock, "a"), Some("2.1"));
        assert_eq!(locked(lock, "a-b"), Some("1.0"));
        assert_eq!(locked(lock, "b"), None);
    }

    #[test]
    fn the_runner_has_a_version() {
        let lock = include_str!("../../Cargo.lock");
        assert!(locked(lock, "gungraun").is_some());
    }
}
