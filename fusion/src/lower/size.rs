//! Computes, before lowering, how many ops a region is lowered to.
//!
//! One op of the table may expand into hundreds. A region within its op budget can therefore become
//! a module that no compiler finishes.

use crate::ir::{Graph, Signature};
use crate::limits::MAX_GRAPH_OPS;
use crate::op::Lowered;

/// Whether a graph is lowered to at most [`MAX_GRAPH_OPS`] ops, bodies included. The fences of an
/// exact region and the conversions of a narrow one are not counted; they are at most a small
/// multiple of that.
#[must_use]
pub fn fits_module(graph: &Graph) -> bool {
    lowered_ops(graph, MAX_GRAPH_OPS).is_some()
}

/// Number of ops that a graph is lowered to; `None` if it exceeds `most`.
fn lowered_ops(graph: &Graph, most: usize) -> Option<usize> {
    sum_of(graph, most, |signature, most| match (signature.def().lower)(&signature.call()) {
        Lowered::Itself | Lowered::As(_) => call_ops(signature, most),
        // As in `Writer::node`: the ops of an expansion are kept, and their bodies are lowered.
        Lowered::Body(body) => sum_of(body.graph(), most, call_ops),
        Lowered::Inline(body) => lowered_ops(body.graph(), most),
    })
}

/// Counts an op and what its bodies are lowered to.
fn call_ops(signature: &Signature, most: usize) -> Option<usize> {
    let own = (most > 0).then_some(1)?;
    let mut bodies = signature.bodies().iter();
    bodies.try_fold(own, |sum, body| Some(sum + lowered_ops(body.graph(), most - sum)?))
}

/// The sum of `count` over the nodes; each call gets the rest of `most`.
fn sum_of(graph: &Graph, most: usize, count: impl Fn(&Signature, usize) -> Option<usize>) -> Option<usize> {
    graph.nodes().iter().try_fold(0, |sum, node| Some(sum + count(node.signature(), most - sum)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::canon::CanonRegion;
    use crate::dtype::DType;
    use crate::ir::OpCode;
    use crate::lower::passes::plain;
    use crate::lower::{Numerics, ScalarPack, Target};
    use crate::shape::TensorType;

    /// The number of ops that a graph is lowered to, without fences.
    fn plain_ops(graph: Graph) -> usize {
        let outputs: Vec<u32> = (0..graph.result_count() as u32).collect();
        let lifted = vec![false; graph.params().len()];
        let region = CanonRegion::new(graph, lifted.into());
        let pack = ScalarPack::of(Target::Any, &region, Numerics::Fast);
        let plain = plain(&region, &outputs, &pack, &[]);
        let mut ops = 0;
        let _ = plain.function.graph().any_op(&mut |_| {
            ops += 1;
            false
        });
        ops
    }

    fn polygammas(count: usize) -> Graph {
        let mut graph = Graph::new();
        let params = [0, 1].map(|_| graph.param(TensorType::of(DType::F32, &[4]).expect("small")));
        for _ in 0..count {
            graph.push(OpCode::Polygamma, Attrs::none(), &[], &params).expect("fits the table");
        }
        graph
    }

    #[test]
    fn ops_are_counted_as_they_are_lowered() {
        let one = lowered_ops(&polygammas(1), usize::MAX).expect("no limit");
        assert_eq!(one, plain_ops(polygammas(1)), "what the lowering makes");
        assert!(one > 50, "{one}");
        let most = MAX_GRAPH_OPS / one;
        assert_eq!(lowered_ops(&polygammas(most), MAX_GRAPH_OPS), Some(most * one));
        assert!(fits_module(&polygammas(most)) && !fits_module(&polygammas(most + 1)));
    }
}
