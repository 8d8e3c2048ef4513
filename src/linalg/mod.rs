//! Linear algebra on batches of matrices: dimensions before the last two are batch dimensions.
//!
//! Cholesky factorisation and triangular solves are ops, which XLA implements. Everything else is a
//! loop on the device, recorded by ordinary tensor methods. So it runs on every plugin, fuses with
//! its surroundings, and differs between devices by rounding only:
//!
//! | | by |
//! |---|---|
//! | [`cholesky`], [`triangular_solve`] | one op |
//! | [`lu`], [`solve`], [`inv`], [`det`], [`slogdet`] | Gaussian elimination with partial pivoting, one column per iteration |
//! | [`qr`], [`qr_complete`] | Householder reflections, one column per iteration |
//! | [`eigh`] | Jacobi rotations, half as many at a time as there are columns |
//! | [`svd`], [`pinv`], [`lstsq`] | one-sided Jacobi rotations (Hestenes) |
//! | [`grad`] | vector-Jacobian products of [`cholesky`], [`triangular_solve`], [`solve`] and [`inv`] |
//!
//! `f32` and `f64` are computed in their own type, narrower floats in `f32`. Integers are rejected:
//! convert them to a float type first. LU and the functions based on it take complex matrices too.
//! The inverse of a singular matrix has infinities and NaN, as a division by zero does. It is no
//! error, because detecting it would mean waiting for the device.

mod eigen;
pub mod grad;
mod lu;
mod qr;
mod svd;

pub use eigen::{Eigen, eigh};
pub use lu::{Lu, det, inv, lu, slogdet, solve};
pub use qr::{qr, qr_complete};
pub use svd::{Svd, lstsq, pinv, svd};

use fuseline_fusion::op::{Transpose, attrs};
use fuseline_fusion::{DType, OpCode, OpError, OpErrorKind, Shape, Site};
use fuseline_runtime::internals::bug;
use fuseline_runtime::{Error, Result};

use crate::handle::Tensor;
use crate::promote::{broadcast_shapes, promote_types};
use crate::stream::Stream;
use crate::tensor::constant_like;

#[track_caller]
fn refused(op: &'static str, fault: OpErrorKind, given: String, rule: impl Into<String>) -> Error {
    Error::op(OpError::new(op, fault, given, rule), Site::Rust(std::panic::Location::caller()))
}

/// Rows and columns of the matrices.
#[track_caller]
fn matrix(op: &'static str, a: &Tensor) -> Result<(usize, usize)> {
    match *a.dims() {
        [.., rows, columns] => Ok((rows, columns)),
        _ => Err(refused(
            op,
            OpErrorKind::Shape,
            format!("a is {}", a.ty()),
            "a matrix needs at least two dimensions",
        )),
    }
}

/// Size of the square matrices.
#[track_caller]
fn square(op: &'static str, a: &Tensor) -> Result<usize> {
    match matrix(op, a)? {
        (rows, columns) if rows == columns => Ok(rows),
        _ => Err(refused(
            op,
            OpErrorKind::Shape,
            format!("a is {}", a.ty()),
            "its last two dimensions must be equal",
        )),
    }
}

/// The matrices in the type in which they are computed.
#[track_caller]
fn computed(op: &'static str, a: &Tensor, complex: bool) -> Result<Tensor> {
    if a.dtype().is_float() || (complex && a.dtype().is_complex()) {
        return a.widened();
    }
    let rule = if complex { "the elements must be floats or complex" } else { "the elements must be floats" };
    let error = OpError::new(op, OpErrorKind::DType, format!("a is {}", a.ty()), rule);
    let error = match a.dtype().is_complex() {
        true => error,
        false => error.hint("convert it to a float type"),
    };
    Err(Error::op(error, Site::Rust(std::panic::Location::caller())))
}

/// Distance from 1 to the next number of a type of at least 32 bits.
fn epsilon(dtype: DType) -> f64 {
    match dtype.part() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// 0, 1, 2, ... as a column or a row that broadcasts to matrices.
#[track_caller]
fn places(stream: &Stream, count: usize, column: bool) -> Result<Tensor> {
    let dims = if column { [count, 1] } else { [1, count] };
    stream.iota(DType::I32, &dims, if column { 0 } else { 1 })
}

/// Column `k` of the matrices, as matrices with one column.
#[track_caller]
fn column(a: &Tensor, k: &Tensor) -> Result<Tensor> {
    part(a, k, 1)
}

/// Row `k` of the matrices, as matrices with one row.
#[track_caller]
fn row(a: &Tensor, k: &Tensor) -> Result<Tensor> {
    part(a, k, 2)
}

/// Slice `k` of a dimension that is counted from the back.
#[track_caller]
fn part(a: &Tensor, k: &Tensor, from_back: usize) -> Result<Tensor> {
    let zero = constant_like(k, 0.0)?;
    let place = a.rank() - from_back;
    let starts: Vec<&Tensor> = (0..a.rank()).map(|axis| if axis == place { k } else { &zero }).collect();
    let mut sizes: Vec<i64> = a.dims().iter().map(|&dim| dim as i64).collect();
    sizes[place] = 1;
    a.dynamic_slice(&starts, &sizes)
}

/// The batch dimensions, then `rows` and `columns`.
fn batched(a: &Tensor, rows: usize, columns: usize) -> Vec<usize> {
    [&a.dims()[..a.rank() - 2], &[rows, columns]].concat()
}

/// A matrix with ones on the diagonal and zeros elsewhere, on the given stream.
///
/// # Errors
/// When the sizes do not form a shape.
#[track_caller]
pub fn eye(stream: &Stream, dtype: DType, rows: usize, columns: usize) -> Result<Tensor> {
    let row = stream.iota(DType::I32, &[rows, columns], 0)?;
    row.equal(&stream.iota(DType::I32, &[rows, columns], 1)?)?.convert(dtype)
}

/// The matrices with zeros above diagonal `diagonal`, which counts upwards from the main one, 0.
///
/// # Errors
/// When the tensor has fewer than two dimensions.
#[track_caller]
pub fn tril(a: &Tensor, diagonal: i64) -> Result<Tensor> {
    triangle("tril", a, diagonal, true)
}

/// The matrices with zeros below diagonal `diagonal`, which counts upwards from the main one, 0.
///
/// # Errors
/// When the tensor has fewer than two dimensions.
#[track_caller]
pub fn triu(a: &Tensor, diagonal: i64) -> Result<Tensor> {
    triangle("triu", a, diagonal, false)
}

#[track_caller]
fn triangle(op: &'static str, a: &Tensor, diagonal: i64, lower: bool) -> Result<Tensor> {
    let (rows, columns) = matrix(op, a)?;
    let stream = a.on_stream();
    let (row, column) = (places(&stream, rows, true)?, places(&stream, columns, false)?);
    let limit = row.add(&constant_like(&row, diagonal.clamp(i32::MIN.into(), i32::MAX.into()) as f64)?)?;
    let kept = if lower { column.less_equal(&limit)? } else { column.greater_equal(&limit)? };
    kept.select(a, &stream.zeros(a.dtype(), &[])?)
}

/// The sum of the diagonals of the matrices.
///
/// # Errors
/// When the matrices are not square.
#[track_caller]
pub fn trace(a: &Tensor) -> Result<Tensor> {
    square("trace", a)?;
    a.diagonal(-2, -1)?.sum(&[-1])
}

/// The square root of the sum of the squares over the given dimensions, which disappear: the length
/// of vectors, the Frobenius norm of matrices. Elements are divided by the largest one first, so
/// that no square overflows.
///
/// # Errors
/// When a dimension does not exist or the elements are not floats.
#[track_caller]
pub fn norm(x: &Tensor, axes: &[i64]) -> Result<Tensor> {
    let wide = computed("norm", x, false)?.abs()?;
    let largest = wide.max(axes)?;
    let scale = scale_of(&largest)?;
    let part = wide.div(&scale.expand_dims(axes)?)?;
    part.mul(&part)?.sum(axes)?.sqrt()?.mul(&scale)?.narrowed(x.dtype())
}

/// A safe divisor: the given number, or 1 where it is 0, infinite or NaN.
#[track_caller]
fn scale_of(largest: &Tensor) -> Result<Tensor> {
    let zero = constant_like(largest, 0.0)?;
    let useful = largest.is_finite()?.and(&largest.greater(&zero)?)?;
    useful.select(largest, &constant_like(largest, 1.0)?)
}

/// The lower triangular `l` with `a = l l^H`, for `a` symmetric (Hermitian) and positive definite;
/// its lower triangle is read. NaN where it is not positive definite. One op.
///
/// # Errors
/// When the matrices are not square or the elements are neither floats nor complex.
#[track_caller]
pub fn cholesky(a: &Tensor) -> Result<Tensor> {
    square("cholesky", a)?;
    let wide = computed("cholesky", a, true)?;
    one(&wide, OpCode::Cholesky, attrs::cholesky(true), &[&wide])?.narrowed(a.dtype())
}

/// The form of a triangular system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triangular {
    /// Reads the lower triangle of `a` instead of the upper one.
    pub lower: bool,
    /// Takes the diagonal of `a` to be ones.
    pub unit_diagonal: bool,
    /// Transposes `a`: `a^T x = b`.
    pub transpose: bool,
}

/// The `x` with `a x = b` for triangular `a`, and matrices `b`. One op, whose operands promote and
/// whose batches broadcast.
///
/// # Errors
/// When `a` is not square or `b` has another number of rows.
#[track_caller]
pub fn triangular_solve(a: &Tensor, b: &Tensor, system: Triangular) -> Result<Tensor> {
    let turn = if system.transpose { Transpose::Transpose } else { Transpose::No };
    triangular(a, b, system.lower, system.unit_diagonal, turn)
}

#[track_caller]
fn triangular(a: &Tensor, b: &Tensor, lower: bool, unit_diagonal: bool, turn: Transpose) -> Result<Tensor> {
    square("triangular_solve", a)?;
    matrix("triangular_solve", b)?;
    let (wide_a, wide_b) = system_of("triangular_solve", a, b)?;
    let attrs = attrs::triangular_solve(true, lower, unit_diagonal, turn);
    let x = one(&wide_a, OpCode::TriangularSolve, attrs, &[&wide_a, &wide_b])?;
    x.narrowed(promote_types(a.dtype(), b.dtype()).unwrap_or(x.dtype()))
}

/// The `x` with `a x = b`, from the factor that [`cholesky`] made of `a`.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn cholesky_solve(factor: &Tensor, b: &Tensor) -> Result<Tensor> {
    let half = triangular(factor, b, true, false, Transpose::No)?;
    triangular(factor, &half, true, false, Transpose::Adjoint)
}

#[track_caller]
fn one(on: &Tensor, op: OpCode, attrs: crate::Attrs, operands: &[&Tensor]) -> Result<Tensor> {
    let mut results = on.on_stream().record(op, attrs, &[], operands)?;
    results.pop().ok_or_else(|| bug!("{op} has a result"))
}

/// Both sides of a system in one type of at least 32 bits and with one batch.
#[track_caller]
fn system_of(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let given = || format!("a is {}, b is {}", a.ty(), b.ty());
    let (wide_a, wide_b) = (computed(op, a, true)?, b.widened()?);
    let Some(dtype) = promote_types(wide_a.dtype(), wide_b.dtype()) else {
        return Err(refused(op, OpErrorKind::DType, given(), "their element types do not promote"));
    };
    let wide_a = if wide_a.dtype() == dtype { wide_a } else { wide_a.convert(dtype)? };
    let wide_b = if wide_b.dtype() == dtype { wide_b } else { wide_b.convert(dtype)? };
    let batch = |x: &Tensor| Shape::try_from(&x.dims()[..x.rank() - 2]);
    let (of_a, of_b) = (batch(a)?, batch(b)?);
    let Some(common) = broadcast_shapes(&[&of_a, &of_b]) else {
        return Err(refused(
            op,
            OpErrorKind::Shape,
            given(),
            "the dimensions before the last two must broadcast",
        ));
    };
    let of = |x: &Tensor| [common.sizes(), &x.dims()[x.rank() - 2..]].concat();
    let (dims_a, dims_b) = (of(a), of(b));
    Ok((wide_a.broadcast_to(&dims_a)?, wide_b.broadcast_to(&dims_b)?))
}
