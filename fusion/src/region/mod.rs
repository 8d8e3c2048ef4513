//! Forms regions from a stream of recorded ops.
//!
//! Input: [`TraceOp`]s and releases in program order. Output: [`Region`]s. Pure: where a region
//! ends is a function of what was recorded, never of time, load, queue depth or threads.
//!
//! A [`RegionBuilder`] keeps the pending ops of one stream and asks a [`BoundaryRule`] where to cut
//! them into units. The builder itself handles hard boundaries (a host read, a flush, an effect, a
//! change of mode) and budgets. The rule adds soft boundaries; it is [`ContentChunking`] unless the
//! user supplies another. Units that always follow each other are merged into one region
//! (`merge_trie`). Once a loop without user boundaries is known, its ops are compared with the
//! expected ones (`loop_body`).
//!
//! Invariants:
//! - REGION-1: concatenating the ops of the regions of a stream gives the ops recorded on it, in
//!   order.
//! - REGION-2: a result is an output of its region exactly if, at the point in the stream where the
//!   boundary was decided, it was not released or an op after the boundary uses it. Outputs thus
//!   depend on the recorded program alone.
//! - REGION-3: every release that the builder took is returned exactly once, as a dying input or a
//!   dead result of a region.
//! - REGION-4: a region with an ordered effect contains only that op.
//! - REGION-5: reading a value that was produced since the last user boundary is a boundary, even
//!   if a budget has ended the value's region before. A loop that reads once per step thus starts
//!   each step at a boundary.

mod boundary;
mod builder;
mod content_chunking;
mod eager_memory;
mod loop_body;
mod merge_trie;
mod pending;
mod split;
mod token;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

pub use boundary::{Boundary, BoundaryRule, Budgets, Cut, HardOnly, Mentions, OperandDistance, PendingStats};
pub use builder::RegionBuilder;
pub use content_chunking::ContentChunking;
pub use eager_memory::{EagerMemory, Liveness};
pub use loop_body::LoopFingerprint;
pub use pending::Released;

use crate::id::{Site, ValueId};
use crate::ir::{Effect, Graph, Signature};

/// How a stream runs its ops. A mode only decides where regions end and who waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Regions as large as the boundaries allow; asynchronous.
    #[default]
    Fused,
    /// One op per region; asynchronous.
    Strict,
    /// One op per region; each call waits and is checked, and errors appear at the line that caused
    /// them.
    Debug,
}

impl Mode {
    /// The name as users write it: `fused`, `strict` or `debug`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Fused => "fused",
            Mode::Strict => "strict",
            Mode::Debug => "debug",
        }
    }

    /// Inverse of [`Mode::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Mode> {
        [Mode::Fused, Mode::Strict, Mode::Debug].into_iter().find(|mode| mode.name() == name)
    }
}

/// A reference to a value in the trace: an id, or a handle of the engine with an id.
pub trait TraceValue: Clone + fmt::Debug {
    /// The id of the value.
    fn id(&self) -> ValueId;
}

/// A result of an op in the trace: an id, or the engine's promise to produce the value.
pub trait TraceResult: fmt::Debug {
    /// The type of references to it.
    type Value: TraceValue;

    /// A reference to the value.
    fn value(&self) -> Self::Value;

    /// The id of the value.
    fn id(&self) -> ValueId {
        self.value().id()
    }
}

impl TraceValue for ValueId {
    fn id(&self) -> ValueId {
        *self
    }
}

impl TraceResult for ValueId {
    type Value = ValueId;

    fn value(&self) -> ValueId {
        *self
    }
}

/// An operand of a recorded op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand<V = ValueId> {
    /// A tensor value.
    Tensor(V),
    /// A lifted scalar: its data is an argument of the execution and not part of the key.
    Scalar(V),
}

impl<V> Operand<V> {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &V {
        match self {
            Operand::Tensor(value) | Operand::Scalar(value) => value,
        }
    }
}

/// The operands of a recorded op.
pub type Operands<V = ValueId> = SmallVec<[Operand<V>; 3]>;

/// The values that a recorded op produces.
pub type Results<R = ValueId> = SmallVec<[R; 1]>;

/// One recorded op: plain data.
#[derive(Clone, Debug)]
pub struct TraceOp<R: TraceResult = ValueId> {
    /// Op, attributes and types.
    pub signature: Arc<Signature>,
    /// The operands.
    pub operands: Operands<R::Value>,
    /// The values produced, in the order of the signature's results.
    pub results: Results<R>,
    /// Its side effect.
    pub effect: Effect,
    /// The mode when it was recorded.
    pub mode: Mode,
    /// Its call site.
    pub site: Site,
}

/// A value that a region reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<V = ValueId> {
    /// The value.
    pub value: V,
    /// Whether it is a lifted scalar.
    pub lifted: bool,
    /// Whether its last handle was released before the boundary was decided. The region is then its
    /// last reader, must release it, and may reuse its memory.
    pub dies: bool,
}

/// A value that a region produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output<R = ValueId> {
    /// The value.
    pub value: R,
    /// Whether it is needed after the region (REGION-2). If not, it is released with the region.
    pub live: bool,
}

/// A part of a region that can be a region by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Number of ops.
    pub ops: usize,
    /// Why it ends where it does.
    pub boundary: Boundary,
    /// A stable hash of its ops.
    pub(crate) fingerprint: u64,
}

/// A sequence of consecutive ops that becomes one executable.
#[derive(Clone, Debug)]
pub struct Region<R: TraceResult = ValueId> {
    /// The ops. Parameters are the inputs, in order of first use.
    pub graph: Graph,
    /// The values read, parallel to the graph's parameters.
    pub inputs: Vec<Input<R::Value>>,
    /// The values produced, parallel to the graph's results.
    pub outputs: Vec<Output<R>>,
    /// The call site of each op, parallel to the graph's nodes.
    pub sites: Vec<Site>,
    /// The units that were merged, because they always follow each other; empty for a single unit.
    pub units: Vec<Unit>,
    /// Whether it contains everything that was recorded between two user boundaries.
    pub spans_user_boundaries: bool,
    /// The loop body, if the region is an iteration that was expected.
    pub round: Option<LoopFingerprint>,
    /// Why the region ends where it does.
    pub boundary: Boundary,
    /// The mode of its ops.
    pub mode: Mode,
    /// Whether its (only) op has an ordered effect.
    pub effect: Effect,
}
