//! The baseline tier: compiles without LLVM's optimizations.
//!
//! XLA's CPU compiler takes about 0.6 of the time if LLVM optimizes nothing. So a region that a job
//! waits for, that takes long to compile and little time to run, is first compiled to a *baseline
//! executable* (`baseline` in the code). If it runs once more, it is compiled with all
//! optimizations in the background, and that executable replaces the baseline one in the cache. A
//! region that runs once costs less, and no job waits for the second compile. A longer program
//! reaches full speed later, by at most the time of the baseline compile and the slower executions
//! until then. A region that is interpreted for as long as its compile takes
//! (`interpreter.rs`) is compiled once.
//!
//! Input: a region about to be compiled, or a hit. Output: the options of its compile, and the
//! second compile.
//!
//! Invariants:
//! - BASELINE-1: a baseline executable that is used again is replaced, unless its replacement does
//!   not compile or needs too much memory. For this, an executable is compiled at most twice.
//! - BASELINE-2: no region and no key depends on it. Which of the two executables runs depends on
//!   when a compile ends. So may the last digits of numbers, as far as `Numerics::Fast` allows.
//!   With `Numerics::Exact`, and where regions are compared, there are no baseline executables.

use std::time::Duration;

use fuseline_fusion::op::Fusibility;
use fuseline_fusion::{Graph, OpCode, Ref};

use super::cost::compile_time;

/// Minimum compile time for which a baseline compile pays. It saves about 0.4 of that time.
const LONG: Duration = Duration::from_millis(50);

/// How much longer a baseline executable takes per element of an op that is not a product (50 ops
/// on 16,384 elements: 4,700 instead of 430 µs).
const SLOWER: Duration = Duration::from_nanos(5);

/// Inverse of the part of a compile by which one baseline execution may be slower: half of what the
/// baseline compile saves.
const SHARE: u32 = 5;

/// Whether the region is first compiled to a baseline executable.
pub(crate) fn pays(graph: &Graph) -> bool {
    let compile = compile_time(graph);
    compile >= LONG && slower(graph).is_some_and(|slower| slower <= compile / SHARE)
}

/// Estimates how much longer a baseline executable takes. `None` if that is unknown, because the
/// number of iterations of a loop is.
fn slower(graph: &Graph) -> Option<Duration> {
    let mut elements = 0u64;
    for node in graph.nodes() {
        let signature = node.signature();
        match (signature.op(), signature.def().fusibility) {
            (OpCode::While | OpCode::Sort, _) => return None,
            (_, Fusibility::Contraction) => continue,
            _ => {}
        }
        let operands = node.operands().iter().filter_map(|&operand: &Ref| graph.type_of(operand));
        let most = operands.chain(signature.results()).map(|ty| ty.elems().0).max();
        elements = elements.saturating_add(most.unwrap_or(0));
    }
    u32::try_from(elements).ok().map(|elements| SLOWER * elements)
}
