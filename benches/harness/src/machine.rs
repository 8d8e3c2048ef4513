//! Describes the machine of a run.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::process::Command;

use crate::results::Machine;

/// Writes a line to standard error. Errors are ignored.
pub(crate) fn say(words: fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr().lock(), "{words}"));
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn describe() -> Machine {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| -> Option<String> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kib = memory.and_then(|memory| memory.split_whitespace().next()?.parse::<u64>().ok());
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: cores(),
        memory_bytes: kib.unwrap_or(0) * 1024,
        system: output_of("uname", &["-srm"]).unwrap_or_else(|| std::env::consts::OS.to_owned()),
        load: read("/proc/loadavg")
            .split_whitespace()
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or(0.0),
    }
}

/// The current time, to the minute.
pub(crate) fn now() -> String {
    output_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default()
}

/// The commit of the tree, followed by `+` if the tree has changes. Empty outside a checkout.
pub(crate) fn commit() -> String {
    let Some(commit) = output_of("git", &["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    let changed = output_of("git", &["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|text| !text.is_empty());
    if changed { commit + "+" } else { commit }
}

/// The output of a program, if it exists and succeeds.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
