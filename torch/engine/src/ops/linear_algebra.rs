//! Matrix factorizations and solves: loops on the device (`fuseline::linalg`), with LAPACK's
//! conventions.
//!
//! Pivots are row exchanges, counted from 1. `info` is 0, or the first position, from 1, at which a
//! factor is invalid. A call with `check_errors` goes to the CPU, since it waits anyway. Complex
//! matrices have factors by elimination only.

use fuseline::fusion::{DType, TensorType};
use fuseline::linalg::{self, Lu, Triangular};
use fuseline::{Order, Tensor, unchecked};
use smallvec::SmallVec;

use super::arithmetic::accumulated;
use super::{cast, fitted, number, stretched};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "linalg_cholesky_ex", lower: cholesky },
    Row { name: "_cholesky_solve_helper", lower: cholesky_solve },
    Row { name: "cholesky_inverse", lower: cholesky_inverse },
    Row { name: "linalg_solve_triangular", lower: solve_triangular },
    Row { name: "triangular_solve", lower: triangular_solve },
    Row { name: "linalg_lu_factor_ex", lower: lu_factor },
    Row { name: "linalg_lu", lower: lu },
    Row { name: "lu_unpack", lower: lu_unpack },
    Row { name: "linalg_lu_solve", lower: lu_solve },
    Row { name: "linalg_inv_ex", lower: inverse },
    Row { name: "linalg_qr", lower: qr },
    Row { name: "_linalg_svd", lower: svd },
    Row { name: "_linalg_eigh", lower: eigh },
    Row { name: "linalg_matrix_exp", lower: matrix_exp },
    Row { name: "linalg_householder_product", lower: householder_product },
    Row { name: "ormqr", lower: times_reflections },
];

/// Converts results to the types that PyTorch expects.
fn results<'a>(call: &Call<'_>, parts: impl IntoIterator<Item = &'a Tensor>) -> Result<Results> {
    parts.into_iter().zip(call.outs).map(|(part, ty)| fitted(part, ty)).collect()
}

/// Zeros of the result types, if no result has elements.
fn empty(call: &Call<'_>) -> Result<Option<Results>> {
    let is_empty = |ty: &TensorType| ty.elems().0 == 0;
    if !call.outs.iter().all(is_empty) {
        return Ok(None);
    }
    let zeros = call.outs.iter().map(|ty| Ok(call.stream.zeros(ty.dtype(), ty.sizes())?));
    zeros.collect::<Result<Results>>().map(Some)
}

fn no_checks(call: &Call<'_>, at: usize) -> Result<()> {
    if call.flag_or(at, false)? { unsupported("check_errors=True is not supported") } else { Ok(()) }
}

fn real(x: &Tensor) -> Result<()> {
    if x.dtype().is_float() {
        Ok(())
    } else {
        unsupported(format!("matrices of {} are not supported", x.dtype()))
    }
}

/// Rows and columns.
fn sizes(x: &Tensor) -> [usize; 2] {
    [x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]]
}

/// Batch dimensions, then others.
fn batch(x: &Tensor, more: &[usize]) -> Vec<usize> {
    [&x.dims()[..x.rank() - 2], more].concat()
}

fn transposed(x: &Tensor) -> Result<Tensor> {
    Ok(x.swap_axes(-1, -2)?)
}

/// The conjugate transpose.
fn adjoint(x: &Tensor) -> Result<Tensor> {
    let x = transposed(x)?;
    Ok(if x.dtype().is_complex() { x.conj()? } else { x })
}

/// The first position, from 1, at which a row of booleans is true; 0 if there is none.
fn first(call: &Call<'_>, flags: &Tensor) -> Result<Tensor> {
    let along = flags.rank() as i64 - 1;
    if flags.shape().elems().0 == 0 {
        return Ok(call.stream.zeros(DType::I32, &flags.dims()[..along as usize])?);
    }
    let place = cast(flags, DType::I32)?.argmax(along)?;
    let found = place.add(&number(call, 1.0, &place)?)?;
    Ok(flags
        .any(&[along])?
        .select(&cast(&found, DType::I32)?, &call.stream.zeros(DType::I32, place.dims())?)?)
}

/// Arguments: the matrices, whether to read the upper triangle and return the upper factor, whether
/// to check for errors.
fn cholesky(call: &Call<'_>) -> Result<Results> {
    let a = call.tensor(0)?;
    no_checks(call, 2)?;
    if a.shape().elems().0 == 0 {
        return nothing_wrong(call);
    }
    let is_upper = call.flag_or(1, false)?;
    let factor = linalg::tril(&linalg::cholesky(&if is_upper { adjoint(&a)? } else { a })?, 0)?;
    let diagonal = factor.diagonal(-2, -1)?;
    let wrong = first(call, &diagonal.not_equal(&diagonal)?)?;
    results(call, [&if is_upper { adjoint(&factor)? } else { factor }, &wrong])
}

/// Zeros: results without elements, and an `info` without errors.
fn nothing_wrong(call: &Call<'_>) -> Result<Results> {
    call.outs.iter().map(|ty| Ok(call.stream.zeros(ty.dtype(), ty.sizes())?)).collect()
}

fn from_factor(factor: &Tensor, right: &Tensor, is_upper: bool) -> Result<Tensor> {
    Ok(linalg::cholesky_solve(&if is_upper { adjoint(factor)? } else { factor.clone() }, right)?)
}

/// Arguments: the right-hand side, the factor, whether it is upper triangular.
fn cholesky_solve(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    results(call, [&from_factor(&call.tensor(1)?, &call.tensor(0)?, call.flag(2)?)?])
}

fn cholesky_inverse(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let factor = call.tensor(0)?;
    results(call, [&from_factor(&factor, &eye(call, &factor)?, call.flag_or(1, false)?)?])
}

/// Identity matrices, as many and as large as those of `like`.
fn eye(call: &Call<'_>, like: &Tensor) -> Result<Tensor> {
    let [rows, columns] = sizes(like);
    stretched(&linalg::eye(call.stream, like.dtype(), rows, columns)?, like.dims())
}

/// Solves `a x = b`, or `x a = b`.
fn triangular(a: &Tensor, b: &Tensor, is_left: bool, system: Triangular) -> Result<Tensor> {
    if is_left {
        return Ok(linalg::triangular_solve(a, b, system)?);
    }
    let turned = Triangular { transpose: !system.transpose, ..system };
    transposed(&linalg::triangular_solve(a, &transposed(b)?, turned)?)
}

/// Arguments: `a`, `b`, whether `a` is upper triangular, whether it is on the left, whether its
/// diagonal is ones.
fn solve_triangular(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let system =
        Triangular { lower: !call.flag(2)?, unit_diagonal: call.flag_or(4, false)?, transpose: false };
    results(call, [&triangular(&call.tensor(0)?, &call.tensor(1)?, call.flag_or(3, true)?, system)?])
}

/// Arguments: `b`, `a`, whether `a` is upper triangular, whether it is transposed, whether its
/// diagonal is ones. The second result is `a`.
fn triangular_solve(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let (b, a) = (call.tensor(0)?, call.tensor(1)?);
    let system = Triangular {
        lower: !call.flag_or(2, true)?,
        transpose: call.flag_or(3, false)?,
        unit_diagonal: call.flag_or(4, false)?,
    };
    let x = stretched(&linalg::triangular_solve(&a, &b, system)?, call.out(0)?.sizes())?;
    results(call, [&x, &stretched(&a, call.out(1)?.sizes())?])
}

/// Pivots counted from 1, and `info`, which says where the upper factor is singular.
fn pivots_and_info(call: &Call<'_>, lu: &Lu) -> Result<[Tensor; 2]> {
    let least = lu.factors.narrow(-1, 0, lu.pivots.dims()[lu.pivots.rank() - 1] as i64)?;
    let diagonal = least.narrow(-2, 0, least.dims()[least.rank() - 1] as i64)?.diagonal(-2, -1)?;
    let singular = diagonal.equal(&number(call, 0.0, &diagonal)?)?;
    Ok([lu.pivots.add(&number(call, 1.0, &lu.pivots)?)?, first(call, &singular)?])
}

/// Arguments: the matrices, whether to pivot, whether to check for errors.
fn lu_factor(call: &Call<'_>) -> Result<Results> {
    let a = call.tensor(0)?;
    no_checks(call, 2)?;
    if !call.flag_or(1, true)? {
        return unsupported("LU factorization without pivoting is not supported");
    }
    if a.shape().elems().0 == 0 {
        return nothing_wrong(call);
    }
    let lu = linalg::lu(&a)?;
    let [pivots, wrong] = pivots_and_info(call, &lu)?;
    results(call, [&lu.factors, &pivots, &wrong])
}

/// `p` with `a = p l u`: row `permutation[k]` of `a` is row `k` of `l u`.
fn permutation_matrix(call: &Call<'_>, permutation: &Tensor, ty: &TensorType) -> Result<Tensor> {
    let rows = call.stream.iota(DType::I32, ty.sizes(), ty.rank() as i64 - 2)?;
    cast(&rows.equal(&stretched(&permutation.unsqueeze(-2)?, ty.sizes())?)?, ty.dtype())
}

/// The unit lower triangular factor and the upper one.
fn triangles(call: &Call<'_>, factors: &Tensor) -> Result<[Tensor; 2]> {
    let [rows, columns] = sizes(factors);
    let least = rows.min(columns) as i64;
    let left = factors.narrow(-1, 0, least)?;
    let lower = linalg::tril(&left, -1)?.add(&eye(call, &left)?)?;
    Ok([lower, linalg::triu(&factors.narrow(-2, 0, least)?, 0)?])
}

fn lu(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    if !call.flag_or(1, true)? {
        return unsupported("LU factorization without pivoting is not supported");
    }
    let lu = linalg::lu(&call.tensor(0)?)?;
    let [lower, upper] = triangles(call, &lu.factors)?;
    results(call, [&permutation_matrix(call, &lu.permutation, call.out(0)?)?, &lower, &upper])
}

/// The row order after pivots that are counted from 1: `[batch..., rows]`.
fn permuted(call: &Call<'_>, pivots: &Tensor, rows: usize) -> Result<Tensor> {
    let mut dims = pivots.dims().to_vec();
    let rounds = dims.pop().unwrap_or(0);
    let turns = call.stream.iota(DType::I32, pivots.dims(), dims.len() as i64)?;
    dims.push(rows);
    let (last, place) = (dims.len() as i64 - 1, call.stream.iota(DType::I32, &dims, dims.len() as i64 - 1)?);
    if rounds == 0 {
        return Ok(place);
    }
    let zero = call.stream.zeros(DType::I32, &[])?;
    let exchanges = pivots.sub(&number(call, 1.0, pivots)?)?;
    // The element of a list at a position, as a list of one.
    let at = |list: &Tensor, is_there: &Tensor| is_there.select(list, &zero)?.sum(&[last])?.unsqueeze(-1);
    Ok(call.stream.for_range(0..i32::try_from(rounds).unwrap_or(i32::MAX), place.clone(), |k, order| {
        let pivot = at(&exchanges, &turns.equal(&k)?)?;
        let (at_k, at_pivot) = (place.equal(&k)?, place.equal(&pivot)?);
        let (old, new) = (at(&order, &at_k)?, at(&order, &at_pivot)?);
        at_k.select(&new, &at_pivot.select(&old, &order)?)
    })?)
}

/// Arguments: factors, pivots, whether to unpack the factors, whether to unpack the pivots. Results
/// that are not unpacked are empty.
fn lu_unpack(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let factors = call.tensor(0)?;
    let (is_data, is_pivots) = (call.flag_or(2, true)?, call.flag_or(3, true)?);
    let mut parts = SmallVec::<[Tensor; 3]>::new();
    for ty in call.outs {
        parts.push(call.stream.zeros(ty.dtype(), ty.sizes())?);
    }
    if is_pivots {
        let order = permuted(call, &call.tensor(1)?, sizes(&factors)[0])?;
        parts[0] = permutation_matrix(call, &order, call.out(0)?)?;
    }
    if is_data {
        let [lower, upper] = triangles(call, &factors)?;
        parts[1] = lower;
        parts[2] = upper;
    }
    results(call, &parts)
}

/// Permutes the rows of matrices.
fn in_order(order: &Tensor, x: &Tensor) -> Result<Tensor> {
    let order = stretched(&order.unsqueeze(-1)?, x.dims())?;
    Ok(unchecked(|| x.take_along(&order, -2))?)
}

/// Arguments: factors, pivots, `b`, whether `a` is on the left, whether to use its adjoint.
fn lu_solve(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let ty = call.out(0)?;
    let (factors, pivots, b) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (is_left, is_adjoint) = (call.flag_or(3, true)?, call.flag_or(4, false)?);
    let b = stretched(&b, ty.sizes())?;
    let factors = stretched(&factors, &batch(&b, &sizes(&factors)))?;
    let order = permuted(call, &pivots, sizes(&factors)[0])?;
    let order = stretched(&order, &batch(&b, &sizes(&factors)[..1]))?;
    // `x a = b` is `a^H x^H = b^H`.
    let b = if is_left { b } else { adjoint(&b)? };
    let lower = Triangular { lower: true, unit_diagonal: true, transpose: false };
    let upper = Triangular { lower: false, unit_diagonal: false, transpose: false };
    let x = if is_left == is_adjoint {
        // The adjoint of `p l u`, from the left: the adjoint of an upper triangle is a lower one.
        let turned = adjoint(&factors)?;
        let half = linalg::triangular_solve(&turned, &b, Triangular { unit_diagonal: false, ..lower })?;
        let x = linalg::triangular_solve(&turned, &half, Triangular { unit_diagonal: true, ..upper })?;
        in_order(&order.argsort(-1, Order::Ascending)?, &x)?
    } else {
        let half = linalg::triangular_solve(&factors, &in_order(&order, &b)?, lower)?;
        linalg::triangular_solve(&factors, &half, upper)?
    };
    results(call, [&if is_left { x } else { adjoint(&x)? }])
}

fn inverse(call: &Call<'_>) -> Result<Results> {
    let a = call.tensor(0)?;
    no_checks(call, 1)?;
    if a.shape().elems().0 == 0 {
        return nothing_wrong(call);
    }
    let lu = linalg::lu(&a)?;
    let right = in_order(&lu.permutation, &eye(call, &a)?)?;
    let lower = Triangular { lower: true, unit_diagonal: true, transpose: false };
    let half = linalg::triangular_solve(&lu.factors, &right, lower)?;
    let upper = Triangular { lower: false, unit_diagonal: false, transpose: false };
    let [_, wrong] = pivots_and_info(call, &lu)?;
    results(call, [&linalg::triangular_solve(&lu.factors, &half, upper)?, &wrong])
}

fn qr(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let a = call.tensor(0)?;
    real(&a)?;
    let (q, r) = match call.text(1)? {
        Some("complete") => linalg::qr_complete(&a)?,
        Some("r") => (call.stream.zeros(a.dtype(), call.out(0)?.sizes())?, linalg::qr(&a)?.1),
        _ => linalg::qr(&a)?,
    };
    results(call, [&q, &r])
}

/// Extends orthonormal columns to a basis.
fn completed(call: &Call<'_>, u: &Tensor) -> Result<Tensor> {
    let [rows, columns] = sizes(u);
    if columns == 0 {
        return stretched(&linalg::eye(call.stream, u.dtype(), rows, rows)?, &batch(u, &[rows, rows]));
    }
    if rows == columns {
        return Ok(u.clone());
    }
    let more = linalg::qr_complete(u)?.0.narrow(-1, columns as i64, rows as i64)?;
    Ok(Tensor::concatenate(&[u, &more], -1)?)
}

/// Arguments: the matrices, whether the vectors form full bases, whether to compute vectors.
fn svd(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let a = call.tensor(0)?;
    real(&a)?;
    let found = linalg::svd(&a)?;
    if !call.flag_or(2, true)? {
        let none =
            |at: usize| Ok::<_, crate::call::Fault>(call.stream.zeros(a.dtype(), call.out(at)?.sizes())?);
        return results(call, [&none(0)?, &found.s, &none(2)?]);
    }
    if !call.flag_or(1, false)? {
        return results(call, [&found.u, &found.s, &found.vt]);
    }
    let v = completed(call, &transposed(&found.vt)?)?;
    results(call, [&completed(call, &found.u)?, &found.s, &transposed(&v)?])
}

/// Arguments: the matrices, the triangle to read, whether to compute vectors.
fn eigh(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let a = call.tensor(0)?;
    real(&a)?;
    let is_upper = matches!(call.text(1)?, Some("U" | "u"));
    let found = linalg::eigh(&if is_upper { transposed(&a)? } else { a.clone() })?;
    let vectors = if call.flag_or(2, true)? {
        found.vectors
    } else {
        call.stream.zeros(a.dtype(), call.out(1)?.sizes())?
    };
    results(call, [&found.values, &vectors])
}

/// The number of terms of the series of `exp`, and the norm up to which they suffice (Al-Mohy and
/// Higham, "Computing the action of the matrix exponential", 2011).
const TERMS: i32 = 18;
const ENOUGH: (f64, f64) = (3.010066, 1.090864);
/// The number of halvings that makes every finite matrix small.
const HALVINGS: f64 = 1100.0;

/// Scaling and squaring: halves the matrix until it is small, sums the series, and squares as
/// often.
fn matrix_exp(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let a = call.tensor(0)?;
    let a = cast(&a, accumulated(a.dtype()))?;
    let norm = a.abs()?.sum(&[-2])?.max(&[-1])?.expand_dims(&[-2, -1])?;
    let limit = if norm.dtype() == DType::F64 { ENOUGH.1 } else { ENOUGH.0 };
    let limit = call.constant(limit, norm.dtype())?;
    let most = call.constant(HALVINGS, norm.dtype())?;
    let count = call.stream.zeros(norm.dtype(), norm.dims())?;
    let (zero, one) = (call.constant(0.0, norm.dtype())?, call.constant(1.0, norm.dtype())?);
    let half = call.constant(0.5, norm.dtype())?;
    let large = |norm: &Tensor, count: &Tensor| norm.greater(&limit)?.and(&count.less(&most)?);
    let axes: Vec<i64> = (0..a.rank() as i64).collect();
    let (scale, _, count) = call.stream.while_loop(
        (norm.mul(&zero)?.add(&one)?, norm, count),
        |(_, norm, count)| large(&norm, &count)?.any(&axes),
        |(scale, norm, count)| {
            let open = large(&norm, &count)?;
            Ok((
                open.select(&scale.mul(&half)?, &scale)?,
                open.select(&norm.mul(&half)?, &norm)?,
                open.select(&count.add(&one)?, &count)?,
            ))
        },
    )?;
    let small = a.mul(&cast(&scale, a.dtype())?)?;
    let unit = eye(call, &a)?;
    let last = call.stream.scalar(TERMS);
    // Horner's method, from the last term to the first.
    let sum = call.stream.for_range(0..TERMS, unit.clone(), |k, sum| {
        let divisor = last.sub(&k)?.convert(a.dtype())?;
        small.matmul(&sum)?.div(&divisor)?.add(&unit)
    })?;
    let rounds = count.max(&axes)?.convert(DType::I32)?;
    let value = call.stream.for_between(&call.stream.scalar(0), &rounds, sum, |k, power| {
        let open = count.greater(&k.convert(count.dtype())?)?.broadcast_to(power.dims())?;
        open.select(&power.matmul(&power)?, &power)
    })?;
    results(call, [&value])
}

/// Applies reflections `1 - tau v v^H`, or their adjoints, to matrices from the left, starting with
/// the last or the first one.
fn reflected(
    call: &Call<'_>,
    vectors: &Tensor,
    taus: &Tensor,
    x: &Tensor,
    is_adjoint: bool,
) -> Result<Tensor> {
    let count = sizes(vectors)[1].min(taus.dims()[taus.rank() - 1]);
    let vectors = vectors.narrow(-1, 0, count as i64)?;
    let unit = linalg::tril(&vectors, -1)?.add(&eye(call, &vectors)?)?;
    let taus = if is_adjoint && taus.dtype().is_complex() { taus.conj()? } else { taus.clone() };
    let taus = taus.unsqueeze(-2)?;
    let columns = call.stream.iota(DType::I32, &[1, count], 1)?;
    let zero = call.constant(0.0, x.dtype())?;
    let last = call.stream.scalar(i32::try_from(count).unwrap_or(i32::MAX) - 1);
    Ok(call.stream.for_range(0..i32::try_from(count).unwrap_or(i32::MAX), x.clone(), |round, x| {
        let k = if is_adjoint { round } else { last.sub(&round)? };
        let here = columns.equal(&k)?;
        let part = |of: &Tensor| here.select(of, &zero)?.sum(&[-1])?.unsqueeze(-1);
        let (v, tau) = (part(&unit)?, part(&taus)?);
        let conjugate = if v.dtype().is_complex() { v.conj()? } else { v.clone() };
        let along = conjugate.mul(&x)?.sum(&[-2])?.unsqueeze(-2)?;
        x.sub(&v.mul(&tau)?.mul(&along)?)
    })?)
}

/// Arguments: matrices whose columns below the diagonal are reflections, and the factors `tau`.
fn householder_product(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let (a, taus) = (call.tensor(0)?, call.tensor(1)?);
    results(call, [&reflected(call, &a, &taus, &eye(call, &a)?, false)?])
}

/// Arguments: reflections, their factors, other matrices, whether the product is on their left,
/// whether to use its adjoint.
fn times_reflections(call: &Call<'_>) -> Result<Results> {
    if let Some(nothing) = empty(call)? {
        return Ok(nothing);
    }
    let (a, taus, x) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (is_left, is_adjoint) = (call.flag_or(3, true)?, call.flag_or(4, false)?);
    let value = if is_left {
        reflected(call, &a, &taus, &x, is_adjoint)?
    } else {
        adjoint(&reflected(call, &a, &taus, &adjoint(&x)?, !is_adjoint)?)?
    };
    results(call, [&value])
}
