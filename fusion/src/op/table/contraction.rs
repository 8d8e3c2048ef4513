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
        summary: "Products of lhs and rhs summed over the contracting dimensions, for each batch index.",
        rule: "Batching and contracting dimensions come in pairs of equal sizes. The result has the batching dimensions, then the rest of lhs, then the rest of rhs, and the element type asked for.",
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
        summary: "Products of a kernel with the part of the input under it, summed over window and features.",
        rule: "Both operands have one element type. A group of input features is as large as the kernel's input features; output features and batch are multiples of the group counts. Window attributes are given per spatial dimension.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::CONVOLUTION,
        fusibility: Fusibility::Contraction,
        rounding: Rounding::Rounded,
        infer: contraction::convolution,
        lower: legalize::convolution,
        ..ROW
    },
];
