//! Ops that move elements without computing.

use super::ROW;
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Fusibility, OpDef, OperandGroup, Operands};
use crate::op::infer::movement;
use crate::op::legalize;

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::BroadcastInDim,
        name: "broadcast_in_dim",
        summary: "The operand repeated along new dimensions and along those of size 1.",
        rule: "`broadcast_dimensions` names, for each operand dimension, the result dimension that it becomes; sizes are equal, or the operand's is 1.",
        attrs: &attrs::BROADCAST_IN_DIM,
        fusibility: Fusibility::Movement,
        infer: movement::broadcast_in_dim,
        ..ROW
    },
    OpDef {
        code: OpCode::Reshape,
        name: "reshape",
        summary: "The same elements in row-major order under another shape.",
        rule: "The result has the shape asked for, which has as many elements as the operand.",
        attrs: &attrs::RESHAPE,
        fusibility: Fusibility::Movement,
        infer: movement::reshape,
        ..ROW
    },
    OpDef {
        code: OpCode::Transpose,
        name: "transpose",
        summary: "The dimensions in another order.",
        rule: "`permutation` has each dimension once; result dimension i is operand dimension permutation[i].",
        attrs: &attrs::TRANSPOSE,
        fusibility: Fusibility::Movement,
        infer: movement::transpose,
        ..ROW
    },
    OpDef {
        code: OpCode::Slice,
        name: "slice",
        summary: "Every so many elements between two fixed places of each dimension.",
        rule: "One start, limit and stride per dimension, 0 <= start <= limit <= size and stride >= 1; the result has ceil((limit - start) / stride) elements along each.",
        attrs: &attrs::SLICE,
        fusibility: Fusibility::Movement,
        infer: movement::slice,
        lower: legalize::slice,
        ..ROW
    },
    OpDef {
        code: OpCode::Concatenate,
        name: "concatenate",
        summary: "The operands one after the other along one dimension.",
        rule: "The operands have one element type and equal sizes but along `dimension`, where the result has their sum.",
        operands: Operands::Rest { fixed: &[], rest: "inputs", min: 1 },
        attrs: &attrs::DIMENSION,
        fusibility: Fusibility::Movement,
        infer: movement::concatenate,
        ..ROW
    },
    OpDef {
        code: OpCode::Pad,
        name: "pad",
        summary: "The operand with `padding_value` added at the edges and between neighbours.",
        rule: "`padding_value` is a scalar of the operand's element type. Along each dimension the result has low + high + size + interior * (size - 1) elements; negative amounts cut off.",
        operands: Operands::Fixed(&["operand", "padding_value"]),
        attrs: &attrs::PAD,
        fusibility: Fusibility::Movement,
        infer: movement::pad,
        lower: legalize::pad,
        ..ROW
    },
    OpDef {
        code: OpCode::Reverse,
        name: "reverse",
        summary: "The order of the elements turned around along some dimensions.",
        rule: "`dimensions` are distinct dimensions of the operand. The result has the operand's type.",
        attrs: &attrs::DIMENSIONS,
        fusibility: Fusibility::Movement,
        infer: movement::reverse,
        ..ROW
    },
    OpDef {
        code: OpCode::DynamicSlice,
        name: "dynamic_slice",
        summary: "A window of fixed size at a computed place, moved inside where it would stick out.",
        rule: "One scalar start index per dimension, all of one integer type; 0 <= slice size <= size, and the result has those sizes.",
        operands: Operands::Rest { fixed: &["operand"], rest: "start_indices", min: 0 },
        attrs: &attrs::DYNAMIC_SLICE,
        fusibility: Fusibility::Indexing,
        infer: movement::dynamic_slice,
        lower: legalize::dynamic_slice,
        ..ROW
    },
    OpDef {
        code: OpCode::DynamicUpdateSlice,
        name: "dynamic_update_slice",
        summary: "The operand with a window at a computed place replaced by the update.",
        rule: "The update has the operand's element type and no size larger than the operand's; one scalar start index per dimension, all of one integer type. The result has the operand's type.",
        operands: Operands::Rest { fixed: &["operand", "update"], rest: "start_indices", min: 0 },
        fusibility: Fusibility::Indexing,
        infer: movement::dynamic_update_slice,
        lower: legalize::dynamic_slice,
        ..ROW
    },
    OpDef {
        code: OpCode::OptimizationBarrier,
        name: "optimization_barrier",
        summary: "The operands, across which the compiler moves and computes nothing.",
        rule: "The results have the operands' types.",
        operands: Operands::Groups(&[OperandGroup::Many("operand")]),
        fusibility: Fusibility::Opaque,
        infer: movement::optimization_barrier,
        ..ROW
    },
];
