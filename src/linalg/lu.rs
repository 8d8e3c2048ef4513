//! Gaussian elimination, and the functions based on it.

use fuseline_fusion::{DType, OpErrorKind};
use fuseline_runtime::Result;

use super::{
    Triangular, batched, column, computed, eye, matrix, places, refused, row, square, system_of,
    triangular_solve,
};
use crate::handle::Tensor;
use crate::promote::promote_types;
use crate::tensor::constant_like;

/// The factors of `p a = l u`.
#[derive(Clone, Debug)]
pub struct Lu {
    /// `u` on and above the diagonal; below it `l`, whose diagonal is ones.
    pub factors: Tensor,
    /// The rows of `a` in the order of `p a`, as `i32`: `[batch..., rows]`.
    pub permutation: Tensor,
    /// The row exchanges that make up the permutation: in step `k`, rows `k` and `pivots[k] >= k`
    /// are exchanged. As `i32`: `[batch..., steps]`; the number of steps is the smaller of the
    /// sizes.
    pub pivots: Tensor,
    /// Whether the permutation is odd, as `bool`: `[batch...]`.
    pub odd: Tensor,
}

/// The size by which pivots are chosen: the absolute value, or for complex numbers the sum of the
/// absolute values of both parts, as in LAPACK.
#[track_caller]
fn sizes(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() { x.real()?.abs()?.add(&x.imag()?.abs()?) } else { x.abs() }
}

/// Factors of matrices, by Gaussian elimination with partial pivoting (Golub and Van Loan, "Matrix
/// computations", algorithm 3.4.1): each step moves the largest element of a column to the diagonal
/// and subtracts multiples of its row from the rows below.
///
/// # Errors
/// When the tensor has fewer than two dimensions, or the elements are neither floats nor complex.
#[track_caller]
pub fn lu(a: &Tensor) -> Result<Lu> {
    let (m, n) = matrix("lu", a)?;
    let wide = computed("lu", a, true)?;
    let stream = a.on_stream();
    let (rows, columns) = (places(&stream, m, true)?, places(&stream, n, false)?);
    let permutation = rows.broadcast_to(&batched(a, m, 1))?;
    let odd = stream.zeros(DType::Bool, &batched(a, 1, 1))?;
    let rounds = i32::try_from(m.min(n)).unwrap_or(i32::MAX);
    let turns = places(&stream, m.min(n), true)?;
    let pivots = stream.zeros(DType::I32, &batched(a, m.min(n), 1))?;
    if rounds == 0 {
        return Ok(Lu {
            factors: a.clone(),
            permutation: permutation.squeeze(-1)?,
            pivots: pivots.squeeze(-1)?,
            odd: odd.squeeze(-1)?.squeeze(-1)?,
        });
    }
    let state = (wide, permutation, pivots, odd);
    let (factors, permutation, pivots, odd) = stream.for_range(0..rounds, state, |k, state| {
        let (a, permutation, pivots, odd) = state;
        let zero = a.on_stream().zeros(a.dtype(), &[])?;
        let (at_k, below) = (rows.equal(&k)?, rows.greater(&k)?);
        let size = sizes(&column(&a, &k)?)?;
        // Finished rows get a size below all others.
        let size = rows.less(&k)?.select(&constant_like(&size, -1.0)?, &size)?;
        let pivot = size.argmax(-2)?.expand_dims(&[-2])?;
        let at_pivot = rows.equal(&pivot)?;
        let old_row = row(&a, &k)?;
        let pivot_row = at_pivot.select(&a, &zero)?.sum(&[-2])?.expand_dims(&[-2])?;
        let a = at_k.select(&pivot_row, &at_pivot.select(&old_row, &a)?)?;
        let old_place = row(&permutation, &k)?;
        let none = constant_like(&permutation, 0.0)?;
        let pivot_place = at_pivot.select(&permutation, &none)?.sum(&[-2])?.expand_dims(&[-2])?;
        let permutation = at_k.select(&pivot_place, &at_pivot.select(&old_place, &permutation)?)?;
        let odd = odd.xor(&pivot.not_equal(&k)?)?;
        let pivots = turns.equal(&k)?.select(&pivot, &pivots)?;

        let divisor = column(&pivot_row, &k)?;
        // A column of zeros has nothing to subtract.
        let divisor = divisor.equal(&zero)?.select(&constant_like(&divisor, 1.0)?, &divisor)?;
        let factor = below.select(&column(&a, &k)?.div(&divisor)?, &zero)?;
        let right = columns.greater(&k)?.select(&pivot_row, &zero)?;
        let a = a.sub(&factor.mul(&right)?)?;
        let in_column = below.and(&columns.equal(&k)?)?;
        let a = in_column.select(&factor, &a)?;
        Ok((a, permutation, pivots, odd))
    })?;
    Ok(Lu {
        factors: factors.narrowed(a.dtype())?,
        permutation: permutation.squeeze(-1)?,
        pivots: pivots.squeeze(-1)?,
        odd: odd.squeeze(-1)?.squeeze(-1)?,
    })
}

/// The `x` with `a x = b` for square `a`, by [`lu`]. `b` is a matrix, or a vector if it has one
/// dimension; batches broadcast and element types promote. As NumPy 2's `solve`.
///
/// # Errors
/// When the shapes do not fit, or the elements are neither floats nor complex.
#[track_caller]
pub fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let size = square("solve", a)?;
    let vector = b.rank() == 1;
    let right = if vector { b.unsqueeze(-1)? } else { b.clone() };
    if matrix("solve", &right)?.0 != size {
        let given = format!("a is {} and b is {}", a.ty(), b.ty());
        return Err(refused("solve", OpErrorKind::Shape, given, "b must have as many rows as a"));
    }
    let Lu { factors, permutation, .. } = lu(&computed("solve", a, true)?)?;
    let (factors, right) = system_of("solve", &factors, &right)?;
    let order = permutation.unsqueeze(-1)?.broadcast_to(right.dims())?;
    let right = right.take_along_inside(&order, -2)?;
    let lower = Triangular { lower: true, unit_diagonal: true, transpose: false };
    let half = triangular_solve(&factors, &right, lower)?;
    let upper = Triangular { lower: false, unit_diagonal: false, transpose: false };
    let x = triangular_solve(&factors, &half, upper)?;
    let x = x.narrowed(promote_types(a.dtype(), b.dtype()).unwrap_or(x.dtype()))?;
    if vector { x.squeeze(-1) } else { Ok(x) }
}

/// The inverse of square matrices: the solution of `a x = 1`. For a product with the inverse,
/// [`solve`] is faster and more accurate.
///
/// # Errors
/// When the matrices are not square, or the elements are neither floats nor complex.
#[track_caller]
pub fn inv(a: &Tensor) -> Result<Tensor> {
    let size = square("inv", a)?;
    solve(a, &eye(&a.on_stream(), a.dtype(), size, size)?)
}

/// The determinant of square matrices.
///
/// # Errors
/// When the matrices are not square, or the elements are neither floats nor complex.
#[track_caller]
pub fn det(a: &Tensor) -> Result<Tensor> {
    square("det", a)?;
    let Lu { factors, odd, .. } = lu(&computed("det", a, true)?)?;
    let product = factors.diagonal(-2, -1)?.prod(&[-1])?;
    odd.select(&product.neg()?, &product)?.narrowed(a.dtype())
}

/// The sign of the determinant of square matrices, and the logarithm of its absolute value, which
/// does not overflow.
///
/// # Errors
/// When the matrices are not square or the elements are not floats.
#[track_caller]
pub fn slogdet(a: &Tensor) -> Result<(Tensor, Tensor)> {
    square("slogdet", a)?;
    let Lu { factors, odd, .. } = lu(&computed("slogdet", a, false)?)?;
    let diagonal = factors.diagonal(-2, -1)?;
    let sign = diagonal.sign()?.prod(&[-1])?;
    let sign = odd.select(&sign.neg()?, &sign)?;
    let size = diagonal.abs()?.log()?.sum(&[-1])?;
    Ok((sign.narrowed(a.dtype())?, size.narrowed(a.dtype())?))
}
