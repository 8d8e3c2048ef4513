//! Scalars that stay the same are compiled in; only the timing shows the difference.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fuseline::{Bytes, Engine, Event, Fault, FaultPoint, Numerics, Tensor};

use crate::support::{self, Log, plugin, vector, wait_until, warm_up};

/// More executions than a scalar needs to count as steady.
const MANY: usize = 1_100;

fn step(x: &Tensor, exponent: f32, rate: f32) -> Vec<f32> {
    let engine = x.on_stream();
    let powers = x.pow(&engine.scalar(exponent)).unwrap();
    (&powers * &engine.scalar(rate)).unwrap().to_vec::<f32>().unwrap()
}

/// Runs the step by its executable from now on.
fn steady(engine: &Engine, step: impl Fn() -> Vec<f32>) {
    let step = || {
        step();
        Ok(())
    };
    warm_up(engine, step).unwrap();
}

fn wanted(exponent: f32, rate: f32) -> Vec<f32> {
    [1.0f32, 2.0, 3.0].map(|x| x.powf(exponent) * rate).to_vec()
}

/// Waits for a scalar specialization. Returns the bits of its scalars, and the modules of the
/// region's compiles.
fn specialised(log: &Log) -> (Vec<u64>, Vec<String>) {
    let start = Instant::now();
    let mut modules = Vec::new();
    loop {
        for event in log.take() {
            match event {
                Event::Lowered { module, .. } => modules.push(module.text().to_owned()),
                Event::Specialised { scalars, .. } => {
                    return (scalars.into_iter().map(|(_, value)| value.bits()).collect(), modules);
                }
                _ => {}
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was compiled in");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// I1, I2.
#[test]
fn a_scalar_that_stays_is_compiled_in_behind_a_guard() {
    let log = Log::default();
    let Some(engine) = plugin(support::config().event_sink(log.sink())) else { return };
    let x = vector(&engine, &[1.0, 2.0, 3.0]);
    steady(&engine, || step(&x, 2.0, 0.0));
    // The rate is a schedule, the exponent is steady.
    for i in 0..MANY {
        let rate = i as f32;
        assert_eq!(step(&x, 2.0, rate), wanted(2.0, rate));
    }
    let (scalars, modules) = specialised(&log);
    assert_eq!(scalars, [u64::from(2.0f32.to_bits())]);
    // The compiler got the number, and the module was reported.
    let [general, special] = modules.as_slice() else { panic!("{} compiles were told", modules.len()) };
    let two = "0x00000040";
    assert!(!general.contains(two) && special.contains(two), "{special}");
    let before = engine.counters();
    for i in 0..20 {
        let rate = i as f32;
        assert_eq!(step(&x, 2.0, rate), wanted(2.0, rate));
    }
    let after = engine.counters().since(&before);
    assert_eq!((after.specialised, after.hits, after.compiles, after.executions), (20, 20, 0, 20));
    // Another value runs at once, with the general executable.
    let before = engine.counters();
    for exponent in [3.0, 2.0, 1.0] {
        assert_eq!(step(&x, exponent, 1.0), wanted(exponent, 1.0));
    }
    let after = engine.counters().since(&before);
    assert_eq!((after.specialised, after.hits, after.compiles, after.misses), (0, 3, 0, 0));
}

#[test]
fn exact_numbers_and_schedules_are_left_alone() {
    let exact = plugin(support::config().numerics(Numerics::Exact).compare_regions(false));
    let compared = plugin(support::config().compare_regions(true));
    let off = plugin(support::config().specialise_scalars(false));
    for engine in exact.into_iter().chain(compared).chain(off) {
        let x = vector(&engine, &[1.0, 2.0, 3.0]);
        steady(&engine, || step(&x, 2.0, 1.0));
        (0..MANY).for_each(|_| drop(step(&x, 2.0, 1.0)));
        engine.synchronize().unwrap();
        assert_eq!(engine.counters().specialised, 0);
    }
    let Some(engine) = plugin(support::config()) else { return };
    let x = vector(&engine, &[1.0, 2.0, 3.0]);
    steady(&engine, || step(&x, 0.0, 1.0));
    for i in 0..2 * MANY {
        let exponent = (i / 500 % 2) as f32;
        assert_eq!(step(&x, exponent, 1.0), wanted(exponent, 1.0));
    }
    assert_eq!((engine.counters().specialised, engine.counters().compiles), (0, 1));
}

/// An executable with constants that needs too much memory is not used, and that is reported.
#[test]
fn one_that_needs_too_much_is_not_used() {
    let (log, count) = (Log::default(), AtomicU32::new(0));
    let faults = move |point| match point {
        FaultPoint::Compile { .. } if count.fetch_add(1, Ordering::Relaxed) > 0 => {
            Some(Fault::oversized(Bytes(1 << 30)))
        }
        _ => None,
    };
    let Some(engine) = plugin(support::config().inject_faults(faults).event_sink(log.sink())) else { return };
    let x = vector(&engine, &[1.0, 2.0, 3.0]);
    steady(&engine, || step(&x, 2.0, 0.0));
    for rate in 0..MANY {
        drop(step(&x, 2.0, rate as f32));
    }
    wait_until(&engine, |counters| counters.compiles == 2);
    for rate in 0..20 {
        assert_eq!(step(&x, 2.0, rate as f32), wanted(2.0, rate as f32));
    }
    let counters = engine.counters();
    assert_eq!((counters.specialised, counters.partitioned, counters.compile_failures), (0, 0, 0));
    assert_eq!((counters.compiles, counters.misses), (2, 1));
    let events = log.take();
    assert!(!events.iter().any(|event| matches!(event, Event::Specialised { .. })));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Oversized { .. })).count(), 1);
}
