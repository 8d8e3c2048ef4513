//! Estimates of how long a region takes to compile, to load and to interpret.
//!
//! Policies decide by these estimates and never by a clock, so that what is compiled follows from
//! the recorded program.

use std::time::Duration;

use fuseline_fusion::Graph;
use fuseline_fusion::ir::Node;
use fuseline_fusion::op::Fusibility;
use fuseline_interp as interp;

/// Estimated time of a compile: 30 to 70 ms for chains of 10 to 200 elementwise ops, 80 to 300 ms
/// for 16 to 100 ops with products and sums, 0.4 to 1.2 s for 500 to 800 (33 cases of `fuseline
/// bench`, 2026-11-22).
const COMPILE: Duration = Duration::from_millis(30);
const COMPILE_OP: Duration = Duration::from_micros(200);
const COMPILE_REDUCTION: Duration = Duration::from_millis(2);
const COMPILE_CONTRACTION: Duration = Duration::from_millis(15);

/// Minimum time of a load, and the number of loads that take as long as a compile of the same
/// region (docs/cache.md).
const LOAD: Duration = Duration::from_millis(1);
const LOADS: u32 = 12;

/// Estimates the time to compile a region.
pub(crate) fn compile_time(graph: &Graph) -> Duration {
    compile_time_of(graph.nodes())
}

/// Estimates the time to compile a region of these ops.
pub(crate) fn compile_time_of(nodes: &[Node]) -> Duration {
    let op = |node: &Node| match node.signature().def().fusibility {
        Fusibility::Reduction => COMPILE_REDUCTION,
        Fusibility::Contraction => COMPILE_CONTRACTION,
        _ => COMPILE_OP,
    };
    COMPILE + nodes.iter().map(op).sum::<Duration>()
}

/// How often a region can be interpreted in the time of its compile. 0 if it cannot be interpreted.
pub(crate) fn break_even(graph: &Graph) -> u32 {
    let Some(once) = interp::estimate(graph) else { return 0 };
    let runs = compile_time(graph).as_nanos() / once.as_nanos().max(1);
    u32::try_from(runs).unwrap_or(u32::MAX)
}

/// Whether interpreting a region takes less time than loading its executable.
pub(crate) fn is_interpreted_before_a_load(graph: &Graph) -> bool {
    interp::estimate(graph).is_some_and(|once| once <= LOAD + compile_time(graph) / LOADS)
}

/// Whether interpreting a region takes at most as long as compiling it.
pub(crate) fn is_interpreted_before_a_compile(graph: &Graph) -> bool {
    interp::estimate(graph).is_some_and(|once| once <= compile_time(graph))
}
