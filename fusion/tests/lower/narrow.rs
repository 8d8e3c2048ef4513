//! Functions that carry narrow types in wider ones agree with the interpreter: they compute the
//! same bits as the original ops.

use std::collections::BTreeMap;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, can_lift};
use fuseline_fusion::element::{Elements, Store, to_f64};
use fuseline_fusion::limits::MAX_ELEMS;
use fuseline_fusion::lower::passes::{Plain, carried, carrier, concerns, has_narrow, is_narrow, plain};
use fuseline_fusion::lower::{Aliases, Numerics, ScalarPack, Target, lower};
use fuseline_fusion::op::{Fusibility, OPS, OpDef, Operands, Replicas, attrs};
use fuseline_fusion::{Attrs, DType, DTypeSet, Graph, Literal, OpCode, Ref, Scalar, Signature, TensorType};
use fuseline_interp::{self as interp, Arithmetic};
use fuseline_testgen::{Aim, ProgramOptions, Sample, SampleOperand, Sampler, Seeded, fill, sampled_region};

use super::Data;

/// A region of one call, and of a conversion of each narrow result to a wider type: at the edges of
/// a function, a carried value out of range (SUBBYTE-1) would be corrected.
fn region_of(signature: &Arc<Signature>, lifts: bool) -> CanonRegion {
    let mut graph = Graph::new();
    let params = signature.operands().iter().map(|ty| graph.param(ty.clone())).collect();
    for result in graph.push_signature(signature.clone(), params) {
        if graph.type_of(result).is_some_and(|ty| is_narrow(ty.dtype())) {
            graph.push(OpCode::Convert, attrs::convert(DType::F64), &[], &[result]).expect("a conversion");
        }
    }
    let lifted = graph.params().iter().map(|ty| lifts && can_lift(ty)).collect();
    CanonRegion::new(graph, lifted)
}

/// The lowered region, which must have no narrow type except at its edges (SUBBYTE-3) and pass the
/// verifier.
fn carried_region(region: &CanonRegion) -> Plain {
    let outputs: Vec<u32> = (0..region.graph().result_count() as u32).collect();
    let carried = carried(plain(region, &outputs, &ScalarPack::of(Target::Any, region, Numerics::Fast), &[]));
    let graph = carried.function.graph();
    for node in graph.nodes().iter().filter(|node| concerns(node.signature())) {
        assert_eq!(node.signature().op(), OpCode::Convert, "{:?} in {graph:?}", node.signature());
        let to = node.signature().results()[0].dtype();
        match node.operands()[0] {
            Ref::Param(_) => assert_eq!(to, carrier(node.signature().operands()[0].dtype())),
            value => assert_eq!(graph.type_of(value).map(TensorType::dtype), Some(carrier(to))),
        }
    }
    assert_eq!(carried.origins.len(), graph.nodes().len());
    assert!(carried.origins.is_sorted(), "{:?}", carried.origins);
    let module = lower(region, &outputs, &Aliases::none(), Numerics::Fast);
    module.verify().unwrap_or_else(|error| panic!("{error} for {:?}", region.graph()));
    carried
}

/// The results of a region's carried function on each replica.
fn run(region: &CanonRegion, operands: &[Data]) -> Vec<Data> {
    super::run(region, Numerics::Fast, &carried_region(region), operands)
}

/// Whether two results of a call are equal, except for the sign of a sum that is zero, which
/// depends on the order of summation.
fn is_same(def: &OpDef, found: &Literal, wanted: &Literal) -> bool {
    let dtype = wanted.dtype();
    if def.fusibility != Fusibility::Contraction || !dtype.is_float() {
        return found == wanted;
    }
    let (elements, others) = (Elements::of(found), Elements::of(wanted));
    let is_zero = |bits| to_f64(dtype, bits) == 0.0;
    found.ty() == wanted.ty()
        && (0..elements.len())
            .map(|index| (elements.get(index), others.get(index)))
            .all(|(a, b)| a == b || (is_zero(a) && is_zero(b)))
}

/// Compares the carried call with the call.
fn check(signature: &Arc<Signature>, lifts: bool, operands: &[Data]) {
    let region = region_of(signature, lifts);
    let wanted = interp::run_replicated(Arithmetic::REFERENCE, region.graph(), operands).expect("runs");
    let found = run(&region, operands);
    for (found, wanted) in found.iter().zip(&wanted) {
        let pairs = found.iter().zip(wanted);
        assert!(
            found.len() == wanted.len()
                && pairs.clone().all(|(found, wanted)| is_same(signature.def(), found, wanted)),
            "{signature:?} {:?} of {operands:?} is {found:?}, not {wanted:?}",
            signature.attrs()
        );
    }
}

/// A sampled call on data of these types, with as many replicas as its row needs.
fn sampled(def: &'static OpDef, seed: u64, dtypes: DTypeSet) -> Option<(Arc<Signature>, Vec<Data>)> {
    let mut entropy = Seeded::new(seed);
    let replicas = if matches!(def.replicas, Replicas::Apart) { 1 } else { 1 + seed as usize % 4 };
    let aim = Aim::Portable;
    let sampler = Sampler::new(def, &mut entropy, &[], dtypes, aim);
    let Sample { operands, attrs, bodies } = sampler.replicas(replicas).sample()?;
    let mut data = |operand: &SampleOperand| match operand {
        SampleOperand::Pool(_) => unreachable!("the pool is empty"),
        SampleOperand::Fresh(ty, domain) => Arc::new(fill(&mut entropy, ty, *domain, aim)),
        SampleOperand::Given(data) => data.clone(),
    };
    let operands: Vec<Data> = (0..replicas).map(|_| operands.iter().map(&mut data).collect()).collect();
    let types: Vec<TensorType> = operands[0].iter().map(|data| data.ty().clone()).collect();
    let signature = Signature::infer(def.code, attrs, &bodies, &types).expect("a sample is accepted");
    Some((Arc::new(signature), operands))
}

/// Every row that takes narrow types, alone or among others.
#[test]
fn every_op_is_carried_as_what_it_is() {
    let mut calls = BTreeMap::<&str, usize>::new();
    for def in &OPS {
        let count = calls.entry(def.name).or_default();
        for seed in 0..240 {
            // The second half includes other types that a row needs.
            let dtypes = if seed % 2 == 0 { DTypeSet::NARROW } else { DTypeSet::ANY };
            let Some((signature, operands)) = sampled(def, seed, dtypes) else { continue };
            if concerns(&signature) {
                *count += 1;
                check(&signature, seed % 3 == 0, &operands);
            }
        }
    }
    let others = [OpCode::If, OpCode::Case, OpCode::Select].map(|op| op.def());
    let takers = OPS.iter().filter(|def| def.dtypes.iter().any(is_narrow)).chain(others);
    for def in takers {
        assert!(calls[def.name] >= 20, "{} is hardly called: {calls:?}", def.name);
    }
}

/// Every pattern of a narrow type, and each pair of patterns for ops of two operands.
#[test]
fn every_element_goes_through_every_elementwise_op() {
    let mut calls = 0;
    for def in &OPS {
        let count = match def.operands {
            Operands::Fixed(names) if def.fusibility == Fusibility::Elementwise && def.attrs.is_empty() => {
                names.len()
            }
            _ => continue,
        };
        for dtype in def.dtypes.iter().filter(|&dtype| is_narrow(dtype)) {
            let (bits, patterns) = (dtype.bits(), 1u64 << dtype.bits());
            let total = patterns.pow(count as u32);
            let ty = TensorType::of(dtype, &[total]).expect("small");
            let operand = |place: u32| {
                let pattern = |index: u64| u128::from(index >> (place * bits) & (patterns - 1));
                Arc::new(Store::collect(ty.clone(), (0..total).map(pattern)).finish())
            };
            let operands: Data = (0..count as u32).map(operand).collect();
            let types = vec![ty.clone(); count];
            let signature = Signature::infer(def.code, Attrs::none(), &[], &types).expect("the row takes it");
            check(&Arc::new(signature), false, &[operands]);
            calls += 1;
        }
    }
    assert!(calls > 100, "only {calls} ops and types");
}

/// Numbers between those of `f4E2M1FN`, halfway between them and close to that, and far outside.
fn awkward() -> Vec<f64> {
    let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let edges = numbers.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let near = |x: f64| {
        let (a, b) = (x as f32, x);
        [a.next_up(), a.next_down(), a]
            .into_iter()
            .map(f64::from)
            .chain([b.next_up(), b.next_down(), b * 1.02, b * 0.98])
            .collect::<Vec<f64>>()
    };
    let ends = [5.0, 7.0, 7.5, 8.0, 15.0, 15.5, 16.0, 127.0, 200.0, 1e6, 1e-6, 1e-40, 1e30, f64::INFINITY];
    let positive: Vec<f64> = numbers.into_iter().chain(edges).flat_map(near).chain(ends).collect();
    let negative = positive.iter().map(|x| -x);
    positive.iter().copied().chain(negative).chain([f64::NAN, -0.0]).collect()
}

#[test]
fn numbers_of_every_type_become_narrow_as_the_table_says() {
    let data = awkward();
    for from in DType::ALL {
        let ty = TensorType::of(from, &[data.len() as u64]).expect("small");
        let part = |x: &f64| Scalar::from_f64(from.part(), *x).map_or(0, |scalar| scalar.bits().into());
        let given = Arc::new(Store::collect(ty.clone(), data.iter().map(part)).finish());
        for to in DType::ALL.into_iter().filter(|&to| is_narrow(from) || is_narrow(to)) {
            let types = std::slice::from_ref(&ty);
            let signature = Signature::infer(OpCode::Convert, attrs::convert(to), &[], types);
            check(&Arc::new(signature.expect("any type becomes any other")), false, &[vec![given.clone()]]);
        }
    }
}

/// Programs with narrow values, loops, branches and functions of elements.
#[test]
fn programs_are_carried_as_what_they_are() {
    let options = ProgramOptions { dtypes: DTypeSet::NARROW, ..ProgramOptions::new(Aim::Portable) };
    let mut carried = 0;
    for seed in 0..300 {
        let (region, operands) = sampled_region(options, seed, 8);
        let wanted = interp::run(region.graph(), &operands).expect("runs");
        carried += usize::from(has_narrow(region.graph()));
        let found = &run(&region, &[operands])[0];
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found, wanted, "seed {seed}: result {index} of {:?}", region.graph());
        }
    }
    assert!(carried > 200, "only {carried} programs have narrow types");
}

/// Functions without narrow types are unchanged. The largest possible tensors have a carrier.
#[test]
fn other_functions_stay_as_they_are() {
    let of = |ty: TensorType| {
        let mut graph = Graph::new();
        let x = graph.param(ty);
        graph.push(OpCode::Add, Attrs::none(), &[], &[x, x]).expect("adds");
        CanonRegion::new(graph, Box::new([false]))
    };
    let lowered = |dtype, size| {
        let region = of(TensorType::of(dtype, &[size]).expect("within the limits"));
        let plain = || plain(&region, &[0], &ScalarPack::of(Target::Any, &region, Numerics::Fast), &[]);
        (carried(plain()).function, plain().function)
    };
    let bytes = lowered(DType::I8, 4);
    assert_eq!(bytes.0, bytes.1);
    for size in [4, MAX_ELEMS] {
        let narrow = lowered(DType::F4E2M1FN, size);
        assert_ne!(narrow.0, narrow.1, "{size}");
    }
}
