//! Concurrency checkers: loom and shuttle. [`super::sanitizers`] runs tests the same way.
//!
//! Each builds the libraries' tests in a configuration of its own. The name of a test assigns it to
//! a checker: `loom_*`, `shuttle_*`, `stress_*`.
//!
//! A loom model is explored with at most three preemptions of a thread per schedule
//! ([`PREEMPTIONS`]). These are not all schedules, but all bugs that need no more preemptions are
//! found.
//!
//! A model proves something only if it can fail. The code names its orderings,
//! `ordering!(Acquire, "NAME")`. In a loom build the variable `FUSELINE_WEAKEN` makes those of one
//! name `Relaxed`.
//! [`loom_weakened`] does so for every name, and some loom model must fail.
//!
//! The builds are kept cheap. The target is explicit, so compiler flags do not reach build scripts
//! and macros. These are built once and shared with the other stages, which use the same profile;
//! bindgen is the most expensive dependency. Everything else is separated by its flags within one
//! target folder, so switching between configurations rebuilds nothing (measured with cargo 1.95).
//! The profile has debug assertions, which are what the tests check.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::isolate::{self, Binary, Outcome, Test};
use super::tally::Tally;
use crate::host::Host;
use crate::time;

/// The time limit of one model or stress test.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// The number of preemptions in one schedule, unless the user sets another.
const PREEMPTIONS: (&str, &str) = ("LOOM_MAX_PREEMPTIONS", "3");

/// Tests of a binary whose names, or those of modules above them, begin with this.
pub(super) type Chosen = (&'static str, &'static str);

/// The packages with models for loom.
const LOOM_PACKAGES: &[&str] = &["fuseline-sync", "fuseline-record"];

/// The packages whose code is most of what a model executes. One model runs many thousand times.
const LOOM_OPTIMIZED: &[&str] = &["loom", "generator", "fuseline-sync", "fuseline-record"];

/// Shuttle's threads have stacks of 32 KiB, which is too little for these without optimization.
const SHUTTLE_OPTIMIZED: &[&str] =
    &["fuseline", "fuseline-runtime", "fuseline-record", "fuseline-sync", "shuttle-engine"];

/// Nobody needs the lines of a backtrace here: panics name theirs. Without them linking is faster.
/// As a setting of the profile it would rebuild the build scripts.
const NO_LINES: &str = "-Cdebuginfo=0";

/// Cargo strips a binary that is built without debug information, and with it the lines of `std`.
/// The thread sanitizer needs them to find the inlined functions that `ci/tsan.supp` names.
const KEEP_STD_LINES: &str = "-Cstrip=none";

/// The packages with scenarios for shuttle, which need the whole engine.
const SHUTTLE_PACKAGES: &[&str] = &["fuseline"];

/// The libraries whose orderings have names, and the folders of their sources.
const ORDERING_SOURCES: [(&str, &str); 2] =
    [("fuseline_sync", "sync/src"), ("fuseline_record", "record/src")];

/// The tests that loom explores.
const LOOM_TESTS: &[Chosen] = &[("fuseline_sync", "loom_"), ("fuseline_record", "loom_")];

/// Explores the schedules of the models.
pub(crate) fn loom(host: &Host) -> Tally {
    run(host, LOOM_TESTS, loom_build(host), &loom_vars(host), LIMIT)
}

/// Random schedules of larger scenarios.
pub(crate) fn shuttle(host: &Host) -> Tally {
    let flags = ["--cfg", "shuttle", NO_LINES].map(str::to_owned);
    let build = test_build(host, SHUTTLE_PACKAGES, &flags, SHUTTLE_OPTIMIZED);
    run(host, &[("fuseline", "shuttle_")], build, &[], LIMIT)
}

fn loom_build(host: &Host) -> Result<Command, String> {
    let flags = ["--cfg", "loom", NO_LINES].map(str::to_owned);
    test_build(host, LOOM_PACKAGES, &flags, LOOM_OPTIMIZED)
}

/// A command that builds the unit tests of packages with these compiler flags, and optimizes only
/// some packages.
pub(super) fn test_build(
    host: &Host,
    packages: &[&str],
    flags: &[String],
    optimized: &[&str],
) -> Result<Command, String> {
    let mut command = host.cargo();
    let given = host.var("RUSTFLAGS").map(|given| given.display().to_string()).unwrap_or_default();
    let given = given.split_whitespace().map(str::to_owned);
    let flags: Vec<String> = given.chain(flags.iter().cloned()).chain([KEEP_STD_LINES.to_owned()]).collect();
    // As opposed to RUSTFLAGS, it allows spaces in paths.
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // Each configuration compiles everything anew, which takes longer than the tests.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    command.args(["test", "--no-run", "--target", &triple(host)?, "--locked"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    command.args(["--lib", "--no-default-features", "--message-format=json-render-diagnostics"]);
    for package in optimized {
        command.args(["--config", &format!("profile.dev.package.{package}.opt-level=1")]);
    }
    Ok(command)
}

/// The machine's target triple.
pub(crate) fn triple(host: &Host) -> Result<String, String> {
    let output = host
        .command("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("could not start rustc: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let triple = said.lines().find_map(|line| line.strip_prefix("host: "));
    triple.map(str::to_owned).ok_or_else(|| "rustc does not print its host".to_owned())
}

fn loom_vars<'a>(host: &Host) -> Vec<(&'a str, &'a str)> {
    if host.var(PREEMPTIONS.0).is_some() { Vec::new() } else { vec![PREEMPTIONS] }
}

/// Builds test binaries, and runs the chosen tests of them with these variables.
pub(super) fn run(
    host: &Host,
    chosen: &[Chosen],
    command: Result<Command, String>,
    vars: &[(&str, &str)],
    limit: Duration,
) -> Tally {
    let start = Instant::now();
    match command.and_then(isolate::build) {
        Err(why) => Tally::failed("build", why),
        Ok(binaries) => {
            println!("built in {}", time::human(start.elapsed()));
            let mut tally = Tally::default();
            for (name, prefix) in chosen {
                let named: Vec<Binary> =
                    binaries.iter().filter(|binary| binary.name == *name).cloned().collect();
                let ran = isolate::run_all(host, &named, prefix, limit, vars);
                if ran == Tally::default() {
                    tally.fail(format!("{name} {prefix}*"), "there is no such test");
                }
                tally.add(&ran);
            }
            tally
        }
    }
}

/// Weakens each named ordering in turn; some loom model must fail.
pub(crate) fn loom_weakened(host: &Host) -> Tally {
    let mut named = BTreeMap::new();
    for (library, folder) in ORDERING_SOURCES {
        let here = match named_orderings(&host.root.join(folder)) {
            Ok(here) => here,
            Err(error) => return Tally::failed(folder, format!("could not be read: {error}")),
        };
        if here.is_empty() {
            return Tally::failed("orderings", format!("{folder} names no ordering"));
        }
        for (name, module) in here {
            named.entry(name).or_insert((library, module));
        }
    }
    let binaries = match loom_build(host).and_then(isolate::build) {
        Ok(binaries) if binaries.is_empty() => return Tally::failed("build", "there is no test binary"),
        Ok(binaries) => binaries,
        Err(why) => return Tally::failed("build", why),
    };
    let mut models = Vec::new();
    for binary in binaries {
        match isolate::list(host, &binary, "loom_") {
            Ok(mut tests) => {
                tests.retain(|test| !test.ignored);
                models.push((binary, tests));
            }
            Err(why) => return Tally::failed("list", why),
        }
    }
    let mut tally = Tally::default();
    // If a build with any name at all made models fail, it would seem to catch everything. One
    // preemption is enough here.
    let control = weakened(host, &models, &[("FUSELINE_WEAKEN", "no ordering's name"), (PREEMPTIONS.0, "1")]);
    match control {
        Ok(failed) => {
            return Tally::failed("control", format!("{failed} fails although nothing is weakened"));
        }
        Err(_) => tally.pass(),
    }
    for (name, (library, module)) in named {
        models.sort_by_key(|(binary, _)| binary.name != library);
        models.iter_mut().for_each(|(_, tests)| nearest_first(tests, &module));
        let start = Instant::now();
        let mut vars = loom_vars(host);
        vars.push(("FUSELINE_WEAKEN", &name));
        let result = weakened(host, &models, &vars);
        let took = time::human(start.elapsed());
        match result {
            Ok(caught_by) => {
                println!("  CAUGHT [{took:>10}] {name} by {caught_by}");
                tally.pass();
            }
            Err(why) => {
                println!("  MISSED [{took:>10}] {name}: {why}");
                tally.fail(name, why);
            }
        }
    }
    tally
}

/// Runs models with one ordering weakened by `vars` until one fails. Returns its name, or why none
/// did.
fn weakened(host: &Host, models: &[(Binary, Vec<Test>)], vars: &[(&str, &str)]) -> Result<String, String> {
    let mut caught_by = None;
    let mut undecided = Vec::new();
    for (binary, tests) in models {
        if caught_by.is_some() {
            break;
        }
        isolate::run(host, binary, tests, LIMIT, vars, |test, outcome, _| {
            match outcome {
                Outcome::Failed { .. } => caught_by = Some(test.name.clone()),
                Outcome::TimedOut { .. } => undecided.push(test.name.clone()),
                Outcome::Passed | Outcome::Skipped(_) => {}
            }
            caught_by.is_none()
        })
        .map_err(|error| format!("could not run the models: {error}"))?;
    }
    let count: usize = models.iter().map(|(_, tests)| tests.len()).sum();
    match (caught_by, undecided.is_empty()) {
        (Some(test), _) => Ok(test),
        (None, true) => Err(format!("none of {count} models failed")),
        (None, false) => Err(format!("no model failed, and these timed out: {}", undecided.join(", "))),
    }
}

/// Sorts models by the distance of their module to that of the ordering: a near one is most likely
/// to fail.
fn nearest_first(tests: &mut [Test], module: &str) {
    tests.sort_by_key(|test| {
        let common = test.name.split("::").zip(module.split("::")).take_while(|(a, b)| a == b).count();
        std::cmp::Reverse(common)
    });
}

/// The names of orderings in the code, each with the module of the first file that has it.
fn named_orderings(src: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![src.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                for name in names_in(&fs::read_to_string(&path)?) {
                    found.entry(name).or_insert_with(|| module(path.strip_prefix(src).unwrap_or(&path)));
                }
            }
        }
    }
    Ok(found)
}

/// The names in `ordering!(Acquire, "NAME")`, except in comments and in the macro's own definition.
fn names_in(code: &str) -> Vec<String> {
    let lines: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let code = lines.join("\n");
    code.split("ordering!")
        .skip(1)
        .filter_map(|rest| {
            let (_, value) = rest.trim_start().strip_prefix('(')?.split_once(')')?.0.split_once(',')?;
            let name = value.trim().trim_end_matches(',').trim_end();
            name.strip_prefix('"')?.strip_suffix('"').map(str::to_owned)
        })
        .collect()
}

/// The module path of a source file: `record::slab` for `record/slab.rs`, `record` for
/// `record/mod.rs`.
fn module(file: &Path) -> String {
    let path = file.with_extension("");
    let parts: Vec<_> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    match parts.split_last() {
        Some((last, rest)) if last == "mod" || last == "lib" => rest.join("::"),
        _ => parts.join("::"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_orderings_are_found() {
        let code = r#"
            // `ordering!(Acquire, "comment")` is how one is named
            macro_rules! ordering { ($ordering:ident, $name:literal) => { weakened($name) } }
            let before = state.swap(1, ordering!(Release, "publish"));
            let other = state.load(Ordering::Acquire);
            state.compare_exchange(0, 1, ordering!(AcqRel, "seal"), ordering!(
                Acquire,
                "lost",
            ));"#;
        assert_eq!(names_in(code), ["publish", "seal", "lost"]);
    }

    #[test]
    fn files_are_read_with_their_modules() {
        let src = tempfile::tempdir().expect("a scratch folder");
        fs::create_dir_all(src.path().join("record")).expect("a folder");
        for (file, name) in
            [("lib.rs", "a"), ("record/mod.rs", "b"), ("record/slab.rs", "c"), ("record/notes.md", "d")]
        {
            fs::write(src.path().join(file), format!("ordering!(Release, \"{name}\")")).expect("write");
        }
        let found = named_orderings(src.path()).expect("readable");
        let expected = [("a", ""), ("b", "record"), ("c", "record::slab")];
        assert_eq!(found, expected.map(|(name, module)| (name.to_owned(), module.to_owned())).into());
    }

    #[test]
    fn the_models_beside_a_weakening_run_first() {
        let test = |name: &str| Test { name: name.to_owned(), ignored: false };
        let mut tests = [
            test("result::state::tests::loom_a"),
            test("record::tests::loom_b"),
            test("record::slab::loom_c"),
        ];
        nearest_first(&mut tests, "record::slab");
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["record::slab::loom_c", "record::tests::loom_b", "result::state::tests::loom_a"]);
    }
}
