//! New regions: interpreted while a compile would take longer, then compiled. Only the timing shows
//! the difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuseline::{Engine, EngineConfig, Event, Fault, FaultPoint, Literal, Mode, Numerics, with_mode};

use crate::support::{Gate, Log, plugin, step, vector, wait_until};

#[test]
fn a_region_is_interpreted_until_it_pays_to_compile_it() {
    let log = Log::default();
    let Some(engine) = plugin(EngineConfig::new().event_sink(log.sink())) else { return };
    let x = vector(&engine, &[2.0, 4.0]);
    for _ in 0..10 {
        assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    }
    let counters = engine.counters();
    assert_eq!((counters.interpreted, counters.misses, counters.hits, counters.executions), (10, 1, 0, 0));
    wait_until(&engine, |counters| counters.compiles > 0);
    for _ in 0..5 {
        assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    }
    let counters = engine.counters();
    assert_eq!((counters.interpreted, counters.misses, counters.executions), (10, 1, 5));
    assert_eq!((counters.compiles, counters.fallbacks, counters.poisoned), (1, 0, 0));
    let runs: Vec<(u32, u32)> = log
        .take()
        .iter()
        .filter_map(|event| match event {
            Event::Interpreted { run, of, .. } => Some((*run, *of)),
            _ => None,
        })
        .collect();
    assert_eq!(runs, (1..=10).map(|run| (run, 10)).collect::<Vec<_>>());
}

/// A process that is about to end still gets every value.
#[test]
fn paused_background_compiles_hold_up_nobody() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let x = vector(&engine, &[2.0, 4.0]);
    engine.pause_background_compiles();
    for _ in 0..30 {
        assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    }
    let counters = engine.counters();
    assert_eq!((counters.interpreted, counters.compiles), (30, 0), "{counters:?}");
    // Regions that are waited for are compiled.
    with_mode(Mode::Strict, || assert_eq!(step(&x).unwrap(), [2.0, 3.0]));
    assert!(engine.counters().compiles > 0, "{:?}", engine.counters());
}

/// No thread waits for a compile while the interpreter could do the work in that time.
#[test]
fn a_region_is_interpreted_for_as_long_as_its_compile_takes() {
    let gate = Gate::new();
    let held = gate.shut();
    let config = EngineConfig::new().inject_faults(gate.at_compiles());
    let Some(engine) = plugin(config) else { return };
    let x = vector(&engine, &[2.0, 4.0]);
    for _ in 0..40 {
        assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    }
    let counters = engine.counters();
    assert_eq!(
        (counters.interpreted, counters.misses, counters.executions, counters.compiles),
        (40, 1, 0, 0)
    );
    drop(held);
    wait_until(&engine, |counters| counters.compiles > 0);
    for _ in 0..3 {
        assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    }
    let counters = engine.counters();
    assert_eq!((counters.interpreted, counters.executions, counters.compiles), (40, 3, 1));
}

/// A new shape in each round, none twice.
#[test]
fn what_is_run_once_is_not_compiled() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    for size in 1..200 {
        let x = engine.tensor(&vec![2.0f32; size], &[size]).unwrap();
        assert_eq!(step(&x).unwrap(), vec![2.0; size]);
    }
    let counters = engine.counters();
    assert_eq!((counters.interpreted, counters.compiles), (199, 0));
}

#[test]
fn what_is_large_is_compiled_at_once() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let x = engine.tensor(&vec![0.0f32; 1 << 22], &[1 << 22]).unwrap();
    assert_eq!((&x * 0.5).unwrap().tanh().unwrap().sum(&[0]).unwrap().item::<f32>().unwrap(), 0.0);
    assert_eq!((engine.counters().interpreted, engine.counters().compiles), (0, 1));
}

/// A region that takes long to interpret is compiled at the same time.
#[test]
fn a_long_region_is_compiled_beside_its_first_execution() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let x = engine.tensor(&vec![2.0f32; 1 << 21], &[1 << 21]).unwrap();
    assert_eq!(step(&x).unwrap()[0], 2.0);
    wait_until(&engine, |counters| counters.compiles > 0);
    assert_eq!((engine.counters().interpreted, engine.counters().executions), (1, 0));
    for _ in 0..10 {
        assert_eq!(step(&x).unwrap()[0], 2.0);
    }
    let counters = engine.counters();
    assert_eq!(counters.compiles, 1);
    assert!(1 < counters.interpreted && counters.interpreted < 10, "{counters:?}");
}

/// Nothing is interpreted if the numerics or the device forbid it.
#[test]
fn only_fast_fused_regions_of_the_host_are_interpreted() {
    let quiet = |engine: &Engine| {
        let x = vector(engine, &[2.0, 4.0]);
        for _ in 0..3 {
            assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
        }
        assert_eq!(engine.counters().interpreted, 0, "{engine:?}");
    };
    quiet(&EngineConfig::new().build_reference().unwrap());
    for config in [
        EngineConfig::new().numerics(Numerics::Exact),
        EngineConfig::new().compare_regions(true),
        EngineConfig::new().mode(Mode::Strict),
        EngineConfig::new().mode(Mode::Debug),
        EngineConfig::new().interpret_cold_regions(false),
        EngineConfig::new().replicas(2),
    ] {
        let Some(engine) = plugin(config) else { return };
        quiet(&engine);
    }
}

/// J2: failures of the interpreter only cost speed.
#[test]
fn what_the_interpreter_fails_on_is_compiled() {
    let fails = Arc::new(AtomicBool::new(true));
    let asked = fails.clone();
    let log = Log::default();
    let config = EngineConfig::new().event_sink(log.sink()).inject_faults(move |point| match point {
        FaultPoint::Execute { ops } if ops > 1 && asked.swap(false, Ordering::Relaxed) => {
            Some(Fault::new("no interpreter today"))
        }
        _ => None,
    });
    let Some(engine) = plugin(config) else { return };
    let x = vector(&engine, &[2.0, 4.0]);
    for _ in 0..3 {
        assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    }
    assert!(!fails.load(Ordering::Relaxed));
    let counters = engine.counters();
    assert_eq!((counters.interpreted, counters.executions, counters.misses), (1, 3, 1));
    assert_eq!((counters.fallbacks, counters.poisoned), (0, 0));
    let told =
        |event: &Event| matches!(event, Event::NotInterpreted { why, .. } if why == "no interpreter today");
    assert_eq!(log.take().iter().filter(|event| told(event)).count(), 1);
}

/// Data of interpreted regions passes to compiled ones and back, across streams, and is donated
/// like any other.
#[test]
fn cold_and_warm_regions_hand_each_other_data() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let other = engine.new_stream();
    let large = engine.tensor(&vec![1.0f32; 1 << 22], &[1 << 22]).unwrap();
    let mut small = engine.tensor(&[1.0f32], &[]).unwrap();
    for round in 0..20 {
        // Too large to be interpreted; reads an interpreted result.
        let sum = (&large * &small.broadcast_to(&[1 << 22]).unwrap()).unwrap().sum(&[0]).unwrap();
        engine.stream().flush();
        // Small enough; reads a compiled result, on another stream.
        let one = other.from_literal(&Literal::from_slice(&[], &[1.0f32]).unwrap()).unwrap();
        small = (&one + &(&sum / 4_194_304.0).unwrap()).unwrap();
        assert_eq!(small.item::<f32>().unwrap(), f32::from(round as u8) + 2.0);
    }
    let counters = engine.counters();
    assert!(counters.interpreted > 0 && counters.executions > 0, "{counters:?}");
    assert_eq!(counters.poisoned, 0);
}

/// J1: with `reproducible`, two runs of a program have the same bits, round by round.
#[test]
fn runs_of_a_program_are_alike() {
    let run = || -> Option<Vec<Vec<u32>>> {
        let engine = plugin(EngineConfig::new().reproducible(true))?;
        let data: Vec<f32> = (0..512u16).map(|n| f32::from(n) / 97.0).collect();
        let mut x = engine.tensor(&data, &[512]).unwrap();
        let mut rounds = Vec::new();
        for _ in 0..25 {
            x = ((&x * &x).unwrap() + &x).unwrap().tanh().unwrap();
            x = ((&x * 3.1).unwrap() - 0.2).unwrap().exp().unwrap();
            rounds.push(x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect());
        }
        let counters = engine.counters();
        assert_eq!((counters.interpreted, counters.executions, counters.compiles), (10, 15, 1));
        Some(rounds)
    };
    let Some(first) = run() else { return };
    for _ in 0..3 {
        assert_eq!(run().as_ref(), Some(&first));
    }
}

/// The same for a program whose regions are merged: it waits for them instead of running their
/// units until they are there.
#[test]
fn runs_of_a_long_program_are_alike() {
    let run = || -> Option<Vec<Vec<u32>>> {
        let engine = plugin(EngineConfig::new().reproducible(true))?;
        let data: Vec<f32> = (0..512u16).map(|n| f32::from(n) / 97.0).collect();
        let mut x = engine.tensor(&data, &[512]).unwrap();
        let mut rounds = Vec::new();
        for _ in 0..14 {
            for _ in 0..500 {
                x = ((&(&x * &x).unwrap() + &x).unwrap() * 0.25).unwrap().tanh().unwrap();
            }
            x = (&x * 1.5).unwrap();
            rounds.push(x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect());
        }
        let counters = engine.counters();
        assert!(counters.interpreted > 0 && counters.pending_compiles == 0, "{counters:?}");
        Some(rounds)
    };
    let Some(first) = run() else { return };
    assert_eq!(run().as_ref(), Some(&first));
}

/// A failure reaches its dependents through interpreted regions.
#[test]
fn failures_go_through_cold_regions() {
    let config = EngineConfig::new().inject_faults(|point| match point {
        FaultPoint::Execute { ops: 1 } => Some(Fault::new("the device is on fire")),
        _ => None,
    });
    let Some(engine) = plugin(config) else { return };
    let x = vector(&engine, &[2.0, 4.0]);
    let burnt = with_mode(Mode::Strict, || x.neg()).unwrap();
    let after = ((&burnt * &x).unwrap() + &x).unwrap();
    let error = after.to_vec::<f32>().unwrap_err();
    assert!(error.to_string().contains("on fire"), "{error}");
    assert_eq!(vector(&engine, &[1.0]).to_vec::<f32>().unwrap(), [1.0]);
}
