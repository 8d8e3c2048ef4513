//! Ops with sizes as operands, run as static ops with these sizes as attributes.

use std::sync::Arc;

use fuseline_fusion::element::{Elements, Store, from_int, to_int};
use fuseline_fusion::op::dims::{twin, twin_attrs};
use fuseline_fusion::{DType, Literal, Signature};

use super::{EvalCall, EvalError};

/// The integers of an operand, clamped to 64 bits.
pub(super) fn integers(literal: &Literal) -> Vec<i64> {
    let elements = Elements::of(literal);
    let element = |index| to_int(literal.dtype(), elements.get(index));
    let within = |value: i128| value.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    (0..elements.len()).map(|index| within(element(index))).collect()
}

/// All ops with a twin.
///
/// # Errors
/// If the operands do not give the recorded shape, and as the static op.
pub(super) fn dynamic(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let checked = call.signature.call();
    let (op, shared) = twin(call.signature.op());
    let sizes: Vec<Vec<i64>> = call.operands[shared..].iter().map(|data| integers(data)).collect();
    let wrong = |what: String| {
        let names = (shared..call.operands.len()).map(|index| checked.name(index));
        let said: Vec<String> = names.zip(&sizes).map(|(name, size)| format!("{name} is {size:?}")).collect();
        EvalError::Sizes {
            op: call.signature.def().name,
            given: format!("{}, {what}", said.join(", ")),
            recorded: call.result().clone(),
        }
    };
    let attrs = twin_attrs(&checked, &sizes).ok_or_else(|| wrong("which is no shape".to_owned()))?;
    let operands: &[Arc<Literal>] = &call.operands[..shared];
    let types = &call.signature.operands()[..shared];
    let signature = Signature::infer(op, attrs, &[], types).map_err(|error| wrong(format!("but {error}")))?;
    if signature.results() != call.signature.results() {
        return Err(wrong(format!("which gives {}", signature.results()[0])));
    }
    super::call(&signature, operands)
}

/// `get_dimension_size`.
///
/// # Errors
/// None.
pub(super) fn get_dimension_size(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let size = call.operand(0).dims()[call.attr().int(0) as usize];
    Ok(vec![Store::filled(call.result().clone(), from_int(DType::I32, size.into())).finish()])
}
