//! Replicas at the C boundary: their number, and data that differs between them.

use std::slice;

use fuseline::Tensor;
use fuseline::fusion::Literal;

use super::{FltType, OutTensor, Status, elements_of, guarded, list, type_of};
use crate::call::{Fault, unsupported};
use crate::device;

/// Returns the number of replicas, or what it would be if the engine were opened now.
#[unsafe(no_mangle)]
pub extern "C" fn flt_replicas_asked() -> usize {
    device::replicas_asked()
}

/// Returns the engine's number of replicas.
#[unsafe(no_mangle)]
pub extern "C" fn flt_replicas(count: &mut usize) -> Status {
    guarded(|| {
        *count = device::engine()?.replicas();
        Ok(())
    })
}

/// Makes a value with different elements on each replica. The bytes hold one replica after the
/// other, each in row-major order, and are copied.
#[unsafe(no_mangle)]
pub extern "C" fn flt_upload_replicas(
    ty: &FltType,
    bytes: *const u8,
    len: usize,
    out: &mut OutTensor,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let bytes = unsafe { list(bytes, len) };
        let ty = type_of(ty)?;
        let (engine, size) = (device::engine()?, ty.bytes().0 as usize);
        if size.checked_mul(engine.replicas()) != Some(len) {
            return unsupported(format!(
                "the buffer has {len} bytes, but a value has {size} on each of {} replicas",
                engine.replicas()
            ));
        }
        let part = |replica: usize| {
            Literal::from_bytes(ty.clone(), elements_of(&ty, &bytes[replica * size..][..size]))
        };
        let parts: Result<Vec<Literal>, _> = (0..engine.replicas()).map(part).collect();
        let parts = parts.map_err(|error| Fault::Unsupported(error.to_string()))?;
        out.write(device::stream()?.from_literals(&parts)?);
        Ok(())
    })
}

/// Waits for a value and copies its elements on each replica, one replica after the other. `len`
/// must be the exact size of all.
#[unsafe(no_mangle)]
pub extern "C" fn flt_download_replicas(value: &Tensor, bytes: *mut u8, len: usize) -> Status {
    guarded(|| {
        let parts = value.read_replicas()?;
        let size = value.ty().bytes().0 as usize;
        if size.checked_mul(parts.len()) != Some(len) {
            return unsupported(format!(
                "the buffer has {len} bytes, but a value has {size} on each of {} replicas",
                parts.len()
            ));
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the shim provides `len` writable bytes, which it has written before.
        let room = unsafe { slice::from_raw_parts_mut(bytes, len) };
        for (room, part) in room.chunks_exact_mut(size).zip(&parts) {
            room.copy_from_slice(part.bytes());
        }
        Ok(())
    })
}
