//! Ops that combine many elements into one with a body.

use super::{COMBINER, ROW};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Fusibility, OpDef, OperandGroup, Operands, Rounding};
use crate::op::infer::reduction;
use crate::op::legalize;

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::Reduce,
        name: "reduce",
        summary: "The elements along some dimensions, combined with the body in an unspecified order.",
        rule: "All inputs have the same shape. The initial values are scalars of their element \
               types. The results lack the dimensions `dimensions` and have the element types \
               that the body returns.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs"), OperandGroup::Many("init_values")]),
        attrs: &attrs::DIMENSIONS,
        bodies: Bodies::Fixed(&[BodyDef { name: "body", rule: COMBINER }]),
        fusibility: Fusibility::Reduction,
        rounding: Rounding::Rounded,
        infer: reduction::reduce,
        lower: legalize::reduce,
        ..ROW
    },
    OpDef {
        code: OpCode::ReduceWindow,
        name: "reduce_window",
        summary: "The elements under each position of a window, combined with the body.",
        rule: "All inputs have the same shape. The initial values are scalars of their element \
               types. Window sizes, strides, dilations and padding have one entry per dimension. \
               Along each dimension the results have one element per window position.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs"), OperandGroup::Many("init_values")]),
        attrs: &attrs::REDUCE_WINDOW,
        bodies: Bodies::Fixed(&[BodyDef { name: "body", rule: COMBINER }]),
        fusibility: Fusibility::Reduction,
        rounding: Rounding::Rounded,
        infer: reduction::reduce_window,
        lower: legalize::reduce_window,
        ..ROW
    },
    OpDef {
        code: OpCode::SelectAndScatter,
        name: "select_and_scatter",
        summary: "Each source element, combined with the result element that `select` chooses in \
                  its window over the operand. All result elements start as `init_value`.",
        rule: "`source` has one element per position of the window over the operand. The result \
               has the operand's shape.",
        operands: Operands::Fixed(&["operand", "source", "init_value"]),
        attrs: &attrs::SELECT_AND_SCATTER,
        bodies: Bodies::Fixed(&[
            BodyDef {
                name: "select",
                rule: "takes two scalars of the operand's element type and returns a bool",
            },
            BodyDef { name: "scatter", rule: COMBINER },
        ]),
        fusibility: Fusibility::Reduction,
        rounding: Rounding::Step,
        infer: reduction::select_and_scatter,
        lower: legalize::select_and_scatter,
        ..ROW
    },
];
