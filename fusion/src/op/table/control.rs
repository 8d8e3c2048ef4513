//! Ops that run their bodies.

use super::ROW;
use crate::dtype::{DType, DTypeSet};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Fusibility, OpDef, OperandGroup, Operands, Replicas, Rounding};
use crate::op::infer::control;
use crate::op::legalize;

/// A branch of `if` or `case`.
const BRANCH: &str = "the captured operands to the results";

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::While,
        name: "while",
        summary: "The carried values after as many steps of the body as the condition asks for.",
        rule: "The condition takes the carried values and returns a bool; the body takes and returns them. The results have their types.",
        operands: Operands::Groups(&[OperandGroup::Many("operand")]),
        bodies: Bodies::Fixed(&[
            BodyDef { name: "cond", rule: "the carried values to one bool" },
            BodyDef { name: "body", rule: "the carried values to their next values, of the same types" },
        ]),
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Rounded,
        infer: control::while_loop,
        replicas: Replicas::InStep,
        ..ROW
    },
    OpDef {
        code: OpCode::If,
        name: "if",
        summary: "The results of the first branch where the predicate is true, else of the second.",
        rule: "Both branches take the captured operands and return results of the same types.",
        operands: Operands::Rest { fixed: &["pred"], rest: "captured", min: 0 },
        bodies: Bodies::Fixed(&[
            BodyDef { name: "true_branch", rule: BRANCH },
            BodyDef { name: "false_branch", rule: BRANCH },
        ]),
        captures: Some(1),
        dtypes: DTypeSet::of(&[DType::Bool]),
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Rounded,
        infer: control::if_else,
        replicas: Replicas::InStep,
        ..ROW
    },
    OpDef {
        code: OpCode::Case,
        name: "case",
        summary: "The results of the branch that the index counts, of the last one where there is none.",
        rule: "All branches take the captured operands and return results of the same types; there is at least one.",
        operands: Operands::Rest { fixed: &["index"], rest: "captured", min: 0 },
        bodies: Bodies::Many(BodyDef { name: "branch", rule: BRANCH }),
        captures: Some(1),
        dtypes: DTypeSet::of(&[DType::I32]),
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Rounded,
        infer: control::case,
        replicas: Replicas::InStep,
        ..ROW
    },
    OpDef {
        code: OpCode::Sort,
        name: "sort",
        summary: "The operands sorted together along a dimension, in the order that the comparator says.",
        rule: "The inputs have one shape, and the results their types. The comparator takes a left and a right scalar of each input and returns whether left comes first.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs")]),
        attrs: &attrs::SORT,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "comparator",
            rule: "two scalars per operand, those of one operand side by side, to one bool",
        }]),
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Step,
        infer: control::sort,
        lower: legalize::sort,
        ..ROW
    },
    OpDef {
        code: OpCode::Map,
        name: "map",
        summary: "What the body makes of the operands' elements at each place.",
        rule: "The inputs have one shape; `dimensions` are all of them, in order. The result has that shape and the element type that the body returns.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs")]),
        attrs: &attrs::DIMENSIONS,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "computation",
            rule: "one scalar per operand to one scalar",
        }]),
        fusibility: Fusibility::Elementwise,
        rounding: Rounding::Rounded,
        infer: control::map,
        lower: legalize::map,
        ..ROW
    },
];
