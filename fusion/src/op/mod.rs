//! The op vocabulary: opcodes, the op table, and checked op signatures.
//!
//! Input: an [`OpCode`], [`crate::Attrs`], bodies and operand types. Output: a [`Signature`], the
//! receipt that says the call is valid and which types it returns. Pure; no I/O, no clock, no
//! global state.
//!
//! What an op means stands in its row of the op table ([`OpDef`]): arity, attributes, type rule,
//! fusibility, effect, StableHLO name and lowering. The API methods, the error messages, the
//! program format, the lowering, the conformance run and the property tests are all driven by that
//! table. So an op is added by adding a row. The crates `fuseline-interp` and `fuseline-testgen`
//! have a function for each op code, and do not compile without one.
//!
//! Invariants:
//! - O1: a [`Signature`] can only come from [`Signature::infer`], so a stage that holds one need
//!   not check again.
//! - O2: the code of an op never changes, since it is part of keys and saved programs.
//! - O3: two signatures are equal exactly when their encodings are equal, given equal operand
//!   types.

pub mod attrs;
mod code;
mod conv_attr;
mod def;
pub(crate) mod encode;
pub(crate) mod expand;
mod neutral;
mod rounding;
pub(crate) mod rules;
mod signature;
mod table;

/// Dimension numbers and windows of calls, decoded from their attributes.
pub mod dims {
    /// Places of the attributes of a convolution.
    pub mod conv_attr {
        pub use crate::op::conv_attr::*;
    }

    pub use super::rules::chlo::{Ragged, RaggedDims, ScanDims};
    pub use super::rules::contraction::{ConvDims, DotDims, conv_window};
    pub use super::rules::dynamic::{Sizes, twin, twin_attrs};
    pub use super::rules::reduction::{reduce_window_dims, select_and_scatter_dims};
    pub use super::rules::window::{Window, WindowDim};
}

pub use code::{Comparison, ComparisonType, FftType, OpCode, RngAlgorithm, RngDistribution, Transpose};
pub use def::{
    Bodies, BodyDef, Call, Dialect, Effect, Fusibility, Lowered, OpDef, OperandGroup, Operands, Replicas,
    Results, Rounding,
};
pub(crate) use expand::unsigned;
pub use expand::{BERNOULLI, ZETA_TERMS};
pub use neutral::{extreme, neutral};
pub use rounding::{rounding_class, rounds, runs_bodies, tolerance};
pub use rules::collective::Named;
pub use rules::source::RANDOM_BITS;
pub use signature::{OperandTypes, Signature};
pub use table::OPS;
