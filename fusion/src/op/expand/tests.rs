//! Expansions are held to the interpreter: what a call is lowered as computes the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::dtype::DTypeSet;
use crate::interp;
use crate::limits::MAX_BODY_DEPTH;
use crate::literal::Literal;
use crate::op::rules::indexing::IndexDims;
use crate::op::{Aim, OPS, OpDef, SampleOperand, Sampler, Seeded, Signature, fill};

/// Whether a call is one that XLA gets wrong; each is listed with its expansion.
fn is_trouble(signature: &Signature) -> bool {
    let view = signature.attrs().view();
    let negative = |index| view.pairs(index).iter().any(|&(low, high)| low < 0 || high < 0);
    let (from, to) = (signature.operands().first(), signature.results().last());
    let dtypes = (from.map(TensorType::dtype), to.map(TensorType::dtype));
    let converts = || dtypes.0 != signature.results().first().map(TensorType::dtype);
    let uncallable = || !signature.bodies().iter().all(|body| loops::is_scalar_code(body));
    let floats = |types: &[TensorType]| combine::common_float(types.iter().map(TensorType::dtype)).is_some();
    match signature.op() {
        OpCode::Reduce => converts() || uncallable() || floats(signature.results()),
        OpCode::Scatter => {
            let components = IndexDims::of(view).index_map.len();
            let scalar = signature.operands()[0].rank() == 0;
            converts() || uncallable() || scalar || components == 0 || signature.results().len() > 1
        }
        OpCode::ReduceWindow => negative(4) || converts() || uncallable(),
        OpCode::SelectAndScatter => negative(2) || dtypes.0 != dtypes.1 || uncallable(),
        OpCode::Map => uncallable() || floats(signature.operands()),
        OpCode::Sort => uncallable(),
        OpCode::Slice => view.ints(2).contains(&i64::MAX),
        OpCode::BitcastConvert => (dtypes.0 == Some(DType::Bool)) != (dtypes.1 == Some(DType::Bool)),
        OpCode::RngBitGenerator => dtypes.1.is_some_and(|bits| bits.class() != DTypeClass::Unsigned),
        _ => false,
    }
}

/// The results of what a call is lowered as; `None` for the call itself.
fn run_lowered(signature: &Signature, operands: &[Arc<Literal>]) -> Option<Vec<Arc<Literal>>> {
    match (signature.def().lower)(&signature.call()) {
        Lowered::Itself => None,
        Lowered::As(op) => {
            let as_other =
                Signature::infer(op, signature.attrs().clone(), signature.bodies(), signature.operands())
                    .expect("the other op takes the call");
            let results = interp::call(&as_other, operands).expect("runs");
            Some(results.into_iter().map(Arc::new).collect())
        }
        Lowered::Body(body) => {
            for node in body.graph().nodes() {
                assert!(!is_trouble(node.signature()), "{signature:?} is lowered as {body:?}");
            }
            Some(interp::run_body(&body, operands).expect("runs"))
        }
    }
}

/// A sampled call of the op with its operands.
fn sampled(def: &'static OpDef, seed: u64) -> Option<(Signature, Vec<Arc<Literal>>)> {
    let mut entropy = Seeded::new(seed);
    // A comparator that contradicts itself leaves the order to the algorithm.
    let aim = if def.code == OpCode::Sort { Aim::Portable } else { Aim::Everything };
    let sample = Sampler::new(def, &mut entropy, &[], DTypeSet::ANY, aim).sample()?;
    let mut data = |operand: &SampleOperand| match operand {
        SampleOperand::Pool(_) => unreachable!("the pool is empty"),
        SampleOperand::Fresh(ty, domain) => Arc::new(fill(&mut entropy, ty, *domain, Aim::Everything)),
        SampleOperand::Given(data) => data.clone(),
    };
    let operands: Vec<Arc<Literal>> = sample.operands.iter().map(&mut data).collect();
    let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
    let signature = Signature::infer(def.code, sample.attrs, &sample.bodies, &types);
    Some((signature.expect("a sample is accepted"), operands))
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
                let is_loop = |node: &crate::Node| node.signature().op() == OpCode::While;
                if body.graph().nodes().iter().any(is_loop) {
                    *loops.entry(def.name).or_default() += 1;
                }
            }
            let wanted = interp::call(&signature, &operands).expect("runs");
            let results: Vec<&Literal> = results.iter().map(|result| &**result).collect();
            assert_eq!(
                results,
                wanted.iter().collect::<Vec<_>>(),
                "seed {seed}: {signature:?} of {operands:?}"
            );
        }
    }
    let wanted = [
        "add",
        "bitcast_convert",
        "ceil",
        "constant",
        "convolution",
        "count_leading_zeros",
        "divide",
        "floor",
        "map",
        "multiply",
        "reduce",
        "reduce_precision",
        "reduce_window",
        "remainder",
        "rng_bit_generator",
        "scatter",
        "select_and_scatter",
        "slice",
        "sort",
    ];
    assert!(expanded.keys().copied().eq(wanted), "{expanded:?}");
    assert!(expanded.values().all(|&count| count >= 15), "too few calls were expanded: {expanded:?}");
    let wanted = ["map", "reduce", "reduce_window", "scatter", "select_and_scatter", "sort"];
    assert!(loops.keys().copied().eq(wanted), "{loops:?}");
    assert!(loops.values().all(|&count| count >= 15), "too few bodies became loops: {loops:?}");
}

/// The quotients that the machine does not have, and that it is not asked for.
#[test]
fn constant_division_is_mended() {
    let data = |data: [i32; 5]| Arc::new(Literal::from_slice(&[5], &data).expect("fits"));
    let operands = [data([7, 7, 7, i32::MIN, i32::MIN]), data([2, 0, -1, -1, 0])];
    let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
    for (op, wanted) in
        [(OpCode::Divide, [3, -1, -7, i32::MIN, -1]), (OpCode::Remainder, [1, 7, 0, 0, i32::MIN])]
    {
        let signature = Signature::infer(op, Attrs::none(), &[], &types).expect("fits");
        let results = run_lowered(&signature, &operands).expect("it is expanded");
        assert_eq!(results[0].to_vec::<i32>().expect("i32"), wanted, "{op}");
        let Lowered::Body(body) = (signature.def().lower)(&signature.call()) else { panic!("a body") };
        let all = interp::run(body.graph(), &operands).expect("runs");
        let node = body.graph().nodes().iter().find(|node| node.signature().op() == op);
        let Ref::Result(divisor) = node.expect("it still divides").operands()[1] else { panic!("a result") };
        let divisor = all[divisor as usize].to_vec::<i32>().expect("i32");
        assert!(!divisor.contains(&0) && !divisor.contains(&-1), "{op} by {divisor:?}");
    }
}

/// Padding that cuts off more than there is.
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

/// A body as deep as bodies may be is still one that XLA need not call.
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

/// Values in between that would be too large leave the op as it is.
#[test]
fn an_expansion_beyond_the_limits_is_left_out() {
    let ty = TensorType::of(DType::Bool, &[1 << 56, 64]).expect("within the limits");
    let signature = Signature::infer(OpCode::BitcastConvert, attrs::convert(DType::U64), &[], &[ty]);
    let signature = signature.expect("within the limits");
    assert_eq!((signature.def().lower)(&signature.call()), Lowered::Itself);
}
