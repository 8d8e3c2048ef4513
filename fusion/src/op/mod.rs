//! The op vocabulary: opcodes, the op table, and checked op signatures.
//!
//! Input: an [`OpCode`], [`crate::Attrs`], bodies and operand types. Output: a [`Signature`], which
//! proves that the call is valid and holds its result types. Pure; no I/O, no clock, no global
//! state.
//!
//! The row of an op in the op table ([`OpDef`]) defines its arity, attributes, infer rule,
//! fusibility, effect, StableHLO name and lowering. The table drives the API methods, the error
//! messages, the program format, the lowering, the conformance run and the property tests, so
//! adding a row adds an op. The crates `fuseline-interp` and `fuseline-testgen` have a function for
//! each op code, and do not compile without one.
//!
//! Invariants:
//! - OP-1: a [`Signature`] can only come from [`Signature::infer`], so later stages need not check
//!   the call again.
//! - OP-2: the code of an op never changes, because it is part of keys and saved programs.
//! - OP-3: given equal operand types, two signatures are equal exactly if their encodings are
//!   equal.

pub mod attrs;
mod code;
mod conv_attr;
mod def;
pub(crate) mod encode;
mod identity;
pub(crate) mod infer;
pub(crate) mod legalize;
mod rounding;
mod signature;
mod table;

/// Dimension numbers and windows of calls, decoded from their attributes.
pub mod dims {
    /// Positions of the attributes of a convolution.
    pub mod conv_attr {
        pub use crate::op::conv_attr::*;
    }

    pub use super::infer::chlo::{Ragged, RaggedDims, ScanDims};
    pub use super::infer::contraction::{ConvDims, DotDims, conv_window};
    pub use super::infer::dynamic::{Sizes, twin, twin_attrs};
    pub use super::infer::reduction::{reduce_window_dims, select_and_scatter_dims};
    pub use super::infer::window::{Window, WindowDim};
}

pub use code::{Comparison, ComparisonType, FftType, OpCode, RngAlgorithm, RngDistribution, Transpose};
pub use def::{
    Bodies, BodyDef, Call, Dialect, Effect, Fusibility, Lowered, OpDef, OperandGroup, Operands, Replicas,
    Results, Rounding,
};
pub use identity::{extreme, neutral};
pub use infer::collective::Named;
pub use infer::source::RANDOM_BITS;
pub(crate) use legalize::unsigned;
pub use legalize::{BERNOULLI, ZETA_TERMS};
pub use rounding::{rounding_class, rounds, runs_bodies, tolerance};
pub use signature::{OperandTypes, Signature};
pub use table::OPS;
