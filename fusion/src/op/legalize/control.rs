//! Legalizes ops that run a body on each element or on each pair.

use std::sync::Arc;

use super::combine::{common_float, in_other_types};
use super::loops::{self, is_scalar_code};
use super::{Builder, Lowered, expanded};
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{Body, OpCode, Ref};
use crate::op::attrs;
use crate::op::def::Call;
use crate::op::enums::{Comparison, ComparisonType};
use crate::shape::TensorType;

/// `map` in the types of its operands, or in types that XLA accepts.
pub(in crate::op) fn map(call: &Call<'_>) -> Lowered {
    if !is_scalar_code(&call.bodies[0]) {
        return expanded(loops::map(call));
    }
    match common_float(call.operands.iter().map(TensorType::dtype)) {
        Some(wide) => expanded(in_one_float(call, wide)),
        None => Lowered::Itself,
    }
}

fn in_one_float(call: &Call<'_>, wide: DType) -> Result<Lowered, OpError> {
    let outer = |dtype: DType| if dtype.is_float() { wide } else { dtype };
    let (mut graph, mut operands) = Builder::of(call);
    for (operand, ty) in operands.iter_mut().zip(call.operands) {
        *operand = graph.convert(*operand, ty.dtype(), outer(ty.dtype()))?;
    }
    let body = Arc::new(in_other_types(&call.bodies[0], outer, |dtype| dtype)?);
    let results = graph.0.push(OpCode::Map, call.attrs.clone(), &[body], &operands)?;
    Ok(graph.returning(&results))
}

/// Requests a stable sort, unless the comparator is known to be an order. XLA's CPU backend calls
/// the comparator from an algorithm that reads out of bounds if the comparator is inconsistent, as
/// `LE` is on equal elements and `LT` on NaN: the process crashes or hangs. The stable sort stays
/// in bounds for any comparator.
pub(in crate::op) fn sort(call: &Call<'_>) -> Lowered {
    if !is_scalar_code(&call.bodies[0]) {
        return expanded(loops::sort(call));
    }
    if call.attr().bool(1) || is_order(&call.bodies[0]) {
        return Lowered::Itself;
    }
    let (mut graph, params) = Builder::of(call);
    let sorted = graph.0.push(OpCode::Sort, attrs::sort(call.attr().int(0), true), call.bodies, &params);
    expanded(sorted.map(|results| graph.returning(&results)))
}

/// Whether a comparator is one comparison of two elements of an operand, by an order without
/// exceptions.
fn is_order(comparator: &Body) -> bool {
    let [node] = comparator.graph().nodes() else { return false };
    let (signature, operands) = (node.signature(), node.operands());
    let pair = match *operands {
        [Ref::Param(left), Ref::Param(right)] => left / 2 == right / 2 && left != right,
        _ => false,
    };
    let member = |place| usize::from(signature.attrs().view().member(place));
    signature.op() == OpCode::Compare
        && pair
        && matches!(Comparison::ALL[member(0)], Comparison::Lt | Comparison::Gt)
        && (!signature.operands()[0].dtype().is_float() || member(1) == ComparisonType::TotalOrder as usize)
        && comparator.returns() == [Ref::Result(0)]
}
