//! Named functions that are called like ops: composites, and host functions.

use super::ROW;
use crate::dtype::DTypeSet;
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Fusibility, OpDef, Operands, Replicas, Rounding};
use crate::op::infer::{composite, handler};
use crate::op::legalize;

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::Composite,
        name: "composite",
        summary: "The results of a named function, which the decomposition defines.",
        rule: "The decomposition takes the operands. The results have the types that it returns.",
        operands: Operands::Rest { fixed: &[], rest: "input", min: 0 },
        attrs: &attrs::COMPOSITE,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "decomposition",
            rule: "takes the operands and returns the results",
        }]),
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Step,
        replicas: Replicas::InStep,
        infer: composite::composite,
        lower: legalize::composite,
        ..ROW
    },
    OpDef {
        code: OpCode::CustomCall,
        name: "custom_call",
        summary: "The results of a handler, which is a function on the host that is registered under a name.",
        rule: "The target is registered. It decides which operands it accepts and which types the \
               results have. All elements are whole bytes.",
        operands: Operands::Rest { fixed: &[], rest: "input", min: 0 },
        attrs: &attrs::CUSTOM_CALL,
        dtypes: DTypeSet::WHOLE_BYTES,
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Step,
        infer: handler::custom_call,
        ..ROW
    },
];
