//! Neural network functions, recorded as primitive ops.
//!
//! None of them is an op of its own. Each records primitive ops, which fuse as if the user had
//! written them. Operands promote and broadcast as everywhere ([`promote`](crate::promote)). Shapes
//! are given outermost first; `axis` counts from the back if negative. Floats below 32 bits are
//! summed in `f32`, as is everything computed from sums; the result is rounded once. A function
//! fails if one of its ops is rejected, with the call site of the function.
//!
//! | | |
//! |---|---|
//! | activations | [`relu`] and its relatives, [`gelu`], [`silu`], [`mish`], [`softplus`], ... |
//! | over a dimension | [`softmax`], [`log_softmax`], [`logsumexp`], [`masked_softmax`] |
//! | normalisation | [`layer_norm`], [`rms_norm`], [`group_norm`], [`batch_norm`], [`batch_norm_train`] |
//! | losses | [`cross_entropy`], [`nll`], [`mse`], [`huber`], [`bce_with_logits`], [`kl_div`], ... |
//! | attention | [`attention`] with its masks, grouped heads and dropout |
//! | space | [`max_pool`], [`avg_pool`], [`adaptive_avg_pool`], [`resize`], ... |
//! | noise | [`dropout`] |
//! | tables | [`embedding`], [`Tensor::one_hot`] |
//! | optimisers | [`adam`] |
//! | gradients | [`grad`]: vector-Jacobian products for training |

mod activation;
mod attention;
mod dropout;
pub mod grad;
mod loss;
mod norm;
mod optimize;
mod pool;
mod resize;
mod softmax;

pub use activation::*;
pub use attention::{Attention, attention, causal_mask};
pub use dropout::dropout;
pub use loss::*;
pub use norm::*;
pub use optimize::{Adam, AdamState, adam};
pub use pool::*;
pub use resize::{Method, Resize, resize};
pub use softmax::{log_softmax, logsumexp, masked_softmax, softmax};

use fuseline_fusion::{OpError, OpErrorKind, Site};
use fuseline_runtime::{Error, Result};

use crate::handle::Tensor;

// Closures must not record ops here: `#[track_caller]` does not reach into closures, so an error
// would name this file.

/// The position of the features (channels) in tensors with spatial dimensions. The batch is
/// dimension 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, features, space...]`: NCHW.
    #[default]
    ChannelsFirst,
    /// `[batch, space..., features]`: NHWC.
    ChannelsLast,
}

impl Layout {
    /// The first spatial dimension.
    fn first_spatial(self) -> usize {
        match self {
            Layout::ChannelsFirst => 2,
            Layout::ChannelsLast => 1,
        }
    }
}

/// The error of a shape that the ops accept, but not this function.
#[track_caller]
fn unfit(op: &'static str, given: String, rule: impl Into<String>) -> Error {
    refuse(OpError::new(op, OpErrorKind::Shape, given, rule))
}

/// The error of a setting that this function does not accept.
#[track_caller]
fn unset(op: &'static str, given: String, rule: impl Into<String>) -> Error {
    refuse(OpError::new(op, OpErrorKind::Attribute, given, rule))
}

#[track_caller]
fn refuse(error: OpError) -> Error {
    Error::op(error, Site::Rust(std::panic::Location::caller()))
}

/// Rows of `table`, `[words, width...]`, by integer `indices` of any shape:
/// `[indices..., width...]`. An index out of range is clamped, or is an error
/// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)). One `gather`.
///
/// # Errors
/// When the table has no dimension or the indices are not integers; in Debug mode, when one is out
/// of range.
#[track_caller]
pub fn embedding(table: &Tensor, indices: &Tensor) -> Result<Tensor> {
    table.take(indices, 0)
}
