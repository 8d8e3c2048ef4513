//! User-defined ops: named functions.

use crate::error::{OpError, OpErrorKind};
use crate::ir::Results;
use crate::op::def::Call;
use crate::shape::listed;

/// Operands and results have the types of the body's parameters and returns. The name has no effect
/// on types; it is for people.
pub(in crate::op) fn composite(call: &Call<'_>) -> Result<Results, OpError> {
    let body = &call.bodies[0];
    if call.operands == body.graph().params() {
        return Ok(body.return_types().cloned().collect());
    }
    let name = call.attr().name(0);
    let (given, wanted) = (listed(call.operands), listed(body.graph().params()));
    Err(call.error(
        OpErrorKind::Body,
        format!("{name} was called with {given}"),
        format!("it takes {wanted}"),
    ))
}
