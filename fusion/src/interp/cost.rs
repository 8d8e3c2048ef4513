//! What interpreting a graph takes, told before it is done.
//!
//! Input: a graph. Output: a time on one core, from its types alone: the same for the same graph, on any machine at any time. So what is
//! decided by it is a function of the program.
//!
//! The constants are times of single ops on 65,536 elements (AMD EPYC, release build, 2026-11-22, best of 3): elementwise 12 to
//! 43 ns an element, movement 9 to 12, `reduce` 33 to 35, with two operands 123, `dot_general` 0.5 ns a product.

use std::time::Duration;

use crate::graph::{Graph, Node};
use crate::op::rules::contraction::ConvDims;
use crate::op::{Fusibility, OpCode, Signature};
use crate::shape::TensorType;

/// What an op costs besides its elements: looking it up, and memory for its results.
const OP: u64 = 1_000;
const ELEMENTWISE: u64 = 30;
const MOVED: u64 = 10;
const REDUCED: u64 = 40;
const PRODUCT: u64 = 1;
const CONVOLVED: u64 = 4;

/// What it takes to interpret a graph. `None` if that cannot be told: with loops and branches, functions of elements, handlers, and ops
/// whose time does not follow from their types.
#[must_use]
pub fn estimate(graph: &Graph) -> Option<Duration> {
    let nanos =
        graph.nodes().iter().try_fold(0u64, |sum, node| Some(sum.saturating_add(op(node.signature())?)));
    nanos.map(Duration::from_nanos)
}

/// Nanoseconds of one op.
fn op(signature: &Signature) -> Option<u64> {
    let all = |types: &[TensorType]| types.iter().map(|ty| ty.elems().get() as u64).sum::<u64>();
    let (operands, results) = (signature.operands(), signature.results());
    let is_plain = |node: &Node| node.signature().bodies().is_empty();
    if !signature.bodies().iter().all(|body| body.graph().nodes().iter().all(is_plain)) {
        return None;
    }
    let elements = match signature.def().fusibility {
        Fusibility::Source => all(results).saturating_mul(MOVED),
        Fusibility::Elementwise => all(results).saturating_mul(ELEMENTWISE),
        Fusibility::Movement => all(results).saturating_mul(MOVED),
        Fusibility::Indexing => match signature.op() {
            OpCode::Gather | OpCode::DynamicSlice | OpCode::DynamicUpdateSlice => {
                all(results).saturating_mul(MOVED)
            }
            _ => return None,
        },
        Fusibility::Reduction => match signature.op() {
            OpCode::Reduce => {
                let steps = 1 + signature.bodies()[0].graph().nodes().len() as u64 / 2;
                all(operands).saturating_mul(REDUCED * steps)
            }
            _ => return None,
        },
        Fusibility::Contraction => match signature.op() {
            OpCode::DotGeneral => {
                let products = products(&operands[0], &operands[1], &results[0]);
                products.saturating_mul(PRODUCT).saturating_add(all(operands).saturating_mul(MOVED))
            }
            OpCode::Convolution => {
                let outputs = ConvDims::of(&signature.call()).ok()?.kernel_output_feature;
                let terms = operands[1].elems().get() as u64 / operands[1].dims()[outputs].max(1);
                let products = all(results).saturating_mul(terms);
                products.saturating_mul(CONVOLVED).saturating_add(all(operands).saturating_mul(MOVED))
            }
            _ => return None,
        },
        Fusibility::Opaque => return None,
    };
    Some(elements.saturating_add(OP))
}

/// Most products that a `dot_general` sums. With one batch they are the root of the product of the three sizes: each of the batch's, the
/// rows', the columns' and the summed dimensions is in two of these, but the batch's, which is in all three.
fn products(lhs: &TensorType, rhs: &TensorType, result: &TensorType) -> u64 {
    let sizes = [lhs, rhs, result].map(|ty| ty.elems().get() as f64);
    sizes.iter().product::<f64>().sqrt() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::dtype::DType;
    use crate::op::attrs::{self, DotDimensionNumbers};

    fn nanos(op: OpCode, attrs: Attrs, dims: &[&[u64]]) -> Option<u64> {
        let mut graph = Graph::new();
        let params: Vec<_> =
            dims.iter().map(|dims| graph.param(TensorType::of(DType::F32, dims).expect("small"))).collect();
        graph.push(op, attrs, &[], &params).expect("a call");
        estimate(&graph).map(|time| time.as_nanos() as u64)
    }

    #[test]
    fn the_estimate_follows_the_elements() {
        assert_eq!(nanos(OpCode::Add, Attrs::none(), &[&[10, 10], &[10, 10]]), Some(OP + 100 * ELEMENTWISE));
        let dot = |lhs: &[u64], rhs: &[u64], batch: &[i64]| {
            let axis = [batch.len() as i64 + 1, batch.len() as i64];
            let dims = DotDimensionNumbers {
                lhs_batching: batch,
                rhs_batching: batch,
                lhs_contracting: &axis[..1],
                rhs_contracting: &axis[1..],
            };
            let attrs = attrs::dot_general(dims, DType::F32);
            nanos(OpCode::DotGeneral, attrs, &[lhs, rhs]).expect("it can be told")
        };
        let exact = 8 * 16 * 32 * PRODUCT + (8 * 16 + 16 * 32) * MOVED + OP;
        assert_eq!(dot(&[8, 16], &[16, 32], &[]), exact);
        // The batch is taken for larger than it is, by its root.
        let batched = dot(&[4, 8, 16], &[4, 16, 32], &[0]);
        assert!((4 * exact - 4 * OP..=8 * exact).contains(&batched), "{batched}");
        assert_eq!(nanos(OpCode::Cholesky, attrs::cholesky(true), &[&[4, 4]]), None);
    }
}
