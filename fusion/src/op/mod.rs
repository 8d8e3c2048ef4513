//! The op table, and the check of op calls against it.
//!
//! Input: an [`OpCode`], [`crate::Attrs`], bodies and operand types. Output: a [`Signature`], which
//! proves that the call is valid and holds its result types. Pure; no I/O, no clock, no global
//! state. The module `ir` has the types of calls and graphs, and knows no op; this module adds the
//! functions that need the table: [`OpCode::def`], [`Signature::infer`], [`crate::Graph::push`].
//!
//! The row of an op in the op table ([`OpDef`]) defines its arity, attributes, infer rule,
//! fusibility, effect, StableHLO name and lowering. The table drives the API methods, the error
//! messages, the program format, the lowering, the conformance run and the property tests, so
//! adding a row adds an op. The crates `fuseline-interp` and `fuseline-testgen` have a function for
//! each op code, and do not compile without one.

pub mod attrs;
mod check;
mod conv_attr;
mod def;
mod enums;
mod identity;
pub(crate) mod infer;
pub(crate) mod legalize;
mod rounding;
mod signature;
mod table;
mod workaround;

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

pub use def::{
    Bodies, BodyDef, Call, Dialect, Fusibility, Lowered, OpDef, OperandGroup, Operands, Replicas, Rounding,
};
pub use enums::{Comparison, ComparisonType, FftType, RngAlgorithm, RngDistribution, Transpose};
pub use identity::{extreme, neutral};
pub use infer::collective::Named;
pub use infer::source::RANDOM_BITS;
pub(crate) use legalize::unsigned;
pub use legalize::{BERNOULLI, ZETA_TERMS};
pub use rounding::{rounding_class, rounds, runs_bodies, tolerance};
pub use table::OPS;
pub use workaround::{Evidence, Workaround, WorkaroundSet};

pub use crate::ir::{Effect, OpCode, OperandTypes, Results, Signature};
