//! Ops that replicas compute together.
//!
//! XLA's CPU backend combines by sum, product, maximum and minimum, and booleans by `and` and `or`; it refuses any other
//! body, and `collective_broadcast`. What it does it does in the operands' type whatever type the body has, it lets the
//! maximum of a NaN and a number be the number, and it takes several operands of `all_to_all` for the parts of one. Channels,
//! which replicas do not need, it cannot compile with several operands, so they are left out everywhere.

use std::sync::Arc;

use super::{Builder, Lowered, expanded};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Body, Graph, Ref};
use crate::groups::Groups;
use crate::literal::Scalar;
use crate::op::attrs;
use crate::op::call::Call;
use crate::op::code::{Comparison, OpCode};
use crate::shape::{Shape, TensorType};

/// Who takes part in a call.
fn groups<'a>(call: &Call<'a>) -> &'a Groups {
    call.attr().groups(0)
}

/// Whether every replica is in a group of its own, so that nothing is exchanged.
fn is_alone(call: &Call<'_>) -> bool {
    groups(call).columns() == 1
}

/// The attributes without a channel and what belongs to it.
fn plain(call: &Call<'_>) -> Attrs {
    let is_channel = |value: &AttrValue| matches!(value, AttrValue::Struct(_) | AttrValue::Bool(_));
    let values = call.attrs.values().iter();
    values.map(|value| if is_channel(value) { AttrValue::Absent } else { value.clone() }).collect()
}

/// The op itself, without a channel.
fn unchanneled(call: &Call<'_>) -> Lowered {
    let attrs = plain(call);
    if attrs == *call.attrs {
        return Lowered::Itself;
    }
    let (mut graph, params) = Builder::of(call);
    let results = graph.0.push(call.def.code, attrs, call.bodies, &params);
    expanded(results.map(|results| graph.returning(&results)))
}

/// As it is, but for a channel.
pub(in crate::op) fn collective_permute(call: &Call<'_>) -> Lowered {
    unchanneled(call)
}

/// The operands as they are.
fn unchanged(call: &Call<'_>) -> Lowered {
    let (graph, params) = Builder::of(call);
    graph.returning(&params)
}

/// XLA refuses to join along a dimension without elements.
pub(in crate::op) fn all_gather(call: &Call<'_>) -> Lowered {
    let axis = call.attr().int(1) as usize;
    match call.operands.iter().any(|ty| ty.dims()[axis] == 0) {
        _ if is_alone(call) => unchanged(call),
        true => expanded(gathered(call, axis)),
        false => unchanneled(call),
    }
}

fn gathered(call: &Call<'_>, axis: usize) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let mut results = Vec::new();
    for (param, ty) in params.into_iter().zip(call.operands) {
        results.push(match ty.dims()[axis] {
            0 => param,
            _ => graph.op(OpCode::AllGather, plain(call), &[param])?,
        });
    }
    Ok(graph.returning(&results))
}

/// Each operand is exchanged by an op of its own.
pub(in crate::op) fn all_to_all(call: &Call<'_>) -> Lowered {
    match call.operands.len() {
        _ if is_alone(call) => unchanged(call),
        1 => unchanneled(call),
        _ => expanded(exchanged_apart(call)),
    }
}

fn exchanged_apart(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let exchange = |&param: &Ref| graph.op(OpCode::AllToAll, plain(call), &[param]);
    let results = params.iter().map(exchange).collect::<Result<Vec<_>, _>>()?;
    Ok(graph.returning(&results))
}

/// How a body combines two elements.
enum Combination {
    /// By one op, as XLA does.
    Native(OpCode),
    /// By a maximum or minimum of floats, of which XLA loses the NaN.
    Extreme(OpCode),
    /// In some other way.
    Other,
}

fn combination(body: &Body) -> Combination {
    let (params, nodes) = (body.graph().params(), body.graph().nodes());
    let ([dtype, _], [node]) = ([params[0].dtype(), params[1].dtype()], nodes) else {
        return Combination::Other;
    };
    if node.operands() != [Ref::Param(0), Ref::Param(1)] || body.returns() != [Ref::Result(0)] {
        return Combination::Other;
    }
    match node.signature().op() {
        op @ (OpCode::Maximum | OpCode::Minimum) if dtype.is_float() => Combination::Extreme(op),
        op @ (OpCode::Add | OpCode::Multiply | OpCode::Maximum | OpCode::Minimum) => Combination::Native(op),
        op @ (OpCode::And | OpCode::Or) if dtype == DType::Bool => Combination::Native(op),
        _ => Combination::Other,
    }
}

/// The type that the body combines elements in.
fn combined_type(call: &Call<'_>) -> DType {
    call.bodies[0].graph().params()[0].dtype()
}

/// The operands in the type that they are combined in.
fn converted(call: &Call<'_>) -> Result<(Builder, Vec<Ref>), OpError> {
    let to = combined_type(call);
    let (mut graph, mut params) = Builder::of(call);
    for (param, ty) in params.iter_mut().zip(call.operands) {
        *param = graph.convert(*param, ty.dtype(), to)?;
    }
    Ok((graph, params))
}

impl Builder {
    /// The call's op over values of the type that its body has, combined by one op.
    fn combine(
        &mut self,
        call: &Call<'_>,
        op: OpCode,
        dtype: DType,
        values: &[Ref],
    ) -> Result<Vec<Ref>, OpError> {
        let body = Arc::new(Body::binary(op, TensorType::scalar(dtype))?);
        Ok(self.0.push(call.def.code, plain(call), &[body], values)?.to_vec())
    }

    fn ty(&self, value: Ref) -> TensorType {
        self.0.type_of(value).expect("bug: a value of another graph").clone()
    }

    /// A maximum or minimum that is NaN where one of the elements is: another exchange, of bits, says where.
    fn extreme(&mut self, call: &Call<'_>, op: OpCode, values: &[Ref]) -> Result<Vec<Ref>, OpError> {
        let dtype = combined_type(call);
        let unequal = attrs::compare_for(Comparison::Ne, dtype);
        let mut flags = Vec::new();
        for &value in values {
            flags.push(self.op(OpCode::Compare, unequal.clone(), &[value, value])?);
        }
        let extremes = self.combine(call, op, dtype, values)?;
        let flags = self.combine(call, OpCode::Or, DType::Bool, &flags)?;
        let mut results = Vec::new();
        for (extreme, flag) in extremes.into_iter().zip(flags) {
            let nan = self.splat(f32::NAN, dtype, self.ty(extreme).shape())?;
            results.push(self.op(OpCode::Select, Attrs::none(), &[flag, nan, extreme])?);
        }
        Ok(results)
    }

    /// The elements along a dimension combined by a body that need not have a neutral element: each goes with a flag that
    /// says whether it counts, which the initial value of the `reduce` does not.
    fn folded(&mut self, value: Ref, flags: Ref, axis: usize, body: &Body) -> Result<Ref, OpError> {
        let bool = TensorType::scalar(DType::Bool);
        let scalar = TensorType::scalar(self.ty(value).dtype());
        let mut pair = Builder(Graph::new());
        let [a, has_a, b, has_b] = [&scalar, &bool, &scalar, &bool].map(|ty| pair.0.param(ty.clone()));
        let both = pair.inline(body, &[a, b]);
        let or_a = pair.op(OpCode::Select, Attrs::none(), &[has_b, both, a])?;
        let combined = pair.op(OpCode::Select, Attrs::none(), &[has_a, or_a, b])?;
        let has_any = pair.op(OpCode::Or, Attrs::none(), &[has_a, has_b])?;
        let pair = Body::new(pair.0, &[combined, has_any]).expect("bug: the selections were just made");
        let (zero, no) = (self.int(0, &scalar)?, self.int(0, &bool)?);
        let operands = [value, flags, zero, no];
        let attrs = attrs::dimensions(&[axis as i64]);
        Ok(self.0.push(OpCode::Reduce, attrs, &[Arc::new(pair)], &operands)?[0])
    }

    /// The ops of a body over other values; returns its only result.
    fn inline(&mut self, body: &Body, arguments: &[Ref]) -> Ref {
        let mut results = Vec::new();
        let place = |results: &[Ref], value: &Ref| match *value {
            Ref::Param(index) => arguments[index as usize],
            Ref::Result(index) => results[index as usize],
        };
        for node in body.graph().nodes() {
            let operands = node.operands().iter().map(|operand| place(&results, operand)).collect();
            results.extend(self.0.push_signature(node.signature().clone(), operands));
        }
        place(&results, &body.returns()[0])
    }

    /// A flag for each element, all set.
    fn all_set(&mut self, like: Ref) -> Result<Ref, OpError> {
        let ty = self.ty(like);
        self.splat(true, DType::Bool, ty.shape())
    }

    /// The values of the first of each group on all its replicas, zeros on the others, and whether this is one of those
    /// that got them.
    ///
    /// By `collective_permute`, which gives zeros to those who get nothing: first the roots send to themselves, and then, in
    /// each round, every member that has the values to one that has not.
    fn spread(&mut self, groups: &[Vec<i64>], values: &mut [Ref]) -> Result<Ref, OpError> {
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

    /// The values of the members of each replica's group as rows, and for each element whether there is such a member.
    fn rows(&mut self, groups: &Groups, value: Ref) -> Result<(Ref, Ref), OpError> {
        let dims = [&[1], self.ty(value).dims()].concat();
        let row = self.reshape(value, &dims)?;
        if groups.members().all(|group| group.len() == groups.columns()) {
            let rows = self.op(OpCode::AllGather, attrs::all_gather(groups.clone(), 0), &[row])?;
            return Ok((rows, self.all_set(rows)?));
        }
        let shape = self.ty(row).shape().clone();
        let (mut rows, mut flags) = (Vec::new(), Vec::new());
        for member in 0..groups.columns() {
            let mut from: Vec<Vec<i64>> = groups.members().map(<[i64]>::to_vec).collect();
            from.retain(|group| group.len() > member);
            from.iter_mut().for_each(|group| group.swap(0, member));
            let mut values = [row];
            let has = self.spread(&from, &mut values)?;
            rows.extend(values);
            flags.push(self.op(
                OpCode::BroadcastInDim,
                attrs::broadcast_in_dim(shape.clone(), &[]),
                &[has],
            )?);
        }
        let stack = attrs::concatenate(0);
        Ok((
            self.op(OpCode::Concatenate, stack.clone(), &rows)?,
            self.op(OpCode::Concatenate, stack, &flags)?,
        ))
    }

    fn reshape(&mut self, value: Ref, dims: &[u64]) -> Result<Ref, OpError> {
        let shape = Shape::new(dims).map_err(|error| {
            OpError::new("reshape", crate::Fault::Limit, error.to_string(), "a shape within the limits")
        })?;
        self.op(OpCode::Reshape, attrs::reshape(shape), &[value])
    }
}

/// Combined by XLA where it does what the body says, else gathered and then combined by each replica.
pub(in crate::op) fn all_reduce(call: &Call<'_>) -> Lowered {
    let is_converted = call.operands.iter().any(|ty| ty.dtype() != combined_type(call));
    match combination(&call.bodies[0]) {
        _ if is_alone(call) => expanded(converted(call).map(|(graph, values)| graph.returning(&values))),
        Combination::Native(_) if !is_converted => unchanneled(call),
        combination => expanded(reduced(call, &combination)),
    }
}

fn reduced(call: &Call<'_>, combination: &Combination) -> Result<Lowered, OpError> {
    let (mut graph, values) = converted(call)?;
    let results = match *combination {
        Combination::Native(op) => graph.combine(call, op, combined_type(call), &values)?,
        Combination::Extreme(op) => graph.extreme(call, op, &values)?,
        Combination::Other => {
            let mut results = Vec::new();
            for value in values {
                let (rows, flags) = graph.rows(groups(call), value)?;
                results.push(graph.folded(rows, flags, 0, &call.bodies[0])?);
            }
            results
        }
    };
    Ok(graph.returning(&results))
}

/// As [`all_reduce`]. What is to be combined by each replica is only its own part of the operands. XLA refuses a result
/// without elements along the dimension.
pub(in crate::op) fn reduce_scatter(call: &Call<'_>) -> Lowered {
    let axis = call.attr().int(1) as usize;
    let is_converted = call.operand(0).dtype() != combined_type(call);
    match combination(&call.bodies[0]) {
        _ if is_alone(call) || call.operand(0).dims()[axis] == 0 => {
            expanded(converted(call).map(|(graph, values)| graph.returning(&values)))
        }
        Combination::Native(_) if !is_converted => unchanneled(call),
        combination => expanded(scattered(call, axis, &combination)),
    }
}

fn scattered(call: &Call<'_>, axis: usize, combination: &Combination) -> Result<Lowered, OpError> {
    let (mut graph, values) = converted(call)?;
    let results = match *combination {
        Combination::Native(op) => graph.combine(call, op, combined_type(call), &values)?,
        Combination::Extreme(op) => graph.extreme(call, op, &values)?,
        Combination::Other => {
            let dims = graph.ty(values[0]).dims().to_vec();
            let parts = groups(call).columns() as u64;
            let split = [&dims[..axis], &[parts, dims[axis] / parts], &dims[axis + 1..]].concat();
            let parts = graph.reshape(values[0], &split)?;
            let exchange = attrs::all_to_all(groups(call).clone(), axis as i64, axis as i64);
            let mine = graph.op(OpCode::AllToAll, exchange, &[parts])?;
            let flags = graph.all_set(mine)?;
            vec![graph.folded(mine, flags, axis, &call.bodies[0])?]
        }
    };
    Ok(graph.returning(&results))
}

/// By permutations, which XLA's CPU backend has.
pub(in crate::op) fn collective_broadcast(call: &Call<'_>) -> Lowered {
    let (mut graph, mut values) = Builder::of(call);
    let groups: Vec<Vec<i64>> = groups(call).members().map(<[i64]>::to_vec).collect();
    let spread = graph.spread(&groups, &mut values);
    expanded(spread.map(|_| graph.returning(&values)))
}
