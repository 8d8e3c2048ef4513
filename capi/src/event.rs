//! Events: positions in streams.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use engine::embed::{EventHandle, StreamHandle};

use crate::callback::{User, fuseline_free_fn};
use crate::error::{fuseline_error, guard};
use crate::raw::{given, put, timeout};
use crate::session::{fuseline_session, fuseline_stream, session};

/// A position in a stream, reached when everything recorded there before it is computed. 0 is none.
pub type fuseline_event = u64;

/// Called when an event is reached.
pub type fuseline_reached_fn = Option<unsafe extern "C" fn(user: *mut c_void, event: fuseline_event)>;

/// Records an event at the current position of a stream. Ends the region that is being recorded
/// there and starts it. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_event_record(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    event: Option<&mut MaybeUninit<fuseline_event>>,
) -> *mut fuseline_error {
    guard("fuseline_event_record", || {
        let session = self::session(session)?;
        put(event, "event", || Ok(session.record_event(StreamHandle::from_raw(stream))?.to_raw()))
    })
}

/// Whether an event was reached, 1 or 0. Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_event_is_reached(
    session: Option<&fuseline_session>,
    event: fuseline_event,
    reached: Option<&mut MaybeUninit<u32>>,
) -> *mut fuseline_error {
    guard("fuseline_event_is_reached", || {
        let session = self::session(session)?;
        put(reached, "reached", || Ok(u32::from(session.is_reached(EventHandle::from_raw(event))?)))
    })
}

/// Waits until an event is reached, or for this many nanoseconds; all ones means no limit. Errors
/// of values are reported by the values.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_event_wait(
    session: Option<&fuseline_session>,
    event: fuseline_event,
    nanoseconds: u64,
) -> *mut fuseline_error {
    guard("fuseline_event_wait", || {
        Ok(self::session(session)?.wait_event(EventHandle::from_raw(event), timeout(nanoseconds))?)
    })
}

/// Calls `callback` when an event is reached, on any thread, or at once if it already is. `user` is
/// freed after the call, and also if this function fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_event_on_reached(
    session: Option<&fuseline_session>,
    event: fuseline_event,
    callback: fuseline_reached_fn,
    user: *mut c_void,
    free: fuseline_free_fn,
) -> *mut fuseline_error {
    guard("fuseline_event_on_reached", || {
        let user = User::new(user, free);
        let callback = given(callback, "callback")?;
        let tell = move |event: EventHandle| {
            // SAFETY: the caller passed a function that accepts `user`, which is alive (CANON-3).
            unsafe { callback(user.data(), event.to_raw()) };
        };
        Ok(self::session(session)?.on_event(EventHandle::from_raw(event), tell)?)
    })
}

/// Makes everything that is recorded on a stream from now on run after an event of another stream.
/// Does not wait. Values of another stream are always waited for, without this.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_stream_wait_event(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    event: fuseline_event,
) -> *mut fuseline_error {
    guard("fuseline_stream_wait_event", || {
        let session = self::session(session)?;
        Ok(session.wait_on_stream(StreamHandle::from_raw(stream), EventHandle::from_raw(event))?)
    })
}

/// Releases an event's id. Threads that wait for the event go on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_event_close(
    session: Option<&fuseline_session>,
    event: fuseline_event,
) -> *mut fuseline_error {
    guard("fuseline_event_close", || Ok(self::session(session)?.close_event(EventHandle::from_raw(event))?))
}
