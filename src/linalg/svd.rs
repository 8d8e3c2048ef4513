//! Singular values, and the functions based on them.

use fuseline_fusion::{DType, OpErrorKind};
use fuseline_runtime::Result;

use super::eigen::{Rotation, halves, padded, turned};
use super::{batched, computed, epsilon, eye, matrix, qr, refused, scale_of};
use crate::Order;
use crate::handle::Tensor;
use crate::promote::promote_types;
use crate::tensor::{constant_like, plus, times};

/// `a = u diag(s) v^T`.
#[derive(Clone, Debug)]
pub struct Svd {
    /// `[batch..., rows, least]`, with orthonormal columns, where `least` is the smaller of the
    /// sizes.
    pub u: Tensor,
    /// The singular values in descending order: `[batch..., least]`.
    pub s: Tensor,
    /// `v` transposed, with orthonormal rows: `[batch..., least, columns]`.
    pub vt: Tensor,
}

/// As in [`eigh`](super::eigh).
const MAX_SWEEPS: f64 = 30.0;

/// The thin singular value decomposition. The signs of pairs of vectors are unspecified.
///
/// By one-sided Jacobi (Hestenes, "Inversion of matrices by biorthogonalization and related
/// results", 1958) with the pairs of [`eigh`](super::eigh): columns are rotated in pairs until all
/// are orthogonal to each other. Their lengths are then the singular values, and small ones are
/// relatively accurate too (Demmel and Veselić, "Jacobi's method is more accurate than QR", 1992).
/// `u` is the orthogonal factor of the resulting matrix, so its columns are orthonormal even if
/// singular values are 0.
///
/// # Errors
/// When the tensor has fewer than two dimensions or the elements are not floats.
#[track_caller]
pub fn svd(a: &Tensor) -> Result<Svd> {
    let (m, n) = matrix("svd", a)?;
    if m < n {
        let Svd { u, s, vt } = svd(&a.swap_axes(-1, -2)?)?;
        return Ok(Svd { u: vt.swap_axes(-1, -2)?, s, vt: u.swap_axes(-1, -2)? });
    }
    let wide = computed("svd", a, false)?;
    let stream = a.on_stream();
    if n == 0 {
        let s = stream.zeros(a.dtype(), &[&a.dims()[..a.rank() - 2], &[0]].concat())?;
        return Ok(Svd { u: a.clone(), s, vt: stream.zeros(a.dtype(), &batched(a, 0, 0))? });
    }
    let scale = scale_of(&wide.abs()?.max(&[-2, -1])?)?;
    // Tall matrices are reduced to their triangular factor first, which is square.
    let (outer, inner) = match m > n {
        true => {
            let (q, r) = qr(&wide.div(&scale.expand_dims(&[-2, -1])?)?)?;
            (Some(q), r)
        }
        false => (None, wide.div(&scale.expand_dims(&[-2, -1])?)?),
    };
    let even = n + n % 2;
    let start = padded(&inner, false)?;
    let vectors = eye(&stream, wide.dtype(), even, even)?.broadcast_to(&batched(a, even, even))?;
    let tolerance = epsilon(wide.dtype()) * (even as f64).sqrt();
    let steps = i32::try_from(even - 1).unwrap_or(i32::MAX);
    let sweeps = stream.zeros(DType::I32, &[])?;
    // The largest cosine of an angle between two columns in the last sweep. It starts above any
    // cosine.
    let worst = plus(&stream.zeros(wide.dtype(), &[])?, 2.0)?;
    let (columns, vectors, ..) = stream.while_loop(
        (start, vectors, worst, sweeps),
        |(_, _, worst, sweeps)| {
            let open = worst.greater(&constant_like(&worst, tolerance)?)?;
            open.and(&sweeps.less(&constant_like(&sweeps, MAX_SWEEPS)?)?)
        },
        |(columns, vectors, worst, sweeps)| {
            let stream = columns.on_stream();
            let state = (columns, vectors, constant_like(&worst, 0.0)?);
            let (columns, vectors, worst) =
                stream.for_range(0..steps, state, |_, (columns, vectors, worst)| {
                    step(&columns, &vectors, &worst, tolerance)
                })?;
            Ok((columns, vectors, worst, plus(&sweeps, 1.0)?))
        },
    )?;
    // The padding column of zeros was never rotated, so it is still the last one.
    let (count, columns) = (n as i64, columns.narrow(-1, 0, n as i64)?);
    let rows = vectors.narrow(-2, 0, count)?.narrow(-1, 0, count)?;
    let lengths = columns.mul(&columns)?.sum(&[-2])?.sqrt()?;
    let (lengths, order) = lengths.sort_with_places(-1, Order::Descending)?;
    let vt = rows.take_along_inside(&order.unsqueeze(-1)?.broadcast_to(rows.dims())?, -2)?;
    let columns = columns.take_along_inside(&order.unsqueeze(-2)?.broadcast_to(columns.dims())?, -1)?;
    // The columns are orthogonal, so their triangular factor is diagonal, but for signs.
    let (q, r) = qr(&columns)?;
    let zero = constant_like(&r, 0.0)?;
    let negative = r.diagonal(-2, -1)?.less(&zero)?.unsqueeze(-2)?;
    let u = negative.select(&q.neg()?, &q)?;
    let u = match outer {
        Some(outer) => outer.matmul(&u)?,
        None => u,
    };
    let s = lengths.mul(&scale.unsqueeze(-1)?)?;
    Ok(Svd { u: u.narrowed(a.dtype())?, s: s.narrowed(a.dtype())?, vt: vt.narrowed(a.dtype())? })
}

/// One step: makes all pairs of columns orthogonal and moves them to their places in the next step.
#[track_caller]
fn step(
    columns: &Tensor,
    vectors: &Tensor,
    worst: &Tensor,
    tolerance: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let pairs = halves(columns, -1)?;
    let dot = |a: &Tensor, b: &Tensor| a.mul(b)?.sum(&[-2]);
    let (p, q, r) = (dot(&pairs[0], &pairs[0])?, dot(&pairs[1], &pairs[1])?, dot(&pairs[0], &pairs[1])?);
    let length = p.mul(&q)?.sqrt()?;
    let zero = constant_like(&r, 0.0)?;
    // Columns of zeros are orthogonal to every column.
    let one = constant_like(&r, 1.0)?;
    let cosine = r.abs()?.div(&length.greater(&zero)?.select(&length, &one)?)?;
    let idle = cosine.less_equal(&constant_like(&cosine, tolerance)?)?;
    let rotation = Rotation::of(&p, &q, &r, &idle)?;
    let columns = turned(&rotation.apply(&pairs, -1)?, -1)?;
    let vectors = turned(&rotation.apply(&halves(vectors, -2)?, -2)?, -2)?;
    let axes: Vec<i64> = (0..cosine.rank() as i64).collect();
    Ok((columns, vectors, worst.maximum(&cosine.max(&axes)?)?))
}

/// The reciprocals of singular values. Those up to `epsilon * larger size` times the largest count
/// as 0 and get 0.
#[track_caller]
fn reciprocal(a: &Tensor, s: &Tensor) -> Result<Tensor> {
    let (m, n) = matrix("svd", a)?;
    let largest = s.max(&[-1])?.expand_dims(&[-1])?;
    let limit = times(&largest, epsilon(s.dtype()) * m.max(n) as f64)?;
    let counts = s.greater(&limit)?;
    let one = constant_like(s, 1.0)?;
    counts.select(&one.div(&counts.select(s, &one)?)?, &constant_like(s, 0.0)?)
}

/// The Moore-Penrose pseudo-inverse of matrices, `v diag(1 / s) u^T`: singular values up to the
/// largest times the larger size times the precision of the type count as 0.
///
/// # Errors
/// When the tensor has fewer than two dimensions or the elements are not floats.
#[track_caller]
pub fn pinv(a: &Tensor) -> Result<Tensor> {
    let wide = computed("pinv", a, false)?;
    let Svd { u, s, vt } = svd(&wide)?;
    let inverse = reciprocal(&wide, &s)?.unsqueeze(-2)?;
    let v = vt.swap_axes(-1, -2)?.mul(&inverse)?;
    v.matmul(&u.swap_axes(-1, -2)?)?.narrowed(a.dtype())
}

/// The shortest `x` for which `|a x - b|` is least, for any `a`; `b` is a matrix, or a vector if it
/// has one dimension. Singular values count as in [`pinv`].
///
/// # Errors
/// When the shapes do not fit or the elements are not floats.
#[track_caller]
pub fn lstsq(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (m, _) = matrix("lstsq", a)?;
    let vector = b.rank() == 1;
    let right = if vector { b.unsqueeze(-1)? } else { b.clone() };
    if matrix("lstsq", &right)?.0 != m {
        let given = format!("a is {} and b is {}", a.ty(), b.ty());
        return Err(refused("lstsq", OpErrorKind::Shape, given, "b must have as many rows as a"));
    }
    let (wide, right) = (computed("lstsq", a, false)?, right.widened()?);
    let Svd { u, s, vt } = svd(&wide)?;
    let inverse = reciprocal(&wide, &s)?.unsqueeze(-1)?;
    let turned = u.swap_axes(-1, -2)?.matmul(&right)?.mul(&inverse)?;
    let x = vt.swap_axes(-1, -2)?.matmul(&turned)?;
    let x = x.narrowed(promote_types(a.dtype(), b.dtype()).unwrap_or(x.dtype()))?;
    if vector { x.squeeze(-1) } else { Ok(x) }
}
