//! Tests under the thread sanitizer and under the address and the leak sanitizer.
//!
//! Stable Rust has their runtimes but not the flag that selects one, so only these builds set
//! `RUSTC_BOOTSTRAP`. `std` itself is not instrumented, so builds for the thread sanitizer link
//! `ci/tsan_shim.c`, which tells it how `std` synchronizes.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::models::{self, Chosen};
use super::tally::Tally;
use crate::host::Host;

/// The packages with stress tests, and those that call a plugin.
const PACKAGES: &[&str] = &["fuseline-record", "fuseline-pjrt", "fuseline"];

/// Targets to build with the libraries, as arguments of cargo.
const TARGETS: &[&str] = &["--test", "pjrt", "--package", "fuseline-capi", "--test", "programs"];

/// A sanitizer, and the tests that run under it.
struct Sanitizer {
    /// Its name in compiler flags.
    name: &'static str,
    /// The variable that holds its options.
    variable: &'static str,
    /// Relative to the workspace.
    suppressions: &'static str,
    options: &'static str,
    /// More options for tests without a real plugin.
    test_options: &'static str,
    /// More options for programs in C, which load a real plugin. That is not instrumented.
    program_options: &'static str,
    tests: &'static [Chosen],
    shim: Option<&'static Shim>,
}

/// C code through which the linker passes calls of some functions.
struct Shim {
    /// Relative to the workspace.
    source: &'static str,
    /// Functions of the sanitizer's runtime.
    functions: &'static [&'static str],
    /// Functions of `std`: the macro that the source has for the name, and the end of the name.
    std_functions: &'static [(&'static str, &'static str)],
}

const TSAN_SHIM: Shim = Shim {
    source: "ci/tsan_shim.c",
    functions: &["__tsan_atomic64_fetch_sub", "__tsan_atomic_thread_fence"],
    std_functions: &[
        ("MUTEX_LOCK", "5futexNtB2_5Mutex14lock_contended"),
        ("RWLOCK_READ", "5futexNtB2_6RwLock14read_contended"),
        ("RWLOCK_WRITE", "5futexNtB2_6RwLock15write_contended"),
        ("CONDVAR_WAIT", "5futexNtB2_7Condvar4wait"),
        ("CONDVAR_WAIT_TIMEOUT", "5futexNtB2_7Condvar12wait_timeout"),
        ("ONCE_CALL", "4once5futexNtB5_4Once4call"),
    ],
};

const TSAN: Sanitizer = Sanitizer {
    name: "thread",
    variable: "TSAN_OPTIONS",
    suppressions: "ci/tsan.supp",
    options: "second_deadlock_stack=1",
    test_options: "",
    // No reports of what `memcpy`, `free` and the like do, because the sanitizer does not see how
    // XLA orders its calls of them. What compiled code of ours reads and writes is checked.
    program_options: ":ignore_noninstrumented_modules=1",
    tests: TESTS,
    shim: Some(&TSAN_SHIM),
};

/// Includes the leak sanitizer.
const ASAN: Sanitizer = Sanitizer {
    name: "address",
    variable: "LSAN_OPTIONS",
    suppressions: "ci/lsan.supp",
    options: "report_objects=1",
    // The stack of an allocation without gaps, by which it is suppressed. `std` has no frame
    // pointers.
    test_options: ":fast_unwind_on_malloc=0",
    program_options: "",
    tests: TESTS,
    shim: None,
};

/// Stress tests, misbehaving plugins, and programs on the C interface.
const TESTS: &[Chosen] = &[
    ("fuseline_record", "stress_"),
    ("fuseline", "stress_"),
    ("fuseline_pjrt", ""),
    ("pjrt", "fake"),
    ("pjrt", "callbacks"),
    ("pjrt", "faults"),
    ("pjrt", "orders"),
    ("pjrt", "tables"),
    ("programs", "the_whole_interface"),
    ("programs", "the_example"),
];

/// The cases of [`CONTROL`]: their names begin with what the thread sanitizer must do.
const CASES: [&str; 9] = [
    "quiet_arc",
    "quiet_mutex",
    "quiet_rwlock",
    "quiet_condvar",
    "quiet_condvar_timeout",
    "quiet_once",
    "race_in_a_drop_by_arc",
    "race_under_two_mutexes",
    "race_after_a_once",
];

/// A program with races and with correct code.
const CONTROL: &str = "tests/sanitizers/control.rs";

/// The target of which the tests build and run programs in C.
const PROGRAMS: &str = "programs";

/// Runs tests under the thread sanitizer.
pub(crate) fn tsan(host: &Host) -> Tally {
    run(host, &TSAN)
}

/// Runs tests under the address sanitizer.
pub(crate) fn asan(host: &Host) -> Tally {
    run(host, &ASAN)
}

/// Whether stable Rust has the sanitizers here.
pub(crate) fn has_sanitizers(host: &Host) -> bool {
    host.os == "linux" && host.arch == "x86_64" && cfg!(target_env = "gnu")
}

fn run(host: &Host, sanitizer: &Sanitizer) -> Tally {
    let name = sanitizer.name;
    if !has_sanitizers(host) {
        let platform = host.platform();
        let why = format!("no sanitizer for {platform}: Linux with glibc on x86_64 has one");
        return Tally::skipped(name, why);
    }
    let shim = match sanitizer.shim.map_or(Ok(Vec::new()), |shim| compile(host, shim)) {
        Ok(arguments) => arguments,
        Err(why) => return Tally::failed("shim", why),
    };
    // The tests' own plugin resolves the sanitizer's symbols in the program that loads it.
    let mut flags = vec![
        format!("-Zsanitizer={name}"),
        "-Clink-arg=-rdynamic".into(),
        "-Cunsafe-allow-abi-mismatch=sanitizer".into(),
    ];
    flags.extend(shim.iter().map(|argument| format!("-Clink-arg={argument}")));
    let suppressions = host.root.join(sanitizer.suppressions);
    let options = format!("suppressions=\"{}\":{}", suppressions.display(), sanitizer.options);
    let mut tally = Tally::default();
    if sanitizer.shim.is_some() {
        tally.add(&control(host, &flags, (sanitizer.variable, &options)));
    }
    // The C compiler links the C programs with its own runtime of the sanitizer.
    let compiler = format!("-fsanitize={name} {}", shim.join(" "));
    let test_options = format!("{options}{}", sanitizer.test_options);
    let program_options = format!("{options}{}", sanitizer.program_options);
    let (programs, others): (Vec<Chosen>, Vec<Chosen>) =
        sanitizer.tests.iter().partition(|(binary, _)| *binary == PROGRAMS);
    for (tests, options) in [(others, test_options), (programs, program_options)] {
        let command = models::test_build(host, PACKAGES, &flags, &[]).map(|mut command| {
            command.env("RUSTC_BOOTSTRAP", "1").args(TARGETS);
            command
        });
        let variables = [(sanitizer.variable, &*options), ("CFLAGS", &compiler), ("CXXFLAGS", &compiler)];
        tally.add(&models::run(host, &tests, command, &variables, models::LIMIT));
    }
    tally
}

/// Checks with a program of known races that the sanitizer reports them, and nothing else.
fn control(host: &Host, flags: &[String], options: (&str, &str)) -> Tally {
    let program = host.target_dir().join("xtask").join("sanitizer-control");
    let mut command = host.command("rustc");
    command.env("RUSTC_BOOTSTRAP", "1").args(["--edition", "2024", "-g"]).args(flags);
    if let Err(why) = succeed(command.arg(host.root.join(CONTROL)).arg("-o").arg(&program)) {
        return Tally::failed(CONTROL, why);
    }
    let mut tally = Tally::default();
    for case in CASES {
        let output = match host.command(&program).arg(case).env(options.0, options.1).output() {
            Ok(output) => output,
            Err(error) => return Tally::failed(CONTROL, error.to_string()),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let race = said.contains("WARNING: ThreadSanitizer: data race");
        if race == case.starts_with("race") && race != output.status.success() {
            println!("    PASS {case}");
            tally.pass();
        } else {
            println!("    FAIL {case}\n{said}");
            tally.fail(
                case,
                format!("{}, and a race is {}reported", output.status, if race { "" } else { "not " }),
            );
        }
    }
    tally
}

/// Compiles a shim. Returns the arguments that link it, for compilers that call the linker.
fn compile(host: &Host, shim: &Shim) -> Result<Vec<String>, String> {
    let source = host.root.join(shim.source);
    let text = fs::read(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    let std_functions = std_functions(host, shim)?;
    let mut command = host.command("cc");
    command.args(["-O2", "-fPIC", "-Wall", "-Wextra", "-c"]).arg(&source);
    command.args(std_functions.iter().map(|(name, symbol)| format!("-D{name}={symbol}")));
    // Cargo links anew only if an argument differs.
    let mut hasher = DefaultHasher::new();
    (&text, &std_functions).hash(&mut hasher);
    let folder = host.target_dir().join("xtask");
    let object = folder.join(format!("shim-{:016x}.o", hasher.finish()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    succeed(command.arg("-o").arg(&object))?;
    let symbols = std_functions.iter().map(|(_, symbol)| symbol.as_str());
    let wrap = shim.functions.iter().copied().chain(symbols).map(|symbol| format!("-Wl,--wrap={symbol}"));
    Ok(std::iter::once(object.display().to_string()).chain(wrap).collect())
}

/// The symbols of the functions of `std`, from its dynamic library.
fn std_functions(host: &Host, shim: &Shim) -> Result<Vec<(&'static str, String)>, String> {
    let sysroot = succeed(host.command("rustc").args(["--print", "sysroot"]))?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(models::triple(host)?).join("lib");
    let mut files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let is_std = |name: &str| name.starts_with("libstd-") && name.ends_with(".so");
    let library = files
        .find_map(|file| file.ok().map(|file| file.path()).filter(|path| is_std(&name(path))))
        .ok_or_else(|| format!("{} has no libstd-*.so", folder.display()))?;
    let symbols = succeed(host.command("nm").args(["--dynamic", "--defined-only"]).arg(library))?;
    shim.std_functions
        .iter()
        .map(|(name, end)| {
            let symbol = symbols.split_whitespace().find(|symbol| symbol.ends_with(end));
            let symbol =
                symbol.ok_or_else(|| format!("std has no function *{end}: {} needs one", shim.source))?;
            Ok((*name, symbol.to_owned()))
        })
        .collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What a command prints if it succeeds.
fn succeed(command: &mut Command) -> Result<String, String> {
    command.stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("could not start {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
