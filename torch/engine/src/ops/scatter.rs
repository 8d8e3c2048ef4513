//! Writes at indexed positions: one scatter over the elements in row-major order.
//!
//! An index out of range is skipped. PyTorch's CPU reports an error, and so does the device if
//! values are checked.

use fuseline::fusion::DType;
use fuseline::{Result as Done, Tensor};

use super::{as_type, at_least_1d, axis, cast, flat, number, put, result, stretched};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "scatter.src", lower: |call| write(call, Writes::along(call, "scatter")?, |_, new| Ok(new)) },
    Row {
        name: "scatter.value",
        lower: |call| write(call, Writes::along(call, "scatter")?, |_, new| Ok(new)),
    },
    Row {
        name: "scatter_add",
        lower: |call| write(call, Writes::along(call, "scatter_add")?, |old, new| &old + &new),
    },
    Row { name: "scatter.reduce", lower: |call| reduced(call, Writes::along(call, "scatter")?) },
    Row { name: "scatter.value_reduce", lower: |call| reduced(call, Writes::along(call, "scatter")?) },
    Row { name: "scatter_reduce.two", lower: |call| reduced(call, Writes::along(call, "scatter_reduce")?) },
    Row { name: "index_add", lower: index_add },
    Row {
        name: "index_copy",
        lower: |call| write(call, Writes::rows(call, "index_copy")?, |_, new| Ok(new)),
    },
    Row { name: "index_reduce", lower: |call| reduced(call, Writes::rows(call, "index_reduce")?) },
];

/// The row-major position in `dims` of each element of `index`. The index gives the coordinate
/// along one dimension; the other coordinates are the element's own.
fn places(call: &Call<'_>, index: &Tensor, dims: &[usize], along: usize) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    let mut stride = 1;
    for axis in (0..dims.len()).rev() {
        let own = match axis == along {
            true => cast(index, DType::I64)?,
            false => call.stream.iota(DType::I64, index.dims(), axis as i64)?,
        };
        let term = own.mul(&number(call, stride as f64, &own)?)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => sum.add(&term)?,
        });
        stride *= dims[axis].max(1);
    }
    match sum {
        Some(sum) => Ok(sum),
        None => unsupported("the tensor has no dimensions"),
    }
}

/// Checks indices of the dimension in argument 1, if values are checked. A rank-0 tensor counts as
/// one dimension of one element.
fn check(call: &Call<'_>, x: &Tensor, index: &Tensor, op: &'static str) -> Result<()> {
    let size = if x.rank() == 0 { 1 } else { x.dims()[axis(call.int(1)?, x.rank())] };
    call.check_indices(index, size, op)
}

/// Writes along a dimension, one for each index, in row-major order.
struct Writes {
    /// The target, in row-major order.
    list: Tensor,
    /// The positions and the values to write.
    places: Tensor,
    new: Tensor,
}

impl Writes {
    /// Writes along the dimension in argument 1. A rank-0 tensor has one dimension.
    fn of(call: &Call<'_>, x: &Tensor, index: &Tensor, new: &Tensor) -> Result<Writes> {
        let rank = index.rank();
        let dims = if x.rank() == 0 { &[1][..] } else { x.dims() };
        let along = axis(call.int(1)?, dims.len());
        // The source counts only as far as there are indices.
        let limits: Vec<i64> = index.dims().iter().map(|&dim| dim as i64).collect();
        let new = new.slice(&vec![0; rank], &limits, &vec![1; rank])?;
        Ok(Writes { list: flat(x)?, places: places(call, index, dims, along)?, new: flat(&new)? })
    }

    /// Arguments: the target, the dimension, indices, and the source or a number. `None` if there
    /// is nothing to write.
    fn along(call: &Call<'_>, op: &'static str) -> Result<Option<Writes>> {
        let (x, index) = (call.tensor(0)?, at_least_1d(&call.tensor(2)?)?);
        if index.shape().elems().0 == 0 {
            return Ok(None);
        }
        let mut new = as_type(call, 3, x.dtype())?;
        if new.rank() == 0 {
            new = stretched(&new, index.dims())?;
        }
        if index.rank() != x.rank().max(1) {
            return unsupported("the index and the tensor must have the same rank");
        }
        check(call, &x, &index, op)?;
        Writes::of(call, &x, &index, &new).map(Some)
    }

    /// Arguments: the target, the dimension, a list of indices, and the source.
    fn rows(call: &Call<'_>, op: &'static str) -> Result<Option<Writes>> {
        let (x, index) = (call.tensor(0)?, call.tensor(2)?);
        let source = at_least_1d(&cast(&call.tensor(3)?, x.dtype())?)?;
        if source.shape().elems().0 == 0 {
            return Ok(None);
        }
        if source.rank() != x.rank().max(1) || index.rank() > 1 {
            return unsupported("the ranks of source and index are not supported");
        }
        let along = axis(call.int(1)?, source.rank());
        check(call, &x, &index, op)?;
        let index = flat(&index)?.broadcast_in_dim(source.dims(), &[along as i64])?;
        Writes::of(call, &x, &index, &source).map(Some)
    }

    fn put(&self, combine: fn(Tensor, Tensor) -> Done<Tensor>) -> Result<Tensor> {
        put(&self.list, &self.places, &self.new, combine)
    }
}

fn write(
    call: &Call<'_>,
    writes: Option<Writes>,
    combine: fn(Tensor, Tensor) -> Done<Tensor>,
) -> Result<Results> {
    match writes {
        Some(writes) => result(call, writes.put(combine)?),
        None => result(call, call.tensor(0)?),
    }
}

/// Arguments: the target, the dimension, a list of indices, the source, and a factor.
fn index_add(call: &Call<'_>) -> Result<Results> {
    let mut writes = Writes::rows(call, "index_add")?;
    if let Some(writes) = &mut writes
        && !call.is_none(4)
        && call.float(4)? != 1.0
    {
        let factor = call.number(4, writes.new.dtype())?;
        writes.new = writes.new.mul(&stretched(&factor, writes.new.dims())?)?;
    }
    write(call, writes, |old, new| &old + &new)
}

/// Combines writes to one position by the reduction in argument 4. Argument 5 says whether the old
/// element takes part.
fn reduced(call: &Call<'_>, writes: Option<Writes>) -> Result<Results> {
    let Some(mut writes) = writes else { return result(call, call.tensor(0)?) };
    let dtype = writes.list.dtype();
    let how = call.text(4)?.unwrap_or_default().to_owned();
    let has_own = call.flag_or(5, true)?;
    let neutral = match (how.as_str(), dtype.is_float()) {
        ("sum" | "mean" | "add", _) => 0.0,
        ("prod" | "multiply", _) => 1.0,
        ("amax", true) => f64::NEG_INFINITY,
        ("amin", true) => f64::INFINITY,
        _ => return unsupported(format!("the reduction {how} of {dtype} is not supported")),
    };
    if how == "mean" && !dtype.is_float() {
        return unsupported("means of integers are not supported");
    }
    let old = writes.list.clone();
    let none = call.stream.zeros(dtype, old.dims())?;
    let ones = number(call, 1.0, &writes.new)?;
    let counts = put(&none, &writes.places, &ones, |old, new| &old + &new)?;
    let is_written = counts.greater(&none)?;
    if !has_own {
        writes.list = is_written.select(&number(call, neutral, &old)?, &old)?;
    }
    let value = writes.put(match how.as_str() {
        "prod" | "multiply" => |old, new| &old * &new,
        "amax" => |old, new| old.maximum(&new),
        "amin" => |old, new| old.minimum(&new),
        _ => |old, new| &old + &new,
    })?;
    if how != "mean" {
        return result(call, value);
    }
    let own = number(call, f64::from(u8::from(has_own)), &old)?;
    result(call, is_written.select(&value.div(&counts.add(&own)?)?, &value)?)
}
