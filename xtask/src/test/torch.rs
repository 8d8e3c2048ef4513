//! PyTorch's device: the wheel of `torch/`, built for a PyTorch of the registry and installed as a
//! user would, and its tests.
//!
//! PyTorch goes into a virtual environment below `target/`, by hashes
//! (`torch/tests/requirements.txt`), without the CUDA libraries that it loads and does not use
//! (`torch/tests/cuda_stubs.py`): half a gigabyte, fetched once. The engine's side is taken from
//! the build of the other stages. `FUSELINE_TORCH_OLDER=1` does the same for an older PyTorch, with
//! part of the tests. Skipped where something is missing that set-up does not provide: a C++
//! compiler, a Python with `venv`, the network. Any other failure to install it is one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::tally::Tally;
use crate::host::Host;

/// A PyTorch to build for and to test with.
struct Version {
    /// What is installed, below `torch/tests/`.
    requirements: &'static str,
    /// Where, below the target directory.
    folder: &'static str,
}

const NEWEST: Version = Version { requirements: "requirements.txt", folder: "torch-tests" };

/// Half a gigabyte and some minutes more, so only where it is asked for.
const OLDER: Version = Version { requirements: "requirements-2.14.txt", folder: "torch-tests-2.14" };

/// Modules of tests that it passes.
const OLDER_MODULES: &[&str] = &["test_device", "test_programs", "test_compile"];

/// Asks for the older one.
const ASK_OLDER: &str = "FUSELINE_TORCH_OLDER";

/// A variable for the tests, and its value.
pub(crate) type Variable = (&'static str, &'static str);

/// Has the engine compile each region at its first execution. Without it, a test whose regions run
/// once exercises only the interpreter.
pub(crate) const COMPILED: Variable = ("FUSELINE_TORCH_INTERPRET_COLD", "0");

/// Modules that are run a second time without the interpreter. `cargo xtask test full` runs all.
const COMPILED_MODULES: &[&str] =
    &["test_device", "test_module", "test_optimizers", "test_programs", "test_refusals"];

/// Builds, installs and tests it.
pub(crate) fn run(host: &Host) -> Tally {
    run_modules(host, &[(&[], &[]), (COMPILED_MODULES, &[COMPILED])])
}

/// Builds and installs it, and runs modules of tests (all if none is named), each time with
/// variables of their own.
pub(crate) fn run_modules(host: &Host, runs: &[(&[&str], &[Variable])]) -> Tally {
    if host.which("c++").is_none() {
        return Tally::skipped("torch", "no C++ compiler (`c++`) to build the shim with");
    }
    let Some(python) = host.which("python3") else {
        return Tally::skipped("torch", "no python3");
    };
    let mut tally = one(host, &python, &NEWEST, runs);
    if std::env::var_os(ASK_OLDER).is_some() {
        tally.add(&one(host, &python, &OLDER, &[(OLDER_MODULES, &[])]));
    }
    tally
}

fn one(host: &Host, python: &Path, version: &Version, runs: &[(&[&str], &[Variable])]) -> Tally {
    let environment = host.target_dir().join(version.folder);
    if let Err(why) = provide(host, python, &environment, version.requirements) {
        // What is missing is a reason to skip, and anything else is not: who judges skips tells.
        return if why.starts_with("no ") {
            Tally::skipped("torch", why)
        } else {
            Tally::failed("torch", why)
        };
    }
    if let Err(why) = install(host, python, &environment) {
        return Tally::failed("pip install ./torch", why);
    }
    let mut tally = Tally::default();
    for (modules, variables) in runs {
        tally.add(&test(host, &environment, modules, variables));
    }
    tally
}

/// PyTorch, unless what is pinned is there. The error of what this machine lacks begins with `no`.
fn provide(host: &Host, python: &Path, environment: &Path, requirements: &str) -> Result<(), String> {
    let requirements = host.root.join("torch/tests").join(requirements);
    let wanted = std::fs::read_to_string(&requirements)
        .map_err(|error| format!("{}: {error}", requirements.display()))?;
    let stamp = environment.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("installing PyTorch into {}", environment.display());
    for (name, arguments) in [("pip", &["-m", "pip", "--version"][..]), ("venv", &["-c", "import venv"])] {
        succeed(host.command(python).args(arguments)).map_err(|why| format!("no {name}: {why}"))?;
    }
    // Debian's Python has no pip of its own to put there.
    succeed(host.command(python).args(["-m", "venv", "--clear", "--without-pip"]).arg(environment))?;
    let mut command = pip(host, python, environment);
    command.args(["--no-deps", "--require-hashes", "-r"]).arg(&requirements).stderr(Stdio::piped());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    if !output.status.success() {
        let what = if crate::setup::is_without_network(&said) { "no network: " } else { "" };
        return Err(format!("{what}this ended with {}: {command:?}", output.status));
    }
    succeed(host.command(interpreter(environment)).arg(host.root.join("torch/tests/cuda_stubs.py")))?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// The wheel.
fn install(host: &Host, python: &Path, environment: &Path) -> Result<(), String> {
    let mut command = pip(host, python, environment);
    command.args(["--no-deps", "--no-build-isolation", "--force-reinstall"]).arg(host.root.join("torch"));
    succeed(command.env("FUSELINE_TORCH_PROFILE", "dev"))
}

fn test(host: &Host, environment: &Path, modules: &[&str], variables: &[Variable]) -> Tally {
    let mut command = host.command(interpreter(environment));
    command
        .arg(host.root.join("torch/tests/run.py"))
        .args(modules)
        .env("FUSELINE_SETUP_DIR", host.setup_dir());
    // Not the user's; and XLA's own lines are no words of a test.
    command.env("FUSELINE_CACHE", "off").env("GLOG_minloglevel", "2");
    command.envs(variables.iter().copied());
    let output = match command.stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(error) => return Tally::failed("torch/tests", error.to_string()),
    };
    let mut tally = Tally::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(told) = serde_json::from_str::<Value>(line) else {
            println!("{line}");
            continue;
        };
        let word = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        println!("{} torch {}", word("outcome").to_uppercase(), word("name"));
        match word("outcome").as_str() {
            "passed" => tally.pass(),
            "skipped" => tally.skip(word("name"), word("why")),
            _ => tally.fail(word("name"), word("why")),
        }
    }
    if tally == Tally::default() {
        tally.fail("torch/tests", format!("no test was run, {}", output.status));
    } else if !output.status.success() && tally.failed.is_empty() {
        tally.fail("torch/tests", format!("the run ended with {}", output.status));
    }
    tally
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

/// `pip install` into the environment.
fn pip(host: &Host, python: &Path, environment: &Path) -> Command {
    let mut command = host.command(python);
    command.args(["-m", "pip", "--python"]).arg(interpreter(environment));
    command.args(["install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "-q"]);
    command
}

/// Runs a command that says itself what it does.
fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("this ended with {status}: {command:?}")) }
}
