//! STUB.

use super::{EvalCall, EvalError};
use crate::literal::Literal;

/// STUB.
///
/// # Errors
/// STUB.
pub fn broadcast_in_dim(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn reshape(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn transpose(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn slice(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn concatenate(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn pad(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn reverse(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn dynamic_slice(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn dynamic_update_slice(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}
