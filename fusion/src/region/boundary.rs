//! Where regions end, and why.

use std::fmt;

use smallvec::SmallVec;

use crate::op::Signature;
use crate::shape::Bytes;

/// Why a region ends where it does. Each boundary is an event with this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Boundary {
    /// The host asked for a value that the region makes.
    HostRead,
    /// The user asked for a flush.
    Flush,
    /// An op with an ordered effect stands before or after.
    Effect,
    /// What was recorded around this place says so ([`super::ContentRule`]).
    Content,
    /// The program begins here: its ops before compute from nothing but numbers ([`super::ContentRule`]).
    Setup,
    /// The region has as many ops as the budget allows.
    OpBudget,
    /// The next op would bring more inputs than the budget allows.
    InputBudget,
    /// The results of the region have as many bytes as the budget allows.
    ByteBudget,
    /// The mode is Strict: every op is a region.
    Strict,
    /// The mode is Debug: every op is a region.
    Debug,
    /// The next op was recorded in another mode.
    ModeChange,
    /// Another stream uses a value that the region makes, or what follows waits for another stream.
    CrossStream,
    /// The stream or the engine was shut down.
    Shutdown,
    /// The region that the op belonged to could not be compiled or run as a whole, and runs op by op.
    Fallback,
    /// The region that this one was part of would have needed too much memory at once, and runs in two halves.
    Memory,
    /// The ops that follow, or these, come at sizes that vary, and the region that they were part of would have to be compiled for each.
    Sizes,
}

impl Boundary {
    /// Every reason.
    pub const ALL: [Boundary; 16] = [
        Boundary::HostRead,
        Boundary::Flush,
        Boundary::Effect,
        Boundary::Content,
        Boundary::Setup,
        Boundary::OpBudget,
        Boundary::InputBudget,
        Boundary::ByteBudget,
        Boundary::Strict,
        Boundary::Debug,
        Boundary::ModeChange,
        Boundary::CrossStream,
        Boundary::Shutdown,
        Boundary::Fallback,
        Boundary::Memory,
        Boundary::Sizes,
    ];

    /// Whether the program asked for it, by what it recorded, rather than a budget or rule of ours.
    #[must_use]
    pub const fn is_asked_for(self) -> bool {
        !matches!(
            self,
            Boundary::Content
                | Boundary::Setup
                | Boundary::OpBudget
                | Boundary::InputBudget
                | Boundary::ByteBudget
                | Boundary::Fallback
                | Boundary::Memory
                | Boundary::Sizes
        )
    }

    /// A short name for logs and reports (`host_read`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Boundary::HostRead => "host_read",
            Boundary::Flush => "flush",
            Boundary::Effect => "effect",
            Boundary::Content => "content",
            Boundary::Setup => "setup",
            Boundary::OpBudget => "op_budget",
            Boundary::InputBudget => "input_budget",
            Boundary::ByteBudget => "byte_budget",
            Boundary::Strict => "strict",
            Boundary::Debug => "debug",
            Boundary::ModeChange => "mode_change",
            Boundary::CrossStream => "cross_stream",
            Boundary::Shutdown => "shutdown",
            Boundary::Fallback => "fallback",
            Boundary::Memory => "memory",
            Boundary::Sizes => "sizes",
        }
    }
}

impl fmt::Display for Boundary {
    /// A clause that completes "the region ends because ...".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Boundary::HostRead => "the host reads a value it makes",
            Boundary::Flush => "of an explicit flush",
            Boundary::Effect => "an op with an ordered effect is a region by itself",
            Boundary::Content => "the ops around this place make it the best one for an end",
            Boundary::Setup => "its ops set values up from nothing but numbers, and the next one reads data",
            Boundary::OpBudget => "it reached the budget of ops",
            Boundary::InputBudget => "it reached the budget of inputs",
            Boundary::ByteBudget => "it reached the budget of bytes",
            Boundary::Strict => "every op is a region in Strict mode",
            Boundary::Debug => "every op is a region in Debug mode",
            Boundary::ModeChange => "the next op was recorded in another mode",
            Boundary::CrossStream => {
                "another stream uses a value it makes, or what follows waits for another stream"
            }
            Boundary::Shutdown => "the stream was shut down",
            Boundary::Fallback => "the region it was part of could not run as a whole",
            Boundary::Memory => "the region it was part of would have needed too much memory at once",
            Boundary::Sizes => "some ops of the region it was part of come at sizes that vary",
        })
    }
}

/// Most that one region may hold. Where a budget is reached, the region ends at the best place that the rule has seen in it, or
/// there if it has seen none.
///
/// Compile time grows faster than linearly past about 1,000 ops and with the number of inputs (512 inputs compile for a second on
/// XLA's CPU backend), so regions are capped well below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Most ops.
    pub ops: usize,
    /// Most inputs, lifted scalars not counted. An op with more operands than this is a region by itself.
    pub inputs: usize,
    /// Most bytes of results of recorded ops, of a joined region too.
    pub bytes: Bytes,
    /// Most ops of a region that is joined from units because they always follow each other; 0 where that is not wanted. XLA's CPU
    /// backend takes about a second to compile 5,000 elementwise ops, for which nobody waits.
    pub joined_ops: usize,
    /// Most inputs of such a region. The call of an executable takes about 0.2 microseconds for each.
    pub joined_inputs: usize,
}

impl Default for Budgets {
    /// 1,024 ops, 256 inputs, 4 GiB; joined, 5,000 ops and 1,024 inputs.
    fn default() -> Self {
        Budgets { ops: 1_024, inputs: 256, bytes: Bytes(4 << 30), joined_ops: 5_000, joined_inputs: 1_024 }
    }
}

/// Size of the pending ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingStats {
    /// Number of ops.
    pub ops: usize,
    /// Number of inputs, lifted scalars not counted.
    pub inputs: usize,
    /// Bytes of all results.
    pub bytes: Bytes,
}

/// How an operand of a recorded op was mentioned before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mention {
    /// How many ops ago the value was last made or used, if one of the pending ops did, or an op not long before them.
    pub last: Option<usize>,
    /// How many ops ago it was made, under the same condition.
    pub made: Option<usize>,
    /// Whether it is a number that the host gave.
    pub lifted: bool,
}

/// How the operands of a recorded op were mentioned before.
pub type Mentions = SmallVec<[Mention; 3]>;

/// A soft rule for region ends, consulted after each op. It sees nothing but the op stream, so its cuts are a function of
/// it; it may keep state, which starts anew after a hard boundary.
pub trait BoundaryRule: fmt::Debug + Send {
    /// `op` with these operands has just joined the pending ops, which now have the given size. A cut seals the first
    /// `len` of them; it may lie in the past, and the rest stays pending.
    fn after(&mut self, op: &Signature, operands: &[Mention], pending: PendingStats) -> Option<Cut>;

    /// How many of the pending ops to seal if that has to be done now, because they have reached a budget. `None` for all.
    fn best(&mut self) -> Option<usize> {
        None
    }

    /// The first `len` pending ops were sealed at a cut of the rule's, or at a budget.
    fn cut(&mut self, len: usize) {
        let _ = len;
    }

    /// The pending ops were sealed at a hard boundary.
    fn reset(&mut self);
}

/// Where a [`BoundaryRule`] wants a region to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of pending ops that go into the region; at least 1.
    pub len: usize,
    /// The reason.
    pub reason: Boundary,
}

/// No soft boundaries: regions end at hard ones only.
#[derive(Clone, Copy, Debug, Default)]
pub struct HardOnly;

impl BoundaryRule for HardOnly {
    fn after(&mut self, _op: &Signature, _operands: &[Mention], _pending: PendingStats) -> Option<Cut> {
        None
    }

    fn reset(&mut self) {}
}
