//! Memory stays flat, however many distinct regions a program runs: the cache is bounded, and so is
//! everything else that remembers regions.

use std::sync::{Mutex, PoisonError};

use fuseline::{Budget, Engine, EngineConfig, Result};

use crate::support::{self, plugin};

/// Held by a test that measures memory, which belongs to the process; tests may be threads of one
/// process.
static MEMORY: Mutex<()> = Mutex::new(());

/// The number of regions that the cache may hold.
const BOUND: u64 = 64;

/// Resident memory of this process, in KiB; `None` without /proc.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4)
}

/// A region that is unique to a number: the shape encodes its low part, the ops its high part.
fn region(engine: &Engine, number: usize) -> Result<f32> {
    let x = engine.tensor(&vec![1.0f32; 1 + number % 100], &[1 + number % 100])?;
    let mut y = x.neg()?;
    let mut rest = number / 100;
    while rest > 0 {
        y = match rest % 3 {
            0 => y.neg()?,
            1 => y.abs()?,
            _ => y.mul(&x)?,
        };
        rest /= 3;
    }
    Ok(y.to_vec::<f32>()?[0])
}

/// Runs `regions` distinct regions, measures the memory at each of `marks`, and checks that it
/// grows by at most `allowed` KiB from `settled` on.
fn flat(
    name: &str,
    engine: &Engine,
    regions: usize,
    marks: &[usize],
    settled: usize,
    allowed: u64,
) -> Result<()> {
    let _alone = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    if resident().is_none() {
        println!("skipped: no /proc/self/statm: resident memory cannot be read");
        return Ok(());
    }
    let before = engine.counters();
    let mut base = 0;
    let mut figures = Vec::new();
    for number in 0..regions {
        region(engine, number)?;
        if marks.contains(&(number + 1)) || number + 1 == settled || number + 1 == regions {
            engine.synchronize()?;
            let now = resident().unwrap_or(0);
            if number + 1 == settled {
                base = now;
            }
            figures.push(format!("{} KiB after {}", now, number + 1));
        }
    }
    let done = engine.counters().since(&before);
    println!("{name}: {} compiles, {} evictions: {}", done.compiles, done.evictions, figures.join(", "));
    assert_eq!(done.compiles, regions as u64, "the regions are distinct");
    assert!(done.cached_executables <= BOUND);
    let grown = resident().unwrap_or(0).saturating_sub(base);
    assert!(
        grown <= allowed,
        "{name}: {grown} KiB more at the end than after {settled} regions: {figures:?}"
    );
    Ok(())
}

/// Each region has an executable of its own, which is what the cache bounds. For the default engine
/// see `soak_memory.rs`.
fn config() -> EngineConfig {
    support::optimized_only().cache_budget(Budget { entries: BOUND, bytes: 1 << 30 })
}

#[test]
fn ten_thousand_regions_on_the_reference_device() {
    let engine = config().build_reference().unwrap();
    // The miss history, with 1,024 sequences of ops, is full long before 2,500.
    flat("reference", &engine, 10_000, &[1_000, 5_000], 2_500, 4 << 10).unwrap();
}

#[test]
fn some_hundred_regions_on_the_plugin() {
    let Some(engine) = plugin(config()) else { return };
    flat("plugin", &engine, 600, &[150, 450], 300, 16 << 10).unwrap();
}

/// Takes minutes, so only on request:
/// `cargo test --release --test robustness distinct_regions:: -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes; run it by `cargo test --release --test robustness distinct_regions:: -- --ignored --nocapture`"]
fn ten_thousand_regions_on_the_plugin() {
    let Some(engine) = plugin(config()) else { return };
    flat("plugin", &engine, 10_000, &[1_000, 5_000], 2_500, 48 << 10).unwrap();
}
