//! Events: places in the one stream, recorded, asked and waited for. An id is a number, which is
//! never 0.

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::disallowed_types, reason = "no model checker drives this crate")]

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use fuseline::embed::{EventHandle, Session, StreamHandle};
use parking_lot::Mutex;

use crate::abi::{Status, guarded};
use crate::call::{Fault, Result, unsupported};
use crate::device;

/// How long it is waited for what is asked of the whole stream: an idle one answers by another
/// thread, within microseconds.
const PATIENCE: Duration = Duration::from_micros(500);

/// When events that are timed were reached, as soon as they are.
static TIMES: LazyLock<Mutex<HashMap<EventHandle, Option<Instant>>>> = LazyLock::new(Mutex::default);

/// The stream by id.
fn session() -> Result<&'static (Session, StreamHandle)> {
    static SESSION: OnceLock<std::result::Result<(Session, StreamHandle), String>> = OnceLock::new();
    let engine = device::engine()?;
    let session = SESSION.get_or_init(|| {
        let session = Session::on(engine.clone());
        let stream = session.keep_stream(engine.stream()).map_err(|error| error.to_string())?;
        Ok((session, stream))
    });
    session.as_ref().map_err(|why| Fault::Unsupported(why.clone()))
}

/// An event where the stream is now; what was recorded before it runs. If it is timed, it is noted
/// when it is reached.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_record(is_timed: bool, event: &mut u64) -> Status {
    guarded(|| {
        let (session, stream) = session()?;
        let id = session.record_event(*stream)?;
        *event = id.to_raw();
        if is_timed {
            TIMES.lock().insert(id, None);
            session.on_event(id, move |id| {
                let now = Instant::now();
                if let Some(time) = TIMES.lock().get_mut(&id) {
                    *time = Some(now);
                }
            })?;
        }
        Ok(())
    })
}

/// Whether an event was reached. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_query(event: u64, is_reached: &mut bool) -> Status {
    guarded(|| {
        *is_reached = session()?.0.is_reached(EventHandle::from_raw(event))?;
        Ok(())
    })
}

/// Waits for an event.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_wait(event: u64) -> Status {
    guarded(|| Ok(session()?.0.wait_event(EventHandle::from_raw(event), None)?))
}

/// Milliseconds from one event to another, both of which are timed and have been reached.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_elapsed(from: u64, to: u64, milliseconds: &mut f64) -> Status {
    guarded(|| {
        let times = TIMES.lock();
        let time = |event| match times.get(&EventHandle::from_raw(event)) {
            Some(Some(time)) => Ok(*time),
            Some(None) => {
                unsupported("an event has not been reached yet: synchronize it before its time is asked")
            }
            None => unsupported("an event has no time: make both with enable_timing=True"),
        };
        let (from, to) = (time(from)?, time(to)?);
        let seconds = match to.checked_duration_since(from) {
            Some(later) => later.as_secs_f64(),
            None => -from.duration_since(to).as_secs_f64(),
        };
        *milliseconds = seconds * 1e3;
        Ok(())
    })
}

/// Gives an event back.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_close(event: u64) -> Status {
    guarded(|| {
        let id = EventHandle::from_raw(event);
        TIMES.lock().remove(&id);
        Ok(session()?.0.close_event(id)?)
    })
}

/// Whether all that was recorded has been computed; it runs from now on. Waits half a millisecond
/// at most.
#[unsafe(no_mangle)]
pub extern "C" fn flt_is_idle(is_idle: &mut bool) -> Status {
    guarded(|| {
        let (session, stream) = session()?;
        let event = session.record_event(*stream)?;
        *is_idle = session.wait_event(event, Some(PATIENCE)).is_ok();
        Ok(session.close_event(event)?)
    })
}
