//! Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017).

use fuseline_fusion::DType;
use fuseline_fusion::op::attrs::DotDimensionNumbers;
use fuseline_runtime::Result;

use super::{dropout, masked_softmax, softmax, unfit};
use crate::handle::Tensor;
use crate::promote::promote_types;
use crate::random::Generator;
use crate::tensor::{constant_like, times};

/// Settings of [`attention`].
#[derive(Debug, Default)]
pub struct Attention<'a> {
    /// Which keys each query sees: of bool, true where it sees one, or of floats, added to the
    /// scores. Broadcasts to `[batch, heads, queries, keys]`.
    pub mask: Option<&'a Tensor>,
    /// Query `i` sees only the keys from 0 to `i` plus this offset. Use 0 if keys and queries have
    /// the same positions, and the number of keys before the first query for a decoder with a
    /// cache.
    pub causal: Option<i64>,
    /// The factor of the scores; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
    /// The dropout rate of the weights, and the generator that selects them.
    pub dropout: Option<(f64, &'a mut Generator)>,
}

/// `softmax(scale q k^T + mask) v` for queries `[batch, heads, queries, width]`, keys `[batch,
/// groups, keys, width]` and values `[batch, groups, keys, features]`: `[batch, heads, queries,
/// features]`. Also returns the weights before dropout, `[batch, heads, queries, keys]`.
///
/// The number of heads is a multiple of the number of groups, and adjacent heads share one (Ainslie
/// et al., "GQA: Training generalized multi-query transformer models from multi-head checkpoints",
/// 2023); Nothing is repeated for them: their queries are rows of one larger product. A query that
/// sees no key gets zeros. The scores of floats below 32 bits are computed in `f32`.
///
/// Records two products and a softmax. A bool mask or `causal` adds one selection, which fuses with
/// the softmax.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, settings: Attention<'_>) -> Result<(Tensor, Tensor)> {
    let (&[batch, heads, queries, width], &[_, groups, keys, _], &[_, _, _, features]) =
        (q.dims(), k.dims(), v.dims())
    else {
        let given = format!("q is {}, k is {}, v is {}", q.ty(), k.ty(), v.ty());
        return Err(unfit(
            "attention",
            given,
            "each must have the dimensions batch, heads, positions, width",
        ));
    };
    let fits = k.dims() == [batch, groups, keys, width] && v.dims() == [batch, groups, keys, features];
    if !fits || groups == 0 || !heads.is_multiple_of(groups) {
        let given = format!("q is {}, k is {}, v is {}", q.ty(), k.ty(), v.ty());
        let rule = "q and k must have the same batch and width, k and v the same batch, heads and \
                    positions, and the number of heads of q must be a multiple of theirs";
        return Err(unfit("attention", given, rule));
    }
    let common = promote_types(q.dtype(), k.dtype()).and_then(|dtype| promote_types(dtype, v.dtype()));
    let Some(dtype) = common else {
        let given = format!("q is {}, k is {}, v is {}", q.ty(), k.ty(), v.ty());
        return Err(unfit("attention", given, "their element types do not promote"));
    };
    let (q, k, v) = (as_type(q, dtype)?, as_type(k, dtype)?, as_type(v, dtype)?);

    let rows = heads / groups * queries;
    let wide = if dtype.is_float() && dtype.size() < 4 { DType::F32 } else { dtype };
    let grouped = if heads == groups { q } else { q.reshape(&[batch, groups, rows, width])? };
    let scores = grouped.dot_general_as(&k, pairs(3), wide)?;
    let scores = if heads == groups { scores } else { scores.reshape(&[batch, heads, queries, keys])? };
    let scores = times(&scores, settings.scale.unwrap_or(1.0 / (width as f64).sqrt()))?;

    let shape = scores.shape().clone();
    let mut seen = None;
    if let Some(offset) = settings.causal {
        seen = Some(not_later(&scores, queries, keys, offset)?);
    }
    let mut scores = scores;
    match settings.mask {
        Some(mask)
            if !crate::promote::broadcast_shapes(&[mask.shape(), &shape]).is_some_and(|all| all == shape) =>
        {
            let given = format!("the mask is {}, but the scores are {}", mask.ty(), scores.ty());
            return Err(unfit("attention", given, "a mask must broadcast to batch, heads, queries, keys"));
        }
        Some(mask) if mask.dtype() == DType::Bool => {
            seen = Some(match seen {
                Some(seen) => seen.and(mask)?,
                None => mask.clone(),
            });
        }
        Some(mask) => scores = scores.add(mask)?,
        None => {}
    }
    let weights = match (&seen, settings.mask) {
        (None, None) => softmax(&scores, -1)?,
        // Every query sees the first key, so no row is empty.
        (Some(seen), None) if settings.causal.is_some_and(|offset| offset >= 0) => {
            softmax(&seen.select(&scores, &constant_like(&scores, f64::NEG_INFINITY)?)?, -1)?
        }
        (seen, _) => masked_softmax(&scores, seen.as_ref(), -1)?,
    };
    let weights = as_type(&weights, dtype)?;
    let kept = match settings.dropout {
        Some((rate, generator)) => dropout(&weights, rate, generator)?,
        None => weights.clone(),
    };
    let kept = if heads == groups { kept } else { kept.reshape(&[batch, groups, rows, keys])? };
    let mixed = kept.dot_general_as(&v, pairs(2), dtype)?;
    let mixed = if heads == groups { mixed } else { mixed.reshape(&[batch, heads, queries, features])? };
    Ok((mixed, weights))
}

/// Products of the last dimension of lhs with a dimension of rhs, for each batch and head.
fn pairs(of_rhs: i64) -> DotDimensionNumbers<'static> {
    DotDimensionNumbers {
        lhs_batching: &[0, 1],
        rhs_batching: &[0, 1],
        lhs_contracting: &[3],
        rhs_contracting: if of_rhs == 3 { &[3] } else { &[2] },
    }
}

#[track_caller]
fn as_type(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype { Ok(x.clone()) } else { x.convert(dtype) }
}

/// Whether `j <= i + offset` for query `i` and key `j`: `[queries, keys]`.
#[track_caller]
fn not_later(like: &Tensor, queries: usize, keys: usize, offset: i64) -> Result<Tensor> {
    let stream = like.on_stream();
    let dims = [queries, keys];
    let mut row = stream.iota(DType::I32, &dims, 0)?;
    if offset != 0 {
        row = row.add(&constant_like(&row, offset as f64)?)?;
    }
    row.greater_equal(&stream.iota(DType::I32, &dims, 1)?)
}

/// A causal mask to be added to scores: 0 where a position sees itself or an earlier one, a large
/// negative number elsewhere. Shape `[length, length]`.
///
/// [`Attention::causal`] does the same without keeping a mask.
///
/// # Errors
/// When the element type is not a float.
#[track_caller]
pub fn causal_mask(like: &Tensor, length: usize) -> Result<Tensor> {
    let seen = not_later(like, length, length, 0)?;
    let zero = like.on_stream().zeros(like.dtype(), &[])?;
    seen.select(&zero, &constant_like(&zero, -1e9)?)
}
