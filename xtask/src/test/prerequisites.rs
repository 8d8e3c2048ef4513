//! Prerequisites of checks: a missing one is the only valid reason to skip a check.
//!
//! A reason begins with `no` and the name of a prerequisite: `no plugin: ...`. A skip with another
//! reason is a failure, and so is one whose prerequisite this machine has. This catches checks that
//! turn an error into a skip.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::cargo;
use super::tally::Tally;
use crate::host::Host;

/// A prerequisite: its name in a reason, and whether this machine has it, if that can be
/// determined.
struct Prerequisite {
    name: &'static str,
    is_here: fn(&Host) -> bool,
}

/// For prerequisites that only the check itself can determine.
fn unknown(_: &Host) -> bool {
    false
}

const PREREQUISITES: &[Prerequisite] = &[
    Prerequisite { name: "plugin", is_here: |host| crate::setup::plugin(host).exists() },
    Prerequisite { name: "conformance cases", is_here: |host| conformance(host).is_dir() },
    Prerequisite { name: "C compiler", is_here: |host| host.which("cc").is_some() },
    Prerequisite { name: "C++ compiler", is_here: |host| host.which("c++").is_some() },
    Prerequisite { name: "python3", is_here: |host| host.which("python3").is_some() },
    Prerequisite {
        name: "pip",
        is_here: |host| succeeds(host.command("python3").args(["-m", "pip", "--version"])),
    },
    Prerequisite {
        name: "venv",
        is_here: |host| succeeds(host.command("python3").args(["-c", "import venv"])),
    },
    // A specific version, which the user promises by naming a Python.
    Prerequisite { name: "JAX", is_here: |host| host.var("FUSELINE_JAX_PYTHON").is_some() },
    Prerequisite { name: "root", is_here: is_root },
    Prerequisite { name: "git checkout", is_here: |host| host.root.join(".git").exists() },
    Prerequisite { name: "/proc/self/statm", is_here: |host| host.system.join("proc/self/statm").exists() },
    Prerequisite { name: "/proc/self/maps", is_here: |host| host.system.join("proc/self/maps").exists() },
    Prerequisite { name: "limit on mappings that a test can reach", is_here: unknown },
    Prerequisite { name: "prlimit", is_here: |host| host.which("prlimit").is_some() },
    Prerequisite { name: "second processor", is_here: unknown },
    Prerequisite { name: "command-line tool", is_here: unknown },
    Prerequisite { name: "rustfmt", is_here: |host| cargo::has(host, "fmt") },
    Prerequisite { name: "clippy", is_here: |host| cargo::has(host, "clippy") },
    Prerequisite { name: "cargo-deny", is_here: |host| cargo::has(host, "deny") },
    Prerequisite { name: "sanitizer", is_here: |host| super::sanitizers::has_sanitizers(host) },
    Prerequisite { name: "time", is_here: |host| host.var(super::LIMIT).is_none() },
    Prerequisite { name: "Rust 1.95", is_here: unknown },
    Prerequisite { name: "network", is_here: unknown },
    Prerequisite { name: "published package any more", is_here: unknown },
    Prerequisite { name: "x86-64 Linux", is_here: |host| host.os == "linux" && host.arch == "x86_64" },
    Prerequisite { name: "second user", is_here: unknown },
    Prerequisite { name: "mounts of its own", is_here: unknown },
    Prerequisite { name: "files of 8 EiB", is_here: unknown },
    Prerequisite { name: "process of its own", is_here: unknown },
    Prerequisite { name: "symbol versions", is_here: unknown },
    // A property of a region on this plugin, which the test is about.
    Prerequisite { name: "plan larger than its ops", is_here: unknown },
];

/// The folder of the conformance cases.
fn conformance(host: &Host) -> PathBuf {
    match host.var("FUSELINE_CONFORMANCE") {
        Some(folder) => folder.into(),
        None => host.root.join("../shared/conformance/cases"),
    }
}

fn is_root(host: &Host) -> bool {
    let asked = host.command("id").arg("-u").output();
    asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() == "0")
}

fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The prerequisite that a reason names.
fn named(why: &str) -> Option<&'static Prerequisite> {
    let rest = why.strip_prefix("no ")?;
    PREREQUISITES.iter().find(|prerequisite| {
        let after = rest.strip_prefix(prerequisite.name);
        after.is_some_and(|after| {
            !after.starts_with(|next: char| next.is_alphanumeric() || "-+".contains(next))
        })
    })
}

/// Why a check may not be skipped for this reason; `None` if it may.
fn wrong(host: &Host, why: &str) -> Option<String> {
    match named(why) {
        None => Some(format!("skipped, but the reason is not a known prerequisite: {why}")),
        Some(prerequisite) if (prerequisite.is_here)(host) => {
            Some(format!("skipped, but this machine has the prerequisite: {why}"))
        }
        Some(_) => None,
    }
}

/// Turns skips without a valid reason into failures. An ignored test is not a skip: it runs by
/// name.
pub(crate) fn judge(host: &Host, tally: Tally) -> Tally {
    let mut judged = Tally { skipped: Vec::new(), ..tally };
    for note in tally.skipped {
        match wrong(host, &note.why).filter(|_| !note.is_ignored()) {
            Some(why) => judged.fail(note.name, why),
            None => judged.skipped.push(note),
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without programs and files.
    fn bare(folder: &std::path::Path) -> Host {
        let mut host = Host { root: folder.join("workspace"), ..Host::detect().expect("this machine") };
        host.system = folder.to_owned();
        host.vars.clear();
        host
    }

    #[test]
    fn only_what_is_missing_is_a_reason() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = bare(folder.path());
        let mut tally = Tally { passed: 2, ..Tally::default() };
        tally.skip("a", "no plugin: nothing was found");
        tally.skip("b", "no plugins are good");
        tally.skip("c", "ignored");
        tally.skip("d", "it did not work");
        tally.skip("e", "no plugin");
        let judged = judge(&host, tally);
        assert_eq!(judged.counts(), "2 passed, 2 failed, 3 skipped");
        let names: Vec<&str> = judged.failed.iter().map(|note| note.name.as_str()).collect();
        assert_eq!(names, ["b", "d"]);
    }

    #[test]
    fn what_is_here_is_no_reason() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = bare(folder.path());
        let plugin = crate::setup::plugin(&host);
        std::fs::create_dir_all(plugin.parent().expect("a folder")).expect("folders");
        std::fs::write(&plugin, "").expect("a file");
        let judged = judge(&host, Tally::skipped("a", "no plugin: it cannot be loaded"));
        assert!(judged.failed[0].why.contains("this machine has"), "{judged:?}");
        let judged = judge(&host, Tally::skipped("a", "no conformance cases"));
        assert_eq!(judged.counts(), "0 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn names_are_told_apart() {
        for prerequisite in PREREQUISITES {
            for why in [format!("no {}", prerequisite.name), format!("no {}: words", prerequisite.name)] {
                assert_eq!(named(&why).map(|found| found.name), Some(prerequisite.name));
            }
        }
        assert!(named("no pipes").is_none() && named("there is no pip").is_none());
    }
}
