//! The recorder's types, instantiated for the engine.

use fuseline_fusion::region::Mode;
use fuseline_record::{call, entry, mode, replay_trace, trace_cache};

use crate::stream::StreamShared;
use crate::tensor::Tensor;
use crate::value::Outcome;

/// An entry of a stream's log.
pub(crate) type Entry = entry::Entry<Outcome>;

/// A call to be recorded.
pub(crate) type RecordCall<'a> = call::RecordCall<'a, Tensor>;

/// Recorded calls that follow a template.
pub(crate) type ReplayTrace = replay_trace::ReplayTrace<Outcome>;

/// One of the entries that a trace stands for.
pub(crate) type TraceEntry = replay_trace::TraceEntry<Outcome>;

/// The parts of a region whose ops are those of a whole template.
pub(crate) type RecordedRegion = replay_trace::RecordedRegion<Outcome>;

/// The trace cache of a stream.
pub(crate) type Replay = trace_cache::Replay<StreamShared>;

/// Calls `f`. Every op that this thread records meanwhile, on any stream, has the given mode.
/// Scopes nest, and end when `f` returns or panics. An op captures its mode when it is recorded, so
/// nothing has to be flushed at either end.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// let x = engine.tensor(&[1.0f32, 4.0], &[2])?;
/// let y = fuseline::with_mode(fuseline::Mode::Debug, || x.sqrt())?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub fn with_mode<R>(mode: Mode, f: impl FnOnce() -> R) -> R {
    mode::with_mode(mode, f)
}
