//! Loss functions.

use fuseline_fusion::{DTypeClass, OpCode};
use fuseline_runtime::Result;

use super::{log_softmax, unfit};
use crate::handle::Tensor;
use crate::promote::Number;
use crate::tensor::{constant_like, plus, times};

/// How the losses of single elements or samples are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The losses are returned as they are.
    None,
    /// The mean, a scalar; 0 if there are none.
    #[default]
    Mean,
    /// The sum, a scalar.
    Sum,
}

impl Reduction {
    #[track_caller]
    fn apply(self, losses: &Tensor) -> Result<Tensor> {
        let axes: Vec<i64> = (0..losses.rank() as i64).collect();
        match self {
            Reduction::None => Ok(losses.clone()),
            Reduction::Sum => losses.sum(&axes),
            Reduction::Mean => {
                let total = losses.widened()?.sum(&axes)?;
                let count = losses.ty().elems().0.max(1) as f64;
                total.div(&constant_like(&total, count)?)?.narrowed(losses.dtype())
            }
        }
    }
}

/// The difference of predictions and targets. Their shapes must be equal, because broadcasting
/// would count some elements many times.
#[track_caller]
fn difference(op: &'static str, x: &Tensor, target: &Tensor) -> Result<Tensor> {
    same_shape(op, x, target)?;
    x.sub(target)
}

#[track_caller]
fn same_shape(op: &'static str, x: &Tensor, target: &Tensor) -> Result<()> {
    if x.shape() == target.shape() {
        return Ok(());
    }
    let given = format!("the predictions are {} and the targets {}", x.ty(), target.ty());
    Err(unfit(op, given, "they must have the same shape; nothing is broadcast"))
}

/// The squared error `(x - target)^2`.
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn mse(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let difference = difference("mse", x, target)?;
    reduction.apply(&difference.mul(&difference)?)
}

/// The absolute error `|x - target|`.
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn mae(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    reduction.apply(&difference("mae", x, target)?.abs()?)
}

/// Huber's loss of `d = x - target`: `d^2 / 2` up to `delta`, beyond it `delta (|d| - delta / 2)`
/// (Huber, "Robust estimation of a location parameter", 1964). Computed without a selection, as `m
/// (|d| - m / 2)` with `m = min(|d|, delta)`.
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn huber(x: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    let distance = difference("huber", x, target)?.abs()?;
    let bounded = distance.minimum(&constant_like(&distance, delta)?)?;
    reduction.apply(&bounded.mul(&distance.sub(&times(&bounded, 0.5)?)?)?)
}

/// [`huber`] with `delta = beta`, divided by `beta`; [`mae`] for a `beta` of 0 (Girshick, "Fast
/// R-CNN", 2015).
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn smooth_l1(x: &Tensor, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
    if beta == 0.0 {
        return mae(x, target, reduction);
    }
    let losses = huber(x, target, beta, Reduction::None)?;
    reduction.apply(&times(&losses, 1.0 / beta)?)
}

/// The hinge loss `max(1 - x * target, 0)` for targets 1 and -1.
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn hinge(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("hinge", x, target)?;
    reduction.apply(&super::relu(&plus(&x.mul(target)?.neg()?, 1.0)?)?)
}

/// The binary cross-entropy between logits and target probabilities, in nats: with `s` the logistic
/// function, `-target log(s(x)) - (1 - target) log(1 - s(x))`, computed as
/// `max(x, 0) - x target + log1p(exp(-|x|))`, which neither overflows nor cancels. A
/// `positive_weight`, which broadcasts, multiplies the first of the two terms.
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn bce_with_logits(
    x: &Tensor,
    target: &Tensor,
    positive_weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    same_shape("bce_with_logits", x, target)?;
    let Some(weight) = positive_weight else {
        return reduction.apply(&super::softplus(x)?.sub(&x.mul(target)?)?);
    };
    // (1 - t) x + (1 + (w - 1) t) softplus(-x)
    let away = plus(&target.neg()?, 1.0)?.mul(x)?;
    let factor = plus(&plus(weight, -1.0)?.mul(target)?, 1.0)?;
    reduction.apply(&away.add(&factor.mul(&super::softplus(&x.neg()?)?)?)?)
}

/// The Kullback-Leibler divergence of `target`, probabilities, from predictions, log-probabilities:
/// `target (log(target) - x)`, and 0 where `target` is 0.
///
/// The mean is over all elements. For the usual mean over samples, divide the sum by their number.
///
/// # Errors
/// When the shapes differ or the elements are not floats.
#[track_caller]
pub fn kl_div(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("kl_div", x, target)?;
    let zero = x.on_stream().zeros(target.dtype(), &[])?;
    let losses = target.mul(&target.log()?.sub(x)?)?;
    let losses = target.greater(&zero)?.select(&losses, &zero)?;
    reduction.apply(&losses)
}

/// The cosine of the angle between `a` and `b` along `axis`, which disappears: `a . b / max(|a| |b|,
/// epsilon)`. Other dimensions broadcast.
///
/// # Errors
/// When the operands do not promote or broadcast, or the dimension does not exist.
#[track_caller]
pub fn cosine_similarity(a: &Tensor, b: &Tensor, axis: i64, epsilon: f64) -> Result<Tensor> {
    let (mut wide_a, mut wide_b) = (a.widened()?, b.widened()?);
    let product = wide_a.mul(&wide_b)?;
    // Dimensions count from the back, where the shapes are aligned.
    let axis = product.axis(OpCode::Reduce, axis)? as i64 - product.rank() as i64;
    // An operand that is broadcast along the dimension counts repeatedly in its length as well.
    for side in [&mut wide_a, &mut wide_b] {
        let size = |x: &Tensor| x.dims().iter().rev().nth(-axis as usize - 1).copied();
        if size(side) != size(&product) {
            *side = side.broadcast_to(product.dims())?;
        }
    }
    let dot = product.sum(&[axis])?;
    let squares = wide_a.mul(&wide_a)?.sum(&[axis])?.mul(&wide_b.mul(&wide_b)?.sum(&[axis])?)?;
    let length = squares.sqrt()?;
    let cosine = dot.div(&length.maximum(&constant_like(&length, epsilon)?)?)?;
    match crate::promote::promote_types(a.dtype(), b.dtype()) {
        Some(dtype) => cosine.narrowed(dtype),
        None => Ok(cosine),
    }
}

/// Settings of [`cross_entropy_with`] and [`nll`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy<'a> {
    /// Share of the target probability that is spread evenly over all classes (Szegedy et al.,
    /// "Rethinking the Inception architecture for computer vision", 2016). Not for [`nll`].
    pub label_smoothing: f64,
    /// A label whose samples are ignored, in the mean as well.
    pub ignored: Option<i64>,
    /// A weight for each class, a vector. The mean is divided by the weights of the labels.
    pub weights: Option<&'a Tensor>,
    /// How the losses of the samples are reduced.
    pub reduction: Reduction,
}

/// The mean cross-entropy between logits `[batch..., classes]` and integer labels `[batch...]`, in
/// nats.
///
/// # Errors
/// When the shapes do not fit. Labels are not broadcast.
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    cross_entropy_with(logits, labels, &CrossEntropy::default())
}

/// The cross-entropy, in nats, between logits `[batch..., classes]` and either integer labels
/// `[batch...]` or probabilities of the shape of the logits. A label out of range that is not the
/// ignored one counts as a sample with loss 0, or is an error
/// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)).
///
/// # Errors
/// When the shapes do not fit. Labels are not broadcast. In Debug mode, when a label is out of
/// range.
#[track_caller]
pub fn cross_entropy_with(logits: &Tensor, labels: &Tensor, settings: &CrossEntropy<'_>) -> Result<Tensor> {
    if logits.rank() == 0 {
        return Err(unfit(
            "cross_entropy",
            "the logits are a scalar".to_owned(),
            "they need a class dimension",
        ));
    }
    let logs = log_softmax(&logits.widened()?, -1)?;
    let loss = match labels.dtype().class() {
        DTypeClass::Signed | DTypeClass::Unsigned => from_labels("cross_entropy", &logs, labels, settings)?,
        _ => from_probabilities(&logs, labels, settings)?,
    };
    loss.narrowed(logits.dtype())
}

/// The negative log-likelihood: minus the log-probabilities, `[batch..., classes]`, of the labels,
/// `[batch...]`.
///
/// # Errors
/// When the shapes do not fit or the labels are not integers.
#[track_caller]
pub fn nll(logs: &Tensor, labels: &Tensor, settings: &CrossEntropy<'_>) -> Result<Tensor> {
    let settings = CrossEntropy { label_smoothing: 0.0, ..*settings };
    from_labels("nll", &logs.widened()?, labels, &settings)?.narrowed(logs.dtype())
}

#[track_caller]
fn from_labels(
    op: &'static str,
    logs: &Tensor,
    labels: &Tensor,
    settings: &CrossEntropy<'_>,
) -> Result<Tensor> {
    let Some((&classes, batch)) = logs.dims().split_last() else {
        return Err(unfit(op, "the logarithms are a scalar".to_owned(), "they need a class dimension"));
    };
    if labels.dims() != batch {
        let given = format!("the predictions are {} and the labels {}", logs.ty(), labels.ty());
        return Err(unfit(op, given, "each row of predictions needs one label"));
    }
    // A label that the type does not hold cannot occur.
    let ignored = settings.ignored.and_then(|label| Number::Int(label).element(labels.dtype()));
    labels.check_labels_where_asked(classes, ignored, op, &fuseline_runtime::internals::here())?;
    let zero = logs.on_stream().zeros(logs.dtype(), &[])?;
    let wanted = labels.one_hot_or_none(classes, crate::DType::Bool)?;
    let weights = match settings.weights {
        Some(weights) => Some(class_weights(op, weights, classes)?),
        None => None,
    };
    let weighted = match &weights {
        Some(weights) => logs.mul(weights)?,
        None => logs.clone(),
    };
    // A selection, not a product, because 0 times a logarithm of 0 would be NaN.
    let picked = wanted.select(&weighted, &zero)?.sum(&[-1])?.neg()?;
    let mut losses = picked;
    if settings.label_smoothing != 0.0 {
        let spread = weighted.sum(&[-1])?;
        let share = -settings.label_smoothing / classes as f64;
        losses = times(&losses, 1.0 - settings.label_smoothing)?.add(&times(&spread, share)?)?;
    }
    let mut counted = match &weights {
        Some(weights) => Some(wanted.select(weights, &zero)?.sum(&[-1])?),
        None => None,
    };
    if let Some(ignored) = ignored {
        let kept = labels.not_equal(&labels.on_stream().constant(ignored.to_literal())?)?;
        losses = kept.select(&losses, &zero)?;
        let one = constant_like(logs, 1.0)?;
        let share = counted.unwrap_or(one);
        counted = Some(kept.select(&share, &zero)?);
    }
    let (Reduction::Mean, Some(counted)) = (settings.reduction, counted) else {
        return settings.reduction.apply(&losses);
    };
    let axes: Vec<i64> = (0..losses.rank() as i64).collect();
    let (total, count) = (losses.sum(&axes)?, counted.sum(&axes)?);
    let one = constant_like(&count, 1.0)?;
    total.div(&count.equal(&zero)?.select(&one, &count)?)
}

#[track_caller]
fn class_weights(op: &'static str, weights: &Tensor, classes: usize) -> Result<Tensor> {
    if weights.dims() != [classes] {
        let given = format!("there are {classes} classes, but the weights are {}", weights.ty());
        return Err(unfit(op, given, "weights must be a vector with one number per class"));
    }
    Ok(weights.clone())
}

#[track_caller]
fn from_probabilities(logs: &Tensor, wanted: &Tensor, settings: &CrossEntropy<'_>) -> Result<Tensor> {
    if wanted.shape() != logs.shape() {
        let given = format!("the logits are {} and the target probabilities {}", logs.ty(), wanted.ty());
        return Err(unfit(
            "cross_entropy",
            given,
            "probabilities must have the shape of the logits; labels must be integers",
        ));
    }
    let classes = logs.dims().last().copied().unwrap_or(1);
    let mut wanted = wanted.widened()?;
    if settings.label_smoothing != 0.0 {
        let kept = times(&wanted, 1.0 - settings.label_smoothing)?;
        wanted = plus(&kept, settings.label_smoothing / classes as f64)?;
    }
    let mut logs = logs.clone();
    if let Some(weights) = settings.weights {
        logs = logs.mul(&class_weights("cross_entropy", weights, classes)?)?;
    }
    // Where the target is 0, a logarithm of 0 does not contribute.
    let zero = logs.on_stream().zeros(wanted.dtype(), &[])?;
    let terms = wanted.equal(&zero)?.select(&zero, &wanted.mul(&logs)?)?;
    settings.reduction.apply(&terms.sum(&[-1])?.neg()?)
}
