//! Poison is exact: if an op of a program fails, exactly the values that depend on it fail, and
//! each names the op, its call site and its region.
//!
//! Random programs of the whole op table, on several streams, with drops, reads and flushes
//! anywhere. One kind of op fails, on the device or in the compiler, wherever it occurs: in a
//! region of many ops, which then runs op by op, and alone. The expected poison is computed from
//! the program only. Then the fault is removed, and the same engine runs the same program again.
//!
//! `FUSELINE_PROGRAMS` multiplies the number of programs; `FUSELINE_SEED` changes them.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use fuseline::fusion::program::{ProgramId, ProgramOp};
use fuseline::fusion::{DTypeSet, StreamId};
use fuseline::{
    Attrs, Engine, EngineConfig, Error, Fault, FaultPoint, Literal, Mode, OpCode, Result, Site, Stage,
    Stream, Tensor, Tensors, with_mode,
};
use fuseline_testgen::{Aim, Choices, Entropy, ProgramOptions, ProgramSampler, Sampled};
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::support;
use crate::support::script::Origin;
use crate::support::{number, plugin_for};

/// The number of streams that a program records on.
const STREAMS: usize = 3;

/// The device's error message.
const WORDS: &str = "the device is on fire";

// ----- scripts -----

/// A step of a program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Bring(ProgramId, Origin, usize),
    /// Records an op on a stream, at one of several call sites in this file.
    Op(usize, usize, u32),
    Read(ProgramId),
    Drop(ProgramId),
    Flush(usize),
}

/// A program, the use of its values, and the fault.
struct Script {
    sampled: Sampled,
    steps: Vec<Step>,
    /// The op that fails.
    fails: OpCode,
    /// The stage at which it fails.
    stage: Stage,
    mode: Mode,
}

fn script(sampled: Sampled, stages: &[Stage], entropy: &mut dyn Entropy) -> Script {
    let ops = &sampled.program.ops;
    let fails = ops[entropy.draw(ops.len() as u32) as usize].signature.op();
    let stage = stages[entropy.draw(stages.len() as u32) as usize];
    let mode = if entropy.draw(3) == 2 { Mode::Strict } else { Mode::Fused };
    let streams = 1 + entropy.draw(STREAMS as u32);
    // Some programs request nothing before their end, and are replayed when they recur.
    let is_steady = entropy.draw(2) == 0;
    let (mut steps, mut live) = (Vec::new(), Vec::<ProgramId>::new());
    for (index, op) in ops.iter().enumerate() {
        for id in &op.operands {
            let Some(value) = sampled.program.values.iter().find(|value| value.id == *id) else { continue };
            if live.contains(id) {
                continue;
            }
            let origin = Origin::drawn(value, entropy);
            live.push(*id);
            steps.push(Step::Bring(*id, origin, entropy.draw(streams) as usize));
        }
        let stream = if entropy.draw(3) == 2 { entropy.draw(streams) as usize } else { 0 };
        steps.push(Step::Op(index, stream, entropy.draw(4)));
        live.extend(&op.results);
        live.retain(|&id| {
            let used = ops[index + 1..].iter().any(|op| op.operands.contains(&id));
            let dropped = !used && entropy.draw(4) == 3;
            if dropped {
                steps.push(Step::Drop(id));
            }
            !dropped
        });
        if !is_steady && entropy.draw(10) == 9 {
            let id = live.get(entropy.draw(live.len() as u32) as usize);
            steps.extend(id.map(|&id| Step::Read(id)));
        }
        if !is_steady && entropy.draw(20) == 19 {
            steps.push(Step::Flush(entropy.draw(streams) as usize));
        }
    }
    while !live.is_empty() {
        let id = live.swap_remove(entropy.draw(live.len() as u32) as usize);
        steps.extend([Step::Read(id), Step::Drop(id)]);
    }
    Script { sampled, steps, fails, stage, mode }
}

// ----- expected results -----

/// An op that failed, with its call site and stream.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Culprit {
    op: OpCode,
    line: u32,
    stream: StreamId,
}

/// The values that have to fail, each with the ops that it may name. That is one op, unless an op
/// that does not compile waits for a failed input: then timing decides which of the two is named.
#[derive(Default)]
struct Poison(HashMap<ProgramId, Vec<Culprit>>);

impl Poison {
    /// Updates the poison for a recorded op.
    fn spread(&mut self, op: &ProgramOp, culprit: Culprit, script: &Script) {
        let inherited = op.operands.iter().find_map(|id| self.0.get(id)).cloned();
        let own = (op.signature.op() == script.fails).then_some(culprit);
        let culprits: Vec<Culprit> = match (inherited, own) {
            (Some(inherited), Some(own)) if script.stage == Stage::Compile => {
                inherited.into_iter().chain([own]).collect()
            }
            (Some(inherited), _) => inherited,
            (None, own) => own.into_iter().collect(),
        };
        if !culprits.is_empty() {
            self.0.extend(op.results.iter().map(|&id| (id, culprits.clone())));
        }
    }
}

/// Checks the message of an error.
fn check(error: &Error, culprits: &[Culprit], stage: Stage) -> std::result::Result<(), String> {
    let told = match (error.op_name(), error.site(), error.region()) {
        (Some(op), Some(Site::Rust(site)), Some(region)) if site.file() == file!() && region.ops == 1 => {
            (op, site.line(), region.stream)
        }
        _ => return Err(format!("an error without an address: {error}")),
    };
    let is_one = |culprit: &&Culprit| (culprit.op.name(), culprit.line, culprit.stream) == told;
    let Some(culprit) = culprits.iter().find(is_one) else {
        return Err(format!("{error}, expected {culprits:?}"));
    };
    let text = error.to_string();
    let place = format!("{}, recorded at {}:{}, failed", culprit.op.name(), file!(), culprit.line);
    let is_clear = text.starts_with(&place) && text.contains(" in region ") && text.contains(WORDS);
    match is_clear && error.stage() == stage {
        true => Ok(()),
        false => Err(format!("an error in other words: {text}")),
    }
}

// ----- running them -----

/// Records an op. Returns its line and its results.
#[track_caller]
fn record(stream: &Stream, op: &ProgramOp, operands: &[&Tensor]) -> (u32, Result<Tensors>) {
    let attrs = Attrs::clone(op.signature.attrs());
    let results = stream.record(op.signature.op(), attrs, op.signature.bodies(), operands);
    (Location::caller().line(), results)
}

/// The same, at one of several call sites.
fn record_at(place: u32, stream: &Stream, op: &ProgramOp, operands: &[&Tensor]) -> (u32, Result<Tensors>) {
    match place {
        0 => record(stream, op, operands),
        1 => record(stream, op, operands),
        2 => record(stream, op, operands),
        _ => record(stream, op, operands),
    }
}

/// Reads a value in one of several ways.
fn read(tensor: &Tensor, number: usize) -> Result<Literal> {
    match number % 3 {
        0 => tensor.wait().and_then(|()| tensor.to_literal()),
        1 => support::block_on(tensor.read()),
        _ => tensor.to_literal(),
    }
}

/// The observations of a run.
#[derive(Clone, Copy, Default)]
struct Seen {
    failed: u64,
    whole: u64,
}

/// Runs a script once and checks every value that it reads.
fn run(script: &Script, streams: &[Stream], is_faulty: bool) -> std::result::Result<Seen, String> {
    let sampled = &script.sampled;
    let mut values: HashMap<ProgramId, Tensor> = HashMap::new();
    let (mut poison, mut seen) = (Poison::default(), Seen::default());
    for (number, step) in script.steps.iter().enumerate() {
        match *step {
            Step::Bring(id, origin, stream) => {
                let (stream, data) = (&streams[stream], &sampled.value(id).data);
                let tensor = match origin {
                    Origin::Upload => stream.from_literal(data),
                    Origin::Constant => {
                        let line = line!() + 5;
                        if is_faulty && script.fails == OpCode::Constant {
                            let culprit = Culprit { op: OpCode::Constant, line, stream: stream.id() };
                            poison.0.insert(id, vec![culprit]);
                        }
                        stream.constant(Literal::clone(data))
                    }
                    Origin::Lifted => {
                        let scalar = fuseline::fusion::Scalar::of(data).expect("a real scalar");
                        Ok(stream.lift(scalar))
                    }
                };
                values.insert(id, tensor.map_err(|error| error.to_string())?);
            }
            Step::Op(index, stream, place) => {
                let op = &sampled.program.ops[index];
                let stream = &streams[stream];
                let operands: Vec<&Tensor> = op.operands.iter().map(|id| &values[id]).collect();
                let (line, results) = record_at(place, stream, op, &operands);
                let results = results.map_err(|error| error.to_string())?;
                values.extend(op.results.iter().copied().zip(results));
                if is_faulty {
                    let culprit = Culprit { op: op.signature.op(), line, stream: stream.id() };
                    poison.spread(op, culprit, script);
                }
            }
            Step::Read(id) => {
                let read = read(&values[&id], number);
                let told = match (read, poison.0.get(&id)) {
                    (Ok(data), None) => {
                        seen.whole += 1;
                        sampled.value(id).check(&data)
                    }
                    (Ok(_), Some(culprits)) => Err(format!("it does not fail, and depends on {culprits:?}")),
                    (Err(error), None) => {
                        Err(format!("it fails, and does not depend on what failed: {error}"))
                    }
                    (Err(error), Some(culprits)) => {
                        seen.failed += 1;
                        check(&error, culprits, script.stage)
                    }
                };
                told.map_err(|error| format!("value {id}: {error}"))?;
            }
            Step::Drop(id) => drop(values.remove(&id)),
            Step::Flush(stream) => streams[stream].flush(),
        }
    }
    Ok(seen)
}

/// The current fault of an engine.
#[derive(Clone, Default)]
struct Plan(Arc<Mutex<Option<(Stage, OpCode)>>>);

impl Plan {
    fn set(&self, fault: Option<(Stage, OpCode)>) {
        *self.0.lock().unwrap() = fault;
    }

    fn faults(&self) -> impl Fn(FaultPoint) -> Option<Fault> + Send + Sync + use<> {
        let plan = self.0.clone();
        move |point| {
            let (stage, op) = (*plan.lock().unwrap())?;
            let is_meant = match point {
                FaultPoint::Compile { .. } => stage == Stage::Compile,
                FaultPoint::Execute { .. } => stage == Stage::Execute,
                _ => false,
            };
            is_meant.then(|| Fault::new(WORDS).only_with([op]))
        }
    }
}

/// Runs a script alternately without and with its fault.
fn check_script(
    script: &Script,
    engine: &Engine,
    streams: &[Stream],
    plan: &Plan,
    rounds: &[bool],
) -> std::result::Result<Seen, String> {
    let mut seen = Seen::default();
    for (round, &is_faulty) in rounds.iter().enumerate() {
        // Compiled regions do not compile again, and failed compiles are not retried soon.
        if script.stage == Stage::Compile || engine.counters().cached_executables > 1_000 {
            engine.clear_cache();
        }
        plan.set(is_faulty.then_some((script.stage, script.fails)));
        let ran = with_mode(script.mode, || run(script, streams, is_faulty))
            .and_then(|seen| engine.synchronize().map(|()| seen).map_err(|error| error.to_string()));
        plan.set(None);
        let ran = ran.map_err(|error| {
            let how = if is_faulty { "with" } else { "without" };
            format!(
                "{} mode, run {round}, {how} a fault of {} while {}: {error}",
                script.mode.name(),
                script.fails.name(),
                script.stage
            )
        })?;
        seen = Seen { failed: seen.failed + ran.failed, whole: seen.whole + ran.whole };
    }
    Ok(seen)
}

/// A batch of scripts.
#[derive(Clone, Copy)]
struct Batch<'a> {
    programs: u32,
    /// The largest number of ops of a program.
    ops: usize,
    /// The possible stages of faults.
    stages: &'a [Stage],
    /// Which runs of a program have a fault.
    rounds: &'a [bool],
}

fn on_engine(engine: &Engine, plan: &Plan, batch: Batch<'_>) {
    let Batch { programs, ops, stages, rounds } = batch;
    let streams: Vec<Stream> =
        std::iter::once(engine.stream().clone()).chain((1..STREAMS).map(|_| engine.new_stream())).collect();
    let config = Config {
        cases: programs * number("FUSELINE_PROGRAMS").unwrap_or(1),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let mut seed = [0xfa; 32];
    seed[..4].copy_from_slice(&number::<u32>("FUSELINE_SEED").unwrap_or(0).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let case = (vec(ANY, ops * 8..=ops * 16), vec(ANY, ops * 6), 1..=ops, weighted(0.25));
    let total = Cell::new(Seen::default());
    let outcome = runner.run(&case, |(program, how, ops, narrow)| {
        let dtypes = if narrow { DTypeSet::NARROW } else { DTypeSet::ANY };
        let options = ProgramOptions { dtypes, ..ProgramOptions::new(Aim::Portable) };
        let sampled = ProgramSampler::sample(options, &mut Choices::new(&program), ops);
        if sampled.program.ops.is_empty() {
            return Ok(());
        }
        let script = script(sampled, stages, &mut Choices::new(&how));
        match check_script(&script, engine, &streams, plan, rounds) {
            Ok(seen) => {
                let before = total.get();
                let (failed, whole) = (before.failed + seen.failed, before.whole + seen.whole);
                total.set(Seen { failed, whole });
                Ok(())
            }
            Err(error) => {
                let json = script.sampled.program.to_json();
                Err(TestCaseError::fail(format!("{error}\n{:?}\n{json}", script.steps)))
            }
        }
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, _)) => panic!("{engine:?}: {reason}"),
        Err(error) => panic!("{engine:?}: {error}"),
    }
    let (seen, counters) = (total.get(), engine.counters());
    println!("{engine:?}: {} values failed, {} did not, {counters:?}", seen.failed, seen.whole);
    assert!(seen.failed > u64::from(programs) / 2 && seen.whole > u64::from(programs), "too little is tried");
    assert!(counters.fallbacks > u64::from(programs) / 10, "no region of several ops has failed");
    assert_eq!(counters.panics, 0);
}

/// An op that does not compile is rarer than one that fails at run time.
const STAGES: [Stage; 4] = [Stage::Execute, Stage::Execute, Stage::Execute, Stage::Compile];

fn on_reference(replay: bool, programs: u32, rounds: &[bool]) {
    let plan = Plan::default();
    let config = support::config().replay(replay).inject_faults(plan.faults());
    let engine = config.build_reference().expect("the reference engine needs nothing");
    on_engine(&engine, &plan, Batch { programs, ops: 24, stages: &STAGES, rounds });
    let replayed = engine.counters().replayed;
    assert!(if replay { replayed > u64::from(programs) / 4 } else { replayed == 0 }, "{replayed} replayed");
}

#[test]
fn a_failure_reaches_its_dependants() {
    on_reference(false, 5_000, &[true, false]);
}

/// Programs that were recorded twice are replayed the third time, when they fail.
#[test]
fn a_failure_of_what_is_replayed_reaches_its_dependants() {
    on_reference(true, 5_000, &[false, false, true, false]);
}

/// Small programs that are interpreted first, without a compile that could fail, and others that
/// are compiled.
#[test]
fn a_failure_on_the_plugin_reaches_its_dependants() {
    let interpreted = (EngineConfig::new(), 60, &STAGES[..1]);
    let compiled = (support::compiled_first(), 12, &STAGES[..]);
    for (config, programs, stages) in [interpreted, compiled] {
        let plan = Plan::default();
        let config = config.inject_faults(plan.faults());
        let Some(engine) = plugin_for("poison on a plugin", config) else { return };
        on_engine(&engine, &plan, Batch { programs, ops: 8, stages, rounds: &[true, false] });
    }
}

/// Takes hours:
/// `FUSELINE_PROGRAMS=100 FUSELINE_SEED=1 cargo test --release --test engine poison:: --
/// --ignored`.
#[test]
#[ignore = "soak: `cargo xtask soak poison`"]
fn soak_a_failure_reaches_its_dependants() {
    on_reference(false, 10_000, &[true, false]);
    on_reference(true, 10_000, &[false, false, true, false]);
}
