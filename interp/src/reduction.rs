//! Ops that combine many elements into one with a body.
//!
//! Elements are combined one by one in row-major order, starting from the initial value: the
//! left-most of the orders that the specification allows. Operands are converted to the body's
//! types first, so the body decides the precision of a sum.

use fuseline_fusion::element::{Bits, Elements, Store};
use fuseline_fusion::op::dims::{Window, WindowDim, reduce_window_dims, select_and_scatter_dims};
use fuseline_fusion::{DType, Literal, TensorType};

use super::function::Function;
use super::index::{Indices, Walk, strides};
use super::kernel::Kernel;
use super::{EvalCall, EvalError, check_steps, fast_f32};

/// The elements of an operand, converted to the type of the body's parameter.
pub(super) struct Converted<'a> {
    elements: Elements<'a>,
    kernel: Kernel,
}

impl<'a> Converted<'a> {
    pub(super) fn new(operand: &'a Literal, to: DType) -> Converted<'a> {
        Converted { elements: Elements::of(operand), kernel: Kernel::Convert(operand.dtype(), to) }
    }

    pub(super) fn get(&self, index: usize) -> Bits {
        self.kernel.apply([self.elements.get(index), 0, 0])
    }
}

/// Operands, converted to the given types.
pub(super) fn converted<'a>(
    operands: impl IntoIterator<Item = &'a Literal>,
    types: &[DType],
) -> Vec<Converted<'a>> {
    operands.into_iter().zip(types).map(|(operand, &dtype)| Converted::new(operand, dtype)).collect()
}

/// Inputs and initial values of a `reduce` or `reduce_window`, and results filled with the initial
/// values.
fn prepare<'a>(call: &EvalCall<'a>, types: &[DType]) -> (Vec<Converted<'a>>, Vec<Bits>, Vec<Store>) {
    let operands = || call.operands.iter().map(|operand| &**operand);
    let inputs = converted(operands(), types);
    let inits: Vec<Bits> =
        converted(operands().skip(types.len()), types).iter().map(|init| init.get(0)).collect();
    let results = call.signature.results().iter().zip(&inits);
    let results = results.map(|(ty, &init)| Store::filled(ty.clone(), init)).collect();
    (inputs, inits, results)
}

/// Replaces the elements at `place` by the body's results for them and `values`.
pub(super) fn combine(
    function: &mut Function<'_>,
    results: &mut [Store],
    place: usize,
    values: impl IntoIterator<Item = Bits>,
) -> Result<(), EvalError> {
    let before = results.iter().map(|result| result.get(place));
    let combined = function.call(before.chain(values))?;
    for (result, &bits) in results.iter_mut().zip(combined) {
        result.set(place, bits);
    }
    Ok(())
}

fn finish(results: Vec<Store>) -> Vec<Literal> {
    results.into_iter().map(Store::finish).collect()
}

/// `reduce`.
///
/// # Errors
/// If the body fails.
pub(super) fn reduce(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    match fast_f32::reduce(call, || results_walk(call)) {
        Some(result) => Ok(vec![result]),
        None => reduce_each(call),
    }
}

/// The result position of each input element, in input order.
fn results_walk(call: &EvalCall<'_>) -> Walk {
    let dims = call.operand(0).dims();
    // The result position moves along the dimensions that are kept.
    let mut kept = strides(call.result().dims()).into_iter();
    let steps: Vec<isize> = (0..dims.len())
        .map(|axis| if call.attr().ints(0).contains(&(axis as i64)) { 0 } else { kept.next().unwrap_or(0) })
        .collect();
    Walk::new(0, dims.iter().copied(), steps)
}

/// The general path.
pub(super) fn reduce_each(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let mut function = Function::new(call.body(0), call.arithmetic);
    let (inputs, _, mut results) = prepare(call, &function.types());
    for (index, place) in results_walk(call).enumerate() {
        combine(&mut function, &mut results, place, inputs.iter().map(|input| input.get(index)))?;
    }
    Ok(finish(results))
}

/// The element of a tensor of sizes `dims` under a window element; `None` for padding.
fn under(window: &Window, dims: &[u64], position: &[u64], offset: &[u64]) -> Option<usize> {
    let mut place = 0;
    for (axis, dim) in window.iter().enumerate() {
        place = place * dims[axis] as usize + dim.element(position[axis], offset[axis], dims[axis])?;
    }
    Some(place)
}

/// The window sizes; an error if visiting all its elements at all `positions` would take too long.
fn window_sizes(call: &EvalCall<'_>, window: &Window, positions: &TensorType) -> Result<Vec<u64>, EvalError> {
    let sizes: Vec<u64> = window.iter().map(|dim| dim.size).collect();
    check_steps(call, &[positions.dims(), &sizes])?;
    Ok(sizes)
}

/// The axis of a running sum: a window over all elements so far, where each result follows from the
/// one before.
pub(super) fn running_axis(window: &Window, dims: &[u64]) -> Option<usize> {
    let is_plain =
        |dim: &WindowDim| (dim.stride, dim.base_dilation, dim.window_dilation, dim.high) == (1, 1, 1, 0);
    let mut axes = (0..).zip(window).filter(|(_, dim)| dim.size != 1);
    let (axis, dim) = axes.next().filter(|_| axes.next().is_none())?;
    let is_running = dim.size == dims[axis] && dim.low == dim.size as i64 - 1;
    let others = window.iter().enumerate().filter(|&(other, _)| other != axis);
    (is_running && window.iter().all(is_plain) && others.clone().all(|(_, dim)| dim.low == 0)).then_some(axis)
}

/// `reduce_window`. Padding counts as elements with the initial value, as the specification says.
/// XLA skips it, which is the same if the initial value is the identity element.
///
/// # Errors
/// If the body fails, or there are too many window elements to visit.
pub(super) fn reduce_window(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    match running(call)? {
        Some(results) => Ok(results),
        None => reduce_windows_each(call),
    }
}

/// The fast path along a [`running_axis`], if padding does not change the initial values: the same
/// elements are then combined in the same order (INTERP-3).
fn running(call: &EvalCall<'_>) -> Result<Option<Vec<Literal>>, EvalError> {
    let window = reduce_window_dims(&call.signature.call()).expect("bug: a checked window is rejected");
    let dims = call.operand(0).dims();
    let Some(axis) = running_axis(&window, dims) else { return Ok(None) };
    let mut function = Function::new(call.body(0), call.arithmetic);
    let (inputs, inits, mut results) = prepare(call, &function.types());
    let padded = function.call(inits.iter().chain(&inits).copied())?;
    if padded != inits {
        return Ok(None);
    }
    let step: u64 = dims[axis + 1..].iter().product();
    for place in 0..call.result().elems().get() {
        if !(place as u64 / step).is_multiple_of(dims[axis]) {
            let before = place - step as usize;
            results.iter_mut().for_each(|result| result.set(place, result.get(before)));
        }
        combine(&mut function, &mut results, place, inputs.iter().map(|input| input.get(place)))?;
    }
    Ok(Some(finish(results)))
}

/// The general path.
pub(super) fn reduce_windows_each(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let window = reduce_window_dims(&call.signature.call()).expect("bug: a checked window is rejected");
    let mut function = Function::new(call.body(0), call.arithmetic);
    let (inputs, inits, mut results) = prepare(call, &function.types());
    let dims = call.operand(0).dims();
    let sizes = window_sizes(call, &window, call.result())?;
    let mut positions = Indices::below(call.result().dims());
    let mut place = 0;
    while let Some(position) = positions.advance() {
        let mut offsets = Indices::below(&sizes);
        while let Some(offset) = offsets.advance() {
            let index = under(&window, dims, position, offset);
            let values =
                inputs.iter().zip(&inits).map(|(input, &init)| index.map_or(init, |index| input.get(index)));
            combine(&mut function, &mut results, place, values)?;
        }
        place += 1;
    }
    Ok(finish(results))
}

/// `select_and_scatter`. A window of padding only selects nothing, so its source element is
/// dropped.
///
/// # Errors
/// If a body fails, or there are too many window elements to visit.
pub(super) fn select_and_scatter(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let window = select_and_scatter_dims(&call.signature.call()).expect("bug: a checked window is rejected");
    let (mut select, mut scatter) =
        (Function::new(call.body(0), call.arithmetic), Function::new(call.body(1), call.arithmetic));
    let (operand, source) = (call.operand(0), call.operand(1));
    let to = call.result().dtype();
    let elements = Elements::of(operand);
    let values = Converted::new(source, to);
    let init = Converted::new(call.operand(2), to).get(0);
    let mut results = vec![Store::filled(call.result().clone(), init)];
    let sizes = window_sizes(call, &window, source.ty())?;
    let mut positions = Indices::below(source.dims());
    let mut index = 0;
    while let Some(position) = positions.advance() {
        let mut selected: Option<usize> = None;
        let mut offsets = Indices::below(&sizes);
        while let Some(offset) = offsets.advance() {
            let Some(candidate) = under(&window, operand.dims(), position, offset) else { continue };
            let keep = match selected {
                Some(current) => select.call([elements.get(current), elements.get(candidate)])?[0] != 0,
                None => false,
            };
            if !keep {
                selected = Some(candidate);
            }
        }
        if let Some(place) = selected {
            combine(&mut scatter, &mut results, place, [values.get(index)])?;
        }
        index += 1;
    }
    Ok(finish(results))
}
