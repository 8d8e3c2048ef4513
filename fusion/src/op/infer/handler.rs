//! Calls to handlers.

use crate::dtype::DTypeSet;
use crate::error::{OpError, OpErrorKind};
use crate::handler;
use crate::ir::Results;
use crate::op::attrs::custom_call_at as at;
use crate::op::def::Call;
use crate::shape::{TensorType, listed};

/// Checks that the target is registered and accepts the operands; infers its results. The
/// side-effect attribute must be the target's.
pub(in crate::op) fn custom_call(call: &Call<'_>) -> Result<Results, OpError> {
    let (name, config) = (call.attr().name(at::TARGET), call.attr().config(at::CONFIG));
    let Some(target) = handler::target(name) else {
        let known = match handler::target_names().as_slice() {
            [] => "none is".to_owned(),
            names => format!("these are: {}", names.join(", ")),
        };
        return Err(call
            .error(OpErrorKind::Attribute, format!("no handler is registered as {name}"), known)
            .hint(
                "register it with handler::register, or allow a function of the plugin with handler::allow",
            ));
    };
    let stated = call.attr().bool(at::EFFECT);
    if stated != target.has_side_effect() {
        return Err(call.error(
            OpErrorKind::Attribute,
            format!("has_side_effect is {stated}"),
            format!("the handler {name} is registered with {}", target.has_side_effect()),
        ));
    }
    let whole = |ty: &&TensorType| !DTypeSet::WHOLE_BYTES.contains(ty.dtype());
    let narrow = |ty: &TensorType| {
        let what = format!("{name} takes or returns {ty}");
        call.error(OpErrorKind::DType, what, "handlers support only elements of whole bytes")
            .hint("convert elements of 2 and 4 bits to i8 or u8 first")
    };
    if let Some(ty) = call.operands.iter().find(whole) {
        return Err(narrow(ty));
    }
    let results = target.results(call.operands, config).map_err(|problem| {
        let given = format!("{name} was given {} {config:?}", listed(call.operands));
        call.error(OpErrorKind::Shape, given, problem)
    })?;
    match results.iter().find(whole) {
        Some(ty) => Err(narrow(ty)),
        None => Ok(results.into()),
    }
}
