//! Ops that run their bodies.

use super::ROW;
use crate::dtype::{DType, DTypeSet};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Fusibility, OpDef, OperandGroup, Operands, Replicas, Rounding};
use crate::op::infer::control;
use crate::op::legalize;

/// A branch of `if` or `case`.
const BRANCH: &str = "takes the captured operands and returns the results";

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::While,
        name: "while",
        summary: "The carried values after a loop that applies the body while the condition is true.",
        rule: "The condition takes the carried values and returns a bool. The body takes and \
               returns the carried values. The results have their types.",
        operands: Operands::Groups(&[OperandGroup::Many("operand")]),
        bodies: Bodies::Fixed(&[
            BodyDef { name: "cond", rule: "takes the carried values and returns one bool" },
            BodyDef {
                name: "body",
                rule: "takes the carried values and returns their next values, of the same types",
            },
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
        summary: "The results of the first branch if the predicate is true, otherwise of the second.",
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
        summary: "The results of branch number `index`, or of the last branch if the index is out of range.",
        rule: "There is at least one branch. All branches take the captured operands and return \
               results of the same types.",
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
        summary: "The operands sorted together along a dimension by the comparator.",
        rule: "All inputs have the same shape, and the results have their types. The comparator \
               takes a left and a right scalar of each input and returns whether the left ones \
               come first.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs")]),
        attrs: &attrs::SORT,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "comparator",
            rule: "takes two scalars per operand, those of one operand next to each other, and \
                   returns one bool",
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
        summary: "The result of the body for the operands' elements at each position.",
        rule: "All inputs have the same shape. `dimensions` lists all dimensions in order. The \
               result has that shape and the element type that the body returns.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs")]),
        attrs: &attrs::DIMENSIONS,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "computation",
            rule: "takes one scalar per operand and returns one scalar",
        }]),
        fusibility: Fusibility::Elementwise,
        rounding: Rounding::Rounded,
        infer: control::map,
        lower: legalize::map,
        ..ROW
    },
];
