//! Merged regions: units that always follow each other become one region. Tests what runs when, and
//! that merging neither causes waits nor changes results.

use std::time::{Duration, Instant};

use fuseline::fusion::canon::RegionKey;
use fuseline::{Budgets, Engine, Event, Fault, FaultPoint, Mode, Result, Tensor, Wait, with_mode};
use fuseline_testgen::{Entropy, Seeded};

use crate::support::{self, Log, on_engines, plugin, vector, wait_until};

/// Units of 16 ops.
fn small() -> Budgets {
    Budgets { ops: 16, ..Budgets::default() }
}

/// A step of 2 * `ops` ops (and their broadcast scalars) on `x`, whose sum is read.
fn step(x: &Tensor, ops: usize) -> Result<(Tensor, f32)> {
    let mut next = x.clone();
    for _ in 0..ops {
        next = ((&next * 0.5)? + 0.25)?;
    }
    let sum = next.sum(&[0])?.item::<f32>()?;
    Ok((next, sum))
}

/// The number of ops of each sealed region in some events.
fn sealed(events: &[Event]) -> Vec<usize> {
    let ops = |event: &Event| match event {
        Event::Sealed { region, .. } => Some(region.ops),
        _ => None,
    };
    events.iter().filter_map(ops).collect()
}

fn in_units(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::RanUnmerged { .. })).count()
}

#[test]
fn a_step_of_several_units_becomes_one_region() {
    let log = Log::default();
    on_engines(
        || support::config().region_budgets(small()).event_sink(log.sink()),
        |engine| {
            log.take();
            let mut x = vector(engine, &[1.0, 2.0]);
            let mut steps: Vec<Vec<Event>> = Vec::new();
            let start = Instant::now();
            // Until the merged region is compiled.
            while steps.len() < 5 || in_units(steps.last().unwrap()) > 0 {
                x = step(&x, 20)?.0;
                steps.push(log.take());
                assert!(start.elapsed() < Duration::from_secs(60), "{} steps in units", steps.len());
            }
            let whole: usize = sealed(&steps[0]).iter().sum();
            assert!(sealed(&steps[0]).len() > 3 && sealed(&steps[1]) == sealed(&steps[0]));
            // Their units are known: from the second step on nothing waits for a compile, whatever
            // is merged.
            let waits = |event: &&Event| matches!(event, Event::Waited { wait: Wait::Compile, .. });
            let waited = steps[1..].iter().flatten().find(waits);
            assert_eq!(waited.map(ToString::to_string), None);
            // From the third step on it is one region, which runs as its units until it is
            // compiled.
            for events in &steps[2..] {
                assert_eq!(sealed(events)[0], whole);
                match in_units(events) {
                    0 => assert_eq!(sealed(events), [whole]),
                    _ => assert_eq!(sealed(events)[1..], sealed(&steps[0])),
                }
            }
            // The units' own, which may come later.
            wait_until(engine, |counters| counters.pending_compiles == 0);
            let before = engine.counters();
            for _ in 0..5 {
                let (next, sum) = step(&x, 20)?;
                x = next;
                assert!((sum - 1.0).abs() < 1e-3, "{sum}");
            }
            let did = engine.counters().since(&before);
            assert_eq!((did.compiles, did.executions, did.regions), (0, 5, 5));
            Ok(())
        },
    );
}

#[test]
fn a_joined_region_that_does_not_compile_runs_as_its_units() {
    let log = Log::default();
    let config = || {
        support::config().region_budgets(small()).event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Compile { ops } if ops > 16 => Some(Fault::new("too many ops for today")),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        let mut x = vector(engine, &[1.0, 2.0]);
        for _ in 0..40 {
            x = step(&x, 20)?.0;
        }
        assert_eq!(x.to_vec::<f32>()?, [0.5, 0.5]);
        let events = log.take();
        assert_eq!(in_units(&events), 38);
        let is_fallback = |event: &&Event| matches!(event, Event::Fallback { .. } | Event::Poisoned { .. });
        assert_eq!(events.iter().find(is_fallback).map(ToString::to_string), None);
        // Nobody has waited for the compile, which may still be running.
        wait_until(engine, |counters| counters.compile_failures > 0);
        // It is not tried again in each step.
        let failures = engine.counters().compile_failures;
        assert!((1..10).contains(&failures), "{failures} compiles failed");
        Ok(())
    });
}

/// Steps that read more inputs than a merged region may have stay units, with and without a read in
/// each.
#[test]
fn what_would_have_too_many_inputs_is_not_joined() {
    let log = Log::default();
    let budgets = Budgets { joined_inputs: 4, ..small() };
    on_engines(
        || support::config().region_budgets(budgets).event_sink(log.sink()),
        |engine| {
            let inputs: Vec<Tensor> = (0..8u8).map(|at| vector(engine, &[f32::from(at), 1.0])).collect();
            let long =
                |x: &Tensor| inputs.iter().try_fold(x.clone(), |x, input| ((&x * 0.5)? + input)?.tanh());
            for reads in [true, false] {
                log.take();
                let mut x = vector(engine, &[1.0, 2.0]);
                for _ in 0..if reads { 8 } else { 200 } {
                    x = long(&x)?;
                    if reads {
                        x.to_vec::<f32>()?;
                    }
                }
                let fused = x.to_vec::<f32>()?;
                let sizes = sealed(&log.take());
                assert!(sizes.len() > 8 && sizes.iter().all(|&ops| ops <= 16), "reads {reads}: {sizes:?}");
                let mut x = vector(engine, &[1.0, 2.0]);
                for _ in 0..if reads { 8 } else { 200 } {
                    x = with_mode(Mode::Strict, || long(&x))?;
                }
                let strict = x.to_vec::<f32>()?;
                assert!(
                    fused.iter().zip(&strict).all(|(a, b)| (a - b).abs() < 1e-6),
                    "{fused:?}, {strict:?}"
                );
            }
            Ok(())
        },
    );
}

/// A loop without a requested boundary: a few executables, whatever its length.
#[test]
fn a_loop_without_reads_compiles_a_few_regions() {
    on_engines(support::config, |engine| {
        for ops in [3, 25, 100] {
            let before = engine.counters();
            let mut x = vector(engine, &[1.0, 2.0, 3.0]);
            let round = |x: &Tensor| -> Result<Tensor> {
                let mut next = x.clone();
                for op in 0..ops {
                    next = match op % 3 {
                        0 => (&next * 0.5)?,
                        1 => (&next + 0.25)?,
                        _ => next.tanh()?,
                    };
                }
                Ok(next)
            };
            for _ in 0..20_000 / ops {
                x = round(&x)?;
            }
            let result = x.to_vec::<f32>()?;
            assert!(result.iter().all(|&number| number.is_finite() && number > 0.0), "{result:?}");
            engine.synchronize()?;
            let did = engine.counters().since(&before);
            // The first region, which begins elsewhere in the round; the unit; the merged units;
            // the rest at the end.
            assert!(did.compiles <= 5, "{ops} ops: {} compiles of {} regions", did.compiles, did.regions);
        }
        Ok(())
    });
}

/// Steps that sometimes differ from those before, end early, or are read in the middle.
fn wander(engine: &Engine, seed: u64) -> Result<Vec<f32>> {
    let mut entropy = Seeded::new(seed);
    let weights: Vec<Tensor> = (0..6).map(|i| vector(engine, &[0.5 + 0.1 * i as f32, 0.25])).collect();
    let mut x = vector(engine, &[1.0, -1.0]);
    let mut seen = Vec::new();
    let mut kept: Vec<Tensor> = Vec::new();
    for _ in 0..30 {
        let odd = (entropy.draw(4) == 0).then(|| entropy.draw(40) as usize);
        let early = (entropy.draw(6) == 0).then(|| entropy.draw(40) as usize);
        let loss = x.sum(&[0])?;
        for op in 0..40 {
            let weight = &weights[op * 7 % weights.len()];
            x = match (op % 4, odd == Some(op)) {
                (_, true) => x.sub(&weights[0])?,
                (0, _) => x.mul(weight)?,
                (1, _) => x.add(weight)?,
                (2, _) => x.tanh()?,
                _ => x.maximum(weight)?,
            };
            if entropy.draw(60) == 0 {
                kept.push(x.clone());
            }
            if early == Some(op) {
                seen.extend(x.to_vec::<f32>()?);
            }
            if entropy.draw(80) == 0 {
                kept.clear();
            }
        }
        seen.push(loss.item::<f32>()?);
    }
    for tensor in kept {
        seen.extend(tensor.to_vec::<f32>()?);
    }
    seen.extend(x.to_vec::<f32>()?);
    Ok(seen)
}

#[test]
fn whatever_follows_the_results_are_those_of_single_ops() {
    let log = Log::default();
    on_engines(
        || support::config().region_budgets(small()).event_sink(log.sink()),
        |engine| {
            for seed in 0..6 {
                let strict = with_mode(Mode::Strict, || wander(engine, seed))?;
                let fused = wander(engine, seed)?;
                assert_eq!(strict.len(), fused.len());
                for (at, (a, b)) in strict.iter().zip(&fused).enumerate() {
                    assert!(
                        (a - b).abs() <= 1e-5 * a.abs().max(1.0),
                        "seed {seed}, number {at}: {a}, fused {b}"
                    );
                }
            }
            assert!(in_units(&log.take()) > 0, "nothing was joined");
            Ok(())
        },
    );
}

/// Set in the process that has to end.
const CHILD: &str = "FUSELINE_TEST_ENDS_WHILE_COMPILING";

/// A background compile is running.
#[test]
fn the_process_ends_with_its_own_status_while_a_region_is_compiled() {
    if std::env::var_os(CHILD).is_some() {
        let (told, log) = std::sync::mpsc::channel();
        let engine = support::config().region_budgets(small()).event_sink(move |event: &Event| {
            if let Event::CompileStarted { region } = event
                && region.ops > 100
            {
                let _ = told.send(());
            }
        });
        let engine = engine.build().unwrap();
        let x = vector(&engine, &[1.0; 16]);
        while log.try_recv().is_err() {
            step(&x, 100).unwrap();
        }
        std::process::exit(7);
    }
    if plugin(support::config()).is_none() {
        return;
    }
    for _ in 0..4 {
        let test = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(test);
        child.args(["--exact", "joined::the_process_ends_with_its_own_status_while_a_region_is_compiled"]);
        let output = child.env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", output.status);
    }
}

/// Boundary reason, number of ops and key of each sealed region in some events.
fn keys(events: &[Event]) -> Vec<(String, usize, RegionKey)> {
    let key = |event: &Event| match event {
        Event::Sealed { region, boundary, .. } => Some((boundary.name().to_owned(), region.ops, region.key)),
        _ => None,
    };
    events.iter().filter_map(key).collect()
}

/// An optimizer's initial zeros do not make the first step a different region.
#[test]
fn a_first_step_is_the_region_that_the_others_are() {
    let log = Log::default();
    on_engines(
        || support::config().event_sink(log.sink()),
        |engine| {
            log.take();
            let zeros = |_| engine.full(0.0f32, &[2]);
            let mut state = (0..20).map(zeros).collect::<Result<Vec<_>>>()?;
            let x = vector(engine, &[1.0, 2.0]);
            for round in 1..=5 {
                let step = |old: &Tensor| (old * 0.5)? + &x;
                state = state.iter().map(step).collect::<Result<_>>()?;
                let expected = 2.0 - 0.5f32.powi(round - 1);
                assert_eq!(state[0].to_vec::<f32>()?, [expected, 2.0 * expected]);
            }
            let all = keys(&log.take());
            let ends: Vec<(&str, usize)> = all.iter().map(|(end, ops, _)| (end.as_str(), *ops)).collect();
            let step = ("host_read", all[1].1);
            assert_eq!(ends, [("setup", 20), step, step, step, step, step]);
            assert!(all[1..].iter().all(|(_, _, key)| *key == all[1].2));
            Ok(())
        },
    );
}

/// A loop whose rounds begin with zeros is cut there until the two regions are merged.
#[test]
fn a_round_that_begins_with_zeros_becomes_one_region() {
    let log = Log::default();
    let engine = support::config().reproducible(true).event_sink(log.sink()).build_reference().unwrap();
    let x = vector(&engine, &[1.0, 2.0]);
    for _ in 0..6 {
        let sums: Vec<Tensor> = (0..20).map(|_| engine.full(0.0f32, &[2]).unwrap()).collect();
        let all = sums.iter().fold(x.clone(), |all, sum| (all + sum).unwrap());
        assert_eq!(all.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    }
    let all = keys(&log.take());
    assert_eq!((all[0].0.as_str(), all[0].1), ("setup", 20));
    let (end, ops, _) = all.last().unwrap();
    assert_eq!((end.as_str(), *ops), ("host_read", 40));
}
