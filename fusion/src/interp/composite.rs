//! Functions with a name.

use std::sync::Arc;

use super::{EvalCall, EvalError, run_body};
use crate::literal::Literal;

/// `composite`: its body.
///
/// # Errors
/// As the ops of the body.
pub fn composite(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let results = run_body(call.body(0), call.operands)?;
    Ok(results.into_iter().map(Arc::unwrap_or_clone).collect())
}
