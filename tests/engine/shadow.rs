//! The differential check: what is compared, the consequences, and that a program only ever gets
//! the results of its ops.

use std::sync::atomic::{AtomicUsize, Ordering};

use fuseline::{Engine, Event, Fault, FaultPoint, Mode, Numerics, Result, with_mode};

use crate::support::{self, Log, on_engines, plugin, plugin_for, step, vector, wait_until};

/// Waits until an engine has compared this many executables.
fn wait_for(engine: &Engine, compared: u64) {
    wait_until(engine, |counters| counters.compared >= compared);
    // It is reported just after it is counted.
    engine.synchronize().unwrap();
}

#[test]
fn a_region_is_compared_once_and_then_fused() {
    let log = Log::default();
    let config = || support::config().compare_regions(true).event_sink(log.sink());
    on_engines(config, |engine| {
        log.take();
        let x = vector(engine, &[2.0, 4.0]);
        assert_eq!(step(&x)?, [2.0, 3.0]);
        wait_for(engine, 1);
        let events = log.take();
        assert_eq!(events.iter().filter(|event| matches!(event, Event::CheckRunning { .. })).count(), 1);
        let before = engine.counters();
        for _ in 0..10 {
            assert_eq!(step(&x)?, [2.0, 3.0]);
        }
        let did = engine.counters().since(&before);
        assert_eq!((did.executions, did.compiles, did.compared, did.fallbacks), (10, 0, 0, 0));
        let of_the_check =
            |event: &Event| matches!(event, Event::CheckRunning { .. } | Event::Compared { .. });
        let late: Vec<Event> = log.take().into_iter().filter(of_the_check).collect();
        assert!(
            late.iter().all(|event| matches!(event, Event::Compared { difference: None, .. })),
            "{late:?}"
        );
        assert_eq!(engine.counters().different, 0);
        Ok(())
    });
}

/// Before the comparison, the ops run one by one, also if they are requested in several ways: on
/// two streams.
#[test]
fn a_region_in_trial_runs_op_by_op() {
    let config = || {
        // The comparison never succeeds.
        support::config().compare_regions(true).inject_faults(|point| match point {
            FaultPoint::Download { .. } => Some(Fault::new("no way to the host")),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        let x = vector(engine, &[2.0, 4.0]);
        // An op of its own broadcasts a scalar.
        for round in 0..5 {
            let before = engine.counters();
            let y = ((&x * 0.5)? + 1.0)?;
            engine.synchronize()?;
            drop(y);
            let did = engine.counters().since(&before);
            // Those of the ops. The execution of the region is not counted.
            assert_eq!((did.executions, did.poisoned, did.compared), (4, 0, 0), "round {round}");
        }
        Ok(())
    });
}

#[test]
fn a_check_that_fails_fails_nothing_and_is_made_again() {
    let config = || {
        let counted = AtomicUsize::new(0);
        support::config().compare_regions(true).inject_faults(move |point| match point {
            FaultPoint::Execute { ops } if ops > 1 && counted.fetch_add(1, Ordering::Relaxed) < 3 => {
                Some(Fault::new("the device is busy"))
            }
            _ => None,
        })
    };
    on_engines(config, |engine| {
        let x = vector(engine, &[2.0, 4.0]);
        for _ in 0..3 {
            assert_eq!(step(&x)?, [2.0, 3.0]);
        }
        let counters = engine.counters();
        assert_eq!((counters.fallbacks, counters.poisoned, counters.compared), (3, 0, 0));
        assert_eq!(step(&x)?, [2.0, 3.0]);
        wait_for(engine, 1);
        let before = engine.counters();
        assert_eq!(step(&x)?, [2.0, 3.0]);
        assert_eq!(engine.counters().since(&before).executions, 1);
        Ok(())
    });
}

/// Inputs of the check's run are not donated, even if they die.
#[test]
fn inputs_that_die_are_there_for_the_ops() {
    on_engines(
        || support::config().compare_regions(true),
        |engine| {
            let mut x = vector(engine, &[2.0; 1000]);
            for _ in 0..20 {
                x = ((&x * 0.5)? + 1.0)?;
                engine.synchronize()?;
            }
            assert_eq!(x.to_vec::<f32>()?, [2.0; 1000]);
            assert_eq!(engine.counters().poisoned, 0);
            Ok(())
        },
    );
}

/// `a * b` minus its rounded value: zero, unless the product is contracted with the subtraction.
#[test]
fn a_region_that_differs_is_not_fused_again() {
    let log = Log::default();
    let engine = |numerics| {
        let config = support::config().numerics(numerics).compare_regions(true).event_sink(log.sink());
        plugin_for("the interpreter computes regions op by op", config)
    };
    let Some(fast) = engine(Numerics::Fast) else { return };
    let run = |engine: &Engine| -> Result<bool> {
        let data: Vec<f32> = (0..1000u16).map(|n| 1.0 + f32::from(n) / 7919.0).collect();
        let x = engine.tensor(&data, &[1000])?;
        let product = with_mode(Mode::Strict, || (&x * &x)?.to_vec::<f32>())?;
        let product = engine.tensor(&product, &[1000])?;
        Ok(((&x * &x)? - &product)?.to_vec::<f32>()?.iter().all(|rest| *rest == 0.0))
    };
    assert!(run(&fast).unwrap());
    wait_for(&fast, 1);
    assert_eq!(fast.counters().different, 1);
    for _ in 0..5 {
        assert!(run(&fast).unwrap());
    }
    assert_eq!((fast.counters().compared, fast.counters().fallbacks), (1, 5));
    let events = log.take();
    let told: Vec<String> = events
        .iter()
        .filter(|event| matches!(event, Event::Compared { difference: Some(_), .. }))
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains("not fused again") && told[0].contains("tests/engine/shadow.rs:"),
        "{}",
        told[0]
    );

    // Without the check the difference reaches the program, so this is what the check finds.
    let unchecked = support::compiled_first().build().unwrap();
    assert!(!run(&unchecked).unwrap());
    // With exact numerics there is nothing to find.
    let exact = engine(Numerics::Exact).expect("as before");
    assert!(run(&exact).unwrap());
    wait_for(&exact, 1);
    assert!(run(&exact).unwrap());
    assert_eq!((exact.counters().different, exact.counters().fallbacks), (0, 0));
}

/// Z1: if an executable returns more results than at its first run, they are compared when they are
/// needed.
#[test]
fn results_that_were_not_needed_are_compared_when_they_are() {
    let config = support::config().numerics(Numerics::Fast).compare_regions(true);
    let Some(engine) = plugin_for("the interpreter computes regions op by op", config) else { return };
    let data: Vec<f32> = (0..1000u16).map(|n| 1.0 + f32::from(n) / 7919.0).collect();
    let x = engine.tensor(&data, &[1000]).unwrap();
    let product = with_mode(Mode::Strict, || (&x * &x)?.to_vec::<f32>()).unwrap();
    let product = engine.tensor(&product, &[1000]).unwrap();
    // The first is zero by ops, and is not if the product is not rounded.
    let run = |keep: &[usize]| -> Result<Vec<Vec<f32>>> {
        let rest = ((&x * &x)? - &product)?;
        let mut values =
            vec![rest, x.neg()?, x.sqrt()?, x.exp()?, x.tanh()?].into_iter().map(Some).collect::<Vec<_>>();
        let all: Vec<&fuseline::Tensor> = values.iter().flatten().collect();
        let total = all[1..].iter().try_fold(all[0].clone(), |sum, value| &sum + *value)?.sum(&[0])?;
        values
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| !keep.contains(at))
            .for_each(|(_, value)| *value = None);
        total.item::<f32>()?;
        values.iter().flatten().map(fuseline::Tensor::to_vec).collect()
    };
    // The largest number of variants. The fifth has all results that any of them needed, and is
    // compared when the first is not needed.
    for (compared, keep) in [[0], [1], [2], [3], [4]].iter().enumerate() {
        run(keep).unwrap();
        wait_for(&engine, compared as u64 + 1);
    }
    assert_eq!(engine.counters().different, 1);
    for _ in 0..3 {
        let values = run(&[0, 4]).unwrap();
        assert!(
            values[0].iter().all(|rest| *rest == 0.0),
            "{:?}",
            values[0].iter().find(|rest| **rest != 0.0)
        );
        wait_for(&engine, 6);
    }
    assert_eq!(engine.counters().different, 2);
}

/// An op that the plugin computes differently in a region, and that no stable variant replaces, is
/// not compiled with others.
#[test]
fn an_op_that_nothing_keeps_exact_runs_alone() {
    let Some(exact) = plugin(support::config().numerics(Numerics::Exact)) else { return };
    let data: Vec<f32> = (0..1000u16).map(|n| f32::from(n) / 97.0).collect();
    let x = exact.tensor(&data, &[1000]).unwrap();
    let run = |mode| with_mode(mode, || ((&x * &x)?.asinh()? + &x)?.to_vec::<f32>());
    let strict = run(Mode::Strict).unwrap();
    for _ in 0..3 {
        assert_eq!(run(Mode::Fused).unwrap(), strict);
    }
    let counters = exact.counters();
    assert_eq!((counters.fallbacks, counters.poisoned), (3, 0));
}
