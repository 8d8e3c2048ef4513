//! Writes to places that indices name: one scatter over the elements in row-major order.
//!
//! An index outside is left out, where PyTorch's CPU has an error.

use fuseline::fusion::DType;
use fuseline::fusion::op::attrs::IndexDimensionNumbers;
use fuseline::{Result as Done, Tensor};

use super::{as_type, axis, cast, result, stretched};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "scatter.src", lower: |call| along(call, |_, new| Ok(new)) },
    Row { name: "scatter.value", lower: |call| along(call, |_, new| Ok(new)) },
    Row { name: "scatter_add", lower: |call| along(call, |old, new| &old + &new) },
    Row { name: "index_add", lower: index_add },
    Row {
        name: "masked_fill.Tensor",
        lower: |call| {
            let ty = call.out(0)?;
            let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, ty.dtype())?, ty.dims()) };
            result(call, stretched(&call.tensor(1)?, ty.dims())?.select(&part(2)?, &part(0)?)?)
        },
    },
    Row {
        name: "clamp.Tensor",
        lower: |call| {
            let ty = call.out(0)?;
            let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, ty.dtype())?, ty.dims()) };
            let mut x = part(0)?;
            if !call.is_none(1) {
                x = x.maximum(&part(1)?)?;
            }
            if !call.is_none(2) {
                x = x.minimum(&part(2)?)?;
            }
            result(call, x)
        },
    },
];

/// Writes rows of one element each to a list.
fn put(
    list: &Tensor,
    places: &Tensor,
    new: &Tensor,
    combine: fn(Tensor, Tensor) -> Done<Tensor>,
) -> Result<Tensor> {
    let dims =
        IndexDimensionNumbers { collapsed: &[0], index_map: &[0], index_vector: 1, ..Default::default() };
    let places = places.reshape(&[places.shape().elems().0, 1])?;
    Ok(Tensor::scatter_with(list, &places, new, dims, combine)?)
}

fn flat(x: &Tensor) -> Result<Tensor> {
    Ok(x.reshape(&[x.shape().elems().0])?)
}

/// The place of each element of `index`, in row-major order of `dims`: as it stands but for one dimension, where the index says it.
fn places(call: &Call<'_>, index: &Tensor, dims: &[u64], along: usize) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    let mut stride = 1u64;
    for axis in (0..dims.len()).rev() {
        let own = match axis == along {
            true => cast(index, DType::I64)?,
            false => call.stream.iota(DType::I64, index.dims(), axis as i64)?,
        };
        let term = own.mul(&stretched(&call.constant(stride as f64, DType::I64)?, index.dims())?)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => sum.add(&term)?,
        });
        stride *= dims[axis].max(1);
    }
    match sum {
        Some(sum) => Ok(sum),
        None => unsupported("a tensor without dimensions"),
    }
}

/// Arguments: what is written to, the dimension, indices, and what is written or a number.
fn along(call: &Call<'_>, combine: fn(Tensor, Tensor) -> Done<Tensor>) -> Result<Results> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    if x.rank() == 0 || index.rank() != x.rank() || index.shape().elems().0 == 0 {
        return unsupported("a tensor without dimensions, or nothing to write");
    }
    let mut new = as_type(call, 3, x.dtype())?;
    if new.rank() == 0 {
        new = stretched(&new, index.dims())?;
    }
    // Of what is written as much counts as there are indices.
    let limits: Vec<i64> = index.dims().iter().map(|&dim| dim as i64).collect();
    let new = new.slice(&vec![0; x.rank()], &limits, &vec![1; x.rank()])?;
    let places = places(call, &index, x.dims(), axis(call.int(1)?, x.rank()))?;
    result(call, put(&flat(&x)?, &places, &flat(&new)?, combine)?)
}

/// Arguments: what is added to, the dimension, a list of indices, what is added, and a factor.
fn index_add(call: &Call<'_>) -> Result<Results> {
    let (x, index, source) = (call.tensor(0)?, call.tensor(2)?, call.tensor(3)?);
    if x.rank() == 0 || source.rank() != x.rank() || index.rank() != 1 || source.shape().elems().0 == 0 {
        return unsupported("a tensor without dimensions, or nothing to add");
    }
    let along = axis(call.int(1)?, x.rank());
    let index = index.broadcast_in_dim(source.dims(), &[along as i64])?;
    let mut new = cast(&source, x.dtype())?;
    if !call.is_none(4) && call.float(4)? != 1.0 {
        new = new.mul(&stretched(&call.number(4, x.dtype())?, source.dims())?)?;
    }
    let places = places(call, &index, x.dims(), along)?;
    result(call, put(&flat(&x)?, &places, &flat(&new)?, |old, new| &old + &new)?)
}
