//! Functions with a name.

use crate::error::{Fault, OpError};
use crate::op::def::{Call, Results};
use crate::shape::listed;

/// The operands have the types of the body's parameters, the results those of its returns. The name says nothing about
/// types; it tells people what the body is.
pub(in crate::op) fn composite(call: &Call<'_>) -> Result<Results, OpError> {
    let body = &call.bodies[0];
    if call.operands == body.graph().params() {
        return Ok(body.return_types().cloned().collect());
    }
    let name = call.attr().name(0);
    let (given, wanted) = (listed(call.operands), listed(body.graph().params()));
    Err(call.error(Fault::Body, format!("{name} was given {given}"), format!("it takes {wanted}")))
}
