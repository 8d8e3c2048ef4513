//! Values: made from host data, retained, replaced.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use engine::embed::{StreamHandle, ValueHandle};
use engine::fusion::Scalar;

use crate::attrs::literal;
use crate::callback::{User, fuseline_free_fn};
use crate::error::{Fault, Result, fuseline_error, guard};
use crate::raw::{given, list, put};
use crate::session::{fuseline_session, fuseline_stream, fuseline_value, session};
use crate::site::{fuseline_site, site};
use crate::types::{dtype, fuseline_dtype, fuseline_tensor, fuseline_type};

/// # Safety
/// The tensor's data is null or `size` readable bytes that live for `'a`.
unsafe fn bytes<'a>(tensor: &fuseline_tensor) -> Result<&'a [u8]> {
    // SAFETY: the caller passes a tensor with `size` bytes of data, or null data.
    unsafe { list(tensor.data, tensor.size, "the tensor's data") }
}

/// Makes a value from data, the same on every replica. The data is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_upload(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    tensor: Option<&fuseline_tensor>,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_upload", || {
        let session = self::session(session)?;
        let tensor = given(tensor, "tensor")?;
        // SAFETY: the caller passes a tensor with `size` bytes of data, or null data.
        let bytes = unsafe { bytes(tensor) }?;
        let ty = tensor.r#type.read()?;
        put(value, "value", || Ok(session.upload(StreamHandle::from_raw(stream), &ty, bytes)?.to_raw()))
    })
}

/// Like fuseline_upload, with different data on each replica: one tensor for each, all of one type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_upload_per_replica(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    tensors: *const fuseline_tensor,
    count: usize,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_upload_per_replica", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes null or that many elements (see the header).
        let tensors = unsafe { list(tensors, count, "tensors") }?;
        let first = given(tensors.first(), "the first tensor")?.r#type.read()?;
        for tensor in tensors {
            let ty = tensor.r#type.read()?;
            if ty != first {
                return Err(Fault::invalid(format!(
                    "the tensors of all replicas must have the same type, not {first} and {ty}"
                )));
            }
        }
        // SAFETY: the caller passes a tensor with `size` bytes of data, or null data.
        let parts = tensors.iter().map(|tensor| unsafe { bytes(tensor) }).collect::<Result<Vec<_>>>()?;
        put(value, "value", || {
            Ok(session.upload_per_replica(StreamHandle::from_raw(stream), &first, &parts)?.to_raw())
        })
    })
}

/// Makes a value from memory that the device may use in place. The memory must not change until
/// `free` is called with `user`, once and on any thread, also if this function fails. XLA's CPU
/// client does not copy memory that is aligned to 64 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_upload_shared(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    tensor: Option<&fuseline_tensor>,
    user: *mut c_void,
    free: fuseline_free_fn,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_upload_shared", || {
        let user = User::new(user, free);
        let session = self::session(session)?;
        let tensor = given(tensor, "tensor")?;
        let ty = tensor.r#type.read()?;
        // SAFETY: the caller guarantees it, as for `fuseline_upload`. Missing data is refused
        // before the value is made.
        let _ = unsafe { bytes(tensor) }?;
        put(value, "value", || {
            let (stream, data) = (StreamHandle::from_raw(stream), (tensor.data, tensor.size));
            // SAFETY: the caller guarantees that the memory stays valid and unchanged until `free`
            // is called.
            let made = unsafe { session.upload_foreign(stream, &ty, data, move || drop(user)) };
            Ok(made?.to_raw())
        })
    })
}

/// Makes a constant: its data is compiled in and part of its region's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_constant(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    tensor: Option<&fuseline_tensor>,
    site: Option<&fuseline_site>,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_constant", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes a tensor with `size` bytes of data, or null data.
        let data = unsafe { literal(given(tensor, "tensor")?, "the tensor's data") }?;
        put(value, "value", || {
            Ok(session.constant(StreamHandle::from_raw(stream), data, self::site(site))?.to_raw())
        })
    })
}

/// Makes a lifted scalar: a value without dimensions that is passed to each execution and is part
/// of no key. The number is rounded to the element type, which must not be complex.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_scalar(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    dtype: fuseline_dtype,
    number: f64,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_scalar", || {
        let session = self::session(session)?;
        let dtype = self::dtype(dtype)?;
        let scalar = Scalar::from_f64(dtype, number).ok_or_else(|| {
            Fault::invalid(format!("a scalar of {dtype} cannot be lifted; make it a constant instead"))
        })?;
        put(value, "value", || Ok(session.scalar(StreamHandle::from_raw(stream), scalar)?.to_raw()))
    })
}

/// Like fuseline_scalar, for an integer, which a double might not hold. A float type gets the
/// nearest.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_scalar_integer(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    dtype: fuseline_dtype,
    number: i64,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_scalar_integer", || {
        let session = self::session(session)?;
        let dtype = self::dtype(dtype)?;
        let scalar = match dtype {
            engine::DType::I64 => Some(Scalar::new(number)),
            // Two's complement: negative numbers wrap around, as in a conversion.
            engine::DType::U64 => Some(Scalar::new(number as u64)),
            _ => Scalar::from_f64(dtype, number as f64),
        };
        let scalar = scalar.ok_or_else(|| {
            Fault::invalid(format!("a scalar of {dtype} cannot be lifted; make it a constant instead"))
        })?;
        put(value, "value", || Ok(session.scalar(StreamHandle::from_raw(stream), scalar)?.to_raw()))
    })
}

/// Makes a value without data. On a stream it is filled later; in a body it is a parameter, and in
/// a trace an input.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_placeholder(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    r#type: Option<&fuseline_type>,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_placeholder", || {
        let session = self::session(session)?;
        let ty = given(r#type, "type")?.read()?;
        put(value, "value", || Ok(session.placeholder(StreamHandle::from_raw(stream), &ty)?.to_raw()))
    })
}

/// Provides the data of a placeholder, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fill(
    session: Option<&fuseline_session>,
    placeholder: fuseline_value,
    data: *const u8,
    size: usize,
) -> *mut fuseline_error {
    guard("fuseline_fill", || {
        // SAFETY: the caller passes null or that many elements (see the header).
        let bytes = unsafe { list(data, size, "data") }?;
        Ok(self::session(session)?.fill(ValueHandle::from_raw(placeholder), bytes)?)
    })
}

/// Adds a reference to a value.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_retain(
    session: Option<&fuseline_session>,
    value: fuseline_value,
) -> *mut fuseline_error {
    guard("fuseline_retain", || Ok(self::session(session)?.retain(ValueHandle::from_raw(value))?))
}

/// Releases a reference. With the last one the id becomes invalid, and the value dies at this
/// position of its stream's program.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_release(
    session: Option<&fuseline_session>,
    value: fuseline_value,
) -> *mut fuseline_error {
    guard("fuseline_release", || Ok(self::session(session)?.release(ValueHandle::from_raw(value))?))
}

/// In-place write: gives an id another value of the same type. Both ids stay valid, and `with`
/// keeps its own references. Ops that were recorded before keep the old value.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_replace(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    with: fuseline_value,
) -> *mut fuseline_error {
    guard("fuseline_replace", || {
        self::session(session)?.replace(ValueHandle::from_raw(value), ValueHandle::from_raw(with))?;
        Ok(())
    })
}

/// Like fuseline_replace, with a value of any type, as when a storage is resized.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_rebind(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    with: fuseline_value,
) -> *mut fuseline_error {
    guard("fuseline_rebind", || {
        self::session(session)?.rebind(ValueHandle::from_raw(value), ValueHandle::from_raw(with))?;
        Ok(())
    })
}

/// The number of times that an id was replaced.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_version_of(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    version: Option<&mut MaybeUninit<u64>>,
) -> *mut fuseline_error {
    guard("fuseline_version_of", || {
        let session = self::session(session)?;
        put(version, "version", || Ok(session.version(ValueHandle::from_raw(value))?))
    })
}

/// Element type and shape of the current value of an id.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_type_of(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    r#type: Option<&mut MaybeUninit<fuseline_type>>,
) -> *mut fuseline_error {
    guard("fuseline_type_of", || {
        let session = self::session(session)?;
        put(r#type, "type", || Ok(fuseline_type::of(&session.ty(ValueHandle::from_raw(value))?)))
    })
}
