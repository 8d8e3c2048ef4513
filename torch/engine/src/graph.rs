//! Graphs that are recorded once and called as one op, for `torch.compile`.
//!
//! ```text
//! begin ─► params ─► kernels run as usual, on values without data ─► end ─► Graph
//! Graph ─► call, call, ..
//! ```
//!
//! While a thread records a graph, its ops go into the graph ([`recording`]); those of other
//! threads go to the stream. Each call draws new random numbers: [`draw`] makes the seed and the
//! position in the sequence parameters. If data is needed during recording (a read, an op that the
//! CPU would compute), the recording fails and the shim runs the graph's ops one by one.
//!
//! Invariants:
//! - TGRAPH-1: the parameters are the inputs in order, then two for each draw. Numbers in the
//!   program are constants.
//! - TGRAPH-2: a call is recorded between flushes, so its region, and therefore its executable,
//!   depends on the graph alone.

#![allow(
    clippy::disallowed_types,
    reason = "no model checker drives this crate, and the engine's shim is not public"
)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuseline::fusion::{DType, Scalar, TensorType};
use fuseline::{Function, FunctionTrace, Stream, Tensor};
use parking_lot::Mutex;

use crate::call::{Result, Results, unsupported};
use crate::device;

/// Draws of different calls are 2^32 blocks apart.
pub(crate) const APART: u64 = 1 << 32;

/// The state of a thread's recording.
struct Recording {
    trace: FunctionTrace,
    stream: Stream,
    draws: usize,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// A recorded graph.
pub(crate) struct Graph {
    function: Function,
    draws: usize,
}

/// All graphs, by number.
static GRAPHS: Mutex<Option<HashMap<u64, Arc<Graph>>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Begins to record the ops of this thread.
///
/// # Errors
/// If the thread already records a graph.
pub(crate) fn begin(name: &str) -> Result<()> {
    let base = device::stream()?;
    RECORDING.with_borrow_mut(|recording| {
        if recording.is_some() {
            return unsupported("this thread is already recording a graph");
        }
        let trace = base.begin_function(name);
        let stream = trace.stream();
        *recording = Some(Recording { trace, stream, draws: 0 });
        Ok(())
    })
}

/// Returns the stream of this thread's recording, if there is one.
pub(crate) fn recording() -> Option<Stream> {
    RECORDING.with_borrow(|recording| recording.as_ref().map(|recording| recording.stream.clone()))
}

fn with<R>(work: impl FnOnce(&mut Recording) -> Result<R>) -> Result<R> {
    RECORDING.with_borrow_mut(|recording| match recording.as_mut() {
        Some(recording) => work(recording),
        None => unsupported("this thread is not recording a graph"),
    })
}

/// Adds the next input.
///
/// # Errors
/// If no graph is being recorded, or random numbers were drawn before.
pub(crate) fn param(ty: &TensorType) -> Result<Tensor> {
    with(|recording| match recording.draws {
        0 => Ok(recording.trace.param(ty)?),
        _ => unsupported("a graph input must come before its random numbers"),
    })
}

/// Adds two parameters that each call supplies: a seed and a position in its sequence, both `ui64`.
///
/// # Errors
/// If no graph is being recorded.
pub(crate) fn draw() -> Result<[Tensor; 2]> {
    with(|recording| {
        recording.draws += 1;
        let ty = TensorType::scalar(DType::U64);
        Ok([recording.trace.param(&ty)?, recording.trace.param(&ty)?])
    })
}

/// Ends the graph, which returns these values. Returns its number and how many draws a call makes.
///
/// # Errors
/// If a value cannot be returned. The recording ends anyway.
pub(crate) fn end(returns: &[Tensor]) -> Result<(u64, usize)> {
    let Some(Recording { trace, draws, .. }) = RECORDING.take() else {
        return unsupported("this thread is not recording a graph");
    };
    let graph = Graph { function: trace.end(returns)?, draws };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    GRAPHS.lock().get_or_insert_default().insert(number, Arc::new(graph));
    Ok((number, draws))
}

/// Discards this thread's recording.
pub(crate) fn abort() {
    drop(RECORDING.take());
}

/// Drops a graph.
pub(crate) fn forget(number: u64) {
    let gone = GRAPHS.lock().as_mut().and_then(|graphs| graphs.remove(&number));
    drop(gone);
}

/// Records a call as one op, or as the graph's ops. `draws` has a seed and a call number for each
/// draw.
///
/// # Errors
/// If there is no such graph, or the values have other types.
pub(crate) fn call(number: u64, is_apart: bool, inputs: &[&Tensor], draws: &[[u64; 2]]) -> Result<Results> {
    let graph = GRAPHS.lock().as_ref().and_then(|graphs| graphs.get(&number).cloned());
    let Some(graph) = graph else { return unsupported(format!("there is no graph {number}")) };
    if draws.len() != graph.draws {
        return unsupported(format!(
            "the graph draws random numbers {} times, but the call has {} draws",
            graph.draws,
            draws.len()
        ));
    }
    let stream = device::stream()?;
    let state = draws.iter().flat_map(|&[seed, offset]| [seed, offset.wrapping_mul(APART)]);
    let drawn: Vec<Tensor> = state.map(|word| stream.lift(Scalar::new(word))).collect();
    let operands: Vec<&Tensor> = inputs.iter().copied().chain(&drawn).collect();
    stream.flush();
    let made = match is_apart {
        false => graph.function.call(stream, &operands)?,
        true => graph.function.write_out(stream, &operands)?,
    };
    Ok(made.into_iter().collect())
}
