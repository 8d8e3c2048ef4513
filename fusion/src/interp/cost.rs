//! What interpreting a graph takes, told before it is done.
//!
//! Input: a graph. Output: a time on one core, from its types alone: the same for the same graph, on any machine at any time. So what is
//! decided by it is a function of the program.
//!
//! The constants are times of single ops on 65,536 elements (AMD EPYC, release build, 2026-11-23, best of 5;
//! `cargo test --release -p fuseline-fusion cost_of_ops -- --ignored --nocapture`): with loops of their own
//! arithmetic 0.3 to 1.1 ns an element, functions 5 to 14, sums 0.2 to 0.7, products 0.11; other elementwise ops 26 to 48 ns an element; movement 0.1 to
//! 1.3. Where data is in no cache all take longer, so the constants are no less than two or three times the least of these.

use std::time::Duration;

use super::direct::{self, Effort};
use crate::dtype::DType;
use crate::graph::{Graph, Node};
use crate::op::rules::contraction::ConvDims;
use crate::op::{Fusibility, OpCode, Signature};
use crate::shape::TensorType;

/// What an op costs besides its elements: looking it up, and memory for its results. This and what follows is in tenths of nanoseconds.
const OP: u64 = 10_000;
/// An element of an op that has a loop of its own ([`direct`]).
const PLAIN: u64 = 10;
const FUNCTION: u64 = 150;
const ELEMENTWISE: u64 = 400;
const MOVED: u64 = 20;
const SUMMED: u64 = 10;
const REDUCED: u64 = 400;
const PRODUCT: u64 = 2;
const OTHER_PRODUCT: u64 = 10;
const CONVOLVED: u64 = 40;
const PER_NANO: u64 = 10;

/// What it takes to interpret a graph. `None` if that cannot be told: with loops and branches, functions of elements, handlers, and ops
/// whose time does not follow from their types.
#[must_use]
pub fn estimate(graph: &Graph) -> Option<Duration> {
    let tenths =
        graph.nodes().iter().try_fold(0u64, |sum, node| Some(sum.saturating_add(op(node.signature())?)));
    tenths.map(|tenths| Duration::from_nanos(tenths / PER_NANO))
}

/// Tenths of nanoseconds of one op.
fn op(signature: &Signature) -> Option<u64> {
    let all = |types: &[TensorType]| types.iter().map(|ty| ty.elems().get() as u64).sum::<u64>();
    let (operands, results) = (signature.operands(), signature.results());
    let is_plain = |node: &Node| node.signature().bodies().is_empty();
    if !signature.bodies().iter().all(|body| body.graph().nodes().iter().all(is_plain)) {
        return None;
    }
    let elements = match signature.def().fusibility {
        Fusibility::Source => all(results).saturating_mul(MOVED),
        Fusibility::Elementwise => {
            let each = match direct::effort(signature) {
                Some(Effort::Little) => PLAIN,
                Some(Effort::Much) => FUNCTION,
                None => ELEMENTWISE,
            };
            all(results).saturating_mul(each)
        }
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
                let each = if direct::reduces_by(signature).is_some() { SUMMED } else { REDUCED * steps };
                all(operands).saturating_mul(each)
            }
            _ => return None,
        },
        Fusibility::Contraction => match signature.op() {
            OpCode::DotGeneral => {
                let products = products(&operands[0], &operands[1], &results[0]);
                let each = if results[0].dtype() == DType::F32 { PRODUCT } else { OTHER_PRODUCT };
                products.saturating_mul(each).saturating_add(all(operands).saturating_mul(MOVED))
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
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::attr::Attrs;
    use crate::graph::Body;
    use crate::literal::Literal;
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
        let elementwise = |each| Some((OP + 100 * each) / PER_NANO);
        assert_eq!(nanos(OpCode::Add, Attrs::none(), &[&[10, 10], &[10, 10]]), elementwise(PLAIN));
        assert_eq!(nanos(OpCode::Tanh, Attrs::none(), &[&[10, 10]]), elementwise(FUNCTION));
        assert_eq!(nanos(OpCode::Cbrt, Attrs::none(), &[&[10, 10]]), elementwise(ELEMENTWISE));
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
        let exact = (8 * 16 * 32 * PRODUCT + (8 * 16 + 16 * 32) * MOVED + OP) / PER_NANO;
        assert_eq!(dot(&[8, 16], &[16, 32], &[]), exact);
        // The batch is taken for larger than it is, by its root.
        let batched = dot(&[4, 8, 16], &[4, 16, 32], &[0]);
        assert!((4 * (exact - OP / PER_NANO)..=8 * exact).contains(&batched), "{batched}");
        assert_eq!(nanos(OpCode::Cholesky, attrs::cholesky(true), &[&[4, 4]]), None);
    }

    /// What the constants are taken from.
    #[test]
    #[allow(clippy::print_stdout, reason = "it says its figures")]
    #[ignore = "figures: `cargo test --release -p fuseline-fusion cost_of_ops -- --ignored --nocapture`"]
    fn cost_of_ops() {
        let square = [256u64, 256];
        let dot = DotDimensionNumbers { lhs_contracting: &[1], rhs_contracting: &[0], ..Default::default() };
        let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).expect("adds"));
        let f32s = |dims: &[u64]| TensorType::of(DType::F32, dims).expect("small");
        let i32s = TensorType::of(DType::I32, &square).expect("small");
        let calls = [
            (OpCode::Add, Attrs::none(), vec![], vec![f32s(&square); 2]),
            (OpCode::Maximum, Attrs::none(), vec![], vec![f32s(&square); 2]),
            (OpCode::Divide, Attrs::none(), vec![], vec![f32s(&square); 2]),
            (OpCode::Tanh, Attrs::none(), vec![], vec![f32s(&square)]),
            (OpCode::Exponential, Attrs::none(), vec![], vec![f32s(&square)]),
            (OpCode::Power, Attrs::none(), vec![], vec![f32s(&square); 2]),
            (OpCode::Cbrt, Attrs::none(), vec![], vec![f32s(&square)]),
            (OpCode::Add, Attrs::none(), vec![], vec![i32s; 2]),
            (OpCode::Transpose, attrs::transpose(&[1, 0]), vec![], vec![f32s(&square)]),
            (
                OpCode::BroadcastInDim,
                attrs::broadcast_in_dim(f32s(&square).shape().clone(), &[1]),
                vec![],
                vec![f32s(&[256])],
            ),
            (OpCode::Reduce, attrs::dimensions(&[0]), vec![add.clone()], vec![f32s(&square), f32s(&[])]),
            (OpCode::Reduce, attrs::dimensions(&[1]), vec![add], vec![f32s(&square), f32s(&[])]),
            (OpCode::DotGeneral, attrs::dot_general(dot, DType::F32), vec![], vec![f32s(&square); 2]),
        ];
        for (op, attrs, bodies, types) in calls {
            let mut graph = Graph::new();
            let params: Vec<_> = types.iter().map(|ty| graph.param(ty.clone())).collect();
            graph.push(op, attrs, &bodies, &params).expect("a call");
            let data = |ty: &TensorType| {
                let one = if ty.dtype() == DType::F32 { 0.75f32.to_bits() } else { 3 };
                let bytes = one.to_le_bytes().repeat(ty.elems().get());
                Arc::new(Literal::from_bytes(ty.clone(), bytes).expect("as many"))
            };
            let data: Vec<_> = types.iter().map(data).collect();
            let time = || {
                let start = Instant::now();
                super::super::run(&graph, &data).expect("it runs");
                start.elapsed()
            };
            let best = (0..5).map(|_| time()).min().unwrap_or_default();
            let told = estimate(&graph).unwrap_or_default();
            println!("{op} of {:?}: {best:.1?}, {told:.1?} by the estimate", types[0]);
        }
    }
}
