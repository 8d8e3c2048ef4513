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
//! The list of JAX 0.10 provides the PJRT plugin that Fuseline runs on there.
//!
//! The newest JAX needs a newer Python than many machines have by default. It is looked for on the
//! path and among the versions of pyenv. Without it, `jax.jit` is that of JAX 0.10, and the page
//! says so.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;

use crate::cli::{Device, Options, Peers};

/// The minor versions of Python 3 for which the list of the newest JAX has packages.
const NEWEST_JAX: RangeInclusive<u32> = 12..=14;

/// The environment of a group, the Python that makes it, and its list of packages.
fn requirements(group: Peers, device: Device) -> anyhow::Result<(&'static str, &'static Path, String)> {
    let newer = match (group, device) {
        (Peers::Jax, Device::Cpu) => newest_jax_python(),
        _ => None,
    };
    let base = newer.unwrap_or(Path::new("python3"));
    let (name, list) = match group {
        Peers::Numpy => ("numpy", include_str!("../../peers/requirements-numpy.txt")),
        Peers::Jax if newer.is_some() => ("jax", include_str!("../../peers/requirements-jax.txt")),
        Peers::Jax | Peers::Jax010 => ("jax-0.10", include_str!("../../peers/requirements-jax-0.10.txt")),
        Peers::Torch => ("torch", include_str!("../../peers/requirements-torch.txt")),
        Peers::TorchXla => ("torch-xla", include_str!("../../peers/requirements-torch-xla.txt")),
        Peers::None | Peers::All => bail!("bug: {group:?} is not a group"),
    };
    let with = |name, more: &str| Ok((name, base, list.to_owned() + more));
    match (device, group) {
        (Device::Cpu, _) | (Device::Cuda, Peers::Numpy) => with(name, ""),
        (Device::Cuda, Peers::Jax) => with("jax-cuda", include_str!("../../peers/requirements-jax-cuda.txt")),
        (Device::Cuda, Peers::Torch) => {
            with("torch-cuda", include_str!("../../peers/requirements-torch-cuda.txt"))
        }
        (Device::Cuda, _) => bail!("the package index has no CUDA package of {name}"),
    }
}

/// Whether the group `jax` has the newest version if the machine has a Python for it.
fn looks_for_python(options: &Options) -> bool {
    options.device == Device::Cpu && options.python.is_none()
}

/// Whether the group `jax` is newer than the group `jax-0.10`.
pub(crate) fn has_newest_jax(options: &Options) -> bool {
    looks_for_python(options) && newest_jax_python().is_some()
}

/// A remark on a group, which the page shows after its versions.
pub(crate) fn note(group: Peers, options: &Options) -> Option<String> {
    let is_older = group == Peers::Jax && looks_for_python(options) && newest_jax_python().is_none();
    is_older.then(|| {
        format!(
            "not the newest JAX, which needs Python 3.{} to 3.{}: none was found on the path or in pyenv",
            NEWEST_JAX.start(),
            NEWEST_JAX.end()
        )
    })
}

/// A Python that can make an environment for the newest JAX: `python3`, another of the path, or one
/// of pyenv.
fn newest_jax_python() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| python_candidates().into_iter().find(|python| is_for_newest_jax(python))).as_deref()
}

fn python_candidates() -> Vec<PathBuf> {
    let mut candidates = vec![PathBuf::from("python3")];
    candidates.extend(NEWEST_JAX.rev().map(|minor| PathBuf::from(format!("python3.{minor}"))));
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(std::env::home_dir()?.join(".pyenv")));
    let versions = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok()).into_iter().flatten();
    let mut versions: Vec<PathBuf> =
        versions.filter_map(Result::ok).map(|entry| entry.path().join("bin/python3")).collect();
    versions.sort();
    candidates.extend(versions.into_iter().rev());
    candidates
}

/// Whether a Python starts, can make environments, and is CPython of a version in [`NEWEST_JAX`],
/// with the global lock: other builds are not what JAX's users have.
fn is_for_newest_jax(python: &Path) -> bool {
    let code = "import ensurepip, sys, sysconfig, venv; \
                assert sys.implementation.name == 'cpython'; \
                assert not sysconfig.get_config_var('Py_GIL_DISABLED'); \
                print(*sys.version_info[:2])";
    let Ok(output) = Command::new(python).args(["-c", code]).stdin(Stdio::null()).output() else {
        return false;
    };
    let version = String::from_utf8_lossy(&output.stdout);
    let minor = version.trim().strip_prefix("3 ").and_then(|minor| minor.parse().ok());
    output.status.success() && minor.is_some_and(|minor| NEWEST_JAX.contains(&minor))
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
        let module = match group {
            Peers::Jax | Peers::Jax010 => "jax",
            Peers::Torch => "torch",
            Peers::TorchXla => "torch_xla",
            Peers::Numpy | Peers::None | Peers::All => "numpy",
        };
        let import = format!("import {module}");
        succeed(Command::new(python).args(["-c", &import]))?;
        return Ok(python.clone());
    }
    let (name, base, list) = requirements(group, options.device)?;
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
    succeed(Command::new(base).args(["-m", "venv"]).arg(&environment))?;
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
