//! What it costs to bring a region into canonical form and to make its key.
//!
//! `cargo bench --bench key`.
#![allow(missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fuseline::fusion::canon::{CanonRegion, EnvFingerprint};
use fuseline::fusion::graph::{Graph, Ref, Refs};
use fuseline::fusion::{Attrs, DType, OpCode, Signature, TensorType};

/// A chain of additions with two parameters.
fn region(ops: usize) -> Graph {
    let ty = TensorType::of(DType::F32, &[32, 32]).expect("it is small");
    let add = Signature::infer(OpCode::Add, Attrs::none(), &[], &[ty.clone(), ty.clone()]).expect("they fit");
    let add = Arc::new(add);
    let mut graph = Graph::new();
    let (mut last, other): (Ref, Ref) = (graph.param(ty.clone()), graph.param(ty));
    for _ in 0..ops {
        last = graph.push_signature(add.clone(), Refs::from_slice(&[last, other]))[0];
    }
    graph
}

fn key(c: &mut Criterion) {
    let environment = EnvFingerprint::of(b"benchmark");
    let mut group = c.benchmark_group("key");
    for ops in [5, 50, 500] {
        let graph = region(ops);
        group.throughput(Throughput::Elements(ops as u64));
        group.bench_function(BenchmarkId::from_parameter(ops), |b| {
            let make = || (graph.clone(), vec![false; 2].into_boxed_slice());
            let key = |(graph, lifted)| black_box(CanonRegion::new(graph, lifted).key(&environment));
            b.iter_batched(make, key, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, key);
criterion_main!(benches);
