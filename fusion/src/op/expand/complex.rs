//! Ops on complex numbers.

use super::{Builder, Lowered, expanded};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Ref;
use crate::op::attrs;
use crate::op::call::Call;
use crate::op::code::{Comparison, OpCode};
use crate::shape::{Shape, TensorType};

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

/// XLA's CPU backend has no cube root of complex numbers: the cube root of the distance from zero, at a third of the angle.
pub(super) fn cube_root(call: &Call<'_>) -> Result<Lowered, OpError> {
    let part = TensorType::new(call.operand(0).dtype().part(), call.operand(0).shape().clone());
    let part = part.map_err(|error| call.size_error(&error))?;
    let (mut graph, params) = Builder::of(call);
    let mut op = |op, operands: &[Ref]| graph.op(op, Attrs::none(), operands);
    let length = op(OpCode::Abs, &params)?;
    let length = op(OpCode::Cbrt, &[length])?;
    let (re, im) = (op(OpCode::Real, &params)?, op(OpCode::Imag, &params)?);
    let angle = op(OpCode::Atan2, &[im, re])?;
    let three = graph.int(3, &part)?;
    let mut op = |op, operands: &[Ref]| graph.op(op, Attrs::none(), operands);
    let angle = op(OpCode::Divide, &[angle, three])?;
    let (cosine, sine) = (op(OpCode::Cosine, &[angle])?, op(OpCode::Sine, &[angle])?);
    let (re, im) = (op(OpCode::Multiply, &[length, cosine])?, op(OpCode::Multiply, &[length, sine])?);
    let result = op(OpCode::Complex, &[re, im])?;
    Ok(graph.returning(&[result]))
}

/// XLA refuses to bit-cast complex numbers. Between those of 128 and of 64 bits, a part of the wider one is the two parts of
/// a narrower one; the first of two narrower ones is the real part.
pub(super) fn bitcast(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (from, to) = (call.operand(0).dtype(), call.attr().dtype(0));
    let (mut graph, params) = Builder::of(call);
    if from == to {
        let same = graph.op(OpCode::Convert, attrs::convert(to), &params)?;
        return Ok(graph.returning(&[same]));
    }
    let [re, im] = [OpCode::Real, OpCode::Imag].map(|op| graph.op(op, Attrs::none(), &params));
    let dims = call.operand(0).dims();
    // Where the narrower numbers stand along the last dimension: in front of the parts of each.
    let narrow = if from.bits() > to.bits() { dims.len() } else { dims.len() - 1 };
    let mut split = Vec::new();
    for part in [re?, im?] {
        // `[.., 2]` of the narrower type either way: the two parts of one number, or the real parts of two.
        let halves = if from.bits() > to.bits() {
            graph.op(OpCode::BitcastConvert, attrs::convert(to.part()), &[part])?
        } else {
            part
        };
        split.push(halves);
    }
    let mut row: Vec<u64> = dims[..narrow].to_vec();
    let axis = if from.bits() > to.bits() { narrow } else { narrow + 1 };
    let mut stacked = row.clone();
    stacked.insert(narrow, 2);
    stacked.insert(axis, 1);
    let stacked = Shape::new(&stacked).map_err(|error| call.size_error(&error))?;
    let reshaped = split
        .iter()
        .map(|&half| graph.op(OpCode::Reshape, attrs::reshape(stacked.clone()), &[half]))
        .collect::<Result<Vec<_>, _>>()?;
    let mut pairs = graph.op(OpCode::Concatenate, attrs::concatenate(axis as i64), &reshaped)?;
    if to.bits() > from.bits() {
        pairs = graph.op(OpCode::BitcastConvert, attrs::convert(to.part()), &[pairs])?;
    }
    row.push(2);
    // `[.., 2, 2]` is cut along its last dimension, `[.., 2]` along its only one.
    let whole = if from.bits() > to.bits() { [row.as_slice(), &[2]].concat() } else { row.clone() };
    let last = whole.len() - 1;
    let kept = Shape::new(&whole[..last]).map_err(|error| call.size_error(&error))?;
    let mut parts = Vec::new();
    for place in 0..2 {
        let (mut start, mut limit) =
            (vec![0; whole.len()], whole.iter().map(|&dim| dim as i64).collect::<Vec<_>>());
        (start[last], limit[last]) = (place, place + 1);
        let cut = graph.op(OpCode::Slice, attrs::slice(&start, &limit, &vec![1; whole.len()]), &[pairs])?;
        parts.push(graph.op(OpCode::Reshape, attrs::reshape(kept.clone()), &[cut])?);
    }
    let result = graph.op(OpCode::Complex, Attrs::none(), &parts)?;
    Ok(graph.returning(&[result]))
}
