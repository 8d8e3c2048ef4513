//! Ops that move elements without computing.

use super::dim;
use crate::dtype::DTypeSet;
use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::op::def::{Call, one};
use crate::shape::TensorType;

/// `broadcast_in_dim`: operand dimension `i` becomes result dimension `broadcast_dimensions[i]`;
/// the others repeat.
pub(in crate::op) fn broadcast_in_dim(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    let shape = call.attr().shape(0);
    let map = call.attr().ints(1);
    call.list_len("broadcast_dimensions", map.len(), operand.rank(), "operand dimension")?;
    let map = call.axes("broadcast_dimensions", map, shape.rank())?;
    for (axis, &target) in map.iter().enumerate() {
        let (from, to) = (operand.dims()[axis], shape.dim(target));
        if from != 1 && from != to {
            let error = call.shape_error(
                format!(
                    "dimension {axis} of the operand is {from}, dimension {target} of the result is {to}"
                ),
                "a dimension can be broadcast only if it is 1 or stays the same",
            );
            // NumPy's rule: the operand's dimensions are the last ones of the result.
            let first = shape.rank().saturating_sub(operand.rank());
            let aligned = || {
                operand.dims().iter().zip(&shape.dims()[first..]).all(|(from, to)| *from == 1 || from == to)
            };
            return Err(match first > 0 && aligned() {
                true => {
                    let last: Vec<usize> = (first..shape.rank()).collect();
                    error.hint(format!("did you mean broadcast_dimensions = {last:?}?"))
                }
                false => error,
            });
        }
    }
    Ok(one(TensorType::new(operand.dtype(), shape.clone())))
}

/// `reshape`: the same elements in row-major order under another shape.
pub(in crate::op) fn reshape(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    let shape = call.attr().shape(0);
    if operand.elems() != shape.elems() {
        return Err(call.shape_error(
            format!(
                "{operand} has {} elements, but shape {shape} has {}",
                operand.elems().0,
                shape.elems().0
            ),
            "a reshape must keep the number of elements",
        ));
    }
    Ok(one(TensorType::new(operand.dtype(), shape.clone())))
}

/// `transpose`: result dimension `i` is operand dimension `permutation[i]`.
pub(in crate::op) fn transpose(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    let permutation = call.attr().ints(0);
    call.list_len("permutation", permutation.len(), operand.rank(), "operand dimension")?;
    let permutation = call.axes("permutation", permutation, operand.rank())?;
    let dims: Vec<u64> = permutation.iter().map(|&axis| operand.dims()[axis]).collect();
    Ok(one(call.ty(operand.dtype(), &dims)?))
}

/// `slice`: every `strides`-th element from `start_indices` up to, not including, `limit_indices`.
pub(in crate::op) fn slice(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    let (starts, limits, strides) = (call.attr().ints(0), call.attr().ints(1), call.attr().ints(2));
    for (name, list) in [("start_indices", starts), ("limit_indices", limits), ("strides", strides)] {
        call.list_len(name, list.len(), operand.rank(), "operand dimension")?;
    }
    let mut dims = Vec::with_capacity(operand.rank());
    for (axis, &size) in operand.dims().iter().enumerate() {
        let (start, limit, stride) = (starts[axis], limits[axis], strides[axis]);
        if start < 0 || limit < start || limit as u64 > size {
            return Err(call.attr_error(
                format!("dimension {axis} is sliced from {start} to {limit}"),
                format!("0 <= start <= limit <= {size} must hold"),
            ));
        }
        if stride < 1 {
            return Err(call.attr_error(
                format!("the stride of dimension {axis} is {stride}"),
                "strides must be at least 1",
            ));
        }
        dims.push(((limit - start) as u64).div_ceil(stride as u64));
    }
    Ok(one(call.ty(operand.dtype(), &dims)?))
}

/// `concatenate`: operands one after the other along one dimension.
pub(in crate::op) fn concatenate(call: &Call<'_>) -> Result<Results, OpError> {
    let first = call.operand(0);
    let axis = call.axis("dimension", call.attr().int(0), first.rank())?;
    let mut total = 0i128;
    for (index, operand) in call.operands.iter().enumerate() {
        call.same_dtype(index, 0)?;
        let same_elsewhere = operand.rank() == first.rank()
            && (0..first.rank()).all(|i| i == axis || operand.dims()[i] == first.dims()[i]);
        if !same_elsewhere {
            let error = call.shape_error(
                format!(
                    "{} has shape {}, {} has shape {}",
                    call.name(index),
                    operand.shape(),
                    call.name(0),
                    first.shape()
                ),
                format!("they must agree in every dimension but {axis}"),
            );
            let differ =
                |other: usize| (0..first.rank()).all(|i| i == other || operand.dims()[i] == first.dims()[i]);
            let other = (0..first.rank()).find(|&other| operand.rank() == first.rank() && differ(other));
            return Err(match other {
                Some(other) => error.hint(format!("did you mean dimension {other}?")),
                None => error,
            });
        }
        total += i128::from(operand.dims()[axis]);
    }
    let mut dims = first.dims().to_vec();
    dims[axis] = dim(call, &format!("dimension {axis} of the result"), total)?;
    Ok(one(call.ty(first.dtype(), &dims)?))
}

/// `pad`: adds (or, with negative amounts, removes) elements at the edges and inserts some between
/// neighbours.
pub(in crate::op) fn pad(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    call.same_dtype(1, 0)?;
    call.scalar(1)?;
    let (low, high, interior) = (call.attr().ints(0), call.attr().ints(1), call.attr().ints(2));
    for (name, list) in
        [("edge_padding_low", low), ("edge_padding_high", high), ("interior_padding", interior)]
    {
        call.list_len(name, list.len(), operand.rank(), "operand dimension")?;
    }
    let mut dims = Vec::with_capacity(operand.rank());
    for (axis, &size) in operand.dims().iter().enumerate() {
        if interior[axis] < 0 {
            return Err(call.attr_error(
                format!("interior_padding of dimension {axis} is {}", interior[axis]),
                "it must be at least 0",
            ));
        }
        let between = i128::from(size.saturating_sub(1)) * i128::from(interior[axis]);
        let total = i128::from(size) + between + i128::from(low[axis]) + i128::from(high[axis]);
        dims.push(dim(call, &format!("dimension {axis} of the result"), total)?);
    }
    Ok(one(call.ty(operand.dtype(), &dims)?))
}

/// `reverse`: reverses the order along some dimensions.
pub(in crate::op) fn reverse(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    call.axes("dimensions", call.attr().ints(0), operand.rank())?;
    Ok(one(operand.clone()))
}

/// Checks the start indices of a dynamic slice: one integer scalar per dimension, all of one type.
fn starts(call: &Call<'_>, first: usize, rank: usize) -> Result<(), OpError> {
    let count = call.operands.len() - first;
    if count != rank {
        return Err(call.error(
            OpErrorKind::Arity,
            format!("{count} start indices were given"),
            format!("there must be one per operand dimension, which is {rank}"),
        ));
    }
    for index in first..call.operands.len() {
        call.scalar(index)?;
        call.dtype_in(index, DTypeSet::INT)?;
        call.same_dtype(index, first)?;
    }
    Ok(())
}

/// `dynamic_slice`: a window of fixed size at a computed position, which is clamped so that the
/// window fits.
pub(in crate::op) fn dynamic_slice(call: &Call<'_>) -> Result<Results, OpError> {
    let operand = call.operand(0);
    starts(call, 1, operand.rank())?;
    let sizes = call.attr().ints(0);
    call.list_len("slice_sizes", sizes.len(), operand.rank(), "operand dimension")?;
    let mut dims = Vec::with_capacity(sizes.len());
    for (axis, (&size, &whole)) in sizes.iter().zip(operand.dims()).enumerate() {
        match u64::try_from(size) {
            Ok(size) if size <= whole => dims.push(size),
            _ => {
                return Err(call.attr_error(
                    format!("the slice size of dimension {axis} is {size}"),
                    format!("it must be 0 to {whole}"),
                ));
            }
        }
    }
    Ok(one(call.ty(operand.dtype(), &dims)?))
}

/// `dynamic_update_slice`: the operand with a window at a computed position replaced.
pub(in crate::op) fn dynamic_update_slice(call: &Call<'_>) -> Result<Results, OpError> {
    let (operand, update) = (call.operand(0), call.operand(1));
    call.same_dtype(1, 0)?;
    let fits = update.rank() == operand.rank()
        && update.dims().iter().zip(operand.dims()).all(|(part, whole)| part <= whole);
    if !fits {
        return Err(call.shape_error(
            format!("the update has shape {}, but the operand has {}", update.shape(), operand.shape()),
            "the update must fit inside the operand",
        ));
    }
    starts(call, 2, operand.rank())?;
    Ok(one(operand.clone()))
}

/// `optimization_barrier`: returns the operands.
pub(in crate::op) fn optimization_barrier(call: &Call<'_>) -> Result<Results, OpError> {
    Ok(call.operands.iter().cloned().collect())
}
