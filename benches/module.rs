//! The steps between a region and XLA's compiler: printing its module, verifying it, and the
//! plugin's parser.
//!
//! `cargo bench --bench module` times the first two. The parser is compared for text and bytecode:
//!
//! ```text
//! FUSELINE_MODULES=target/modules cargo bench --bench module -- none  # writes 10.mlir, ..
//! python -c '
//! import pathlib
//! from jax._src.interpreters import mlir as jax_mlir
//! from jax._src.lib.mlir import ir
//! with jax_mlir.make_ir_context():
//!     for path in pathlib.Path("target/modules").glob("*.mlir"):
//!         with open(path.with_suffix(".mlirbc"), "wb") as file:
//!             ir.Module.parse(path.read_text()).operation.write_bytecode(file)
//! '
//! FUSELINE_MODULES=target/modules cargo bench --bench module -- none  # compiles both in turns
//! ```
#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark")]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fuseline::Engine;
use fuseline::fusion::canon::CanonRegion;
use fuseline::fusion::lower::{Aliases, Module, Numerics, lower};
use fuseline::fusion::op::attrs::{self, DotDimensionNumbers};
use fuseline::fusion::{Attrs, DType, Graph, OpCode, Ref, Shape, TensorType};
use fuseline::pjrt::CompileOptions;

const OPS: [usize; 3] = [10, 100, 1_000];

/// How often each form of a module is compiled.
const TURNS: usize = 15;

/// A layered network of about this many ops: products, broadcasts, sums and elementwise functions
/// on 32x32.
fn region(ops: usize) -> CanonRegion {
    let ty = TensorType::of(DType::F32, &[32, 32]).expect("it is small");
    let mut graph = Graph::new();
    let (mut x, weight) = (graph.param(ty.clone()), graph.param(ty.clone()));
    let (bias, step) = (
        graph.param(TensorType::of(DType::F32, &[32]).expect("it is small")),
        graph.param(TensorType::scalar(DType::F32)),
    );
    let shape = || Shape::new(&[32, 32]).expect("it is small");
    let dims = DotDimensionNumbers {
        lhs_contracting: &[1],
        rhs_contracting: &[0],
        ..DotDimensionNumbers::default()
    };
    let mut push = |op, attrs, operands: &[Ref]| graph.push(op, attrs, &[], operands).expect("it fits")[0];
    for layer in 0..ops.div_ceil(6) {
        let mut made = push(OpCode::DotGeneral, attrs::dot_general(dims, DType::F32), &[x, weight]);
        let spread = push(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape(), &[1]), &[bias]);
        made = push(OpCode::Add, Attrs::none(), &[made, spread]);
        made = push(if layer % 2 == 0 { OpCode::Tanh } else { OpCode::Logistic }, Attrs::none(), &[made]);
        let scale = push(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape(), &[]), &[step]);
        x = push(OpCode::Multiply, Attrs::none(), &[made, scale]);
    }
    CanonRegion::new(graph, Box::new([false, false, false, true]))
}

fn module(region: &CanonRegion) -> Module {
    let last = region.graph().result_count() as u32 - 1;
    lower(region, &[last], &Aliases::none(), Numerics::Fast)
}

fn reading(c: &mut Criterion) {
    for (name, verified) in [("print", false), ("verify", true)] {
        let mut group = c.benchmark_group(name);
        for ops in OPS {
            let region = region(ops);
            group.throughput(Throughput::Elements(ops as u64));
            group.bench_function(BenchmarkId::from_parameter(ops), |b| match verified {
                false => b.iter(|| black_box(module(&region))),
                true => {
                    let verify = |module: Module| black_box(module.verify()).expect("it is what was printed");
                    b.iter_batched(|| module(&region), verify, BatchSize::SmallInput);
                }
            });
        }
        group.finish();
    }
}

/// Minimum and median of times.
fn spread(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[0], times[times.len() / 2])
}

/// Writes the modules to a folder, or compiles them from there in both forms, in turns.
fn compiling(_: &mut Criterion) {
    let Some(folder) = std::env::var_os("FUSELINE_MODULES") else { return };
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder).expect("a folder");
    for ops in OPS {
        let (text, bytecode) = (folder.join(format!("{ops}.mlir")), folder.join(format!("{ops}.mlirbc")));
        if !bytecode.exists() {
            std::fs::write(&text, module(&region(ops)).text()).expect("it can be written");
            println!("{} written", text.display());
            continue;
        }
        let engine = Engine::new().expect("a plugin");
        let device = engine.pjrt_device().expect("a plugin's");
        let options = CompileOptions::new().device(device.id());
        let forms = [&text, &bytecode].map(|path| std::fs::read(path).expect("it can be read"));
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (form, times) in forms.iter().zip(&mut times) {
                let start = Instant::now();
                drop(device.client().compile(form, &options).expect("it compiles"));
                times.push(start.elapsed());
            }
        }
        let [text, bytecode] = times.map(spread);
        println!("{ops} ops: text {text:?}, bytecode {bytecode:?} (least, middle of {TURNS})");
    }
}

criterion_group!(benches, reading, compiling);
criterion_main!(benches);
