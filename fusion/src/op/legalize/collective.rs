//! Legalizes collective ops.
//!
//! XLA's CPU backend combines by sum, product, maximum and minimum, and booleans by `and` and `or`.
//! It rejects other bodies, and `collective_broadcast`. It has these defects:
//! - it combines in the operands' type even if the body has another;
//! - its maximum of a NaN and a number is the number;
//! - it takes several operands of `all_to_all` for the parts of one;
//! - it joins several operands of `all_gather` along their first dimension, whatever the attribute;
//! - it has no zero of `f8E8M0FNU`;
//! - it cannot compile channels, which replicas do not need, with several operands.
//!
//! Each function fixes one defect. The ops it writes are lowered again, which fixes the others.

use std::sync::Arc;

use super::{Builder, Lowered, expanded};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::DType;
use crate::error::OpError;
use crate::groups::Groups;
use crate::ir::{Body, OpCode, Ref};
use crate::literal::Scalar;
use crate::op::attrs;
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::shape::{Shape, TensorType};

/// An expansion whose ops are lowered in turn; errors as in [`expanded`].
fn in_turn(made: Result<(Builder, Vec<Ref>), OpError>) -> Lowered {
    expanded(made.map(|(graph, values)| Lowered::Inline(Arc::new(graph.body(&values)))))
}

/// The replica groups of a call.
fn groups<'a>(call: &Call<'a>) -> &'a Groups {
    call.attr().groups(0)
}

/// Whether every replica is in a group of its own, so that nothing is exchanged.
fn is_alone(call: &Call<'_>) -> bool {
    groups(call).columns() == 1
}

/// The call without a channel, if it has one.
fn without_channel(call: &Call<'_>) -> Option<Lowered> {
    let is_channel = |value: &AttrValue| matches!(value, AttrValue::Struct(_) | AttrValue::Bool(_));
    if !call.attrs.values().iter().any(is_channel) {
        return None;
    }
    let values = call.attrs.values().iter();
    let attrs =
        values.map(|value| if is_channel(value) { AttrValue::Absent } else { value.clone() }).collect();
    let (mut graph, params) = Builder::of(call);
    let results = graph.0.push(call.def.code, attrs, call.bodies, &params);
    Some(in_turn(results.map(|results| (graph, results.to_vec()))))
}

/// Splits a call with several operands into one op per operand, written by `change`.
fn one_by_one(
    call: &Call<'_>,
    change: impl Fn(&mut Builder, Ref, &TensorType) -> Result<Ref, OpError>,
) -> Lowered {
    let (mut graph, mut values) = Builder::of(call);
    let changed = values.iter_mut().zip(call.operands).try_for_each(|(value, ty)| {
        *value = change(&mut graph, *value, ty)?;
        Ok(())
    });
    in_turn(changed.map(|()| (graph, values)))
}

/// The call on the bits of its operands, if the backend cannot transfer the type of one.
fn as_bits(call: &Call<'_>) -> Option<Lowered> {
    if call.operands.iter().all(|ty| ty.dtype() != DType::F8E8M0FNU) {
        return None;
    }
    Some(one_by_one(call, |graph, value, ty| {
        if ty.dtype() != DType::F8E8M0FNU {
            return graph.op(call.def.code, call.attrs.clone(), &[value]);
        }
        let value = graph.op(OpCode::BitcastConvert, attrs::convert(DType::U8), &[value])?;
        let moved = graph.op(call.def.code, call.attrs.clone(), &[value])?;
        graph.op(OpCode::BitcastConvert, attrs::convert(ty.dtype()), &[moved])
    }))
}

/// One op per operand. XLA cannot join along a dimension without elements.
pub(in crate::op) fn all_gather(call: &Call<'_>) -> Lowered {
    if is_alone(call) {
        return one_by_one(call, |_, value, _| Ok(value));
    }
    if let Some(lowered) = without_channel(call).or_else(|| as_bits(call)) {
        return lowered;
    }
    let axis = call.attr().int(1) as usize;
    let is_empty = |ty: &TensorType| ty.dims()[axis] == 0;
    if let [ty] = call.operands
        && !is_empty(ty)
    {
        return Lowered::Itself;
    }
    one_by_one(call, |graph, value, ty| {
        if is_empty(ty) { Ok(value) } else { graph.op(OpCode::AllGather, call.attrs.clone(), &[value]) }
    })
}

/// One op per operand.
pub(in crate::op) fn all_to_all(call: &Call<'_>) -> Lowered {
    if is_alone(call) {
        return one_by_one(call, |_, value, _| Ok(value));
    }
    if let Some(lowered) = without_channel(call).or_else(|| as_bits(call)) {
        return lowered;
    }
    match call.operands {
        [_] => Lowered::Itself,
        _ => one_by_one(call, |graph, value, _| graph.op(OpCode::AllToAll, call.attrs.clone(), &[value])),
    }
}

/// Unchanged, except for channels and types that the backend cannot transfer.
pub(in crate::op) fn collective_permute(call: &Call<'_>) -> Lowered {
    without_channel(call).or_else(|| as_bits(call)).unwrap_or(Lowered::Itself)
}

/// As permutations, which XLA's CPU backend supports.
pub(in crate::op) fn collective_broadcast(call: &Call<'_>) -> Lowered {
    let (mut graph, mut values) = Builder::of(call);
    let groups: Vec<Vec<i64>> = groups(call).members().map(<[i64]>::to_vec).collect();
    let sent = graph.broadcast(&groups, &mut values);
    in_turn(sent.map(|_| (graph, values)))
}

/// How a body combines two elements.
enum Combination {
    /// By one op that XLA supports.
    Native,
    /// By a maximum or minimum of floats, where XLA drops NaN.
    Extreme(OpCode),
    /// By other code, or in a type that XLA does not combine.
    Other,
}

fn combination(call: &Call<'_>) -> Combination {
    let (body, dtype) = (&call.bodies[0], combined_type(call));
    let [node] = body.graph().nodes() else { return Combination::Other };
    let straight = node.operands() == [Ref::Param(0), Ref::Param(1)] && body.returns() == [Ref::Result(0)];
    if !straight || dtype == DType::F8E8M0FNU {
        return Combination::Other;
    }
    match node.signature().op() {
        // In their wider carrier types these take more than one op.
        OpCode::Add | OpCode::Multiply if dtype != DType::Bool && dtype.bits() < 8 => Combination::Other,
        OpCode::Add | OpCode::Multiply => Combination::Native,
        op @ (OpCode::Maximum | OpCode::Minimum) if dtype.is_float() => Combination::Extreme(op),
        OpCode::Maximum | OpCode::Minimum if !dtype.is_complex() => Combination::Native,
        OpCode::And | OpCode::Or if dtype == DType::Bool => Combination::Native,
        _ => Combination::Other,
    }
}

/// The type that the body combines elements in.
fn combined_type(call: &Call<'_>) -> DType {
    call.bodies[0].graph().params()[0].dtype()
}

/// The operands, converted to the type that they are combined in.
fn converted(call: &Call<'_>) -> Result<(Builder, Vec<Ref>), OpError> {
    let to = combined_type(call);
    let (mut graph, mut params) = Builder::of(call);
    for (param, ty) in params.iter_mut().zip(call.operands) {
        *param = graph.convert(*param, ty.dtype(), to)?;
    }
    Ok((graph, params))
}

/// Lowers an `all_reduce` or `reduce_scatter`; `other` handles bodies that XLA does not support.
fn combined(
    call: &Call<'_>,
    other: impl FnOnce(&mut Builder, &[Ref]) -> Result<Vec<Ref>, OpError>,
) -> Lowered {
    if is_alone(call) {
        return in_turn(converted(call));
    }
    if let Some(lowered) = without_channel(call) {
        return lowered;
    }
    if call.operands.iter().any(|ty| ty.dtype() != combined_type(call)) {
        return in_turn(converted(call).and_then(|(mut graph, values)| {
            let results = graph.0.push(call.def.code, call.attrs.clone(), call.bodies, &values)?;
            Ok((graph, results.to_vec()))
        }));
    }
    let (mut graph, params) = Builder::of(call);
    match combination(call) {
        Combination::Native => Lowered::Itself,
        // Not lowered again, because the expansion contains the same kind of op.
        Combination::Extreme(op) => {
            expanded(graph.extreme(call, op, &params).map(|results| graph.returning(&results)))
        }
        Combination::Other => in_turn(other(&mut graph, &params).map(|results| (graph, results))),
    }
}

/// Combined by XLA if it supports the body; otherwise gathered and then combined by each replica.
pub(in crate::op) fn all_reduce(call: &Call<'_>) -> Lowered {
    combined(call, |graph, values| {
        values.iter().map(|&value| graph.gathered(groups(call), value, &call.bodies[0])).collect()
    })
}

/// As [`all_reduce`], except that each replica combines only its own part of the operands. XLA
/// rejects a result without elements along the dimension.
pub(in crate::op) fn reduce_scatter(call: &Call<'_>) -> Lowered {
    let axis = call.attr().int(1) as usize;
    if call.operand(0).dims()[axis] == 0 {
        return in_turn(converted(call));
    }
    combined(call, |graph, values| {
        let exchange = attrs::all_to_all(groups(call).clone(), axis as i64, axis as i64);
        let mine = graph.op(OpCode::AllToAll, exchange, values)?;
        let parts = graph.parts(mine, axis, groups(call).columns())?;
        let parts = parts.into_iter().map(|part| (part, None)).collect();
        Ok(vec![graph.folded(parts, &call.bodies[0])?])
    })
}

impl Builder {
    /// The call's op on other values, with a body of one op.
    fn combine(&mut self, call: &Call<'_>, op: OpCode, values: &[Ref]) -> Result<Vec<Ref>, OpError> {
        let scalar = TensorType::scalar(self.ty(values[0]).dtype());
        let body = Arc::new(Body::binary(op, scalar)?);
        Ok(self.0.push(call.def.code, call.attrs.clone(), &[body], values)?.to_vec())
    }

    /// A maximum or minimum that propagates NaN: a second exchange of flags finds the elements with
    /// one.
    fn extreme(&mut self, call: &Call<'_>, op: OpCode, values: &[Ref]) -> Result<Vec<Ref>, OpError> {
        let dtype = combined_type(call);
        let unequal = attrs::compare_for(Comparison::Ne, dtype);
        let mut flags = Vec::new();
        for &value in values {
            flags.push(self.op(OpCode::Compare, unequal.clone(), &[value, value])?);
        }
        let extremes = self.combine(call, op, values)?;
        let flags = self.combine(call, OpCode::Or, &flags)?;
        let mut results = Vec::new();
        for (extreme, flag) in extremes.into_iter().zip(flags) {
            let nan = self.splat(f32::NAN, dtype, self.ty(extreme).shape())?;
            results.push(self.op(OpCode::Select, Attrs::none(), &[flag, nan, extreme])?);
        }
        Ok(results)
    }

    /// Folds the values with a body, from the left. A value with a flag counts only where the flag
    /// is true. The first has no flag.
    fn folded(&mut self, values: Vec<(Ref, Option<Ref>)>, body: &Arc<Body>) -> Result<Ref, OpError> {
        let mut folded = None;
        for (value, has) in values {
            let Some(before) = folded else {
                folded = Some(value);
                continue;
            };
            let axes: Vec<i64> = (0..self.ty(value).rank() as i64).collect();
            let map = attrs::dimensions(&axes);
            let both = self.0.push(OpCode::Map, map, std::slice::from_ref(body), &[before, value])?[0];
            folded = Some(match has {
                Some(has) => self.op(OpCode::Select, Attrs::none(), &[has, both, before])?,
                None => both,
            });
        }
        Ok(folded.expect("bug: a group has no member"))
    }

    /// Splits a value into equal parts along a dimension.
    fn parts(&mut self, value: Ref, axis: usize, count: usize) -> Result<Vec<Ref>, OpError> {
        let dims: Vec<i64> = self.ty(value).dims().iter().map(|&dim| dim as i64).collect();
        let (size, strides) = (dims[axis] / count as i64, vec![1; dims.len()]);
        let part = |index: i64| {
            let (mut starts, mut limits) = (vec![0; dims.len()], dims.clone());
            (starts[axis], limits[axis]) = (size * index, size * (index + 1));
            self.op(OpCode::Slice, attrs::slice(&starts, &limits, &strides), &[value])
        };
        (0..count as i64).map(part).collect()
    }

    /// The values of all members of each replica's group, combined with a body.
    fn gathered(&mut self, groups: &Groups, value: Ref, body: &Arc<Body>) -> Result<Ref, OpError> {
        let ty = self.ty(value);
        let mut members = Vec::new();
        if groups.members().all(|group| group.len() == groups.columns()) {
            let row = Shape::new(&[&[1], ty.dims()].concat());
            let row = row.map_err(|error| {
                OpError::new(
                    "reshape",
                    crate::OpErrorKind::Limit,
                    error.to_string(),
                    "a shape within the limits",
                )
            })?;
            let row = self.op(OpCode::Reshape, attrs::reshape(row), &[value])?;
            let rows = self.op(OpCode::AllGather, attrs::all_gather(groups.clone(), 0), &[row])?;
            for row in self.parts(rows, 0, groups.columns())? {
                let member = self.op(OpCode::Reshape, attrs::reshape(ty.shape().clone()), &[row])?;
                members.push((member, None));
            }
            return self.folded(members, body);
        }
        // Groups of different sizes cannot be gathered, so each member in turn broadcasts its value
        // to its group.
        for member in 0..groups.columns() {
            let mut from: Vec<Vec<i64>> = groups.members().map(<[i64]>::to_vec).collect();
            from.retain(|group| group.len() > member);
            from.iter_mut().for_each(|group| group.swap(0, member));
            let mut sent = [value];
            let has = self.broadcast(&from, &mut sent)?;
            members.push((sent[0], (member > 0).then_some(has)));
        }
        self.folded(members, body)
    }

    /// The values of the first member of each group on all members, zeros on other replicas, and a
    /// flag that tells whether this replica got them.
    ///
    /// Uses `collective_permute`, which gives zeros to replicas without a sender. First the roots
    /// send to themselves; then, in each round, every member that has the values sends them to one
    /// that does not.
    fn broadcast(&mut self, groups: &[Vec<i64>], values: &mut [Ref]) -> Result<Ref, OpError> {
        let roots: Vec<(i64, i64)> = groups.iter().map(|group| (group[0], group[0])).collect();
        let send = attrs::collective_permute(&roots);
        let yes = attrs::constant(Arc::new(Scalar::new(true).to_literal()));
        let yes = self.op(OpCode::Constant, yes, &[])?;
        let mut has = self.op(OpCode::CollectivePermute, send.clone(), &[yes])?;
        for value in &mut *values {
            *value = self.op(OpCode::CollectivePermute, send.clone(), &[*value])?;
        }
        let most = groups.iter().map(Vec::len).max().unwrap_or(0);
        let mut reached = 1;
        while reached < most {
            let mut pairs = Vec::new();
            for group in groups {
                pairs.extend(group.iter().copied().zip(group.iter().skip(reached).copied()).take(reached));
            }
            let send = attrs::collective_permute(&pairs);
            let got = self.op(OpCode::CollectivePermute, send.clone(), &[has])?;
            for value in &mut *values {
                let sent = self.op(OpCode::CollectivePermute, send.clone(), &[*value])?;
                *value = self.op(OpCode::Select, Attrs::none(), &[got, sent, *value])?;
            }
            has = self.op(OpCode::Or, Attrs::none(), &[has, got])?;
            reached *= 2;
        }
        Ok(has)
    }
}
