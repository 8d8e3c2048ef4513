//! From a stream of recorded ops to regions.
//!
//! Input: [`TraceOp`]s and releases in program order. Output: [`Region`]s. Pure: where a region ends is a function of
//! what was recorded, never of time, load, queue depth or threads.
//!
//! A [`RegionBuilder`] keeps the pending ops of one stream and asks a [`BoundaryRule`] where to cut them into units. Hard boundaries
//! (a host read, a flush, an effect, a change of mode) and the budgets stand in the builder; the rule, which is [`ContentRule`] unless the
//! user has another, adds to them. Units that always follow each other become one region (`plan`). What a program repeats without asking for
//! a boundary is, once that is known, expected op by op (`round`).
//!
//! Invariants:
//! - R1: concatenating the ops of the regions of a stream gives the ops recorded on it, in order.
//! - R2: a result is an output of its region exactly when, at the place in the stream where the boundary was decided,
//!   it has not been released or an op after the boundary uses it. So outputs depend on the recorded program alone.
//! - R3: every release that the builder took is returned exactly once, as a dying input or a dead result of a region.
//! - R4: a region with an ordered effect has that one op only.
//! - R5: asking for a value that was made since the program last asked for a boundary is a boundary, also when a budget has
//!   ended the value's region already. So a loop that reads once per step starts each step at a boundary.

mod boundary;
mod builder;
mod content;
mod held;
mod plan;
mod round;
mod split;
mod token;
mod window;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

pub use boundary::{Boundary, BoundaryRule, Budgets, Cut, HardOnly, Mention, Mentions, PendingStats};
pub use builder::RegionBuilder;
pub use content::ContentRule;
pub use held::{Ends, Held};
pub use round::RoundPrint;
pub use window::Released;

use crate::graph::Graph;
use crate::id::{Site, ValueId};
use crate::op::{Effect, Signature};

/// How a stream runs its ops. A mode decides where regions end and who waits, nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Regions as large as the boundaries allow; asynchronous.
    #[default]
    Fused,
    /// Each op a region of its own; asynchronous.
    Strict,
    /// Each op a region of its own; waited for and checked, errors at the line that caused them.
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

/// A value as the trace refers to it: an id, or a handle of the engine's that has one.
pub trait TraceValue: Clone + fmt::Debug {
    /// Which value it is.
    fn id(&self) -> ValueId;
}

/// A value that an op of the trace makes: an id, or the engine's duty to make it.
pub trait TraceResult: fmt::Debug {
    /// What later ops refer to it by.
    type Value: TraceValue;

    /// A reference to the value.
    fn value(&self) -> Self::Value;

    /// Which value it is.
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
    /// A lifted scalar: a value whose data travels with the execution and stays out of the key.
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

/// The values that a recorded op makes.
pub type Results<R = ValueId> = SmallVec<[R; 1]>;

/// One recorded op: plain data.
#[derive(Clone, Debug)]
pub struct TraceOp<R: TraceResult = ValueId> {
    /// Op, attributes and types.
    pub signature: Arc<Signature>,
    /// The operands.
    pub operands: Operands<R::Value>,
    /// The values made, in the order of the signature's results.
    pub results: Results<R>,
    /// What it does besides computing.
    pub effect: Effect,
    /// The mode captured when it was recorded.
    pub mode: Mode,
    /// Where it was recorded.
    pub site: Site,
}

/// A value that a region reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<V = ValueId> {
    /// The value.
    pub value: V,
    /// Whether it is a lifted scalar.
    pub lifted: bool,
    /// Whether its last handle was released before the boundary was decided: the region is its last reader and must
    /// release it, and may reuse its memory.
    pub dies: bool,
}

/// A value that a region makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output<R = ValueId> {
    /// The value.
    pub value: R,
    /// Whether it is needed after the region (R2). One that is not is released with the region.
    pub live: bool,
}

/// A part of a region that can be a region of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Number of ops.
    pub ops: usize,
    /// Why it ends where it does.
    pub boundary: Boundary,
    /// A hash of its ops.
    pub(crate) print: u64,
}

/// A run of consecutive ops that will be one executable.
#[derive(Clone, Debug)]
pub struct Region<R: TraceResult = ValueId> {
    /// The ops; parameters are the inputs, by first use.
    pub graph: Graph,
    /// The values read, parallel to the graph's parameters.
    pub inputs: Vec<Input<R::Value>>,
    /// The values made, parallel to the graph's results.
    pub outputs: Vec<Output<R>>,
    /// Where each op was recorded, parallel to the graph's nodes.
    pub sites: Vec<Site>,
    /// What it was joined from, because these units always follow each other; empty if it is one.
    pub units: Vec<Unit>,
    /// It is all that was recorded between two boundaries that the program asked for.
    pub is_whole: bool,
    /// It is a round of what the program repeats without asking for boundaries, as it was expected: this is which one.
    pub round: Option<RoundPrint>,
    /// Why the region ends where it does.
    pub boundary: Boundary,
    /// The mode of its ops.
    pub mode: Mode,
    /// Whether its (only) op has an ordered effect.
    pub effect: Effect,
}
