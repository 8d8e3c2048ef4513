//! Values and the host: readiness, reads, buffers of the plugin.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use engine::Literal;
use engine::embed::{BorrowedBuffer, Session, StreamHandle, ValueHandle};

use crate::callback::{User, fuseline_free_fn};
use crate::error::{Fault, Result, fuseline_error, guard, guarded};
use crate::raw::{given, list, put, room, timeout};
use crate::session::{fuseline_session, fuseline_stream, fuseline_value, handles, session};
use crate::types::{fuseline_tensor, fuseline_type};

/// Called when a value is ready (`error` is null) or has failed. The error lives through the call.
pub type fuseline_ready_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, value: fuseline_value, error: *const fuseline_error)>;

/// Receives a value's data, or an error and null. Both live through the call.
pub type fuseline_data_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        value: fuseline_value,
        tensor: *const fuseline_tensor,
        error: *const fuseline_error,
    ),
>;

/// Memory for a value's data.
#[repr(C)]
pub struct fuseline_room {
    /// The start of the memory.
    pub data: *mut u8,
    /// Its size in bytes, which must be exactly the size of the value.
    pub size: usize,
}

fn error_of<T>(outcome: &Result<T, engine::Error>) -> Option<fuseline_error> {
    outcome.as_ref().err().map(fuseline_error::from)
}

fn pointer(error: Option<&fuseline_error>) -> *const fuseline_error {
    error.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Whether it is known if a value can be computed, 1 or 0. Never waits and has no side effects.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_is_decided(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    decided: Option<&mut MaybeUninit<u32>>,
) -> *mut fuseline_error {
    guard("fuseline_is_decided", || {
        let session = self::session(session)?;
        put(decided, "decided", || Ok(u32::from(session.is_resolved(ValueHandle::from_raw(value))?)))
    })
}

/// Starts the computation of a value and calls `callback` when it is ready or has failed, on any
/// thread, or at once if it already is. The callback may record and release; calls that wait are
/// refused there. `user` is freed after the call, and also if this function fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_on_ready(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    callback: fuseline_ready_fn,
    user: *mut c_void,
    free: fuseline_free_fn,
) -> *mut fuseline_error {
    guard("fuseline_on_ready", || {
        let user = User::new(user, free);
        let callback = given(callback, "callback")?;
        let tell = move |value: ValueHandle, outcome: engine::Result<()>| {
            let error = error_of(&outcome);
            // SAFETY: the caller passed a function that accepts `user`, which is alive (CANON-3).
            unsafe { callback(user.data(), value.to_raw(), pointer(error.as_ref())) };
        };
        Ok(self::session(session)?.on_ready(ValueHandle::from_raw(value), tell)?)
    })
}

/// Waits until a value is computed, or for this many nanoseconds; all ones means no limit. Copies
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_wait(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    nanoseconds: u64,
) -> *mut fuseline_error {
    guard("fuseline_wait", || {
        Ok(self::session(session)?.wait(ValueHandle::from_raw(value), timeout(nanoseconds))?)
    })
}

/// Copies a value's data on the first replica. Waits until it is computed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_read(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    data: *mut u8,
    size: usize,
) -> *mut fuseline_error {
    guard("fuseline_read", || {
        let found = self::session(session)?.read(ValueHandle::from_raw(value))?;
        // SAFETY: the caller passes null or memory of that size that nothing else uses.
        unsafe { hand_out(&[found], &[fuseline_room { data, size }]) }
    })
}

/// # Safety
/// Each room is null or as many bytes as it says, which nobody else uses.
unsafe fn hand_out(data: &[Literal], rooms: &[fuseline_room]) -> Result<()> {
    if data.len() != rooms.len() {
        return Err(Fault::invalid(format!("{} rooms were given for {} values", rooms.len(), data.len())));
    }
    let mut places = Vec::with_capacity(rooms.len());
    for (data, room) in data.iter().zip(rooms) {
        if data.bytes().len() != room.size {
            let (ty, size, given) = (data.ty(), data.bytes().len(), room.size);
            return Err(Fault::invalid(format!("{ty} takes {size} bytes, but the room has {given}")));
        }
        // SAFETY: the caller passes null or memory of that size that nothing else uses.
        places.push(unsafe { self::room(room.data, room.size, "room") }?);
    }
    // Write to none before all are known to fit (CAPI-4).
    for (data, place) in data.iter().zip(places) {
        place.write_copy_of_slice(data.bytes());
    }
    Ok(())
}

/// Copies the data of several values, in order. All of them are started before it waits for the
/// first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_read_all(
    session: Option<&fuseline_session>,
    values: *const fuseline_value,
    rooms: *const fuseline_room,
    count: usize,
) -> *mut fuseline_error {
    guard("fuseline_read_all", || {
        // SAFETY: the caller passes null or that many elements (see the header).
        let (values, rooms) = unsafe { (list(values, count, "values")?, list(rooms, count, "rooms")?) };
        let data = self::session(session)?.read_all(handles(values))?;
        // SAFETY: the caller passes null or memory of that size that nothing else uses.
        unsafe { hand_out(&data, rooms) }
    })
}

/// Copies a value's data on each replica, in order. There must be one room for each replica.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_read_replicas(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    rooms: *const fuseline_room,
    count: usize,
) -> *mut fuseline_error {
    guard("fuseline_read_replicas", || {
        // SAFETY: the caller passes null or that many elements (see the header).
        let rooms = unsafe { list(rooms, count, "rooms") }?;
        let data = self::session(session)?.read_replicas(ValueHandle::from_raw(value))?;
        // SAFETY: the caller passes null or memory of that size that nothing else uses.
        unsafe { hand_out(&data, rooms) }
    })
}

/// Starts to read a value. `callback` gets its data, as described for fuseline_on_ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_read_async(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    callback: fuseline_data_fn,
    user: *mut c_void,
    free: fuseline_free_fn,
) -> *mut fuseline_error {
    guard("fuseline_read_async", || {
        let user = User::new(user, free);
        let callback = given(callback, "callback")?;
        let tell = move |value: ValueHandle, outcome: engine::Result<Literal>| {
            let error = error_of(&outcome);
            let tensor = outcome.as_ref().ok().map(|data| fuseline_tensor {
                r#type: fuseline_type::of(data.ty()),
                data: data.bytes().as_ptr(),
                size: data.bytes().len(),
            });
            let tensor = tensor.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the caller passed a function that accepts `user`, which is alive (CANON-3).
            unsafe { callback(user.data(), value.to_raw(), tensor, pointer(error.as_ref())) };
        };
        Ok(self::session(session)?.read_async(ValueHandle::from_raw(value), tell)?)
    })
}

/// A buffer of the plugin that is lent to the caller.
pub struct fuseline_lent {
    _lent: BorrowedBuffer,
}

/// Lends a value's PJRT_Buffer. While it is lent, the value lives and its memory is not reused.
/// Waits until the op that makes the value is launched, but not for the data: order reads after the
/// buffer's own ready event.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_lend(
    session: Option<&fuseline_session>,
    value: fuseline_value,
    lent: Option<&mut MaybeUninit<*mut fuseline_lent>>,
    buffer: Option<&mut MaybeUninit<*mut c_void>>,
) -> *mut fuseline_error {
    guard("fuseline_lend", || {
        let session: &Session = self::session(session)?;
        let (lent, buffer) = (given(lent, "lent")?, given(buffer, "buffer")?);
        let made = session.lend(ValueHandle::from_raw(value))?;
        buffer.write(made.as_ptr()?);
        lent.write(Box::into_raw(Box::new(fuseline_lent { _lent: made })));
        Ok(())
    })
}

/// Returns a lent buffer; null is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_lent_free(lent: Option<Box<fuseline_lent>>) {
    guarded((), || drop(lent));
}

/// Makes a value of a PJRT_Buffer of the engine's own client. The buffer must be alive, have the
/// plugin's default layout, and belong to the caller. The session destroys it. If this fails, it
/// still belongs to the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_adopt_buffer(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    buffer: *mut c_void,
    value: Option<&mut MaybeUninit<fuseline_value>>,
) -> *mut fuseline_error {
    guard("fuseline_adopt_buffer", || {
        let session = self::session(session)?;
        if buffer.is_null() {
            return Err(Fault::invalid("buffer is null"));
        }
        put(value, "value", || {
            // SAFETY: the caller passes a live buffer of this client that nothing else owns.
            Ok(unsafe { session.adopt_buffer(StreamHandle::from_raw(stream), buffer) }?.to_raw())
        })
    })
}
