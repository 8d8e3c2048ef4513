//! Third-party StableHLO cases through the whole engine, recorded op by op.
//!
//! The cases are in `../shared/conformance/cases`, or in `FUSELINE_CONFORMANCE`. Each runs on the
//! reference interpreter and on the plugin that is found. On the plugin, most cases run in Fused
//! mode with others in one region. One in [`ALONE`] runs by itself, in Fused, Strict and Debug
//! mode. `cargo xtask test full` runs each by itself in every mode. A case is skipped if it cannot
//! be read because the op table lacks an op or an element type, and the reason is counted. Any
//! other unexpected result fails the test, except for the cases in `KNOWN` and those that
//! `qualify/src/conformance.rs` lists, each with its reason. A folder without a passing case fails
//! the test too, and so does one with fewer cases than before.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuseline::fusion::program::{Check, Program};
use fuseline::{Engine, Mode, Tensor, with_mode};
use fuseline_qualify::conformance::{self, Reordered};

use crate::support::{self, check_program, plugin_for};

const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

/// The number of cases in one region: most of a small compile is a fixed cost.
const TOGETHER: usize = 16;

/// One case in this many runs alone, in every mode.
const ALONE: usize = 8;

/// The minimum number of passing cases beside the workspace.
const LEAST: usize = 1_900;

/// Cases that the reference device need not pass, by name, each with the reason. The plugin must.
const KNOWN: &[(&str, &str)] = &[
    (
        "pow_complex64_20_30_complex64_20_30",
        "expects powers computed in f32, off by 4e-6 of themselves, to an absolute 1e-3; the reference device has f64",
    ),
    (
        "cumprod_complex64_8_9",
        "expects products of f32 parts that are each rounded, to an absolute 1e-3; the reference device rounds once",
    ),
];

/// The folder of the cases, and the minimum number of passing ones.
fn cases() -> Option<(PathBuf, usize)> {
    let (path, least) = match std::env::var_os("FUSELINE_CONFORMANCE") {
        Some(path) => (PathBuf::from(path), 1),
        None => (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/cases"), LEAST),
    };
    path.is_dir().then_some((path, least))
}

/// Checks a case on the plugin, with the allowances of [`conformance`]. Returns
/// whether it needed one.
fn on_device(device: &Engine, name: &str, program: &Arc<Program>) -> Result<bool, String> {
    if let Some(difference) = conformance::subnormal_difference(name) {
        let is_only = |outcome: &Result<(), String>| {
            outcome.as_ref().map_or_else(|error| error.ends_with(difference), |()| true)
        };
        let outcomes = MODES.map(|mode| check_program(device, program, &[mode]));
        let needed = outcomes.iter().any(Result::is_err);
        let unexpected = outcomes.into_iter().find(|outcome| !is_only(outcome));
        return unexpected.unwrap_or(Ok(())).map(|()| needed);
    }
    let outcome = check_program(device, program, &MODES);
    let (Err(error), Some(Reordered { largest, why, .. })) = (&outcome, conformance::reordered(device, name))
    else {
        return outcome.map(|()| false);
    };
    println!("{name}: {error}; within {largest:e} it may: {why}");
    let mut program = Program::clone(program);
    program.checks.fill(Check::almost(*largest).expect("it is a distance"));
    check_program(device, &Arc::new(program), &MODES).map(|()| true)
}

/// A parsed case.
struct Case {
    name: String,
    program: Arc<Program>,
}

impl Case {
    /// Why the reference device need not pass it.
    fn known(&self) -> Option<&'static str> {
        KNOWN.iter().find(|(known, _)| self.name == *known).map(|&(_, reason)| reason)
    }

    /// Whether the plugin may return another result than the expected one.
    fn may_differ(&self) -> bool {
        conformance::may_differ(&self.name)
    }
}

/// Whether the interpreter computes a case correctly, rather than only as [`KNOWN`] allows.
fn on_reference(reference: &Engine, case: &Case) -> Result<bool, String> {
    match (check_program(reference, &case.program, &[Mode::Fused]), case.known()) {
        (Ok(()), Some(reason)) => {
            Err(format!("the reference device passes, but is listed as known ({reason})"))
        }
        (Err(error), None) => Err(format!("reference {error}")),
        (_, known) => Ok(known.is_none()),
    }
}

/// Whether cases that are recorded together and read afterwards all have the expected results.
fn agree_in_one_region(device: &Engine, cases: &[&Case]) -> bool {
    let run = || -> fuseline::Result<bool> {
        let prepare = |case: &&Case| device.prepare(case.program.clone());
        let prepared = cases.iter().map(prepare).collect::<fuseline::Result<Vec<_>>>()?;
        let outputs = prepared.iter().map(|one| one.run()).collect::<fuseline::Result<Vec<_>>>()?;
        for (prepared, outputs) in prepared.iter().zip(&outputs) {
            let results = outputs.iter().map(Tensor::to_literal).collect::<fuseline::Result<Vec<_>>>()?;
            if prepared.compare(&results).is_some_and(|mismatches| !mismatches.is_empty()) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    with_mode(Mode::Fused, run).unwrap_or(false)
}

/// The outcome of each case on the plugin: whether it needed no allowance. If a region fails, its
/// cases run alone, which shows which of them fails and how.
///
/// # Panics
/// If more regions fail than cases do alone: then recording them together changes results.
fn on_plugin(device: &Engine, cases: &[Case], all_alone: bool) -> Vec<Result<bool, String>> {
    // Prints names in advance, to find a case that crashes the process.
    let verbose = std::env::var_os("FUSELINE_VERBOSE").is_some();
    let tell = |case: &Case| verbose.then(|| println!("{}", case.name));
    let alone = |case: &Case| {
        tell(case);
        on_device(device, &case.name, &case.program).map(|needed| !needed)
    };
    let mut verdicts: Vec<Result<bool, String>> = vec![Ok(true); cases.len()];
    let mut rest = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        if all_alone || index % ALONE == 0 || case.may_differ() {
            verdicts[index] = alone(case);
        } else {
            rest.push(index);
        }
    }
    let mut regions_apart = 0;
    for region in rest.chunks(TOGETHER) {
        let together: Vec<&Case> = region.iter().map(|&index| &cases[index]).collect();
        together.iter().for_each(|case| _ = tell(case));
        if !agree_in_one_region(device, &together) {
            regions_apart += 1;
            region.iter().for_each(|&index| verdicts[index] = alone(&cases[index]));
        }
    }
    let failures: Vec<&String> = verdicts.iter().filter_map(|verdict| verdict.as_ref().err()).collect();
    assert!(
        regions_apart <= failures.len(),
        "{regions_apart} regions disagree, and alone only these cases: {failures:?}"
    );
    verdicts
}

#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: usize,
    known: usize,
    failed: usize,
}

/// The cases of a folder whose names contain `only`, and the number of unreadable ones by reason.
fn read(dir: &Path, only: Option<&str>) -> (Vec<Case>, BTreeMap<String, usize>) {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("the directory of cases can be read")
        .map(|entry| entry.expect("an entry of it can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    let (mut cases, mut skips) = (Vec::new(), BTreeMap::new());
    let part = support::part();
    for path in paths.into_iter().enumerate().filter_map(|(place, path)| part.has(place).then_some(path)) {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a case can be read");
        match Program::parse(&text) {
            Ok(program) => cases.push(Case { name, program: Arc::new(program) }),
            Err(error) => match error.unsupported() {
                Some(reason) => *skips.entry(reason).or_default() += 1,
                None => panic!("{name}: {error}"),
            },
        }
    }
    (cases, skips)
}

/// Runs the cases on the interpreter, and on the plugin if there is one. Prints the counts by
/// class.
fn run(all_alone: bool) {
    let Some((dir, least)) = cases() else {
        println!("skipped: no conformance cases (set FUSELINE_CONFORMANCE to their directory)");
        return;
    };
    // The interpreter tier would run what the reference engine runs already.
    let device = plugin_for("the device half of the conformance cases", support::optimized_only());
    let reference = Engine::reference();
    let only = std::env::var("FUSELINE_CASE").ok();
    let (cases, skips) = read(&dir, only.as_deref());
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    tallies.entry("(not read)".to_owned()).or_default().skipped = skips.values().sum();
    let mut failures = Vec::new();
    let verdicts = match &device {
        Some(device) => on_plugin(device, &cases, all_alone),
        None => vec![Ok(true); cases.len()],
    };
    for (case, verdict) in cases.iter().zip(verdicts) {
        let tally = tallies.entry(case.program.class.clone()).or_default();
        let as_expected = |reference: bool| verdict.map(|plugin| reference && plugin);
        match on_reference(&reference, case).and_then(as_expected) {
            Ok(true) => tally.passed += 1,
            Ok(false) => tally.known += 1,
            Err(error) => {
                tally.failed += 1;
                failures.push(format!("{}: {error}", case.name));
            }
        }
    }
    let total = print_tallies(&tallies);
    for (reason, count) in &skips {
        println!("not in the table yet: {reason} ({count} cases)");
    }
    for (name, reason) in KNOWN {
        println!("known: {name}: {reason}");
    }
    if let Some(engine) = &device {
        println!("{:?}", engine.counters());
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let is_whole = only.is_none() && std::env::var_os("FUSELINE_PART").is_none();
    let least = if is_whole { least } else { 1 };
    let held = total.passed + total.known;
    assert!(held >= least, "{held} cases passed, and at least {least} are in {}", dir.display());
    println!("figures: {held} cases, {} of them as an exception says", total.known);
}

/// Prints a line for each class, and one for the total, which it returns.
fn print_tallies(tallies: &BTreeMap<String, Tally>) -> Tally {
    println!("{:22} {:>6} {:>7} {:>6} {:>6}", "class", "passed", "skipped", "known", "failed");
    let mut total = Tally::default();
    for (class, tally) in tallies {
        tally.print(class);
        total.passed += tally.passed;
        total.skipped += tally.skipped;
        total.known += tally.known;
        total.failed += tally.failed;
    }
    total.print("all");
    total
}

impl Tally {
    fn print(&self, class: &str) {
        println!("{class:22} {:>6} {:>7} {:>6} {:>6}", self.passed, self.skipped, self.known, self.failed);
    }
}

#[test]
fn conformance() {
    run(false);
}

#[test]
#[ignore = "exhaustive: `cargo xtask test full`"]
fn full_every_case_alone_in_every_mode() {
    run(true);
}
