//! Ops that combine elements by a body.

use std::sync::Arc;

use super::{Builder, Lowered, expanded};
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Body, Graph, Ref};
use crate::op::attrs;
use crate::op::call::Call;
use crate::op::code::OpCode;
use crate::shape::TensorType;

/// A body may combine elements in a wider type than the operands have. XLA's CPU backend refuses that for `scatter`, and
/// for `reduce` ignores it and returns data of the operand's type. The operands are converted first, as the specification
/// says.
pub(in crate::op) fn combined(call: &Call<'_>) -> Lowered {
    if is_uniform(call) { Lowered::Itself } else { expanded(converted_first(call)) }
}

fn converted_first(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, operands) = converted(call)?;
    let results = graph.0.push(call.def.code, call.attrs.clone(), call.bodies, &operands)?;
    Ok(graph.returning(&results))
}

/// The type that the last body combines operand `index` in; `None` for the indices of a `scatter`.
fn combined_type(call: &Call<'_>, index: usize) -> Option<DType> {
    let types: Vec<DType> = call.bodies.last()?.return_types().map(TensorType::dtype).collect();
    let count = types.len();
    let index = match call.def.code {
        OpCode::Scatter if index == count => return None,
        OpCode::Scatter if index > count => index - 1,
        _ => index,
    };
    types.get(index % count).copied()
}

/// Whether all operands have the types they are combined in.
fn is_uniform(call: &Call<'_>) -> bool {
    let fits = |index: usize| combined_type(call, index).is_none_or(|to| to == call.operand(index).dtype());
    (0..call.operands.len()).all(fits)
}

/// A graph with the operands in the types they are combined in.
fn converted(call: &Call<'_>) -> Result<(Builder, Vec<Ref>), OpError> {
    let (mut graph, mut operands) = Builder::of(call);
    for (index, operand) in operands.iter_mut().enumerate() {
        if let Some(to) = combined_type(call, index) {
            *operand = graph.convert(*operand, call.operand(index).dtype(), to)?;
        }
    }
    Ok((graph, operands))
}

fn is_negative(padding: &[(i64, i64)]) -> bool {
    padding.iter().any(|&(low, high)| low < 0 || high < 0)
}

/// `reduce_window` with negative padding can abort the process. The operands are padded by an op of its own then.
pub(in crate::op) fn reduce_window(call: &Call<'_>) -> Lowered {
    if is_negative(call.attr().pairs(4)) { expanded(padded_first(call)) } else { combined(call) }
}

fn padded_first(call: &Call<'_>) -> Result<Lowered, OpError> {
    let attr = call.attr();
    let (low, high): (Vec<i64>, Vec<i64>) = attr.pairs(4).iter().copied().unzip();
    // Holes between elements count as elements with the initial value, as padding does.
    let interior: Vec<i64> = attr.ints(2).iter().map(|dilation| dilation - 1).collect();
    let (mut graph, mut operands) = converted(call)?;
    let (inputs, inits) = operands.split_at_mut(call.operands.len() / 2);
    for (input, &init) in inputs.iter_mut().zip(&*inits) {
        *input = graph.op(OpCode::Pad, attrs::pad(&low, &high, &interior), &[*input, init])?;
    }
    let mut values = call.attrs.values().to_vec();
    values[2] = AttrValue::from(vec![1; low.len()].as_slice());
    values[4] = AttrValue::from(vec![(0, 0); low.len()].as_slice());
    let results = graph.0.push(call.def.code, values.into_iter().collect(), call.bodies, &operands)?;
    Ok(graph.returning(&results))
}

/// `select_and_scatter` with negative padding selects other elements: it works on the part of the operand that the padding
/// leaves, and the rest of the result has the initial value. Where there are no positions, XLA's folder scatters all the
/// same; the result is the initial value everywhere.
pub(in crate::op) fn select_and_scatter(call: &Call<'_>) -> Lowered {
    if call.operand(1).elems().0 == 0 {
        return expanded(initial_values(call));
    }
    if is_uniform(call) && !is_negative(call.attr().pairs(2)) {
        return Lowered::Itself;
    }
    expanded(on_what_is_left(call))
}

fn initial_values(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, operands) = converted(call)?;
    let shape = call.operand(0).shape().clone();
    let result = graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[operands[2]])?;
    Ok(graph.returning(&[result]))
}

/// One dimension after its negative padding has been cut off.
pub(super) struct Cut {
    /// Elements cut off at the front.
    pub(super) low: i64,
    /// Elements cut off at the back.
    pub(super) high: i64,
    /// What is left of the padding.
    pub(super) padding: (i64, i64),
}

impl Cut {
    pub(super) fn of(size: u64, (mut low, mut high): (i64, i64)) -> Cut {
        let mut left = i64::try_from(size).unwrap_or(i64::MAX);
        let mut cut = |padding: &mut i64| {
            let cut = padding.saturating_neg().clamp(0, left);
            left -= cut;
            *padding += cut;
            cut
        };
        let (cut_low, cut_high) = (cut(&mut low), cut(&mut high));
        // Nothing is left where one side is still negative, so the sides are one.
        if low < 0 || high < 0 {
            (low, high) = (low.saturating_add(high), 0);
        }
        Cut { low: cut_low, high: cut_high, padding: (low, high) }
    }
}

fn on_what_is_left(call: &Call<'_>) -> Result<Lowered, OpError> {
    let attr = call.attr();
    let operand = call.operand(0);
    let cuts: Vec<Cut> =
        attr.pairs(2).iter().zip(operand.dims()).map(|(&pair, &size)| Cut::of(size, pair)).collect();
    let amounts = |amount: fn(&Cut) -> i64| -> Vec<i64> { cuts.iter().map(amount).collect() };
    let none = vec![0; cuts.len()];
    let is_cut = is_negative(attr.pairs(2));
    let (mut graph, mut operands) = converted(call)?;
    let init = operands[2];
    if is_cut {
        let cut_off = attrs::pad(&amounts(|cut| -cut.low), &amounts(|cut| -cut.high), &none);
        operands[0] = graph.op(OpCode::Pad, cut_off, &[operands[0], init])?;
    }
    let padding: Vec<(i64, i64)> = cuts.iter().map(|cut| cut.padding).collect();
    let mut bodies = call.bodies.to_vec();
    if let Some(to) = combined_type(call, 0).filter(|&to| to != operand.dtype()) {
        bodies[0] = Arc::new(narrowing(&call.bodies[0], operand.dtype(), to)?);
    }
    let attrs = attrs::select_and_scatter(attr.ints(0), attr.ints(1), &padding);
    let mut result = graph.0.push(OpCode::SelectAndScatter, attrs, &bodies, &operands)?[0];
    if is_cut {
        let back = attrs::pad(&amounts(|cut| cut.low), &amounts(|cut| cut.high), &none);
        result = graph.op(OpCode::Pad, back, &[result, init])?;
    }
    Ok(graph.returning(&[result]))
}

/// The body for parameters of a wider type, which it starts by converting back: they come from its own type, so nothing
/// is lost.
fn narrowing(body: &Body, from: DType, to: DType) -> Result<Body, OpError> {
    let mut graph = Builder(Graph::new());
    let params: Vec<Ref> =
        body.graph().params().iter().map(|_| graph.0.param(TensorType::scalar(to))).collect();
    let mut narrow = Vec::new();
    for param in params {
        narrow.push(graph.convert(param, to, from)?);
    }
    let mut made: Vec<Ref> = Vec::new();
    let moved = |value: &Ref, made: &[Ref]| match *value {
        Ref::Param(index) => narrow[index as usize],
        Ref::Result(index) => made[index as usize],
    };
    for node in body.graph().nodes() {
        let operands = node.operands().iter().map(|value| moved(value, &made)).collect();
        made.extend(graph.0.push_signature(node.signature().clone(), operands));
    }
    let returns: Vec<Ref> = body.returns().iter().map(|value| moved(value, &made)).collect();
    Ok(Body::new(graph.0, &returns).expect("bug: a body returns what it made"))
}
