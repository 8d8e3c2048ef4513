//! PyTorch's device: builds the wheel of `torch/` for a PyTorch from the registry, installs it as a
//! user would, and runs its tests.
//!
//! PyTorch is installed into a virtual environment below `target/`, with hashes
//! (`torch/tests/requirements.txt`), and without the CUDA libraries that it loads but does not use
//! (`torch/tests/cuda_stubs.py`): half a gigabyte, fetched once. The engine comes from the build of
//! the other stages. `FUSELINE_TORCH_OLDER=1` does the same for an older PyTorch, with part of the
//! tests. The stage is skipped if something is missing that set-up does not provide: a C++
//! compiler, a Python with `venv`, the network. Other installation errors are failures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::tally::Tally;
use crate::host::Host;

/// A PyTorch version to build and test with.
struct Version {
    /// The requirements file, below `torch/tests/`.
    requirements: &'static str,
    /// The folder of the environment, below the target folder.
    folder: &'static str,
}

const NEWEST: Version = Version { requirements: "requirements.txt", folder: "torch-tests" };

/// It costs half a gigabyte and some minutes more, so it runs on request only.
const OLDER: Version = Version { requirements: "requirements-2.14.txt", folder: "torch-tests-2.14" };

/// The test modules that it passes.
const OLDER_MODULES: &[&str] = &["test_device", "test_programs", "test_compile"];

/// The variable that requests the older version.
const OLDER_VARIABLE: &str = "FUSELINE_TORCH_OLDER";

/// A variable of the tests, and its value.
pub(crate) type Variable = (&'static str, &'static str);

/// Makes the engine compile each region at its first execution. Without it, a test whose regions
/// run once exercises only the interpreter.
pub(crate) const COMPILED: Variable = ("FUSELINE_TORCH_INTERPRET_COLD", "0");

/// Modules that run a second time without the interpreter. `cargo xtask test full` runs all.
const COMPILED_MODULES: &[&str] = &["test_optimizers", "test_programs"];

/// How the stage builds the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    Plain,
    /// With the address sanitizer.
    ///
    /// Only the shim is instrumented. The sanitizer's runtime is loaded before Python, so it also
    /// checks the heap of the whole process. It does not look for leaks, because Python and XLA
    /// keep memory until the process ends.
    Sanitized,
}

/// The C++ compiler of [`Build::Sanitized`].
const SANITIZED_COMPILER: &str = "c++ -fsanitize=address -fno-omit-frame-pointer -g1";

/// Builds, installs and tests the wheel.
pub(crate) fn run(host: &Host) -> Tally {
    run_modules(host, Build::Plain, &[(&[], &[]), (COMPILED_MODULES, &[COMPILED])])
}

/// Builds and installs the wheel, and runs test modules (all if none is named), each time with
/// these variables.
pub(crate) fn run_modules(host: &Host, build: Build, runs: &[(&[&str], &[Variable])]) -> Tally {
    if host.which("c++").is_none() {
        return Tally::skipped("torch", "no C++ compiler (`c++`) to build the shim with");
    }
    let Some(python) = host.which("python3") else {
        return Tally::skipped("torch", "no python3");
    };
    let mut tally = one(host, &python, &NEWEST, build, runs);
    if std::env::var_os(OLDER_VARIABLE).is_some() {
        tally.add(&one(host, &python, &OLDER, build, &[(OLDER_MODULES, &[])]));
    }
    tally
}

fn one(
    host: &Host,
    python: &Path,
    version: &Version,
    build: Build,
    runs: &[(&[&str], &[Variable])],
) -> Tally {
    let environment = host.target_dir().join(version.folder);
    if let Err(why) = provide(host, python, &environment, version.requirements) {
        // Only a missing prerequisite is a reason to skip; `prerequisites` checks it.
        return if why.starts_with("no ") {
            Tally::skipped("torch", why)
        } else {
            Tally::failed("torch", why)
        };
    }
    if let Err(why) = install(host, python, &environment, build) {
        return Tally::failed("pip install ./torch", why);
    }
    let sanitizer = match build {
        Build::Plain => Vec::new(),
        Build::Sanitized => match sanitizer_variables(host) {
            Ok(variables) => variables,
            Err(why) => return Tally::failed("torch", why),
        },
    };
    let jobs = match jobs(host, runs) {
        Ok(jobs) => jobs,
        Err(why) => return Tally::failed("torch/tests", why),
    };
    run_jobs(host, &environment, &sanitizer, &jobs)
}

/// The variables that load the sanitizer's runtime before Python.
fn sanitizer_variables(host: &Host) -> Result<Vec<(&'static str, String)>, String> {
    let path_of = |name: &str| {
        let mut command = host.command("c++");
        let output = command.arg(format!("-print-file-name={name}")).output();
        let output = output.map_err(|error| format!("c++: {error}"))?;
        let library = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // The compiler prints the bare name of a file that it does not find.
        if !Path::new(&library).is_absolute() {
            return Err(format!("the C++ compiler has no {name}"));
        }
        Ok(library)
    };
    // The sanitizer looks up `__cxa_throw` when it starts, and Python does not load libstdc++.
    let libraries = format!("{} {}", path_of("libasan.so")?, path_of("libstdc++.so.6")?);
    Ok(vec![("LD_PRELOAD", libraries), ("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1".into())])
}

/// A test module, and the variables of its process.
type Job<'a> = (String, &'a [Variable]);

/// The modules that take longest, in order. They start first, so that no core is idle at the end.
const LONGEST: &[&str] =
    &["test_opinfo", "test_vendor", "test_protocol", "test_edges", "test_replicas", "test_models"];

/// The jobs of these runs, the longest first.
fn jobs<'a>(host: &Host, runs: &[(&[&str], &'a [Variable])]) -> Result<Vec<Job<'a>>, String> {
    let folder = host.root.join("torch/tests");
    let mut all_modules: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let name = entry.map_err(|error| error.to_string())?.file_name();
        let name = name.to_string_lossy();
        all_modules
            .extend(name.strip_suffix(".py").filter(|name| name.starts_with("test_")).map(str::to_owned));
    }
    all_modules.sort();
    let mut jobs = Vec::new();
    for &(modules, variables) in runs {
        let named: Vec<String> = modules.iter().map(|&module| module.to_owned()).collect();
        let modules = if named.is_empty() { &all_modules } else { &named };
        jobs.extend(modules.iter().map(|module| (module.clone(), variables)));
    }
    jobs.sort_by_key(|(module, _)| LONGEST.iter().position(|long| long == module).unwrap_or(LONGEST.len()));
    Ok(jobs)
}

/// Runs two jobs at once. Each has one busy thread most of the time, and the memory of a CI machine
/// is for two.
fn run_jobs(
    host: &Host,
    environment: &Path,
    sanitizer: &[(&'static str, String)],
    jobs: &[Job<'_>],
) -> Tally {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut tally = Tally::default();
        while let Some((module, variables)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let mut command = module_command(host, environment, module, variables);
            command.envs(sanitizer.iter().map(|(name, value)| (name, value)));
            let (module_tally, text) = tally_of(module, command.output());
            // At once, because the other thread prints too.
            println!("{text}torch {module}: {} in {:.0?}", module_tally.counts(), start.elapsed());
            tally.add(&module_tally);
        }
        tally
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut tally = work();
        match other.join() {
            Ok(other_tally) => tally.add(&other_tally),
            Err(_) => tally.fail("torch/tests", "the thread that runs modules panicked"),
        }
        tally
    })
}

/// Installs PyTorch unless the pinned version is there. If this machine lacks a prerequisite, the
/// error begins with `no`.
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
    // Debian's Python has no pip that it could install there.
    succeed(host.command(python).args(["-m", "venv", "--clear", "--without-pip"]).arg(environment))?;
    let mut command = pip(host, python, environment);
    command.args(["--no-deps", "--require-hashes", "-r"]).arg(&requirements).stderr(Stdio::piped());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    if !output.status.success() {
        let what = if crate::setup::is_without_network(&said) { "no network: " } else { "" };
        return Err(format!("{what}the command ended with {}: {command:?}", output.status));
    }
    succeed(host.command(interpreter(environment)).arg(host.root.join("torch/tests/cuda_stubs.py")))?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Builds and installs the wheel.
fn install(host: &Host, python: &Path, environment: &Path, build: Build) -> Result<(), String> {
    let mut command = pip(host, python, environment);
    command.args(["--no-deps", "--no-build-isolation", "--force-reinstall"]).arg(host.root.join("torch"));
    if build == Build::Sanitized {
        command.env("CXX", SANITIZED_COMPILER);
    }
    succeed(command.env("FUSELINE_TORCH_PROFILE", "dev"))
}

fn module_command(host: &Host, environment: &Path, module: &str, variables: &[Variable]) -> Command {
    let mut command = host.command(interpreter(environment));
    command.arg(host.root.join("torch/tests/run.py")).arg(module).env("FUSELINE_SETUP_DIR", host.setup_dir());
    // Not the user's cache; and XLA's own log lines must not mix with the tests' output.
    command.env("FUSELINE_CACHE", "off").env("GLOG_minloglevel", "2");
    command.envs(variables.iter().copied()).stderr(Stdio::inherit());
    command
}

/// Counts the outcomes of a module's tests, and returns them as text too.
fn tally_of(module: &str, output: std::io::Result<Output>) -> (Tally, String) {
    let output = match output {
        Ok(output) => output,
        Err(error) => return (Tally::failed(module, error.to_string()), String::new()),
    };
    let (mut tally, mut text) = (Tally::default(), String::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(told) = serde_json::from_str::<Value>(line) else {
            text += &format!("{line}\n");
            continue;
        };
        let word = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        text += &format!("{} torch {}\n", word("outcome").to_uppercase(), word("name"));
        match word("outcome").as_str() {
            "passed" => tally.pass(),
            "skipped" => tally.skip(word("name"), word("why")),
            _ => tally.fail(word("name"), word("why")),
        }
    }
    if tally == Tally::default() {
        tally.fail(module, format!("no test was run, {}", output.status));
    } else if !output.status.success() && tally.failed.is_empty() {
        tally.fail(module, format!("the run ended with {}", output.status));
    }
    (tally, text)
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

/// Runs a command that prints its own progress.
fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the command ended with {status}: {command:?}")) }
}
