//! Ops whose result elements depend on the operand elements at the same position.

use fuseline_fusion::Literal;
use fuseline_fusion::element::{Elements, Store, mask};

use super::kernel::Kernel;
use super::{EvalCall, EvalError, fast_f32};

/// All elementwise ops except `bitcast_convert`: applies the kernel to each element. A scalar
/// operand (a `pred` of `select`, a bound of `clamp`) applies to all elements.
///
/// # Errors
/// None.
pub(super) fn map(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let kernel = Kernel::of(call.signature).expect("bug: an elementwise row without arithmetic");
    let result = fast_f32::map(kernel, call).unwrap_or_else(|| map_each(kernel, call));
    Ok(vec![result])
}

/// The general path.
pub(super) fn map_each(kernel: Kernel, call: &EvalCall<'_>) -> Literal {
    let mut operands: [Option<(Elements<'_>, usize)>; 3] = [None; 3];
    for (slot, operand) in operands.iter_mut().zip(call.operands) {
        *slot = Some((Elements::of(operand), usize::from(operand.ty().rank() > 0)));
    }
    let element = |index: usize| {
        operands.map(|operand| operand.map_or(0, |(elements, step)| elements.get(index * step)))
    };
    let ty = call.result().clone();
    let results = (0..ty.elems().get()).map(|index| kernel.apply(element(index)));
    Store::collect(ty, results).finish()
}

/// `bitcast_convert`: the same bits as another element type. A wide element consists of its narrow
/// parts, lowest bits first. An element of fewer than 8 bits contributes only its own bits.
///
/// # Errors
/// None.
pub(super) fn bitcast_convert(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let operand = call.operand(0);
    let ty = call.result().clone();
    let elements = Elements::of(operand);
    let (from, to) = (operand.dtype(), ty.dtype());
    if from.bits() >= 8 && to.bits() >= 8 {
        let literal = Literal::from_bytes(ty, operand.bytes().to_vec());
        return Ok(vec![literal.expect("bug: a bitcast changed the number of bytes")]);
    }
    let store = if from.bits() >= to.bits() {
        let parts = (from.bits() / to.bits()) as usize;
        let part =
            |index: usize| (elements.get(index / parts) >> ((index % parts) as u32 * to.bits())) & mask(to);
        let count = ty.elems().get();
        Store::collect(ty, (0..count).map(part))
    } else {
        let parts = (to.bits() / from.bits()) as usize;
        let whole = |index: usize| {
            (0..parts).fold(0, |bits, part| {
                bits | elements.get(index * parts + part) << (part as u32 * from.bits())
            })
        };
        let count = ty.elems().get();
        Store::collect(ty, (0..count).map(whole))
    };
    Ok(vec![store.finish()])
}
