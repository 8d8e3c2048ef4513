//! Orthogonal and triangular factors.

use fuseline_runtime::Result;

use super::{batched, column, computed, eye, matrix, part, places, scale_of, triu};
use crate::handle::Tensor;
use crate::tensor::constant_like;

/// `a = q r` with orthonormal columns of `q`, `[batch..., rows, least]`, and upper triangular `r`,
/// `[batch..., least, columns]`, where `least` is the smaller of the sizes; by Householder
/// reflections (Golub and Van Loan, "Matrix computations", algorithm 5.2.1).
///
/// Signs are those of LAPACK and NumPy. A reflection maps a column to the opposite side of its
/// diagonal element, so this element of `r` changes sign. If the column is zero below the diagonal,
/// there is no reflection and the element stays. So the last element of a square matrix keeps its
/// sign, and the factors of the identity are the identity. If columns are linearly dependent, the
/// columns of `q` are still orthonormal, but rounding decides which ones they are.
///
/// # Errors
/// When the tensor has fewer than two dimensions or the elements are not floats.
#[track_caller]
pub fn qr(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (m, n) = matrix("qr", a)?;
    factored(a, m.min(n))
}

/// As [`qr`], with a square `q`.
///
/// # Errors
/// As [`qr`].
#[track_caller]
pub fn qr_complete(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (m, _) = matrix("qr", a)?;
    factored(a, m)
}

#[track_caller]
fn factored(a: &Tensor, wanted: usize) -> Result<(Tensor, Tensor)> {
    let (m, n) = matrix("qr", a)?;
    let wide = computed("qr", a, false)?;
    let count = m.min(n);
    let stream = a.on_stream();
    if count == 0 {
        let q = eye(&stream, a.dtype(), m, wanted)?.broadcast_to(&batched(a, m, wanted))?;
        return Ok((q, stream.zeros(a.dtype(), &batched(a, wanted, n))?));
    }
    let (rows, columns) = (places(&stream, m, true)?, places(&stream, n, false)?);
    let reflections = places(&stream, count, false)?;
    // Squares of elements up to 1 do not overflow.
    let scale = scale_of(&wide.abs()?.max(&[-2, -1])?)?.expand_dims(&[-2, -1])?;
    let start = (
        wide.div(&scale)?,
        stream.zeros(wide.dtype(), &batched(a, m, count))?,
        stream.zeros(wide.dtype(), &batched(a, 1, count))?,
    );
    let rounds = i32::try_from(count).unwrap_or(i32::MAX);
    // Each iteration reflects a column onto the axis of its diagonal element. The reflection is 1 -
    // tau v v^T.
    let (r, vectors, taus) = stream.for_range(0..rounds, start, |k, (a, vectors, taus)| {
        let zero = a.on_stream().zeros(a.dtype(), &[])?;
        let one = constant_like(&zero, 1.0)?;
        let below = rows.greater(&k)?;
        let x = column(&a, &k)?;
        let alpha = part(&x, &k, 2)?;
        let rest = below.select(&x, &zero)?;
        let rest = rest.mul(&rest)?.sum(&[-2])?.expand_dims(&[-2])?;
        let done = rest.equal(&zero)?;
        let length = alpha.mul(&alpha)?.add(&rest)?.sqrt()?;
        let beta = alpha.less(&zero)?.select(&length, &length.neg()?)?;
        let tau = done.select(&zero, &beta.sub(&alpha)?.div(&beta)?)?;
        let divisor = done.select(&one, &alpha.sub(&beta)?)?;
        let v = below.select(&x.div(&divisor)?, &rows.equal(&k)?.convert(a.dtype())?)?;
        let turned = v.mul(&a)?.sum(&[-2])?.expand_dims(&[-2])?;
        let a = a.sub(&v.mul(&tau)?.mul(&turned)?)?;
        // Set the elements that the reflection makes zero to exactly zero.
        let a = below.and(&columns.equal(&k)?)?.select(&zero, &a)?;
        let here = reflections.equal(&k)?;
        Ok((a, here.select(&v, &vectors)?, here.select(&tau, &taus)?))
    })?;
    // The product of the reflections, from the last to the first, so that it grows from the corner.
    let last = stream.scalar(rounds - 1);
    let unit = eye(&stream, wide.dtype(), m, wanted)?.broadcast_to(&batched(a, m, wanted))?;
    let q = stream.for_range(0..rounds, unit, |round, q| {
        let k = last.sub(&round)?;
        let (v, tau) = (column(&vectors, &k)?, column(&taus, &k)?);
        let turned = v.mul(&q)?.sum(&[-2])?.expand_dims(&[-2])?;
        q.sub(&v.mul(&tau)?.mul(&turned)?)
    })?;
    let r = triu(&r.narrow(-2, 0, wanted as i64)?, 0)?.mul(&scale)?;
    Ok((q.narrowed(a.dtype())?, r.narrowed(a.dtype())?))
}
