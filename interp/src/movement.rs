//! Ops that move elements without computing: copies between two walks.

use fuseline_fusion::element::{Elements, Store};
use fuseline_fusion::{Literal, TensorType};

use super::index::{Walk, clamp_index, strides};
use super::{EvalCall, EvalError, fast_f32};

/// The operand's elements at the offsets of a walk, in order.
fn pick(ty: &TensorType, operand: &Literal, walk: Walk) -> Vec<Literal> {
    vec![fast_f32::literal(ty, fast_f32::gather(operand, walk))]
}

/// Copies elements of `from` at the offsets of one walk to `to` at the offsets of another.
fn copy(from: &Literal, source: Walk, to: &mut Store, target: Walk) {
    fast_f32::copy(from.bytes(), source, to.bytes_mut(), target, from.dtype().size());
}

/// A walk over a block of `dims` in a tensor of sizes `whole`, from index `starts`, with `steps`.
fn block(whole: &[u64], dims: &[u64], starts: &[u64], steps: impl IntoIterator<Item = i64>) -> Walk {
    let strides = strides(whole);
    // An empty block may start out of bounds. It is never walked, so its start does not matter.
    let first = if dims.contains(&0) {
        0
    } else {
        starts.iter().zip(&strides).map(|(&start, &stride)| start as usize * stride as usize).sum()
    };
    // A dimension of one element takes no step, and its step may be arbitrarily large.
    let steps = steps.into_iter().zip(dims).map(|(step, &dim)| if dim > 1 { step as isize } else { 0 });
    Walk::new(first, dims.iter().copied(), strides.iter().zip(steps).map(|(&stride, step)| stride * step))
}

fn ones(rank: usize) -> impl Iterator<Item = i64> {
    std::iter::repeat_n(1, rank)
}

/// `broadcast_in_dim`.
///
/// # Errors
/// None.
pub(super) fn broadcast_in_dim(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let mut steps = vec![0; ty.rank()];
    for ((&target, &stride), &dim) in
        call.attr().ints(1).iter().zip(&strides(operand.dims())).zip(operand.dims())
    {
        steps[target as usize] = if dim == 1 { 0 } else { stride };
    }
    Ok(pick(ty, operand, Walk::new(0, ty.dims().iter().copied(), steps)))
}

/// `reshape`.
///
/// # Errors
/// None.
pub(super) fn reshape(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let literal = Literal::from_bytes(call.result().clone(), call.operand(0).bytes().to_vec());
    Ok(vec![literal.expect("bug: a reshape changed the number of elements")])
}

/// `transpose`.
///
/// # Errors
/// None.
pub(super) fn transpose(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let strides = strides(operand.dims());
    let steps = call.attr().ints(0).iter().map(|&axis| strides[axis as usize]);
    Ok(pick(ty, operand, Walk::new(0, ty.dims().iter().copied(), steps)))
}

/// `slice`.
///
/// # Errors
/// None.
pub(super) fn slice(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let starts: Vec<u64> = call.attr().ints(0).iter().map(|&start| start as u64).collect();
    let steps = call.attr().ints(2).iter().copied();
    Ok(pick(ty, operand, block(operand.dims(), ty.dims(), &starts, steps)))
}

/// `reverse`.
///
/// # Errors
/// None.
pub(super) fn reverse(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let turned = call.attr().ints(0);
    let last =
        |axis: usize, dim: u64| if turned.contains(&(axis as i64)) { dim.saturating_sub(1) } else { 0 };
    let starts: Vec<u64> = operand.dims().iter().enumerate().map(|(axis, &dim)| last(axis, dim)).collect();
    let steps = (0..operand.ty().rank()).map(|axis| if turned.contains(&(axis as i64)) { -1 } else { 1 });
    Ok(pick(ty, operand, block(operand.dims(), ty.dims(), &starts, steps)))
}

/// `concatenate`.
///
/// # Errors
/// None.
pub(super) fn concatenate(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let ty = call.result();
    let axis = call.attr().int(0) as usize;
    let mut store = Store::filled(ty.clone(), 0);
    let mut starts = vec![0; ty.rank()];
    for operand in call.operands {
        let dims = operand.dims();
        let source = block(dims, dims, &vec![0; ty.rank()], ones(ty.rank()));
        copy(operand, source, &mut store, block(ty.dims(), dims, &starts, ones(ty.rank())));
        starts[axis] += dims[axis];
    }
    Ok(vec![store.finish()])
}

/// `pad`: writes the remaining elements, with gaps, over a tensor of padding.
///
/// # Errors
/// None.
pub(super) fn pad(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let (low, interior) = (call.attr().ints(0), call.attr().ints(2));
    let mut store = Store::filled(ty.clone(), Elements::of(call.operand(1)).get(0));
    let rank = ty.rank();
    let (mut starts, mut targets, mut kept) = (vec![0; rank], vec![0; rank], vec![0; rank]);
    for axis in 0..rank {
        let step = i128::from(interior[axis]) + 1;
        let low = i128::from(low[axis]);
        // Element `i` goes to `low + i * step`. These are the first one inside the result, and the
        // first one past it.
        let first = if low < 0 { (-low + step - 1) / step } else { 0 };
        let past = (i128::from(ty.dims()[axis]) - low + step - 1).max(0) / step;
        let past = past.min(operand.dims()[axis].into());
        if first >= past {
            return Ok(vec![store.finish()]);
        }
        starts[axis] = first as u64;
        kept[axis] = (past - first) as u64;
        targets[axis] = (low + first * step) as u64;
    }
    let source = block(operand.dims(), &kept, &starts, ones(rank));
    let target = block(ty.dims(), &kept, &targets, interior.iter().map(|&gap| gap.saturating_add(1)));
    copy(operand, source, &mut store, target);
    Ok(vec![store.finish()])
}

/// The start of a dynamic slice of sizes `dims`: its start indices, clamped so that it fits.
fn starts(call: &EvalCall<'_>, first: usize, dims: &[u64]) -> Vec<u64> {
    let whole = call.operand(0).dims();
    let indices = call.operands[first..].iter();
    indices
        .zip(dims.iter().zip(whole))
        .map(|(index, (&part, &whole))| clamp_index(index.dtype(), Elements::of(index).get(0), whole - part))
        .collect()
}

/// `dynamic_slice`.
///
/// # Errors
/// None.
pub(super) fn dynamic_slice(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let starts = starts(call, 1, ty.dims());
    Ok(pick(ty, operand, block(operand.dims(), ty.dims(), &starts, ones(ty.rank()))))
}

/// `dynamic_update_slice`.
///
/// # Errors
/// None.
pub(super) fn dynamic_update_slice(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, update, ty) = (call.operand(0), call.operand(1), call.result());
    let dims = update.dims();
    let starts = starts(call, 2, dims);
    let mut store = Store::of(operand);
    let source = block(dims, dims, &vec![0; ty.rank()], ones(ty.rank()));
    copy(update, source, &mut store, block(ty.dims(), dims, &starts, ones(ty.rank())));
    Ok(vec![store.finish()])
}

/// `optimization_barrier`.
///
/// # Errors
/// Never.
pub(super) fn optimization_barrier(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Ok(call.operands.iter().map(|data| Literal::clone(data)).collect())
}
