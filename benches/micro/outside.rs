//! The program of `cargo xtask micro --outside`: what recording costs a program that depends on
//! Fuseline and has the default release profile.
//!
//! It uses the public API alone. The command builds it in a crate of its own and in this one, runs
//! both under Callgrind and compares the instructions of the function [`counted`]. The argument is
//! the stage.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a program that cannot go on stops")]

use std::hint::black_box;

use fuseline::{Engine, EngineConfig, HardOnly, Stream, Tensor};

/// Calls that are counted: few enough that the log never fills up.
const BATCH: usize = 100;

fn main() {
    let stage = std::env::args().nth(1).unwrap();
    let config = EngineConfig::new().interpret_cold_regions(false).without_disk_cache();
    let engine = config.boundary_rule(|| Box::new(HardOnly)).build_reference().unwrap();
    let stream = engine.new_stream();
    match stage.as_str() {
        "replay" => replay(&engine, &stream),
        "call" => drop(call(&stream, true)),
        "drop" => {
            let made = call(&stream, false);
            counted(|| drop(made));
        }
        _ => panic!("no stage {stage}"),
    }
}

/// A loop that has recorded the same before. The result of each call is dropped at once.
fn replay(engine: &Engine, stream: &Stream) {
    let [x, y] = operands(stream);
    let round = || {
        let mut last = x.clone();
        for _ in 0..BATCH {
            last = black_box(x.add(&y).unwrap());
        }
        last
    };
    let finish = |last: Tensor| {
        stream.flush();
        drop(last);
        stream.synchronize().unwrap();
    };
    for _ in 0..6 {
        finish(round());
    }
    let before = engine.counters().replayed;
    let mut last = None;
    counted(|| last = Some(round()));
    finish(last.unwrap());
    assert_eq!(engine.counters().replayed - before, BATCH as u64);
}

/// Calls that no trace expects, by a thread that remembers their types.
fn call(stream: &Stream, is_counted: bool) -> Vec<Tensor> {
    let [x, y] = operands(stream);
    drop(x.add(&y).unwrap());
    let mut made = Vec::with_capacity(BATCH);
    let mut batch = || made.extend((0..BATCH).map(|_| black_box(x.add(&y).unwrap())));
    if is_counted {
        counted(batch)
    } else {
        batch()
    }
    made
}

fn operands(stream: &Stream) -> [Tensor; 2] {
    [(); 2].map(|()| stream.tensor(&[1.0f32; 64], &[8, 8]).unwrap())
}

/// What Callgrind counts.
#[inline(never)]
fn counted(work: impl FnOnce()) {
    work();
}
