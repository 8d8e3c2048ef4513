//! Streams: program-ordered sequences of ops on one device.
//!
//! Any thread may record on a stream; the order of its log is the order of the program. A stream
//! may use values of other streams of its engine. The device-side work of the using stream then
//! waits for that of the producing stream, and no host thread waits.

mod append;
pub mod checks;
mod demand;
mod handle;
pub(crate) mod read;
mod record;
mod room;
mod schedule;
pub(crate) mod trace;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use fuseline_fusion::region::Mode;
use fuseline_fusion::{Site, StreamId};
use fuseline_record::log::{Log, Ticket};
use fuseline_record::mode::{FUSED, mode_code, mode_of, scoped_mode};
use fuseline_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fuseline_sync::fork::{is_forked, keep_in_child};
use fuseline_sync::schedule::actor::Actor;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

pub use self::handle::TensorHandle;
use crate::engine::activity::CurrentActivity;
use crate::engine::deferred_free::DeferredFrees;
use crate::engine::in_flight::InFlight;
use crate::engine::read_sites::ReadSites;
use crate::engine::stream::checks::Checks;
use crate::engine::stream::trace::Trace;
use crate::engine::{EngineShared, Entry, Replay};
use crate::error::{Error, Result};
use crate::user_code::is_driving;

/// The reading side of a stream.
pub(crate) trait Drive: Send {
    /// Works until nothing is left, or until the rest waits for something that will notify the
    /// stream. With `is_reader` it stops as soon as the value being read is available, if that is
    /// before its region is launched. Returns whether there is more to do.
    fn run(&mut self, is_reader: bool, stream: &Arc<StreamShared>) -> bool;
}

/// One stream: its log, its driver and their state.
pub struct StreamShared {
    id: StreamId,
    log: Log<Entry>,
    /// Entries below this ticket are demanded, so the driver must not stop at one that is being
    /// written.
    demanded: AtomicU64,
    actor: Actor,
    /// Present until the stream ends. The stream of a body has none.
    driver: Mutex<Option<Box<dyn Drive>>>,
    in_flight: Arc<InFlight>,
    donated: DeferredFrees,
    activity: CurrentActivity,
    mode: AtomicU32,
    replay: Replay,
    read_sites: ReadSites,
    checks: Arc<Checks>,
    /// The body that ops go into instead of the log, which then stays empty.
    trace: Option<Arc<Trace>>,
    /// Dropped last, because this may be the last reference to the PJRT client.
    engine: Arc<EngineShared>,
}

/// The results of a recorded op.
pub type TensorHandles = SmallVec<[TensorHandle; 1]>;

impl StreamShared {
    pub(crate) fn new(id: StreamId, engine: Arc<EngineShared>, driver: Box<dyn Drive>) -> Arc<StreamShared> {
        StreamShared::with_trace(id, engine, Some(driver), None)
    }

    /// A stream whose ops go into a body.
    pub fn tracing(trace: Arc<Trace>) -> Arc<StreamShared> {
        let base = trace.base();
        StreamShared::with_trace(base.id, base.engine.clone(), None, Some(trace))
    }

    fn with_trace(
        id: StreamId,
        engine: Arc<EngineShared>,
        driver: Option<Box<dyn Drive>>,
        trace: Option<Arc<Trace>>,
    ) -> Arc<StreamShared> {
        let config = engine.config();
        let in_flight = InFlight::new(config.max_regions_in_flight, config.max_bytes_in_flight);
        let in_flight = Arc::new(in_flight);
        // The stream of a body launches nothing.
        let is_real = trace.is_none() && !is_forked();
        if is_real {
            engine.add_in_flight(&in_flight);
        }
        let stream = Arc::new(StreamShared {
            id,
            log: Log::new(),
            demanded: AtomicU64::new(0),
            actor: Actor::new(),
            driver: Mutex::new(Rank::Driver, driver),
            in_flight,
            donated: DeferredFrees::new(),
            activity: CurrentActivity::new(),
            mode: AtomicU32::new(0),
            replay: Replay::new(config.replays && trace.is_none()),
            read_sites: ReadSites::new(),
            checks: Checks::new(engine.check_round().clone()),
            trace,
            engine,
        });
        if is_real {
            let kept: Weak<StreamShared> = Arc::downgrade(&stream);
            keep_in_child(kept);
        }
        stream
    }

    /// The number of the stream within the engine.
    #[inline]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The engine.
    #[inline]
    pub fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    #[inline]
    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// The stream that has a log: this one, or the one below a tracing stream.
    #[inline]
    pub fn base(self: &Arc<Self>) -> &Arc<StreamShared> {
        self.trace.as_ref().map_or(self, |trace| trace.base())
    }

    /// The log.
    #[inline]
    pub fn log(&self) -> &Log<Entry> {
        &self.log
    }

    #[inline]
    pub(crate) fn replay(&self) -> &Replay {
        &self.replay
    }

    #[inline]
    pub(crate) fn read_sites(&self) -> &ReadSites {
        &self.read_sites
    }

    /// The pending checks.
    #[inline]
    pub fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    #[inline]
    pub(crate) fn donated(&self) -> &DeferredFrees {
        &self.donated
    }

    /// What the first unfinished region of the stream is doing.
    #[inline]
    pub(crate) fn activity(&self) -> &CurrentActivity {
        &self.activity
    }

    /// The entries below this ticket are demanded.
    pub(crate) fn demanded(&self) -> Ticket {
        // Relaxed: the thread that raises it notifies the actor afterwards, and that synchronises
        // with the driver.
        Ticket::from_raw(self.demanded.load(Ordering::Relaxed))
    }

    /// Whether the mode in force is [`Mode::Fused`].
    #[inline(always)]
    pub fn is_fused(&self) -> bool {
        let code = match scoped_mode() {
            Some(mode) => return mode == Mode::Fused,
            None => self.mode.load(Ordering::Relaxed),
        };
        (if code == 0 { self.engine.mode_code() } else { code }) == FUSED
    }

    /// The mode in force for an op that this thread records now.
    #[inline]
    pub fn mode(&self) -> Mode {
        scoped_mode()
            .or_else(|| mode_of(self.mode.load(Ordering::Relaxed)))
            .unwrap_or_else(|| self.engine.mode())
    }

    /// Sets the mode of ops recorded from now on. `None` means the engine's mode.
    pub fn set_mode(&self, mode: Option<Mode>) {
        self.mode.store(mode_code(mode), Ordering::Relaxed);
    }
}

impl Drop for StreamShared {
    /// Drops unprocessed entries and with them buffers of the plugin. With a deadline, the thread
    /// waits for that no longer than the deadline.
    fn drop(&mut self) {
        self.checks.end();
        let is_elsewhere = is_driving() || fuseline_pjrt::inside_callback() || is_forked();
        let Some(deadline) = self.engine.deadline().filter(|_| !is_elsewhere && self.trace.is_none()) else {
            return;
        };
        if self.engine.device().pjrt().is_none() {
            return;
        }
        let log = std::mem::replace(&mut self.log, Log::new());
        let donated = std::mem::replace(&mut self.donated, DeferredFrees::new());
        let replay = std::mem::replace(&mut self.replay, Replay::new(false));
        let rest = (log, self.driver.lock().take(), replay, donated);
        // If the call does not return, keep the engine alive: its end would wait for that thread.
        let (engine, since) = (self.engine.clone(), Instant::now());
        let ended = self.engine.threads().run_with_deadline(deadline, move |hand_over| {
            drop(rest);
            drop(engine);
            hand_over(());
        });
        if ended.is_none() {
            self.engine.report_late(since.elapsed());
        }
    }
}

/// Fails on a thread that a driver may be waiting for, because such a thread must not wait.
#[inline]
pub fn may_wait() -> Result<()> {
    if is_driving() {
        return Err(Error::misuse(
            "an event sink, a callback or a handler waits for a stream, which in turn waits for it; \
             hand the work to another thread",
            Site::Unknown,
        ));
    }
    Ok(())
}

impl fmt::Debug for StreamShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.id)
    }
}
