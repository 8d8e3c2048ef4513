//! Ops on complex numbers.

use super::{Builder, Lowered, expanded};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::OpError;
use crate::op::attrs;
use crate::op::call::Call;
use crate::op::code::{Comparison, OpCode};

/// XLA takes the parts of complex numbers only. The real part of a float is the float, its imaginary part zero.
pub(in crate::op) fn part(call: &Call<'_>) -> Lowered {
    if call.operand(0).dtype().is_complex() { Lowered::Itself } else { expanded(part_of_real(call)) }
}

fn part_of_real(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, params) = Builder::of(call);
    let part = match call.def.code {
        OpCode::Real => graph.op(OpCode::Convert, attrs::convert(call.operand(0).dtype()), &params)?,
        _ => graph.int(0, call.operand(0))?,
    };
    Ok(graph.returning(&[part]))
}

/// XLA's CPU backend has no maximum and minimum of complex numbers that follow the specification's order: by real parts,
/// then by imaginary parts.
pub(super) fn selected_by_order(call: &Call<'_>) -> Result<Lowered, OpError> {
    let part: DType = call.operand(0).dtype().part();
    let direction = if call.def.code == OpCode::Maximum { Comparison::Gt } else { Comparison::Lt };
    let (mut graph, params) = Builder::of(call);
    let mut parts = |op| -> Result<_, OpError> {
        Ok([graph.op(op, Attrs::none(), &params[..1])?, graph.op(op, Attrs::none(), &params[1..])?])
    };
    let (re, im) = (parts(OpCode::Real)?, parts(OpCode::Imag)?);
    let beyond = attrs::compare_for(direction, part);
    let first = graph.op(OpCode::Compare, beyond.clone(), &re)?;
    let same = graph.op(OpCode::Compare, attrs::compare_for(Comparison::Eq, part), &re)?;
    // Equal numbers are the same number, whichever is taken.
    let second = graph.op(OpCode::Compare, beyond, &im)?;
    let tie = graph.op(OpCode::And, Attrs::none(), &[same, second])?;
    let left = graph.op(OpCode::Or, Attrs::none(), &[first, tie])?;
    let result = graph.op(OpCode::Select, Attrs::none(), &[left, params[0], params[1]])?;
    Ok(graph.returning(&[result]))
}
