//! Executables that return more than a program needs: they are used, and if that wastes more than a
//! compile, another one takes over.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fuseline::{Bytes, Counters, Engine, Event, Fault, FaultPoint, Tensor};

// The first run of a region decides which results its first executable returns.
use crate::support::{Log, compiled_first, plugin, wait_until};

/// The number of elements of values that may be kept: 200 executions with them waste a compile.
const SIZE: usize = 1 << 16;

/// The largest number of a region's compiles beyond the first (`fuseline_cache::MAX_NARROWED`).
const MOST: u64 = 3;

fn input(engine: &Engine, size: usize) -> Tensor {
    engine.tensor(&vec![1.0f32; size], &[size]).unwrap()
}

/// A region whose first two results are kept while it is sealed, or not.
fn step(x: &Tensor, keep: [bool; 2]) {
    let a = (x * 2.0).unwrap();
    let b = (&a + 1.0).unwrap();
    let sum = b.sum(&[0]).unwrap();
    let kept = [keep[0].then_some(a), keep[1].then_some(b)];
    assert_eq!(sum.item::<f32>().unwrap(), 3.0 * x.ty().elems().0 as f32);
    drop(kept);
}

/// The unused results of each execution since the previous call, and of each requested executable,
/// with its number of executions.
fn told(log: &Log) -> (Vec<usize>, Vec<(usize, u64)>) {
    let (mut hits, mut narrowed) = (Vec::new(), Vec::new());
    for event in log.take() {
        match event {
            Event::Hit { surplus, .. } => hits.push(surplus),
            Event::OutputsPruned { surplus, executions, .. } => narrowed.push((surplus, executions)),
            _ => {}
        }
    }
    (hits, narrowed)
}

fn all_compiled(counters: &Counters) -> bool {
    counters.pending_compiles == 0
}

/// I3: promoted once, and then without unused results.
#[test]
fn what_is_never_needed_is_soon_not_returned() {
    let log = Log::default();
    let Some(engine) = plugin(compiled_first().event_sink(log.sink())) else { return };
    let x = input(&engine, SIZE);
    step(&x, [true, true]);
    for _ in 0..500 {
        step(&x, [false, false]);
    }
    wait_until(&engine, all_compiled);
    let (hits, narrowed) = told(&log);
    let [(surplus, executions)] = narrowed.as_slice() else { panic!("{narrowed:?}") };
    assert_eq!((*surplus, hits[0]), (2, 2));
    assert!(100 < *executions && *executions < 400, "{executions}");
    assert_eq!(engine.counters().compiles, 2);
    for _ in 0..500 {
        step(&x, [false, false]);
    }
    // The other executable is still there for executions that need more.
    step(&x, [true, true]);
    step(&x, [true, false]);
    let (hits, narrowed) = told(&log);
    assert!(narrowed.is_empty() && hits[..501].iter().all(|&surplus| surplus == 0), "{hits:?}");
    assert_eq!(hits[501..], [1]);
    let counters = engine.counters();
    assert_eq!((counters.compiles, counters.misses, counters.fallbacks), (2, 1, 0));
}

/// I3: a host that drops values late, as with a garbage collector, compiles nothing and waits for
/// nothing.
#[test]
fn values_that_are_dropped_late_compile_nothing() {
    let log = Log::default();
    let Some(engine) = plugin(compiled_first().event_sink(log.sink())) else { return };
    let x = input(&engine, SIZE);
    step(&x, [true, true]);
    let mut random = 1u32;
    for round in 0..1_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // First one, then the other; then either, now and then.
        let keep = match round < 500 {
            true => [round % 2 == 0, round % 2 == 1],
            false => [random >> 29 == 0, random >> 26 & 7 == 0],
        };
        step(&x, keep);
    }
    let counters = engine.counters();
    assert_eq!((counters.compiles_asked, counters.misses), (1, 1));
    assert!(told(&log).1.is_empty());
}

/// A region whose results are sometimes all needed, and mostly not, has an executable for each
/// case, and never another.
#[test]
fn two_executables_take_turns() {
    let log = Log::default();
    let Some(engine) = plugin(compiled_first().event_sink(log.sink())) else { return };
    let x = input(&engine, SIZE);
    let rounds = || (0..1_000).for_each(|round| step(&x, [round % 50 == 0; 2]));
    rounds();
    wait_until(&engine, all_compiled);
    assert_eq!(told(&log).1.len(), 1);
    rounds();
    let (hits, narrowed) = told(&log);
    assert!(narrowed.is_empty() && hits.iter().all(|&surplus| surplus == 0));
    assert_eq!((engine.counters().compiles, engine.counters().misses), (2, 1));
}

/// However the needs of a program change, the number of compiles is bounded.
#[test]
fn phases_of_any_kind_compile_a_few_times() {
    let log = Log::default();
    let Some(engine) = plugin(compiled_first().event_sink(log.sink())) else { return };
    let x = input(&engine, SIZE);
    step(&x, [true, true]);
    for phase in 0..12 {
        let keep = [[false, true], [true, false], [false, false]][phase % 3];
        for _ in 0..800 {
            step(&x, keep);
        }
        wait_until(&engine, all_compiled);
    }
    let counters = engine.counters();
    assert!(1 < counters.compiles && counters.compiles <= 1 + MOST, "{counters:?}");
    assert_eq!(counters.misses, 1);
}

/// A failed compile only costs the attempt.
#[test]
fn a_narrower_one_that_does_not_compile_is_forgotten() {
    let count = AtomicU32::new(0);
    let config = compiled_first().inject_faults(move |point| match point {
        FaultPoint::Compile { .. } if count.fetch_add(1, Ordering::Relaxed) == 1 => {
            Some(Fault::new("the compiler is tired"))
        }
        _ => None,
    });
    let Some(engine) = plugin(config) else { return };
    let x = input(&engine, SIZE);
    step(&x, [true, false]);
    for _ in 0..600 {
        step(&x, [false, false]);
    }
    wait_until(&engine, all_compiled);
    let before = engine.counters();
    assert_eq!((before.compiles, before.compile_failures), (1, 1));
    // Another set of results is compiled as if nothing had happened.
    step(&x, [false, true]);
    let counters = engine.counters();
    assert_eq!((counters.compiles, counters.misses, counters.fallbacks), (2, 2, 0));
}

/// A variant that needs too much memory is not used, unless it needs less than the current one.
#[test]
fn a_narrower_one_that_needs_too_much_is_not_used() {
    const SLACK: u64 = 1 << 24;
    // Like `step`, with ops between which both values live if they are kept: by ops it then holds
    // half a MiB more.
    let step = |x: &Tensor, keeps: bool| {
        let a = (x * 2.0).unwrap();
        let b = (&a + 1.0).unwrap();
        let sum = ((&b * 0.5).unwrap() * 2.0).unwrap().sum(&[0]).unwrap();
        let kept = keeps.then_some((a, b));
        assert_eq!(sum.item::<f32>().unwrap(), 3.0 * SIZE as f32);
        drop(kept);
    };
    // How much more the first and the other executables need than the compiler says. With the
    // second pair the first one is just within the limit, and the others are over it, but by less.
    let plans = [(0, 1 << 30, false), (SLACK + (700 << 10), SLACK + (900 << 10), true)];
    for (first, more, is_used) in plans {
        let (log, count) = (Log::default(), AtomicU32::new(0));
        let faults = move |point| match point {
            FaultPoint::Compile { .. } => {
                let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
                Some(Fault::oversized(Bytes(if is_first { first } else { more })))
            }
            _ => None,
        };
        let config = compiled_first().memory_slack(Bytes(SLACK)).inject_faults(faults);
        let Some(engine) = plugin(config.event_sink(log.sink())) else { return };
        let x = input(&engine, SIZE);
        step(&x, true);
        for _ in 0..600 {
            step(&x, false);
        }
        wait_until(&engine, all_compiled);
        let events = log.take();
        let planned = events.iter().filter_map(|event| match event {
            Event::CompileFinished { memory: Some(memory), eager, .. } => Some((memory.peak(), *eager)),
            _ => None,
        });
        let planned: Vec<_> = planned.collect();
        let (peak, eager) = planned[1];
        assert!(peak.0 > eager.0 + eager.0 / 4 && peak.0 - eager.0 > SLACK, "{planned:?}");
        assert_eq!(peak < planned[0].0, is_used, "{planned:?}");
        let oversized = events.iter().filter(|event| matches!(event, Event::Oversized { .. })).count();
        assert_eq!(oversized, if is_used { 0 } else { planned.len() - 1 });
        for _ in 0..20 {
            step(&x, false);
        }
        let surplus = if is_used { 0 } else { 2 };
        assert!(told(&log).0.iter().all(|&of_hit| of_hit == surplus));
        let counters = engine.counters();
        assert_eq!((counters.misses, counters.partitioned, counters.fallbacks), (1, 0, 0));
        assert!(counters.compiles <= 1 + MOST, "{counters:?}");
    }
}

/// The cost of unused results.
#[test]
#[ignore = "figures: `cargo test --release --test engine variants:: -- --ignored --nocapture`"]
fn cost_of_a_surplus() {
    const OPS: usize = 8;
    let step = |x: &Tensor, keep: bool| {
        let mut values = vec![x.clone()];
        for op in 0..OPS {
            let last = &values[op];
            let next = if op % 2 == 0 { last * 2.0 } else { last + 1.0 };
            values.push(next.unwrap());
        }
        let last = values.pop().unwrap();
        if !keep {
            values.clear();
        }
        drop(last.to_vec::<f32>().unwrap());
    };
    for size in [1, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22] {
        let Some(wide) = plugin(compiled_first()) else { return };
        let exact = compiled_first().build().unwrap();
        let inputs = [input(&exact, size), input(&wide, size)];
        step(&inputs[0], false);
        step(&inputs[1], true);
        let rounds = ((1 << 22) / size).clamp(5, 2_000);
        // The minimum of several blocks, since other processes use the machine.
        let mut least = [Duration::MAX; 2];
        for _ in 0..20 {
            for (x, least) in inputs.iter().zip(&mut least) {
                let start = Instant::now();
                (0..rounds).for_each(|_| step(x, false));
                *least = (*least).min(start.elapsed() / rounds as u32);
            }
        }
        let [exact, wide] = least;
        let each = wide.saturating_sub(exact) / (OPS as u32 - 1);
        println!("{size} elements: exact {exact:.2?}, wide {wide:.2?}, {each:.2?} for each result in vain");
    }
}
