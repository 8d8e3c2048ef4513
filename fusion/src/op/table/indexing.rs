//! Reads and writes at computed positions.

use super::{COMBINER, ROW};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Fusibility, OpDef, OperandGroup, Operands, Rounding};
use crate::op::infer::indexing;
use crate::op::legalize;

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::Gather,
        name: "gather",
        summary: "For each index vector, the slice of the operand that starts there. A slice that \
                  would exceed the operand is moved inside.",
        rule: "The result has the slice sizes at `offset_dims`. Its other sizes are those of the \
               indices without `index_vector_dim`.",
        operands: Operands::Fixed(&["operand", "start_indices"]),
        attrs: &attrs::GATHER,
        fusibility: Fusibility::Indexing,
        infer: indexing::gather,
        ..ROW
    },
    OpDef {
        code: OpCode::Scatter,
        name: "scatter",
        summary: "The inputs, with each update combined with the element that its index vector selects.",
        rule: "The updates have the window sizes at `update_window_dims`. Their other sizes are \
               those of the indices without `index_vector_dim`. The results have the shapes of \
               the inputs and the element types that the body returns.",
        operands: Operands::Groups(&[
            OperandGroup::Many("inputs"),
            OperandGroup::One("scatter_indices"),
            OperandGroup::Many("updates"),
        ]),
        attrs: &attrs::SCATTER,
        bodies: Bodies::Fixed(&[BodyDef { name: "update_computation", rule: COMBINER }]),
        fusibility: Fusibility::Indexing,
        rounding: Rounding::Rounded,
        infer: indexing::scatter,
        lower: legalize::scatter,
        ..ROW
    },
];
