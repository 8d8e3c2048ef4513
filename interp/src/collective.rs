//! Collective ops, built from the ops that move elements and from the bodies that combine them.
//!
//! Elements are combined in the order of the group, from the left. That is one of the orders that
//! the specification allows.

use std::sync::Arc;

use fuseline_fusion::element::Store;
use fuseline_fusion::op::attrs;
use fuseline_fusion::{Attrs, Literal, OpCode, Signature, TensorType};

use super::function::Function;
use super::reduction::{combine, converted};
use super::{EvalCall, EvalError, JointCall, call};

/// Results by replica.
type Each = Vec<Vec<Literal>>;

/// The groups of a call, checked against the number of replicas.
fn groups(call: &JointCall<'_>) -> Result<Vec<Vec<usize>>, EvalError> {
    call.signature.check_replicas(call.operands.len()).map_err(EvalError::Replicas)?;
    let ids = |group: &[i64]| group.iter().map(|&id| id as usize).collect();
    Ok(call.signature.attrs().view().groups(0).members().map(ids).collect())
}

/// Runs an op that moves elements; returns its result.
fn moved(op: OpCode, attrs: Attrs, operands: &[Arc<Literal>]) -> Result<Literal, EvalError> {
    let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
    let signature =
        Signature::infer(op, attrs, &[], &types).expect("bug: a part of a collective is rejected");
    Ok(call(&signature, operands)?.remove(0))
}

/// Part `index` of `count` equal parts along a dimension.
fn part(data: &Arc<Literal>, axis: usize, count: usize, index: usize) -> Result<Arc<Literal>, EvalError> {
    let size = data.dims()[axis] as i64 / count as i64;
    let (mut starts, mut limits) = (vec![0; data.dims().len()], vec![]);
    limits.extend(data.dims().iter().map(|&dim| dim as i64));
    (starts[axis], limits[axis]) = (size * index as i64, size * (index as i64 + 1));
    let strides = vec![1; starts.len()];
    moved(OpCode::Slice, attrs::slice(&starts, &limits, &strides), std::slice::from_ref(data)).map(Arc::new)
}

/// Empty results for each replica.
fn nothing(call: &JointCall<'_>) -> Each {
    call.operands.iter().map(|_| Vec::with_capacity(call.signature.results().len())).collect()
}

/// Zero results for each replica.
fn zeros(call: &JointCall<'_>) -> Each {
    let zeros = || call.signature.results().iter().map(|ty| Literal::zeros(ty.clone())).collect();
    call.operands.iter().map(|_| zeros()).collect()
}

/// `all_gather`.
///
/// # Errors
/// If the groups do not fit the number of replicas.
pub(super) fn all_gather(call: &JointCall<'_>) -> Result<Each, EvalError> {
    let mut each = nothing(call);
    let axis = call.signature.attrs().view().int(1);
    for group in groups(call)? {
        for index in 0..call.signature.operands().len() {
            let parts: Vec<_> = group.iter().map(|&from| call.operands[from][index].clone()).collect();
            let all = moved(OpCode::Concatenate, attrs::concatenate(axis), &parts)?;
            group.iter().for_each(|&to| each[to].push(all.clone()));
        }
    }
    Ok(each)
}

/// Operand `index` of the replicas of a group, combined.
fn combined(call: &JointCall<'_>, group: &[usize], index: usize) -> Result<Literal, EvalError> {
    let mut function = Function::new(&call.signature.bodies()[0], call.arithmetic);
    let dtype = function.types()[0];
    let operands = group.iter().map(|&from| &*call.operands[from][index]);
    let operands = converted(operands, &vec![dtype; group.len()]);
    let ty = call.signature.operands()[index].with_dtype(dtype);
    let elements = ty.elems().get();
    let mut result = [Store::collect(ty, (0..elements).map(|place| operands[0].get(place)))];
    for operand in &operands[1..] {
        for place in 0..elements {
            combine(&mut function, &mut result, place, [operand.get(place)])?;
        }
    }
    let [result] = result;
    Ok(result.finish())
}

/// `all_reduce`.
///
/// # Errors
/// If the body fails, or the groups do not fit the number of replicas.
pub(super) fn all_reduce(call: &JointCall<'_>) -> Result<Each, EvalError> {
    let mut each = nothing(call);
    for group in groups(call)? {
        for index in 0..call.signature.operands().len() {
            let all = combined(call, &group, index)?;
            group.iter().for_each(|&to| each[to].push(all.clone()));
        }
    }
    Ok(each)
}

/// `all_to_all`.
///
/// # Errors
/// If the groups do not fit the number of replicas.
pub(super) fn all_to_all(call: &JointCall<'_>) -> Result<Each, EvalError> {
    let mut each = nothing(call);
    let view = call.signature.attrs().view();
    let (split, concat) = (view.int(1) as usize, view.int(2));
    for group in groups(call)? {
        for (place, &to) in group.iter().enumerate() {
            for index in 0..call.signature.operands().len() {
                let mine = |&from: &usize| part(&call.operands[from][index], split, group.len(), place);
                let parts = group.iter().map(mine).collect::<Result<Vec<_>, _>>()?;
                each[to].push(moved(OpCode::Concatenate, attrs::concatenate(concat), &parts)?);
            }
        }
    }
    Ok(each)
}

/// `collective_broadcast`.
///
/// # Errors
/// If the groups do not fit the number of replicas.
pub(super) fn collective_broadcast(call: &JointCall<'_>) -> Result<Each, EvalError> {
    let mut each = zeros(call);
    for group in groups(call)? {
        let root = &call.operands[group[0]];
        for &to in &group {
            each[to] = root.iter().map(|data| Literal::clone(data)).collect();
        }
    }
    Ok(each)
}

/// `collective_permute`.
///
/// # Errors
/// If the pairs do not fit the number of replicas.
pub(super) fn collective_permute(call: &JointCall<'_>) -> Result<Each, EvalError> {
    call.signature.check_replicas(call.operands.len()).map_err(EvalError::Replicas)?;
    let mut each = zeros(call);
    for &(source, target) in call.signature.attrs().view().pairs(0) {
        each[target as usize] = vec![Literal::clone(&call.operands[source as usize][0])];
    }
    Ok(each)
}

/// `reduce_scatter`.
///
/// # Errors
/// If the body fails, or the groups do not fit the number of replicas.
pub(super) fn reduce_scatter(call: &JointCall<'_>) -> Result<Each, EvalError> {
    let mut each = nothing(call);
    let axis = call.signature.attrs().view().int(1) as usize;
    for group in groups(call)? {
        let all = Arc::new(combined(call, &group, 0)?);
        for (place, &to) in group.iter().enumerate() {
            each[to].push(Literal::clone(&*part(&all, axis, group.len(), place)?));
        }
    }
    Ok(each)
}

/// `replica_id`.
///
/// # Errors
/// None.
pub(super) fn replica_id(call: &JointCall<'_>) -> Result<Each, EvalError> {
    Ok((0..call.operands.len()).map(|replica| vec![Literal::scalar(replica as u32)]).collect())
}

/// `partition_id`.
///
/// # Errors
/// None.
pub(super) fn partition_id(_call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Ok(vec![Literal::scalar(0u32)])
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{Body, DType, Element, Groups};

    use super::*;
    use crate::{Arithmetic, call_replicated};

    fn literal<T: Element>(dims: &[u64], data: &[T]) -> Vec<Arc<Literal>> {
        vec![Arc::new(Literal::from_slice(dims, data).expect("fits"))]
    }

    /// The first result of each replica.
    fn run(op: OpCode, attrs: Attrs, body: Option<OpCode>, operands: &[Vec<Arc<Literal>>]) -> Each {
        let types: Vec<TensorType> = operands[0].iter().map(|data| data.ty().clone()).collect();
        let body = body.map(|op| Body::binary(op, TensorType::scalar(types[0].dtype())).expect("a body"));
        let bodies: Vec<Arc<Body>> = body.into_iter().map(Arc::new).collect();
        let signature = Signature::infer(op, attrs, &bodies, &types).expect("accepted");
        call_replicated(Arithmetic::REFERENCE, &signature, operands).expect("runs")
    }

    fn check<T: Element + PartialEq + std::fmt::Debug>(each: &Each, dims: &[u64], wanted: &[&[T]]) {
        for (replica, (results, wanted)) in each.iter().zip(wanted).enumerate() {
            assert_eq!(results[0].dims(), dims);
            assert_eq!(results[0].to_vec::<T>().expect("the type"), *wanted, "replica {replica}");
        }
        assert_eq!(each.len(), wanted.len());
    }

    // The examples of the specification, some also with groups in another order.

    #[test]
    fn all_gather_joins_in_the_order_of_the_group() {
        let operands = [[1i64, 2, 3, 4], [5, 6, 7, 8]].map(|data| literal(&[2, 2], &data));
        let gathered = run(OpCode::AllGather, attrs::all_gather(Groups::all(2), 1), None, &operands);
        check(&gathered, &[2, 4], &[&[1i64, 2, 5, 6, 3, 4, 7, 8][..]; 2]);
        let turned = attrs::all_gather(Groups::new(&[[1, 0]]), 0);
        let gathered = run(OpCode::AllGather, turned, None, &operands);
        check(&gathered, &[4, 2], &[&[5i64, 6, 7, 8, 1, 2, 3, 4][..]; 2]);
    }

    #[test]
    fn all_reduce_combines_from_the_left() {
        let operands = [[1i64, 2, 3, 4], [5, 6, 7, 8]].map(|data| literal(&[4], &data));
        let add = Some(OpCode::Add);
        let reduced = run(OpCode::AllReduce, attrs::all_reduce(Groups::all(2)), add, &operands);
        check(&reduced, &[4], &[&[6i64, 8, 10, 12][..]; 2]);
        let operands = [[10i64], [3], [2], [7]].map(|data| literal(&[1], &data));
        let groups = Groups::new(&[vec![2, 0, 3], vec![1]]);
        let reduced = run(OpCode::AllReduce, attrs::all_reduce(groups), Some(OpCode::Subtract), &operands);
        check(&reduced, &[1], &[&[2i64 - 10 - 7], &[3], &[-15], &[-15]]);
    }

    #[test]
    fn all_to_all_gives_each_member_its_part() {
        let operands = [[1i64, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16]];
        let operands = operands.map(|data| literal(&[2, 4], &data));
        let exchanged = run(OpCode::AllToAll, attrs::all_to_all(Groups::all(2), 1, 0), None, &operands);
        check(&exchanged, &[4, 2], &[&[1i64, 2, 5, 6, 9, 10, 13, 14], &[3, 4, 7, 8, 11, 12, 15, 16]]);
    }

    #[test]
    fn broadcast_and_permute_leave_zeros_where_nothing_arrives() {
        let operands = [[1i64, 2], [3, 4], [5, 6], [7, 8]].map(|data| literal(&[1, 2], &data));
        let groups = attrs::collective_broadcast(Groups::new(&[[2, 1]]));
        let sent = run(OpCode::CollectiveBroadcast, groups, None, &operands);
        check(&sent, &[1, 2], &[&[0i64, 0], &[5, 6], &[5, 6], &[0, 0]]);
        let operands = [[1i64, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]].map(|data| literal(&[2, 2], &data));
        let sent =
            run(OpCode::CollectivePermute, attrs::collective_permute(&[(0, 1), (1, 2)]), None, &operands);
        check(&sent, &[2, 2], &[&[0i64, 0, 0, 0], &[1, 2, 3, 4], &[5, 6, 7, 8]]);
    }

    #[test]
    fn reduce_scatter_gives_each_member_its_part() {
        let operands = [[1i64, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16]];
        let operands = operands.map(|data| literal(&[2, 4], &data));
        let attrs = attrs::reduce_scatter(Groups::all(2), 1);
        let scattered = run(OpCode::ReduceScatter, attrs, Some(OpCode::Add), &operands);
        check(&scattered, &[2, 2], &[&[10i64, 12, 18, 20], &[14, 16, 22, 24]]);
    }

    #[test]
    fn a_body_may_be_wider_than_the_operands() {
        let operands = [literal(&[1], &[i8::MAX]), literal(&[1], &[1i8])];
        let body = Body::binary(OpCode::Add, TensorType::scalar(DType::I32)).expect("a body");
        let types = [operands[0][0].ty().clone()];
        let signature =
            Signature::infer(OpCode::AllReduce, attrs::all_reduce(Groups::all(2)), &[Arc::new(body)], &types);
        let each =
            call_replicated(Arithmetic::REFERENCE, &signature.expect("accepted"), &operands).expect("runs");
        check(&each, &[1], &[&[128i32][..]; 2]);
    }

    #[test]
    fn every_replica_knows_its_number() {
        let each = run(OpCode::ReplicaId, Attrs::none(), None, &[vec![], vec![], vec![]]);
        check(&each, &[], &[&[0u32], &[1], &[2]]);
        let each = run(OpCode::PartitionId, Attrs::none(), None, &[vec![], vec![]]);
        check(&each, &[], &[&[0u32], &[0]]);
    }

    #[test]
    fn a_call_for_other_replicas_is_refused() {
        let operands = [literal(&[1], &[1i32]), literal(&[1], &[2i32])];
        let types = [operands[0][0].ty().clone()];
        let four = Signature::infer(OpCode::AllGather, attrs::all_gather(Groups::all(4), 0), &[], &types);
        let four = four.expect("accepted");
        let error =
            call_replicated(Arithmetic::REFERENCE, &four, &operands).expect_err("two are there").to_string();
        assert_eq!(
            error,
            "all_gather: its groups name 4 replicas, but the program runs on 2; every replica of \
             the program must be in a group; run it on 4 replicas, or group the replicas 0 to 1"
        );
        assert_eq!(four.check_replicas(2).expect_err("two are there").to_string(), error);
        assert!(call(&four, &operands[0]).is_err() && four.check_replicas(4).is_ok());
        let far = attrs::collective_permute(&[(0, 5)]);
        let far = Signature::infer(OpCode::CollectivePermute, far, &[], &types).expect("accepted");
        let error =
            call_replicated(Arithmetic::REFERENCE, &far, &operands).expect_err("two are there").to_string();
        assert!(
            error.contains("it names replica 5, but the program runs on 2; its replicas are 0 to 1"),
            "{error}"
        );
    }
}
