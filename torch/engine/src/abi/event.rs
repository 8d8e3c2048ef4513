//! Events: positions in the only stream that can be recorded, queried and waited for. An event id
//! is never 0.

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

/// How long a query about the whole stream waits. For an idle stream another thread answers within
/// microseconds.
const PATIENCE: Duration = Duration::from_micros(500);

/// When timed events were reached; set as soon as they are.
static TIMES: LazyLock<Mutex<HashMap<EventHandle, Option<Instant>>>> = LazyLock::new(Mutex::default);

/// The only stream, as a session and a handle.
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

/// Records an event at the current position and starts everything before it. The time at which a
/// timed event is reached is kept.
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

/// Milliseconds between two events, both of which must be timed and reached.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_elapsed(from: u64, to: u64, milliseconds: &mut f64) -> Status {
    guarded(|| {
        let times = TIMES.lock();
        let time = |event| match times.get(&EventHandle::from_raw(event)) {
            Some(Some(time)) => Ok(*time),
            Some(None) => {
                unsupported("the device has not reached an event yet: synchronize both events first")
            }
            None => unsupported("an event has no time: create both with enable_timing=True"),
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

/// Releases an event.
#[unsafe(no_mangle)]
pub extern "C" fn flt_event_close(event: u64) -> Status {
    guarded(|| {
        let id = EventHandle::from_raw(event);
        TIMES.lock().remove(&id);
        Ok(session()?.0.close_event(id)?)
    })
}

/// Starts everything that was recorded, and returns whether it is all computed. Waits half a
/// millisecond at most.
#[unsafe(no_mangle)]
pub extern "C" fn flt_is_idle(is_idle: &mut bool) -> Status {
    guarded(|| {
        let (session, stream) = session()?;
        let event = session.record_event(*stream)?;
        *is_idle = session.wait_event(event, Some(PATIENCE)).is_ok();
        Ok(session.close_event(event)?)
    })
}
