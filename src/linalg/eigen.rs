//! Eigenvalues and eigenvectors of symmetric matrices.

use fuseline_fusion::DType;
use fuseline_runtime::Result;

use super::{batched, computed, epsilon, eye, places, scale_of, square, tril};
use crate::Order;
use crate::handle::Tensor;
use crate::tensor::constant_like;

/// Eigenvalues in ascending order, and their eigenvectors.
#[derive(Clone, Debug)]
pub struct Eigen {
    /// `[batch..., size]`.
    pub values: Tensor,
    /// `[batch..., size, size]`, an eigenvector of length 1 in each column. Its sign is
    /// unspecified.
    pub vectors: Tensor,
}

/// Maximum number of sweeps over all pairs of columns. Convergence is quadratic, so even ten are
/// rare.
const MAX_SWEEPS: f64 = 30.0;

/// A rotation of pairs of columns: cosines and sines, one pair each.
pub(super) struct Rotation {
    pub(super) cosine: Tensor,
    pub(super) sine: Tensor,
}

impl Rotation {
    /// The rotation after which the matrix `[p, r; r, q]` is diagonal, by the smaller of the two
    /// angles; none where `idle`.
    #[track_caller]
    pub(super) fn of(p: &Tensor, q: &Tensor, r: &Tensor, idle: &Tensor) -> Result<Rotation> {
        let (zero, one) = (constant_like(r, 0.0)?, constant_like(r, 1.0)?);
        let divisor = idle.select(&one, &r.add(r)?)?;
        let zeta = q.sub(p)?.div(&divisor)?;
        let length = zeta.abs()?.add(&plus_one_root(&zeta)?)?;
        let tangent = one.div(&length)?;
        let tangent = zeta.less(&zero)?.select(&tangent.neg()?, &tangent)?;
        let tangent = idle.select(&zero, &tangent)?;
        let cosine = crate::tensor::plus(&tangent.mul(&tangent)?, 1.0)?.rsqrt()?;
        Ok(Rotation { sine: tangent.mul(&cosine)?, cosine })
    }

    /// Rotates the two halves of a matrix along `axis` against each other: `c first - s second` and
    /// `s first + c second`.
    #[track_caller]
    pub(super) fn apply(&self, halves: &[Tensor; 2], axis: i64) -> Result<[Tensor; 2]> {
        // One rotation per row of a half, or per column.
        let other = if axis == -1 { -2 } else { -1 };
        let (c, s) = (self.cosine.expand_dims(&[other])?, self.sine.expand_dims(&[other])?);
        let [first, second] = halves;
        Ok([c.mul(first)?.sub(&s.mul(second)?)?, s.mul(first)?.add(&c.mul(second)?)?])
    }
}

/// `sqrt(1 + x^2)` without overflow: `|x|` where the 1 is lost in rounding.
#[track_caller]
fn plus_one_root(x: &Tensor) -> Result<Tensor> {
    let size = x.abs()?;
    let large = size.greater(&constant_like(x, 1e15)?)?;
    let root = crate::tensor::plus(&x.mul(x)?, 1.0)?.sqrt()?;
    large.select(&size, &root)
}

/// The halves of the matrices along `axis`, -1 or -2, whose size is even.
#[track_caller]
pub(super) fn halves(x: &Tensor, axis: i64) -> Result<[Tensor; 2]> {
    let size = x.dims()[x.rank() - axis.unsigned_abs() as usize] as i64;
    Ok([x.narrow(axis, 0, size / 2)?, x.narrow(axis, size / 2, size)?])
}

/// The halves for the next step of a round-robin tournament: the first column of the first half
/// stays, the others move on by one place in a circle (first half to the right, second half to the
/// left). After one step fewer than there are columns, all pairs have met once, and each column is
/// back in its place.
#[track_caller]
pub(super) fn turned([first, second]: &[Tensor; 2], axis: i64) -> Result<Tensor> {
    let size = first.dims()[first.rank() - axis.unsigned_abs() as usize] as i64;
    if size == 1 {
        return Tensor::concatenate(&[first, second], axis);
    }
    let parts = [
        &first.narrow(axis, 0, 1)?,
        &second.narrow(axis, 0, 1)?,
        &first.narrow(axis, 1, size - 1)?,
        &second.narrow(axis, 1, size)?,
        &first.narrow(axis, size - 1, size)?,
    ];
    Tensor::concatenate(&parts, axis)
}

/// The matrices padded with a row and a column of zeros if their size is odd.
#[track_caller]
pub(super) fn padded(a: &Tensor, rows: bool) -> Result<Tensor> {
    let zero = constant_like(a, 0.0)?;
    let none = vec![0; a.rank()];
    let mut high = none.clone();
    high[a.rank() - 1] = (a.dims()[a.rank() - 1] % 2) as i64;
    if rows {
        high[a.rank() - 2] = (a.dims()[a.rank() - 2] % 2) as i64;
    }
    if high == none { Ok(a.clone()) } else { a.pad(&zero, &none, &high, &none) }
}

/// Eigenvalues and eigenvectors of symmetric matrices, `a = v diag(w) v^T`. Only the lower triangle
/// is read.
///
/// By Jacobi's method with the pairs of a round-robin tournament (Brent and Luk, "The solution of
/// singular-value and symmetric eigenvalue problems on multiprocessor arrays", 1985): each step
/// rotates all columns in pairs, so that the elements where they meet become zero. The sweeps over
/// all pairs end when the elements off the diagonal are mere rounding errors. A step is linear in
/// the number of elements, and a sweep takes as many steps as there are columns.
///
/// # Errors
/// When the matrices are not square or the elements are not floats.
#[track_caller]
pub fn eigh(a: &Tensor) -> Result<Eigen> {
    let size = square("eigh", a)?;
    let wide = computed("eigh", a, false)?;
    let stream = a.on_stream();
    if size == 0 {
        let values = a.reshape(&a.dims()[..a.rank() - 1])?;
        return Ok(Eigen { values, vectors: a.clone() });
    }
    let lower = tril(&wide, 0)?;
    let symmetric = lower.add(&tril(&wide, -1)?.swap_axes(-1, -2)?)?;
    let scale = scale_of(&symmetric.abs()?.max(&[-2, -1])?)?;
    // A column of zeros is never rotated, so the padding is still the last one at the end.
    let start = padded(&symmetric.div(&scale.expand_dims(&[-2, -1])?)?, true)?;
    let even = size + size % 2;
    let vectors = eye(&stream, wide.dtype(), even, even)?.broadcast_to(&batched(a, even, even))?;
    let whole = start.mul(&start)?.sum(&[-2, -1])?;
    let limit = crate::tensor::times(&whole, epsilon(wide.dtype()).powi(2) * even as f64)?;
    let beside = places(&stream, even, true)?.not_equal(&places(&stream, even, false)?)?;

    let steps = i32::try_from(even - 1).unwrap_or(i32::MAX);
    let sweeps = stream.zeros(DType::I32, &[])?;
    let (diagonal, vectors, _) = stream.while_loop(
        (start, vectors, sweeps),
        |(a, _, sweeps)| {
            let left = beside.select(&a, &constant_like(&a, 0.0)?)?;
            let left = left.mul(&left)?.sum(&[-2, -1])?;
            let batch: Vec<i64> = (0..left.rank() as i64).collect();
            let open = left.greater(&limit)?.any(&batch)?;
            open.and(&sweeps.less(&constant_like(&sweeps, MAX_SWEEPS)?)?)
        },
        |(a, vectors, sweeps)| {
            let stream = a.on_stream();
            let (a, vectors) =
                stream.for_range(0..steps, (a, vectors), |_, (a, vectors)| step(&a, &vectors))?;
            Ok((a, vectors, crate::tensor::plus(&sweeps, 1.0)?))
        },
    )?;
    let values = diagonal.diagonal(-2, -1)?.narrow(-1, 0, size as i64)?.mul(&scale.expand_dims(&[-1])?)?;
    let (values, order) = values.sort_with_places(-1, Order::Ascending)?;
    // Eigenvectors are rows until here.
    let rows = vectors.narrow(-2, 0, size as i64)?.narrow(-1, 0, size as i64)?;
    let order = order.unsqueeze(-1)?.broadcast_to(rows.dims())?;
    let vectors = rows.take_along_inside(&order, -2)?.swap_axes(-1, -2)?;
    Ok(Eigen { values: values.narrowed(a.dtype())?, vectors: vectors.narrowed(a.dtype())? })
}

/// One step: rotates all pairs of the tournament and moves the columns to their places in the next
/// step.
#[track_caller]
fn step(a: &Tensor, vectors: &Tensor) -> Result<(Tensor, Tensor)> {
    let rows = halves(a, -2)?;
    let (top, bottom) = (halves(&rows[0], -1)?, halves(&rows[1], -1)?);
    let diagonal = |x: &Tensor| x.diagonal(-2, -1);
    let (p, q, r) = (diagonal(&top[0])?, diagonal(&bottom[1])?, diagonal(&top[1])?);
    let idle = r.equal(&constant_like(&r, 0.0)?)?;
    let rotation = Rotation::of(&p, &q, &r, &idle)?;
    let turned_rows = turned(&rotation.apply(&rows, -2)?, -2)?;
    let a = turned(&rotation.apply(&halves(&turned_rows, -1)?, -1)?, -1)?;
    let vectors = turned(&rotation.apply(&halves(vectors, -2)?, -2)?, -2)?;
    Ok((a, vectors))
}
