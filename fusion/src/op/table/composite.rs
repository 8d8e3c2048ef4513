//! Functions with a name, called like an op.

use super::ROW;
use crate::interp;
use crate::op::attrs;
use crate::op::code::OpCode;
use crate::op::def::{Bodies, BodyDef, Fusibility, Numerics, OpDef, Operands, Replicas};
use crate::op::expand;
use crate::op::rules::composite;
use crate::op::sample;

pub(super) const ROWS: &[OpDef] = &[OpDef {
    code: OpCode::Composite,
    name: "composite",
    summary: "What a function with a name makes of the operands.",
    rule: "The decomposition takes the operands; the results have the types that it returns.",
    operands: Operands::Rest { fixed: &[], rest: "input", min: 0 },
    attrs: &attrs::COMPOSITE,
    bodies: Bodies::Fixed(&[BodyDef { name: "decomposition", rule: "the operands' types to the results'" }]),
    fusibility: Fusibility::Opaque,
    numerics: Numerics::Step,
    replicas: Replicas::InStep(interp::composite::in_step),
    infer: composite::composite,
    lower: expand::composite,
    eval: interp::composite::composite,
    sample: sample::composite::composite,
    ..ROW
}];
