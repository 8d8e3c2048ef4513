//! Memory over tens of thousands of distinct regions. A line is fitted to the resident memory after
//! the warm-up; its slope must be close to zero. Every result is compared with the interpreter's.
//!
//! `cargo xtask soak memory-reference memory-plugin compiles` runs the long versions.
//! `FUSELINE_REGIONS` sets the number of regions (default 10,000), and `FUSELINE_MINUTES` the
//! minimum duration (default 5).

use std::sync::Arc;
use std::time::Instant;

use fuseline::interp;
use fuseline::{Attrs, Budget, Engine, EngineConfig, Literal, OpCode, ShapeClasses, Tensor, mappings};

use crate::support;

/// The largest growth of memory per second, on the fitted line, in KiB.
const MAX_SLOPE: f64 = 1.0;

/// Resident memory of this process, in KiB; `None` without /proc.
fn resident() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4.0)
}

/// The slope of the least-squares line, in units of y per unit of x.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (mut both, mut square) = (0.0, 0.0);
    for point in points {
        both += (point.0 - x) * (point.1 - y);
        square += (point.0 - x) * (point.0 - x);
    }
    if square == 0.0 { 0.0 } else { both / square }
}

#[test]
fn the_line_is_that_of_least_squares() {
    let line: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), 7.0 + 2.5 * f64::from(x))).collect();
    assert!((slope(&line) - 2.5).abs() < 1e-9);
    let zigzag: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), f64::from(x % 2))).collect();
    assert!(slope(&zigzag).abs() < 0.02);
    assert_eq!(slope(&[(1.0, 5.0)]), 0.0);
}

/// The result of a region that is unique to a number, and the interpreter's result for the same
/// ops: the shape encodes the number's low part, the ops its high part.
fn region(engine: &Engine, number: usize) -> (Tensor, Literal) {
    let len = 1 + number % 100;
    let data: Vec<f32> = (0..len).map(|at| 1.0 + (number + at) as f32 / 64.0 % 8.0).collect();
    let x = engine.tensor(&data, &[len]).unwrap();
    let host = Arc::new(Literal::from_slice(&[len as u64], &data).unwrap());
    let apply = |op, tensors: &[&Tensor], literals: &[&Arc<Literal>]| {
        let results = engine.stream().record(op, Attrs::none(), &[], tensors).unwrap();
        let types: Vec<_> = literals.iter().map(|literal| literal.ty().clone()).collect();
        let signature = fuseline::fusion::Signature::infer(op, Attrs::none(), &[], &types).unwrap();
        let operands: Vec<Arc<Literal>> = literals.iter().map(|&literal| literal.clone()).collect();
        let wanted = interp::call(&signature, &operands).unwrap().swap_remove(0);
        (results.into_iter().next().unwrap(), Arc::new(wanted))
    };
    let (mut y, mut wanted) = apply(OpCode::Negate, &[&x], &[&host]);
    let mut rest = number / 100;
    while rest > 0 {
        (y, wanted) = match rest % 3 {
            0 => apply(OpCode::Negate, &[&y], &[&wanted]),
            1 => apply(OpCode::Abs, &[&y], &[&wanted]),
            _ => apply(OpCode::Maximum, &[&y, &x], &[&wanted, &host]),
        };
        rest /= 3;
    }
    (y, Literal::clone(&wanted))
}

/// Runs distinct regions, round after round, until each has occurred once and the time is over, and
/// measures memory a few times per second.
fn stays_flat(name: &str, engine: &Engine) {
    if resident().is_none() {
        println!("skipped: no /proc/self/statm: resident memory cannot be read");
        return;
    }
    let regions: usize = support::number("FUSELINE_REGIONS").unwrap_or(10_000);
    let minutes: f64 = support::number("FUSELINE_MINUTES").unwrap_or(5.0);
    let start = Instant::now();
    let before = engine.counters();
    let (mut points, mut wrong, mut done) = (Vec::new(), 0, 0);
    let mut looked = 0.0;
    let seconds = loop {
        let (result, wanted) = region(engine, done % regions);
        // Negation, magnitude and maximum do not round, so the bits are the same everywhere.
        wrong += usize::from(result.to_literal().unwrap() != wanted);
        done += 1;
        let now = start.elapsed().as_secs_f64();
        if now > looked + 0.25 {
            looked = now;
            points.push((now, resident().unwrap()));
        }
        if done >= regions && now >= 60.0 * minutes {
            break now;
        }
    };
    // After a quarter of the time, the caches of engine, plugin and allocator are filled.
    points.retain(|&(at, _)| at >= seconds / 4.0);
    let did = engine.counters().since(&before);
    let grows = slope(&points);
    let (first, last) = (points[0].1 / 1024.0, points[points.len() - 1].1 / 1024.0);
    println!(
        "figures: {name}: {done} executions of {regions} regions in {seconds:.0} s, {} ops, {} compiles, {} evictions, {wrong} wrong results, \
         slope {grows:.3} KiB/s over {} samples, {first:.1} MiB after a quarter, {last:.1} MiB at the end",
        did.ops,
        did.compiles,
        did.evictions,
        points.len(),
    );
    assert_eq!(wrong, 0, "{name}: results differ from the interpreter's");
    // The default engine interprets a region before it compiles it.
    let ran = did.compiles + did.interpreted;
    assert!(ran >= regions.min(done) as u64, "{name}: the regions are distinct: {did:?}");
    assert!(did.cached_executables <= 64);
    assert!(grows <= MAX_SLOPE, "{name}: memory grows by {grows:.3} KiB/s");
}

/// Each region has an executable of its own.
fn config() -> EngineConfig {
    support::optimized_only().cache_budget(Budget { entries: 64, bytes: 64 << 20 })
}

#[test]
#[ignore = "soak: `cargo xtask soak memory-reference`"]
fn soak_on_the_reference_device() {
    stays_flat("reference", &config().build_reference().unwrap());
}

#[test]
#[ignore = "soak: `cargo xtask soak memory-plugin`"]
fn soak_on_the_plugin() {
    let Some(engine) = support::plugin(config()) else { return };
    stays_flat("plugin", &engine);
}

/// The default engine with a small cache, which is full in seconds.
#[test]
#[ignore = "soak: `cargo xtask soak memory-default`"]
fn soak_on_the_default_engine() {
    let config =
        EngineConfig::new().without_disk_cache().cache_budget(Budget { entries: 64, bytes: 64 << 20 });
    let Some(engine) = support::plugin(config) else { return };
    stays_flat("default engine", &engine);
}

/// The default configuration, with its budgets: a process that compiles new regions all the time
/// survives, and its mappings stay below half of the limit. `FUSELINE_MAPPINGS` lowers the limit.
#[test]
#[ignore = "soak: `cargo xtask soak compiles`"]
fn soak_compiles_with_default_budgets() {
    let limit: Option<u64> = support::number("FUSELINE_MAPPINGS");
    let config = support::compiled_first().without_disk_cache();
    let config = limit.into_iter().fold(config, EngineConfig::max_mappings);
    let Some(engine) = support::plugin(config.shape_classes(ShapeClasses::Off)) else { return };
    let regions: usize = support::number("FUSELINE_REGIONS").unwrap_or(20_000);
    let limit = limit.unwrap_or(mappings::most() / 2);
    let (start, mut wrong, mut most, mut largest) = (Instant::now(), 0, 0, 0.0f64);
    for number in 0..regions {
        let (result, wanted) = region(&engine, number);
        wrong += usize::from(result.to_literal().unwrap() != wanted);
        if number % 50 == 0 {
            most = most.max(mappings::count().unwrap_or(0));
            largest = largest.max(resident().unwrap_or(0.0));
        }
    }
    let counters = engine.counters();
    println!(
        "figures: {regions} regions in {:.0} s, {} compiles, {} evictions, {} cached, {} times out of memory, {wrong} wrong results, at most {most} mappings \
         of {limit} and {:.0} MiB resident",
        start.elapsed().as_secs_f64(),
        counters.compiles,
        counters.evictions,
        counters.cached_executables,
        counters.out_of_memory,
        largest / 1024.0,
    );
    assert_eq!((wrong, counters.compile_failures, counters.out_of_memory), (0, 0, 0));
    assert!(counters.compiles >= regions as u64, "the regions are distinct: {counters:?}");
    // Those compiled since the last count may be beyond.
    assert!(most <= limit + limit / 8, "{most} mappings of {limit}");
}
