//! Communication between replicas and data of each replica (`csrc/replicas.cpp`).

use fuseline::fusion::{DType, Groups};
use fuseline::{OpCode, Tensor};

use super::{cast, number};
use crate::call::{Call, Result, Results, Row, one, unsupported};
use crate::device;

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "fuseline::replica_index", lower: index },
    Row { name: "fuseline::replica_all_reduce", lower: all_reduce },
    Row { name: "fuseline::replica_all_gather", lower: all_gather },
    Row { name: "fuseline::replica_reduce_scatter", lower: reduce_scatter },
    Row { name: "fuseline::replica_all_to_all", lower: all_to_all },
    Row { name: "fuseline::replica_broadcast", lower: broadcast },
    Row { name: "fuseline::replica_chunk", lower: chunk },
    Row { name: "fuseline::replica_place", lower: place },
];

/// The reduction op of a name and a type. An average is a sum, divided afterwards.
fn combiner(call: &Call<'_>, at: usize, dtype: DType) -> Result<OpCode> {
    let is_bool = dtype == DType::Bool;
    Ok(match call.text(at)? {
        Some("sum" | "avg") if !is_bool => OpCode::Add,
        Some("product") if !is_bool => OpCode::Multiply,
        Some("min") if !is_bool => OpCode::Minimum,
        Some("max") if !is_bool => OpCode::Maximum,
        Some("and" | "product" | "min") => OpCode::And,
        Some("or" | "sum" | "max") => OpCode::Or,
        Some("xor") => OpCode::Xor,
        other => return unsupported(format!("elements of type {dtype} cannot be reduced by {other:?}")),
    })
}

/// Completes a reduction that an argument names. An average of integers is rounded toward zero.
fn combined(call: &Call<'_>, at: usize, result: Tensor) -> Result<Results> {
    if call.text(at)? != Some("avg") {
        return one(result);
    }
    let count = number(call, device::engine()?.replicas() as f64, &result)?;
    one(result.div(&count)?)
}

/// The index of the replica.
fn index(call: &Call<'_>) -> Result<Results> {
    one(call.stream.replica_id()?.convert(DType::I64)?)
}

/// Arguments: a tensor and the name of the reduction.
fn all_reduce(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    combined(call, 1, x.all_reduce(combiner(call, 1, x.dtype())?, None)?)
}

/// Arguments: a tensor and the dimension along which the replicas' tensors are concatenated.
fn all_gather(call: &Call<'_>) -> Result<Results> {
    one(call.tensor(0)?.all_gather(call.int(1)?, None)?)
}

/// Arguments: a tensor, the name of the reduction, and the dimension that is split among the
/// replicas.
fn reduce_scatter(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    combined(call, 1, x.reduce_scatter(combiner(call, 1, x.dtype())?, call.int(2)?, None)?)
}

/// Part `i` of the first dimension goes to replica `i`.
fn all_to_all(call: &Call<'_>) -> Result<Results> {
    one(call.tensor(0)?.all_to_all(0, 0, None)?)
}

/// Arguments: a tensor and the replica whose data all replicas get.
fn broadcast(call: &Call<'_>) -> Result<Results> {
    let source = call.int(1)?;
    let others = (0..device::engine()?.replicas() as i64).filter(|&replica| replica != source);
    let group: Vec<i64> = std::iter::once(source).chain(others).collect();
    one(call.tensor(0)?.collective_broadcast(Some(&Groups::new(&[group])))?)
}

/// The start of the replica's own part, if parts have this size along a dimension.
fn own(call: &Call<'_>, rank: usize, axis: i64, size: usize) -> Result<Vec<Tensor>> {
    let begin =
        call.stream.replica_id()?.convert(DType::I64)?.mul(&call.constant(size as f64, DType::I64)?)?;
    let zero = call.constant(0.0, DType::I64)?;
    Ok((0..rank as i64).map(|at| if at == axis { begin.clone() } else { zero.clone() }).collect())
}

/// Arguments: a tensor and the dimension of whose equal parts each replica takes its own.
fn chunk(call: &Call<'_>) -> Result<Results> {
    let (x, axis, out) = (call.tensor(0)?, call.int(1)?, call.out(0)?);
    let size = out.sizes().get(axis as usize).copied().unwrap_or(1);
    let starts = own(call, x.rank(), axis, size)?;
    let sizes: Vec<i64> = out.sizes().iter().map(|&size| size as i64).collect();
    one(x.dynamic_slice(&starts.iter().collect::<Vec<_>>(), &sizes)?)
}

/// The inverse of `chunk`: zeros with the tensor at the replica's own part.
fn place(call: &Call<'_>) -> Result<Results> {
    let (x, axis, out) = (call.tensor(0)?, call.int(1)?, call.out(0)?);
    let size = x.dims().get(axis as usize).copied().unwrap_or(1);
    let starts = own(call, x.rank(), axis, size)?;
    let zeros = call.stream.zeros(out.dtype(), out.sizes())?;
    one(zeros.dynamic_update_slice(&cast(&x, out.dtype())?, &starts.iter().collect::<Vec<_>>())?)
}
