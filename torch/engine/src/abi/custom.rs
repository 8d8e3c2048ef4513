//! User-defined ops, from StableHLO modules.

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the callers are in C++, and owe what `abi` says")]
#![allow(clippy::disallowed_types, reason = "no model checker drives this crate")]

use std::sync::Arc;

use fuseline::Tensor;
use fuseline::fusion::{CustomOp, TensorType};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::abi::{FltType, OutTensor, Status, give, guarded, list};
use crate::call::{Result, unsupported};
use crate::device;

/// Registered ops; the index is the op's number at the C boundary. Entries are never removed.
static OPS: Mutex<Vec<Arc<CustomOp>>> = Mutex::new(Vec::new());

fn op(number: usize) -> Result<Arc<CustomOp>> {
    match OPS.lock().get(number) {
        Some(op) => Ok(op.clone()),
        None => unsupported(format!("custom op {number} is not registered in this process")),
    }
}

/// Registers the `main` function of a StableHLO module, given as text, under a name. Registering
/// the same function again returns the same number.
#[unsafe(no_mangle)]
pub extern "C" fn flt_custom_register(
    name: *const u8,
    name_len: usize,
    text: *const u8,
    text_len: usize,
    number: &mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let name = String::from_utf8_lossy(unsafe { list(name, name_len) });
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let text = String::from_utf8_lossy(unsafe { list(text, text_len) });
        let op = match CustomOp::from_stablehlo(&name, &text) {
            Ok(op) => device::engine()?.register_op(op)?,
            Err(error) => return unsupported(format!("custom op {name}: {error}")),
        };
        let mut ops = OPS.lock();
        *number = ops.iter().position(|known| known.name() == op.name()).unwrap_or(ops.len());
        if *number == ops.len() {
            ops.push(op);
        }
        Ok(())
    })
}

/// Returns the numbers of operands and results of an op.
#[unsafe(no_mangle)]
pub extern "C" fn flt_custom_arity(number: usize, operands: &mut usize, results: &mut usize) -> Status {
    guarded(|| {
        let op = op(number)?;
        (*operands, *results) = (op.operands().len(), op.results().len());
        Ok(())
    })
}

/// Returns the type of an operand or a result. The caller has room for eight sizes; larger ranks
/// fail.
#[unsafe(no_mangle)]
pub extern "C" fn flt_custom_type(
    number: usize,
    is_result: bool,
    at: usize,
    dims: &mut [i64; 8],
    ty: &mut FltType,
) -> Status {
    guarded(|| {
        let op = op(number)?;
        let types: &[TensorType] = if is_result { op.results() } else { op.operands() };
        let Some(of) = types.get(at) else {
            return unsupported(format!("{} has no operand or result {at}", op.name()));
        };
        if of.rank() > dims.len() {
            return unsupported(format!(
                "{} has a tensor of {} dimensions, more than 8",
                op.name(),
                of.rank()
            ));
        }
        for (to, &from) in dims.iter_mut().zip(of.dims()) {
            *to = from as i64;
        }
        *ty = FltType { dtype: u32::from(of.dtype().code()), rank: of.rank() as u32, dims: dims.as_ptr() };
        Ok(())
    })
}

/// Records a call with as many operands as the op takes. There is room for all of its results.
#[unsafe(no_mangle)]
pub extern "C" fn flt_custom_call(
    number: usize,
    operands: *const Tensor,
    operand_count: usize,
    results: *mut OutTensor,
    room: usize,
) -> Status {
    guarded(|| {
        let op = op(number)?;
        // SAFETY: the shim passes that many readable values, which live through the call.
        let operands: SmallVec<[&Tensor; 4]> = unsafe { list(operands, operand_count) }.iter().collect();
        let made = device::stream()?.call(&op, &operands)?;
        if made.len() != room {
            return unsupported(format!("{} has {} results, not {room}", op.name(), made.len()));
        }
        // SAFETY: the shim provides that many writable places, which hold no value.
        unsafe { give(results, made.into_iter()) };
        Ok(())
    })
}
