//! The trace cache: programs have the same values, regions and events with and without it, and a
//! steady loop is replayed. `FUSELINE_PROGRAMS` multiplies the number of programs.

use std::collections::{HashMap, HashSet};

use fuseline::fusion::program::ProgramId;
use fuseline::fusion::{DTypeSet, StreamId};
use fuseline::{
    Attrs, Boundary, Budgets, Engine, EngineConfig, Event, Mode, Result, Stream, Tensor, with_mode,
};
use fuseline_testgen::{Aim, Choices, Entropy, ProgramOptions, ProgramSampler, Sampled};
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::support::{self, Log, number, plugin_for, vector};

// ----- programs and their rounds -----

/// What a round does with the ops of a program, which it records in order.
#[derive(Clone, Debug)]
struct Round {
    /// When each value is dropped, as a number of ops; the same in every round that is not odd.
    drops: Vec<(usize, ProgramId)>,
    /// Where and how the round differs from the others, if it does.
    odd: Option<(usize, Oddity)>,
    /// The values that are read at the end, unless they were dropped.
    reads: Vec<ProgramId>,
    ends: End,
}

#[derive(Clone, Copy, Debug)]
enum Oddity {
    /// The remaining ops are left out.
    Stops,
    /// A value is read in between.
    Reads,
    /// One more op.
    Another,
    /// The op is recorded in Strict mode.
    Strict,
    Flushes,
    /// From here on, an input is another tensor.
    OtherInput,
    /// One operand replaces another.
    Aliases,
    /// Values are kept longer.
    Keeps,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Reads,
    Flush,
    Synchronize,
}

const ODDITIES: [Oddity; 8] = [
    Oddity::Stops,
    Oddity::Reads,
    Oddity::Another,
    Oddity::Strict,
    Oddity::Flushes,
    Oddity::OtherInput,
    Oddity::Aliases,
    Oddity::Keeps,
];

fn rounds(sampled: &Sampled, entropy: &mut dyn Entropy) -> Vec<Round> {
    let ops = sampled.program.ops.len();
    let mut drops = Vec::new();
    let mut made: Vec<ProgramId> = Vec::new();
    for (index, op) in sampled.program.ops.iter().enumerate() {
        made.extend(&op.results);
        made.retain(|&id| {
            let used = sampled.program.ops[index + 1..].iter().any(|op| op.operands.contains(&id));
            let dropped = !used && entropy.draw(3) > 0;
            if dropped {
                drops.push((index + 1, id));
            }
            !dropped
        });
    }
    let reads: Vec<ProgramId> = made.iter().copied().filter(|_| entropy.draw(4) > 0).collect();
    let ends = [End::Reads, End::Flush, End::Synchronize][entropy.draw(3) as usize];
    let usual = Round { drops, odd: None, reads, ends };
    let mut rounds = vec![usual.clone(); 4];
    for _ in 0..3 {
        let what = ODDITIES[entropy.draw(ODDITIES.len() as u32) as usize];
        let at = entropy.draw(ops as u32) as usize;
        rounds.push(Round { odd: Some((at, what)), ..usual.clone() });
        rounds.extend(vec![usual.clone(); 1 + entropy.draw(2) as usize]);
    }
    rounds
}

/// What a reader sees: elements or the error.
fn look(tensor: &Tensor) -> String {
    tensor
        .to_literal()
        .map_or_else(|error| error.to_string(), |data| format!("{} {:?}", data.dtype(), data.bytes()))
}

/// Runs a round and returns what it read.
fn run(
    sampled: &Sampled,
    round: &Round,
    inputs: &mut HashMap<ProgramId, Tensor>,
    stream: &Stream,
) -> Vec<String> {
    let mut made: HashMap<ProgramId, Tensor> = HashMap::new();
    let mut read = Vec::new();
    let mut drops = round.drops.iter().peekable();
    let mut keeps = false;
    for (index, op) in sampled.program.ops.iter().enumerate() {
        let mut mode = Mode::Fused;
        let mut aliases = false;
        if let Some((_, what)) = round.odd.filter(|&(at, _)| at == index) {
            let any = op.operands.iter().find_map(|id| made.get(id).or_else(|| inputs.get(id)));
            match (what, any) {
                (Oddity::Stops, _) => break,
                (Oddity::Reads, Some(any)) => read.push(look(any)),
                (Oddity::Another, Some(any)) => drop(any.mul(any)),
                (Oddity::Strict, _) => mode = Mode::Strict,
                (Oddity::Flushes, _) => stream.flush(),
                (Oddity::OtherInput, _) => {
                    for (id, tensor) in inputs.iter_mut() {
                        *tensor = stream.from_literal(&sampled.value(*id).data).unwrap();
                    }
                }
                (Oddity::Aliases, _) => aliases = true,
                (Oddity::Keeps, _) => keeps = true,
                _ => {}
            }
        }
        let mut operands: Vec<&Tensor> =
            op.operands.iter().map(|id| made.get(id).or_else(|| inputs.get(id)).unwrap()).collect();
        if aliases && operands.len() > 1 && operands[0].ty() == operands[1].ty() {
            operands[1] = operands[0];
        }
        let signature = &op.signature;
        let attrs = Attrs::clone(signature.attrs());
        let results =
            with_mode(mode, || stream.record(signature.op(), attrs, signature.bodies(), &operands)).unwrap();
        made.extend(op.results.iter().copied().zip(results));
        while let Some((_, id)) = drops.next_if(|&&(when, _)| when <= index + 1) {
            if !keeps {
                made.remove(id);
            }
        }
    }
    match round.ends {
        End::Reads => {}
        End::Flush => stream.flush(),
        End::Synchronize => stream.synchronize().unwrap(),
    }
    for id in &round.reads {
        if let Some(tensor) = made.remove(id) {
            read.push(look(&tensor));
        }
    }
    read
}

// ----- comparison -----

/// The events of each stream's regions, in order, without ids of values, then the reads. Omits what
/// depends on compile times: whether a region runs as a whole or as its units, and what then runs
/// op by op.
fn told(events: &[Event]) -> Vec<String> {
    let (mut units, mut apart) = (0, HashSet::new());
    let mut told: Vec<(StreamId, String)> = Vec::new();
    let mut reads = Vec::new();
    for event in events {
        match event {
            Event::RanUnmerged { units: parts, .. } => units = *parts,
            Event::Sealed { region, .. } if units > 0 => {
                units -= 1;
                apart.insert((region.stream, region.seq));
            }
            Event::Sealed { region, boundary: Boundary::Fallback, .. } => {
                apart.insert((region.stream, region.seq));
            }
            Event::Sealed { region, boundary, mode, inputs, scalars, contents, .. } => {
                let dies: Vec<bool> = contents.inputs().iter().map(|input| input.dies).collect();
                let live: Vec<bool> = contents.outputs().iter().map(|output| output.live).collect();
                let (key, ops, sites) = (region.key, region.ops, contents.sites());
                told.push((
                    region.stream,
                    format!(
                        "{key} {boundary:?} {mode:?} {ops} {inputs} {scalars} {dies:?} {live:?} {sites:?}"
                    ),
                ));
            }
            Event::Skipped { region } if !apart.contains(&(region.stream, region.seq)) => {
                told.push((region.stream, format!("skipped {}", region.key)));
            }
            Event::HostRead { site, asked, bytes, region, .. } => {
                reads.push(format!("{asked:?} of {bytes} at {site}, made here: {}", region.is_some()));
            }
            _ => {}
        }
    }
    // The order of two streams depends on the threads.
    told.sort_by_key(|(stream, _)| *stream);
    told.into_iter().map(|(_, told)| told).chain(reads).collect()
}

struct Seen {
    read: Vec<String>,
    told: Vec<String>,
    replayed: u64,
}

fn see(sampled: &Sampled, rounds: &[Round], engine: &Engine, log: &Log) -> Seen {
    let stream = engine.new_stream();
    log.take();
    let before = engine.counters();
    let mut read = Vec::new();
    let inputs = sampled.program.values.iter();
    let mut inputs: HashMap<ProgramId, Tensor> =
        inputs.map(|value| (value.id, stream.from_literal(&value.data).unwrap())).collect();
    for round in rounds {
        read.extend(run(sampled, round, &mut inputs, &stream));
    }
    drop(inputs);
    stream.synchronize().unwrap();
    Seen { read, told: told(&log.take()), replayed: engine.counters().since(&before).replayed }
}

/// Makes engines to compare, with and without the trace cache, of one configuration.
type Build = fn(EngineConfig) -> Option<Engine>;

fn compare(config: EngineConfig, build: Build, budgets: Budgets, cases: u32, ops: usize) {
    let new = |replay: bool| {
        let log = Log::default();
        let config = config.clone().region_budgets(budgets).replay(replay).event_sink(log.sink());
        build(config).map(|engine| (engine, log))
    };
    let (Some(with), Some(without)) = (new(true), new(false)) else { return };
    let replayed = std::cell::Cell::new((0, 0));
    let cases = cases * number("FUSELINE_PROGRAMS").unwrap_or(1);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[0x51; 32]));
    let case = (vec(ANY, ops * 8..=ops * 16), vec(ANY, ops * 6), 1..=ops);
    let outcome = runner.run(&case, |(program, how, ops)| {
        let options = ProgramOptions { dtypes: DTypeSet::ANY, ..ProgramOptions::new(Aim::Portable) };
        let sampled = ProgramSampler::sample(options, &mut Choices::new(&program), ops);
        let rounds = rounds(&sampled, &mut Choices::new(&how));
        let (one, other) =
            (see(&sampled, &rounds, &with.0, &with.1), see(&sampled, &rounds, &without.0, &without.1));
        let describe = || format!("{rounds:?}\n{}", sampled.program.to_json());
        if let Some(at) =
            (0..one.told.len().max(other.told.len())).find(|&at| one.told.get(at) != other.told.get(at))
        {
            let (one, other) = (one.told.get(at), other.told.get(at));
            return Err(TestCaseError::fail(format!(
                "region {at}: {one:?}, without replay {other:?}\n{}",
                describe()
            )));
        }
        if one.read != other.read {
            return Err(TestCaseError::fail(format!("other numbers\n{}", describe())));
        }
        assert_eq!(other.replayed, 0);
        let (some, all) = replayed.get();
        replayed.set((some + u64::from(one.replayed > 0), all + 1));
        Ok(())
    });
    outcome.unwrap();
    let (some, all) = replayed.get();
    println!("{some} of {all} programs were replayed in part");
    assert!(5 * some > all, "{some} of {all} programs were replayed");
}

fn reference(config: EngineConfig) -> Option<Engine> {
    config.build_reference().ok()
}

#[test]
fn any_program_that_goes_astray_anywhere_does_what_it_does_without_replay() {
    compare(support::config(), reference, Budgets::default(), 200, 24);
}

/// Steps of several units, which are merged from the third on.
#[test]
fn steps_of_several_units_do_what_they_do_without_replay() {
    compare(support::config(), reference, Budgets { ops: 5, ..Budgets::default() }, 200, 24);
}

/// With regions that are compiled and launched asynchronously, and donated inputs.
#[test]
fn programs_that_go_astray_on_a_plugin_do_what_they_do_without_replay() {
    let on_plugin: Build = |config| plugin_for("replay on a plugin", config);
    // Two tiers round differently, so in both the tier of a run must not depend on the time.
    compare(support::config().reproducible(true), on_plugin, Budgets::default(), 20, 16);
    compare(support::optimized_only(), on_plugin, Budgets::default(), 60, 16);
}

// ----- single cases -----

/// Checks that a program has the same events and reads with and without the trace cache. Returns
/// the events and the number of replayed ops.
fn both(budgets: Budgets, program: impl Fn(&Engine) -> Result<Vec<f32>>) -> (Vec<String>, u64) {
    let run = |replay: bool| {
        let log = Log::default();
        let config = support::config().region_budgets(budgets).replay(replay).event_sink(log.sink());
        let engine = config.build_reference().unwrap();
        let read = program(&engine).unwrap();
        engine.synchronize().unwrap();
        (read, told(&log.take()), engine.counters().replayed)
    };
    let (with, without) = (run(true), run(false));
    assert_eq!(with.0, without.0);
    if let Some(at) = (0..with.1.len().max(without.1.len())).find(|&at| with.1.get(at) != without.1.get(at)) {
        panic!("region {at}: {:?}, without replay {:?}", with.1.get(at), without.1.get(at));
    }
    assert_eq!(without.2, 0);
    (with.1, with.2)
}

#[test]
fn a_steady_loop_is_replayed_from_the_third_round_on() {
    let (regions, replayed) = both(Budgets::default(), |engine| {
        let mut x = vector(engine, &[1.0, 2.0]);
        let mut read = Vec::new();
        for round in 0..10 {
            // Other numbers, the same ops.
            let y = ((&x * 0.5)? + f64::from(round))?;
            x = y.tanh()?;
            read.push(y.sum(&[0])?.item::<f32>()?);
        }
        Ok(read)
    });
    // A region and a read in each round.
    assert_eq!(regions.len(), 2 * 10);
    // Seven ops with the broadcasts of numbers. The first two rounds make the template.
    assert_eq!(replayed, 8 * 7);
}

/// Ops that a method adds for operands of different shapes and types are part of the trace too.
#[test]
fn operands_that_are_promoted_are_replayed() {
    let (_, replayed) = both(Budgets::default(), |engine| {
        let row = engine.tensor(&[1.0f32, 2.0], &[2])?;
        let whole = engine.tensor(&[3i32, -1, 2, 1], &[2, 2])?;
        let mut x = engine.tensor(&[0.5f32, 1.0, 1.5, 2.0], &[2, 2])?;
        let mut read = Vec::new();
        for _ in 0..10 {
            x = ((&x + &row)? * &whole)?.tanh()?;
            read.extend(x.to_vec::<f32>()?);
        }
        Ok(read)
    });
    // A broadcast, a sum, a conversion, a product and the tanh.
    assert_eq!(replayed, 8 * 5);
}

/// Steps of which one is a prefix of another are replayed in any order.
#[test]
fn a_step_that_ends_sooner_than_another_is_replayed() {
    let (_, replayed) = both(Budgets::default(), |engine| {
        let mut x = vector(engine, &[1.0, 2.0]);
        let mut read = Vec::new();
        for round in 0..60 {
            x = x.tanh()?.neg()?.abs()?;
            if round % 3 == 2 {
                x = x.exp()?.neg()?;
            }
            read.extend(x.to_vec::<f32>()?);
        }
        Ok(read)
    });
    // 220 ops. Each step is recorded twice before it is known, and once more where the other was
    // expected.
    assert!(replayed >= 200, "{replayed}");
}

/// Ops that go into a body do not belong to the stream, even if a value from outside calls them.
/// Numbers in a body are operands of the op that has the body.
#[test]
fn steps_with_bodies_are_replayed() {
    let (_, replayed) = both(Budgets::default(), |engine| {
        let stream = engine.stream();
        let rows = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
        let (mut x, factor) = (vector(engine, &[1.0, 2.0]), vector(engine, &[0.5, 0.25]));
        let mut read = Vec::new();
        for _ in 0..10 {
            let (sum, _) = stream.scan(x.clone(), rows.clone(), |sum, row| {
                let sum = (&factor * &(&sum + &row)?)?;
                Ok((sum.clone(), sum))
            })?;
            x = stream.for_range(0..3, sum, |_, x| x * 0.5)?.tanh()?;
            read.extend(x.to_vec::<f32>()?);
        }
        Ok(read)
    });
    assert!(replayed >= 8 * 3, "{replayed}");
}

/// An op that differs from the expected one only in attributes or bodies is another op: types,
/// operands and op code are equal.
#[test]
fn attributes_and_bodies_are_part_of_what_is_expected() {
    let (_, replayed) =
        both(Budgets::default(), |engine| {
            let x = engine.tensor(&[1.0f32, 2.0, 3.0, 5.0], &[4])?;
            let zero = vector(engine, &[0.0]).reshape(&[])?;
            let mut read = Vec::new();
            for round in 0..24i64 {
                // Expected by then; the odd ones come between others of their kind.
                let start = i64::from(round % 6 == 5);
                let part = x.slice(&[start], &[start + 2], &[1])?;
                let all = Tensor::reduce_with(&x, &zero, &[0], |a, b| {
                    if round % 8 == 7 { a.maximum(&b) } else { a.add(&b) }
                })?;
                let found = part.abs()?.add(&all.broadcast_to(&[2])?)?.to_vec::<f32>()?;
                let (sum, from) = (if round % 8 == 7 { 5.0 } else { 11.0 }, start as usize);
                assert_eq!(
                    found,
                    [[1.0, 2.0, 3.0][from] + sum, [1.0, 2.0, 3.0][from + 1] + sum],
                    "round {round}"
                );
                read.extend(found);
            }
            Ok(read)
        });
    assert!(replayed >= 8, "{replayed}");
}

/// The read is in the middle of the next step, and is no boundary.
#[test]
fn a_loop_that_reads_one_step_late_is_replayed() {
    let (_, replayed) = both(Budgets::default(), |engine| {
        let mut x = vector(engine, &[1.0, 2.0]);
        let (mut read, mut late) = (Vec::new(), x.clone());
        for _ in 0..20 {
            let y = x.exp()?.neg()?;
            read.extend(late.to_vec::<f32>()?);
            x = y.tanh()?;
            late = x.abs()?;
            engine.stream().flush();
        }
        Ok(read)
    });
    assert!(replayed >= 10 * 4, "{replayed}");
}

/// Two tensors in place of one, and one in place of two.
#[test]
fn values_are_told_apart() {
    both(Budgets::default(), |engine| {
        let (x, y) = (vector(engine, &[1.0, 2.0]), vector(engine, &[3.0, 4.0]));
        let mut read = Vec::new();
        for round in 0..12 {
            let (one, other) = if round == 5 { (&x, &x) } else { (&x, &y) };
            read.extend(one.mul(other)?.add(other)?.to_vec::<f32>()?);
        }
        for round in 0..12 {
            let other = if round == 5 { &y } else { &x };
            read.extend(x.sub(other)?.mul(&x)?.to_vec::<f32>()?);
        }
        // A result in place of a parameter.
        for round in 0..12 {
            let made = x.abs()?;
            let other = if round == 5 { &made } else { &y };
            read.extend(x.neg()?.add(other)?.add(&made)?.to_vec::<f32>()?);
        }
        Ok(read)
    });
}

/// A read that is no boundary, because the program has had a boundary since the value was made: the
/// ops after it look like a step, but other ops are pending before them.
#[test]
fn what_is_pending_before_a_tape_is_not_forgotten() {
    let (_, replayed) = both(Budgets { ops: 4, joined_ops: 0, ..Budgets::default() }, |engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let step = || {
            let made = x.neg()?;
            made.abs()?.neg()
        };
        let mut read = Vec::new();
        for _ in 0..4 {
            read.extend(step()?.to_vec::<f32>()?);
        }
        // The budget ends a region; the value is read after other events.
        let kept = x.abs()?.abs()?.abs()?.abs()?;
        drop(with_mode(Mode::Strict, || x.abs())?);
        let pending = x.exp()?;
        read.extend(kept.to_vec::<f32>()?);
        let made = x.neg()?;
        drop(pending);
        let made = made.abs()?.neg()?;
        engine.stream().flush();
        read.extend(made.to_vec::<f32>()?);
        for _ in 0..4 {
            read.extend(step()?.to_vec::<f32>()?);
        }
        Ok(read)
    });
    assert!(replayed >= 3, "{replayed}");
}

/// An ordered effect ends a step like a read, and so does another stream's use of a value.
#[test]
fn whatever_asks_for_a_boundary_ends_a_tape() {
    both(Budgets::default(), |engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let (other, mut read) = (engine.new_stream(), Vec::new());
        for round in 0..20 {
            let y = x.neg()?.exp()?;
            match round % 5 {
                0 => engine.stream().flush(),
                1 => engine.synchronize()?,
                2 => drop(with_mode(Mode::Strict, || y.abs())?),
                3 => read.extend(other.from_literal(&x.to_literal()?)?.add(&y)?.to_vec::<f32>()?),
                _ => read.extend(y.to_vec::<f32>()?),
            }
        }
        Ok(read)
    });
}

/// Values that outlive their round are not confused with those of the next.
#[test]
fn values_may_be_kept() {
    both(Budgets::default(), |engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let mut read = Vec::new();
        let mut kept = Vec::new();
        for round in 0..12 {
            let y = x.neg()?;
            let z = y.exp()?;
            if round % 3 == 1 {
                kept.push(y.clone());
            }
            drop(y);
            read.extend(z.to_vec::<f32>()?);
        }
        for value in kept {
            read.extend(value.to_vec::<f32>()?);
        }
        Ok(read)
    });
}

// ----- loops without requested boundaries -----

/// How a round of a loop differs from the others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Odd {
    Nothing,
    Another,
    Reads,
    ReadsLate,
    Flushes,
    Strict,
    Stops,
    Keeps,
    ReadsKept,
    OtherNumber,
}

/// Rounds of this many ops on a few tensors, some of them odd. Values are dropped at once, at the
/// end of their round, or a round later. Returns what is read in the end.
fn endless(
    engine: &Engine,
    seed: u64,
    ops: usize,
    odd: &[(usize, usize, Odd)],
    rounds: usize,
) -> Result<Vec<f32>> {
    let mut source = fuseline_testgen::Seeded::new(seed);
    let kinds: Vec<u32> = (0..ops).map(|_| source.draw(1 << 16)).collect();
    let fixed: Vec<Tensor> = (0..3).map(|at| vector(engine, &[0.5 + at as f32, -1.0])).collect();
    let mut carried: Vec<Tensor> = (0..3).map(|at| vector(engine, &[0.1 * at as f32, 1.0])).collect();
    let (mut garbage, mut kept, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut made: Vec<Tensor> = Vec::new();
        let mut late = std::mem::take(&mut garbage);
        for (at, &kind) in kinds.iter().enumerate() {
            let what = odd
                .iter()
                .find(|&&(r, a, _)| (r, a) == (round, at))
                .map_or(Odd::Nothing, |&(_, _, what)| what);
            let recent = made.len().saturating_sub(1 + (kind >> 3 & 3) as usize);
            let one = made.get(recent).or(late.last()).unwrap_or(&carried[at % 3]).clone();
            let other = &carried[(kind >> 5) as usize % 3];
            match what {
                Odd::Another => drop(one.abs()?),
                Odd::Reads => read.extend(one.to_vec::<f32>()?),
                Odd::ReadsLate => read.extend(carried[1].to_vec::<f32>()?),
                Odd::Flushes => engine.stream().flush(),
                Odd::Strict => drop(with_mode(Mode::Strict, || one.neg())?),
                Odd::Stops => break,
                Odd::Keeps => kept.push(one.clone()),
                Odd::ReadsKept => read.extend(kept.first().map_or(Ok(Vec::new()), Tensor::to_vec::<f32>)?),
                Odd::Nothing | Odd::OtherNumber => {}
            }
            let number = if what == Odd::OtherNumber { 0.25 } else { 0.5 };
            made.push(match kind & 7 {
                0 => one.tanh()?,
                1 => one.add(other)?,
                2 => one.maximum(&fixed[kind as usize % 3])?,
                3 => (&one * number)?,
                4 => one.sub(&fixed[at % 3])?,
                5 => one.minimum(other)?,
                _ => one.mul(&fixed[kind as usize % 3])?.tanh()?,
            });
            if kind >> 8 & 3 == 0 {
                late.pop();
            }
            if kind >> 10 & 7 == 0 && made.len() > 6 {
                drop(made.remove(0));
            }
        }
        for slot in carried.iter_mut() {
            if let Some(value) = made.pop() {
                *slot = value;
            }
        }
        garbage = made.split_off(made.len() / 2);
    }
    for value in carried.iter().chain(&kept) {
        read.extend(value.to_vec::<f32>()?);
    }
    Ok(read)
}

/// A loop without requested boundaries is replayed too, whatever the length of its body.
#[test]
fn a_loop_without_boundaries_is_replayed() {
    for (seed, ops) in [(1, 7), (2, 40), (3, 300), (4, 530), (5, 700), (6, 1_100), (7, 2_300)] {
        let rounds = 30_000 / ops;
        let (regions, replayed) = both(Budgets::default(), |engine| endless(engine, seed, ops, &[], rounds));
        println!("{ops} ops: {replayed} of about {} replayed, {} regions", ops * rounds, regions.len());
        assert!(replayed as usize > ops * rounds / 3, "{ops} ops: {replayed}");
    }
}

/// A loop whose results are all dropped runs nothing, and is replayed like others.
#[test]
fn a_loop_that_nobody_reads_is_replayed() {
    let rounds = 10_000;
    let (regions, replayed) = both(Budgets::default(), |engine| {
        let x = vector(engine, &[0.5, -1.0]);
        for _ in 0..rounds {
            x.mul(&x)?.tanh()?.add(&x)?;
        }
        x.neg()?.to_vec::<f32>()
    });
    println!("{replayed} of {} replayed, {} regions", 3 * rounds, regions.len());
    assert!(replayed as usize > 2 * rounds, "{replayed}");
}

/// A loop that reads at the same place of every ninth round is replayed in between, from the first
/// round after a read.
#[test]
fn a_loop_that_reads_now_and_then_is_replayed() {
    for (seed, ops, at) in [(3, 300, 150), (4, 530, 529), (5, 700, 0), (6, 1_100, 400), (7, 2_300, 2_200)] {
        let rounds = 81 + 9 * (20_000 / 9 / ops);
        let reads: Vec<(usize, usize, Odd)> =
            (0..rounds).filter(|round| round % 9 == 8).map(|round| (round, at, Odd::Reads)).collect();
        let (regions, replayed) =
            both(Budgets::default(), |engine| endless(engine, seed, ops, &reads, rounds));
        println!("{ops} ops: {replayed} of about {} replayed, {} regions", ops * rounds, regions.len());
        assert!(replayed as usize > ops * rounds * 3 / 5, "{ops} ops: {replayed}");
    }
}

/// Blocks of rounds of `ops` ops. A prologue of `ahead` ops precedes each block, and a read follows
/// it.
fn blocks(engine: &Engine, [ahead, ops, rounds, blocks]: [usize; 4]) -> Result<Vec<f32>> {
    let mut source = fuseline_testgen::Seeded::new(ops as u64);
    let kinds: Vec<u32> = (1..ops).map(|_| source.draw(1 << 16)).collect();
    let (x, mut y, mut read) = (vector(engine, &[0.5, -1.0]), vector(engine, &[0.25, 2.0]), Vec::new());
    for _ in 0..blocks {
        let mut total = x.neg()?;
        for _ in 1..ahead {
            total = total.abs()?;
        }
        for _ in 0..rounds {
            for kind in &kinds {
                y = match kind & 3 {
                    0 => y.tanh()?,
                    1 => y.add(&x)?,
                    2 => y.maximum(&x)?,
                    _ => y.mul(&x)?,
                };
            }
            total = total.add(&y)?;
        }
        read.extend(total.to_vec::<f32>()?);
    }
    Ok(read)
}

/// A loop behind a prologue is replayed, with the events that it has without replay.
#[test]
fn a_loop_behind_a_prologue_is_replayed() {
    for program in [[1, 99, 60, 14], [1, 530, 12, 12], [150, 700, 11, 12], [1_200, 700, 11, 12]] {
        let (regions, replayed) = both(Budgets::default(), |engine| blocks(engine, program));
        let [_, ops, rounds, blocks] = program;
        println!("{program:?}: {replayed} of {} replayed, {} regions", ops * rounds * blocks, regions.len());
        // Not in the first blocks, in which it is detected.
        assert!(replayed as usize > ops * rounds * blocks / 2, "{program:?}: {replayed}");
    }
}

/// It diverges at any point, and may come back.
#[test]
fn a_loop_without_boundaries_that_goes_astray_does_what_it_does_without_replay() {
    let all = [
        Odd::Another,
        Odd::Reads,
        Odd::ReadsLate,
        Odd::Flushes,
        Odd::Strict,
        Odd::Stops,
        Odd::Keeps,
        Odd::ReadsKept,
        Odd::OtherNumber,
    ];
    let (mut replayed, mut recorded) = (0, 0);
    for seed in 0..4 * number::<u64>("FUSELINE_PROGRAMS").unwrap_or(1) {
        let mut source = fuseline_testgen::Seeded::new(seed);
        let ops = 5 + source.draw(900) as usize;
        let rounds = 24_000 / ops;
        let odd: Vec<(usize, usize, Odd)> = (0..6)
            .map(|_| {
                let what = all[source.draw(all.len() as u32) as usize];
                (source.draw(rounds as u32) as usize, source.draw(ops as u32) as usize, what)
            })
            .collect();
        println!("seed {seed}: {ops} ops, {rounds} rounds, {odd:?}");
        let (_, some) = both(Budgets::default(), |engine| endless(engine, seed, ops, &odd, rounds));
        replayed += some;
        recorded += ops * rounds;
    }
    assert!(4 * replayed as usize > recorded, "{replayed} of {recorded}");
}

/// A request for a value of a much earlier round is a boundary, if nothing was requested since.
#[test]
fn values_of_earlier_rounds_are_not_forgotten() {
    for ops in [60, 700] {
        let rounds = 30_000 / ops;
        let odd = [(rounds - 20, ops / 3, Odd::Keeps), (rounds - 5, ops / 2, Odd::ReadsKept)];
        let (regions, replayed) = both(Budgets::default(), |engine| endless(engine, 11, ops, &odd, rounds));
        assert!(replayed as usize > ops * rounds / 2, "{ops} ops: {replayed}");
        // That boundary, and the reads at the end.
        assert!(regions.iter().filter(|region| region.contains("HostRead")).count() >= 2);
    }
}

/// A request for a value from before the latest boundary is none, and ends no round.
#[test]
fn values_from_before_a_boundary_end_no_round() {
    for ops in [60, 700] {
        let rounds = 60_000 / ops;
        let odd = [
            (rounds / 2, ops / 3, Odd::Keeps),
            (rounds / 2 + 3, ops / 4, Odd::Flushes),
            (rounds - 6, ops / 2, Odd::ReadsKept),
        ];
        let (_, replayed) = both(Budgets::default(), |engine| endless(engine, 12, ops, &odd, rounds));
        assert!(replayed as usize > ops * rounds / 2, "{ops} ops: {replayed}");
    }
}
