//! Calls to handlers.

use fuseline_fusion::handler::{self, OperandView, ResultView};
use fuseline_fusion::op::attrs::custom_call_at as at;
use fuseline_fusion::{Literal, TensorType};

use super::{EvalCall, EvalError};

/// `custom_call`: runs the handler.
///
/// # Errors
/// If the handler fails, or the target is a function of a plugin.
pub(super) fn custom_call(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (name, config) = (call.attr().name(at::TARGET), call.attr().config(at::CONFIG));
    if handler::target(name).is_some_and(handler::Target::is_of_plugin) {
        return Err(EvalError::Unspecified {
            op: "custom_call",
            what: "what a function of the plugin computes",
        });
    }
    let operands: Vec<OperandView<'_>> =
        call.operands.iter().map(|data| OperandView { ty: data.ty().clone(), bytes: data.bytes() }).collect();
    let types = call.signature.results();
    let zeros = |ty: &TensorType| match Literal::try_zeros(ty.clone()) {
        Some(zeros) => Ok(zeros.into_bytes()),
        None => Err(EvalError::TooLarge { op: "custom_call", ty: ty.clone() }),
    };
    let mut data: Vec<Vec<u8>> = types.iter().map(zeros).collect::<Result<_, _>>()?;
    let mut results: Vec<ResultView<'_>> =
        types.iter().zip(&mut data).map(|(ty, bytes)| ResultView { ty: ty.clone(), bytes }).collect();
    handler::run(name, &operands, &mut results, config).map_err(EvalError::Handler)?;
    let literal = |(ty, bytes): (&TensorType, _)| {
        Literal::from_bytes(ty.clone(), bytes).expect("bug: a result of a handler has the wrong size")
    };
    Ok(types.iter().zip(data).map(literal).collect())
}
