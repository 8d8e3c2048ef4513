//! Python environments for the peers, from pinned packages.
//!
//! Each group of peers has a list of packages with hashes (`benches/peers/requirements-*.txt`) and an environment of its own, which
//! is made again when the list changes.
//!
//! PyTorch from the package index is built for CUDA, and does not start without CUDA's run-time libraries, which are packages of
//! their own. The list has PyTorch, what it imports, and those libraries that its loader asks for: 2.4 GB to fetch and 4 GB
//! on disk, where all that PyTorch names would be 3 and 5. Nothing of CUDA is used on a machine without such a device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;

use crate::cli::Peers;

/// The list of packages of a group.
fn requirements(group: Peers) -> anyhow::Result<(&'static str, &'static str)> {
    Ok(match group {
        Peers::Numpy => ("numpy", include_str!("../../peers/requirements-numpy.txt")),
        Peers::Jax => ("jax", include_str!("../../peers/requirements-jax.txt")),
        Peers::Torch => ("torch", include_str!("../../peers/requirements-torch.txt")),
        Peers::TorchXla => ("torch-xla", include_str!("../../peers/requirements-torch-xla.txt")),
        Peers::None | Peers::All => bail!("bug: {group:?} is no group of its own"),
    })
}

/// The Python of a group's environment, which is made if it is not there.
pub(crate) fn provide(group: Peers, folder: &Path) -> anyhow::Result<PathBuf> {
    let (name, list) = requirements(group)?;
    let environment = std::path::absolute(folder.join(name))?;
    let python = environment.join("bin/python");
    // Written last, so what is there is whole.
    let ready = environment.join("ready");
    if fs::read_to_string(&ready).is_ok_and(|found| found == list) {
        return Ok(python);
    }
    let bar = ProgressBar::new_spinner();
    bar.set_message(format!("setting up {name} in {}", environment.display()));
    bar.enable_steady_tick(Duration::from_millis(200));
    if environment.exists() {
        fs::remove_dir_all(&environment)
            .with_context(|| format!("{} cannot be removed", environment.display()))?;
    }
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let file = environment.join("requirements.txt");
    fs::write(&file, list).with_context(|| format!("{} cannot be written", file.display()))?;
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
    ]);
    install.args(["--only-binary", ":all:", "--require-hashes", "--requirement"]).arg(&file);
    succeed(&mut install)?;
    fs::write(&ready, list).with_context(|| format!("{} cannot be written", ready.display()))?;
    bar.finish_and_clear();
    Ok(python)
}

/// Runs a command; its words, if it fails.
fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = words.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = said[said.len().saturating_sub(3)..].join(" / ");
    bail!("{} failed ({}): {last}", command.get_program().display(), output.status)
}
