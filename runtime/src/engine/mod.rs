//! The runtime: engines, streams, values and handles as the driver and the API share them.
//!
//! This module has the part of an engine that its streams share. The modules below have the state
//! of a stream and of its values. `execute` has the driver, which a stream knows as a
//! `stream::Drive`.

pub(crate) mod activity;
pub(crate) mod captures;
pub(crate) mod copy;
pub(crate) mod custom_ops;
pub(crate) mod deferred_free;
pub(crate) mod in_flight;
pub(crate) mod promises;
pub(crate) mod read_sites;
pub(crate) mod stream;
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
use fuseline_pjrt::{PluginScope, ShutdownTimeout};
use fuseline_record::mode::{caller, mode_code, mode_of};
use fuseline_record::{call, entry, replay_trace, trace_cache};
use fuseline_sync::atomic::{AtomicU32, Ordering};
use fuseline_sync::fork::is_forked;
use fuseline_sync::schedule::{CompilePool, Pool, Priority, Stuck, Watchdog, Work};
use fuseline_sync::{Mutex, Rank, WeakSet, oneshot};

use self::stream::trace::Trace;
use self::stream::{StreamShared, TensorHandle};
use self::value::Outcome;
use crate::counters::AtomicCounters;
use crate::device::{Device, DeviceError, Executable};
use crate::engine::captures::Captures;
use crate::engine::custom_ops::CustomOps;
use crate::engine::in_flight::InFlight;
use crate::engine::promises::Promises;
use crate::error::{Error, Failure, Result};
use crate::event::{Event, Events, Telemetry};
use crate::limits::{MAX_KEPT_FAILURES, MAX_PLUGIN_CALLS};
use crate::mappings::{self, Mappings};
use crate::settings::Settings;
use crate::store::{ManifestWriter, Store};
use crate::tier::host_eval::HostEval;
use crate::tier::interpreter::InterpreterTier;
use crate::tier::miss_history::MissHistory;
use crate::tier::padded_regions::PaddedRegions;

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
pub struct EngineShared {
    config: Settings,
    device: Device,
    cache: MemoryCache<Executable, DeviceError>,
    known: MissHistory,
    telemetry: Telemetry,
    captures: Captures,
    custom_ops: CustomOps,
    /// The store of executables from other processes, if one is configured.
    store: Option<Arc<Store>>,
    /// Why there is no disk cache, if one was requested.
    no_disk: Option<String>,
    /// Writes the manifest of requested executables, if one is configured.
    recorder: Option<ManifestWriter>,
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
    drive: Arc<Pool<Arc<StreamShared>>>,
    compile: Arc<CompilePool<Work>>,
    /// The interpreter tier, if it is on.
    interpreter_tier: Option<InterpreterTier>,
    host_eval: Option<HostEval>,
    /// The padded regions, if shape classes are on.
    padded_regions: Option<PaddedRegions>,
    /// The thread of the interpreter tier, of padding and of quarantined regions. Without the first
    /// two it is started on demand.
    interpret: Arc<Pool<Task>>,
    /// Threads for plugin calls that a thread awaits with a deadline.
    plugin_calls: Pool<Task>,
    /// Abandons threads that do not return from the plugin, if deadlines are set.
    watch: Option<Watchdog>,
    /// How long the end of the engine waits for the plugin; `None` if forever.
    shutdown_timeout: Option<ShutdownTimeout>,
}

impl EngineShared {
    /// Starts the threads of an engine and opens its caches.
    ///
    /// # Errors
    /// When a thread cannot be started, or the settings need a disk cache and there is none.
    pub fn new(config: Settings, device: Device) -> Result<Arc<EngineShared>> {
        let config = config.on_device(device.pjrt().is_some());
        let threads = |error: std::io::Error| Error::setup(format!("threads could not be started: {error}"));
        let drive =
            Pool::start("drive", config.drive_threads, Priority::Normal, |stream: Arc<StreamShared>| {
                let inside = PluginScope::enter();
                stream.run_queued();
                // This may be the last reference to the engine, so drop it inside the scope.
                drop(stream);
                drop(inside);
            });
        let run = |task: Task| {
            let _inside = PluginScope::enter();
            task();
        };
        let compile = compile_pool(&config);
        let is_near = device.is_near_host();
        let interpreter_tier = (is_near && config.interprets_cold_regions()).then(InterpreterTier::new);
        let is_apart = device.pjrt().is_some() && config.interprets_cold_regions();
        let host_eval = is_apart.then(HostEval::new);
        let padded_regions = PaddedRegions::new(config.padded_classes(), config.buckets).filter(|_| is_near);
        let is_needed = interpreter_tier.is_some() || padded_regions.is_some();
        let interpret = Pool::start("interpret", usize::from(is_needed), Priority::Normal, run);
        let interpret = Arc::new(interpret.map_err(threads)?);
        let plugin_calls = Pool::start("plugin-call", 0, Priority::Normal, run).map_err(threads)?;
        let drive = Arc::new(drive.map_err(threads)?);
        let compile = Arc::new(compile.map_err(threads)?);
        let telemetry = Telemetry::to(config.sink.clone());
        let watch = watch(&config, &telemetry, &drive, &compile, &interpret).map_err(threads)?;
        let shutdown_timeout = shutdown_timeout(&config, &telemetry);
        if let (Some(device), Some(shutdown_timeout)) = (device.pjrt(), &shutdown_timeout) {
            // The sink may keep events that hold executables, and executables hold the client.
            device.device().client().set_shutdown_timeout(shutdown_timeout.weak());
        }
        let (store, no_disk) = match device.pjrt() {
            Some(_) => Store::open(&config.store(), telemetry.events()),
            None => (None, None),
        };
        if config.cache_only && store.as_ref().is_none_or(|store| !store.has_disk()) {
            return Err(Error::cache_only(
                no_disk.as_deref().unwrap_or("it was asked for that there is none"),
            ));
        }
        if let Some(why) = &no_disk {
            telemetry.events().emit(|| Event::CacheTrouble { what: format!("the disk cache is off: {why}") });
        }
        let recorder = config.manifest.as_ref().map(|path| {
            ManifestWriter::open(path, device.numerics(), device.replicas(), telemetry.events().clone())
        });
        let recorder = recorder.transpose().map_err(Error::setup)?;
        let shared = Arc::new(EngineShared {
            device,
            store,
            no_disk,
            recorder,
            cache: MemoryCache::new(config.cache_budget),
            known: MissHistory::new(),
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
            drive,
            compile,
            interpreter_tier,
            host_eval,
            padded_regions,
            interpret,
            plugin_calls,
            watch,
            shutdown_timeout,
            config,
        });
        if shared.config.cache_only
            && shared.settled_store().is_none_or(|store| store.environment().is_none())
        {
            return Err(Error::cache_only(shared.no_disk().unwrap_or("the plugin's file cannot be read")));
        }
        shared.prepare_store();
        Ok(shared)
    }

    /// Determines the environment before the first compile, then removes what dead processes left
    /// behind.
    fn prepare_store(self: &Arc<Self>) {
        let (Some(store), Some(device)) = (&self.store, self.device.pjrt()) else { return };
        store.settle_quickly(device.compiler(), &self.config.client_options);
        if store.environment().is_none() {
            let engine = Arc::downgrade(self);
            let settle = move || {
                if let Some(engine) = engine.upgrade() {
                    engine.settled_store();
                }
            };
            self.compile.push(settle.into());
        }
        let store = store.clone();
        self.compile.push_background(None, (move || store.sweep(true)).into());
    }

    /// The store, after its environment has been determined. The first call may read the plugin's
    /// file.
    pub fn settled_store(&self) -> Option<&Arc<Store>> {
        let (store, device) = (self.store.as_ref()?, self.device.pjrt()?);
        store.settle(device.compiler(), &self.config.client_options);
        Some(store)
    }

    /// The store, for callers that must not wait for its environment.
    #[inline]
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// The store with a usable disk cache, or the error that says why there is none.
    pub fn needed_store(&self) -> Result<&Arc<Store>> {
        let why = self.no_disk().unwrap_or("there is none for this engine");
        let is_usable = |store: &&Arc<Store>| store.has_disk() && store.environment().is_some();
        let store = self.settled_store().filter(is_usable);
        store.ok_or_else(|| Error::setup(format!("the disk cache is off: {why}")))
    }

    /// Why there is no disk cache, if one was requested.
    pub fn no_disk(&self) -> Option<&str> {
        let unknown = || self.store.as_ref().filter(|store| store.has_disk())?.why_unknown();
        self.no_disk.as_deref().or_else(unknown)
    }

    /// The writer of the manifest, if one is configured.
    pub(crate) fn recorder(&self) -> Option<&ManifestWriter> {
        self.recorder.as_ref()
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

    #[inline]
    pub(crate) fn miss_history(&self) -> &MissHistory {
        &self.known
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

    #[inline]
    pub(crate) fn drive_pool(&self) -> &Arc<Pool<Arc<StreamShared>>> {
        &self.drive
    }

    /// The compile threads.
    #[inline]
    pub fn compile_pool(&self) -> &Arc<CompilePool<Work>> {
        &self.compile
    }

    /// Runs `task` on a thread of the engine. If the engine is gone, runs it at once with `None`.
    pub(crate) fn on_own_thread(
        engine: &Weak<EngineShared>,
        task: impl FnOnce(Option<Arc<EngineShared>>) + Send + 'static,
    ) {
        let Some(engine) = engine.upgrade() else { return task(None) };
        let pool = engine.compile.clone();
        // The upgraded reference moves there, because it may be the last one by then.
        pool.push((move || task(Some(engine))).into());
    }

    /// Host evaluation of small results. `None` if it is off, and on the reference device.
    #[inline]
    pub(crate) fn host_eval(&self) -> Option<&HostEval> {
        self.host_eval.as_ref()
    }

    /// The interpreter tier, if it is on.
    #[inline]
    pub(crate) fn interpreter_tier(&self) -> Option<&InterpreterTier> {
        self.interpreter_tier.as_ref()
    }

    /// The padded regions, if shape classes are on.
    #[inline]
    pub(crate) fn padded_regions(&self) -> Option<&PaddedRegions> {
        self.padded_regions.as_ref()
    }

    /// The thread of the interpreter tier and of padding, if either is on.
    pub(crate) fn interpret_pool(&self) -> Option<&Pool<Task>> {
        (self.interpreter_tier.is_some() || self.padded_regions.is_some()).then_some(&*self.interpret)
    }

    /// The thread that interprets quarantined regions.
    pub(crate) fn quarantine_pool(&self) -> &Pool<Task> {
        &self.interpret
    }

    /// The deadline of a call that has no time-out of its own.
    pub fn deadline(&self) -> Option<Instant> {
        self.config.deadlines.wait.and_then(|most| Instant::now().checked_add(most))
    }

    /// Runs a call of the plugin, which may not return, on another thread. Returns what `call`
    /// hands over, or `None` if the deadline passes first.
    pub fn run_with_deadline<R: Send + 'static>(
        &self,
        deadline: Instant,
        call: impl FnOnce(HandOver<R>) + Send + 'static,
    ) -> Option<R> {
        let (sender, result) = oneshot::channel();
        let hand_over: HandOver<R> = Box::new(move |value| sender.send(value));
        self.plugin_calls.push_elastic(Box::new(move || call(hand_over)), MAX_PLUGIN_CALLS);
        result.recv(Some(deadline)).ok()
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
        if let Some(watch) = &self.watch {
            watch.shut_down();
        }
        self.plugin_calls.shut_down();
        self.compile.shut_down();
        self.interpret.shut_down();
        self.drive.shut_down();
        // This destroys the remaining objects of the plugin, and the client unless it is held
        // elsewhere.
        let (Some(shutdown_timeout), Some(_)) = (&self.shutdown_timeout, self.device.pjrt()) else { return };
        let device = std::mem::replace(&mut self.device, Device::reference(1, None));
        let cache = std::mem::replace(&mut self.cache, MemoryCache::new(self.config.cache_budget));
        let padded_regions = self.padded_regions.take();
        shutdown_timeout.wait_for(move || drop((padded_regions, cache, device)));
    }
}

impl fmt::Debug for EngineShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineShared({:?})", self.device)
    }
}

/// Threads for compiles.
///
/// # Errors
/// When a thread cannot be started.
#[inline]
pub fn compile_pool(config: &Settings) -> std::io::Result<CompilePool<Work>> {
    let most_stuck = config.deadlines.most_stuck;
    CompilePool::start("compile", config.compile_threads, most_stuck, |work: Work| {
        let _inside = PluginScope::enter();
        work.run();
    })
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

/// The watchdog, if deadlines are set.
fn watch(
    config: &Settings,
    telemetry: &Telemetry,
    drive: &Arc<Pool<Arc<StreamShared>>>,
    compile: &Arc<CompilePool<Work>>,
    interpret: &Arc<Pool<Task>>,
) -> std::io::Result<Option<Watchdog>> {
    let limits = config.deadlines;
    let period = limits.compile.into_iter().chain(limits.call).min();
    // Concurrency models have no clock.
    let Some(period) = period.filter(|_| cfg!(not(any(loom, shuttle)))) else { return Ok(None) };
    let (telemetry, drive, compile) = (telemetry.clone(), drive.clone(), compile.clone());
    let interpret = interpret.clone();
    let look = move |now| {
        let tell = |thread, Stuck { took, stuck, is_replaced }| {
            telemetry.counters().stuck.add(1);
            telemetry.events().emit(|| Event::Stuck { thread, took, stuck, is_replaced });
        };
        let report_closed = |stuck| telemetry.events().emit(|| Event::CompilesStopped { stuck });
        let mut next = [None; 3];
        if let Some(limit) = limits.compile {
            next[0] = compile.give_up(now, limit, tell, report_closed);
        }
        if let Some(limit) = limits.call {
            next[1] = drive.give_up(now, limit, limits.most_stuck, || (), |stuck| tell("drive", stuck));
            next[2] =
                interpret.give_up(now, limit, limits.most_stuck, || (), |stuck| tell("interpret", stuck));
        }
        next.into_iter().flatten().min()
    };
    Watchdog::start(period, look).map(Some)
}
