//! Third-party StableHLO cases through the whole engine: recorded op by op, in all three modes.
//!
//! The cases lie in `../shared/conformance/cases`, or where `FUSELINE_CONFORMANCE` says. Each is
//! run in Fused, Strict and Debug mode on the plugin that is found and on the reference
//! interpreter; a case that cannot be read because the op table does not have an op or an element
//! type yet is skipped, and the reason is counted. Anything else that is not the expected result
//! fails the test, except the cases listed in `KNOWN` and `REORDERED`, each with its reason. A
//! folder in which no case passes fails it too, as does one of fewer cases than were there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fuseline::fusion::program::{Check, Program};
use fuseline::{Engine, Mode};

use crate::support::{self, check_program, plugin_for};

const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

/// How many of the cases beside the workspace pass at least.
const LEAST: usize = 1_900;

/// Cases that the reference device is not held to, by name, each with the reason. The plugin is.
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

/// Cases that a correct device passes or not by its order of summation, which follows the width of the machine's vectors: how far
/// a result may be from what is expected where it is not as close as the case says, and the reason.
const REORDERED: &[(&str, f64, &str)] = &[(
    "conv_general_dilated_float32_2_3_9_float32_12_1_3",
    1e-5,
    "products of up to 40 cancel, and 3 units in the last place of what is left are less than half \
         of one of theirs",
)];

/// Cases of subnormal numbers, which the plugin counts as zero (SUB-1, docs/numerics.md): the only
/// difference that each may have.
const SUBNORMAL: &[(&str, &str)] = &[(
    "interpret_ceil_000_ceil_op_test_bf16",
    "output 0: element 5 is 0.0, expected 1.0 (1 elements differ)",
)];

/// The folder of the cases, and how many of them pass at least.
fn cases() -> Option<(PathBuf, usize)> {
    let (path, least) = match std::env::var_os("FUSELINE_CONFORMANCE") {
        Some(path) => (PathBuf::from(path), 1),
        None => (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/cases"), LEAST),
    };
    path.is_dir().then_some((path, least))
}

/// Holds the plugin to a case, or to what [`REORDERED`] or [`SUBNORMAL`] allow; whether it needed
/// that.
fn on_device(device: &Engine, name: &str, program: &Arc<Program>) -> Result<bool, String> {
    if let Some((_, difference)) = SUBNORMAL.iter().find(|(subnormal, _)| name == *subnormal) {
        let is_only = |outcome: &Result<(), String>| {
            outcome.as_ref().map_or_else(|error| error.ends_with(difference), |()| true)
        };
        let outcomes = MODES.map(|mode| check_program(device, program, &[mode]));
        let needed = outcomes.iter().any(Result::is_err);
        let unexpected = outcomes.into_iter().find(|outcome| !is_only(outcome));
        return unexpected.unwrap_or(Ok(())).map(|()| needed);
    }
    let outcome = check_program(device, program, &MODES);
    let reordered = REORDERED.iter().find(|(reordered, ..)| name == *reordered);
    let (Err(error), Some((_, distance, reason))) = (&outcome, reordered) else {
        return outcome.map(|()| false);
    };
    println!("{name}: {error}; within {distance:e} it may: {reason}");
    let mut program = Program::clone(program);
    program.checks.fill(Check::almost(*distance).expect("it is a distance"));
    check_program(device, &Arc::new(program), &MODES).map(|()| true)
}

/// Whether both executors compute a case as they should, and not merely as [`KNOWN`], [`REORDERED`]
/// and [`SUBNORMAL`] allow.
fn run(
    reference: &Engine,
    device: Option<&Engine>,
    name: &str,
    program: &Arc<Program>,
) -> Result<bool, String> {
    let known = KNOWN.iter().find(|(known, _)| name == *known);
    match (check_program(reference, program, &[Mode::Fused]), known) {
        (Ok(()), Some((_, reason))) => {
            return Err(format!("the reference device passes, but is listed as known ({reason})"));
        }
        (Err(error), None) => return Err(format!("reference {error}")),
        _ => {}
    }
    let needed = device.map_or(Ok(false), |device| on_device(device, name, program))?;
    Ok(known.is_none() && !needed)
}

#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: usize,
    known: usize,
    failed: usize,
}

#[test]
fn conformance() {
    let Some((dir, least)) = cases() else {
        println!("skipped: no conformance cases (set FUSELINE_CONFORMANCE to their directory)");
        return;
    };
    let device = plugin_for("the device half of the conformance cases", support::config());
    let reference = Engine::reference();
    let mut names: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("the directory of cases can be read")
        .map(|entry| entry.expect("an entry of it can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    names.sort();
    let only = std::env::var("FUSELINE_CASE").ok();
    // Names as they come, to find the one that takes the process down.
    let verbose = std::env::var_os("FUSELINE_VERBOSE").is_some();
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let mut skips: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for path in names {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a case can be read");
        let program = match Program::parse(&text) {
            Ok(program) => Arc::new(program),
            Err(error) => match error.unsupported() {
                Some(reason) => {
                    *skips.entry(reason).or_default() += 1;
                    tallies.entry("(not read)".to_owned()).or_default().skipped += 1;
                    continue;
                }
                None => panic!("{name}: {error}"),
            },
        };
        if verbose {
            println!("{name}");
        }
        let tally = tallies.entry(program.class.clone()).or_default();
        match run(&reference, device.as_ref(), &name, &program) {
            Ok(true) => tally.passed += 1,
            Ok(false) => tally.known += 1,
            Err(error) => {
                tally.failed += 1;
                failures.push(format!("{name}: {error}"));
            }
        }
    }
    println!("{:22} {:>6} {:>7} {:>6} {:>6}", "class", "passed", "skipped", "known", "failed");
    let mut total = Tally::default();
    for (class, tally) in &tallies {
        println!(
            "{class:22} {:>6} {:>7} {:>6} {:>6}",
            tally.passed, tally.skipped, tally.known, tally.failed
        );
        total.passed += tally.passed;
        total.skipped += tally.skipped;
        total.known += tally.known;
        total.failed += tally.failed;
    }
    println!("{:22} {:>6} {:>7} {:>6} {:>6}", "all", total.passed, total.skipped, total.known, total.failed);
    for (reason, count) in &skips {
        println!("not in the table yet: {reason} ({count} cases)");
    }
    for (name, reason) in KNOWN {
        println!("known: {name}: {reason}");
    }
    if let Some(engine) = &device {
        println!("{:?}", engine.counters());
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
    let least = if only.is_some() { 1 } else { least };
    let held = total.passed + total.known;
    assert!(held >= least, "{held} cases passed, and at least {least} are in {}", dir.display());
}
