//! Vector-Jacobian products: from the gradient of a result to that of an operand.
//!
//! This is no automatic differentiation; front ends have their own. These are the rules that an
//! autodiff tape needs for the composites of this module and for products. They use the fewest ops
//! and are as stable as the composite. The result of a rule has the shape of the operand.
//!
//! All rules take their arguments in the same order:
//!
//! 1. the operands of the function, in its own order. Where a rule needs only the sizes of an
//!    operand, it takes these (`dims`, `words`); operands that it does not need are left out;
//! 2. results of the forward computation that a rule reuses instead of computing them again;
//! 3. the settings of the function, in its own order;
//! 4. `gradient`, that of the result.
//!
//! So a tape stores the first arguments, and calls the rule when the gradient arrives:
//!
//! ```
//! # fn main() -> fuseline::Result<()> {
//! # let engine = fuseline::Engine::reference();
//! use fuseline::nn::{self, grad};
//! use fuseline::{Result, Tensor};
//!
//! let x = engine.tensor(&[1.0f32, -2.0, 0.5], &[3])?;
//! let y = nn::softmax(&x, -1)?;
//! let pullback = move |gradient: &Tensor| -> Result<Tensor> { grad::softmax(&y, -1, gradient) };
//!
//! // Softmax sums to 1 whatever `x` is: the gradient of the sum is zero.
//! let gradient = pullback(&engine.tensor(&[1.0f32; 3], &[3])?)?;
//! assert!(gradient.to_vec::<f32>()?.iter().all(|g| g.abs() < 1e-6));
//! # Ok(())
//! # }
//! ```

mod space;

pub use space::{Convolution, adaptive_avg_pool, avg_pool, max_pool, resize};

use fuseline_fusion::op::attrs::{DotDimensionNumbers, IndexDimensionNumbers};
use fuseline_fusion::{Body, OpCode, TensorType};
use fuseline_runtime::internals::{bug, here};
use fuseline_runtime::{Error, Result};

use super::{CrossEntropy, Reduction, unfit};
use crate::handle::Tensor;
use crate::random::Generator;
use crate::tensor::{constant_like, plus, times};

/// Of broadcasting, to an operand with sizes `dims`: the sum over the dimensions along which it was
/// repeated.
///
/// # Errors
/// When the gradient has fewer dimensions than `dims`.
#[track_caller]
pub fn unbroadcast(dims: &[usize], gradient: &Tensor) -> Result<Tensor> {
    let Some(missing) = gradient.rank().checked_sub(dims.len()) else {
        let given = format!("the gradient is {} and the operand has sizes {dims:?}", gradient.ty());
        return Err(unfit("unbroadcast", given, "the operand must broadcast to the shape of the gradient"));
    };
    let repeated: Vec<i64> = (0..gradient.rank())
        .filter(|&axis| axis < missing || dims[axis - missing] != gradient.dims()[axis])
        .map(|axis| axis as i64)
        .collect();
    if repeated.is_empty() { Ok(gradient.clone()) } else { gradient.sum(&repeated)?.reshape(dims) }
}

/// Of a sum over `axes`, to an operand with sizes `dims`: the gradient, broadcast.
///
/// # Errors
/// When a dimension does not exist or the gradient has other sizes.
#[track_caller]
pub fn sum(dims: &[usize], axes: &[i64], gradient: &Tensor) -> Result<Tensor> {
    gradient.expand_dims(axes)?.broadcast_to(dims)
}

// ----- elementwise -----

/// Of [`relu`](super::relu), from its result.
///
/// # Errors
/// When the shapes differ.
#[track_caller]
pub fn relu(result: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let zero = result.on_stream().zeros(result.dtype(), &[])?;
    result.greater(&zero)?.select(gradient, &zero)
}

/// Of [`silu`](super::silu): with `s = logistic(x)`, times `s (1 + x (1 - s))`.
///
/// # Errors
/// When the shapes differ.
#[track_caller]
pub fn silu(x: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let s = x.logistic()?;
    let rest = plus(&s.neg()?, 1.0)?;
    gradient.mul(&s.mul(&plus(&x.mul(&rest)?, 1.0)?)?)
}

/// Of [`gelu`](super::gelu): with `u = c (x + a x^3)` and `t = tanh(u)`, times
/// `(1 + t) / 2 + x (1 - t^2) c (1 + 3 a x^2) / 2`.
///
/// # Errors
/// When the shapes differ.
#[track_caller]
pub fn gelu(x: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let (a, c) = (0.044_715, (2.0 / std::f64::consts::PI).sqrt());
    let square = x.mul(x)?;
    let t = x.mul(&plus(&times(&square, a * c)?, c)?)?.tanh()?;
    let slope = x.mul(&plus(&times(&square, 1.5 * a * c)?, 0.5 * c)?)?;
    let steep = slope.mul(&plus(&t.mul(&t)?.neg()?, 1.0)?)?;
    gradient.mul(&plus(&times(&t, 0.5)?, 0.5)?.add(&steep)?)
}

/// Of [`gelu_exact`](super::gelu_exact): times the distribution function of normal numbers at `x`,
/// plus `x` times their density there.
///
/// # Errors
/// When the shapes differ.
#[track_caller]
pub fn gelu_exact(x: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let below = times(&times(x, -std::f64::consts::FRAC_1_SQRT_2)?.erfc()?, 0.5)?;
    let bell = times(&x.mul(x)?, -0.5)?.exp()?;
    let density = times(&bell, 0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2)?;
    gradient.mul(&below.add(&x.mul(&density)?)?)
}

/// Of [`dropout`](super::dropout) with the given rate. `before` is a clone of the generator from
/// before the call. The rule draws the same mask again and applies it to the gradient, so no mask
/// has to be kept.
///
/// # Errors
/// As [`dropout`](super::dropout).
#[track_caller]
pub fn dropout(rate: f64, before: &Generator, gradient: &Tensor) -> Result<Tensor> {
    super::dropout(gradient, rate, &mut before.clone())
}

// ----- over a dimension -----

/// Of [`softmax`](super::softmax) and [`masked_softmax`](super::masked_softmax), from the result
/// `y`: `y g - y sum(y g)`.
///
/// # Errors
/// When the shapes differ or the dimension does not exist.
#[track_caller]
pub fn softmax(result: &Tensor, axis: i64, gradient: &Tensor) -> Result<Tensor> {
    let weighted = gradient.mul(result)?;
    weighted.sub(&result.mul(&weighted.sum(&[axis])?.expand_dims(&[axis])?)?)
}

/// Of [`log_softmax`](super::log_softmax), from the result `y`: `g - exp(y) sum(g)`.
///
/// # Errors
/// When the shapes differ or the dimension does not exist.
#[track_caller]
pub fn log_softmax(result: &Tensor, axis: i64, gradient: &Tensor) -> Result<Tensor> {
    gradient.sub(&result.exp()?.mul(&gradient.sum(&[axis])?.expand_dims(&[axis])?)?)
}

/// Of [`logsumexp`](super::logsumexp), from the operand and the result: `g exp(x - y)`.
///
/// # Errors
/// When the shapes differ or a dimension does not exist.
#[track_caller]
pub fn logsumexp(x: &Tensor, result: &Tensor, axes: &[i64], gradient: &Tensor) -> Result<Tensor> {
    x.sub(&result.expand_dims(axes)?)?.exp()?.mul(&gradient.expand_dims(axes)?)
}

/// Of [`cross_entropy`](super::cross_entropy) and, without weights,
/// [`cross_entropy_with`](super::cross_entropy_with), with integer labels: the probabilities minus
/// the target probabilities.
///
/// # Errors
/// When the shapes do not fit or weights are given.
#[track_caller]
pub fn cross_entropy(
    logits: &Tensor,
    labels: &Tensor,
    settings: &CrossEntropy<'_>,
    gradient: &Tensor,
) -> Result<Tensor> {
    let Some(&classes) =
        logits.dims().last().filter(|_| labels.dims() == &logits.dims()[..logits.rank() - 1])
    else {
        let given = format!("the logits are {} and the labels {}", logits.ty(), labels.ty());
        return Err(unfit("cross_entropy", given, "each row of logits needs one label"));
    };
    if settings.weights.is_some() {
        let given = "class weights were given".to_owned();
        return Err(super::unset("cross_entropy", given, "this rule supports only classes of equal weight"));
    }
    // The computation of the loss has checked the labels.
    let mut wanted = labels.one_hot_or_none(classes, logits.dtype())?;
    if settings.label_smoothing != 0.0 {
        let kept = times(&wanted, 1.0 - settings.label_smoothing)?;
        wanted = plus(&kept, settings.label_smoothing / classes as f64)?;
    }
    let error = super::softmax(logits, -1)?.sub(&wanted)?;
    // The gradient of each sample's loss.
    let mut each = gradient.clone();
    let ignored =
        settings.ignored.and_then(|label| crate::promote::Number::Int(label).element(labels.dtype()));
    let kept = match ignored {
        Some(label) => Some(labels.not_equal(&labels.on_stream().constant(label.to_literal())?)?),
        None => None,
    };
    if settings.reduction == Reduction::Mean {
        let axes: Vec<i64> = (0..labels.rank() as i64).collect();
        each = match &kept {
            Some(kept) => {
                let count = kept.convert(gradient.dtype())?.sum(&axes)?;
                each.div(&count.maximum(&constant_like(&count, 1.0)?)?)?
            }
            None => times(&each, 1.0 / labels.ty().elems().0.max(1) as f64)?,
        };
    }
    if let Some(kept) = kept {
        let zero = gradient.on_stream().zeros(gradient.dtype(), &[])?;
        each = kept.select(&each, &zero)?;
    }
    let each = if each.rank() == 0 { each } else { each.expand_dims(&[-1])? };
    error.mul(&each)
}

/// Of [`normalize`](super::normalize) over `axes`, from both of its results: `scale (g - mean(g) -
/// normal mean(g normal))`.
///
/// With the gradient times `gamma` this is the rule of layer, group and batch normalisation in
/// training. The rule for `gamma` is [`unbroadcast`] of the gradient times `normal`; that for
/// `beta` is [`unbroadcast`] of the gradient.
///
/// # Errors
/// When the shapes differ or a dimension does not exist.
#[track_caller]
pub fn normalize(normal: &Tensor, scale: &Tensor, axes: &[i64], gradient: &Tensor) -> Result<Tensor> {
    let shift = gradient.mean(axes)?.expand_dims(axes)?;
    let tilt = gradient.mul(normal)?.mean(axes)?.expand_dims(axes)?;
    gradient.sub(&shift)?.sub(&normal.mul(&tilt)?)?.mul(scale)
}

/// Of [`rms_norm`](super::rms_norm) over the last dimension, to its operand: with `s = 1 /
/// sqrt(mean(x^2) + epsilon)` and `h = g gamma`, `s h - s^3 x mean(h x)`.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn rms_norm(x: &Tensor, gamma: &Tensor, epsilon: f64, gradient: &Tensor) -> Result<Tensor> {
    let h = gradient.mul(gamma)?;
    let scale = plus(&x.mul(x)?.mean(&[-1])?, epsilon)?.rsqrt()?;
    let tilt = h.mul(x)?.mean(&[-1])?.mul(&scale.mul(&scale)?)?.mul(&scale)?;
    h.mul(&scale.expand_dims(&[-1])?)?.sub(&x.mul(&tilt.expand_dims(&[-1])?)?)
}

// ----- tables -----

/// Number of rows up to which [`embedding`] computes a product instead of a scatter.
const SMALL_TABLE: usize = 1_024;

/// Of [`embedding`](super::embedding), to the table of `words` rows: the sum of the gradients of
/// each row.
///
/// For a small table it is a product with the one-hot indices. For a large one it is a `scatter`,
/// which adds row by row, but whose work does not grow with the table.
///
/// # Errors
/// When the gradient does not begin with the dimensions of the indices.
#[track_caller]
pub fn embedding(words: usize, indices: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let Some(width) = gradient.dims().strip_prefix(indices.dims()) else {
        let given = format!("the indices are {} and the gradient {}", indices.ty(), gradient.ty());
        return Err(unfit("embedding", given, "there must be one gradient per index"));
    };
    indices.check_where_asked(words, "embedding", &here())?;
    let places: Vec<i64> = (0..indices.rank() as i64).collect();
    if words <= SMALL_TABLE {
        let hot = indices.one_hot_or_none(words, gradient.dtype())?;
        let numbers = DotDimensionNumbers {
            lhs_contracting: &places,
            rhs_contracting: &places,
            ..DotDimensionNumbers::default()
        };
        return hot.dot_general(gradient, numbers);
    }
    let zeros = gradient.on_stream().zeros(gradient.dtype(), &[&[words], width].concat())?;
    let window: Vec<i64> = (indices.rank() as i64..gradient.rank() as i64).collect();
    let dims = IndexDimensionNumbers {
        window: &window,
        collapsed: &[0],
        index_map: &[0],
        index_vector: indices.rank() as i64,
        ..IndexDimensionNumbers::default()
    };
    let add = Body::binary(OpCode::Add, TensorType::scalar(gradient.dtype()));
    let add = add.map_err(|error| Error::op(error, here()))?;
    let attrs = fuseline_fusion::op::attrs::scatter(dims, false, false);
    let operands = [&zeros, indices, gradient];
    let mut results = gradient.on_stream().record(OpCode::Scatter, attrs, &[add.into()], &operands)?;
    results.pop().ok_or_else(|| bug!("scatter has a result"))
}

// ----- products -----

/// The last dimension of lhs with a dimension of rhs, counted from the back, for each batch.
#[track_caller]
fn product(lhs: &Tensor, lhs_axis: i64, rhs: &Tensor, rhs_axis: i64) -> Result<Tensor> {
    let batch: Vec<i64> = (0..lhs.rank() as i64 - 2).collect();
    lhs.dot_general(
        rhs,
        DotDimensionNumbers {
            lhs_batching: &batch,
            rhs_batching: &batch,
            lhs_contracting: &[lhs.rank() as i64 + lhs_axis],
            rhs_contracting: &[rhs.rank() as i64 + rhs_axis],
        },
    )
}

/// Whether two operands of a product are batches of matrices with equal batch dimensions.
fn paired(a: &Tensor, b: &Tensor) -> bool {
    a.rank() == b.rank() && a.rank() >= 2 && a.dims()[..a.rank() - 2] == b.dims()[..b.rank() - 2]
}

/// Of [`Tensor::matmul`], to its left operand, which has sizes `lhs`: the gradient times the
/// transposed right one.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn matmul_lhs(lhs: &[usize], rhs: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    // A vector counts as a matrix: a row on the left, a column on the right.
    let gradient = if rhs.rank() == 1 { gradient.unsqueeze(-1)? } else { gradient.clone() };
    let rhs = if rhs.rank() == 1 { rhs.unsqueeze(-1)? } else { rhs.clone() };
    let row = lhs.len() == 1;
    let gradient = if row { gradient.unsqueeze(-2)? } else { gradient };
    let product = if paired(&gradient, &rhs) {
        product(&gradient, -1, &rhs, -1)?
    } else {
        gradient.matmul(&rhs.swap_axes(-1, -2)?)?
    };
    let dims = if row { [1, lhs[0]].to_vec() } else { lhs.to_vec() };
    let result = unbroadcast(&dims, &product)?;
    if row { result.reshape(lhs) } else { Ok(result) }
}

/// Of [`Tensor::matmul`], to its right operand, which has sizes `rhs`: the transposed left one
/// times the gradient.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn matmul_rhs(lhs: &Tensor, rhs: &[usize], gradient: &Tensor) -> Result<Tensor> {
    let column = rhs.len() == 1;
    let gradient = if column { gradient.unsqueeze(-1)? } else { gradient.clone() };
    let gradient = if lhs.rank() == 1 { gradient.unsqueeze(-2)? } else { gradient };
    let lhs = if lhs.rank() == 1 { lhs.unsqueeze(0)? } else { lhs.clone() };
    let product = if rhs.len() <= 2 && lhs.rank() == gradient.rank() {
        // One matrix for all rows: a single product that also sums over the batch.
        let over: Vec<i64> = (0..lhs.rank() as i64 - 1).collect();
        let numbers = DotDimensionNumbers {
            lhs_contracting: &over,
            rhs_contracting: &over,
            ..DotDimensionNumbers::default()
        };
        lhs.dot_general(&gradient, numbers)?
    } else if paired(&lhs, &gradient) {
        product(&lhs, -2, &gradient, -2)?
    } else {
        lhs.swap_axes(-1, -2)?.matmul(&gradient)?
    };
    let dims = if column { [rhs[0], 1].to_vec() } else { rhs.to_vec() };
    let result = unbroadcast(&dims, &product)?;
    if column { result.reshape(rhs) } else { Ok(result) }
}

/// Of [`attention`](super::attention) without dropout: to `q`, `k` and `v`, from the weights that
/// it returned. `scale` is the one that was used.
///
/// # Errors
/// When the shapes do not fit.
#[track_caller]
pub fn attention(
    [q, k, v]: [&Tensor; 3],
    weights: &Tensor,
    scale: f64,
    gradient: &Tensor,
) -> Result<[Tensor; 3]> {
    let (&[batch, heads, queries, width], &[_, groups, keys, _]) = (q.dims(), k.dims()) else {
        let given = format!("q is {}, k is {}", q.ty(), k.ty());
        return Err(unfit(
            "attention",
            given,
            "each must have the dimensions batch, heads, positions, width",
        ));
    };
    if groups == 0 || heads % groups != 0 || v.rank() != 4 {
        let given = format!("q is {}, k is {}, v is {}", q.ty(), k.ty(), v.ty());
        return Err(unfit(
            "attention",
            given,
            "the number of heads of q must be a multiple of that of k and v",
        ));
    }
    // Heads that share a group become additional rows, as in the function itself.
    let rows = heads / groups * queries;
    let site = here();
    let grouped = |x: &Tensor, last: usize| x.reshape_at(&[batch, groups, rows, last], site.clone());
    let (q, gradient) = (grouped(q, width)?, grouped(gradient, v.dims()[3])?);
    let weights = grouped(weights, keys)?;
    let of_weights = product(&gradient, -1, v, -1)?;
    let of_scores = times(&softmax(&weights, -1, &of_weights)?, scale)?;
    let of_q = product(&of_scores, -1, k, -2)?.reshape(&[batch, heads, queries, width])?;
    Ok([of_q, product(&of_scores, -2, &q, -2)?, product(&weights, -2, &gradient, -2)?])
}
