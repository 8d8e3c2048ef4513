//! Lowers regions to StableHLO text.
//!
//! Input: a [`CanonRegion`], the results to return, and the inputs that may be reused for them.
//! Output: a [`Module`]. Pure.
//!
//! Every op is printed in MLIR's generic form, `"stablehlo.add"(%a, %b) <{...}> : (types) ->
//! types`, with the attributes of its schema, so one printer serves the whole op table. Value names
//! are generated here. Attributes are numbers, types, members of closed enumerations, and names
//! that cannot leave their quotes ([`crate::attr::is_name`]).
//!
//! The plugin gets text, although it would read MLIR's bytecode faster: of 1,000 ops
//! (`benches/module.rs`) MLIR reads the text in 3.6 ms and the bytecode in 1.4 ms, and XLA then
//! compiles for 1,400 ms and more. Compile times of the two forms, in turns, differ by less than
//! their spread (1,847 and 1,863 ms at best in one run, 1,448 and 1,414 in another). One form that
//! people and the verifier can read is worth those 0.2 %. Printing takes 7 ms and the verifier 18
//! ms for the same module, 1.3 % of the compile. (2026-11-21, two busy cores, API 0.81; expect the
//! same shares elsewhere, not the same times.)
//!
//! Calling convention of a module's `main`:
//! - it takes the tensor parameters of the region, in order;
//! - if the region has lifted scalars or fences, it also takes one `ui32` vector with all scalars
//!   packed and a zero, or one vector for each scalar ([`ScalarPack`]);
//! - it returns the requested results, in the order of their numbers.

mod aliases;
mod column_reduction;
mod exact;
mod legalized;
mod precision;
mod scalars;
mod size;
mod specialize;
mod subbyte;
mod subnormal;
mod text;
mod unsteady;
mod verify;

use std::fmt;

pub use aliases::Aliases;
pub use exact::context_dependent_op;
pub use scalars::ScalarPack;
pub use size::fits_module;
pub use specialize::{Specializable, fixable};
pub use verify::{Verified, VerifyError};

/// The single passes, for the tests of this crate. Not a public interface.
#[doc(hidden)]
pub mod passes {
    pub use super::column_reduction::in_windows;
    pub use super::exact::stable_math::steady;
    pub use super::exact::{crossed_as, exact};
    pub use super::legalized::{Plain, plain};
    pub use super::scalars::taken_apart;
    pub use super::subbyte::{carried, carrier, concerns, has_narrow, is_narrow};
    pub use super::unsteady::has_zero;
    pub use crate::op::legalize::{common_float, is_scalar_code};
}

use crate::arithmetic::{Arithmetic, SumOrder};
use crate::canon::CanonRegion;
use crate::dtype::{DType, DTypeSet};
use crate::ir::Body;
use crate::literal::Scalar;
use crate::op::WorkaroundSet;

/// Version of the lowering. It is part of the environment of every key, so a change of the emitted
/// code changes all keys.
pub const LOWERING: u32 = 17;

/// How closely the results of a region follow those of its ops executed one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// Ops that the op table calls exact are exact. Floats may round differently than op by op: a
    /// multiplication and an addition may round once instead of twice, a sum may use another order,
    /// and short floats between two ops may not be rounded at all. The tolerance is that of
    /// [`crate::op::tolerance`], relative to the largest magnitude in a result, for programs
    /// without cancellation of rounded values.
    #[default]
    Fast,
    /// Every result has the bits that it has if each op is an executable of its own.
    Exact,
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        })
    }
}

/// The compiler that a module is for. It decides between alternative ways to express an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any compiler: the ops as they were recorded.
    #[default]
    Any,
    /// XLA's CPU backend. With [`Numerics::Fast`], column reductions are split, and scalars are
    /// separate arguments where that costs nothing.
    Cpu {
        /// Floats whose subnormal numbers the device flushes to zero. The lowering makes all ops
        /// that compute do the same.
        flushed: DTypeSet,
        /// The workarounds that the plugin does not need.
        left_out: WorkaroundSet,
    },
    /// XLA's backends for GPUs, TPUs and the like. By default they shorten the operands of `f32`
    /// products and convolutions to TF32 or `bf16`, so the lowering requests the highest precision.
    /// A precision that the program sets is kept.
    Accelerator {
        /// The workarounds that the plugin does not need.
        left_out: WorkaroundSet,
    },
}

impl Target {
    /// XLA's CPU backend with its known behaviour: its threads run with the processor's `FTZ` and
    /// `DAZ` on. It computes `bf16` and all shorter floats in `f32`. The subnormal numbers of those
    /// shorter floats are normal in `f32`.
    pub const CPU: Target = Target::Cpu {
        flushed: DTypeSet::of(&[DType::BF16, DType::F32, DType::F64]),
        left_out: WorkaroundSet::NONE,
    };

    /// A device other than a CPU, with every workaround.
    pub const ACCELERATOR: Target = Target::Accelerator { left_out: WorkaroundSet::NONE };

    /// The workarounds that the plugin does not need.
    #[must_use]
    pub fn left_out(self) -> WorkaroundSet {
        match self {
            Target::Any => WorkaroundSet::NONE,
            Target::Cpu { left_out, .. } | Target::Accelerator { left_out } => left_out,
        }
    }

    /// The same target, for a plugin that does not need these workarounds.
    #[must_use]
    pub fn leaving_out(self, left_out: WorkaroundSet) -> Target {
        match self {
            Target::Any => Target::Any,
            Target::Cpu { flushed, .. } => Target::Cpu { flushed, left_out },
            Target::Accelerator { .. } => Target::Accelerator { left_out },
        }
    }

    /// The arithmetic of an interpreter that stands in for the device.
    #[must_use]
    pub fn arithmetic(self, sums: SumOrder) -> Arithmetic {
        Arithmetic { sums, flushed: self.flushed() }
    }

    /// Floats whose subnormal numbers the device flushes to zero, as far as is known.
    #[must_use]
    pub fn flushed(self) -> DTypeSet {
        match self {
            Target::Any | Target::Accelerator { .. } => DTypeSet::NONE,
            Target::Cpu { flushed, .. } => flushed,
        }
    }
}

/// A StableHLO module, as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Module {
    text: String,
    /// The function that the text should express; [`Module::verify`] checks it.
    function: Body,
    /// For each parameter of the function, the result that may reuse its memory.
    aliases: Vec<Option<u32>>,
    /// Byte offset of the text of each node, and of the end of the last.
    starts: Vec<usize>,
}

impl Module {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The node of the region that a line of the text belongs to. Lines count from 1, as in
    /// compiler messages. `None` for the signature, the unpacking of lifted scalars and the return.
    #[must_use]
    pub fn node_of_line(&self, line: usize) -> Option<usize> {
        let place = match line {
            0 => return None,
            1 => 0,
            _ => self.text.match_indices('\n').nth(line - 2)?.0 + 1,
        };
        let node = self.starts.partition_point(|&start| start <= place).checked_sub(1)?;
        (node + 1 < self.starts.len()).then_some(node)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Lowers a region to a module that returns the results `outputs`. With [`Numerics::Exact`] it has
/// fences; compiler options do the rest.
///
/// # Panics
/// If `outputs` contains a result that the region does not have.
#[must_use]
pub fn lower(region: &CanonRegion, outputs: &[u32], aliases: &Aliases, numerics: Numerics) -> Module {
    lower_for(Target::Any, region, outputs, aliases, numerics, &[])
}

/// As [`lower`], for one compiler and with some lifted scalars as constants, given by parameter,
/// ascending. The module has the same calling convention, and the same results if the scalars have
/// these values.
///
/// # Panics
/// As [`lower`].
#[must_use]
pub fn lower_for(
    target: Target,
    region: &CanonRegion,
    outputs: &[u32],
    aliases: &Aliases,
    numerics: Numerics,
    fixed: &[(u32, Scalar)],
) -> Module {
    let pack = ScalarPack::of(target, region, numerics);
    let plain = legalized::plain_without(target.left_out(), region, outputs, &pack, fixed);
    let mut plain = subbyte::carried(exact::exact(plain, &pack));
    plain = subnormal::flushed(plain, target.flushed());
    if matches!(target, Target::Cpu { .. }) && numerics == Numerics::Fast {
        plain = column_reduction::in_windows(plain);
    }
    if matches!(target, Target::Accelerator { .. }) {
        plain = precision::highest(plain);
    }
    let tensors = (0..).zip(region.lifted()).filter(|(_, lifted)| !**lifted).map(|(param, _)| param);
    let mut reused: Vec<Option<u32>> = tensors.map(|param| aliases.of(param)).collect();
    // The packed scalars are never reused.
    reused.resize(plain.function.graph().params().len(), None);
    debug_assert_eq!(
        plain.function.graph().params(),
        pack.parameters(region),
        "what callers are told to give"
    );
    let (text, starts) = text::module(&plain, &reused, region.graph().nodes().len());
    Module { text, function: plain.function, aliases: reused, starts }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::Attrs;
    use crate::ir::{Body, Graph, OpCode};
    use crate::literal::Literal;
    use crate::op::attrs;
    use crate::shape::TensorType;

    #[test]
    fn lines_know_the_node_they_were_printed_for() {
        let ty = TensorType::of(DType::F32, &[4]).expect("small");
        let mut graph = Graph::new();
        let x = graph.param(ty.clone());
        let scalar = graph.param(TensorType::scalar(DType::F32));
        let zero = attrs::constant(Arc::new(Literal::scalar(0.0f32)));
        let zero = graph.push(OpCode::Constant, zero, &[], &[]).expect("a constant")[0];
        let body = Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).expect("a body");
        let sum = graph
            .push(OpCode::Reduce, attrs::dimensions(&[0]), &[Arc::new(body)], &[x, zero])
            .expect("a sum")[0];
        graph.push(OpCode::Add, Attrs::none(), &[], &[sum, scalar]).expect("an add");
        let region = CanonRegion::new(graph, Box::new([false, true]));
        let module = lower(&region, &[2], &Aliases::none(), Numerics::Fast);
        let nodes: Vec<Option<usize>> =
            (0..=module.text().lines().count() + 1).map(|line| module.node_of_line(line)).collect();
        let first = nodes.iter().position(Option::is_some).expect("ops");
        for (number, line) in (1..).zip(module.text().lines()) {
            let wanted = match line {
                _ if line.contains("stablehlo.constant") => Some(0),
                _ if line.contains("stablehlo.reduce") => Some(1),
                _ if line.contains("stablehlo.add") && line.starts_with("    %") => Some(2),
                _ => continue,
            };
            assert_eq!(nodes[number], wanted, "{line}");
        }
        let last = nodes.iter().rposition(Option::is_some).expect("ops");
        // The body of the sum is inside its text, and each line between the ops belongs to a node.
        assert!(nodes[first..=last].iter().all(Option::is_some), "{nodes:?}");
        assert!(nodes[first..=last].is_sorted(), "{nodes:?}");
        assert!(nodes[..first].iter().chain(&nodes[last + 1..]).all(Option::is_none), "{nodes:?}");
    }
}
