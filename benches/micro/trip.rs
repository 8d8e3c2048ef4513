//! The program that `cargo xtask trip` watches under Callgrind: a matmul and an addition, recorded
//! and read, first as new calls and then as a loop that is replayed.
//!
//! Callgrind starts a new dump whenever [`trip_phase`] is called. The phases are set-up, the first
//! recording, the rounds until the trace cache replays, steady rounds, and the end.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use fuseline::{EngineConfig, Tensor};

/// Rounds after which the loop is replayed.
const WARM_UP: usize = 8;

/// Steady rounds.
const STEADY: usize = 4;

/// Ops of a round.
const OPS: u64 = 2;

fn main() -> anyhow::Result<()> {
    let config = EngineConfig::new().interpret_cold_regions(false).without_disk_cache();
    let engine = match std::env::args_os().nth(1).map(PathBuf::from) {
        Some(plugin) => config.plugin(plugin).build(),
        None => config.build_reference(),
    };
    let engine = engine.context("the engine does not start")?;
    let stream = engine.new_stream();
    let x = stream.tensor(&[1.0f32; 64], &[8, 8])?;
    let y = stream.tensor(&[2.0f32; 64], &[8, 8])?;

    trip_phase();
    let first = round(&x, &y)?;

    trip_phase();
    for _ in 0..WARM_UP {
        round(&x, &y)?;
    }

    trip_phase();
    let before = engine.counters().replayed;
    let mut last = Vec::new();
    for _ in 0..STEADY {
        last = round(&x, &y)?;
    }
    let replayed = engine.counters().replayed - before;

    trip_phase();
    ensure!(first == last && first == [18.0; 64], "the results are wrong: {first:?}, then {last:?}");
    let ops = STEADY as u64 * OPS;
    ensure!(replayed == ops, "{replayed} of {ops} ops were replayed");
    Ok(())
}

/// One round: an op of the general path, an op of the elementwise path, a read.
fn round(x: &Tensor, y: &Tensor) -> anyhow::Result<Vec<f32>> {
    let product = x.matmul(y)?;
    let sum = product.add(y)?;
    drop(product);
    Ok(sum.to_vec()?)
}

/// Ends a phase. Callgrind looks for this name.
#[inline(never)]
fn trip_phase() {
    black_box(());
}
