//! STUB.

use super::{EvalCall, EvalError};
use crate::literal::Literal;

/// STUB.
///
/// # Errors
/// STUB.
pub fn constant(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn iota(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}

/// STUB.
///
/// # Errors
/// STUB.
pub fn rng_bit_generator(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Err(EvalError::Unspecified { op: call.signature.def().name, what: "the reference implementation" })
}
