//! Ops that combine many elements into one with a body.

use smallvec::SmallVec;

use super::window::{Window, WindowAttrs, window};
use crate::DType;
use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

/// Whether an element of type `from` may be combined in type `to`: same family, no fewer bits.
pub(super) fn promotes(from: DType, to: DType) -> bool {
    from == to || (from.class() == to.class() && from.bits() < to.bits())
}

/// Checks that body `index` combines `2 N` scalars into `N` of the same types, and that the
/// operands promote to these types; returns the element types.
pub(in crate::op) fn combiner(
    call: &Call<'_>,
    index: usize,
    operands: &[TensorType],
) -> Result<SmallVec<[DType; 2]>, OpError> {
    let types: SmallVec<[DType; 2]> = call.bodies[index].return_types().map(TensorType::dtype).collect();
    let scalars: Vec<TensorType> = types.iter().map(|&dtype| TensorType::scalar(dtype)).collect();
    if scalars.len() != operands.len() {
        return Err(call.error(
            OpErrorKind::Body,
            format!("{} returns {} values", call.body_name(index), scalars.len()),
            format!("it must return one per operand, which is {}", operands.len()),
        ));
    }
    call.body_type(index, &[scalars.as_slice(), scalars.as_slice()].concat(), &scalars)?;
    for (operand, &dtype) in operands.iter().zip(&types) {
        if !promotes(operand.dtype(), dtype) {
            return Err(call.error(
                OpErrorKind::Body,
                format!("{} combines {dtype}, but the operand is {operand}", call.body_name(index)),
                "the body's type must be the operand's, or a wider one of the same family",
            ));
        }
    }
    Ok(types)
}

/// Checks `N` inputs of one shape followed by `N` scalar initial values of their types; returns the
/// inputs.
fn inputs<'a>(call: &Call<'a>) -> Result<&'a [TensorType], OpError> {
    let count = call.operands.len() / 2;
    for index in 0..count {
        call.same_shape(index, 0)?;
        call.scalar(count + index)?;
        call.same_dtype(count + index, index)?;
    }
    Ok(&call.operands[..count])
}

/// `reduce`: combines the elements along some dimensions, which are removed.
pub(in crate::op) fn reduce(call: &Call<'_>) -> Result<Results, OpError> {
    let inputs = inputs(call)?;
    let dropped = call.axes("dimensions", call.attr().ints(0), inputs[0].rank())?;
    let types = combiner(call, 0, inputs)?;
    let dims: Vec<u64> = (0..inputs[0].rank())
        .filter(|axis| !dropped.contains(axis))
        .map(|axis| inputs[0].dims()[axis])
        .collect();
    types.iter().map(|&dtype| call.ty(dtype, &dims)).collect()
}

/// The window of a `reduce_window` call whose rule has accepted it or is running.
///
/// # Errors
/// If the attributes do not describe a window.
pub fn reduce_window_dims(call: &Call<'_>) -> Result<Window, OpError> {
    let attr = call.attr();
    window(
        call,
        call.operand(0).rank(),
        WindowAttrs {
            sizes: attr.ints(0),
            strides: attr.ints(1),
            base_dilations: Some(attr.ints(2)),
            window_dilations: Some(attr.ints(3)),
            padding: attr.pairs(4),
        },
    )
}

/// `reduce_window`: combines the elements under each position of a window.
pub(in crate::op) fn reduce_window(call: &Call<'_>) -> Result<Results, OpError> {
    let inputs = inputs(call)?;
    let types = combiner(call, 0, inputs)?;
    let dims = positions(call, &reduce_window_dims(call)?, &inputs[0])?;
    types.iter().map(|&dtype| call.ty(dtype, &dims)).collect()
}

fn positions(call: &Call<'_>, window: &Window, base: &TensorType) -> Result<Vec<u64>, OpError> {
    window
        .iter()
        .zip(base.dims())
        .enumerate()
        .map(|(axis, (dim, &size))| dim.positions(call, axis, size))
        .collect()
}

/// The window of a `select_and_scatter` call whose rule has accepted it or is running.
///
/// # Errors
/// If the attributes do not describe a window.
pub fn select_and_scatter_dims(call: &Call<'_>) -> Result<Window, OpError> {
    let attr = call.attr();
    window(
        call,
        call.operand(0).rank(),
        WindowAttrs {
            sizes: attr.ints(0),
            strides: attr.ints(1),
            base_dilations: None,
            window_dilations: None,
            padding: attr.pairs(2),
        },
    )
}

/// `select_and_scatter`: selects one operand element per window position and adds the source
/// element there. It is the gradient of max pooling.
pub(in crate::op) fn select_and_scatter(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    call.same_dtype(1, 0)?;
    call.same_dtype(2, 0)?;
    call.scalar(2)?;
    if operand.rank() == 0 {
        // The specification allows it, and XLA's CPU backend aborts the process on it.
        return Err(call.shape_error("the operand is a scalar", "it must have at least one dimension"));
    }
    let element = TensorType::scalar(operand.dtype());
    call.body_type(0, &[element.clone(), element], &[TensorType::scalar(DType::Bool)])?;
    let types = combiner(call, 1, std::slice::from_ref(operand))?;
    let wanted = positions(call, &select_and_scatter_dims(call)?, operand)?;
    if call.operand(1).dims() != wanted {
        return Err(call.shape_error(
            format!("the source has shape {}", call.operand(1).shape()),
            format!("its shape must be {wanted:?}, the positions of the window over the operand"),
        ));
    }
    Ok(one(operand.with_dtype(types[0])))
}
