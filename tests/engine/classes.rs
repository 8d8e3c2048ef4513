//! Varying sizes: few executables serve many sizes with the same results, and a size that recurs
//! gets its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fuseline::nn::{self, Attention};
use fuseline::{
    Buckets, Engine, EngineConfig, Event, Fault, FaultPoint, Mode, Result, ShapeClasses, Tensor, with_mode,
};

use crate::support::{Log, close, optimized_only, plugin, wait_until};

/// One compile for each new region, and no baseline compiles, so that compiles can be counted.
fn counted(which: ShapeClasses) -> EngineConfig {
    optimized_only().shape_classes(which)
}

fn numbers(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 % 23) as f32 - 11.0) * step).collect()
}

/// Decodes tokens with a growing cache. Returns the result after each.
fn decode(engine: &Engine, tokens: usize) -> Result<Vec<Vec<f32>>> {
    const HEADS: usize = 2;
    const WIDTH: usize = 4;
    let one = [1, HEADS, 1, WIDTH];
    let [mut keys, mut values] = [0.05, 0.1].map(|step| engine.tensor(&numbers(8, step), &one).unwrap());
    let mut results = Vec::new();
    for token in 0..tokens {
        let input = |step: f32| engine.tensor(&numbers(8 + token, step)[token..], &one);
        let (query, key, value) = (input(0.1)?, input(0.07)?, input(0.3)?);
        keys = Tensor::concatenate(&[&keys, &key], 2)?;
        values = Tensor::concatenate(&[&values, &value], 2)?;
        let (attended, _) = nn::attention(&query, &keys, &values, Attention::default())?;
        results.push(attended.to_vec::<f32>()?);
    }
    results.push(keys.to_vec::<f32>()?);
    results.push(values.to_vec::<f32>()?);
    Ok(results)
}

#[test]
fn a_growing_cache_compiles_once_for_each_bucket() {
    const TOKENS: usize = 47;
    let log = Log::default();
    let Some(engine) = plugin(counted(ShapeClasses::Masked).event_sink(log.sink())) else { return };
    let expected = decode(&Engine::reference(), TOKENS).unwrap();
    for (actual, expected) in decode(&engine, TOKENS).unwrap().iter().zip(&expected) {
        close(actual, expected, 1e-5);
    }
    let counters = engine.counters();
    // The first two sizes have their own executables, the rest the buckets 8, 12, 16, 24, 32, 48.
    assert_eq!((counters.compiles, counters.padded), (2 + 6, TOKENS as u64 - 2), "{counters:?}");
    assert_eq!((counters.fallbacks, counters.poisoned), (0, 0));
    let told = log.take().iter().find_map(|event| match event {
        Event::Padded { .. } => Some(event.to_string()),
        _ => None,
    });
    assert!(told.unwrap().ends_with("3 padded to 8, 4 padded to 8"));
    // Again: nothing is new.
    decode(&engine, TOKENS).unwrap();
    assert_eq!(engine.counters().compiles, counters.compiles);
}

#[test]
fn buckets_are_a_matter_of_configuration() {
    let Some(engine) = plugin(counted(ShapeClasses::Masked).size_buckets(Buckets::Multiples(64))) else {
        return;
    };
    decode(&engine, 40).unwrap();
    assert_eq!(engine.counters().compiles, 2 + 1);
}

/// O6.
#[test]
fn sums_over_what_varies_are_padded_on_request_only() {
    let log = Log::default();
    let Some(engine) = plugin(counted(ShapeClasses::default()).event_sink(log.sink())) else { return };
    decode(&engine, 8).unwrap();
    assert_eq!((engine.counters().compiles, engine.counters().padded), (8, 0));
    let told: Vec<String> = log
        .take()
        .iter()
        .filter(|event| matches!(event, Event::NotPadded { .. }))
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("ShapeClasses::Masked"), "{told:?}");
}

/// Independent rows: padded by default.
fn rows(engine: &Engine, count: usize) -> Result<Vec<f32>> {
    let x = engine.tensor(&numbers(count * 3, 0.1), &[count, 3])?;
    let weights = engine.tensor(&numbers(6, 0.2), &[3, 2])?;
    nn::softmax(&x.matmul(&weights)?.tanh()?, -1)?.to_vec::<f32>()
}

#[test]
fn rows_are_padded_by_default_and_without_request_nothing_else() {
    let Some(engine) = plugin(counted(ShapeClasses::default())) else { return };
    let Some(off) = plugin(counted(ShapeClasses::Off)) else { return };
    for count in 1..=24 {
        let expected = rows(&off, count).unwrap();
        close(&rows(&engine, count).unwrap(), &expected, 1e-6);
    }
    // A region of 8, 12, 16 or 24 rows is the one that others are padded to.
    assert_eq!((engine.counters().compiles, engine.counters().padded), (2 + 4, 22 - 4));
    assert_eq!((off.counters().compiles, off.counters().padded), (24, 0));
    // Other modes have single ops, which occur in several places.
    let strict = plugin(counted(ShapeClasses::default())).unwrap();
    with_mode(Mode::Strict, || (1..=4).try_for_each(|count| rows(&strict, count).map(drop))).unwrap();
    assert_eq!(strict.counters().padded, 0);
}

/// The same ops on values of another rank are other regions. They are padded to sizes of their own.
#[test]
fn values_of_another_rank_have_buckets_of_their_own() {
    let Some(engine) = plugin(counted(ShapeClasses::default())) else { return };
    for count in 3..8 {
        for dims in [&[count][..], &[count, count, 1]] {
            let data = numbers(dims.iter().product(), 0.5);
            let negated: Vec<f32> = data.iter().map(|x| -x).collect();
            let x = engine.tensor(&data, dims).unwrap();
            assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), negated, "{dims:?}");
        }
    }
    let counters = engine.counters();
    assert_eq!((counters.compiles, counters.padded, counters.panics), (2 * 3, 2 * 3, 0), "{counters:?}");
}

/// A region that takes long does not run padded forever.
#[test]
fn a_size_that_stays_has_its_own_executable() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let step = |size: usize| {
        let x = engine.tensor(&vec![0.5f32; size], &[size]).unwrap();
        let y = ((&x * 2.0).unwrap().tanh().unwrap() + 1.0).unwrap();
        assert!((y.to_vec::<f32>().unwrap()[size - 1] - 1.761_594_2).abs() < 1e-5);
    };
    (0..4).for_each(|more| step(300_000 + more));
    let executions = engine.counters().executions;
    for _ in 0..40 {
        step(300_004);
    }
    wait_until(&engine, |counters| counters.pending_compiles == 0);
    let before = engine.counters();
    assert!(before.padded > 5, "{before:?}");
    step(300_004);
    let after = engine.counters();
    assert_eq!((after.padded, after.executions), (before.padded, before.executions + 1));
    assert!(after.executions > executions);
}

/// Sizes that occur once each, and are soon interpreted: nothing compiles.
#[test]
fn a_triangular_loop_compiles_nothing() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let eliminate = |engine: &Engine| -> Result<Vec<f32>> {
        let size = 24;
        let mut data = numbers(size * size, 0.01);
        (0..size).for_each(|at| data[at * size + at] = 5.0);
        let mut rest = engine.tensor(&data, &[size, size])?;
        let mut pivots = Vec::new();
        while rest.dims()[0] > 1 {
            let end = rest.dims()[0] as i64;
            let part = |low: [i64; 2], high: [i64; 2]| rest.slice(&low, &high, &[1, 1]);
            pivots.push(part([0, 0], [1, 1])?.to_vec::<f32>()?[0]);
            let column = (part([1, 0], [end, 1])? / part([0, 0], [1, 1])?)?;
            rest = (part([1, 1], [end, end])? - column.matmul(&part([0, 1], [1, end])?)?)?;
        }
        Ok(pivots)
    };
    let expected = eliminate(&Engine::reference()).unwrap();
    close(&eliminate(&engine).unwrap(), &expected, 1e-4);
    assert_eq!((engine.counters().compiles_asked, engine.counters().padded), (0, 0));
}

/// A long step on large data with a sum over a varying number of rows.
fn pooled_step(engine: &Engine, rows: usize) -> Vec<f32> {
    const SIZE: usize = 32_768;
    let chain = |mut x: Tensor| {
        for _ in 0..60 {
            x = (x.tanh().unwrap() * 1.01).unwrap();
        }
        x
    };
    let table = engine.tensor(&numbers(rows * 64, 0.01), &[rows, 64]).unwrap();
    let x = chain(engine.tensor(&numbers(SIZE, 0.03), &[SIZE]).unwrap());
    let weight = table.sum(&[0]).unwrap().mean(&[0]).unwrap().broadcast_to(&[SIZE]).unwrap();
    chain((&x * &weight).unwrap()).slice(&[0], &[50], &[1]).unwrap().to_vec::<f32>().unwrap()
}

/// O7: only the part that depends on the varying size is compiled again.
#[test]
fn of_what_varies_little_not_much_is_new() {
    const SIZES: usize = 30;
    let log = Log::default();
    let config = EngineConfig::new().quick_compiles(false).event_sink(log.sink());
    let Some(engine) = plugin(config) else { return };
    let reference = Engine::reference();
    let step = |rows: usize| close(&pooled_step(&engine, rows), &pooled_step(&reference, rows), 1e-4);
    (0..SIZES).for_each(|size| step(100 + size));
    let counters = engine.counters();
    // The first few sizes, then the parts before and after the sum. The sums themselves are
    // interpreted.
    assert_eq!(
        (counters.compiles_asked, counters.partitioned),
        (FEW + 2, SIZES as u64 - FEW),
        "{counters:?}"
    );
    let told = log.take().into_iter().find_map(|event| match event {
        Event::InParts { ref parts, .. } => Some((parts.clone(), event.to_string())),
        _ => None,
    });
    let (parts, words) = told.unwrap();
    assert!(parts.len() == 3 && parts[1] < 8 && words.contains("sizes that vary"), "{words} {parts:?}");
    // A size that recurs gets its own executable. It has run in parts once so far, of ten times.
    let before = engine.counters();
    (0..12).for_each(|_| step(100 + SIZES - 1));
    let after = engine.counters();
    assert_eq!(after.partitioned - before.partitioned, 9, "{after:?}");
    assert_eq!(log.take().iter().filter(|event| matches!(event, Event::Miss { .. })).count(), 0);
    let whole = |event: &Event| matches!(event, Event::Launched { region, .. } if region.ops > 200);
    step(100 + SIZES - 1);
    assert!(log.take().iter().any(whole));
}

/// The cost of forty sizes, each used once, compared with op by op.
#[test]
#[ignore = "figures: `cargo test --release --test engine classes:: -- --ignored --nocapture`"]
fn cost_of_what_varies_little() {
    for mode in [Mode::Fused, Mode::Strict] {
        let Some(engine) = plugin(EngineConfig::new().mode(mode)) else { return };
        let start = Instant::now();
        let mut late = start.elapsed();
        for size in 0..40 {
            let step = Instant::now();
            pooled_step(&engine, 100 + size);
            if size >= 20 {
                late += step.elapsed();
            }
        }
        let did = engine.counters();
        println!(
            "{mode:?}: {:.2?}, the last 20 {late:.2?}, {} compiled, {} interpreted, {} padded, {} in parts",
            start.elapsed(),
            did.compiles,
            did.interpreted,
            did.padded,
            did.partitioned,
        );
    }
}

/// O5.
#[test]
fn a_bucket_that_fails_costs_speed() {
    let failed = Arc::new(AtomicU64::new(0));
    for stage in ["compile", "execute", "upload"] {
        let (seen, log) = (failed.clone(), Log::default());
        // The padded region has more ops than any other.
        let faults = move |point| {
            let is_bucket = |ops: usize| ops > 12;
            let fails = match point {
                FaultPoint::Compile { ops } => stage == "compile" && is_bucket(ops),
                FaultPoint::Execute { ops } => stage == "execute" && is_bucket(ops),
                // The upload of the cache, padded.
                FaultPoint::Upload { bytes } => stage == "upload" && bytes == 2 * 8 * 4 * 4,
                _ => false,
            };
            fails.then(|| {
                seen.fetch_add(1, Ordering::Relaxed);
                Fault::new("not today")
            })
        };
        let config = counted(ShapeClasses::Masked).inject_faults(faults).event_sink(log.sink());
        let Some(engine) = plugin(config) else { return };
        let expected = cached(&Engine::reference()).unwrap();
        for (actual, expected) in cached(&engine).unwrap().iter().zip(&expected) {
            close(actual, expected, 1e-5);
        }
        assert!(failed.swap(0, Ordering::Relaxed) > 0, "{stage}: nothing has failed");
        assert_eq!(engine.counters().poisoned, 0, "{stage}");
    }
}

/// A cache with a sum over it: few ops.
fn cached(engine: &Engine) -> Result<Vec<Vec<f32>>> {
    let mut keys = engine.tensor(&numbers(8, 0.05), &[2, 1, 4])?;
    let mut results = Vec::new();
    for _ in 0..5 {
        keys = Tensor::concatenate(&[&keys, &engine.tensor(&numbers(8, 0.1), &[2, 1, 4])?], 1)?;
        results.push(keys.tanh()?.sum(&[1])?.to_vec::<f32>()?);
    }
    results.push(keys.to_vec::<f32>()?);
    Ok(results)
}

/// Sizes that are compiled like any other region (`FEW_SIZES`).
const FEW: u64 = 8;

/// J1: many sizes that are not padded are interpreted, each until that has taken as long as a
/// compile. Except for the first few, they are not all compiled at once and waited for.
#[test]
fn sizes_that_vary_do_not_wait_for_each_other() {
    const TOKENS: usize = 20;
    const ROUNDS: u64 = 12;
    let Some(engine) = plugin(EngineConfig::new().quick_compiles(false)) else { return };
    let expected = decode(&Engine::reference(), TOKENS).unwrap();
    for _ in 0..ROUNDS {
        for (actual, expected) in decode(&engine, TOKENS).unwrap().iter().zip(&expected) {
            close(actual, expected, 1e-5);
        }
    }
    let counters = engine.counters();
    assert_eq!(counters.compiles_asked, FEW, "{counters:?}");
    // The first few are interpreted longer if their compiles take longer.
    assert!(counters.interpreted >= ROUNDS * (TOKENS as u64 - FEW) + 10 * FEW, "{counters:?}");
    assert_eq!(counters.padded, 0);
}

/// They get executables in the end, requested after half of that time. The number of interpreted
/// runs before that is deterministic.
#[test]
fn sizes_that_vary_and_stay_are_compiled() {
    let interpreted = || {
        let log = Log::default();
        let engine = plugin(EngineConfig::new().quick_compiles(false).event_sink(log.sink()))?;
        // A sum over the varying dimension, and a product that takes a while.
        let square = engine.tensor(&numbers(64 * 64, 0.01), &[64, 64]).unwrap();
        let (mut runs, mut asked, mut before) = (Vec::new(), None, u64::MAX);
        while engine.counters().interpreted != before {
            before = engine.counters().interpreted;
            for size in 0..FEW as usize + 2 {
                let x = engine.tensor(&numbers((400 + size) * 64, 0.01), &[400 + size, 64]).unwrap();
                drop(x.matmul(&square).unwrap().sum(&[0]).unwrap().to_vec::<f32>().unwrap());
            }
            runs.extend(log.take().into_iter().filter_map(|event| match event {
                // Without the runs that happen because a compile is still in progress.
                Event::Interpreted { run, of, .. } if run <= of => Some((run, of)),
                _ => None,
            }));
            if engine.counters().compiles_asked > FEW && asked.is_none() {
                asked = Some(runs.len() as u64);
            }
        }
        assert_eq!(engine.counters().compiles, FEW + 2);
        let of = runs.iter().map(|&(_, of)| of).max().unwrap();
        assert!(of > 20, "{of}");
        let of_each = |most: u32| runs.iter().filter(|&&run| run == (most, most)).count() as u64;
        assert_eq!((of_each(10), of_each(of), runs.len() as u64), (FEW, 2, 10 * FEW + 2 * u64::from(of)));
        assert_eq!(asked, Some(10 * FEW + 2 * u64::from(of / 2)));
        Some(runs)
    };
    assert_eq!(interpreted(), interpreted());
}

/// The cost of a decoder whose cache grows by one token at a time.
#[test]
#[ignore = "figures: `cargo test --release --test engine classes:: -- --ignored --nocapture`"]
fn cost_of_a_growing_cache() {
    for which in [ShapeClasses::Unmasked, ShapeClasses::Masked] {
        let Some(engine) = plugin(EngineConfig::new().shape_classes(which)) else { return };
        let (mut before, start) = (engine.counters(), Instant::now());
        for sequence in 1..=400 {
            let since = Instant::now();
            drop(decode(&engine, 64).unwrap());
            let (took, counters) = (since.elapsed(), engine.counters());
            let did = counters.since(&before);
            // Sequences that have waited, and some to compare them with.
            if sequence <= 12 || sequence % 40 == 0 || took.as_millis() > 100 {
                println!(
                    "{which:?} {sequence}: {took:.1?} after {:.1?}, {} interpreted, {} padded, {} by their own; {} compiled, {} pending",
                    start.elapsed(),
                    did.interpreted,
                    did.padded,
                    did.executions,
                    did.compiles,
                    counters.pending_compiles
                );
            }
            before = counters;
        }
    }
}

/// A check covers all indices, however many there are, and is exact: it does not prevent padding
/// (PAD-6), and finds every bad index.
#[test]
fn checks_of_indices_are_padded() {
    let config = counted(ShapeClasses::default());
    let Some(engine) = plugin(config) else { return };
    let table = engine.tensor(&numbers(20, 0.1), &[10, 2]).unwrap();
    for count in 1..=40 {
        for bad in [None, Some(count - 1)] {
            let indices = (0..count).map(|at| if bad == Some(at) { 10 } else { (at % 10) as i32 });
            let indices = engine.tensor(&indices.collect::<Vec<_>>(), &[count]).unwrap();
            let read = (table.take(&indices, 0).unwrap() * 2.0).unwrap().to_vec::<f32>();
            assert_eq!(read.is_err_and(|error| error.is_failed_check()), bad.is_some(), "{count}");
        }
    }
    let counters = engine.counters();
    assert!(counters.padded > 60 && counters.compiles <= 10, "{counters:?}");
}
