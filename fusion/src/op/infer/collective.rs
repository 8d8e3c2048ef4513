//! Collective ops, which the replicas of a program compute together.
//!
//! A call does not contain the number of replicas, so a rule can only check that the named replicas
//! are 0, 1, 2, ..., each once. [`fits`] checks the number of replicas once it is known.

use smallvec::smallvec;

use super::dim;
use super::reduction::promotes;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::error::{OpError, OpErrorKind};
use crate::ir::{OpCode, Results};
use crate::limits::MAX_REPLICAS;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

/// Replicas that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Every replica of the program, and how many there are.
    All(usize),
    /// Some replicas; the program must have at least this many.
    Some(usize),
}

/// The replicas that a collective names; `None` for other ops.
pub(crate) fn named(call: &Call<'_>) -> Option<Named> {
    // The participants are the first attribute of each schema.
    let count = |ids: &mut dyn Iterator<Item = i64>| ids.max().map_or(0, |id| (id + 1).max(0) as usize);
    match (call.def.code, call.attrs.values().first()?) {
        (OpCode::CollectivePermute, AttrValue::Pairs(pairs)) => {
            Some(Named::Some(count(&mut pairs.iter().flat_map(|&(source, target)| [source, target]))))
        }
        (code, AttrValue::Groups(groups)) => {
            let count = count(&mut groups.rows().flatten().copied());
            Some(if code == OpCode::CollectiveBroadcast { Named::Some(count) } else { Named::All(count) })
        }
        _ => None,
    }
}

/// Checks that a program with `replicas` replicas may contain the call.
pub(crate) fn fits(call: &Call<'_>, replicas: usize) -> Result<(), OpError> {
    match named(call) {
        Some(Named::All(count)) if count != replicas => Err(call
            .attr_error(
                format!("its groups name {count} replicas, but the program runs on {replicas}"),
                "every replica of the program must be in a group",
            )
            .hint(format!("run it on {count} replicas, or group the replicas {}", listed(replicas)))),
        Some(Named::Some(count)) if count > replicas => Err(call
            .attr_error(
                format!("it names replica {}, but the program runs on {replicas}", count - 1),
                format!("its replicas are {}", listed(replicas)),
            )
            .hint(format!("run it on {count} replicas or more"))),
        _ => Ok(()),
    }
}

/// The replica numbers in words.
fn listed(replicas: usize) -> String {
    if replicas == 1 { "0".to_owned() } else { format!("0 to {}", replicas - 1) }
}

/// Checks a replica number in an attribute.
fn replica(call: &Call<'_>, attr: &str, id: i64) -> Result<usize, OpError> {
    match usize::try_from(id) {
        Ok(id) if id < MAX_REPLICAS => Ok(id),
        Ok(id) => Err(call.error(
            OpErrorKind::Limit,
            format!("{attr} names replica {id}"),
            format!("a program has at most {MAX_REPLICAS} replicas, numbered from 0"),
        )),
        Err(_) => Err(call.attr_error(format!("{attr} names replica {id}"), "replicas are numbered from 0")),
    }
}

/// The error for a repeated replica.
fn twice(call: &Call<'_>, attr: &str, id: usize, rule: &str) -> OpError {
    call.attr_error(format!("replica {id} appears twice in {attr}"), rule)
}

/// The groups of a call: none is empty, and no replica is in two of them.
fn groups<'a>(call: &Call<'a>) -> Result<Vec<&'a [i64]>, OpError> {
    const ATTR: &str = "replica_groups";
    let groups: Vec<&[i64]> = call.attr().groups(0).members().collect();
    if groups.is_empty() {
        return Err(call
            .attr_error("replica_groups is empty", "each replica that takes part must be in a group")
            .hint("[[0, 1]] is one group of two replicas"));
    }
    let mut seen = vec![];
    for (index, group) in groups.iter().enumerate() {
        if group.is_empty() {
            return Err(call.attr_error(format!("group {index} has no replica"), "a group has at least one"));
        }
        for &id in *group {
            if id == -1 {
                return Err(call.attr_error(
                    format!("group {index} is {group:?}"),
                    "-1 may only pad the end of a group that is smaller than the others",
                ));
            }
            let id = replica(call, ATTR, id)?;
            if seen.len() <= id {
                seen.resize(id + 1, false);
            }
            if std::mem::replace(&mut seen[id], true) {
                return Err(twice(call, ATTR, id, "a replica must be in one group, once"));
            }
        }
    }
    if call.def.code != OpCode::CollectiveBroadcast
        && let Some(missing) = seen.iter().position(|seen| !seen)
    {
        return Err(call
            .attr_error(
                format!("replica {missing} is in no group, but replica {} is", seen.len() - 1),
                "every replica of the program must be in a group",
            )
            .hint(format!("a replica that exchanges nothing is a group by itself: [{missing}]")));
    }
    Ok(groups)
}

/// The common size of all groups.
fn group_size(call: &Call<'_>) -> Result<usize, OpError> {
    let groups = groups(call)?;
    let size = groups[0].len();
    match groups.iter().find(|group| group.len() != size) {
        None => Ok(size),
        Some(other) => Err(call.attr_error(
            format!("replica_groups has groups of {size} and of {} replicas", other.len()),
            "all groups must have the same size, because the result's size depends on it",
        )),
    }
}

/// Checks the channel at `place` and, if the op has it, the flag after it.
///
/// With one partition, `cross_replica`, `cross_replica_and_partition` and `flattened_ids` of the
/// specification are the same groups.
fn channel(call: &Call<'_>, place: usize) -> Result<(), OpError> {
    let handle = match &call.attrs.values()[place] {
        AttrValue::Absent => 0,
        _ => {
            let channel = call.attr().group(place);
            if !matches!(channel.int(1), 0 | 1) {
                return Err(call.attr_error(
                    format!("channel_handle has type {}", channel.int(1)),
                    "channels between devices have type 0 or 1; channels to the host are not supported",
                ));
            }
            channel.int(0)
        }
    };
    match call.attrs.values().get(place + 1) {
        Some(AttrValue::Bool(true)) if handle <= 0 => Err(call.attr_error(
            "use_global_device_ids is set without a channel",
            "it needs a channel_handle whose handle is above 0",
        )),
        Some(_) => Ok(()),
        None if handle > 0 => Err(call
            .attr_error(
                format!(
                    "channel_handle is {handle}, which makes its participants partitions (cross_partition)"
                ),
                "a program has one partition per replica",
            )
            .hint("leave channel_handle out: replicas need none")),
        None => Ok(()),
    }
}

/// The type with another size along `axis`.
fn resized(
    call: &Call<'_>,
    ty: &TensorType,
    axis: usize,
    size: impl FnOnce(i128) -> i128,
) -> Result<TensorType, OpError> {
    let mut dims = ty.dims().to_vec();
    dims[axis] = dim(call, &format!("dimension {axis} of the result"), size(dims[axis].into()))?;
    call.ty(ty.dtype(), &dims)
}

/// Checks that dimension `axis` of operand `index` can be split into `parts`.
fn splits(call: &Call<'_>, index: usize, axis: usize, parts: usize) -> Result<(), OpError> {
    let size = call.operand(index).dims()[axis];
    if size.is_multiple_of(parts as u64) {
        return Ok(());
    }
    Err(call.shape_error(
        format!("dimension {axis} of {} is {size}, but the groups have {parts} replicas", call.name(index)),
        "it must split into one equal part per replica of a group",
    ))
}

/// `all_gather`: each replica gets the operands of its group, joined along one dimension.
pub(in crate::op) fn all_gather(call: &Call<'_>) -> Result<Results, OpError> {
    channel(call, 2)?;
    let size = group_size(call)?;
    let result = |operand: &TensorType| {
        let axis = call.axis("all_gather_dim", call.attr().int(1), operand.rank())?;
        resized(call, operand, axis, |dim| dim * size as i128)
    };
    call.operands.iter().map(result).collect()
}

/// Checks that the body combines two scalars of a type that all operands promote to; returns that
/// type.
fn computation(call: &Call<'_>) -> Result<DType, OpError> {
    let mut returns = call.bodies[0].return_types();
    let (Some(ty), 0) = (returns.next(), returns.len()) else {
        return Err(call.error(
            OpErrorKind::Body,
            format!("computation returns {} values", call.bodies[0].returns().len()),
            "it must return one, the combination of its operands",
        ));
    };
    let (dtype, scalar) = (ty.dtype(), TensorType::scalar(ty.dtype()));
    call.body_type(0, &[scalar.clone(), scalar.clone()], &[scalar])?;
    match call.operands.iter().position(|operand| !promotes(operand.dtype(), dtype)) {
        None => Ok(dtype),
        Some(index) => Err(call.error(
            OpErrorKind::Body,
            format!("computation combines {dtype}, but {} is {}", call.name(index), call.operand(index)),
            "its type must be the operands', or a wider one of the same family",
        )),
    }
}

/// `all_reduce`: each replica gets the operands of its group, combined.
pub(in crate::op) fn all_reduce(call: &Call<'_>) -> Result<Results, OpError> {
    channel(call, 1)?;
    groups(call)?;
    let dtype = computation(call)?;
    Ok(call.operands.iter().map(|operand| operand.with_dtype(dtype)).collect())
}

/// `all_to_all`: each replica splits its operands, sends one part to each member of its group, and
/// joins the parts that it receives.
pub(in crate::op) fn all_to_all(call: &Call<'_>) -> Result<Results, OpError> {
    channel(call, 4)?;
    let size = group_size(call)?;
    let (split, concat, count) = (call.attr().int(1), call.attr().int(2), call.attr().int(3));
    if count != size as i64 {
        return Err(call.attr_error(
            format!("split_count is {count}, but the groups have {size} replicas"),
            "they must be equal: each replica of a group gets one part",
        ));
    }
    let result = |index: usize| {
        let operand = call.operand(index);
        let split = call.axis("split_dimension", split, operand.rank())?;
        let concat = call.axis("concat_dimension", concat, operand.rank())?;
        splits(call, index, split, size)?;
        let part = resized(call, operand, split, |dim| dim / size as i128)?;
        resized(call, &part, concat, |dim| dim * size as i128)
    };
    (0..call.operands.len()).map(result).collect()
}

/// `collective_broadcast`: each replica gets the operands of the first member of its group; others
/// get zeros.
pub(in crate::op) fn collective_broadcast(call: &Call<'_>) -> Result<Results, OpError> {
    channel(call, 1)?;
    groups(call)?;
    Ok(call.operands.iter().cloned().collect())
}

/// `collective_permute`: each replica gets the operand of its sender, or zeros if it has none.
pub(in crate::op) fn collective_permute(call: &Call<'_>) -> Result<Results, OpError> {
    const ATTR: &str = "source_target_pairs";
    channel(call, 1)?;
    let mut seen = [vec![], vec![]];
    for &(source, target) in call.attr().pairs(0) {
        for (id, (seen, as_what)) in
            [source, target].into_iter().zip(seen.iter_mut().zip(["source", "target"]))
        {
            let id = replica(call, ATTR, id)?;
            if seen.len() <= id {
                seen.resize(id + 1, false);
            }
            if std::mem::replace(&mut seen[id], true) {
                let attr = format!("{ATTR} as a {as_what}");
                return Err(twice(
                    call,
                    &attr,
                    id,
                    "a replica may send to at most one replica and receive from at most one",
                ));
            }
        }
    }
    Ok(one(call.operand(0).clone()))
}

/// `reduce_scatter`: each replica gets its part of the combined operands of its group.
pub(in crate::op) fn reduce_scatter(call: &Call<'_>) -> Result<Results, OpError> {
    channel(call, 2)?;
    let size = group_size(call)?;
    let axis = call.axis("scatter_dimension", call.attr().int(1), call.operand(0).rank())?;
    let dtype = computation(call)?;
    splits(call, 0, axis, size)?;
    let part = resized(call, call.operand(0), axis, |dim| dim / size as i128)?;
    Ok(one(part.with_dtype(dtype)))
}

/// `replica_id` and `partition_id`.
pub(in crate::op) fn place(_call: &Call<'_>) -> Result<Results, OpError> {
    Ok(smallvec![TensorType::scalar(DType::U32)])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::Attrs;
    use crate::groups::Groups;
    use crate::ir::{Body, Effect, Graph, Signature};
    use crate::op::attrs;

    fn refusal(op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], dims: &[u64]) -> String {
        let ty = TensorType::of(DType::F32, dims).expect("small");
        let error = Signature::infer(op, attrs, bodies, &[ty]).expect_err("it breaks a rule");
        error.to_string()
    }

    fn channel(attrs: &Attrs, place: usize, handle: i64, kind: i64, global: Option<bool>) -> Attrs {
        let mut values = attrs.values().to_vec();
        values[place] = AttrValue::Struct(Box::new([handle.into(), kind.into()]));
        if let Some(global) = global {
            values[place + 1] = global.into();
        }
        values.into_iter().collect()
    }

    #[test]
    fn what_is_wrong_with_groups_is_said() {
        let gather = |rows: &[Vec<i64>]| {
            refusal(OpCode::AllGather, attrs::all_gather(Groups::new(rows), 0), &[], &[4])
        };
        for (rows, wanted) in [
            (
                vec![],
                "replica_groups is empty; each replica that takes part must be in a group; [[0, 1]] is one",
            ),
            (vec![vec![0, 1], vec![]], "group 1 has no replica"),
            (
                vec![vec![0, -1, 1]],
                "group 0 is [0, -1, 1]; -1 may only pad the end of a group that is smaller than the others",
            ),
            (vec![vec![0, -2]], "replica_groups names replica -2; replicas are numbered from 0"),
            (
                vec![vec![0, 1], vec![1, 2]],
                "replica 1 appears twice in replica_groups; a replica must be in one group",
            ),
            (
                vec![vec![0, 2]],
                "replica 1 is in no group, but replica 2 is; every replica of the program must be in a",
            ),
            (vec![vec![0, 2]], "a replica that exchanges nothing is a group by itself: [1]"),
            (
                vec![vec![0, 1], vec![2]],
                "replica_groups has groups of 2 and of 1 replicas; all groups must have",
            ),
            (vec![vec![1 << 40]], "names replica 1099511627776; a program has at most 2048 replicas"),
        ] {
            let said = gather(&rows);
            assert!(said.starts_with("all_gather: ") && said.contains(wanted), "{rows:?}: {said}");
        }
    }

    #[test]
    fn what_is_wrong_with_sizes_and_channels_is_said() {
        let two = || Groups::all(2);
        let add = [Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).expect("a body"))];
        let narrow = [Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::BF16)).expect("a body"))];
        let mut split = attrs::all_to_all(two(), 0, 0).values().to_vec();
        split[3] = 3.into();
        let gather = attrs::all_gather(two(), 0);
        let (all_to_all, scatter) = (attrs::all_to_all(two(), 0, 0), attrs::reduce_scatter(two(), 0));
        for (said, wanted) in [
            (
                refusal(OpCode::AllGather, attrs::all_gather(two(), 1), &[], &[4]),
                "all_gather_dim has dimension 1",
            ),
            (
                refusal(OpCode::AllToAll, split.into_iter().collect(), &[], &[6]),
                "split_count is 3, but the groups have 2 replicas; they must be equal",
            ),
            (
                refusal(OpCode::AllToAll, all_to_all.clone(), &[], &[3]),
                "dimension 0 of operands 0 is 3, but the groups have 2 replicas; it must split into one equal part",
            ),
            (
                refusal(OpCode::ReduceScatter, scatter, &add, &[3]),
                "dimension 0 of operand is 3, but the groups have 2 replicas",
            ),
            (
                refusal(OpCode::AllReduce, attrs::all_reduce(two()), &narrow, &[3]),
                "computation combines bf16, but operands 0 is f32[3]; its type must be the operands', or a wider one",
            ),
            (
                refusal(OpCode::CollectivePermute, attrs::collective_permute(&[(0, 1), (0, 2)]), &[], &[3]),
                "replica 0 appears twice in source_target_pairs as a source; a replica may send to at most one",
            ),
            (
                refusal(OpCode::AllToAll, channel(&all_to_all, 4, 1, 0, None), &[], &[4]),
                "channel_handle is 1, which makes its participants partitions (cross_partition); a program has one",
            ),
            (
                refusal(OpCode::AllGather, channel(&gather, 2, 0, 0, Some(true)), &[], &[4]),
                "use_global_device_ids is set without a channel",
            ),
            (
                refusal(OpCode::AllGather, channel(&gather, 2, 1, 3, None), &[], &[4]),
                "channel_handle has type 3",
            ),
        ] {
            assert!(said.contains(wanted), "{said}");
        }
    }

    /// A body that is applied to elements cannot contain a collective, because its participants
    /// would be undefined.
    #[test]
    fn collectives_do_not_stand_in_bodies_of_elements() {
        let scalar = TensorType::scalar(DType::F32);
        let sum = Arc::new(Body::binary(OpCode::Add, scalar.clone()).expect("a body"));
        let mut graph = Graph::new();
        let (a, _) = (graph.param(scalar.clone()), graph.param(scalar));
        let inner = graph.push(
            OpCode::AllReduce,
            attrs::all_reduce(Groups::all(2)),
            std::slice::from_ref(&sum),
            &[a],
        );
        let body = Arc::new(Body::new(graph, &inner.expect("a sum")).expect("a body"));
        let said = refusal(OpCode::AllReduce, attrs::all_reduce(Groups::all(2)), &[body], &[3]);
        assert!(said.contains("computation has all_reduce; ops with effects"), "{said}");
        let ty = TensorType::of(DType::F32, &[3]).expect("small");
        let whole = Signature::infer(OpCode::AllReduce, attrs::all_reduce(Groups::all(2)), &[sum], &[ty]);
        let whole = whole.expect("a sum");
        assert_eq!((whole.effect(), whole.is_joint(), whole.exchanges()), (Effect::Pure, true, true));
        let place = Signature::infer(OpCode::ReplicaId, Attrs::none(), &[], &[]).expect("a number");
        assert_eq!((place.effect(), place.is_joint(), place.exchanges()), (Effect::Pure, true, false));
    }
}
