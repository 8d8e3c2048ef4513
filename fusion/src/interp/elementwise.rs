//! STUB.

use super::{EvalCall, EvalError};
use crate::literal::Literal;

/// STUB.
///
/// # Errors
/// STUB.
pub fn unary(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn binary(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn compare(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn select(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn clamp(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn convert(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn bitcast_convert(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn reduce_precision(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}
