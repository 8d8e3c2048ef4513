//! The runtime: engines, streams, values and handles as the driver and the API share them.
//!
//! This module has the part of an engine that its streams share. The modules below have the state
//! of a stream and of its values. `execute` has the driver, which a stream knows as a
//! `stream::Drive`.

pub(crate) mod activity;
pub(crate) mod captures;
pub(crate) mod completion;
pub(crate) mod copy;
pub(crate) mod custom_ops;
pub(crate) mod deferred_free;
pub(crate) mod in_flight;
pub(crate) mod promises;
pub(crate) mod qualification;
pub(crate) mod queue_item;
pub(crate) mod read_sites;
pub(crate) mod stores;
pub(crate) mod stream;
pub(crate) mod threads;
pub(crate) mod tiers;
pub(crate) mod value;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use fuseline_cache::{Evicted, MemoryCache};
use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::ir::Ref;
use fuseline_fusion::region::Mode;
use fuseline_fusion::{Bytes, Site, StreamId};
use fuseline_pjrt::ShutdownTimeout;
use fuseline_record::mode::{caller, mode_code, mode_of};
use fuseline_record::{call, entry, replay_trace, trace_cache};
use fuseline_sync::atomic::{AtomicU32, Ordering};
use fuseline_sync::fork::is_forked;
use fuseline_sync::{Mutex, Rank, WeakSet};

use self::qualification::Qualification;
use self::queue_item::QueueItem;
pub use self::stores::EngineSetup;
use self::stores::Stores;
use self::stream::trace::Trace;
use self::stream::{StreamShared, TensorHandle};
use self::threads::Threads;
use self::tiers::Tiers;
use self::value::Outcome;
use crate::counters::AtomicCounters;
use crate::device::{CompilerFlag, Device, DeviceError, Executable};
use crate::engine::captures::Captures;
use crate::engine::custom_ops::CustomOps;
use crate::engine::in_flight::InFlight;
use crate::engine::promises::Promises;
use crate::error::{Error, Failure, Result};
use crate::event::{Event, Events, Telemetry};
use crate::limits::MAX_KEPT_FAILURES;
use crate::mappings::{self, Mappings};
use crate::settings::Settings;
use crate::store::Store;

/// An entry of a stream's log.
pub(crate) type Entry = entry::Entry<Outcome>;

/// A call to be recorded.
pub type RecordCall<'a> = call::RecordCall<'a, TensorHandle>;

/// Recorded calls that follow a template.
pub(crate) type ReplayTrace = replay_trace::ReplayTrace<Outcome>;

/// One of the entries that a trace stands for.
pub(crate) type TraceEntry = replay_trace::TraceEntry<Outcome>;

/// The parts of a region whose ops are those of a whole template.
pub(crate) type RecordedRegion = replay_trace::RecordedRegion<Outcome>;

/// The trace cache of a stream.
pub(crate) type Replay = trace_cache::Replay<StreamShared>;

/// The position of a value in a trace.
#[derive(Clone, Debug)]
pub struct BodyPosition {
    /// The trace that the value belongs to.
    pub trace: Arc<Trace>,
    /// The value in the graph of the trace.
    pub value: Ref,
}

impl BodyPosition {
    /// The trace that the value belongs to.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }
}

/// The call site of a public method, or the one that the front end has set.
#[track_caller]
#[inline]
pub fn here() -> Site {
    match caller() {
        Some(site) => site.clone(),
        None => Site::Rust(std::panic::Location::caller()),
    }
}

/// With fewer streams than this, the list of streams is not searched for dead ones.
pub const MIN_WEAK_SET: usize = 16;

/// A task for a thread of a pool.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Receives the result of a call.
pub(crate) type HandOver<R> = Box<dyn FnOnce(R) + Send>;

/// The part of an engine that its streams share. It lives as long as any stream or tensor of the
/// engine.
///
/// Each field is one service with a type of its own. There are more than ten, because a stream
/// reaches all of them by one reference, whose count keeps the engine alive.
pub struct EngineShared {
    config: Settings,
    device: Device,
    cache: MemoryCache<Executable, DeviceError>,
    tiers: Tiers,
    telemetry: Telemetry,
    captures: Captures,
    custom_ops: CustomOps,
    stores: Stores,
    /// The latest failures, for callers that ask the engine instead of the values.
    failures: Mutex<VecDeque<Arc<Failure>>>,
    mode: AtomicU32,
    streams: AtomicU32,
    /// Counts reported check failures; see [`Checks::round`](crate::engine::stream::checks::Checks::round).
    check_round: Arc<AtomicU32>,
    /// The regions in flight of each stream, for threads that wait for memory.
    all_in_flight: Mutex<WeakSet<InFlight>>,
    /// The promised values that have no data yet.
    promises: Promises,
    mappings: Mappings,
    threads: Threads,
    qualification: Qualification,
    /// How long the end of the engine waits for the plugin; `None` if forever.
    shutdown_timeout: Option<ShutdownTimeout>,
}

impl EngineShared {
    /// Starts the threads of an engine and opens its caches.
    ///
    /// # Errors
    /// When a thread cannot be started, or the settings need a disk cache and there is none.
    pub fn new(config: Settings, device: Device, setup: EngineSetup) -> Result<Arc<EngineShared>> {
        let config = config.on_device(device.pjrt().is_some());
        let telemetry = setup.telemetry.clone();
        let tiers = Tiers::new(&config, &device);
        let threads = Threads::start(&config, &telemetry, tiers.use_interpreter());
        let threads =
            threads.map_err(|error| Error::setup(format!("threads could not be started: {error}")))?;
        let shutdown_timeout = shutdown_timeout(&config, &telemetry);
        if let (Some(device), Some(shutdown_timeout)) = (device.pjrt(), &shutdown_timeout) {
            // The sink may keep events that hold executables, and executables hold the client.
            device.device().client().set_shutdown_timeout(shutdown_timeout.weak());
        }
        let stores = Stores::open(&config, &device, setup)?;
        let shared = Arc::new(EngineShared {
            device,
            stores,
            cache: MemoryCache::new(config.cache_budget),
            tiers,
            telemetry,
            captures: Captures::new(),
            custom_ops: CustomOps::new(),
            failures: Mutex::new(Rank::Failures, VecDeque::new()),
            mode: AtomicU32::new(mode_code(Some(config.mode))),
            streams: AtomicU32::new(0),
            check_round: Arc::new(AtomicU32::new(1)),
            all_in_flight: Mutex::new(Rank::InFlightLists, WeakSet::new(MIN_WEAK_SET)),
            promises: Promises::new(),
            mappings: Mappings::new(config.max_mappings),
            threads,
            qualification: Qualification::default(),
            shutdown_timeout,
            config,
        });
        shared.report_refused_flags();
        shared.check_qualification()?;
        Stores::prepare(&shared)?;
        Ok(shared)
    }

    /// Reports the compiler flags that the plugin refuses.
    fn report_refused_flags(&self) {
        let Some(device) = self.device.pjrt() else { return };
        let flags: Vec<CompilerFlag> = device.capabilities().missing_flags().copied().collect();
        if !flags.is_empty() {
            self.telemetry.events().emit(|| Event::FlagsRefused { flags });
        }
    }

    /// The threads.
    #[inline]
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// The state of the tiers.
    #[inline]
    pub(crate) fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The executables of other processes.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The store, after its environment has been determined. The first call may read the plugin's
    /// file.
    pub fn settled_store(&self) -> Option<&Arc<Store>> {
        let (store, device) = (self.stores.store()?, self.device.pjrt()?);
        store.settle(device.compiler(), &self.config.client_options);
        Some(store)
    }

    /// The store with a usable disk cache.
    ///
    /// # Errors
    /// When there is none. The error says why.
    pub fn needed_store(&self) -> Result<&Arc<Store>> {
        let why = self.stores.no_disk().unwrap_or("there is none for this engine");
        let is_usable = |store: &&Arc<Store>| store.has_disk() && store.environment().is_some();
        let store = self.settled_store().filter(is_usable);
        store.ok_or_else(|| Error::setup(format!("the disk cache is off: {why}")))
    }

    /// The settings.
    #[inline]
    pub fn config(&self) -> &Settings {
        &self.config
    }

    /// The device.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The memory cache.
    #[inline]
    pub fn cache(&self) -> &MemoryCache<Executable, DeviceError> {
        &self.cache
    }

    /// The counters.
    #[inline]
    pub fn counters(&self) -> &AtomicCounters {
        self.telemetry.counters()
    }

    /// The event sink and the counters, for holders that must not keep the engine alive.
    #[inline]
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// The capture in progress, if there is one.
    #[inline]
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// The registered custom ops.
    #[inline]
    pub fn custom_ops(&self) -> &CustomOps {
        &self.custom_ops
    }

    /// Runs `task` on a thread of the engine. If the engine is gone, runs it at once with `None`.
    pub(crate) fn on_own_thread(
        engine: &Weak<EngineShared>,
        task: impl FnOnce(Option<Arc<EngineShared>>) + Send + 'static,
    ) {
        let Some(engine) = engine.upgrade() else { return task(None) };
        let pool = engine.threads.compile().clone();
        // The upgraded reference moves there, because it may be the last one by then.
        pool.push(QueueItem::new((move || task(Some(engine))).into()));
    }

    /// The deadline of a call that has no time-out of its own.
    pub fn deadline(&self) -> Option<Instant> {
        self.config.deadlines.wait.and_then(|most| Instant::now().checked_add(most))
    }

    /// Reports that an object of the plugin was not released in time.
    pub(crate) fn report_late(&self, took: std::time::Duration) {
        if let Some(shutdown_timeout) = &self.shutdown_timeout {
            shutdown_timeout.report_late(took);
        }
    }

    /// Registers the regions in flight of a new stream.
    pub(crate) fn add_in_flight(&self, flow: &Arc<InFlight>) {
        self.all_in_flight.lock().push(Arc::downgrade(flow));
    }

    /// The regions in flight of each stream.
    pub(crate) fn all_in_flight(&self) -> Vec<Arc<InFlight>> {
        self.all_in_flight.lock().iter().collect()
    }

    /// The promised values that have no data yet.
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    /// The current round of checks.
    pub(crate) fn check_round(&self) -> &Arc<AtomicU32> {
        &self.check_round
    }

    /// Whether there is an event sink.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.telemetry.events().is_observed()
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        self.telemetry.events().emit(event);
    }

    /// The event sink, for holders that outlive the engine.
    pub fn events(&self) -> &Events {
        self.telemetry.events()
    }

    /// Keeps a failure for [`EngineShared::take_failures`], once, however many values it poisons.
    pub fn keep_failure(&self, failure: &Arc<Failure>) {
        let mut failures = self.failures.lock();
        if failures.iter().any(|known| Arc::ptr_eq(known, failure)) {
            return;
        }
        if failures.len() == MAX_KEPT_FAILURES {
            failures.pop_front();
        }
        failures.push_back(failure.clone());
    }

    /// Takes the failures kept since the last call.
    pub fn take_failures(&self) -> VecDeque<Arc<Failure>> {
        if is_forked() {
            return VecDeque::new();
        }
        std::mem::take(&mut *self.failures.lock())
    }

    /// Whether the process has enough memory mappings left for the code of a region of `ops` ops,
    /// if the code lies in its memory.
    pub(crate) fn has_room_for_code(&self, ops: usize) -> std::result::Result<(), DeviceError> {
        if !self.device.has_code_here() {
            return Ok(());
        }
        self.mappings.has_room(mappings::estimate(ops)).map_err(|now| {
            let most = mappings::most();
            DeviceError::out_of_memory(format!(
                "the process has {now} memory mappings of the {most} that the system gives it (vm.max_map_count), \
                 and the code of an executable needs some"
            ))
        })
    }

    /// Notes a new executable with an estimated number of memory mappings. Evicts others if the
    /// process has too many mappings.
    pub(crate) fn note_mappings(&self, mappings: u64) {
        if mappings > 0
            && let Some(surplus) = self.mappings.note(mappings, || self.cache.stats().mappings)
        {
            self.report_evicted(&self.cache.free_mappings(surplus));
        }
    }

    pub(crate) fn report_evicted(&self, evicted: &[Evicted]) {
        self.counters().evictions.add(evicted.len() as u64);
        for entry in evicted {
            self.emit(|| Event::Evicted {
                key: RegionKey::from_bytes(*entry.key.as_bytes()),
                size: Bytes(entry.bytes),
            });
        }
    }

    /// Number of memory mappings of the process at the last count.
    pub fn counted_mappings(&self) -> u64 {
        self.mappings.counted()
    }

    /// The id of the next stream.
    pub(crate) fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Sets the mode of streams without a mode of their own.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode_code(Some(mode)), Ordering::Relaxed);
    }

    /// The mode of streams without a mode of their own.
    #[inline]
    pub fn mode(&self) -> Mode {
        mode_of(self.mode_code()).unwrap_or_default()
    }

    /// The code of the mode; never 0.
    #[inline]
    pub(crate) fn mode_code(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }
}

impl Drop for EngineShared {
    fn drop(&mut self) {
        // No stream is left, so no thread waits for queued work. The pools finish it and end. A
        // thread inside the plugin holds a stream or the engine, so the threads awaited here are
        // outside the plugin.
        self.threads.shut_down();
        // This destroys the remaining objects of the plugin, and the client unless it is held
        // elsewhere.
        let (Some(shutdown_timeout), Some(_)) = (&self.shutdown_timeout, self.device.pjrt()) else { return };
        let device = std::mem::replace(&mut self.device, Device::reference(1, None));
        let cache = std::mem::replace(&mut self.cache, MemoryCache::new(self.config.cache_budget));
        let padded_regions = self.tiers.take_padded_regions();
        shutdown_timeout.wait_for(move || drop((padded_regions, cache, device)));
    }
}

impl fmt::Debug for EngineShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineShared({:?})", self.device)
    }
}

/// The limit for the wait for the plugin when the engine ends.
fn shutdown_timeout(config: &Settings, telemetry: &Telemetry) -> Option<ShutdownTimeout> {
    let limits = config.deadlines;
    let limit = limits.wait.or(limits.call)?;
    let telemetry = telemetry.clone();
    Some(ShutdownTimeout::new(limit, move |took| {
        telemetry.counters().stuck.add(1);
        telemetry.events().emit(|| Event::Stuck { thread: "end", took, stuck: 1, is_replaced: false });
    }))
}
