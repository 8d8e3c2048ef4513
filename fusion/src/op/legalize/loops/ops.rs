//! The ops that call a body, each as a loop.

use super::super::operands::converted;
use super::super::{Builder, Lowered};
use super::Plan;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{OpCode, Ref};
use crate::op::attrs;
use crate::op::attrs::IndexDimensionNumbers;
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::op::infer::reduction::{reduce_window_dims, select_and_scatter_dims};
use crate::op::infer::window::{Window, WindowDim};
use crate::shape::{Shape, TensorType};

/// Row-major strides.
fn strides(dims: &[u64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis] as i64;
    }
    strides
}

/// Checks that the sizes are a shape whose indices fit in 64 bits.
fn indexed(call: &Call<'_>, dims: &[u64]) -> Result<Shape, OpError> {
    Ok(call.ty(DType::I64, dims)?.shape().clone())
}

/// The type of the first result of a call that its rule has accepted.
fn first_result(call: &Call<'_>) -> Result<TensorType, OpError> {
    Ok((call.def.infer)(call)?[0].clone())
}

/// Each initial value repeated to a row of `elems` elements.
fn filled(call: &Call<'_>, graph: &mut Builder, inits: &[Ref], elems: u64) -> Result<Vec<Ref>, OpError> {
    let row = indexed(call, &[elems])?;
    inits.iter().map(|&init| graph.repeated(init, &row, &[])).collect()
}

/// Reshapes rows to results of one shape.
fn shaped(mut graph: Builder, rows: &[Ref], shape: &Shape) -> Result<Lowered, OpError> {
    let results: Result<Vec<Ref>, OpError> = rows.iter().map(|&row| graph.reshaped(row, shape)).collect();
    Ok(graph.returning(&results?))
}

/// `reduce`: combines each input element into the position given by its index along the kept
/// dimensions.
pub(in crate::op::legalize) fn reduce(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, operands) = converted(call)?;
    let (inputs, inits) = operands.split_at(operands.len() / 2);
    let (result, whole) = (first_result(call)?, call.operand(0).shape());
    let dropped = call.attr().ints(0);
    let kept = (0..whole.rank()).filter(|&axis| !dropped.contains(&(axis as i64)));
    let targets = graph.ramps(whole, kept.zip(strides(result.dims())))?;
    let targets = graph.flat(targets)?;
    let results = filled(call, &mut graph, inits, result.elems().0)?;
    let values = graph.all_flat(inputs)?;
    let plan = Plan { body: &call.bodies[0], results, values, targets, sources: None, has_gaps: false };
    let rows = graph.combined(&plan)?;
    shaped(graph, &rows, result.shape())
}

/// `map`.
pub(in crate::op::legalize) fn map(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, operands) = Builder::of(call);
    let result = first_result(call)?;
    let count = result.elems().0;
    let row = indexed(call, &[count])?;
    let mut state = graph.splat(false, result.dtype(), &row)?;
    if count > 0 {
        let values = graph.all_flat(&operands)?;
        state = graph.repeat(count, &[state], &values, |graph, number, state, values| {
            let elements: Result<Vec<Ref>, OpError> =
                values.iter().map(|&row| graph.element(row, number)).collect();
            let element = graph.inline(&call.bodies[0], &elements?)[0];
            Ok(vec![graph.with_element(state[0], number, element)?])
        })?[0];
    }
    shaped(graph, &[state], result.shape())
}

/// Pairs of a window position and an element under it, ordered by position.
struct Pairs {
    shape: Shape,
    positions: Shape,
    window: Shape,
}

impl Pairs {
    fn of(call: &Call<'_>, positions: &Shape, window: &Window) -> Result<Pairs, OpError> {
        let sizes: Vec<u64> = window.iter().map(|dim| dim.size).collect();
        let window = indexed(call, &sizes)?;
        let shape = indexed(call, &[positions.elems().0, window.elems().0])?;
        Ok(Pairs { shape, positions: positions.clone(), window })
    }

    /// For each pair, the sum of index times step over the dimensions of the position and of the
    /// window.
    fn ramps(
        &self,
        graph: &mut Builder,
        positions: &[(usize, i64)],
        window: &[(usize, i64)],
    ) -> Result<Ref, OpError> {
        let mut part = |shape: &Shape, steps: &[(usize, i64)], axis: i64| {
            let part = graph.ramps(shape, steps.iter().copied())?;
            let part = graph.flat(part)?;
            graph.repeated(part, &self.shape, &[axis])
        };
        let parts = [part(&self.positions, positions, 0)?, part(&self.window, window, 1)?];
        graph.plain(OpCode::Add, &parts)
    }

    /// The number of each pair's position.
    fn numbers(&self, graph: &mut Builder) -> Result<Ref, OpError> {
        let numbers = graph.ramps(&self.shape, [(0, 1)])?;
        graph.flat(numbers)
    }
}

/// `reduce_window`: combines each element under each window position, padding included, into that
/// position's result.
pub(in crate::op::legalize) fn reduce_window(call: &Call<'_>) -> Result<Lowered, OpError> {
    let window = reduce_window_dims(call)?;
    let (mut graph, operands) = converted(call)?;
    let (inputs, inits) = operands.split_at(operands.len() / 2);
    let list = |entry: fn(&WindowDim) -> i64| -> Vec<i64> { window.iter().map(entry).collect() };
    let holes = list(|dim| dim.base_dilation as i64 - 1);
    let (low, high) = (list(|dim| dim.low), list(|dim| dim.high));
    let mut values = Vec::new();
    for (&input, &init) in inputs.iter().zip(inits) {
        values.push(graph.padded(input, init, [&low, &high, &holes])?);
    }
    let padded = strides(graph.ty(values[0]).dims());
    let steps = |step: fn(&WindowDim) -> u64| -> Vec<(usize, i64)> {
        let each = window.iter().zip(&padded).enumerate();
        each.map(|(axis, (dim, stride))| (axis, (step(dim) as i64).saturating_mul(*stride))).collect()
    };
    let result = first_result(call)?;
    let pairs = Pairs::of(call, result.shape(), &window)?;
    let sources = pairs.ramps(&mut graph, &steps(|dim| dim.stride), &steps(|dim| dim.window_dilation))?;
    let sources = Some(graph.flat(sources)?);
    let targets = pairs.numbers(&mut graph)?;
    let results = filled(call, &mut graph, inits, result.elems().0)?;
    let values = graph.all_flat(&values)?;
    let plan = Plan { body: &call.bodies[0], results, values, targets, sources, has_gaps: false };
    let rows = graph.combined(&plan)?;
    shaped(graph, &rows, result.shape())
}

/// Flat positions in a tensor from an index along each dimension; -1 if an index is out of bounds.
fn places_inside(graph: &mut Builder, indices: &[Ref], dims: &[u64], shape: &Shape) -> Result<Ref, OpError> {
    let mut place = graph.splat(0i64, DType::I64, shape)?;
    let mut inside = graph.splat(true, DType::Bool, shape)?;
    let zero = place;
    for ((&index, &dim), stride) in indices.iter().zip(dims).zip(strides(dims)) {
        let size = graph.splat(dim as i64, DType::I64, shape)?;
        for (direction, bound) in [(Comparison::Ge, zero), (Comparison::Lt, size)] {
            let fits = graph.compare(direction, index, bound)?;
            inside = graph.plain(OpCode::And, &[inside, fits])?;
        }
        let stride = graph.splat(stride, DType::I64, shape)?;
        let step = graph.plain(OpCode::Multiply, &[index, stride])?;
        place = graph.plain(OpCode::Add, &[place, step])?;
    }
    let outside = graph.splat(-1i64, DType::I64, shape)?;
    let place = graph.plain(OpCode::Select, &[inside, place, outside])?;
    graph.flat(place)
}

/// `scatter`: combines each element of the updates into the position given by its index vector and
/// its position in the window. Elements out of bounds are dropped.
pub(in crate::op::legalize) fn scatter(call: &Call<'_>) -> Result<Lowered, OpError> {
    let count = call.bodies[0].returns().len();
    let (mut graph, operands) = converted(call)?;
    let (whole, indices, shape) =
        (call.operand(0), call.operand(count), call.operand(count + 1).shape().clone());
    let dims = IndexDimensionNumbers::of(call.attr());
    let along = dims.window_axes(whole.rank());
    let batch_axes: Vec<i64> = (0..shape.rank() as i64).filter(|axis| !dims.window.contains(axis)).collect();
    let batch = indexed(call, &dims.batch_dims(indices))?;
    let vectors = graph.convert(operands[count], indices.dtype(), DType::I64)?;
    let mut coordinates = Vec::new();
    for axis in 0..whole.rank() {
        let is_here = |&operand_axis: &i64| operand_axis == axis as i64;
        // Along the window, and along the batch dimensions that the operand shares with the
        // indices.
        let inside = along.iter().position(|&along| along == axis).map(|place| dims.window[place] as usize);
        let shared = dims.operand_batching.iter().position(is_here).map(|place| {
            let from = dims.indices_batching[place];
            batch_axes[(from - i64::from(from > dims.index_vector)) as usize] as usize
        });
        let mut sum = graph.ramps(&shape, inside.or(shared).map(|axis| (axis, 1)))?;
        if let Some(component) = dims.index_map.iter().position(is_here) {
            let mut start = vectors;
            if (dims.index_vector as usize) < indices.rank() {
                let mut low = vec![0; indices.rank()];
                let mut high: Vec<i64> = indices.dims().iter().map(|&dim| dim as i64).collect();
                low[dims.index_vector as usize] = component as i64;
                high[dims.index_vector as usize] = component as i64 + 1;
                let one = vec![1; indices.rank()];
                start = graph.op(OpCode::Slice, attrs::slice(&low, &high, &one), &[start])?;
            }
            let start = graph.reshaped(start, &batch)?;
            let start = graph.repeated(start, &shape, &batch_axes)?;
            sum = graph.plain(OpCode::Add, &[sum, start])?;
        }
        coordinates.push(sum);
    }
    let targets = places_inside(&mut graph, &coordinates, whole.dims(), &shape)?;
    let results = graph.all_flat(&operands[..count])?;
    let values = graph.all_flat(&operands[count + 1..])?;
    let plan = Plan { body: &call.bodies[0], results, values, targets, sources: None, has_gaps: true };
    let rows = graph.combined(&plan)?;
    shaped(graph, &rows, whole.shape())
}

/// `select_and_scatter`: first finds the position that each window selects, then combines each
/// source element into that position.
pub(in crate::op::legalize) fn select_and_scatter(call: &Call<'_>) -> Result<Lowered, OpError> {
    let window = select_and_scatter_dims(call)?;
    let (whole, source, result) = (call.operand(0), call.operand(1), first_result(call)?);
    let (mut graph, operands) = Builder::of(call);
    let init = graph.convert(operands[2], whole.dtype(), result.dtype())?;
    let results = filled(call, &mut graph, &[init], result.elems().0)?;
    if source.elems().0 == 0 || whole.elems().0 == 0 {
        return shaped(graph, &results, result.shape());
    }
    let pairs = Pairs::of(call, source.shape(), &window)?;
    let mut indices = Vec::new();
    for (axis, dim) in window.iter().enumerate() {
        let index = pairs.ramps(&mut graph, &[(axis, dim.stride as i64)], &[(axis, 1)])?;
        let low = graph.splat(dim.low, DType::I64, &pairs.shape)?;
        indices.push(graph.plain(OpCode::Subtract, &[index, low])?);
    }
    let candidates = places_inside(&mut graph, &indices, whole.dims(), &pairs.shape)?;
    let numbers = pairs.numbers(&mut graph)?;
    let elements = graph.flat(operands[0])?;
    let none = graph.splat(-1i64, DType::I64, &indexed(call, &[source.elems().0])?)?;
    let captured = [candidates, numbers, elements];
    let targets =
        graph.repeat(pairs.shape.elems().0, &[none], &captured, |graph, number, state, captured| {
            let candidate = graph.element(captured[0], number)?;
            let position = graph.element(captured[1], number)?;
            let selected = graph.element(state[0], position)?;
            // Position -1 reads an arbitrary element, whose comparison is ignored.
            let left = graph.element(captured[2], selected)?;
            let right = graph.element(captured[2], candidate)?;
            let keep = graph.inline(&call.bodies[0], &[left, right])[0];
            let zero = graph.number(0)?;
            let any = graph.compare(Comparison::Ge, selected, zero)?;
            let outside = graph.compare(Comparison::Lt, candidate, zero)?;
            let keep = graph.plain(OpCode::And, &[keep, any])?;
            let keep = graph.plain(OpCode::Or, &[keep, outside])?;
            let selected = graph.plain(OpCode::Select, &[keep, selected, candidate])?;
            Ok(vec![graph.with_element(state[0], position, selected)?])
        })?[0];
    let values = graph.convert(operands[1], whole.dtype(), result.dtype())?;
    let values = graph.all_flat(&[values])?;
    let plan = Plan { body: &call.bodies[1], results, values, targets, sources: None, has_gaps: true };
    let rows = graph.combined(&plan)?;
    shaped(graph, &rows, result.shape())
}

/// `sort`, by insertion: each element moves towards the start of its slice while it sorts before
/// its neighbour.
pub(in crate::op::legalize) fn sort(call: &Call<'_>) -> Result<Lowered, OpError> {
    let (mut graph, mut operands) = Builder::of(call);
    let (axis, ty) = (call.attr().int(0), call.operand(0));
    let last = ty.rank() as i64 - 1;
    let mut order: Vec<i64> = (0..ty.rank() as i64).filter(|&other| other != axis).collect();
    order.push(axis);
    for operand in &mut operands {
        *operand = graph.op(OpCode::Transpose, attrs::transpose(&order), &[*operand])?;
    }
    let moved = graph.ty(operands[0]).shape().clone();
    let size = moved.dims()[last as usize];
    if ty.elems().0 > 0 {
        let rows = graph.all_flat(&operands)?;
        let rows = graph.repeat(ty.elems().0, &rows, &[], |graph, number, rows, _| {
            let size = graph.number(size as i64)?;
            let inside = graph.plain(OpCode::Remainder, &[number, size])?;
            let first = graph.plain(OpCode::Subtract, &[number, inside])?;
            let carried = [&[number, first], rows].concat();
            // The element of operand `row` at the position, and its left neighbour.
            let pair = |graph: &mut Builder, row: Ref, place: Ref| -> Result<[Ref; 3], OpError> {
                let one = graph.number(1)?;
                let front = graph.plain(OpCode::Subtract, &[place, one])?;
                Ok([graph.element(row, place)?, graph.element(row, front)?, front])
            };
            let cond = |graph: &mut Builder, params: &[Ref]| {
                let mut elements = Vec::new();
                for &row in &params[2..] {
                    elements.extend_from_slice(&pair(graph, row, params[0])?[..2]);
                }
                let before = graph.inline(&call.bodies[0], &elements)[0];
                let inside = graph.compare(Comparison::Gt, params[0], params[1])?;
                graph.plain(OpCode::And, &[inside, before])
            };
            let swap = |graph: &mut Builder, params: &[Ref]| {
                let mut next = params.to_vec();
                for place in 2..next.len() {
                    let [element, neighbour, front] = pair(graph, next[place], params[0])?;
                    let row = graph.with_element(next[place], params[0], neighbour)?;
                    next[place] = graph.with_element(row, front, element)?;
                    next[0] = front;
                }
                Ok(next)
            };
            Ok(graph.repeat_while(&carried, cond, swap)?[2..].to_vec())
        })?;
        for (operand, &row) in operands.iter_mut().zip(&rows) {
            *operand = graph.reshaped(row, &moved)?;
        }
    }
    let mut back = vec![0; order.len()];
    for (place, &axis) in (0..).zip(&order) {
        back[axis as usize] = place;
    }
    for operand in &mut operands {
        *operand = graph.op(OpCode::Transpose, attrs::transpose(&back), &[*operand])?;
    }
    Ok(graph.returning(&operands))
}
