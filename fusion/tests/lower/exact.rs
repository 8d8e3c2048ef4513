//! Exact functions agree with the interpreter, and the stable ops with their error bounds.

use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::element::{Elements, Store, to_f64};
use fuseline_fusion::lower::passes::{Plain, crossed_as, exact, has_zero, plain, steady};
use fuseline_fusion::lower::{Numerics, ScalarPack, Target, context_dependent_op};
use fuseline_fusion::op::rounds;
use fuseline_fusion::{Attrs, DType, Graph, Literal, Node, OpCode, Ref, TensorType};
use fuseline_testgen::{Aim, Entropy, ProgramOptions, Seeded, sampled_region};

use super::{Data, run};

fn pack(region: &CanonRegion) -> ScalarPack {
    ScalarPack::of(Target::Any, region, Numerics::Exact)
}

/// All results of a region, in a function without fences.
fn bare(region: &CanonRegion) -> Plain {
    let outputs: Vec<u32> = (0..region.graph().result_count() as u32).collect();
    plain(region, &outputs, &pack(region), &[])
}

/// The users of each result of a graph.
fn users(graph: &Graph) -> Vec<Vec<&Node>> {
    let mut users = vec![Vec::new(); graph.result_count()];
    for node in graph.nodes() {
        for operand in node.operands() {
            if let Ref::Result(index) = *operand {
                users[index as usize].push(node);
            }
        }
    }
    users
}

/// F1, and F2 by inspection of the function.
#[test]
fn fences_stand_behind_what_rounds_and_change_no_bit() {
    let options = ProgramOptions::new(Aim::Portable);
    let (mut fences, mut branches) = (0, 0);
    for seed in 0..400 {
        let (region, operands) = sampled_region(options, seed, 12);
        let wanted = run(&region, Numerics::Exact, &steady(bare(&region)), std::slice::from_ref(&operands));
        let function = exact(bare(&region), &pack(&region));
        assert_eq!(function.origins.len(), function.function.graph().nodes().len());
        assert!(function.origins.is_sorted(), "{:?}", function.origins);
        let found = run(&region, Numerics::Exact, &function, &[operands]);
        assert_eq!(found, wanted, "seed {seed}: {:?}", region.graph());
        let graph = function.function.graph();
        let users = users(graph);
        let mut users = users.iter();
        for node in graph.nodes() {
            branches += usize::from(node.signature().op() == OpCode::Case);
            for (ty, users) in node.signature().results().iter().zip(&mut users) {
                if !rounds(node.signature())
                    || crossed_as(ty.dtype().part()).is_none()
                    || !has_zero(&region, Numerics::Exact)
                {
                    continue;
                }
                for user in users {
                    let op = user.signature().op();
                    let is_fence =
                        matches!(op, OpCode::BitcastConvert | OpCode::Xor | OpCode::Real | OpCode::Imag);
                    assert!(is_fence, "seed {seed}: {:?} goes to {op:?}", node.signature());
                    fences += 1;
                }
            }
        }
    }
    assert!(fences > 400 && branches > 50, "{fences} fences, {branches} branches");
}

/// A region of one op is the reference: it has fences only inside what replaces the op.
#[test]
fn an_op_alone_is_left_alone() {
    let region = |ops: &[OpCode]| {
        let mut graph = Graph::new();
        let mut value = graph.param(TensorType::of(DType::F32, &[4]).expect("small"));
        for &op in ops {
            value = graph.push(op, Attrs::none(), &[], &[value]).expect("an op of one float")[0];
        }
        CanonRegion::new(graph, Box::new([false]))
    };
    assert!(!has_zero(&region(&[OpCode::Tanh]), Numerics::Exact));
    assert!(has_zero(&region(&[OpCode::Exponential]), Numerics::Exact));
    assert!(has_zero(&region(&[OpCode::Negate, OpCode::Tanh]), Numerics::Exact));
    assert!(!has_zero(&region(&[OpCode::Negate, OpCode::Exponential]), Numerics::Fast));
    assert_eq!(context_dependent_op(&region(&[OpCode::Asinh])), None);
    assert_eq!(context_dependent_op(&region(&[OpCode::Asinh, OpCode::Negate])), Some(OpCode::Asinh));
    assert_eq!(context_dependent_op(&region(&[OpCode::Exponential, OpCode::Negate])), None);
}

/// Runs the replacement of an op of one float on some elements.
fn stand_in(op: OpCode, data: Arc<Literal>) -> Literal {
    let mut graph = Graph::new();
    let value = graph.param(data.ty().clone());
    graph.push(op, Attrs::none(), &[], &[value]).expect("takes a float");
    let region = CanonRegion::new(graph, Box::new([false]));
    let function = exact(bare(&region), &pack(&region));
    assert!(function.function.graph().nodes().iter().all(|node| node.signature().op() != op));
    let mut results: Vec<Data> = run(&region, Numerics::Exact, &function, &[vec![data]]);
    Arc::unwrap_or_clone(results.remove(0).remove(0))
}

/// The difference from a reference, in units in the last place of a type.
fn units(dtype: DType, found: f64, wanted: f64) -> f64 {
    let digits = if dtype == DType::F64 { 52 } else { 23 };
    if found == wanted || (found.is_nan() && wanted.is_nan()) {
        return 0.0;
    }
    let exponent = wanted.abs().log2().floor().max(-126.0);
    (found - wanted).abs() / (exponent - f64::from(digits)).exp2()
}

#[test]
fn steady_ops_are_near_the_right_number() {
    type Function = fn(f64) -> f64;
    let ops: [(OpCode, Function, f64); 4] = [
        (OpCode::Exponential, f64::exp, 1.0),
        (OpCode::Log, f64::ln, 1.0),
        (OpCode::LogPlusOne, f64::ln_1p, 2.5),
        (OpCode::Rsqrt, |x| 1.0 / x.sqrt(), 1.5),
    ];
    let mut random = Seeded::new(3);
    // Arbitrary bits, and numbers of usual size.
    let any = (0..200_000).map(|_| random.draw(u32::MAX)).collect::<Vec<_>>();
    let plain = (-100_000..100_000).map(|n| (n as f32 / 1000.0).to_bits());
    let small = (-50_000..50_000).map(|n| (n as f32 / 50_000.0).to_bits());
    let odd = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
    ];
    let odd = odd.into_iter().flat_map(|x: f32| [x, x.next_up(), x.next_down()]).map(f32::to_bits);
    let is_normal = |bits: &u32| !f32::from_bits(*bits).is_subnormal();
    let bits: Vec<u32> = any.into_iter().chain(plain).chain(small).chain(odd).filter(is_normal).collect();
    let ty = TensorType::of(DType::F32, &[bits.len() as u64]).expect("small");
    let data = Arc::new(Store::collect(ty, bits.iter().map(|&bits| u128::from(bits))).finish());
    for (op, function, most) in ops {
        let result = stand_in(op, data.clone());
        let elements = Elements::of(&result);
        for (index, &bits) in bits.iter().enumerate() {
            let x = f32::from_bits(bits);
            let (found, wanted) = (to_f64(DType::F32, elements.get(index)), function(f64::from(x)));
            // Below the normal numbers the plugin returns zero.
            let is_lost = wanted.abs() < f64::from(f32::MIN_POSITIVE);
            let off = units(
                DType::F32,
                found,
                if wanted.abs() > f64::from(f32::MAX) { f64::from(wanted as f32) } else { wanted },
            );
            assert!(
                off <= most || (is_lost && found.abs() <= 2.0 * f64::from(f32::MIN_POSITIVE)),
                "{op:?} of {x:e} is {found:e}, not {wanted:e}: off by {off}"
            );
        }
    }
}

/// Short floats are rounded once, from the longer result; `rsqrt` of `f64` is a root and a
/// division.
#[test]
fn steady_ops_of_other_types() {
    for dtype in [DType::BF16, DType::F16] {
        let bits: Vec<u128> = (0..1 << 16).collect();
        let ty = TensorType::of(dtype, &[bits.len() as u64]).expect("small");
        let data = Arc::new(Store::collect(ty, bits.iter().copied()).finish());
        let result = stand_in(OpCode::Exponential, data);
        let elements = Elements::of(&result);
        for &bits in &bits {
            let x = to_f64(dtype, bits);
            let found = to_f64(dtype, elements.get(bits as usize));
            let wanted = x.exp();
            let unit = if dtype == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
            let is_near = (found - wanted).abs() <= 1.01 * unit * wanted.max(2f64.powi(-14));
            let is_same = found == wanted || found.is_nan() && wanted.is_nan();
            let is_over =
                found.is_infinite() && wanted > 65_500.0 && (dtype == DType::F16 || wanted > 3.3e38);
            assert!(is_near || is_same || is_over, "exp of {x:e} in {dtype} is {found:e}, not {wanted:e}");
        }
    }
    let data = Literal::from_slice(&[4], &[4.0f64, 0.0, f64::INFINITY, -1.0]).expect("as many as there are");
    let result = stand_in(OpCode::Rsqrt, Arc::new(data));
    let elements = Elements::of(&result);
    let found: Vec<f64> = (0..4).map(|index| to_f64(DType::F64, elements.get(index))).collect();
    assert_eq!(found[..3], [0.5, f64::INFINITY, 0.0]);
    assert!(found[3].is_nan());
}
