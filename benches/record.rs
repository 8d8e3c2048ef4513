//! What it costs to record an op: the public API, the handle and its drop included.
//!
//! `cargo bench --bench record`. The device is the reference interpreter, which has nothing to do here: handles are dropped
//! before anything asks for them, so regions are sealed, found to be of no use, and left out. Ops come in bursts with a
//! wait in between that is not counted: short ones, during which nobody looks at the log, and long ones, during which the
//! stream's driver takes the ops in on another core.
#![allow(missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fuseline::{Engine, Stream, Tensor};

/// Ops between two waits that leave the driver asleep.
const SHORT: u64 = 250;

/// Ops between two waits that do not, and are few enough that the log of the stream never fills up.
const LONG: u64 = 1_500;

/// Time that `iterations` calls take, the waits in between left out.
fn in_bursts(of: u64, stream: &Stream, iterations: u64, mut call: impl FnMut()) -> Duration {
    let mut took = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let burst = left.min(of);
        let start = Instant::now();
        for _ in 0..burst {
            call();
        }
        took += start.elapsed();
        left -= burst;
        stream.synchronize().expect("not in a callback");
    }
    took
}

fn vector(engine: &Engine) -> Tensor {
    engine.tensor(&[1.0f32; 1_024], &[1_024]).expect("the reference device takes everything")
}

fn one_thread(c: &mut Criterion) {
    let engine = Engine::reference();
    let (x, y) = (vector(&engine), vector(&engine));
    let mut group = c.benchmark_group("record");
    group.throughput(Throughput::Elements(1));
    group.bench_function("add", |b| {
        b.iter_custom(|n| in_bursts(SHORT, engine.stream(), n, || drop(black_box(x.add(&y)))));
    });
    group.bench_function("add, driver at work", |b| {
        b.iter_custom(|n| in_bursts(LONG, engine.stream(), n, || drop(black_box(x.add(&y)))));
    });
    group.bench_function("exp", |b| {
        b.iter_custom(|n| in_bursts(SHORT, engine.stream(), n, || drop(black_box(x.exp()))));
    });
    group.bench_function("scalar operand", |b| {
        b.iter_custom(|n| in_bursts(SHORT, engine.stream(), n, || drop(black_box(&x * 0.5))));
    });
    group.bench_function("sum of an axis", |b| {
        b.iter_custom(|n| in_bursts(SHORT, engine.stream(), n, || drop(black_box(x.sum(&[0])))));
    });
    group.finish();
}

/// The same op from two threads at once, on one stream and on a stream each: the figure is what one thread's op takes.
fn two_threads(c: &mut Criterion) {
    let engine = Engine::reference();
    let shared = engine.new_stream();
    let mut group = c.benchmark_group("record by two threads");
    group.throughput(Throughput::Elements(1));
    for (name, streams) in [
        ("one stream", [shared.clone(), shared]),
        ("two streams", [engine.new_stream(), engine.new_stream()]),
    ] {
        let operands = streams.map(|stream| {
            let x = stream.tensor(&[1.0f32; 1_024], &[1_024]).expect("it fits");
            (stream, x)
        });
        group.bench_function(name, |b| {
            b.iter_custom(|n| {
                std::thread::scope(|scope| {
                    let run = |(stream, x): &(Stream, Tensor)| {
                        in_bursts(LONG, stream, n, || drop(black_box(x.add(x))))
                    };
                    let threads = operands.each_ref().map(|operand| scope.spawn(move || run(operand)));
                    threads
                        .into_iter()
                        .map(|thread| thread.join().expect("no panic"))
                        .max()
                        .unwrap_or_default()
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, one_thread, two_threads);
criterion_main!(benches);
