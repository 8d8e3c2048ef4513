//! Legalizes ops that combine elements with a body.

use std::sync::Arc;

use super::loops::{self, is_scalar_code};
use super::operands::{combined_type, converted, is_uniform};
use super::{Builder, Lowered, expanded};
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{Body, Graph, OpCode, Ref};
use crate::op::attrs;
use crate::op::attrs::IndexDimensionNumbers;
use crate::op::def::Call;
use crate::shape::TensorType;

/// Converts the operands first if the body combines elements in a wider type, as the specification
/// says. XLA's CPU backend rejects such a `scatter`; for `reduce` it ignores the wider type and
/// returns data of the operand's type.
fn combined(call: &Call<'_>) -> Lowered {
    if is_uniform(call) { Lowered::Itself } else { expanded(converted_first(call)) }
}

fn converted_first(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, operands) = converted(call)?;
    let results = graph.0.push(call.def.code, call.attrs.clone(), call.bodies, &operands)?;
    Ok(graph.returning(&results))
}

/// The float type that can represent all operands, if they have several. XLA rejects two float
/// types in one op, except for `reduce_window` and `sort`.
pub fn common_float(types: impl Iterator<Item = DType>) -> Option<DType> {
    let floats: Vec<DType> = types.filter(|dtype| dtype.is_float()).collect();
    let wide = if floats.contains(&DType::F64) { DType::F64 } else { DType::F32 };
    floats.iter().any(|&dtype| dtype != floats[0]).then_some(wide)
}

/// `reduce`, in its own types or in types that XLA accepts.
pub(in crate::op) fn reduce(call: &Call<'_>) -> Lowered {
    let body = &call.bodies[0];
    if !is_scalar_code(body) {
        return expanded(loops::reduce(call));
    }
    match common_float(body.return_types().map(TensorType::dtype)) {
        Some(wide) => expanded(in_one_float(call, wide)),
        None => combined(call),
    }
}

fn in_one_float(call: &Call<'_>, wide: DType) -> Result<Lowered, OpError> {
    let outer = |dtype: DType| if dtype.is_float() { wide } else { dtype };
    let (mut graph, mut operands) = converted(call)?;
    for operand in &mut operands {
        let dtype = graph.ty(*operand).dtype();
        *operand = graph.convert(*operand, dtype, outer(dtype))?;
    }
    let body = Arc::new(in_other_types(&call.bodies[0], outer, outer)?);
    let mut results = graph.0.push(call.def.code, call.attrs.clone(), &[body], &operands)?;
    for (result, own) in results.iter_mut().zip(call.bodies[0].return_types()) {
        *result = graph.convert(*result, outer(own.dtype()), own.dtype())?;
    }
    Ok(graph.returning(&results))
}

/// XLA's CPU backend rejects scattering into a scalar, and drops updates whose index vectors are
/// empty. If two inputs are the same value, it gives them the same results, so a body that treats
/// each input separately is split into one scatter per input.
pub(in crate::op) fn scatter(call: &Call<'_>) -> Lowered {
    let body = &call.bodies[0];
    let dims = IndexDimensionNumbers::of(call.attr());
    if !is_scalar_code(body) || call.operand(0).rank() == 0 || dims.index_map.is_empty() {
        return expanded(loops::scatter(call));
    }
    let count = body.returns().len();
    if count == 1 {
        return combined(call);
    }
    match (0..count).map(|index| part(body, index)).collect::<Option<Vec<Body>>>() {
        Some(parts) => expanded(one_by_one(call, parts)),
        None => expanded(loops::scatter(call)),
    }
}

fn one_by_one(call: &Call<'_>, parts: Vec<Body>) -> Result<Lowered, OpError> {
    let count = parts.len();
    let (mut graph, operands) = converted(call)?;
    let mut results = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let operands = [operands[index], operands[count], operands[count + 1 + index]];
        let scattered = graph.0.push(OpCode::Scatter, call.attrs.clone(), &[Arc::new(part)], &operands)?;
        results.push(scattered[0]);
    }
    Ok(graph.returning(&results))
}

/// The part of the body that handles pair `index` of its parameters; `None` if another pair is
/// involved.
fn part(body: &Body, index: usize) -> Option<Body> {
    let (graph, count) = (body.graph(), body.returns().len());
    let mut needed = vec![false; graph.nodes().len()];
    let mut open = vec![body.returns()[index]];
    while let Some(value) = open.pop() {
        match value {
            Ref::Param(param) if param as usize % count != index => return None,
            Ref::Param(_) => {}
            Ref::Result(_) => {
                let node = graph.maker(value)?;
                if !std::mem::replace(&mut needed[node], true) {
                    open.extend_from_slice(graph.nodes()[node].operands());
                }
            }
        }
    }
    let mut part = Graph::new();
    let params = [index, index + count].map(|param| part.param(graph.params()[param].clone()));
    let mut made: Vec<Option<Ref>> = vec![None; graph.result_count()];
    let moved = |value: Ref, made: &[Option<Ref>]| match value {
        Ref::Param(param) => Some(params[param as usize / count]),
        Ref::Result(result) => made[result as usize],
    };
    for (node, _) in graph.nodes().iter().zip(needed).filter(|(_, needed)| *needed) {
        let operands = node.operands().iter().map(|&value| moved(value, &made)).collect::<Option<_>>()?;
        let results = part.push_signature(node.signature().clone(), operands);
        for (value, result) in node.results().zip(results) {
            if let Ref::Result(place) = value {
                made[place as usize] = Some(result);
            }
        }
    }
    let returned = moved(body.returns()[index], &made)?;
    Body::new(part, &[returned])
}

fn is_negative(padding: &[(i64, i64)]) -> bool {
    padding.iter().any(|&(low, high)| low < 0 || high < 0)
}

/// `reduce_window` with negative padding can abort the process, so a separate op pads the operands.
/// A `reduce_window` of scalars can abort too, unless XLA's simplifier removes it; it becomes a
/// loop.
pub(in crate::op) fn reduce_window(call: &Call<'_>) -> Lowered {
    if !is_scalar_code(&call.bodies[0]) || call.operand(0).rank() == 0 {
        expanded(loops::reduce_window(call))
    } else if is_negative(call.attr().pairs(4)) {
        expanded(padded_first(call))
    } else {
        combined(call)
    }
}

fn padded_first(call: &Call<'_>) -> Result<Lowered, OpError> {
    let attr = call.attr();
    let (low, high): (Vec<i64>, Vec<i64>) = attr.pairs(4).iter().copied().unzip();
    // Gaps between dilated elements count as elements with the initial value, like padding.
    let interior: Vec<i64> = attr.ints(2).iter().map(|dilation| dilation - 1).collect();
    let (mut graph, mut operands) = converted(call)?;
    let (inputs, inits) = operands.split_at_mut(call.operands.len() / 2);
    for (input, &init) in inputs.iter_mut().zip(&*inits) {
        *input = graph.padded(*input, init, [&low, &high, &interior])?;
    }
    let mut values = call.attrs.values().to_vec();
    values[2] = AttrValue::from(vec![1; low.len()].as_slice());
    values[4] = AttrValue::from(vec![(0, 0); low.len()].as_slice());
    let results = graph.0.push(call.def.code, values.into_iter().collect(), call.bodies, &operands)?;
    Ok(graph.returning(&results))
}

/// With negative padding, `select_and_scatter` selects wrong elements. It is applied to the part of
/// the operand that the padding leaves, and the rest of the result gets the initial value. Without
/// window positions, XLA's folder scatters nevertheless; the result is the initial value
/// everywhere.
pub(in crate::op) fn select_and_scatter(call: &Call<'_>) -> Lowered {
    if call.operand(1).elems().0 == 0 {
        return expanded(initial_values(call));
    }
    if !call.bodies.iter().all(|body| is_scalar_code(body)) {
        return expanded(loops::select_and_scatter(call));
    }
    if is_uniform(call) && !is_negative(call.attr().pairs(2)) {
        return Lowered::Itself;
    }
    expanded(on_cropped_operand(call))
}

fn initial_values(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, operands) = converted(call)?;
    let shape = call.operand(0).shape().clone();
    let result = graph.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[operands[2]])?;
    Ok(graph.returning(&[result]))
}

/// One dimension after its negative padding was cut off.
pub(super) struct Cut {
    /// Elements cut off at the start.
    pub(super) low: i64,
    /// Elements cut off at the end.
    pub(super) high: i64,
    /// The rest of the padding.
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
        // If one side is still negative, no elements are left, so only the sum of both sides
        // matters.
        if low < 0 || high < 0 {
            (low, high) = (low.saturating_add(high), 0);
        }
        Cut { low: cut_low, high: cut_high, padding: (low, high) }
    }
}

fn on_cropped_operand(call: &Call<'_>) -> Result<Lowered, OpError> {
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
        let cut_off = [amounts(|cut| -cut.low), amounts(|cut| -cut.high)];
        operands[0] = graph.padded(operands[0], init, [&cut_off[0], &cut_off[1], &none])?;
    }
    let padding: Vec<(i64, i64)> = cuts.iter().map(|cut| cut.padding).collect();
    let mut bodies = call.bodies.to_vec();
    if let Some(to) = combined_type(call, 0).filter(|&to| to != operand.dtype()) {
        bodies[0] = Arc::new(in_other_types(&call.bodies[0], |_| to, |dtype| dtype)?);
    }
    let attrs = attrs::select_and_scatter(attr.ints(0), attr.ints(1), &padding);
    let mut result = graph.0.push(OpCode::SelectAndScatter, attrs, &bodies, &operands)?[0];
    if is_cut {
        let back = attrs::pad(&amounts(|cut| cut.low), &amounts(|cut| cut.high), &none);
        result = graph.op(OpCode::Pad, back, &[result, init])?;
    }
    Ok(graph.returning(&[result]))
}

/// A body with other parameter and return types: it converts its arguments to its own types first,
/// and its results last. If the outer types are wider, nothing is lost.
pub(super) fn in_other_types(
    body: &Body,
    taken: impl Fn(DType) -> DType,
    returned: impl Fn(DType) -> DType,
) -> Result<Body, OpError> {
    let mut graph = Builder(Graph::new());
    let types: Vec<DType> = body.graph().params().iter().map(TensorType::dtype).collect();
    let params: Vec<Ref> =
        types.iter().map(|&dtype| graph.0.param(TensorType::scalar(taken(dtype)))).collect();
    let mut own = Vec::new();
    for (&param, &dtype) in params.iter().zip(&types) {
        own.push(graph.convert(param, taken(dtype), dtype)?);
    }
    let mut returns = graph.inline(body, &own);
    for (value, ty) in returns.iter_mut().zip(body.return_types()) {
        *value = graph.convert(*value, ty.dtype(), returned(ty.dtype()))?;
    }
    Ok(graph.body(&returns))
}
