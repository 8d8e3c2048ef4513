//! The conformance cases through the parser, the reference interpreter, the program format and the
//! canonical form.
//!
//! Input: the folder of cases beside the workspace, or the one in `FUSELINE_CONFORMANCE`. A case
//! with an op or element type that the op table lacks is skipped, by name; any other problem is a
//! failure.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs, io};

use fuseline_fusion::canon::{CanonRegion, decode, diff};
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::{Graph, Literal, Ref};
use fuseline_interp as interp;

/// The minimum number of passing cases beside the workspace.
const LEAST: usize = 1_900;

/// Cases whose expected results are not checked, by name, each with the reason.
const EXCUSED: &[(&str, &str)] = &[
    (
        "pow_complex64_20_30_complex64_20_30",
        "expects powers computed in f32, off by 4e-6 of themselves, to an absolute 1e-3; the interpreter has f64",
    ),
    (
        "cumprod_complex64_8_9",
        "expects products of f32 parts that are each rounded, to an absolute 1e-3; the interpreter rounds once",
    ),
];

fn folder() -> PathBuf {
    match env::var_os("FUSELINE_CONFORMANCE") {
        Some(folder) => folder.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance/cases"),
    }
}

/// Prints a message that the test harness does not hide.
fn announce(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Runs the ops one by one. Returns the data of every value.
fn evaluate(program: &Program) -> Result<HashMap<ProgramId, Arc<Literal>>, String> {
    let mut known: HashMap<ProgramId, Arc<Literal>> =
        program.values.iter().map(|value| (value.id, value.data.clone())).collect();
    for op in &program.ops {
        let operands: Vec<Arc<Literal>> = op.operands.iter().map(|id| known[id].clone()).collect();
        let results = interp::call(&op.signature, &operands).map_err(|error| error.to_string())?;
        known.extend(op.results.iter().copied().zip(results.into_iter().map(Arc::new)));
    }
    Ok(known)
}

/// Compares the outputs with the expected ones.
fn check(program: &Program) -> Result<(), String> {
    let known = evaluate(program)?;
    for ((output, expected), check) in program.outputs.iter().zip(&program.expected).zip(&program.checks) {
        let actual = &known[output];
        check.compare(actual, expected).map_err(|mismatch| format!("output {output}: {mismatch}"))?;
    }
    Ok(())
}

/// The ops as a region whose parameters are the values.
fn region(program: &Program) -> CanonRegion {
    let mut graph = Graph::new();
    let mut known: HashMap<ProgramId, Ref> =
        program.values.iter().map(|value| (value.id, graph.param(value.data.ty().clone()))).collect();
    for op in &program.ops {
        let operands = op.operands.iter().map(|id| known[id]).collect();
        let results = graph.push_signature(op.signature.clone(), operands);
        known.extend(op.results.iter().copied().zip(results));
    }
    let lifted = vec![false; graph.params().len()];
    CanonRegion::new(graph, lifted.into())
}

/// The program survives its two written forms.
fn round_trip(program: &Program) -> Result<(), String> {
    let back = Program::parse(&program.to_json()).map_err(|error| format!("written and read: {error}"))?;
    if back != *program {
        return Err("written and read it is another program".to_owned());
    }
    let region = region(program);
    let decoded = decode(region.bytes()).map_err(|error| format!("canonical bytes: {error}"))?;
    if decoded != region || decoded.graph() != region.graph() || !diff(&region, &decoded).is_empty() {
        return Err("the canonical bytes decode to another region".to_owned());
    }
    Ok(())
}

#[derive(Default)]
struct Tally {
    pass: usize,
    skip: usize,
    fail: usize,
}

#[test]
fn the_interpreter_agrees_with_every_case() {
    let folder = folder();
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("skipped: no conformance cases in {}", folder.display());
        return;
    };
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    files.sort();
    let mut table: BTreeMap<String, Tally> = BTreeMap::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = String::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "json")) {
        let text = fs::read_to_string(file).expect("a case can be read");
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let program = match Program::parse(&text) {
            Ok(program) => program,
            Err(error) => match error.unsupported() {
                Some(reason) => {
                    table.entry("(not in the table)".to_owned()).or_default().skip += 1;
                    *reasons.entry(reason).or_default() += 1;
                    continue;
                }
                None => {
                    table.entry("(not parsed)".to_owned()).or_default().fail += 1;
                    let _ = writeln!(failures, "{name}: {error}");
                    continue;
                }
            },
        };
        let tally = table.entry(program.class.clone()).or_default();
        let excuse = EXCUSED.iter().find(|(excused, _)| *excused == name);
        match (check(&program).and_then(|()| round_trip(&program)), excuse) {
            (Ok(()), None) => tally.pass += 1,
            (Err(_), Some((_, reason))) => {
                tally.skip += 1;
                *reasons.entry(format!("{name}: {reason}")).or_default() += 1;
            }
            (Ok(()), Some(_)) => {
                tally.fail += 1;
                let _ = writeln!(failures, "{name}: passes and needs no excuse");
            }
            (Err(error), None) => {
                tally.fail += 1;
                let _ = writeln!(failures, "{name}: {error}");
            }
        }
    }

    let mut report = format!("{:24} {:>5} {:>5} {:>5}\n", "class", "pass", "skip", "fail");
    let mut total = Tally::default();
    for (class, Tally { pass, skip, fail }) in &table {
        let _ = writeln!(report, "{class:24} {pass:5} {skip:5} {fail:5}");
        total = Tally { pass: total.pass + pass, skip: total.skip + skip, fail: total.fail + fail };
    }
    let _ = writeln!(report, "{:24} {:5} {:5} {:5}", "all", total.pass, total.skip, total.fail);
    for (reason, count) in &reasons {
        let _ = writeln!(report, "skipped {count:4}: {reason}");
    }
    announce(&report);
    // A folder of the user may have any number of cases.
    let least = if env::var_os("FUSELINE_CONFORMANCE").is_some() { 1 } else { LEAST };
    assert!(
        total.pass >= least,
        "{} cases passed, and at least {least} are in {}",
        total.pass,
        folder.display()
    );
    assert!(failures.is_empty(), "{} cases failed:\n{failures}", total.fail);
}
