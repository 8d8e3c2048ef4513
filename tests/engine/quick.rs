//! Regions with long compiles are compiled twice: first a baseline executable, then an optimized
//! one.

use std::sync::atomic::{AtomicU32, Ordering};

use fuseline::{Bytes, Engine, EngineConfig, Event, Fault, FaultPoint, Numerics, Tensor};

use crate::support::{Log, compiled_first, plugin, wait_until};

/// A region that is interpreted for as long as its compile takes has no baseline executable.
fn config() -> EngineConfig {
    compiled_first()
}

/// Products and sums whose compile is estimated at more than 100 ms.
fn step(x: &Tensor) -> Vec<f32> {
    let mut y = x.clone();
    for _ in 0..6 {
        y = (y.matmul(x).unwrap() * 0.5).unwrap();
    }
    y.sum(&[0]).unwrap().to_vec::<f32>().unwrap()
}

/// `[[1, 1], [1, 1]]`: each product doubles it, and half of that is the original.
fn input(engine: &Engine) -> Tensor {
    engine.tensor(&[1.0f32; 4], &[2, 2]).unwrap()
}

/// The modules of both compiles are reported before they begin.
#[test]
fn both_compiles_are_told() {
    let log = Log::default();
    let Some(engine) = plugin(config().event_sink(log.sink())) else { return };
    let x = input(&engine);
    assert_eq!((step(&x), step(&x)), (vec![2.0, 2.0], vec![2.0, 2.0]));
    let mut told = Vec::new();
    let (mut modules, mut plans) = (Vec::new(), Vec::new());
    // The end is reported just after it is counted.
    while told.last() != Some(&"slow") {
        for event in log.take() {
            match event {
                Event::Lowered { module, .. } => {
                    told.push("lowered");
                    modules.push(module.text().to_owned());
                }
                Event::CompileStarted { .. } => told.push("started"),
                Event::CompileFinished { quick, memory, .. } => {
                    told.push(if quick { "quick" } else { "slow" });
                    plans.push(memory);
                }
                _ => {}
            }
        }
        std::thread::yield_now();
    }
    assert_eq!(told, ["lowered", "started", "quick", "lowered", "started", "slow"]);
    assert_eq!(modules[0], modules[1]);
    // The memory plan does not depend on the tier, so the baseline is not kept for its plan.
    assert!(plans[0] == plans[1], "{plans:?}");
}

fn compiles(log: &Log) -> Vec<bool> {
    let compile = |event| match event {
        Event::CompileFinished { quick, .. } => Some(quick),
        _ => None,
    };
    log.take().into_iter().filter_map(compile).collect()
}

/// U1.
#[test]
fn what_runs_again_is_compiled_again_and_nobody_waits() {
    let log = Log::default();
    let Some(engine) = plugin(config().event_sink(log.sink())) else { return };
    let x = input(&engine);
    assert_eq!(step(&x), [2.0, 2.0]);
    engine.synchronize().unwrap();
    assert_eq!(compiles(&log), [true]);
    assert_eq!(step(&x), [2.0, 2.0]);
    wait_until(&engine, |counters| counters.compiles == 2);
    for _ in 0..20 {
        assert_eq!(step(&x), [2.0, 2.0]);
    }
    let counters = engine.counters();
    assert_eq!((counters.misses, counters.hits, counters.compiles), (1, 21, 2));
    assert_eq!((counters.fallbacks, counters.cached_executables), (0, 1));
    assert_eq!(compiles(&log), [false]);
}

#[test]
fn what_is_run_once_is_compiled_once() {
    let Some(engine) = plugin(config()) else { return };
    assert_eq!(step(&input(&engine)), [2.0, 2.0]);
    drop(engine.tensor(&[0.0f32], &[1]).unwrap().neg().unwrap().to_vec::<f32>().unwrap());
    assert_eq!(engine.counters().compiles, 2);
}

#[test]
fn what_is_long_to_run_exact_or_compared_is_compiled_at_once() {
    let log = Log::default();
    for config in [
        config().quick_compiles(false),
        config().numerics(Numerics::Exact).compare_regions(false),
        config().compare_regions(true),
        config().compiler_flag("xla_backend_optimization_level", 3i64),
    ] {
        let Some(engine) = plugin(config.event_sink(log.sink())) else { return };
        assert_eq!(step(&input(&engine)), [2.0, 2.0]);
        assert!(!compiles(&log).contains(&true));
    }
    let Some(engine) = plugin(config().event_sink(log.sink())) else { return };
    let large = engine.tensor(&vec![1.0f32; 1 << 22], &[1 << 11, 1 << 11]).unwrap();
    let sums = (0..40).map(|_| large.sum(&[0]).unwrap().sum(&[0]).unwrap());
    let total = sums.reduce(|a, b| (a + b).unwrap()).unwrap();
    assert_eq!(total.item::<f32>().unwrap(), 40.0 * (1 << 22) as f32);
    assert_eq!(compiles(&log), [false]);
}

/// If the second compile fails, the baseline stays.
#[test]
fn a_second_compile_that_fails_costs_speed() {
    let count = AtomicU32::new(0);
    let faults = move |point| match point {
        FaultPoint::Compile { .. } if count.fetch_add(1, Ordering::Relaxed) == 1 => {
            Some(Fault::new("the compiler is tired"))
        }
        _ => None,
    };
    let Some(engine) = plugin(config().inject_faults(faults)) else { return };
    let x = input(&engine);
    assert_eq!((step(&x), step(&x)), (vec![2.0, 2.0], vec![2.0, 2.0]));
    wait_until(&engine, |counters| counters.compile_failures == 1);
    for _ in 0..5 {
        assert_eq!(step(&x), [2.0, 2.0]);
    }
    let counters = engine.counters();
    assert_eq!((counters.misses, counters.hits, counters.compiles, counters.fallbacks), (1, 6, 1, 0));
}

/// Forty updates of a state, where a handle on the state before step `keeps` is kept; from the
/// third on by the optimized executable. Returns how many reused the state's memory.
fn donations(engine: &Engine, keeps: usize) -> u64 {
    let mut x = (input(engine) * 1.0).unwrap();
    engine.synchronize().unwrap();
    let mut kept = None;
    let before = engine.counters();
    for step in 0..40 {
        let mut y = x.clone();
        for _ in 0..6 {
            y = (y.matmul(&x).unwrap() * 0.5).unwrap();
        }
        if step == keeps {
            kept = Some(std::mem::replace(&mut x, y));
        } else {
            x = y;
        }
        engine.synchronize().unwrap();
        if step == 1 {
            wait_until(engine, |counters| counters.compiles == before.compiles + 2);
        }
    }
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 4]);
    drop(kept);
    engine.counters().since(&before).donations
}

/// The optimized executable may reuse whatever any execution could have: in the second one a handle
/// is kept.
#[test]
fn what_replaces_a_stopgap_reuses_memory() {
    let Some(engine) = plugin(config()) else { return };
    assert_eq!(donations(&engine, 1), 39, "all but that of the second step");
}

/// A replacement for a baseline that needs too much memory is not used.
#[test]
fn a_second_compile_that_needs_too_much_is_not_used() {
    for is_oversized in [false, true] {
        let (log, count) = (Log::default(), AtomicU32::new(0));
        let faults = move |point| match point {
            FaultPoint::Compile { ops } if ops > 6 && count.fetch_add(1, Ordering::Relaxed) == 1 => {
                is_oversized.then(|| Fault::oversized(Bytes(1 << 30)))
            }
            _ => None,
        };
        let Some(engine) = plugin(config().inject_faults(faults).event_sink(log.sink())) else { return };
        // The baseline, made while a handle is kept, reuses nothing.
        assert_eq!(donations(&engine, 0), if is_oversized { 0 } else { 38 });
        let told: Vec<bool> = log
            .take()
            .iter()
            .filter_map(|event| match event {
                Event::CompileFinished { region, quick, .. } if region.ops > 6 => Some(*quick),
                Event::Oversized { memory, .. } => Some(memory.temporaries < Bytes(1 << 30)),
                _ => None,
            })
            .collect();
        assert_eq!(told, &[true, false, false][..if is_oversized { 3 } else { 2 }]);
        let counters = engine.counters();
        assert_eq!((counters.partitioned, counters.fallbacks, counters.compile_failures), (0, 0, 0));
    }
}
