//! Counts the instructions of each stage with Callgrind. `cargo xtask micro` runs this and compares
//! the counts with `benches/baseline.json`.
//!
//! Times depend on the machine. These counts vary by about one in a thousand only (addresses decide
//! how far a hash table is searched). They exclude threads and devices: stages run on one thread,
//! and executions are left out.
#![allow(missing_docs, unused_qualifications, reason = "a benchmark, whose functions macros write")]

use std::hint::black_box;

use fuseline_micro::op::{self, Class};
use fuseline_micro::region;
use gungraun::prelude::*;

fn op_ready(class: Class, stage: op::Stage) -> (op::Rig, op::Stage, op::Batch) {
    let rig = op::Rig::new(class);
    // Fills the caches and grows the containers.
    for _ in 0..2 {
        rig.run(stage, &mut rig.prepare(stage));
    }
    let batch = rig.prepare(stage);
    (rig, stage, batch)
}

macro_rules! op_stages {
    ($($function:ident: $stage:ident),*) => {
        $(
            #[library_benchmark]
            #[bench::elementwise(op_ready(Class::Elementwise, op::Stage::$stage))]
            #[bench::broadcast(op_ready(Class::Broadcast, op::Stage::$stage))]
            #[bench::reduce(op_ready(Class::Reduce, op::Stage::$stage))]
            #[bench::dot(op_ready(Class::Dot, op::Stage::$stage))]
            #[bench::view(op_ready(Class::View, op::Stage::$stage))]
            #[bench::multi_output(op_ready(Class::MultiOutput, op::Stage::$stage))]
            #[bench::update(op_ready(Class::Update, op::Stage::$stage))]
            fn $function((rig, stage, mut batch): (op::Rig, op::Stage, op::Batch)) -> (op::Rig, op::Batch) {
                rig.run(stage, &mut batch);
                black_box((rig, batch))
            }
        )*
    };
}

op_stages!(infer: Infer, rule: Rule, handle: Handle, record: Record, drop_handle: Drop, call: Call, replay: Replay);

library_benchmark_group!(
    name = op_group,
    benchmarks = [infer, rule, handle, record, drop_handle, call, replay]
);

fn region_ready(ops: usize, stage: region::Stage) -> (region::Rig, region::Stage, region::Batch) {
    let mut rig = region::Rig::new(&fuseline_micro::reference(), ops);
    let batch = rig.prepare(stage);
    (rig, stage, batch)
}

macro_rules! region_stages {
    ($($function:ident: $stage:ident),*) => {
        $(
            #[library_benchmark]
            #[bench::ops_1(region_ready(1, region::Stage::$stage))]
            #[bench::ops_10(region_ready(10, region::Stage::$stage))]
            #[bench::ops_100(region_ready(100, region::Stage::$stage))]
            #[bench::ops_1000(region_ready(1_000, region::Stage::$stage))]
            fn $function(
                (mut rig, stage, mut batch): (region::Rig, region::Stage, region::Batch),
            ) -> (region::Rig, region::Batch) {
                rig.run(stage, &mut batch);
                black_box((rig, batch))
            }
        )*
    };
}

region_stages!(
    record_region: Record,
    take_in: TakeIn,
    seal: Seal,
    canonicalise: Canonicalise,
    hash: Hash,
    job: Job,
    look_up: LookUp,
    bind: Bind
);

library_benchmark_group!(
    name = region_group,
    benchmarks = [record_region, take_in, seal, canonicalise, hash, job, look_up, bind]
);

// Chunks that do not fit into a thread's cache go to lists that glibc consolidates now and then.
// Which stage pays for that depends on other threads. With a large enough cache, an allocation
// always costs the same.
main!(
    config = LibraryBenchmarkConfig::default().env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=16000"),
    library_benchmark_groups = [op_group, region_group]
);
