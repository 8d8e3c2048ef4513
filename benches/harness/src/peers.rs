//! Python environments for the peers, from pinned packages.
//!
//! Each group of peers has a list of packages with hashes (`benches/peers/requirements-*.txt`) and
//! an environment of its own, which is rebuilt when the list changes.
//!
//! PyTorch from the package index is built for CUDA, and does not start without CUDA's run-time
//! libraries, which are separate packages. The list has PyTorch, its imports, and only the
//! libraries that its loader needs: 2.4 GB to fetch and 4 GB on disk, instead of 3 and 5 for all
//! that PyTorch names. On a machine without a CUDA device, none of CUDA is used. For such a device
//! (`--device cuda`), the lists `requirements-*-cuda.txt` are added to those of JAX and PyTorch.
//! JAX's list provides the PJRT plugin that Fuseline runs on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;

use crate::cli::{Device, Options, Peers};

/// The environment of a group, and its list of packages.
fn requirements(group: Peers, device: Device) -> anyhow::Result<(&'static str, String)> {
    let (name, list) = match group {
        Peers::Numpy => ("numpy", include_str!("../../peers/requirements-numpy.txt")),
        Peers::Jax => ("jax", include_str!("../../peers/requirements-jax.txt")),
        Peers::Torch => ("torch", include_str!("../../peers/requirements-torch.txt")),
        Peers::TorchXla => ("torch-xla", include_str!("../../peers/requirements-torch-xla.txt")),
        Peers::None | Peers::All => bail!("bug: {group:?} is not a group"),
    };
    Ok(match (device, group) {
        (Device::Cpu, _) | (Device::Cuda, Peers::Numpy) => (name, list.to_owned()),
        (Device::Cuda, Peers::Jax) => {
            ("jax-cuda", list.to_owned() + include_str!("../../peers/requirements-jax-cuda.txt"))
        }
        (Device::Cuda, Peers::Torch) => {
            ("torch-cuda", list.to_owned() + include_str!("../../peers/requirements-torch-cuda.txt"))
        }
        (Device::Cuda, _) => bail!("the package index has no CUDA package of {name}"),
    })
}

/// The PJRT plugin for CUDA in JAX's environment.
pub(crate) fn cuda_plugin(python: &Path) -> anyhow::Result<PathBuf> {
    let said = Command::new(python)
        .args(["-c", "import jax_plugins.xla_cuda13 as plugin; print(plugin.__path__[0])"])
        .output()
        .with_context(|| format!("{} cannot be started", python.display()))?;
    let folder = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    let plugin = folder.join("xla_cuda_plugin.so");
    ensure!(
        said.status.success() && plugin.is_file(),
        "there is no CUDA plugin in the environment of {}",
        python.display()
    );
    Ok(plugin)
}

/// Returns the Python of a group: the one that the user names, or that of the group's environment,
/// which is made if it is missing.
///
/// # Errors
/// If the Python that the user names lacks the group's package, or the environment cannot be made.
pub(crate) fn provide(group: Peers, options: &Options) -> anyhow::Result<PathBuf> {
    if let Some(python) = &options.python {
        let (name, _) = requirements(group, Device::Cpu)?;
        let import = format!("import {}", name.replace('-', "_"));
        succeed(Command::new(python).args(["-c", &import]))?;
        return Ok(python.clone());
    }
    let (name, list) = requirements(group, options.device)?;
    let environment = std::path::absolute(options.environments.join(name))?;
    let python = environment.join("bin/python");
    // Written last, so that its presence means a complete environment.
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
    fs::write(&file, &list).with_context(|| format!("{} cannot be written", file.display()))?;
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
    fs::write(&ready, &list).with_context(|| format!("{} cannot be written", ready.display()))?;
    bar.finish_and_clear();
    Ok(python)
}

/// Runs a command. The error has its output.
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
