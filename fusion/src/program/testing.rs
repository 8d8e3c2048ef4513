//! What tests make of programs.

use std::collections::HashMap;

use super::{Program, ProgramId};
use crate::graph::{Graph, Ref};

/// A program as a graph, with the place of each value; the values that come with data are the parameters, in order.
pub(crate) fn graph_of(program: &Program) -> (Graph, HashMap<ProgramId, Ref>) {
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
