//! Legalizations agree with the interpreter: the lowered form of a call computes the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use fuseline_fusion::element::{Bits, to_f64};
use fuseline_fusion::lower::passes::{common_float, is_scalar_code};
use fuseline_fusion::op::attrs::IndexDimensionNumbers;
use fuseline_fusion::op::{Fusibility, Lowered, OPS, OpDef, Replicas, Rounding};
use fuseline_fusion::{
    AttrValue, Attrs, Body, DType, DTypeClass, DTypeSet, Literal, Node, OpCode, Ref, Signature, TensorType,
};
use fuseline_interp::{self as interp, Arithmetic};
use fuseline_testgen::{Aim, SampleOperand, Sampler, Seeded, fill};

/// Whether a collective has a channel.
fn has_channel(signature: &Signature) -> bool {
    signature.def().exchanges()
        && signature.attrs().values().iter().any(|value| matches!(value, AttrValue::Struct(_)))
}

/// Whether XLA gets a call wrong; each such call is listed with its legalization.
fn is_trouble(signature: &Signature) -> bool {
    let view = signature.attrs().view();
    let negative = |index| view.pairs(index).iter().any(|&(low, high)| low < 0 || high < 0);
    let (from, to) = (signature.operands().first(), signature.results().last());
    let dtypes = (from.map(TensorType::dtype), to.map(TensorType::dtype));
    let converts = || dtypes.0 != signature.results().first().map(TensorType::dtype);
    let uncallable = || !signature.bodies().iter().all(|body| is_scalar_code(body));
    // A type that collectives do not move.
    let odd = |types: &[TensorType]| types.iter().any(|ty| ty.dtype() == DType::F8E8M0FNU);
    // Types in which a sum is more than one op.
    let narrow = |ty: &TensorType| ty.dtype().bits() < 8 && ty.dtype() != DType::Bool;
    let floats = |types: &[TensorType]| common_float(types.iter().map(TensorType::dtype)).is_some();
    match signature.op() {
        OpCode::Reduce => converts() || uncallable() || floats(signature.results()),
        OpCode::Scatter => {
            let components = IndexDimensionNumbers::of(view).index_map.len();
            let scalar = signature.operands()[0].rank() == 0;
            converts() || uncallable() || scalar || components == 0 || signature.results().len() > 1
        }
        OpCode::ReduceWindow => {
            negative(4) || converts() || uncallable() || signature.operands()[0].rank() == 0
        }
        OpCode::SelectAndScatter => negative(2) || dtypes.0 != dtypes.1 || uncallable(),
        OpCode::Map => uncallable() || floats(signature.operands()),
        OpCode::Sort => uncallable(),
        OpCode::Pad => view.ints(0).iter().chain(view.ints(1)).any(|&amount| amount < 0),
        OpCode::Slice => view.ints(2).contains(&i64::MAX),
        _ if has_channel(signature) => true,
        OpCode::AllGather | OpCode::AllToAll | OpCode::CollectivePermute if odd(signature.operands()) => true,
        OpCode::AllGather => {
            let axis = view.int(1) as usize;
            signature.operands().len() > 1 || signature.operands()[0].dims()[axis] == 0
        }
        OpCode::AllToAll => signature.operands().len() > 1,
        OpCode::CollectiveBroadcast => true,
        OpCode::AllReduce | OpCode::ReduceScatter => {
            let body = signature.bodies()[0].graph();
            let known = matches!(
                body.nodes().first().map(|node| node.signature().op()),
                Some(
                    OpCode::Add
                        | OpCode::Multiply
                        | OpCode::Maximum
                        | OpCode::Minimum
                        | OpCode::And
                        | OpCode::Or
                )
            );
            let sums = body.nodes().iter().any(|node| {
                let sums = matches!(node.signature().op(), OpCode::Add | OpCode::Multiply);
                sums && node.signature().results().iter().any(narrow)
            });
            dtypes.0 != dtypes.1 || body.nodes().len() != 1 || !known || sums || odd(signature.results())
        }
        OpCode::BitcastConvert => {
            let [from, to] = [dtypes.0, dtypes.1].map(|dtype| dtype.map_or(8, DType::bits));
            from != to && from.min(to) < 8
        }
        OpCode::RngBitGenerator => dtypes.1.is_some_and(|bits| bits.class() != DTypeClass::Unsigned),
        _ => false,
    }
}

/// The results of a body on each replica, with its ops lowered one by one.
fn run_in_turn(body: &Body, params: &[Vec<Arc<Literal>>]) -> Vec<Vec<Arc<Literal>>> {
    let mut results: Vec<Vec<Arc<Literal>>> = vec![Vec::new(); params.len()];
    let pick = |value: &Ref, replica: usize, results: &[Vec<Arc<Literal>>]| match *value {
        Ref::Param(index) => params[replica][index as usize].clone(),
        Ref::Result(index) => results[replica][index as usize].clone(),
    };
    for node in body.graph().nodes() {
        let operands: Vec<Vec<Arc<Literal>>> = (0..params.len())
            .map(|replica| node.operands().iter().map(|value| pick(value, replica, &results)).collect())
            .collect();
        let made = run_lowered(node.signature(), &operands).unwrap_or_else(|| {
            assert!(!is_trouble(node.signature()), "{:?} is lowered as itself", node.signature());
            let made =
                interp::call_replicated(Arithmetic::REFERENCE, node.signature(), &operands).expect("runs");
            made.into_iter().map(|each| each.into_iter().map(Arc::new).collect()).collect()
        });
        results.iter_mut().zip(made).for_each(|(results, made)| results.extend(made));
    }
    (0..params.len())
        .map(|replica| body.returns().iter().map(|value| pick(value, replica, &results)).collect())
        .collect()
}

/// The results of a call's lowered form on each replica; `None` if that is the call itself.
fn run_lowered(signature: &Signature, operands: &[Vec<Arc<Literal>>]) -> Option<Vec<Vec<Arc<Literal>>>> {
    match (signature.def().lower)(&signature.call()) {
        Lowered::Itself => None,
        Lowered::As(op) => {
            let as_other =
                Signature::infer(op, signature.attrs().clone(), signature.bodies(), signature.operands())
                    .expect("the other op takes the call");
            let results = interp::call_replicated(Arithmetic::REFERENCE, &as_other, operands).expect("runs");
            Some(results.into_iter().map(|each| each.into_iter().map(Arc::new).collect()).collect())
        }
        Lowered::Body(body) => {
            for node in body.graph().nodes() {
                assert!(!is_trouble(node.signature()), "{signature:?} is lowered as {body:?}");
            }
            Some(interp::run_body_replicated(Arithmetic::REFERENCE, &body, operands).expect("runs"))
        }
        // The body of a composite is lowered like everything else.
        Lowered::Inline(body) if signature.op() == OpCode::Composite => {
            Some(interp::run_body_replicated(Arithmetic::REFERENCE, &body, operands).expect("runs"))
        }
        Lowered::Inline(body) => Some(run_in_turn(&body, operands)),
    }
}

/// A sampled call of the op with its operands on each replica.
fn sampled(def: &'static OpDef, seed: u64) -> Option<(Signature, Vec<Vec<Arc<Literal>>>)> {
    let mut entropy = Seeded::new(seed);
    let replicas = if matches!(def.replicas, Replicas::Apart) { 1 } else { 1 + seed as usize % 4 };
    // Padding that a legalization writes out is multiplied by the kernel like other elements, which
    // shows if the kernel is not finite. With an inconsistent comparator, the order depends on the
    // algorithm.
    let portable = matches!(def.code, OpCode::DynamicConv | OpCode::Sort);
    let aim = if portable { Aim::Portable } else { Aim::Everything };
    let sampler = Sampler::new(def, &mut entropy, &[], DTypeSet::ANY, aim);
    let sample = sampler.replicas(replicas).sample()?;
    let mut data = |operand: &SampleOperand| match operand {
        SampleOperand::Pool(_) => unreachable!("the pool is empty"),
        SampleOperand::Fresh(ty, domain) => Arc::new(fill(&mut entropy, ty, *domain, aim)),
        SampleOperand::Given(data) => data.clone(),
    };
    let operands: Vec<Vec<Arc<Literal>>> =
        (0..replicas).map(|_| sample.operands.iter().map(&mut data).collect()).collect();
    let types: Vec<TensorType> = operands[0].iter().map(|data| data.ty().clone()).collect();
    let signature = Signature::infer(def.code, sample.attrs, &sample.bodies, &types);
    Some((signature.expect("a sample is accepted"), operands))
}

/// Ops whose legalization rounds more often than the interpreter, and the allowed difference in
/// units in the last place.
const ROUNDED: &[(OpCode, u128)] = &[
    (OpCode::Acos, 1),
    (OpCode::Acosh, 1),
    (OpCode::Asin, 1),
    (OpCode::Asinh, 1),
    (OpCode::Atanh, 1),
    // For complex numbers, in several ops.
    (OpCode::Cbrt, 16),
    (OpCode::ExponentialMinusOne, 1),
    (OpCode::LogPlusOne, 1),
    // The legalization computes a factorial as the exponential of its logarithm.
    (OpCode::Polygamma, 256),
    (OpCode::Logistic, 1),
    (OpCode::Sinh, 8),
    (OpCode::Cosh, 8),
    (OpCode::Cosine, 8),
    (OpCode::Sine, 8),
    (OpCode::Tan, 16),
    (OpCode::Tanh, 16),
];

/// Whether two results of an op that rounds are equal within some units in the last place of each
/// element, except for effects of the order of operations: the bits of a NaN, the sign of a sum
/// that is zero, and for functions of complex numbers an infinity in place of a product of a large
/// and a small factor.
fn are_close(def: &OpDef, result: &Literal, wanted: &Literal, most: u128) -> bool {
    let part = result.dtype().part();
    let parts = |literal: &Literal| -> Vec<Bits> {
        let whole = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | Bits::from(byte));
        literal.bytes().chunks(part.size()).map(whole).collect()
    };
    let is = |bits, what: fn(f64) -> bool| part.is_float() && what(to_f64(part, bits));
    let both = |a, b, what| is(a, what) && is(b, what);
    let sums = def.fusibility == Fusibility::Contraction || result.dtype().is_complex();
    // In f32 a number may round to zero, which `f8E8M0FNU` turns into NaN.
    let vanishes = |a, b| part == DType::F8E8M0FNU && is(a, f64::is_nan) && b == 0;
    let overflows = |a| result.dtype().is_complex() && is(a, f64::is_infinite);
    let close = |(a, b): (Bits, Bits)| {
        a.abs_diff(b) <= most
            || both(a, b, f64::is_nan)
            || (sums && both(a, b, |x| x == 0.0))
            || overflows(a)
            || vanishes(a, b)
    };
    parts(result).into_iter().zip(parts(wanted)).all(close)
}

#[test]
fn the_expanded_graph_computes_the_same_bits() {
    let mut expanded: BTreeMap<&str, usize> = BTreeMap::new();
    let mut loops: BTreeMap<&str, usize> = BTreeMap::new();
    for def in &OPS {
        for seed in 0..400 {
            let Some((signature, operands)) = sampled(def, seed) else { continue };
            let Some(results) = run_lowered(&signature, &operands) else {
                assert!(!is_trouble(&signature), "seed {seed}: {signature:?} is lowered as itself");
                continue;
            };
            *expanded.entry(def.name).or_default() += 1;
            if let Lowered::Body(body) = (signature.def().lower)(&signature.call()) {
                let is_loop = |node: &Node| node.signature().op() == OpCode::While;
                if body.graph().nodes().iter().any(is_loop) {
                    *loops.entry(def.name).or_default() += 1;
                }
            }
            let wanted = interp::call_replicated(Arithmetic::REFERENCE, &signature, &operands).expect("runs");
            let most = ROUNDED.iter().find(|(op, _)| *op == def.code).map_or(0, |(_, most)| *most);
            assert_eq!(results.len(), wanted.len(), "seed {seed}: {signature:?}");
            for (results, wanted) in results.iter().zip(&wanted) {
                for (result, wanted) in results.iter().zip(wanted) {
                    assert_eq!(result.ty(), wanted.ty(), "seed {seed}: {signature:?}");
                    let rounds = def.rounding == Rounding::Rounded;
                    let same = **result == *wanted || (rounds && are_close(def, result, wanted, most));
                    assert!(same, "seed {seed}: {signature:?} of {operands:?} is {result:?}, not {wanted:?}");
                }
                assert_eq!(results.len(), wanted.len(), "seed {seed}: {signature:?}");
            }
        }
    }
    let wanted = [
        "abs",
        "acos",
        "acosh",
        "add",
        "all_gather",
        "all_reduce",
        "all_to_all",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "batch_norm_grad",
        "batch_norm_inference",
        "batch_norm_training",
        "bessel_i1e",
        "bitcast_convert",
        "cbrt",
        "ceil",
        "cholesky",
        "clamp",
        "collective_broadcast",
        "collective_permute",
        "composite",
        "conj",
        "constant",
        "convert",
        "convolution",
        "cosh",
        "cosine",
        "count_leading_zeros",
        "digamma",
        "divide",
        "dot_general",
        "dynamic_broadcast_in_dim",
        "dynamic_conv",
        "dynamic_gather",
        "dynamic_iota",
        "dynamic_pad",
        "dynamic_reshape",
        "dynamic_slice",
        "dynamic_update_slice",
        "erf",
        "erf_inv",
        "erfc",
        "exponential",
        "exponential_minus_one",
        "floor",
        "imag",
        "iota",
        "lgamma",
        "log",
        "log_plus_one",
        "logistic",
        "map",
        "maximum",
        "minimum",
        "mulhi",
        "multiply",
        "negate",
        "next_after",
        "pad",
        "polygamma",
        "power",
        "ragged_dot",
        "real",
        "reduce",
        "reduce_precision",
        "reduce_scatter",
        "reduce_window",
        "remainder",
        "rng",
        "rng_bit_generator",
        "round_nearest_afz",
        "round_nearest_even",
        "rsqrt",
        "scan",
        "scatter",
        "select_and_scatter",
        "sign",
        "sine",
        "sinh",
        "slice",
        "sort",
        "sqrt",
        "square",
        "subtract",
        "tan",
        "tanh",
        "top_k",
        "triangular_solve",
        "zeta",
    ];
    assert!(expanded.keys().copied().eq(wanted), "{expanded:?}");
    assert!(expanded.values().all(|&count| count >= 5), "too few calls were expanded: {expanded:?}");
    let wanted = ["map", "reduce", "reduce_window", "scan", "scatter", "select_and_scatter", "sort"];
    assert!(loops.keys().copied().eq(wanted), "{loops:?}");
    assert!(loops.values().all(|&count| count >= 5), "too few bodies became loops: {loops:?}");
}

/// Quotients that trap on the machine are not computed by it.
#[test]
fn constant_division_is_mended() {
    let data = |data: [i32; 5]| Arc::new(Literal::from_slice(&[5], &data).expect("fits"));
    let operands = [data([7, 7, 7, i32::MIN, i32::MIN]), data([2, 0, -1, -1, 0])];
    let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
    for (op, wanted) in
        [(OpCode::Divide, [3, -1, -7, i32::MIN, -1]), (OpCode::Remainder, [1, 7, 0, 0, i32::MIN])]
    {
        let signature = Signature::infer(op, Attrs::none(), &[], &types).expect("fits");
        let results = run_lowered(&signature, &[operands.to_vec()]).expect("it is expanded");
        assert_eq!(results[0][0].to_vec::<i32>().expect("i32"), wanted, "{op}");
        let Lowered::Body(body) = (signature.def().lower)(&signature.call()) else { panic!("a body") };
        let all = interp::run(body.graph(), &operands).expect("runs");
        let node = body.graph().nodes().iter().find(|node| node.signature().op() == op);
        let Ref::Result(divisor) = node.expect("it still divides").operands()[1] else { panic!("a result") };
        let divisor = all[divisor as usize].to_vec::<i32>().expect("i32");
        assert!(!divisor.contains(&0) && !divisor.contains(&-1), "{op} by {divisor:?}");
    }
}
