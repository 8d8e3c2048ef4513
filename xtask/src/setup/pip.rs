//! Fetches pinned packages with pip and classifies its failures.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::failure::Failure;
use super::piece::Piece;
use super::requirements::Requirement;
use crate::host::Host;

/// How often the progress bar reads the size on disk.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The first Python 3 in `PATH` that has pip.
pub(crate) fn find_python(host: &Host, missing: &[Piece]) -> Result<PathBuf, Failure> {
    let mut without_pip = None;
    let folders: Vec<PathBuf> =
        host.var("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    for name in ["python3", "python"] {
        for folder in &folders {
            let candidate = folder.join(name);
            let succeeds = |arguments: &[&str]| {
                let mut command = host.command(&candidate);
                command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                command.status().is_ok_and(|status| status.success())
            };
            if !succeeds(&["-c", "import sys; sys.exit(sys.version_info[0] != 3)"]) {
                continue;
            }
            if succeeds(&["-m", "pip", "--version"]) {
                return Ok(candidate);
            }
            without_pip.get_or_insert(candidate);
        }
    }
    let missing = missing.to_vec();
    Err(match without_pip {
        Some(python) => Failure::NoPip { python, missing },
        None => Failure::NoPython { missing },
    })
}

/// Fetches one package into `to` and checks its hash. `scratch` takes the files of an interrupted
/// pip.
///
/// `missing` lists the pieces of this package and of those after it. A failure says how to supply
/// them.
pub(crate) fn fetch(
    host: &Host,
    python: &Path,
    requirement: &Requirement,
    to: &Path,
    scratch: &Path,
    missing: &[Piece],
) -> Result<(), Failure> {
    let list = scratch.join("requirements.txt");
    fs::write(&list, &requirement.line)
        .map_err(|error| Failure::io("write below .setup", host.setup_dir(), error))?;
    let mut command = host.command(python);
    command.args([
        "-m",
        "pip",
        "install",
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
        "--no-compile",
    ]);
    command.args([
        "--no-input",
        "--disable-pip-version-check",
        "--no-warn-script-location",
        "--progress-bar=off",
    ]);
    // Without -vv pip may not say why it found nothing.
    command.arg("-vv");
    command.arg("--target").arg(to).arg("-r").arg(&list);
    // The user's configuration applies (a mirror, a proxy, a certificate), except for options that
    // contradict --target.
    command
        .env("PIP_USER", "0")
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        .env_remove("PIP_PREFIX")
        .env_remove("PIP_ROOT");
    command.env("TMPDIR", scratch).env("LC_ALL", "C");
    let started = |error| Failure::io("run pip", python, error);
    let (mut reader, writer) = std::io::pipe().map_err(started)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(started)?).stderr(writer);
    let mut child = command.spawn().map_err(started)?;
    // This closes our writing ends of the pipe, so reading ends when pip does.
    drop(command);

    let bar = progress(requirement);
    let (status, said) = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut said = Vec::new();
            // Keep what was read before an error.
            let _ = reader.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        let status = loop {
            match child.try_wait() {
                Ok(None) => {}
                ended => break ended,
            }
            let bytes = bytes_below(scratch);
            bar.set_position(bytes.min(requirement.size));
            if bytes > requirement.size {
                bar.set_message("unpacking");
            }
            std::thread::sleep(LOOK_EVERY);
        };
        (status, reading.join().unwrap_or_default())
    });
    bar.finish_and_clear();
    if status.map_err(started)?.is_some_and(|status| status.success()) {
        return Ok(());
    }
    // The log was kept in memory until now, because a full disk takes none.
    let log = host.setup_dir().join("pip.log");
    let _ = fs::write(&log, &said);
    Err(classify(&said, host, missing, log))
}

fn progress(requirement: &Requirement) -> ProgressBar {
    let name = format!("{} {}", requirement.name, requirement.version);
    eprintln!("set-up: fetching {name} ({} MB)", requirement.size.div_ceil(1_000_000));
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {bytes}/{total_bytes} {eta} {msg}")
        .expect("a valid template")
        .progress_chars("=> ");
    ProgressBar::new(requirement.size).with_style(style).with_prefix(name)
}

/// The total size of all files below a folder. Files that vanish meanwhile are ignored.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Whether pip failed because it could not reach the index.
pub(crate) fn is_without_network(said: &str) -> bool {
    NETWORK.iter().any(|words| said.contains(words))
}

/// pip's messages about failed connections.
const NETWORK: [&str; 11] = [
    "after connection broken by",
    "Could not fetch URL",
    "Max retries exceeded",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "ProxyError",
    "SSLError",
    "Read timed out",
    "ConnectionResetError",
    "IncompleteRead",
];

/// Classifies a failure by pip's messages. The order matters: after a full disk or a lost
/// connection pip also says that it found no package.
fn classify(said: &str, host: &Host, missing: &[Piece], log: PathBuf) -> Failure {
    const DISK: [&str; 2] = ["No space left on device", "Disk quota exceeded"];
    const HASH: [&str; 1] = ["DO NOT MATCH THE HASHES"];
    let has = |words: &[&str]| words.iter().any(|words| said.contains(words));
    let missing = missing.to_vec();
    if has(&DISK) {
        return Failure::DiskFull { place: host.setup_dir() };
    }
    if let (true, Some(&piece)) = (has(&HASH), missing.first()) {
        return Failure::HashMismatch { piece, log };
    }
    if is_without_network(said) {
        return Failure::NoNetwork { missing, log };
    }
    if said.contains("No matching distribution found") {
        return Failure::NoWheel { platform: host.platform(), missing, log };
    }
    let mut lines = said.lines().rev();
    let last = lines.find_map(|line| line.strip_prefix("ERROR: ")).or(said.lines().last());
    let said = last.unwrap_or("nothing").to_owned();
    Failure::Pip { missing, said, log }
}
