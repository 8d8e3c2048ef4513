//! The op table: which ATen overloads have a lowering, and which.
//!
//! A row names an overload in its functional form (`add.Tensor`); the shim derives in-place and
//! `out=` forms. A lowering gets its arguments by position in the schema and returns results of the
//! types that PyTorch infers; see [`crate::call`].

mod arithmetic;
mod attention;
mod convolution;
mod index;
mod linear_algebra;
mod networks;
mod order;
mod pool;
mod random;
mod recurrent;
mod replicas;
mod resize;
mod scatter;
mod transforms;
mod window;

use fuseline::fusion::op::attrs::IndexDimensionNumbers;
use fuseline::fusion::{DType, TensorType};
use fuseline::{Tensor, unchecked};

use crate::call::{Call, Result, Results, Row, one};
use crate::promote::result_type;

/// All rows, by subject.
pub static TABLE: &[&[Row]] = &[
    arithmetic::UNARY,
    arithmetic::COMPLEX,
    arithmetic::ROWS,
    attention::ROWS,
    convolution::ROWS,
    index::ROWS,
    linear_algebra::ROWS,
    recurrent::ROWS,
    replicas::ROWS,
    resize::ROWS,
    transforms::ROWS,
    networks::ROWS,
    order::ROWS,
    pool::ROWS,
    random::ROWS,
    scatter::ROWS,
];

/// All rows. The position of a row is its number at the C boundary.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().copied().flatten()
}

/// Converts a value to another element type. Conversion to `bool` tests for nonzero, as in PyTorch.
///
/// # Errors
/// Those of the engine.
pub(crate) fn cast(value: &Tensor, dtype: DType) -> Result<Tensor> {
    if value.dtype() == dtype {
        return Ok(value.clone());
    }
    if dtype == DType::F8E4M3FN && value.dtype().is_float() {
        // PyTorch saturates: infinities and numbers out of range become the largest number.
        let [least, most] = [-448.0, 448.0].map(|number| value.on_stream().scalar(number));
        let bound = |number: Tensor| number.convert(value.dtype())?.broadcast_to(value.dims());
        return Ok(value.clamp(&bound(least)?, &bound(most)?)?.convert(dtype)?);
    }
    Ok(value.convert(dtype)?)
}

/// The mean of the elements along some axes, and the deviation of each element from it.
///
/// Far from zero, the rounding error of a mean exceeds the spread of the elements. The mean of the
/// deviations, which would be zero without rounding, corrects both results. This is the corrected
/// two-pass algorithm of Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance"
/// (1983).
///
/// # Errors
/// Those of the engine.
pub(crate) fn mean_and_deviations(call: &Call<'_>, x: &Tensor, axes: &[i64]) -> Result<(Tensor, Tensor)> {
    let count: usize = axes.iter().map(|&axis| x.dims()[axis as usize]).product();
    let others: Vec<i64> = (0..x.rank() as i64).filter(|axis| !axes.contains(axis)).collect();
    let mean_of = |x: &Tensor| -> Result<Tensor> {
        let sum = x.sum(axes)?;
        Ok(sum.div(&number(call, count as f64, &sum)?)?)
    };
    let below = |x: &Tensor, mean: &Tensor| -> Result<Tensor> {
        Ok(x.sub(&mean.broadcast_in_dim(x.dims(), &others)?)?)
    };
    let mean = mean_of(x)?;
    let rough = below(x, &mean)?;
    let shift = mean_of(&rough)?;
    // An infinite mean has deviations of NaN and needs no correction.
    let shift = shift.is_finite()?.select(&shift, &number(call, 0.0, &shift)?)?;
    Ok((mean.add(&shift)?, below(&rough, &shift)?))
}

/// Broadcasts a value to a shape.
///
/// # Errors
/// If it does not broadcast.
pub(crate) fn stretched(value: &Tensor, dims: &[usize]) -> Result<Tensor> {
    if value.dims() == dims {
        return Ok(value.clone());
    }
    Ok(value.broadcast_to(dims)?)
}

/// Reshapes and converts a value to the type of a result.
///
/// # Errors
/// If the number of elements differs.
pub(crate) fn fitted(value: &Tensor, ty: &TensorType) -> Result<Tensor> {
    let value = cast(value, ty.dtype())?;
    if value.dims() == ty.sizes() {
        return Ok(value);
    }
    Ok(value.reshape(ty.sizes())?)
}

/// Returns an argument as a tensor of a type. A number is lifted.
///
/// # Errors
/// If it is neither.
pub(crate) fn as_type(call: &Call<'_>, at: usize, dtype: DType) -> Result<Tensor> {
    match call.arg(at) {
        crate::call::Arg::Tensor(tensor) => cast(tensor, dtype),
        _ => call.number(at, dtype),
    }
}

/// Returns both operands of a binary op, in the type and shape of the result.
///
/// # Errors
/// If they do not broadcast.
pub(crate) fn pair(call: &Call<'_>, dtype: DType) -> Result<(Tensor, Tensor)> {
    let dims = call.out(0)?.sizes();
    Ok((stretched(&as_type(call, 0, dtype)?, dims)?, stretched(&as_type(call, 1, dtype)?, dims)?))
}

/// A lifted number, broadcast to the shape of a tensor.
///
/// # Errors
/// As [`Call::constant`].
pub(crate) fn number(call: &Call<'_>, value: f64, like: &Tensor) -> Result<Tensor> {
    stretched(&call.constant(value, like.dtype())?, like.dims())
}

/// A tensor times a number. A factor of one records nothing.
pub(crate) fn times(call: &Call<'_>, x: Tensor, factor: f64) -> Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { Ok(x.mul(&number(call, factor, &x)?)?) }
}

/// All elements in row-major order, in one dimension.
pub(crate) fn flat(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 1 { Ok(x.clone()) } else { Ok(x.reshape(&[x.shape().elems().get()])?) }
}

/// Gives a rank-0 tensor one dimension.
pub(crate) fn at_least_1d(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 0 { flat(x) } else { Ok(x.clone()) }
}

/// Writes rows at positions in the first dimension: one row for each position, combined with the
/// old one. The caller checks the positions.
pub(crate) fn put(
    rows: &Tensor,
    places: &Tensor,
    new: &Tensor,
    combine: fn(Tensor, Tensor) -> fuseline::Result<Tensor>,
) -> Result<Tensor> {
    let window: Vec<i64> = (1..rows.rank() as i64).collect();
    let dims = IndexDimensionNumbers {
        window: &window,
        collapsed: &[0],
        index_map: &[0],
        index_vector: 1,
        ..Default::default()
    };
    let places = places.reshape(&[places.shape().elems().get(), 1])?;
    Ok(unchecked(|| Tensor::scatter_with(rows, &places, new, dims, combine))?)
}

/// The inverse of a permutation.
pub(crate) fn inverse(order: &[i64]) -> Vec<i64> {
    let mut back = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        back[from as usize] = to as i64;
    }
    back
}

/// Resolves an axis that may be counted from the end.
pub(crate) fn axis(at: i64, rank: usize) -> usize {
    let rank = rank.max(1) as i64;
    (if at < 0 { at + rank } else { at }).clamp(0, rank - 1) as usize
}

/// Returns a value converted to the result's type.
///
/// # Errors
/// Those of the engine.
pub(crate) fn result(call: &Call<'_>, value: Tensor) -> Result<Results> {
    one(fitted(&value, call.out(0)?)?)
}

/// The type in which the first two arguments are compared.
pub(crate) fn compared_in(call: &Call<'_>) -> DType {
    result_type(call, &[0, 1])
}
