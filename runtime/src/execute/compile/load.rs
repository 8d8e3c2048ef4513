//! Obtains an executable: loads one that another process has made, or compiles it and stores it.
//!
//! ```text
//! disk ─► another process ─► shared tier, for part of a compile's time ─► compile ─┐
//!                     └─ late answer: loaded on another thread ─► the first of both ─► stored
//! ```
//!
//! Input: a [`Compile`]. Output: an executable, compiled or loaded; and an entry, once the
//! executable has been handed out.
//!
//! Invariants, with those of `runtime/src/store/mod.rs`:
//! - EXEC-9: a loaded executable is what would have been compiled. The request contains what the
//!   optimized compile depends on. A baseline executable is loaded only if one would be compiled
//!   now.
//! - EXEC-10: a job waits for a remote store for a part of the compile time. After that the load
//!   and the compile race, and the second result is not used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_cache::disk::{Flight, JoinOutcome, Stage as Attempt};
use fuseline_cache::{Name, Record, SealedKind};
use fuseline_fusion::ir::Ref;
use fuseline_fusion::{Bytes, TensorType};

use super::{Compile, Completion};
use crate::device::{Cause, DeviceError, Executable, FirstRunMark, Tier};
use crate::engine::EngineShared;
use crate::engine::queue_item::QueueItem;
use crate::engine::stream::StreamShared;
use crate::error::Stage;
use crate::event::CacheTier;
use crate::processor;
use crate::region::RegionInfo;
use crate::store::{Fetching, QuarantineKey, Store, StoreGuard, StoreKey};
use crate::tier::cost::compile_time;

/// How long to wait for another process that compiles the same, per second of estimated compile
/// time, and at least.
const PATIENCE: u32 = 4;
const MIN_PATIENCE: Duration = Duration::from_secs(2);

/// Inverse of the part of a compile's time by which the shared tier is asked ahead. A compile that
/// is started in vain takes cores from others.
const HEAD_START: u32 = 4;

/// A load that takes less than this is never recorded as slower than its compile.
const SHORT_LOAD: Duration = Duration::from_millis(10);

/// Where an executable came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::execute) enum Source {
    Compiled,
    /// It was loaded from this tier. `compile` is how long its compile took.
    Loaded {
        from: CacheTier,
        compile: Duration,
    },
}

impl Source {
    /// How long the compile took, here or elsewhere. `took` is the time to obtain the executable.
    pub(in crate::execute) fn compile_time(self, took: Duration) -> Duration {
        match self {
            Source::Compiled => took,
            Source::Loaded { compile, .. } => compile,
        }
    }
}

/// An executable, and what remains to be done once it has been handed out.
pub(in crate::execute) struct ObtainedExecutable {
    pub(in crate::execute) executable: Executable,
    pub(in crate::execute) source: Source,
    /// How long it took to compile, or to find and load.
    pub(in crate::execute) took: Duration,
    pub(in crate::execute) unstored: Option<PendingStore>,
}

/// An executable to store.
pub(in crate::execute) struct PendingStore {
    store: Arc<Store>,
    asked: StoreKey,
    what: What,
    /// The lock for which other processes wait.
    flight: Option<Flight>,
    /// The entry that it replaces.
    instead_of: Option<StoreKey>,
    /// The program's exit waits for it.
    _storing: StoreGuard,
}

enum What {
    Compiled(fuseline_pjrt::Executable),
    /// It came from the shared tier.
    Record(Arc<Record>),
}

/// Results of at most this size are not compared with the host's memory.
const MAX_UNCHECKED_SIZE: Bytes = Bytes(1 << 28);

impl Compile {
    /// The request for the executable in a tier.
    pub(in crate::execute) fn ask(&self, tier: Tier, info: &RegionInfo, store: &Store) -> Option<StoreKey> {
        store.ask(info.reference.key, &info.canon, &self.spec.in_tier(tier))
    }

    /// Returns the executable: loaded if it is stored, compiled otherwise.
    pub(in crate::execute) fn obtain(
        &self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        completion: &Arc<Completion>,
    ) -> Result<ObtainedExecutable, DeviceError> {
        self.check_defects(info, stream.engine())?;
        self.check_size(info, stream.engine())?;
        let obtained = self.load_or_compile(info, stream, completion)?;
        Compile::check_plan(&obtained.executable, stream.engine())?;
        Ok(obtained)
    }

    fn load_or_compile(
        &self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        completion: &Arc<Completion>,
    ) -> Result<ObtainedExecutable, DeviceError> {
        let engine = stream.engine();
        let since = Instant::now();
        let store = engine.settled_store();
        let asked = store.and_then(|store| Some((store, self.ask(Tier::Optimized, info, store)?)));
        let Some((store, asked)) = asked else {
            if engine.config().cache_only {
                // The engine required one when it was built.
                return Err(DeviceError::uncached("the disk cache cannot be used any more"));
            }
            let (executable, took) = self.compile(info, engine)?;
            return Ok(ObtainedExecutable { executable, source: Source::Compiled, took, unstored: None });
        };
        let suspect = asked.suspect(&info.canon);
        if let Some(quarantine) = store.quarantine(suspect) {
            let error = DeviceError::new(Stage::Compile, quarantine.to_string());
            return Err(DeviceError { cause: Cause::Quarantined, ..error });
        }
        let loader = Loader { compile: self, info, store, engine, suspect, since };
        if let Some(loaded) = loader.load_kept(&asked, Tier::Optimized) {
            return Ok(loaded);
        }
        if engine.config().cache_only {
            return self.load_only(&loader, &asked);
        }
        let (mut in_a_hurry, mut instead_of) = (None, None);
        if let Some(baseline) = self.ask(Tier::Baseline, info, store) {
            if self.spec.tier == Tier::Baseline {
                if let Some(loaded) = loader.load_kept(&baseline, Tier::Baseline) {
                    return Ok(loaded);
                }
                in_a_hurry = Some(baseline);
            } else if store.may_have(&baseline) {
                instead_of = Some(baseline);
            }
        }
        let asked_for = in_a_hurry.as_ref().unwrap_or(&asked);
        let flight = match store.join(asked_for, (loader.estimate() * PATIENCE).max(MIN_PATIENCE)) {
            JoinOutcome::Leader(flight) => Some(flight),
            JoinOutcome::NoLock => None,
            JoinOutcome::Ready(_) => match loader.load_kept(asked_for, self.spec.tier) {
                Some(loaded) => return Ok(loaded),
                None => None,
            },
        };
        let fetch = store.fetch(&asked);
        if let Some(fetch) = &fetch {
            if let Some(record) = fetch.within(loader.estimate() / HEAD_START)
                && let Some(loaded) = loader.load_fetched(&record, &asked)
            {
                return Ok(loaded);
            }
            fetch.then(self.racer(info, stream, completion));
        }
        let (executable, took) = loader.compile(asked_for)?;
        // A later answer of the shared tier is too late.
        fetch.into_iter().for_each(Fetching::take_back);
        let unstored = executable.pjrt().cloned().map(|pjrt| {
            let (asked, what) = (in_a_hurry.unwrap_or(asked), What::Compiled(pjrt));
            PendingStore { store: store.clone(), asked, what, flight, instead_of, _storing: store.storing() }
        });
        Ok(ObtainedExecutable { executable, source: Source::Compiled, took, unstored })
    }

    /// Checks that the plugin computes each op of the region.
    fn check_defects(&self, info: &RegionInfo, engine: &EngineShared) -> Result<(), DeviceError> {
        let defective = engine.defects().find(info.canon.graph(), &self.spec.constants);
        let Some(first) = defective.first() else { return Ok(()) };
        let error = DeviceError::new(Stage::Compile, first.why.to_string());
        Err(DeviceError { cause: Cause::Defective, ..error })
    }

    /// Checks that the host has memory for the results, if they are in its memory. A plugin may not
    /// report that: XLA's CPU compiler (API 0.115) divides by zero on a tensor of 2^43 elements.
    fn check_size(&self, info: &RegionInfo, engine: &EngineShared) -> Result<(), DeviceError> {
        let graph = info.canon.graph();
        let results = (0..graph.result_count() as u32).filter(|&result| self.spec.outputs.contains(result));
        let bytes = results
            .filter_map(|result| graph.type_of(Ref::Result(result)))
            .map(TensorType::bytes)
            .fold(Bytes(0), Bytes::saturating_add);
        check_host_memory("the results take", bytes, engine)
    }

    /// Checks that the host has memory for all that an execution allocates. An execution that fails
    /// on API 0.106 and 0.115 has taken its donated inputs away.
    fn check_plan(executable: &Executable, engine: &EngineShared) -> Result<(), DeviceError> {
        let Some(plan) = executable.memory() else { return Ok(()) };
        let bytes = plan.outputs.saturating_sub(plan.aliased).saturating_add(plan.temporaries);
        check_host_memory("results and scratch take", bytes, engine)
    }

    /// Loads an executable in a run that compiles nothing, if `asked` is not on disk.
    fn load_only(&self, loader: &Loader<'_>, asked: &StoreKey) -> Result<ObtainedExecutable, DeviceError> {
        let (info, store) = (loader.info, loader.store);
        // There is nothing else to do meanwhile.
        let record = store.fetch(asked).and_then(|fetch| fetch.within(MIN_PATIENCE));
        if let Some(loaded) = record.and_then(|record| loader.load_fetched(&record, asked)) {
            return Ok(loaded);
        }
        let baseline = self.ask(Tier::Baseline, info, store);
        let baseline = baseline.and_then(|baseline| loader.load_kept(&baseline, Tier::Baseline));
        baseline.ok_or_else(|| DeviceError::uncached(store.missing(asked, info)))
    }

    /// Returns the function that takes a late answer of the shared tier and publishes the
    /// executable if the compile is not done.
    fn racer(
        &self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        completion: &Arc<Completion>,
    ) -> impl FnOnce(Arc<Record>) + Send + 'static {
        let (compile, info, completion) = (self.clone(), info.clone(), completion.clone());
        // Holds weak references: a thread of the tier must not drop the stream or the engine.
        let stream = Arc::downgrade(stream);
        let since = Instant::now();
        move |record| {
            let Some(stream) = stream.upgrade() else { return };
            let pool = stream.engine().threads().compile().clone();
            let load = move || {
                let engine = stream.engine();
                let asked = engine
                    .stores()
                    .store()
                    .and_then(|store| Some((store, compile.ask(Tier::Optimized, &info, store)?)));
                let Some((store, asked)) = asked else { return };
                let suspect = asked.suspect(&info.canon);
                let loader = Loader { compile: &compile, info: &info, store, engine, suspect, since };
                let Some(loaded) = loader.load_fetched(&record, &asked) else { return };
                // The compile in progress reports it.
                if Compile::check_plan(&loaded.executable, engine).is_err() {
                    return;
                }
                if let Some(on_compiled) = completion.take() {
                    compile.finish(loaded, Some(on_compiled), &info, engine);
                }
            };
            pool.push(QueueItem::new(load.into()));
        }
    }

    fn compile(
        &self,
        info: &RegionInfo,
        engine: &EngineShared,
    ) -> Result<(Executable, Duration), DeviceError> {
        let start = Instant::now();
        let executable = engine.device().compile(&info.canon, &self.spec)?;
        Ok((executable, start.elapsed()))
    }

    /// Records the first execution in the crash marks. The quarantine is per region, baseline or
    /// not.
    fn watch(&self, executable: &mut Executable, suspect: QuarantineKey, tried: Name, store: &Arc<Store>) {
        let store = store.clone();
        executable.set_probation(FirstRunMark::new(move || store.mark(Attempt::Run, suspect, tried)));
    }
}

/// Checks that the host has `bytes` of memory, if the device uses the host's.
fn check_host_memory(what: &str, bytes: Bytes, engine: &EngineShared) -> Result<(), DeviceError> {
    // Most regions are small, and need no look at the memory.
    if bytes <= MAX_UNCHECKED_SIZE || !engine.device().is_near_host() {
        return Ok(());
    }
    let Some(memory) = processor::memory().filter(|memory| bytes > *memory) else { return Ok(()) };
    Err(DeviceError::exceeds_host(format!(
        "RESOURCE_EXHAUSTED: {what} {bytes}, and this machine has {memory} of memory"
    )))
}

/// The inputs of a load.
struct Loader<'a> {
    compile: &'a Compile,
    info: &'a RegionInfo,
    store: &'a Arc<Store>,
    engine: &'a EngineShared,
    /// The key under which a crash is recorded.
    suspect: QuarantineKey,
    since: Instant,
}

impl Loader<'_> {
    /// The estimated time of the compile.
    fn estimate(&self) -> Duration {
        compile_time(self.info.canon.graph())
    }

    /// Compiles under a crash mark, which names the entry that is tried.
    fn compile(&self, tried: &StoreKey) -> Result<(Executable, Duration), DeviceError> {
        let mark = self.store.mark(Attempt::Make, self.suspect, tried.name());
        let (mut executable, took) = self.compile.compile(self.info, self.engine)?;
        drop(mark);
        self.compile.watch(&mut executable, self.suspect, tried.name(), self.store);
        Ok((executable, took))
    }

    /// Loads the entry on disk, if it is worth loading.
    fn load_kept(&self, asked: &StoreKey, tier: Tier) -> Option<ObtainedExecutable> {
        let record = self.store.load(asked)?;
        let (executable, took) = self.load(&record, asked, tier).unwrap_or_else(|error| {
            // It was sealed here and is undamaged, so the plugin cannot load what it has made.
            self.store.refused(asked, &error.message);
            None
        })?;
        // In a run that compiles nothing, there is no faster way.
        let may_compile = !self.engine.config().cache_only;
        if may_compile && took > record.made_in && took > SHORT_LOAD {
            self.store.note_not_worth_it(asked, record.made_in, took);
        }
        let source = Source::Loaded { from: CacheTier::Disk, compile: record.made_in };
        Some(ObtainedExecutable { executable, source, took: self.since.elapsed(), unstored: None })
    }

    /// Loads an entry from the shared tier.
    fn load_fetched(&self, record: &Arc<Record>, asked: &StoreKey) -> Option<ObtainedExecutable> {
        // An entry that the plugin elsewhere has made and this one cannot load is a miss.
        let (executable, _) = self.load(record, asked, Tier::Optimized).ok().flatten()?;
        let source = Source::Loaded { from: CacheTier::Shared, compile: record.made_in };
        let unstored = PendingStore {
            store: self.store.clone(),
            asked: asked.clone(),
            what: What::Record(record.clone()),
            flight: None,
            instead_of: None,
            _storing: self.store.storing(),
        };
        Some(ObtainedExecutable { executable, source, took: self.since.elapsed(), unstored: Some(unstored) })
    }

    fn load(
        &self,
        record: &Record,
        asked: &StoreKey,
        tier: Tier,
    ) -> Result<Option<(Executable, Duration)>, DeviceError> {
        if record.kind != SealedKind::Artifact {
            return Ok(None);
        }
        let start = Instant::now();
        let mark = self.store.mark(Attempt::Load, self.suspect, asked.name());
        let spec = self.compile.spec.in_tier(tier);
        let loaded = self.engine.device().load(&self.info.canon, &spec, record);
        drop(mark);
        let mut executable = loaded?;
        self.compile.watch(&mut executable, self.suspect, asked.name(), self.store);
        Ok(Some((executable, start.elapsed())))
    }
}

impl PendingStore {
    /// Stores the executable if the plugin can serialize it. Returns whether it did.
    pub(in crate::execute) fn store(self, took: Duration) -> bool {
        // An entry that takes longer to load than to compile stays noted as such.
        if self.store.may_have(&self.asked) {
            return false;
        }
        let stored = match &self.what {
            What::Record(record) => self.store.adopt(record),
            What::Compiled(executable) => match executable.serialize() {
                Ok(artifact) => self.store.keep(&self.asked, artifact, took),
                Err(_) => false,
            },
        };
        if stored && let Some(instead_of) = &self.instead_of {
            self.store.forget(instead_of);
        }
        // Waiting processes may look now.
        drop(self.flight);
        self.store.sweep(false);
        stored
    }
}
