//! Products and convolutions with sums in any order agree with ordered ones up to rounding
//! (INTERP-4).
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[path = "../../fusion/tests/support/hostile.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "shared with other tests, and used in part")]
mod calls;

use std::sync::Arc;

use calls::{graph_of, sampled};
use fuseline_fusion::op::OPS;
use fuseline_fusion::op::attrs::{self, ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
use fuseline_fusion::{Attrs, DType, Literal, OpCode, Signature, TensorType};
use fuseline_interp::{self as interp, Arithmetic, SumOrder};
use fuseline_testgen::{Aim, Entropy, Seeded};

/// Ordinary numbers, and now and then, if `odd`, a special one.
fn data(ty: &TensorType, entropy: &mut dyn Entropy, odd: bool) -> Arc<Literal> {
    let odds = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40];
    let number = |_| match entropy.draw(if odd { 60 } else { u32::MAX }) {
        at if odd && (at as usize) < odds.len() => odds[at as usize],
        _ => entropy.draw(1 << 20) as f32 / (1 << 19) as f32 - 1.0,
    };
    let numbers: Vec<f32> = (0..ty.elems().get()).map(number).collect();
    Arc::new(Literal::from_slice(ty.dims(), &numbers).unwrap())
}

fn holds(signature: &Arc<Signature>, entropy: &mut dyn Entropy, odd: bool) {
    let operands: Vec<_> = signature.operands().iter().map(|ty| data(ty, entropy, odd)).collect();
    let graph = graph_of(signature);
    let by = |sums| {
        interp::run_for(&graph, &operands, &[0], Arithmetic { sums, ..Arithmetic::REFERENCE })
            .unwrap()
            .remove(0)
    };
    let (expected, found) = (by(SumOrder::InOrder), by(SumOrder::AnyOrder));
    let numbers = |literal: &Literal| literal.to_vec::<f32>().unwrap();
    for (at, (expected, found)) in numbers(&expected).into_iter().zip(numbers(&found)).enumerate() {
        // Factors are below 1, and a sum has at most some hundred terms.
        let is_close = (expected - found).abs() <= 1e-4 || expected.to_bits() == found.to_bits();
        assert!(
            is_close || expected.is_nan() && found.is_nan(),
            "{signature:?}, element {at}: {expected} in order, {found} in any"
        );
    }
}

/// Every form of a product, small.
#[test]
fn sampled_products() {
    for code in [OpCode::DotGeneral, OpCode::Convolution] {
        let def = OPS.iter().find(|def| def.code == code).unwrap();
        let mut count = 0;
        for seed in 0..20_000 {
            let mut entropy = Seeded::new(seed);
            let Some(call) = sampled(def, &mut entropy, Aim::Everything) else { continue };
            let types = || call.signature.operands().iter().chain(call.signature.results());
            if types().all(|ty| ty.dtype() == DType::F32) {
                holds(&call.signature, &mut entropy, true);
                count += 1;
            }
        }
        assert!(count > 200, "{count} of {code}");
    }
}

fn signature(code: OpCode, attrs: Attrs, dims: &[&[u64]]) -> Arc<Signature> {
    let types: Vec<_> = dims.iter().map(|dims| TensorType::of(DType::F32, dims).unwrap()).collect();
    Arc::new(Signature::infer(code, attrs, &[], &types).unwrap())
}

/// Sizes at which the library is used, with and without transposed matrices.
#[test]
fn large_products() {
    let mut entropy = Seeded::new(1);
    for [batch, rows, depth, columns] in [
        [1, 17, 33, 65],
        [3, 4, 64, 100],
        [2, 100, 64, 4],
        [1, 5, 1_000, 7],
        [1, 130, 1, 130],
        [0, 16, 16, 16],
        [2, 64, 0, 64],
    ] {
        for turned in 0..4 {
            let lhs = if turned & 1 == 0 { [batch, rows, depth] } else { [batch, depth, rows] };
            let rhs = if turned & 2 == 0 { [batch, depth, columns] } else { [batch, columns, depth] };
            let axis = |dims: [u64; 3], other: u64, turned: bool| {
                assert_eq!(dims[if turned { 2 } else { 1 }], other);
                if turned { 1 } else { 2 }
            };
            let dims = DotDimensionNumbers {
                lhs_batching: &[0],
                rhs_batching: &[0],
                lhs_contracting: &[axis(lhs, rows, turned & 1 == 1)],
                rhs_contracting: &[3 - axis(rhs, depth, turned & 2 == 2)],
            };
            holds(
                &signature(OpCode::DotGeneral, attrs::dot_general(dims, DType::F32), &[&lhs, &rhs]),
                &mut entropy,
                false,
            );
        }
    }
    // Two contracted dimensions, and the batch in the middle.
    let dims = DotDimensionNumbers {
        lhs_batching: &[1],
        rhs_batching: &[2],
        lhs_contracting: &[0, 3],
        rhs_contracting: &[1, 0],
    };
    let attrs = attrs::dot_general(dims, DType::F32);
    holds(&signature(OpCode::DotGeneral, attrs, &[&[6, 2, 20, 7], &[7, 6, 2, 30]]), &mut entropy, false);
}

#[test]
fn large_convolutions() {
    let mut entropy = Seeded::new(2);
    let plain = ConvOptions::new(2);
    let odd = ConvOptions {
        window_strides: vec![2, 1],
        padding: vec![(2, 1), (-1, 3)],
        lhs_dilation: vec![1, 2],
        rhs_dilation: vec![2, 1],
        window_reversal: vec![true, false],
        ..ConvOptions::new(2)
    };
    for options in [plain, odd] {
        for (features, batches) in [(1, 1), (3, 1), (1, 2)] {
            let options =
                ConvOptions { feature_group_count: features, batch_group_count: batches, ..options.clone() };
            let (depth, outputs, batch) = (5, 24, 2 * batches as u64);
            let inputs = depth * features as u64;
            let attrs = attrs::convolution(&ConvDimensionNumbers::channels_last(2), &options, DType::F32);
            let dims: [&[u64]; 2] = [&[batch, 12, 11, inputs], &[3, 2, depth, outputs]];
            holds(&signature(OpCode::Convolution, attrs, &dims), &mut entropy, false);
            let attrs = attrs::convolution(&ConvDimensionNumbers::channels_first(2), &options, DType::F32);
            let dims: [&[u64]; 2] = [&[batch, inputs, 12, 11], &[outputs, depth, 3, 2]];
            holds(&signature(OpCode::Convolution, attrs, &dims), &mut entropy, false);
        }
    }
    // More rows than one unrolled step has, and padding where there was none before.
    let options = ConvOptions { padding: vec![(2, 2); 2], ..ConvOptions::new(2) };
    let attrs = attrs::convolution(&ConvDimensionNumbers::channels_last(2), &options, DType::F32);
    holds(&signature(OpCode::Convolution, attrs, &[&[9, 40, 40, 4], &[3, 3, 4, 6]]), &mut entropy, false);
}
