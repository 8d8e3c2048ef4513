//! Replicas at the border: how many there are, and data that is each one's own.

use std::slice;

use fuseline::Tensor;
use fuseline::fusion::Literal;

use super::{FltType, OutTensor, Status, elements_of, guarded, list, type_of};
use crate::call::{Fault, unsupported};
use crate::device;

/// How many replicas there are, or would be if the engine were opened now.
#[unsafe(no_mangle)]
pub extern "C" fn flt_replicas_asked() -> usize {
    device::replicas_asked()
}

/// How many replicas the engine has.
#[unsafe(no_mangle)]
pub extern "C" fn flt_replicas(count: &mut usize) -> Status {
    guarded(|| {
        *count = device::engine()?.replicas();
        Ok(())
    })
}

/// A value with elements of its own on each replica: theirs stand one after the other, each in
/// row-major order; the bytes are copied.
#[unsafe(no_mangle)]
pub extern "C" fn flt_upload_replicas(
    ty: &FltType,
    bytes: *const u8,
    len: usize,
    out: &mut OutTensor,
) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
        let bytes = unsafe { list(bytes, len) };
        let ty = type_of(ty)?;
        let (engine, size) = (device::engine()?, ty.bytes().0 as usize);
        if size.checked_mul(engine.replicas()) != Some(len) {
            return unsupported(format!(
                "{len} bytes for a value of {size} on each of {} replicas",
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

/// Waits for a value and copies its elements on each replica, one after the other; there is just
/// room for all of them.
#[unsafe(no_mangle)]
pub extern "C" fn flt_download_replicas(value: &Tensor, bytes: *mut u8, len: usize) -> Status {
    guarded(|| {
        let parts = value.read_replicas()?;
        let size = value.ty().bytes().0 as usize;
        if size.checked_mul(parts.len()) != Some(len) {
            return unsupported(format!(
                "{len} bytes for a value of {size} on each of {} replicas",
                parts.len()
            ));
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: holds because the shim gives room for so many bytes, which it has written before.
        let room = unsafe { slice::from_raw_parts_mut(bytes, len) };
        for (room, part) in room.chunks_exact_mut(size).zip(&parts) {
            room.copy_from_slice(part.bytes());
        }
        Ok(())
    })
}
