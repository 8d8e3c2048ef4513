//! Event sinks, and how the engine calls user code.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use fuseline_sync::lock_rank::before_user_code;

use super::Event;
use crate::counters::Counter;
use crate::limits::MAX_SINK_OPS;
use crate::user_code::{Guest, call_user};

/// Receives events. It is called on the thread on which the event happens, possibly on several at
/// once, and should return quickly. A panic in it, or in its `Drop`, is caught, counted and
/// otherwise ignored.
///
/// A sink may record ops, and receives their events too. To keep it from feeding itself for ever,
/// it may have recorded at most 4,096 ops more than the program. A further call returns an error.
/// While a thread is inside the sink, the sink gets no events of that thread, such as the read of
/// an available value.
pub trait EventSink: Send + Sync {
    /// Handles an event.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> EventSink for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

fuseline_sync::thread_local! {
    /// The observers whose sinks this thread is inside, by address.
    static TELLING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Whether any engine of the process has ever had a sink. Usually none has, and then a recorded op
/// costs this check only.
#[allow(clippy::disallowed_types, reason = "no model is about it, and a static has no constructor there")]
static HAS_SINK: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Whether the ops of this thread have to be counted one by one (`Events::admits_op`). Such ops
/// are not replayed: an op of a replayed trace is never looked at alone.
#[inline(always)]
pub(crate) fn is_counted() -> bool {
    HAS_SINK.load(std::sync::atomic::Ordering::Relaxed) && is_telling()
}

/// Whether the thread is inside an event sink.
#[inline]
pub(crate) fn is_telling() -> bool {
    TELLING.try_with(|telling| !telling.borrow().is_empty()).unwrap_or(false)
}

/// A sink, with the counters of its calls.
struct Observer {
    sink: Arc<dyn EventSink>,
    panics: Counter,
    /// Number of ops that sinks have recorded on this engine.
    recorded: Counter,
}

impl Observer {
    /// Calls the sink, unless the thread is inside it already.
    #[cfg_attr(debug_assertions, track_caller)]
    fn tell(&self, event: impl FnOnce() -> Event) {
        struct Told;
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = TELLING.try_with(|telling| telling.borrow_mut().pop());
            }
        }
        let me = std::ptr::from_ref(self).addr();
        let begin = |telling: &RefCell<Vec<usize>>| {
            let mut telling = telling.borrow_mut();
            let is_new = !telling.contains(&me);
            if is_new {
                telling.push(me);
            }
            is_new
        };
        // Nothing nests on a thread that is ending.
        let told = match TELLING.try_with(begin) {
            Ok(true) => Some(Told),
            Ok(false) => return,
            Err(_) => None,
        };
        let event = event();
        if call_user(|| self.sink.event(&event)).is_err() {
            self.panics.add(1);
        }
        drop(told);
    }
}

/// The configured sink, if any. Cheap to clone.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<Observer>>);

impl Events {
    /// Passes events to a sink. `None` discards them.
    pub fn to(sink: Option<Arc<dyn EventSink>>) -> Events {
        if sink.is_some() {
            HAS_SINK.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        let observer = |sink| Arc::new(Observer { sink, panics: Counter::new(), recorded: Counter::new() });
        Events(sink.map(observer))
    }

    /// Whether there is a sink.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Emits an event to the sink, if there is one. `event` is called only then.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        // Also without a sink, so that tests without one find places where none may be called.
        before_user_code();
        if let Some(observer) = &self.0 {
            observer.tell(event);
        }
    }

    /// Counts an op that the thread is about to record inside a sink. Returns `false` if it exceeds
    /// the limit. `ops` is the number of ops that have left the log.
    pub(crate) fn admits_op(&self, ops: u64) -> bool {
        let Some(observer) = self.0.as_ref().filter(|_| is_telling()) else { return true };
        let recorded = observer.recorded.get();
        if recorded >= MAX_SINK_OPS.saturating_add(ops.saturating_sub(recorded)) {
            return false;
        }
        observer.recorded.add(1);
        true
    }

    /// How often the sink panicked.
    pub fn panics(&self) -> u64 {
        self.0.as_ref().map_or(0, |observer| observer.panics.get())
    }
}

impl<S: EventSink> EventSink for Guest<S> {
    fn event(&self, event: &Event) {
        self.get().event(event);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Events(on)" } else { "Events(off)" })
    }
}

/// Forwards events to [`tracing`]: failures and fallbacks as warnings, the rest as debug events,
/// all under the target `fuseline`.
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingSink;

#[cfg(feature = "tracing")]
impl EventSink for TracingSink {
    fn event(&self, event: &Event) {
        let region = event.region().map(ToString::to_string);
        let (name, region) = (event.name(), region.as_deref());
        match event {
            Event::CompileFailed { .. }
            | Event::Fallback { .. }
            | Event::OutOfMemory { .. }
            | Event::CacheTrouble { .. }
            | Event::NotInterpreted { .. }
            | Event::Quarantined { .. }
            | Event::NotPadded { .. }
            | Event::RecompileStorm { .. }
            | Event::HotReads { .. }
            | Event::Growth { .. }
            | Event::FlagsRefused { .. }
            | Event::Unqualified { .. }
            | Event::Stuck { .. }
            | Event::CompilesStopped { .. }
            | Event::Compared { difference: Some(_), .. }
            | Event::Poisoned { .. }
            | Event::Panicked { .. } => {
                tracing::warn!(target: "fuseline", event = name, region, "{event}");
            }
            _ => tracing::debug!(target: "fuseline", event = name, region, "{event}"),
        }
    }
}
