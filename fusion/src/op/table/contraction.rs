//! Contractions: products summed over dimensions.

use super::ROW;
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Fusibility, OpDef, Operands, Rounding};
use crate::op::infer::contraction;
use crate::op::legalize;

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::DotGeneral,
        name: "dot_general",
        summary: "The products of `lhs` and `rhs`, summed over the contracting dimensions, for \
                  each index of the batching dimensions.",
        rule: "Each batching or contracting dimension of `lhs` has a counterpart of equal size in \
               `rhs`. The result has the batching dimensions, then the free dimensions of `lhs`, \
               then those of `rhs`. Its element type is `dtype`.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::DOT_GENERAL,
        fusibility: Fusibility::Contraction,
        rounding: Rounding::Rounded,
        infer: contraction::dot_general,
        lower: legalize::dot_general,
        ..ROW
    },
    OpDef {
        code: OpCode::Convolution,
        name: "convolution",
        summary: "The products of a kernel and the input under each window position, summed over \
                  window and input features.",
        rule: "Both operands have the same element type. A feature group has as many input \
               features as the kernel. Output features and batch size are multiples of the group \
               counts. Window attributes have one entry per spatial dimension.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::CONVOLUTION,
        fusibility: Fusibility::Contraction,
        rounding: Rounding::Rounded,
        infer: contraction::convolution,
        lower: legalize::convolution,
        ..ROW
    },
];
