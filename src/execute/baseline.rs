//! Compiles in a hurry.
//!
//! XLA's CPU compiler is done in about 0.6 of the time if LLVM optimises nothing. So a region that somebody waits for, that takes long to
//! compile and not long to run, is compiled so first, to a *stopgap*. If it is run once more, it is compiled again with all that the
//! compiler has, behind everything that is waited for, and that executable takes the stopgap's place in the cache. What is run once costs
//! less, and nobody waits for the second compile; a program that goes on is at its full speed later, by at most the time of a quick compile and
//! what the stopgap is slower until then. What is interpreted for as long as its compile takes (`cold.rs`) is compiled once.
//!
//! Input: a region about to be compiled, or a hit. Output: how it is compiled, and the second compile.
//!
//! Invariants:
//! - U1: a stopgap is replaced if it is used again, unless what would take its place does not compile or needs too much memory; an
//!   executable is compiled at most twice for this.
//! - U2: nothing of a region or key depends on it. Which of the two runs depends on when a compile ends, and so may the last digits of
//!   numbers, as far as `Numerics::Fast` allows. With `Numerics::Exact`, and where regions are compared, there are no stopgaps.

use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::Hit;
use fuseline_fusion::op::Fusibility;
use fuseline_fusion::{Graph, OpCode, Ref};

use super::cold::compile_time;
use super::job::Job;
use crate::device::Executable;
use crate::engine::EngineShared;
use crate::stream::StreamShared;

/// What a compile takes at least for which a stopgap is worth its while: it saves about 0.4 of that.
const LONG: Duration = Duration::from_millis(50);

/// How much longer a stopgap takes for each element of an op that is not a product (50 ops on 16,384 elements: 4,700 instead of 430 µs).
const SLOWER: Duration = Duration::from_nanos(5);

/// The part of a compile that one execution of a stopgap may be slower, in its inverse: half of what it saves.
const SHARE: u32 = 5;

/// Whether the region is compiled to a stopgap first.
pub(super) fn pays(graph: &Graph, engine: &EngineShared) -> bool {
    if !engine.config().compiles_quickly() || !engine.device().has_quick_compiles() {
        return false;
    }
    let compile = compile_time(graph);
    compile >= LONG && slower(graph).is_some_and(|slower| slower <= compile / SHARE)
}

/// How much longer a stopgap takes. `None` if that is not known: a loop takes as many rounds as it takes.
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

impl Job {
    /// Has a stopgap replaced that is used again.
    pub(super) fn replace_stopgap(&self, hit: &Hit<Executable>, stream: &Arc<StreamShared>) {
        if stream.engine().config().is_cache_only() || !hit.artifact.is_to_be_replaced() {
            return;
        }
        // What this execution keeps, another one may let go: the one that the stopgap was compiled for has.
        let mut dying = self.dying();
        dying.extend(hit.artifact.reusable().iter().map(|&(_, param)| param));
        dying.sort_unstable();
        dying.dedup();
        self.replace(hit.artifact.clone(), dying, stream);
    }
}
