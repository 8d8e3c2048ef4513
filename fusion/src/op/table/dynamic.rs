//! Ops with sizes as operands.

use super::ROW;
use crate::dtype::DTypeSet;
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Fusibility, OpDef, Operands, Rounding};
use crate::op::infer::dynamic;
use crate::op::legalize;

/// Defaults for ops with a static twin and additional size operands.
const DYNAMIC: OpDef =
    OpDef { fusibility: Fusibility::Movement, infer: dynamic::dynamic, lower: legalize::dynamic, ..ROW };

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::GetDimensionSize,
        name: "get_dimension_size",
        summary: "The size of a dimension.",
        rule: "`dimension` is a dimension of the operand. The result is an i32 scalar.",
        attrs: &attrs::DIMENSION,
        fusibility: Fusibility::Source,
        infer: dynamic::get_dimension_size,
        ..ROW
    },
    OpDef {
        code: OpCode::DynamicBroadcastInDim,
        name: "dynamic_broadcast_in_dim",
        summary: "`broadcast_in_dim` with the result's sizes as an operand.",
        rule: "The rule of `broadcast_in_dim` applies. `output_dimensions` has one integer per \
               result dimension, equal to its recorded size.",
        operands: Operands::Fixed(&["operand", "output_dimensions"]),
        attrs: &attrs::DYNAMIC_BROADCAST_IN_DIM,
        ..DYNAMIC
    },
    OpDef {
        code: OpCode::DynamicConv,
        name: "dynamic_conv",
        summary: "`convolution` with the padding as an operand.",
        rule: "The rule of `convolution` applies. `padding` has one row of integers (low, high) \
               per spatial dimension, which lead to the recorded sizes.",
        operands: Operands::Fixed(&["lhs", "rhs", "padding"]),
        attrs: &attrs::DYNAMIC_CONV,
        fusibility: Fusibility::Contraction,
        rounding: Rounding::Rounded,
        ..DYNAMIC
    },
    OpDef {
        code: OpCode::DynamicGather,
        name: "dynamic_gather",
        summary: "`gather` with the slice sizes as an operand.",
        rule: "The rule of `gather` applies. `slice_sizes` has one integer per operand dimension, \
               equal to the recorded slice size.",
        operands: Operands::Fixed(&["operand", "start_indices", "slice_sizes"]),
        attrs: &attrs::DYNAMIC_GATHER,
        fusibility: Fusibility::Indexing,
        ..DYNAMIC
    },
    OpDef {
        code: OpCode::DynamicIota,
        name: "dynamic_iota",
        summary: "`iota` with the result's sizes as an operand.",
        rule: "The rule of `iota` applies. `output_shape` has one integer per result dimension, \
               equal to its recorded size.",
        operands: Operands::Fixed(&["output_shape"]),
        attrs: &attrs::IOTA,
        dtypes: DTypeSet::INT,
        fusibility: Fusibility::Source,
        ..DYNAMIC
    },
    OpDef {
        code: OpCode::DynamicPad,
        name: "dynamic_pad",
        summary: "`pad` with the amounts as operands.",
        rule: "The rule of `pad` applies. The three amounts have one integer per dimension, which \
               lead to the recorded sizes.",
        operands: Operands::Fixed(&[
            "operand",
            "padding_value",
            "edge_padding_low",
            "edge_padding_high",
            "interior_padding",
        ]),
        attrs: &attrs::RESHAPE,
        fusibility: Fusibility::Indexing,
        ..DYNAMIC
    },
    OpDef {
        code: OpCode::DynamicReshape,
        name: "dynamic_reshape",
        summary: "`reshape` with the result's sizes as an operand.",
        rule: "The rule of `reshape` applies. `output_shape` has one integer per result \
               dimension, equal to its recorded size.",
        operands: Operands::Fixed(&["operand", "output_shape"]),
        attrs: &attrs::RESHAPE,
        ..DYNAMIC
    },
];
