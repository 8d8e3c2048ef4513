//! Sessions, which are engines as front ends see them, and their streams.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use engine::Mode;
use engine::embed::{Session, StreamHandle, ValueHandle, swap_mode};

use crate::config::fuseline_config;
use crate::error::{Fault, Result, c_text, fuseline_error, guard, guarded};
use crate::raw::{copy_out, given, list, put, room, timeout};

/// A stream, body or trace of a session. 0 is none.
pub type fuseline_stream = u64;

/// A value of a session. 0 is none.
pub type fuseline_value = u64;

/// An engine with ids for its values and streams. Thread-safe.
pub struct fuseline_session {
    pub(crate) session: Session,
    platform: CString,
    /// The kinds of the client's devices, by position.
    kinds: Vec<CString>,
}

/// When ops run.
pub type fuseline_mode = u32;

/// In large regions, asynchronously.
pub const FUSELINE_FUSED: fuseline_mode = 0;
/// Each op by itself, asynchronously.
pub const FUSELINE_STRICT: fuseline_mode = 1;
/// Each op by itself. The call that records an op waits for it and checks it.
pub const FUSELINE_DEBUG: fuseline_mode = 2;
/// For a thread: the mode of the stream. For a stream: the mode of the engine.
pub const FUSELINE_INHERIT: fuseline_mode = 3;

pub(crate) fn session(session: Option<&fuseline_session>) -> Result<&Session> {
    given(session, "session").map(|session| &session.session)
}

fn mode_or_none(mode: fuseline_mode) -> Result<Option<Mode>> {
    Ok(Some(match mode {
        FUSELINE_FUSED => Mode::Fused,
        FUSELINE_STRICT => Mode::Strict,
        FUSELINE_DEBUG => Mode::Debug,
        FUSELINE_INHERIT => return Ok(None),
        mode => return Err(Fault::invalid(format!("{mode} is not a mode (FUSELINE_FUSED and so on)"))),
    }))
}

fn code(mode: Option<Mode>) -> fuseline_mode {
    match mode {
        Some(Mode::Fused) => FUSELINE_FUSED,
        Some(Mode::Strict) => FUSELINE_STRICT,
        Some(Mode::Debug) => FUSELINE_DEBUG,
        None => FUSELINE_INHERIT,
    }
}

/// Ids of values in the engine's form.
pub(crate) fn handles(raw: &[fuseline_value]) -> &[ValueHandle] {
    const {
        assert!(
            size_of::<ValueHandle>() == size_of::<u64>() && align_of::<ValueHandle>() == align_of::<u64>()
        )
    };
    // SAFETY: a handle has the layout of its number, and any number is a valid handle.
    unsafe { std::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) }
}

/// Opens an engine. A null config means the defaults, with the first PJRT plugin that is found.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_session_open(
    config: Option<&fuseline_config>,
    session: Option<&mut MaybeUninit<*mut fuseline_session>>,
) -> *mut fuseline_error {
    guard("fuseline_session_open", || {
        put(session, "session", || {
            let (is_reference, config) =
                config.map_or_else(Default::default, |config| (config.is_reference, config.finished()));
            let session = if is_reference { Session::reference(config) } else { Session::new(config) }?;
            let client = session.engine().pjrt_device().map(|device| device.client());
            let platform = c_text(client.map_or("reference", |client| client.platform_name()));
            let kinds = client.map_or_else(
                || vec![c_text("interpreter")],
                |client| client.devices().iter().map(|device| c_text(device.kind())).collect(),
            );
            Ok(Box::into_raw(Box::new(fuseline_session { session, platform, kinds })))
        })
    })
}

/// Closes a session and its ids; null is a no-op. The engine ends when nothing of it is in flight;
/// the call waits for that, as long as the deadlines allow. No other call of this session may be
/// running.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_session_close(session: Option<Box<fuseline_session>>) {
    guarded((), || drop(session));
}

/// A device. The texts live as long as the session.
#[repr(C)]
pub struct fuseline_device_info {
    /// The platform as the plugin names it ("cpu", "cuda"), or "reference".
    pub platform: *const c_char,
    /// The kind of device.
    pub kind: *const c_char,
    /// The plugin's id of the device.
    pub id: i64,
    /// Bytes in use, their peak, and their limit; all ones if the plugin does not report it.
    pub bytes_in_use: u64,
    /// See above.
    pub peak_bytes_in_use: u64,
    /// See above.
    pub bytes_limit: u64,
    /// The number of devices that run each op: this one and those after it.
    pub replicas: u64,
}

/// The number of devices of the session's client, of which it uses some.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_device_count(session: Option<&fuseline_session>) -> usize {
    session.map_or(0, |session| session.kinds.len())
}

/// The device at a position in the client's list, from 0; all ones is the session's own.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_device_at(
    session: Option<&fuseline_session>,
    place: usize,
    info: Option<&mut MaybeUninit<fuseline_device_info>>,
) -> *mut fuseline_error {
    guard("fuseline_device_at", || {
        let session = given(session, "session")?;
        let engine = session.session.engine();
        let devices = engine.pjrt_device().map(|own| (own, own.client().devices()));
        let place = match &devices {
            Some((own, all)) if place == usize::MAX => {
                all.iter().position(|device| device.id() == own.id()).unwrap_or_default()
            }
            None if place == usize::MAX => 0,
            _ => place,
        };
        let Some(kind) = session.kinds.get(place) else {
            let count = session.kinds.len();
            return Err(Fault::invalid(format!(
                "there is no device {place}; there are {count} devices, numbered from 0"
            )));
        };
        put(info, "info", || {
            let device = devices.as_ref().and_then(|(_, all)| all.get(place));
            let stats = device.and_then(|device| device.memory_stats().ok());
            let bytes =
                |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX);
            Ok(fuseline_device_info {
                platform: session.platform.as_ptr(),
                kind: kind.as_ptr(),
                id: device.map_or(0, |device| device.id()),
                bytes_in_use: bytes(stats.map(|stats| stats.bytes_in_use)),
                peak_bytes_in_use: bytes(stats.and_then(|stats| stats.peak_bytes_in_use)),
                bytes_limit: bytes(stats.and_then(|stats| stats.bytes_limit)),
                replicas: engine.replicas() as u64,
            })
        })
    })
}

/// A counter of an engine. Times are in nanoseconds and have names that end in _ns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fuseline_counter {
    /// The name. Never freed.
    pub name: *const c_char,
    /// The value.
    pub value: u64,
}

/// The engine's counters: as many as fit, and their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_counters(
    session: Option<&fuseline_session>,
    counters: *mut fuseline_counter,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> *mut fuseline_error {
    guard("fuseline_counters", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes null or memory of that size that nothing else uses.
        let room = unsafe { room(counters, capacity, "counters") }?;
        put(count, "count", || {
            let entries = session.counters().entries();
            let counter = |&(name, value): &(&'static std::ffi::CStr, u64)| fuseline_counter {
                name: name.as_ptr(),
                value,
            };
            copy_out(entries.iter().map(counter), room);
            Ok(entries.len())
        })
    })
}

/// The number of values with an id. Those that are left at the end have leaked.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_live_values(session: Option<&fuseline_session>) -> usize {
    guarded(0, || session.map_or(0, |session| session.session.live_values()))
}

/// Takes the failures of values since the previous call, of all sessions of the engine, whether or
/// not the values were read: one for each cause, and only the latest. Each is reported once. The
/// caller owns the list.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_take_failures(
    session: Option<&fuseline_session>,
    failures: Option<&mut MaybeUninit<*mut fuseline_failures>>,
) -> *mut fuseline_error {
    guard("fuseline_take_failures", || {
        let session = self::session(session)?;
        put(failures, "failures", || {
            let all = session.take_failures().into_iter().map(fuseline_error::of_report).collect();
            Ok(Box::into_raw(Box::new(fuseline_failures(all))))
        })
    })
}

/// A list of failures.
pub struct fuseline_failures(Vec<fuseline_error>);

/// The failure at a position, from 0; null after the last. It lives as long as the list.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_failures_at(
    failures: Option<&fuseline_failures>,
    place: usize,
) -> Option<&fuseline_error> {
    failures?.0.get(place)
}

/// Frees a list of failures; null is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_failures_free(failures: Option<Box<fuseline_failures>>) {
    guarded((), || drop(failures));
}

/// Opens a stream: a sequence of ops that run as if one after the other.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_stream_open(
    session: Option<&fuseline_session>,
    stream: Option<&mut MaybeUninit<fuseline_stream>>,
) -> *mut fuseline_error {
    guard("fuseline_stream_open", || {
        let session = self::session(session)?;
        put(stream, "stream", || Ok(session.open_stream()?.to_raw()))
    })
}

/// Releases a stream's id. What was recorded on it still runs, and its values stay valid.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_stream_close(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
) -> *mut fuseline_error {
    guard("fuseline_stream_close", || {
        Ok(self::session(session)?.close_stream(StreamHandle::from_raw(stream))?)
    })
}

/// Ends the region that is being recorded on a stream and starts it. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_flush(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
) -> *mut fuseline_error {
    guard("fuseline_flush", || Ok(self::session(session)?.flush(StreamHandle::from_raw(stream))?))
}

/// Starts the computation of values. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_flush_values(
    session: Option<&fuseline_session>,
    values: *const fuseline_value,
    count: usize,
) -> *mut fuseline_error {
    guard("fuseline_flush_values", || {
        // SAFETY: the caller passes null or that many elements (see the header).
        let values = unsafe { list(values, count, "values") }?;
        Ok(self::session(session)?.flush_values(handles(values))?)
    })
}

/// Waits until everything recorded so far on a stream is computed, or for this many nanoseconds;
/// all ones means no limit. Errors of values are reported by the values.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_synchronize(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    nanoseconds: u64,
) -> *mut fuseline_error {
    guard("fuseline_synchronize", || {
        Ok(self::session(session)?.synchronize(StreamHandle::from_raw(stream), timeout(nanoseconds))?)
    })
}

/// Waits until everything recorded so far on any stream of the engine is computed.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_synchronize_all(session: Option<&fuseline_session>) -> *mut fuseline_error {
    guard("fuseline_synchronize_all", || Ok(self::session(session)?.synchronize_all()?))
}

/// Sets the mode of ops recorded from now on, unless their stream or thread has its own.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_set_mode(
    session: Option<&fuseline_session>,
    mode: fuseline_mode,
) -> *mut fuseline_error {
    guard("fuseline_set_mode", || {
        let mode = mode_or_none(mode)?.ok_or_else(|| Fault::invalid("an engine cannot inherit a mode"))?;
        self::session(session)?.set_mode(mode);
        Ok(())
    })
}

/// Sets the mode of ops recorded on a stream from now on. FUSELINE_INHERIT means the engine's mode.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_set_stream_mode(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    mode: fuseline_mode,
) -> *mut fuseline_error {
    guard("fuseline_set_stream_mode", || {
        Ok(self::session(session)?.set_stream_mode(StreamHandle::from_raw(stream), mode_or_none(mode)?)?)
    })
}

/// Sets the mode of ops that the calling thread records from now on, on any stream.
/// FUSELINE_INHERIT means the stream's mode. `*before` is the previous mode.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_swap_thread_mode(
    mode: fuseline_mode,
    before: Option<&mut MaybeUninit<fuseline_mode>>,
) -> *mut fuseline_error {
    guard("fuseline_swap_thread_mode", || {
        let mode = mode_or_none(mode)?;
        put(before, "before", || Ok(code(swap_mode(mode))))
    })
}

/// The mode of an op that the calling thread would record on a stream now.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_mode_of(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    mode: Option<&mut MaybeUninit<fuseline_mode>>,
) -> *mut fuseline_error {
    guard("fuseline_mode_of", || {
        let session = self::session(session)?;
        put(mode, "mode", || Ok(code(Some(session.mode(StreamHandle::from_raw(stream))?))))
    })
}
