//! Properties of expansions that can be tested without running them.

use std::sync::Arc;

use super::*;
use crate::ir::Signature;
use crate::limits::MAX_BODY_DEPTH;
use crate::literal::Literal;

/// Negative padding larger than the operand.
#[test]
fn what_is_cut_off_leaves_the_positions_as_they_were() {
    for size in 0..4_i64 {
        for low in -4..4 {
            for high in (-4..4).filter(|high| size + low + high >= 0) {
                let cut = combine::Cut::of(size as u64, (low, high));
                let (left, padding) = (size - cut.low - cut.high, cut.padding);
                assert!(left >= 0 && padding.0 >= 0 && padding.1 >= 0, "{size} {low} {high}");
                assert_eq!(left + padding.0 + padding.1, size + low + high);
                if left > 0 {
                    assert_eq!(padding.0 - cut.low, low);
                }
            }
        }
    }
}

/// A body at the depth limit still becomes a loop.
#[test]
fn the_deepest_bodies_become_loops_too() {
    let types = [TensorType::scalar(DType::I32), TensorType::scalar(DType::I32)];
    let mut body = Arc::new(Body::binary(OpCode::Add, types[0].clone()).expect("it adds"));
    let nested = |bodies: &[Arc<Body>]| {
        let mut graph = Graph::new();
        let params = types.each_ref().map(|ty| graph.param(ty.clone()));
        let zero = attrs::constant(Arc::new(Literal::scalar(0i32)));
        let zero = graph.push(OpCode::Constant, zero, &[], &[]).expect("a constant")[0];
        graph
            .push(OpCode::Case, Attrs::none(), bodies, &[zero, params[0], params[1]])
            .map(|results| Arc::new(Body::new(graph, &results).expect("it returns what it made")))
    };
    while body.depth() + 1 < MAX_BODY_DEPTH {
        body = nested(&[body]).expect("within the limit");
    }
    let row = TensorType::of(DType::I32, &[3]).expect("small");
    let numbers = attrs::IndexDimensionNumbers {
        window: &[],
        collapsed: &[0],
        operand_batching: &[],
        indices_batching: &[],
        index_map: &[0],
        index_vector: 1,
    };
    let scatter = attrs::scatter(numbers, false, false);
    let sorts = {
        let mut graph = Graph::new();
        let params = types.each_ref().map(|ty| graph.param(ty.clone()));
        let mut builder = Builder(graph);
        let sum = builder.inline(&body, &params)[0];
        let below = attrs::compare_for(Comparison::Lt, DType::I32);
        let below = builder.op(OpCode::Compare, below, &[sum, params[0]]).expect("two numbers");
        Arc::new(builder.body(&[below]))
    };
    for (op, attrs, body, operands) in [
        (OpCode::Reduce, attrs::dimensions(&[0]), &body, vec![row.clone(), types[0].clone()]),
        (OpCode::Map, attrs::dimensions(&[0]), &body, vec![row.clone(), row.clone()]),
        (OpCode::Sort, attrs::sort(0, true), &sorts, vec![row.clone()]),
        (OpCode::Scatter, scatter, &body, {
            let indices = TensorType::of(DType::I32, &[2, 1]).expect("small");
            vec![row.clone(), indices, TensorType::of(DType::I32, &[2]).expect("small")]
        }),
    ] {
        let signature = Signature::infer(op, attrs, std::slice::from_ref(body), &operands).expect("it fits");
        assert_eq!(signature.depth(), MAX_BODY_DEPTH);
        assert!(matches!((signature.def().lower)(&signature.call()), Lowered::Body(_)), "{op}");
    }
    let body = nested(&[body]).expect("within the limit");
    let error = nested(&[body]).expect_err("past the limit");
    assert_eq!(error.to_string(), "case: bodies nest 17 deep; the limit is 16");
}

/// An op whose intermediate values would be too large is not expanded.
#[test]
fn an_expansion_beyond_the_limits_is_left_out() {
    let ty = TensorType::of(DType::C128, &[1 << 57]).expect("within the limits");
    let signature = Signature::infer(OpCode::BitcastConvert, attrs::convert(DType::C64), &[], &[ty]);
    let signature = signature.expect("within the limits");
    assert_eq!((signature.def().lower)(&signature.call()), Lowered::Itself);
}
