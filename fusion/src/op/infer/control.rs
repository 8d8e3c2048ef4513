//! Ops that run bodies: loops, branches, sorting, and `map`.

use crate::DType;
use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

/// The return type of conditions and comparators.
fn truth() -> [TensorType; 1] {
    [TensorType::scalar(DType::Bool)]
}

/// Checks that body `index` returns one `bool`; `what` is its meaning, for the message.
fn decides(call: &Call<'_>, index: usize, what: &str) -> Result<(), OpError> {
    let found: Vec<&TensorType> = call.bodies[index].return_types().collect();
    if found == truth().iter().collect::<Vec<_>>() {
        return Ok(());
    }
    let error = call.error(
        OpErrorKind::Body,
        format!("{} returns {found:?}", call.body_name(index)),
        format!("it must return one {}, which says {what}", truth()[0]),
    );
    Err(match found[..] {
        [ty] if ty.dtype() == DType::Bool => error.hint("reduce it with `and` or `or`"),
        [ty] if ty.rank() == 0 => error.hint("compare it with 0"),
        _ => error,
    })
}

/// `while`: the carried values after the last step. The condition decides whether another step
/// runs.
pub(in crate::op) fn while_loop(call: &Call<'_>) -> Result<Results, OpError> {
    let carried = call.operands;
    let value = |place: usize| format!("carried value {place}");
    for body in 0..2 {
        call.body_takes(body, carried, value, "one per carried value")?;
    }
    decides(call, 0, "whether there is another step")?;
    call.body_returns(1, carried, value, "a step returns every carried value in its type")?;
    Ok(carried.iter().cloned().collect())
}

/// The results of branches that take all operands but the first.
fn branches(call: &Call<'_>) -> Result<Results, OpError> {
    let captured = &call.operands[1..];
    for body in 0..call.bodies.len() {
        let rule = "one per captured operand, whether the branch uses it or not";
        call.body_takes(body, captured, |place| format!("captured operand {place}"), rule)?;
    }
    let results: Results = call.bodies[0].return_types().cloned().collect();
    let first = call.body_name(0);
    for body in 1..call.bodies.len() {
        let what = |place: usize| format!("result {place} of {first}");
        call.body_returns(body, &results, what, "all branches must return the same types")?;
    }
    Ok(results)
}

/// Checks operand 0, which selects a branch: a scalar of the row's type.
fn selector(call: &Call<'_>, hint: &str) -> Result<(), OpError> {
    let dtype = call.operand(0).dtype();
    if !call.def.dtypes.contains(dtype) {
        let (given, rule) =
            (format!("{} is {}", call.name(0), call.operand(0)), format!("it must be {}", call.def.dtypes));
        return Err(call.error(OpErrorKind::DType, given, rule).hint(hint));
    }
    call.scalar(0)
}

/// `if`: the results of one of two branches.
pub(in crate::op) fn if_else(call: &Call<'_>) -> Result<Results, OpError> {
    selector(call, "compare it with 0")?;
    branches(call)
}

/// `case`: the results of branch number `index`.
pub(in crate::op) fn case(call: &Call<'_>) -> Result<Results, OpError> {
    selector(call, "convert it to i32")?;
    branches(call)
}

/// `sort`: the operands, sorted together along a dimension. The specification counts a negative
/// dimension from the end, but may stop (openxla/stablehlo#1377). This rule requires the positive
/// form, so that equal calls have equal keys.
pub(in crate::op) fn sort(call: &Call<'_>) -> Result<Results, OpError> {
    for index in 1..call.operands.len() {
        call.same_shape(index, 0)?;
    }
    call.axis("dimension", call.attr().int(0), call.operand(0).rank())?;
    let elements = || call.operands.iter().map(|operand| TensorType::scalar(operand.dtype()));
    let wanted: Vec<TensorType> = elements().flat_map(|element| [element.clone(), element]).collect();
    let element = |place: usize| {
        format!(
            "the {} element of {}",
            if place.is_multiple_of(2) { "left" } else { "right" },
            call.name(place / 2)
        )
    };
    let rule = "two elements per operand, left and right of one operand after the other";
    call.body_takes(0, &wanted, element, rule)?;
    decides(call, 0, "whether the left elements come before the right ones")?;
    Ok(call.operands.iter().cloned().collect())
}

/// `map`: the results of the body on the operands' elements at each position.
pub(in crate::op) fn map(call: &Call<'_>) -> Result<Results, OpError> {
    for index in 0..call.operands.len() {
        call.same_shape(index, 0)?;
    }
    let (dimensions, rank) = (call.attr().ints(0), call.operand(0).rank());
    if !dimensions.iter().copied().eq(0..rank as i64) {
        return Err(call
            .attr_error(
                format!("dimensions is {dimensions:?} and the operands have rank {rank}"),
                "a function must be mapped over all dimensions, in order",
            )
            .hint(format!("give {:?}", (0..rank).collect::<Vec<_>>())));
    }
    let elements: Vec<TensorType> =
        call.operands.iter().map(|operand| TensorType::scalar(operand.dtype())).collect();
    let element = |place: usize| format!("the element of {}", call.name(place));
    call.body_takes(0, &elements, element, "one element per operand")?;
    let mut returns = call.bodies[0].return_types();
    match (returns.next(), returns.next()) {
        (Some(ty), None) if ty.rank() == 0 => Ok(one(call.operand(0).with_dtype(ty.dtype()))),
        _ => {
            let found: Vec<&TensorType> = call.bodies[0].return_types().collect();
            let name = call.body_name(0);
            Err(call.error(
                OpErrorKind::Body,
                format!("{name} returns {found:?}"),
                "it must return one scalar",
            ))
        }
    }
}
