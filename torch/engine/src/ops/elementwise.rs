//! Elementwise ops: arithmetic, comparisons, selection, conversions.

use fuseline::Tensor;

use super::{as_type, compared_in, pair, result, stretched};
use crate::call::{Call, Result, Results, Row};

macro_rules! unary {
    ($($name:literal => $method:ident),* $(,)?) => {
        &[$(Row { name: $name, lower: |call| {
            let x = as_type(call, 0, call.out(0)?.dtype())?;
            result(call, x.$method()?)
        } }),*]
    };
}

/// Ops of one operand, computed in the type of the result.
static UNARY: &[Row] = unary! { "neg" => neg, "exp" => exp, "tanh" => tanh };

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    UNARY[0],
    Row { name: "add.Tensor", lower: add },
    Row { name: "mul.Tensor", lower: |call| binary(call, Tensor::mul) },
    Row { name: "lt.Tensor", lower: |call| compare(call, Tensor::less) },
];

fn binary(call: &Call<'_>, op: fn(&Tensor, &Tensor) -> fuseline::Result<Tensor>) -> Result<Results> {
    let (a, b) = pair(call, call.out(0)?.dtype())?;
    result(call, op(&a, &b)?)
}

fn compare(call: &Call<'_>, op: fn(&Tensor, &Tensor) -> fuseline::Result<Tensor>) -> Result<Results> {
    let (a, b) = pair(call, compared_in(call))?;
    result(call, op(&a, &b)?)
}

/// `a + alpha * b`.
fn add(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let (a, mut b) = pair(call, ty.dtype())?;
    if !call.is_none(2) && call.float(2)? != 1.0 {
        b = b.mul(&stretched(&call.number(2, ty.dtype())?, ty.dims())?)?;
    }
    result(call, a.add(&b)?)
}
