//! User-defined ops: named functions.

use std::sync::Arc;

use fuseline_fusion::Literal;

use super::{EvalCall, EvalError, JointCall, run_body, run_body_replicated};

/// `composite`: runs its body.
///
/// # Errors
/// As the ops of the body.
pub(super) fn composite(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let results = run_body(call.arithmetic.in_order(), call.body(0), call.operands)?;
    Ok(results.into_iter().map(Arc::unwrap_or_clone).collect())
}

/// `composite` on several replicas.
///
/// # Errors
/// As the ops of the body.
pub(super) fn in_step(call: &JointCall<'_>) -> Result<Vec<Vec<Literal>>, EvalError> {
    let results =
        run_body_replicated(call.arithmetic.in_order(), &call.signature.bodies()[0], call.operands)?;
    Ok(results.into_iter().map(|each| each.into_iter().map(Arc::unwrap_or_clone).collect()).collect())
}
