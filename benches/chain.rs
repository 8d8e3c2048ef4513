//! A steady loop over a chain of 50 elementwise ops on `f32`, from the first call to the result on
//! the device.
//!
//! `cargo bench --bench chain` runs on the PJRT plugin that is found. Every chain is the same
//! region, so nothing is compiled after the first one. The benchmark measures recording, the
//! region's key, the cache and the launch. It also runs the same ops without a read, with and
//! without the trace cache.
#![allow(missing_docs, clippy::print_stderr, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fuseline::{Engine, EngineConfig, Mode, Result, Tensor, with_mode};

const OPS: usize = 50;

fn chain(x: &Tensor, y: &Tensor) -> Result<()> {
    let mut z = x.clone();
    for i in 0..OPS {
        z = if i % 2 == 0 { z.mul(y)? } else { z.add(y)? };
    }
    z.wait()
}

fn steady(c: &mut Criterion) {
    let engine = match Engine::new() {
        Ok(engine) => engine,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let mut group = c.benchmark_group("chain of 50");
    group.throughput(Throughput::Elements(OPS as u64));
    for mode in [Mode::Fused, Mode::Strict] {
        for size in [16, 1_024, 65_536] {
            let data = vec![1.000_1f32; size];
            let x = engine.tensor(&data, &[size]).expect("it fits");
            let y = engine.tensor(&data, &[size]).expect("it fits");
            with_mode(mode, || chain(&x, &y)).expect("it runs");
            let before = engine.counters();
            group.bench_function(BenchmarkId::new(format!("{mode:?}"), size), |b| {
                b.iter(|| with_mode(mode, || chain(&x, &y)).expect("it runs"));
            });
            let compiles = engine.counters().since(&before).compiles;
            assert_eq!(compiles, 0, "a steady loop compiled something");
        }
    }
    group.finish();
}

/// The same ops one after the other, without a requested boundary. This measures the recording
/// thread and, with few cores, the engine's work next to it.
fn endless(c: &mut Criterion) {
    let mut group = c.benchmark_group("50 ops of a loop that asks for nothing");
    group.throughput(Throughput::Elements(OPS as u64));
    for (name, replay) in [("replayed", true), ("not replayed", false)] {
        let engine = match EngineConfig::new().replay(replay).build() {
            Ok(engine) => engine,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let y = engine.tensor(&[0.25f32; 16], &[16]).expect("it fits");
        let mut x = y.clone();
        let mut round = || {
            for i in 0..OPS {
                x = if i % 2 == 0 { x.sub(&y) } else { x.add(&y) }.expect("it fits");
            }
        };
        // Until the engine recognizes and compiles the loop.
        (0..2_000).for_each(|_| round());
        engine.synchronize().expect("it runs");
        group.bench_function(name, |b| b.iter(&mut round));
        engine.synchronize().expect("it runs");
        let counters = engine.counters();
        assert!(!replay || 2 * counters.replayed > counters.ops, "the loop was not replayed");
    }
    group.finish();
}

criterion_group!(benches, steady, endless);
criterion_main!(benches);
