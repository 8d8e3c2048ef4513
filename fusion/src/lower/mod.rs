//! StableHLO text for a region.
//!
//! Input: a [`CanonRegion`], which results to return and which inputs may be reused for them. Output: a [`Module`].
//! Pure.
//!
//! Every op is printed in MLIR's generic form, `"stablehlo.add"(%a, %b) <{...}> : (types) -> types`, with the attributes
//! of its schema, so that one printer serves the whole op table. Names of values are made here; attributes are numbers,
//! types, members of closed enumerations, and names that cannot leave the quotes they stand in
//! ([`crate::attr::is_name`]).
//!
//! The plugin is given text, not MLIR's bytecode, which it would read faster: of 1,000 ops (`benches/module.rs`) MLIR reads the
//! text in 3.6 ms and the bytecode in 1.4 ms, and XLA then compiles for 1,400 ms and more; compile times of the two forms, in
//! turns, differ by less than their spread (1,847 and 1,863 ms at best in one run, 1,448 and 1,414 in another). One form
//! that people and the verifier can read is worth those 0.2 %. Printing takes 7 ms and the verifier 18 ms for the same module,
//! 1.3 % of the compile. (2026-11-21, two busy cores, API 0.81; shares, not absolute times, are what to expect elsewhere.)
//!
//! Calling convention of a module's `main`:
//! - the tensor parameters of the region, in order;
//! - then, when the region has lifted scalars or fences, one `ui32` vector with all scalars packed and a zero, or one for each scalar
//!   ([`ScalarPack`]);
//! - returned are the asked-for results, in the order of their numbers.

mod aliases;
mod columns;
mod exact;
mod fixed;
mod narrow;
mod plain;
mod precision;
mod scalars;
mod size;
mod subnormal;
mod text;
mod unsteady;
mod verify;

use std::fmt;

pub use aliases::Aliases;
pub use exact::unsteady_op;
pub use fixed::{Fixable, fixable};
pub use scalars::ScalarPack;
pub use size::fits_module;
pub use verify::{Verified, VerifyError};

/// The passes one at a time, for the tests of this crate; no public interface.
#[doc(hidden)]
pub mod passes {
    pub use super::columns::in_windows;
    pub use super::exact::steady::steady;
    pub use super::exact::{crossed_as, exact};
    pub use super::narrow::{carried, carrier, concerns, has_narrow, is_narrow};
    pub use super::plain::{Plain, plain};
    pub use super::scalars::taken_apart;
    pub use super::unsteady::has_zero;
    pub use crate::op::expand::{common_float, is_scalar_code};
}

use crate::arithmetic::{Arithmetic, Sums};
use crate::canon::CanonRegion;
use crate::dtype::{DType, DTypeSet};
use crate::graph::Body;
use crate::literal::Scalar;

/// Version of the lowering: part of the environment of every key, so that a change of the emitted code makes new keys.
pub const LOWERING: u32 = 14;

/// What a region keeps of the numbers that its ops would give one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// What the op table calls exact is exact. Floats may be rounded otherwise than op by op: a multiplication and an addition once
    /// instead of twice, a sum in another order, short floats between two ops not at all. The tolerance is that of
    /// [`crate::op::tolerance`], as a part of the largest magnitude in a result, for programs that do not cancel what they have rounded.
    #[default]
    Fast,
    /// Every result has the bits that it has when each op is an executable of its own.
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

/// Whom a module is for, as far as that decides how something is said that can be said in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any compiler: what was recorded, as it was recorded.
    #[default]
    Any,
    /// XLA's CPU backend. With [`Numerics::Fast`], reductions of columns are taken apart, and scalars travel apart where that costs nothing.
    Cpu {
        /// Floats whose subnormal numbers the device counts as zero. Ops that compute are held to that.
        flushed: DTypeSet,
    },
    /// XLA's backends for GPUs, TPUs and the like. They shorten the operands of `f32` products and
    /// convolutions to TF32 or `bf16` by default, so these ask for the highest precision. A
    /// precision that the program names stays.
    Accelerator,
}

impl Target {
    /// XLA's CPU backend as it is known: its threads run with the processor's `FTZ` and `DAZ` on. `bf16` is computed in `f32`,
    /// and all shorter floats are, whose subnormal numbers are normal there.
    pub const CPU: Target = Target::Cpu { flushed: DTypeSet::of(&[DType::BF16, DType::F32, DType::F64]) };

    /// The arithmetic by which the interpreter stands in for the device.
    #[must_use]
    pub fn arithmetic(self, sums: Sums) -> Arithmetic {
        Arithmetic { sums, flushed: self.flushed() }
    }

    /// Floats whose subnormal numbers the device counts as zero, as far as is known.
    #[must_use]
    pub fn flushed(self) -> DTypeSet {
        match self {
            Target::Any | Target::Accelerator => DTypeSet::NONE,
            Target::Cpu { flushed } => flushed,
        }
    }
}

/// A StableHLO module, as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Module {
    text: String,
    /// What the text says, if the printer is right; [`Module::verify`] finds out.
    function: Body,
    /// For each parameter of the function, the result that may be put into its memory.
    aliases: Vec<Option<u32>>,
    /// Where the text of each node starts, in bytes, and where that of the last one ends.
    starts: Vec<usize>,
}

impl Module {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The node of the region that a line of the text was printed for, counting lines from 1 as compilers do. `None` for
    /// lines of the frame: the signature, the unpacking of lifted scalars, the return.
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

/// Lowers a region to a module that returns the results numbered in `outputs`. For [`Numerics::Exact`] it has fences; what else there is
/// to that are options of the compiler.
///
/// # Panics
/// When `outputs` names a result that the region does not have.
#[must_use]
pub fn lower(region: &CanonRegion, outputs: &[u32], aliases: &Aliases, numerics: Numerics) -> Module {
    lower_for(Target::Any, region, outputs, aliases, numerics, &[])
}

/// As [`lower`], for one compiler and with the values of some lifted scalars, by parameter, ascending. The module is called as others of the region are, and gives
/// what they give if the scalars have these values.
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
    let plain = plain::plain(region, outputs, &pack, fixed);
    let mut plain = narrow::carried(exact::exact(plain, &pack));
    plain = subnormal::flushed(plain, target.flushed());
    if matches!(target, Target::Cpu { .. }) && numerics == Numerics::Fast {
        plain = columns::in_windows(plain);
    }
    if target == Target::Accelerator {
        plain = precision::highest(plain);
    }
    let tensors = (0..).zip(region.lifted()).filter(|(_, lifted)| !**lifted).map(|(param, _)| param);
    let mut reused: Vec<Option<u32>> = tensors.map(|param| aliases.of(param)).collect();
    // The packed scalars are read and not reused.
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
    use crate::graph::{Body, Graph};
    use crate::literal::Literal;
    use crate::op::{OpCode, attrs};
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
        // The body of the sum lies inside it, and nothing between the ops belongs to nobody.
        assert!(nodes[first..=last].iter().all(Option::is_some), "{nodes:?}");
        assert!(nodes[first..=last].is_sorted(), "{nodes:?}");
        assert!(nodes[..first].iter().chain(&nodes[last + 1..]).all(Option::is_none), "{nodes:?}");
    }
}
