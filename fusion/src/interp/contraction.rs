//! STUB.

use super::{EvalCall, EvalError};
use crate::literal::Literal;

/// STUB.
///
/// # Errors
/// STUB.
pub fn dot_general(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn convolution(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}
