//! Functions with a name.

use crate::error::{Fault, OpError};
use crate::graph::Body;
use crate::op::call::{Call, Results};
use crate::op::def::Effect;
use crate::shape::TensorType;

/// An ordered op of the body or of a body in it, which would lose its place in the program inside a composite.
fn ordered(body: &Body) -> Option<&'static str> {
    body.graph().nodes().iter().map(|node| node.signature()).find_map(|signature| {
        match signature.def().effect {
            Effect::Ordered => Some(signature.def().name),
            Effect::Pure => signature.bodies().iter().find_map(|body| ordered(body)),
        }
    })
}

/// Types in a list, for messages.
fn listed<'a>(types: impl Iterator<Item = &'a TensorType>) -> String {
    let types: Vec<String> = types.map(TensorType::to_string).collect();
    format!("({})", types.join(", "))
}

/// The operands have the types of the body's parameters, the results those of its returns. The name says nothing about
/// types; it tells people what the body is.
pub(in crate::op) fn composite(call: &Call<'_>) -> Result<Results, OpError> {
    let body = &call.bodies[0];
    let name = call.attr().name(0);
    if call.operands != body.graph().params() {
        return Err(call.error(
            Fault::Body,
            format!("{name} was given {}", listed(call.operands.iter())),
            format!("it takes {}", listed(body.graph().params().iter())),
        ));
    }
    if let Some(op) = ordered(body) {
        return Err(call.error(
            Fault::Body,
            format!("{name} contains {op}, which is ordered with the other ops of its stream"),
            "what a composite consists of has no effects",
        ));
    }
    Ok(body.return_types().cloned().collect())
}
