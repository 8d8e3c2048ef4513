//! Estimates how long interpreting a graph takes, before running it.
//!
//! Input: a graph. Output: the time on one core, from its types alone: the same for the same graph,
//! on any machine at any time. Decisions based on it are therefore a function of the program.
//!
//! The constants are times of single ops on 65,536 elements (AMD EPYC, release build, 2026-11-23,
//! best of 5; `cargo test --release -p fuseline-interp --lib cost_of_ops -- --ignored
//! --nocapture`): arithmetic with specialized loops 0.3 to 1.1 ns an element, functions 5 to 14,
//! sums 0.2 to 0.7; other elementwise ops 26 to 48 ns an element; movement 0.1 to 1.3. A product
//! takes 0.11 to 0.15 ns in a plain loop and 0.022 to 0.03 in the library. Unrolling a convolution
//! takes 0.5 to 0.9 ns an element and 6 ns more for each element of a window (Intel Xeon,
//! 2026-11-24). All take longer if the data is in no cache, so the constants are at least two or
//! three times the lowest of these.

use std::time::Duration;

use fuseline_fusion::op::Fusibility;
use fuseline_fusion::op::dims::{ConvDims, DotDims, conv_attr, reduce_window_dims};
use fuseline_fusion::{DType, Graph, Node, OpCode, Signature, TensorType};

use super::fast_f32::{self, Effort};
use super::gemm;
use super::reduction::running_axis;

/// Overhead of an op: its dispatch, and memory for its results. All constants are in hundredths of
/// nanoseconds.
const OP: u64 = 100_000;
/// An element of an op with a specialized loop ([`super::fast_f32`]).
const PLAIN: u64 = 100;
const FUNCTION: u64 = 1_500;
const ELEMENTWISE: u64 = 4_000;
const MOVED: u64 = 200;
const SUMMED: u64 = 100;
const REDUCED: u64 = 4_000;
/// A product in the library ([`super::gemm`]), in a specialized loop, and of other types than
/// `f32`.
const NATIVE_PRODUCT: u64 = 5;
const PRODUCT: u64 = 20;
const OTHER_PRODUCT: u64 = 100;
const OTHER_CONVOLVED: u64 = 400;
/// An element of a convolution's window, and each of its features.
const WINDOW_ELEMENT: u64 = 700;
const WINDOW_FEATURE: u64 = 100;
const PER_NANO: u64 = 100;

/// The time to interpret a graph. `None` if it is unknown: for loops and branches, functions of
/// elements, handlers, and ops whose time does not follow from their types.
#[must_use]
pub fn estimate(graph: &Graph) -> Option<Duration> {
    let all =
        graph.nodes().iter().try_fold(0u64, |sum, node| Some(sum.saturating_add(op(node.signature())?)));
    all.map(|all| Duration::from_nanos(all / PER_NANO))
}

/// The time of one op in hundredths of nanoseconds.
fn op(signature: &Signature) -> Option<u64> {
    let all = |types: &[TensorType]| types.iter().map(|ty| ty.elems().get() as u64).sum::<u64>();
    let (operands, results) = (signature.operands(), signature.results());
    let is_plain = |node: &Node| node.signature().bodies().is_empty();
    if !signature.bodies().iter().all(|body| body.graph().nodes().iter().all(is_plain)) {
        return None;
    }
    // For an element that a body combines.
    let combined = || REDUCED * (1 + signature.bodies()[0].graph().nodes().len() as u64 / 2);
    let elements = match signature.def().fusibility {
        Fusibility::Source => all(results).saturating_mul(MOVED),
        Fusibility::Elementwise => {
            let each = match fast_f32::effort(signature) {
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
                let each = if fast_f32::reduces_by(signature).is_some() { SUMMED } else { combined() };
                all(operands).saturating_mul(each)
            }
            OpCode::ReduceWindow => {
                let window = reduce_window_dims(&signature.call()).ok()?;
                running_axis(&window, operands[0].dims())?;
                all(operands).saturating_mul(combined())
            }
            _ => return None,
        },
        Fusibility::Contraction => match signature.op() {
            OpCode::DotGeneral => products(signature).saturating_add(all(operands).saturating_mul(MOVED)),
            OpCode::Convolution => convolved(signature)?.saturating_add(all(operands).saturating_mul(MOVED)),
            _ => return None,
        },
        Fusibility::Opaque => return None,
    };
    Some(elements.saturating_add(OP))
}

/// The time of the products of a `dot_general`.
fn products(signature: &Signature) -> u64 {
    let dims = DotDims::of(signature.attrs().view());
    let (lhs, rhs, result) = (&signature.operands()[0], &signature.operands()[1], &signature.results()[0]);
    let size = |ty: &TensorType, axes: &[i64]| -> u64 {
        axes.iter().map(|&axis| ty.dims()[axis as usize]).product()
    };
    let (batch, depth) = (size(lhs, dims.lhs_batch), size(lhs, dims.lhs_contract));
    let rest = |ty: &TensorType| ty.elems().get() as u64 / (batch * depth).max(1);
    let sizes = [rest(lhs), depth, rest(rhs)];
    let each = match result.dtype() {
        DType::F32 if gemm::pays(sizes.map(|size| size as usize)) => NATIVE_PRODUCT,
        DType::F32 => PRODUCT,
        _ => OTHER_PRODUCT,
    };
    sizes.iter().fold(batch, |product, &size| product.saturating_mul(size)).saturating_mul(each)
}

/// The time of the products of a `convolution`, and of collecting their factors.
fn convolved(signature: &Signature) -> Option<u64> {
    let dims = ConvDims::of(&signature.call()).ok()?;
    let (kernel, result) = (&signature.operands()[1], &signature.results()[0]);
    let attrs = signature.attrs().view();
    let groups = attrs.int(conv_attr::FEATURE_GROUPS).max(attrs.int(conv_attr::BATCH_GROUPS)).max(1) as u64;
    let (outputs, depth) =
        (kernel.dims()[dims.kernel_output_feature], kernel.dims()[dims.kernel_input_feature]);
    let terms = kernel.elems().get() as u64 / outputs.max(1);
    let products = (result.elems().get() as u64).saturating_mul(terms);
    if result.dtype() != DType::F32 {
        return Some(products.saturating_mul(OTHER_CONVOLVED));
    }
    let (positions, columns) = (result.elems().get() as u64 / outputs.max(1), outputs / groups);
    let each = match gemm::pays([positions, terms, columns].map(|size| size as usize)) {
        true => NATIVE_PRODUCT,
        false => PRODUCT,
    };
    let seen = positions.saturating_mul(groups).saturating_mul(terms / depth.max(1));
    let windows = seen.saturating_mul(depth.saturating_mul(WINDOW_FEATURE).saturating_add(WINDOW_ELEMENT));
    Some(products.saturating_mul(each).saturating_add(windows))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use fuseline_fusion::op::attrs::{self, ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
    use fuseline_fusion::{Attrs, Body, Literal};

    use super::*;
    use crate::{Arithmetic, SumOrder};

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
        let exact = |batch: u64, [rows, depth, columns]: [u64; 3], each| {
            batch * (rows * depth * columns * each + (rows * depth + depth * columns) * MOVED)
        };
        let told = |cost| (cost + OP) / PER_NANO;
        assert_eq!(dot(&[8, 16], &[16, 16], &[]), told(exact(1, [8, 16, 16], PRODUCT)));
        assert_eq!(dot(&[8, 16], &[16, 64], &[]), told(exact(1, [8, 16, 64], NATIVE_PRODUCT)));
        assert_eq!(dot(&[1, 16], &[16, 640], &[]), told(exact(1, [1, 16, 640], PRODUCT)));
        assert_eq!(dot(&[5, 8, 16], &[5, 16, 64], &[0]), told(exact(5, [8, 16, 64], NATIVE_PRODUCT)));
        assert_eq!(nanos(OpCode::Cholesky, attrs::cholesky(true), &[&[4, 4]]), None);
    }

    /// Measures the constants.
    #[test]
    #[allow(clippy::print_stdout, reason = "it says its figures")]
    #[ignore = "figures: `cargo test --release -p fuseline-interp cost_of_ops -- --ignored --nocapture`"]
    fn cost_of_ops() {
        let square = [256u64, 256];
        let dot = DotDimensionNumbers { lhs_contracting: &[1], rhs_contracting: &[0], ..Default::default() };
        let options = ConvOptions { padding: vec![(1, 1); 2], ..ConvOptions::new(2) };
        let conv = attrs::convolution(&ConvDimensionNumbers::channels_last(2), &options, DType::F32);
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
        ];
        let dots = [
            [256, 256, 256],
            [16, 16, 16],
            [64, 64, 64],
            [4, 64, 64],
            [1, 512, 512],
            [512, 512, 1],
            [1024, 1024, 1024],
        ];
        let dots = dots.map(|[rows, depth, columns]| {
            let types = vec![f32s(&[rows, depth]), f32s(&[depth, columns])];
            (OpCode::DotGeneral, attrs::dot_general(dot, DType::F32), vec![], types)
        });
        let convs = [(32, 16, 64), (32, 3, 16), (8, 64, 64), (32, 1, 1)].map(|(size, depth, features)| {
            let types = vec![f32s(&[8, size, size, depth]), f32s(&[3, 3, depth, features])];
            (OpCode::Convolution, conv.clone(), vec![], types)
        });
        let calls = calls.into_iter().chain(dots).chain(convs);
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
            let fast = Arithmetic { sums: SumOrder::AnyOrder, ..Arithmetic::REFERENCE };
            let time = || {
                let start = Instant::now();
                crate::run_for(&graph, &data, &[0], fast).expect("it runs");
                start.elapsed()
            };
            let best = (0..5).map(|_| time()).min().unwrap_or_default();
            let told = estimate(&graph).unwrap_or_default();
            println!("{op} of {types:?}: {best:.1?}, {told:.1?} by the estimate");
        }
    }
}
