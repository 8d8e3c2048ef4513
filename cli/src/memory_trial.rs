//! `fuseline memory-trial` (hidden): what a device does when its memory runs out.
//!
//! `benches/gpu/run` calls it. One engine computes something small, something that fits, values
//! that do not fit together, a value that cannot fit, and then something small again. Output: one
//! JSON document with the outcome of each step and the device's memory statistics after it.

use std::time::Instant;

use fuseline::{Bytes, Counters, Engine, Error, Mode, Tensor};
use serde_json::{Value, json};

use crate::Status;
use crate::cli::MemoryTrialArgs;
use crate::device::{Watch, Watched};
use crate::devices::client_json;
use crate::failure::Failure;
use crate::options::Contract;
use crate::text::{milliseconds, say};

/// Bytes of the value that cannot fit, on a device that does not say how much memory it has.
const HUGE: usize = 1 << 45;

/// Bytes of the value that fits, on a device that does not say how much memory it has.
const MODEST: usize = 64 << 20;

/// What a step should end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Result,
    /// An error that names the op.
    Error,
    /// One or the other: it depends on what else is in memory.
    Either,
}

pub(crate) fn run(args: &MemoryTrialArgs, out: &mut String) -> Result<Status, Failure> {
    let watched = Watched::afresh(&args.place, Contract::default(), Mode::Fused, Watch::default())?;
    let engine = &watched.engine;
    let limit = memory_stats(engine)["bytes_limit"].as_u64().and_then(|limit| usize::try_from(limit).ok());
    let fits = limit.map_or(MODEST, |limit| limit / 4);
    let mut steps =
        vec![step(engine, "small", 1, 4, Wanted::Result), step(engine, "fits", 1, fits, Wanted::Result)];
    if let Some(limit) = limit {
        steps.push(step(engine, "three of 45 % each", 3, limit / 20 * 9, Wanted::Either));
    }
    steps.push(step(engine, "too large", 1, limit.map_or(HUGE, |limit| limit * 4), Wanted::Error));
    steps.push(step(engine, "small again", 1, 4, Wanted::Result));
    steps.push(step(engine, "fits again", 1, fits, Wanted::Result));
    let good = steps.iter().all(|step| step["as_wanted"] == true);
    let document = json!({
        "status": if good { "ok" } else { "unexpected" },
        "device": watched.place_json(),
        "bytes_limit": limit,
        "steps": steps,
    });
    say!(out, "{document:#}");
    Ok(if good { Status::Good } else { Status::Bad })
}

/// Makes `count` values of `bytes` bytes that are alive at the same time, and reads the greatest
/// element of each.
fn step(engine: &Engine, name: &str, count: usize, bytes: usize, wanted: Wanted) -> Value {
    let before = engine.counters();
    let start = Instant::now();
    let outcome = greatest(engine, count, bytes / 4);
    let took = start.elapsed();
    let Counters { out_of_memory, partitioned, poisoned, .. } = engine.counters().since(&before);
    let as_wanted = match &outcome {
        Ok(greatest) => wanted != Wanted::Error && greatest.iter().all(|found| *found == 1.0),
        Err(error) => wanted != Wanted::Result && names_op(error),
    };
    json!({
        "name": name,
        "bytes": bytes,
        "size": Bytes(bytes as u64).to_string(),
        "values": count,
        "as_wanted": as_wanted,
        "greatest": outcome.as_ref().ok(),
        "error": outcome.as_ref().err().map(ToString::to_string),
        "is_resource_exhausted": outcome.as_ref().err().map(Error::is_resource_exhausted),
        "ms": milliseconds(took),
        "out_of_memory": out_of_memory,
        "in_parts": partitioned,
        "poisoned": poisoned,
        "memory_stats": memory_stats(engine),
    })
}

fn greatest(engine: &Engine, count: usize, elements: usize) -> fuseline::Result<Vec<f32>> {
    let values = (0..count).map(|_| engine.full(1.0f32, &[elements])).collect::<Result<Vec<Tensor>, _>>()?;
    let greatest = values.iter().map(|value| value.max(&[0])).collect::<Result<Vec<Tensor>, _>>()?;
    // The values are alive until all are read, so none is merely a part of a fused kernel.
    greatest.iter().map(Tensor::item).collect()
}

/// Whether an error tells a user which op ran out of memory.
fn names_op(error: &Error) -> bool {
    error.is_resource_exhausted()
        && ["broadcast_in_dim", "reduce"].iter().any(|op| error.to_string().contains(op))
}

/// The statistics of the device's memory, null if it has none.
fn memory_stats(engine: &Engine) -> Value {
    let Some(device) = engine.pjrt_device() else { return Value::Null };
    let client = client_json(device.client());
    let devices = client["devices"].as_array().into_iter().flatten();
    devices
        .clone()
        .find(|one| one["id"] == json!(device.id()))
        .map_or(Value::Null, |one| one["memory_stats"].clone())
}
