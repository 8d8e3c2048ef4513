//! Converts programs to graphs and regions.

use std::collections::HashMap;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, can_lift};
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::{Graph, Literal, Ref};

use super::{ProgramOptions, ProgramSampler, Seeded};

/// A program as a graph, with the reference of each value. Values with data are the parameters, in
/// order.
#[must_use]
pub fn graph_of(program: &Program) -> (Graph, HashMap<ProgramId, Ref>) {
    let mut graph = Graph::new();
    let mut known: HashMap<ProgramId, Ref> =
        program.values.iter().map(|value| (value.id, graph.param(value.data.ty().clone()))).collect();
    for op in &program.ops {
        let operands = op.operands.iter().map(|id| known[id]).collect();
        let results = graph.push_signature(op.signature.clone(), operands);
        known.extend(op.results.iter().copied().zip(results));
    }
    (graph, known)
}

/// A sampled program as a region with lifted scalars, and the data of its parameters.
#[must_use]
pub fn sampled_region(options: ProgramOptions, seed: u64, ops: usize) -> (CanonRegion, Vec<Arc<Literal>>) {
    let program = ProgramSampler::sample(options, &mut Seeded::new(seed), ops).program;
    let (graph, _) = graph_of(&program);
    let data = program.values.iter().map(|value| value.data.clone()).collect();
    let lifted = graph.params().iter().map(can_lift).collect();
    (CanonRegion::new(graph, lifted), data)
}
