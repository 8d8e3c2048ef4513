//! Tests on other PJRT plugins than the default one.
//!
//! The plugins are pinned in `xtask/requirements.txt` and in `tests/plugins/requirements.txt`, and
//! fetched with pip into `target/plugins`. The tests are those of the stage `nextest`, from the
//! same build, so only their runs take time. As one of all stages, each plugin gets a part of the
//! conformance cases. `cargo xtask test plugins` runs all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::models::{self, Chosen};
use super::nextest;
use super::tally::Tally;
use crate::host::Host;

/// A plugin of the matrix.
struct MatrixPlugin {
    /// The package, as in [`REQUIREMENTS`].
    package: &'static str,
    /// The library in the package.
    library: &'static str,
}

/// The CPU plugins. The default one is left out: all tests run on it.
const MATRIX: &[MatrixPlugin] = &[
    MatrixPlugin { package: "xla-cpu-pjrt", library: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so" },
    MatrixPlugin { package: "fastatomstruct-xla-cpu", library: "fastatomstruct_xla_cpu/libpjrt_cpu.so" },
    MatrixPlugin { package: "lammps-jax-pjrt-cpu", library: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so" },
];

const REQUIREMENTS: [&str; 2] = ["tests/plugins/requirements.txt", "xtask/requirements.txt"];

/// The tests that run on every plugin.
const TESTS: &[Chosen] = &[
    ("ops", "conformance"),
    ("ops", "programs_on_the_plugin"),
    ("engine", "donation"),
    ("engine", "collective"),
    ("pjrt", "lifecycle"),
];

/// How much of the conformance cases runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    All,
    /// Another part on each plugin.
    Part,
}

/// The time limit of a test.
const LIMIT: Duration = Duration::from_secs(900);

/// Fetches the plugins and runs the tests on each.
pub(crate) fn run(host: &Host, extent: Extent) -> Tally {
    if !(host.os == "linux" && host.arch == "x86_64") {
        return Tally::skipped("plugins", "no x86-64 Linux, for which the plugins are pinned");
    }
    let mut tally = Tally::default();
    let default = crate::setup::plugin_package(host);
    let others: Vec<&MatrixPlugin> =
        MATRIX.iter().filter(|plugin| default.as_deref() != Some(plugin.package)).collect();
    for (place, plugin) in others.iter().enumerate() {
        let library = match provide(host, plugin) {
            Ok(library) => library,
            // Only a missing prerequisite is a reason to skip; `prerequisites` checks it.
            Err(why) if why.starts_with("no ") => {
                tally.skip(plugin.package, why);
                continue;
            }
            Err(why) => {
                tally.fail(plugin.package, why);
                continue;
            }
        };
        println!("\n--- on {}", plugin.package);
        let part = format!("{}/{}", place + 1, 2 * others.len());
        let library = library.display().to_string();
        // Not the user's cache; and XLA's own log lines must not mix with the tests' output.
        let mut variables =
            vec![("FUSELINE_PJRT_PLUGIN", &*library), ("FUSELINE_CACHE", "off"), ("GLOG_minloglevel", "2")];
        if extent == Extent::Part {
            variables.push(("FUSELINE_PART", &part));
        }
        let mut ran = models::run(host, TESTS, Ok(nextest::test_build(host)), &variables, LIMIT);
        ran.prefix(plugin.package);
        tally.add(&ran);
    }
    tally
}

/// The packages of the matrix.
#[cfg(test)]
pub(super) fn packages() -> impl Iterator<Item = &'static str> {
    MATRIX.iter().map(|plugin| plugin.package)
}

/// The library of a package of the matrix, fetched if need be. If this machine lacks a
/// prerequisite, the error begins with `no`.
pub(super) fn library(host: &Host, package: &str) -> Result<PathBuf, String> {
    let plugin = MATRIX.iter().find(|plugin| plugin.package == package);
    provide(host, plugin.ok_or_else(|| format!("bug: {package} is not in the matrix"))?)
}

/// Fetches a package, unless the pinned version is there. Returns the library. If this machine
/// lacks a prerequisite, the error begins with `no`.
fn provide(host: &Host, plugin: &MatrixPlugin) -> Result<PathBuf, String> {
    let folder = host.target_dir().join("plugins").join(plugin.package);
    let (library, stamp) = (folder.join(plugin.library), folder.join("requirement.txt"));
    let requirement = requirement(host, plugin.package)?;
    if library.exists() && fs::read_to_string(&stamp).is_ok_and(|there| there == requirement) {
        return Ok(library);
    }
    let python = host.which("python3").ok_or("no python3")?;
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let list = folder.join("fetched.txt");
    fs::write(&list, &requirement).map_err(failed)?;
    println!("fetching {}", plugin.package);
    install(host, &python, &list, &folder)?;
    if !library.exists() {
        return Err(format!("the package does not contain {}", plugin.library));
    }
    fs::write(&stamp, requirement).map_err(failed)?;
    Ok(library)
}

fn install(host: &Host, python: &Path, list: &Path, folder: &Path) -> Result<(), String> {
    let mut command = host.command(python);
    command.args(["-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary=:all:"]);
    command.args(["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--no-compile"]);
    command.args(["--upgrade", "--target"]).arg(folder).arg("-r").arg(list);
    command.env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0").env_remove("PIP_PREFIX");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("could not start {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("pip printed nothing");
    Err(match () {
        () if said.contains("No module named pip") => format!("no pip: {last}"),
        () if crate::setup::is_without_network(&said) => format!("no network: {last}"),
        () if said.contains("No matching distribution found") => {
            format!("no published package any more: {last}")
        }
        () => format!("pip ended with {}: {last}", output.status),
    })
}

/// The lines of a package in [`REQUIREMENTS`].
fn requirement(host: &Host, package: &str) -> Result<String, String> {
    let mut text = String::new();
    for path in REQUIREMENTS.map(|file| host.root.join(file)) {
        text += &fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        text.push('\n');
    }
    let pin = format!("{package}==");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&pin)).peekable();
    if lines.peek().is_none() {
        return Err(format!("neither of {} pins {package}", REQUIREMENTS.join(" and ")));
    }
    let mut found = String::new();
    for line in lines {
        found += line;
        found.push('\n');
        if !line.ends_with('\\') {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugin_is_pinned_with_a_hash() {
        let host = Host::detect().expect("this machine");
        for plugin in MATRIX {
            let requirement = requirement(&host, plugin.package).expect("it is pinned");
            assert!(requirement.contains("--hash=sha256:"), "{requirement}");
        }
        assert!(requirement(&host, "another").is_err());
    }
}
