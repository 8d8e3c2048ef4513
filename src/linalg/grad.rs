//! Vector-Jacobian products of linear algebra on real matrices, as [`nn::grad`](crate::nn::grad)
//! has those of its functions.
//!
//! `gradient` is that of the result, and the returned tensor has the shape of the operand. The
//! rules reuse results of the forward computation. They are those of Giles, "An extended collection
//! of matrix derivative results for forward and reverse mode automatic differentiation" (2008), and
//! for Cholesky's factor of Murray, "Differentiation of the Cholesky decomposition" (2016).

use fuseline_fusion::OpErrorKind;
use fuseline_runtime::Result;

use super::{Triangular, refused, square, tril, triu};
use crate::handle::Tensor;
use crate::nn::grad::unbroadcast;
use crate::tensor::times;

/// Fails for complex matrices, whose rules would have to conjugate.
#[track_caller]
fn real(op: &'static str, a: &Tensor) -> Result<()> {
    if a.dtype().is_complex() {
        return Err(refused(
            op,
            OpErrorKind::DType,
            format!("a matrix is {}", a.ty()),
            "this rule supports only real ones",
        ));
    }
    Ok(())
}

/// `a b^T`.
#[track_caller]
fn outer(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.matmul(&b.swap_axes(-1, -2)?)
}

/// Of [`cholesky`](super::cholesky), from its result. It is zero above the diagonal, because only
/// the lower triangle is read. Each element below it stands for two of the symmetric matrix.
///
/// With `p` the lower triangle of `l^T g`, its diagonal halved, and `s = l^-T p l^-1`, the result
/// is the lower triangle of `s + s^T`, its diagonal halved.
///
/// # Errors
/// When the shapes do not fit, or the elements are complex.
#[track_caller]
pub fn cholesky(factor: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    square("cholesky", factor)?;
    real("cholesky", factor)?;
    let (l, g) = (factor.widened()?, tril(gradient, 0)?.widened()?);
    let inner = halved(&l.swap_axes(-1, -2)?.matmul(&g)?)?;
    let turned = Triangular { lower: true, unit_diagonal: false, transpose: true };
    let left = super::triangular_solve(&l, &inner, turned)?;
    let s = super::triangular_solve(&l, &left.swap_axes(-1, -2)?, turned)?;
    halved(&s.add(&s.swap_axes(-1, -2)?)?)?.narrowed(factor.dtype())
}

/// The lower triangle, its diagonal halved.
#[track_caller]
fn halved(a: &Tensor) -> Result<Tensor> {
    times(&tril(a, 0)?.add(&tril(a, -1)?)?, 0.5)
}

/// Of [`triangular_solve`](super::triangular_solve), to `a` and to its right side, which has sizes
/// `b`; from its result `x`. The gradient of `a` is zero where `a` is not read.
///
/// # Errors
/// When the shapes do not fit, or the elements are complex.
#[track_caller]
pub fn triangular_solve(
    a: &Tensor,
    b: &[usize],
    x: &Tensor,
    system: Triangular,
    gradient: &Tensor,
) -> Result<[Tensor; 2]> {
    real("triangular_solve", a)?;
    let x = x.widened()?;
    let turned = Triangular { transpose: !system.transpose, ..system };
    let of_b = super::triangular_solve(&a.widened()?, &gradient.widened()?, turned)?;
    let product = if system.transpose { outer(&x, &of_b)? } else { outer(&of_b, &x)? };
    let beside = i64::from(system.unit_diagonal);
    let read = if system.lower { tril(&product, -beside)? } else { triu(&product, beside)? };
    let of_a = unbroadcast(a.dims(), &read.neg()?)?.narrowed(a.dtype())?;
    Ok([of_a, unbroadcast(b, &of_b)?.narrowed(gradient.dtype())?])
}

/// Of [`solve`](super::solve), to `a` and to its right side, which has sizes `b`; from its result
/// `x`: to the right side `a^-T g`, to `a` that times `-x^T`.
///
/// # Errors
/// When the shapes do not fit, or the elements are complex.
#[track_caller]
pub fn solve(a: &Tensor, b: &[usize], x: &Tensor, gradient: &Tensor) -> Result<[Tensor; 2]> {
    real("solve", a)?;
    let vector = b.len() == 1;
    let (x, g) = (x.widened()?, gradient.widened()?);
    // A vector counts as a matrix of one column, for each matrix of the batch.
    let (x, g) = if vector { (x.unsqueeze(-1)?, g.unsqueeze(-1)?) } else { (x, g) };
    let of_b = super::solve(&a.widened()?.swap_axes(-1, -2)?, &g)?;
    let of_a = unbroadcast(a.dims(), &outer(&of_b, &x)?.neg()?)?.narrowed(a.dtype())?;
    let of_b = if vector { of_b.squeeze(-1)? } else { of_b };
    Ok([of_a, unbroadcast(b, &of_b)?.narrowed(gradient.dtype())?])
}

/// Of [`inv`](super::inv), from its result `y`: `-y^T g y^T`.
///
/// # Errors
/// When the shapes do not fit, or the elements are complex.
#[track_caller]
pub fn inv(result: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    square("inv", result)?;
    real("inv", result)?;
    let turned = result.widened()?.swap_axes(-1, -2)?;
    turned.matmul(&gradient.widened()?)?.matmul(&turned)?.neg()?.narrowed(result.dtype())
}
