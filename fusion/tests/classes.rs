//! Regions at several sizes, and the padded regions that compute them: equal results, whatever the
//! padding contains.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::op::attrs::{self, DotDimensionNumbers};
use fuseline_fusion::op::{OpDef, neutral};
use fuseline_fusion::program::Check;
use fuseline_fusion::shape_class::{Padded, ShapeClass, ShapeClassError, bucket, family_of, resized};
use fuseline_fusion::{
    AttrValue, Attrs, Body, DType, Graph, Literal, OpCode, Ref, Scalar, Shape, Signature, TensorType,
};
use fuseline_interp as interp;
use fuseline_testgen::{Aim, Domain, Entropy, Seeded, fill};
use proptest::test_runner::TestCaseError;
use support::{Attempt, choices, from, graph_of, place, runner, sampled};

fn canon(graph: Graph) -> Arc<CanonRegion> {
    let lifted = graph.params().iter().map(|_| false).collect();
    Arc::new(CanonRegion::new(graph, lifted))
}

/// Data in a larger type, with arbitrary padding.
fn padded_data(entropy: &mut dyn Entropy, data: &Literal, ty: &TensorType) -> Arc<Literal> {
    let mut bytes = fill(entropy, ty, Domain::Any, Aim::Everything).into_bytes();
    let inside = resized(&vec![1; data.bytes().len()], data.ty(), ty);
    let moved = resized(data.bytes(), data.ty(), ty);
    for ((byte, inside), moved) in bytes.iter_mut().zip(inside).zip(moved) {
        if inside == 1 {
            *byte = moved;
        }
    }
    Arc::new(Literal::from_bytes(ty.clone(), bytes).expect("elements of both"))
}

/// Runs a region and its padded form, and compares.
fn check(
    entropy: &mut dyn Entropy,
    region: &CanonRegion,
    padded: &Padded,
    data: &[Arc<Literal>],
) -> Result<(), TestCaseError> {
    let run = |graph: &Graph, data: &[Arc<Literal>]| {
        interp::run(graph, data).map_err(|error| TestCaseError::fail(error.to_string()))
    };
    let expected = run(region.graph(), data)?;
    let types = padded.region().graph().params();
    let mut wide: Vec<Arc<Literal>> =
        data.iter().zip(types).map(|(data, ty)| padded_data(entropy, data, ty)).collect();
    wide.extend(padded.scalars().iter().map(|scalar| Arc::new(scalar.to_literal())));
    let found = run(padded.region().graph(), &wide)?;
    if padded.results().len() != expected.len() {
        return Err(TestCaseError::fail(format!(
            "{} results of {:?}",
            padded.results().len(),
            region.graph()
        )));
    }
    for (expected, &result) in expected.iter().zip(padded.results()) {
        let found = &found[result as usize];
        let cut = resized(found.bytes(), found.ty(), expected.ty());
        let cut = Literal::from_bytes(expected.ty().clone(), cut).expect("a part of it");
        let is_same = if padded.is_masked() {
            // Added zeros change nothing but the sign of zero.
            Check::Exact.compare(&cut, expected).map_err(|error| error.to_string())
        } else if cut == **expected {
            Ok(())
        } else {
            Err("other bits".to_owned())
        };
        if let Err(error) = is_same {
            let graph = region.graph();
            let op = graph.nodes()[0].signature();
            let message = format!("{error}: {op:?}\n{cut:?}\n{expected:?}\n{:?}", padded.region().graph());
            return Err(TestCaseError::fail(message));
        }
    }
    Ok(())
}

/// A sampled call with some of the sizes `was` changed to `is`. `choice` selects them, in a fixed
/// order.
fn at_size(signature: &Signature, was: u64, is: u64, choice: &mut dyn FnMut() -> bool) -> Option<Signature> {
    let mut size = |size: u64| if size == was && choice() { is } else { size };
    let mut attempt = Attempt::of(signature);
    for ty in &mut attempt.operands {
        let dims: Vec<u64> = ty.dims().iter().map(|&dim| size(dim)).collect();
        *ty = TensorType::of(ty.dtype(), &dims).ok()?;
    }
    let op = signature.op();
    let value = |value: &AttrValue| match value {
        AttrValue::Shape(shape) => {
            let dims: Vec<u64> = shape.dims().iter().map(|&dim| size(dim)).collect();
            AttrValue::Shape(Shape::new(&dims).unwrap_or_else(|_| shape.clone()))
        }
        AttrValue::Ints(ints) if matches!(op, OpCode::Slice | OpCode::DynamicSlice) => {
            AttrValue::Ints(ints.iter().map(|&int| size(int as u64) as i64).collect())
        }
        AttrValue::Dense(data) if op == OpCode::Constant => {
            let dims: Vec<u64> = data.dims().iter().map(|&dim| size(dim)).collect();
            let splat = &data.bytes()[..data.bytes().len().min(data.dtype().size())];
            let ty = TensorType::of(data.dtype(), &dims);
            let made = ty.ok().and_then(|ty| {
                let bytes = splat.repeat(ty.elems().0 as usize);
                Literal::from_bytes(ty, bytes).ok()
            });
            AttrValue::Dense(made.map_or_else(|| data.clone(), Arc::new))
        }
        other => other.clone(),
    };
    attempt.attrs = attempt.attrs.values().iter().map(value).collect();
    attempt.infer().ok()
}

/// Every op at several sizes: no class, or equal results.
fn one_op(def: &'static OpDef, list: &[u32]) -> Result<bool, TestCaseError> {
    let mut entropy = from(list);
    let Some(call) = sampled(def, &mut entropy, Aim::Everything) else { return Ok(false) };
    let signature = &call.signature;
    let sizes = signature.operands().iter().chain(signature.results()).flat_map(TensorType::dims);
    let sizes: Vec<u64> = sizes.copied().filter(|&size| size > 0).collect();
    if sizes.is_empty() || call.replicas.len() != 1 {
        return Ok(false);
    }
    let was = sizes[place(&mut entropy, sizes.len())];
    // All equal sizes, or some of them.
    let all = entropy.draw(2) == 0;
    let chosen: Vec<bool> = (0..64).map(|_| all || entropy.draw(2) == 0).collect();
    let mut regions = Vec::new();
    for is in [was, was + 1 + u64::from(entropy.draw(4)), was + 6 + u64::from(entropy.draw(8))] {
        let mut chosen = chosen.iter().copied();
        let Some(signature) = at_size(signature, was, is, &mut || chosen.next().unwrap_or(true)) else {
            return Ok(false);
        };
        regions.push(canon(graph_of(&Arc::new(signature))));
    }
    let Ok(class) = ShapeClass::of(&regions[0], &regions[1]) else { return Ok(false) };
    let buckets: [&dyn Fn(u64) -> u64; 3] = [&bucket, &|size| size + 1, &|size| size];
    let mut any = false;
    for region in &regions {
        let bucket = buckets[entropy.draw(3) as usize];
        let Ok(padded) = class.pad(region, bucket) else { continue };
        any = true;
        let params = region.graph().params();
        let mut data = Seeded::new(list.iter().map(|&x| u64::from(x)).sum());
        let data: Vec<Arc<Literal>> =
            params.iter().map(|ty| Arc::new(fill(&mut data, ty, Domain::Any, Aim::Everything))).collect();
        check(&mut entropy, region, &padded, &data)?;
    }
    Ok(any)
}

/// O1 for each row of the op table. Each op with a rule is shown to use it.
#[test]
fn every_op_is_padded_right_or_not_at_all() {
    let found = RefCell::new(BTreeMap::<&str, u32>::new());
    for &op in OpCode::ALL {
        let def = op.def();
        runner(400)
            .run(&choices(220), |list| {
                if one_op(def, &list)? {
                    *found.borrow_mut().entry(def.name).or_default() += 1;
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", def.name));
    }
    let found = found.into_inner();
    println!("{found:?}");
    for op in [
        OpCode::Add,
        OpCode::Tanh,
        OpCode::Select,
        OpCode::Clamp,
        OpCode::Compare,
        OpCode::Convert,
        OpCode::BitcastConvert,
        OpCode::Constant,
        OpCode::Iota,
        OpCode::BroadcastInDim,
        OpCode::Reshape,
        OpCode::Transpose,
        OpCode::Slice,
        OpCode::Concatenate,
        OpCode::Pad,
        OpCode::Reverse,
        OpCode::DynamicSlice,
        OpCode::DynamicUpdateSlice,
        OpCode::Reduce,
        OpCode::DotGeneral,
        OpCode::Sort,
        OpCode::Gather,
        OpCode::Cholesky,
        OpCode::TriangularSolve,
    ] {
        assert!(
            found.get(op.name()).is_some_and(|&count| count > 3),
            "{op} was hardly ever padded: {found:?}"
        );
    }
}

/// A graph and functions that add to it.
#[derive(Default)]
struct Writer(Graph);

impl Writer {
    fn param(&mut self, dims: &[u64]) -> Ref {
        self.0.param(TensorType::of(DType::F32, dims).unwrap())
    }

    fn op(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Ref {
        self.0.push(op, attrs, &[], operands).unwrap()[0]
    }

    fn dims(&self, value: Ref) -> Vec<u64> {
        self.0.type_of(value).unwrap().dims().to_vec()
    }

    fn reduce(&mut self, op: OpCode, value: Ref, axis: i64) -> Ref {
        let mut body = Graph::new();
        let params = [0, 1].map(|_| body.param(TensorType::scalar(DType::F32)));
        let both = body.push(op, Attrs::none(), &[], &params).unwrap()[0];
        let body = Arc::new(Body::new(body, &[both]).unwrap());
        let init = attrs::constant(Arc::new(neutral(op, DType::F32)));
        let init = self.op(OpCode::Constant, init, &[]);
        self.0.push(OpCode::Reduce, attrs::dimensions(&[axis]), &[body], &[value, init]).unwrap()[0]
    }

    /// Broadcasts one value for each row along the row.
    fn along(&mut self, rows: Ref, like: Ref) -> Ref {
        let shape = Shape::new(&self.dims(like)).unwrap();
        let axes: Vec<i64> = (0..self.dims(rows).len() as i64).collect();
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &axes), &[rows])
    }

    fn dot(&mut self, a: Ref, b: Ref, over: [i64; 2]) -> Ref {
        let dims = DotDimensionNumbers {
            lhs_batching: &[0],
            rhs_batching: &[0],
            lhs_contracting: &over[..1],
            rhs_contracting: &over[1..],
        };
        self.op(OpCode::DotGeneral, attrs::dot_general(dims, DType::F32), &[a, b])
    }

    fn number(&mut self, value: f32, like: Ref) -> Ref {
        let scalar = self.op(OpCode::Constant, attrs::constant(Arc::new(Literal::scalar(value))), &[]);
        let shape = Shape::new(&self.dims(like)).unwrap();
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[scalar])
    }
}

/// A decoder step: one more key and value, a softmax over all so far, and their mean.
fn decode(length: u64) -> Arc<CanonRegion> {
    let mut writer = Writer::default();
    let query = writer.param(&[2, 1, 4]);
    let [keys, values] = [0, 1].map(|_| writer.param(&[2, length, 4]));
    let [key, value] = [0, 1].map(|_| writer.param(&[2, 1, 4]));
    let keys = writer.op(OpCode::Concatenate, attrs::concatenate(1), &[keys, key]);
    let values = writer.op(OpCode::Concatenate, attrs::concatenate(1), &[values, value]);
    let scores = writer.dot(query, keys, [2, 2]);
    let most = writer.reduce(OpCode::Maximum, scores, 2);
    let most = writer.along(most, scores);
    let scores = writer.op(OpCode::Subtract, Attrs::none(), &[scores, most]);
    let scores = writer.op(OpCode::Exponential, Attrs::none(), &[scores]);
    let sum = writer.reduce(OpCode::Add, scores, 2);
    let sum = writer.along(sum, scores);
    let weights = writer.op(OpCode::Divide, Attrs::none(), &[scores, sum]);
    writer.dot(weights, values, [2, 1]);
    let sum = writer.reduce(OpCode::Add, values, 1);
    let length = writer.number(length as f32 + 1.0, sum);
    writer.op(OpCode::Divide, Attrs::none(), &[sum, length]);
    canon(writer.0)
}

/// An elimination step: the part below and right of a position, minus the product of the parts left
/// of it and above.
fn eliminate(size: u64, place: u64) -> Arc<CanonRegion> {
    let mut writer = Writer::default();
    let (matrix, end, at) = (writer.param(&[size, size]), size as i64, place as i64);
    let part = |writer: &mut Writer, low: [i64; 2], high: [i64; 2]| {
        writer.op(OpCode::Slice, attrs::slice(&low, &high, &[1, 1]), &[matrix])
    };
    let below = part(&mut writer, [at + 1, at + 1], [end, end]);
    let left = part(&mut writer, [at + 1, at], [end, at + 1]);
    let above = part(&mut writer, [at, at + 1], [at + 1, end]);
    let dims = DotDimensionNumbers { lhs_contracting: &[1], rhs_contracting: &[0], ..Default::default() };
    let product = writer.op(OpCode::DotGeneral, attrs::dot_general(dims, DType::F32), &[left, above]);
    writer.op(OpCode::Subtract, Attrs::none(), &[below, product]);
    canon(writer.0)
}

fn data_of(region: &CanonRegion, seed: u64) -> Vec<Arc<Literal>> {
    let mut seed = Seeded::new(seed);
    let types = region.graph().params().iter();
    types.map(|ty| Arc::new(fill(&mut seed, ty, Domain::Any, Aim::Portable))).collect()
}

#[test]
fn a_growing_cache_has_one_region_for_each_bucket() {
    let class = ShapeClass::of(&decode(3), &decode(4)).unwrap();
    let mut regions: Vec<Arc<CanonRegion>> = Vec::new();
    for length in 1..=47 {
        let region = decode(length);
        let padded = class.pad(&region, &bucket).unwrap();
        assert!(padded.is_masked());
        check(&mut Seeded::new(length), &region, &padded, &data_of(&region, 7)).unwrap();
        if !regions.contains(padded.region()) {
            regions.push(padded.region().clone());
        }
        // Both lengths, before and after, in one bucket (CLASS-2).
        let expected = bucket(length + 1);
        assert!(padded.sizes().iter().all(|&(_, padded)| padded == expected), "{:?}", padded.sizes());
    }
    assert_eq!(regions.len(), 6, "8, 12, 16, 24, 32, 48");
    // A dimension that was fixed so far.
    let mut wider = Writer::default();
    wider.param(&[3, 1, 4]);
    assert_eq!(class.pad(&canon(wider.0), &bucket).err(), Some(ShapeClassError::Unlike));
}

#[test]
fn a_triangular_loop_has_few_regions() {
    let class = ShapeClass::of(&eliminate(20, 0), &eliminate(20, 1)).unwrap();
    let mut regions: Vec<Arc<CanonRegion>> = Vec::new();
    for place in 0..19 {
        let region = eliminate(20, place);
        let padded = class.pad(&region, &bucket).unwrap();
        assert!(!padded.is_masked(), "the product is over one element");
        check(&mut Seeded::new(place), &region, &padded, &data_of(&region, 3)).unwrap();
        if !regions.contains(padded.region()) {
            regions.push(padded.region().clone());
        }
    }
    assert_eq!(regions.len(), 4, "8, 12, 16, 24");
}

/// Integer reductions are exact in any order, so they do not prevent padding.
#[test]
fn reductions_of_integers_have_no_order() {
    let largest = |dtype: DType, size: u64| {
        let mut graph = Graph::new();
        let x = graph.param(TensorType::of(dtype, &[size]).unwrap());
        let start = attrs::constant(Arc::new(neutral(OpCode::Maximum, dtype)));
        let start = graph.push(OpCode::Constant, start, &[], &[]).unwrap()[0];
        let body = Arc::new(Body::binary(OpCode::Maximum, TensorType::scalar(dtype)).unwrap());
        graph.push(OpCode::Reduce, attrs::dimensions(&[0]), &[body], &[x, start]).unwrap();
        canon(graph)
    };
    for (dtype, is_masked) in [(DType::U64, false), (DType::Bool, false), (DType::F32, true)] {
        let class = ShapeClass::of(&largest(dtype, 3), &largest(dtype, 5)).unwrap();
        let region = largest(dtype, 6);
        let padded = class.pad(&region, &bucket).unwrap();
        assert_eq!(padded.is_masked(), is_masked, "{dtype}");
        check(&mut Seeded::new(1), &region, &padded, &data_of(&region, 7)).unwrap();
    }
}

/// Sizes that were equal by chance are distinguished by one more example.
#[test]
fn a_class_learns() {
    let sum = |rows: u64, columns: u64| {
        let mut writer = Writer::default();
        let (a, b) = (writer.param(&[rows]), writer.param(&[columns]));
        let [a, b] = [a, b].map(|value| writer.reduce(OpCode::Add, value, 0));
        writer.op(OpCode::Multiply, Attrs::none(), &[a, b]);
        canon(writer.0)
    };
    let class = ShapeClass::of(&sum(3, 3), &sum(5, 5)).unwrap();
    assert_eq!(class.pad(&sum(3, 5), &bucket).err(), Some(ShapeClassError::Unlike));
    let class = class.with(&sum(3, 5)).unwrap();
    let region = sum(9, 20);
    let padded = class.pad(&region, &bucket).unwrap();
    assert_eq!(padded.sizes(), [(9, 12), (20, 24)]);
    check(&mut Seeded::new(1), &region, &padded, &data_of(&region, 1)).unwrap();
}

/// A class has at most 16 sizes that vary independently.
#[test]
fn a_class_has_sixteen_sizes() {
    let negated = |count: u64, round: u64| {
        let mut writer = Writer::default();
        for place in 0..count {
            let value = writer.param(&[3 + round * (place + 1)]);
            writer.op(OpCode::Negate, Attrs::none(), &[value]);
        }
        canon(writer.0)
    };
    assert_eq!(ShapeClass::of(&negated(16, 1), &negated(16, 2)).err(), None);
    let of_more = ShapeClass::of(&negated(17, 1), &negated(17, 2));
    assert_eq!(of_more.err(), Some(ShapeClassError::Unlike));
}

/// O3: regions that differ in more than sizes have no common class.
#[test]
fn other_regions_have_no_class() {
    let negated = |dims: &[u64], op: OpCode| {
        let mut writer = Writer::default();
        let value = writer.param(dims);
        writer.op(op, Attrs::none(), &[value]);
        canon(writer.0)
    };
    let of = |a: &Arc<CanonRegion>, b: &Arc<CanonRegion>| ShapeClass::of(a, b).err();
    let four = negated(&[4], OpCode::Negate);
    assert_eq!(of(&four, &negated(&[5], OpCode::Tanh)), Some(ShapeClassError::Unlike));
    assert_eq!(of(&four, &negated(&[4, 2], OpCode::Negate)), Some(ShapeClassError::Unlike));
    assert_eq!(of(&four, &four), Some(ShapeClassError::Unlike), "nothing varies");
    assert_eq!(of(&four, &negated(&[0], OpCode::Negate)), Some(ShapeClassError::Unlike), "nothing of it");
    assert_eq!(of(&four, &negated(&[5], OpCode::Negate)), None);
    let class = ShapeClass::of(&four, &negated(&[5], OpCode::Negate)).unwrap();
    for dims in [&[][..], &[6, 2], &[6, 6, 1]] {
        let other = negated(dims, OpCode::Negate);
        assert_eq!(class.pad(&other, &bucket).err(), Some(ShapeClassError::Unlike), "{dims:?}");
        assert_ne!(family_of(&other), family_of(&four), "{dims:?}");
    }
    assert_eq!(family_of(&four), family_of(&negated(&[5], OpCode::Negate)));
    let reversed = |size: u64| {
        let mut writer = Writer::default();
        let value = writer.param(&[size]);
        writer.op(OpCode::Reverse, attrs::dimensions(&[0]), &[value]);
        canon(writer.0)
    };
    let reverse = ShapeClassError::NoRule { node: 0, op: OpCode::Reverse };
    assert_eq!(of(&reversed(4), &reversed(5)), Some(reverse), "padding would come first");
}

/// O2: a varying number is an argument.
#[test]
fn numbers_that_vary_are_scalars() {
    let mean = |size: u64| {
        let mut writer = Writer::default();
        let value = writer.param(&[2, size]);
        let sum = writer.reduce(OpCode::Add, value, 1);
        let count = writer.number(size as f32, sum);
        writer.op(OpCode::Divide, Attrs::none(), &[sum, count]);
        canon(writer.0)
    };
    let class = ShapeClass::of(&mean(9), &mean(10)).unwrap();
    let [nine, eleven] = [9, 11].map(|size| class.pad(&mean(size), &bucket).unwrap());
    assert_eq!(nine.region(), eleven.region());
    assert_eq!(eleven.scalars(), [Scalar::new(11i32), Scalar::new(11f32)]);
    assert_eq!(eleven.origins().last(), Some(&4));
}
