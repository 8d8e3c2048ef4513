//! Attention (Vaswani et al., "Attention is all you need", 2017) and its gradient.
//!
//! The shim records it for `scaled_dot_product_attention` without dropout (`csrc/attention.cpp`):
//! two matrix products with a softmax between them. The weights are saved for the gradient. A row
//! whose scores are all masked has weights of zero.

use fuseline::fusion::DType;
use fuseline::fusion::op::attrs::DotDimensionNumbers;
use fuseline::{Tensor, nn};
use smallvec::SmallVec;

use super::arithmetic::accumulated;
use super::{cast, fitted, stretched};
use crate::call::{Call, Result, Results, Row};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "fuseline::attention", lower: attention },
    Row { name: "fuseline::attention_backward", lower: backward },
];

/// Products of the matrices in the last two dimensions, contracted over one dimension of each, in
/// the accumulation type of short floats.
fn product(a: &Tensor, b: &Tensor, over: [i64; 2]) -> Result<Tensor> {
    let numbers = DotDimensionNumbers {
        lhs_batching: &[0, 1],
        rhs_batching: &[0, 1],
        lhs_contracting: &over[..1],
        rhs_contracting: &over[1..],
    };
    Ok(a.dot_general_as(b, numbers, accumulated(a.dtype()))?)
}

/// Broadcasts one number per row along the row.
fn along(column: &Tensor, dims: &[usize]) -> Result<Tensor> {
    Ok(column.broadcast_in_dim(dims, &[0, 1, 2])?)
}

fn scaled(call: &Call<'_>, x: &Tensor, at: usize) -> Result<Tensor> {
    Ok(x.mul(&stretched(&call.number(at, x.dtype())?, x.dims())?)?)
}

/// Arguments: queries `[batch, heads, rows, width]`, keys `[batch, heads, columns, width]`, values,
/// a bias or mask of the scores, whether attention is causal, and the scale of the scores. Results:
/// `[batch, heads, rows, width of values]` and the weights.
fn attention(call: &Call<'_>) -> Result<Results> {
    let (q, k, v) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let mut scores = scaled(call, &product(&q, &k, [3, 3])?, 5)?;
    let (dtype, dims) = (scores.dtype(), scores.dims().to_vec());
    let mut seen: Option<Tensor> = None;
    if let Some(bias) = call.maybe_tensor(3)? {
        match bias.dtype() {
            DType::Bool => seen = Some(stretched(&bias, &dims)?),
            _ => scores = scores.add(&stretched(&cast(&bias, dtype)?, &dims)?)?,
        }
    }
    if call.flag(4)? {
        let (row, column) =
            (call.stream.iota(DType::I32, &dims, 2)?, call.stream.iota(DType::I32, &dims, 3)?);
        let is_before = column.less_equal(&row)?;
        seen = Some(match seen {
            Some(seen) => seen.and(&is_before)?,
            None => is_before,
        });
    }
    // Without a bias or a mask, no row is fully masked.
    let weights = if call.is_none(3) && seen.is_none() {
        nn::softmax(&scores, 3)?
    } else {
        nn::masked_softmax(&scores, seen.as_ref(), 3)?
    };
    let weights = cast(&weights, q.dtype())?;
    let out = product(&weights, &v, [3, 2])?;
    Ok(SmallVec::from_iter([fitted(&out, call.out(0)?)?, fitted(&weights, call.out(1)?)?]))
}

/// Arguments: the gradient, queries, keys, values, the result, the weights, the scale. Results:
/// gradients of queries, keys, values and scores.
fn backward(call: &Call<'_>) -> Result<Results> {
    let (grad, q, k, v) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?, call.tensor(3)?);
    let (out, weights) = (call.tensor(4)?, call.tensor(5)?);
    let of_values = product(&weights, &grad, [2, 2])?;
    let of_weights = product(&grad, &v, [3, 3])?;
    let wide = of_weights.dtype();
    let share = cast(&grad, wide)?.mul(&cast(&out, wide)?)?.sum(&[3])?;
    let of_scores = of_weights.sub(&along(&share, of_weights.dims())?)?.mul(&cast(&weights, wide)?)?;
    let short = cast(&scaled(call, &of_scores, 6)?, q.dtype())?;
    let parts = [product(&short, &k, [3, 2])?, product(&short, &q, [2, 2])?, of_values, of_scores];
    parts.iter().zip(call.outs).map(|(part, ty)| fitted(part, ty)).collect()
}
