//! STUB.

use super::{EvalCall, EvalError};
use crate::literal::Literal;

/// STUB.
///
/// # Errors
/// STUB.
pub fn reduce(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn reduce_window(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn select_and_scatter(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}
