//! Ops that run their bodies.

use std::sync::Arc;

use fuseline_fusion::element::{Bits, Store, from_int};
use fuseline_fusion::op::{Comparison, ComparisonType, attrs};
use fuseline_fusion::{Attrs, Body, DType, DTypeClass, DTypeSet, Graph, Literal, OpCode, Ref, TensorType};

use super::grow::{Ops, constant};
use super::reduction::inputs;
use super::{Domain, Sample, SampleOperand, Sampler};

/// Element types of a loop's counter.
const COUNTERS: DTypeSet = DTypeSet::of(&[
    DType::I32,
    DType::I8,
    DType::I16,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
]);

/// Up to three operands of any type, and their types.
fn some_operands(sampler: &mut Sampler<'_>, set: DTypeSet) -> Option<(Vec<SampleOperand>, Vec<TensorType>)> {
    (0..sampler.below(4))
        .map(|_| sampler.operand(set, 0))
        .collect::<Option<Vec<_>>>()
        .map(|all| all.into_iter().unzip())
}

/// Adds an op with one result; returns the result.
fn push(graph: &mut Graph, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Option<Ref> {
    Some(graph.push(op, attrs, &[], operands).ok()?[0])
}

/// A rank-0 value with these bits.
fn scalar(dtype: DType, bits: Bits) -> Literal {
    Store::filled(TensorType::scalar(dtype), bits).finish()
}

/// Adds an integer constant.
fn int(graph: &mut Graph, dtype: DType, value: i8) -> Option<Ref> {
    constant(graph, scalar(dtype, from_int(dtype, value.into())))
}

/// Loops of a few iterations for any data. In addition to arbitrary values they carry a counter
/// that grows by 1 per iteration. The loop ends unless the counter is between -4 and a small
/// number.
pub(crate) fn while_loop(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (mut operands, mut types) = some_operands(sampler, sampler.row_dtypes())?;
    let dtype = sampler.dtype_of(COUNTERS)?;
    let place = types.len() - sampler.below(types.len() + 1);
    let start = TensorType::scalar(dtype);
    let counter = if sampler.rarely(4) {
        SampleOperand::Fresh(start.clone(), Domain::Index { size: 3 })
    } else {
        SampleOperand::Given(Arc::new(scalar(dtype, 0)))
    };
    operands.insert(place, counter);
    types.insert(place, start);
    let counter = Ref::Param(place as u32);

    let ops = if sampler.rarely(3) { Ops::Any } else { Ops::Scalar };
    let mut cond = sampler.grown(&types, ops);
    let more = sampler.value_of(&cond, &TensorType::scalar(DType::Bool)).filter(|_| sampler.rarely(3));
    let end = int(&mut cond, dtype, sampler.below(4) as i8)?;
    let mut go =
        push(&mut cond, OpCode::Compare, attrs::compare_for(Comparison::Lt, dtype), &[counter, end])?;
    if dtype.class() == DTypeClass::Signed {
        let first = int(&mut cond, dtype, -4)?;
        let order = attrs::compare_for(Comparison::Ge, dtype);
        let above = push(&mut cond, OpCode::Compare, order, &[counter, first])?;
        go = push(&mut cond, OpCode::And, Attrs::none(), &[go, above])?;
    }
    if let Some(more) = more {
        go = push(&mut cond, OpCode::And, Attrs::none(), &[go, more])?;
    }

    let mut body = sampler.grown(&types, Ops::Any);
    let mut returns: Vec<Ref> =
        types.iter().map(|ty| sampler.value_of(&body, ty)).collect::<Option<Vec<_>>>()?;
    let one = int(&mut body, dtype, 1)?;
    returns[place] = push(&mut body, OpCode::Add, Attrs::none(), &[counter, one])?;
    let bodies = vec![Arc::new(Body::new(cond, &[go])?), Arc::new(Body::new(body, &returns)?)];
    Some(Sample { operands, attrs: Attrs::none(), bodies })
}

/// Branches with captured operands. The first one determines the types that all return.
fn branches(sampler: &mut Sampler<'_>, selector: SampleOperand, count: usize) -> Option<Sample> {
    let (captured, types) = some_operands(sampler, DTypeSet::ANY)?;
    let mut first = sampler.grown(&types, Ops::Any);
    if first.params().is_empty() && first.nodes().is_empty() {
        int(&mut first, DType::I32, 7)?;
    }
    let mut bodies = vec![sampler.returning_some(first)?];
    let results: Vec<TensorType> = bodies[0].return_types().cloned().collect();
    for _ in 1..count {
        let graph = sampler.grown(&types, Ops::Any);
        bodies.push(sampler.returning(graph, &results)?);
    }
    let operands = [vec![selector], captured].concat();
    Some(Sample { operands, attrs: Attrs::none(), bodies })
}

pub(crate) fn if_else(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let pred = sampler.operand_of(DType::Bool, &[])?;
    branches(sampler, pred, 2)
}

pub(crate) fn case(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let count = 1 + sampler.below(4);
    let index = sampler.operand_like(&TensorType::scalar(DType::I32), Domain::Index { size: count as u64 });
    branches(sampler, index, count)
}

/// A branch that returns one of two captured scalars.
pub(super) fn either(dtype: DType, which: u32) -> Option<Arc<Body>> {
    let mut graph = Graph::new();
    for _ in 0..2 {
        graph.param(TensorType::scalar(dtype));
    }
    Body::new(graph, &[Ref::Param(which)]).map(Arc::new)
}

/// A lexicographic comparator on some of the operands, and whether it treats different elements as
/// equal. If it does, only a stable sort has a unique result.
fn ordering(sampler: &mut Sampler<'_>, dtypes: &[DType]) -> Option<(Arc<Body>, bool)> {
    let mut graph = Graph::new();
    let pairs: Vec<(Ref, Ref)> = dtypes
        .iter()
        .map(|&dtype| (graph.param(TensorType::scalar(dtype)), graph.param(TensorType::scalar(dtype))))
        .collect();
    let mut keys = sampler.permutation(dtypes.len());
    keys.truncate(1 + sampler.below(dtypes.len()));
    let mut ties = keys.len() < dtypes.len();
    // From the last key to the first: each decides, or leaves equal elements to the keys after it.
    let mut decided = None;
    for &key in keys.iter().rev() {
        let (mut dtype, (mut left, mut right)) = (dtypes[key], pairs[key]);
        if dtype.is_complex() {
            // Complex numbers have no order, so their real parts are compared.
            left = push(&mut graph, OpCode::Real, Attrs::none(), &[left])?;
            right = push(&mut graph, OpCode::Real, Attrs::none(), &[right])?;
            dtype = dtype.part();
            ties = true;
        }
        if DTypeSet::SIGNED_FLOAT.contains(dtype) && sampler.rarely(4) {
            left = push(&mut graph, OpCode::Abs, Attrs::none(), &[left])?;
            right = push(&mut graph, OpCode::Abs, Attrs::none(), &[right])?;
            ties = true;
        }
        let direction = sampler.one_of(&[Comparison::Lt, Comparison::Gt])?;
        let by = |direction| match dtype.is_float() {
            true => attrs::compare(direction, ComparisonType::TotalOrder),
            false => attrs::compare_for(direction, dtype),
        };
        let before = push(&mut graph, OpCode::Compare, by(direction), &[left, right])?;
        decided = Some(match decided {
            None => before,
            Some(later) => {
                let equal = push(&mut graph, OpCode::Compare, by(Comparison::Eq), &[left, right])?;
                if sampler.rarely(3) {
                    let bodies = [either(DType::Bool, 0)?, either(DType::Bool, 1)?];
                    graph.push(OpCode::If, Attrs::none(), &bodies, &[equal, later, before]).ok()?[0]
                } else {
                    let later = push(&mut graph, OpCode::And, Attrs::none(), &[equal, later])?;
                    push(&mut graph, OpCode::Or, Attrs::none(), &[before, later])?
                }
            }
        });
    }
    Some((Arc::new(Body::new(graph, &[decided?])?), ties))
}

pub(crate) fn sort(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operands, dtypes, ty) = inputs(sampler, 1)?;
    let dimension = sampler.below(ty.rank()) as i64;
    let (comparator, is_stable) = if !sampler.portable() && sampler.rarely(3) {
        let scalars = dtypes.iter().flat_map(|&dtype| [TensorType::scalar(dtype), TensorType::scalar(dtype)]);
        let graph = sampler.grown(&scalars.collect::<Vec<_>>(), Ops::Any);
        (sampler.returning(graph, &[TensorType::scalar(DType::Bool)])?, sampler.rarely(2))
    } else {
        let (comparator, ties) = ordering(sampler, &dtypes)?;
        (comparator, ties && sampler.portable() || sampler.rarely(2))
    };
    Some(Sample { operands, attrs: attrs::sort(dimension, is_stable), bodies: vec![comparator] })
}

pub(crate) fn map(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operands, dtypes, ty) = inputs(sampler, 0)?;
    let scalars: Vec<TensorType> = dtypes.iter().map(|&dtype| TensorType::scalar(dtype)).collect();
    let ops = if sampler.rarely(3) { Ops::Any } else { Ops::Scalar };
    let graph = sampler.grown(&scalars, ops);
    let computation = sampler.returning_scalar(graph)?;
    let dimensions: Vec<i64> = (0..ty.rank() as i64).collect();
    Some(Sample { operands, attrs: attrs::dimensions(&dimensions), bodies: vec![computation] })
}
