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
        summary: "The operand repeated along new dimensions and along dimensions of size 1.",
        rule: "`broadcast_dimensions` maps each operand dimension to a result dimension. Both \
               have the same size, or the operand's size is 1.",
        attrs: &attrs::BROADCAST_IN_DIM,
        fusibility: Fusibility::Movement,
        infer: movement::broadcast_in_dim,
        ..ROW
    },
    OpDef {
        code: OpCode::Reshape,
        name: "reshape",
        summary: "The same elements, in row-major order, with another shape.",
        rule: "The result has the shape `shape`, which has as many elements as the operand.",
        attrs: &attrs::RESHAPE,
        fusibility: Fusibility::Movement,
        infer: movement::reshape,
        ..ROW
    },
    OpDef {
        code: OpCode::Transpose,
        name: "transpose",
        summary: "The operand with its dimensions in another order.",
        rule: "`permutation` lists each dimension once. Result dimension `i` is operand dimension \
               `permutation[i]`.",
        attrs: &attrs::TRANSPOSE,
        fusibility: Fusibility::Movement,
        infer: movement::transpose,
        ..ROW
    },
    OpDef {
        code: OpCode::Slice,
        name: "slice",
        summary: "The elements between a fixed start and a fixed limit of each dimension, with a stride.",
        rule: "Each dimension has one start, limit and stride with 0 <= start <= limit <= size \
               and stride >= 1. The result has ceil((limit - start) / stride) elements along it.",
        attrs: &attrs::SLICE,
        fusibility: Fusibility::Movement,
        infer: movement::slice,
        lower: legalize::slice,
        ..ROW
    },
    OpDef {
        code: OpCode::Concatenate,
        name: "concatenate",
        summary: "The operands joined along one dimension.",
        rule: "The operands have the same element type and, except along `dimension`, the same \
               sizes. Along `dimension` the result has the sum of their sizes.",
        operands: Operands::Rest { fixed: &[], rest: "inputs", min: 1 },
        attrs: &attrs::DIMENSION,
        fusibility: Fusibility::Movement,
        infer: movement::concatenate,
        ..ROW
    },
    OpDef {
        code: OpCode::Pad,
        name: "pad",
        summary: "The operand with `padding_value` added at the edges and between the elements.",
        rule: "`padding_value` is a scalar of the operand's element type. Along each dimension \
               the result has low + high + size + interior * (size - 1) elements. A negative \
               `low` or `high` removes elements.",
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
        summary: "The elements in reverse order along some dimensions.",
        rule: "`dimensions` are distinct dimensions of the operand. The result has the operand's type.",
        attrs: &attrs::DIMENSIONS,
        fusibility: Fusibility::Movement,
        infer: movement::reverse,
        ..ROW
    },
    OpDef {
        code: OpCode::DynamicSlice,
        name: "dynamic_slice",
        summary: "A slice of fixed size at a computed position. A slice that would exceed the \
                  operand is moved inside.",
        rule: "Each dimension has one scalar start index, all of the same integer type. Each \
               slice size is at least 0 and at most the size of its dimension. The result has the \
               slice sizes.",
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
        summary: "The operand with a slice at a computed position replaced by the update.",
        rule: "The update has the operand's element type, and no dimension is larger than the \
               operand's. Each dimension has one scalar start index, all of the same integer \
               type. The result has the operand's type.",
        operands: Operands::Rest { fixed: &["operand", "update"], rest: "start_indices", min: 0 },
        fusibility: Fusibility::Indexing,
        infer: movement::dynamic_update_slice,
        lower: legalize::dynamic_slice,
        ..ROW
    },
    OpDef {
        code: OpCode::OptimizationBarrier,
        name: "optimization_barrier",
        summary: "The operands, unchanged. The compiler moves no computation across this op.",
        rule: "The results have the operands' types.",
        operands: Operands::Groups(&[OperandGroup::Many("operand")]),
        fusibility: Fusibility::Opaque,
        infer: movement::optimization_barrier,
        ..ROW
    },
];
