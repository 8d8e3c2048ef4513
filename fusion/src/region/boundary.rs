//! Where regions end, and why.

use std::fmt;

use smallvec::SmallVec;

use crate::ir::Signature;
use crate::shape::Bytes;

/// Why a region ends where it does. Each boundary is an event with this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Boundary {
    /// The host reads a value that the region produces.
    HostRead,
    /// The user requested a flush.
    Flush,
    /// The op before or after has an ordered effect.
    Effect,
    /// The recorded ops around it determine the cut ([`super::ContentChunking`]).
    Content,
    /// The set-up of the program ends here: all ops before compute from numbers only
    /// ([`super::ContentChunking`]).
    Setup,
    /// The region has reached the op budget.
    OpBudget,
    /// The next op would exceed the input budget.
    InputBudget,
    /// The results of the region have reached the byte budget.
    ByteBudget,
    /// The mode is Strict: every op is a region.
    Strict,
    /// The mode is Debug: every op is a region.
    Debug,
    /// The next op was recorded in another mode.
    ModeChange,
    /// Another stream uses a value that the region produces, or the next ops wait for another
    /// stream.
    CrossStream,
    /// The stream or the engine was shut down.
    Shutdown,
    /// The region that contained the op could not be compiled or run as a whole, and runs op by op.
    Fallback,
    /// The region that contained this one would have needed too much memory at once, and runs in
    /// two halves.
    Memory,
    /// The ops before or after occur at varying sizes, and a region with both would have to be
    /// compiled for each size.
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

    /// Whether this is a *user boundary*, which the program requested by what it recorded. Others
    /// come from a budget or a rule.
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
            Boundary::HostRead => "the host reads a value that it computes",
            Boundary::Flush => "of an explicit flush",
            Boundary::Effect => "an op with an ordered effect is a region by itself",
            Boundary::Content => "the boundary rule chose this position",
            Boundary::Setup => "its ops only create values from numbers, and the next op reads data",
            Boundary::OpBudget => "it reached the budget of ops",
            Boundary::InputBudget => "it reached the budget of inputs",
            Boundary::ByteBudget => "it reached the budget of bytes",
            Boundary::Strict => "every op is a region in Strict mode",
            Boundary::Debug => "every op is a region in Debug mode",
            Boundary::ModeChange => "the next op was recorded in another mode",
            Boundary::CrossStream => {
                "another stream uses a value that it computes, or the next op waits for another stream"
            }
            Boundary::Shutdown => "the stream was shut down",
            Boundary::Fallback => "the region it was part of could not run as a whole",
            Boundary::Memory => "the region it was part of would have needed too much memory at once",
            Boundary::Sizes => "some ops of the region it was part of have varying sizes",
        })
    }
}

/// Limits on one region. If a budget is reached, the region ends at the best cut that the rule has
/// seen so far, or at the budget if there is none.
///
/// Compile time grows faster than linearly past about 1,000 ops and with the number of inputs (512
/// inputs compile for a second on XLA's CPU backend), so regions are capped well below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Maximum number of ops.
    pub ops: usize,
    /// Maximum number of inputs, without lifted scalars. An op with more operands than this is a
    /// region by itself.
    pub inputs: usize,
    /// Maximum number of bytes of results of recorded ops, also for a merged region.
    pub bytes: Bytes,
    /// Maximum number of ops of a merged region, which consists of units that always follow each
    /// other; 0 disables merging. XLA's CPU backend takes about a second to compile 5,000
    /// elementwise ops, in the background.
    pub joined_ops: usize,
    /// Maximum number of inputs of a merged region. Each costs about 0.2 microseconds per
    /// execution.
    pub joined_inputs: usize,
}

impl Default for Budgets {
    /// 1,024 ops, 256 inputs, 4 GiB; merged: 5,000 ops and 1,024 inputs.
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

/// How long ago an operand of a recorded op was mentioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandDistance {
    /// How many ops ago the value was last produced or used; `None` if neither a pending op nor a
    /// recent one did.
    pub last: Option<usize>,
    /// How many ops ago it was produced, under the same condition.
    pub made: Option<usize>,
    /// Whether it is a lifted scalar, which the host gave.
    pub lifted: bool,
}

/// How long ago each operand of a recorded op was mentioned.
pub type Mentions = SmallVec<[OperandDistance; 3]>;

/// A rule for soft boundaries, consulted after each op. It sees only the op stream, so its cuts are
/// a function of it. It may keep state, which a hard boundary resets.
pub trait BoundaryRule: fmt::Debug + Send {
    /// `op` with these operands was just added to the pending ops, whose total size is `pending`. A
    /// cut seals the first `len` of them. It may be before the current op; the rest stays pending.
    fn after(&mut self, op: &Signature, operands: &[OperandDistance], pending: PendingStats) -> Option<Cut>;

    /// How many of the pending ops to seal now, because they have reached a budget. `None` means
    /// all.
    fn best(&mut self) -> Option<usize> {
        None
    }

    /// The first `len` pending ops were sealed, at a cut of this rule or at a budget.
    fn cut(&mut self, len: usize) {
        let _ = len;
    }

    /// The pending ops were sealed at a hard boundary.
    fn reset(&mut self);
}

/// Where a [`BoundaryRule`] ends a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of pending ops that go into the region; at least 1.
    pub len: usize,
    /// The reason.
    pub reason: Boundary,
}

/// No soft boundaries: regions end only at hard ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct HardOnly;

impl BoundaryRule for HardOnly {
    fn after(
        &mut self,
        _op: &Signature,
        _operands: &[OperandDistance],
        _pending: PendingStats,
    ) -> Option<Cut> {
        None
    }

    fn reset(&mut self) {}
}
