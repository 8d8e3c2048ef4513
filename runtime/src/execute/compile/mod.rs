//! Compiles a region on a thread of the compile pool and accounts for the compile.
//!
//! All compiles go through here: for a new region, for a variant of its executable
//! (`job/variants.rs`), and for several sizes (`job/pad.rs`).
//!
//! ```text
//! requested, counted ─► Lowered ─► CompileStarted ─┬─► compiled ─► CompileFinished ─► plan checked
//!                                                  └─► failed, or exceeds the host's memory
//!                                                      └─► counted ─► CompileFailed
//! plan checked ─┬─► published, counted
//!               └─► Oversized ─► counted, not used
//! ```
//!
//! Input: what a compile depends on, and a function that publishes the executable or receives the
//! error. Output: one call of that function, events and counters.
//!
//! Invariants:
//! - EXEC-6: a requested compile is counted as ended once. It counts as successful only once its
//!   executable can be found: whoever sees the counter finds the executable.
//! - EXEC-7: no executable can be found before its memory plan was checked. One that needs too much
//!   is reported and not used. The region runs by its present executable, or else in parts.
//! - EXEC-8: the function is called once however the compile ends, also if it panics or its thread
//!   is abandoned ([`Completion`]). So channels get the result, and claims are used or returned.
//!   Claims of a task that the pool drops at shutdown are returned too.
//!
//! An executable with constants is reported only at the end, when it is used
//! ([`Event::Specialised`]). An oversized executable from a background compile is not used if it
//! needs more than the executable that runs now. If both need as much, keeping the present one
//! would save nothing.

mod completion;
mod load;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::{Artifact as _, Claim, Flight, Hit};
use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::region::{EagerMemory, Liveness};
use fuseline_fusion::{Bytes, lower};
use fuseline_sync::oneshot::{self, Receiver};
use fuseline_sync::schedule::Work;

pub(in crate::execute) use self::completion::Completion;
use self::completion::OnCompiled;
pub(in crate::execute) use self::load::{ObtainedExecutable, Source};
use crate::device::{Cause, CompileSpec, DeviceError, Executable, MemoryPlan, Tier, check_module_size};
use crate::engine::EngineShared;
use crate::engine::queue_item::QueueItem;
use crate::engine::stream::StreamShared;
use crate::error::Stage;
use crate::event::Event;
use crate::region::RegionInfo;
use crate::tier::CompilePriority;

/// The result of a compile for the job that waits for it.
pub(in crate::execute) type CompileOutcome = Result<Hit<Executable>, Arc<DeviceError>>;

/// Hastens the compile of another job, because this job needs it too. The channel gets a message
/// when the compile ends, and the stream is notified.
pub(in crate::execute) fn follow(
    key: RegionKey,
    flight: Flight<Executable, DeviceError>,
    stream: &Arc<StreamShared>,
) -> Receiver<()> {
    stream.engine().threads().compile().hasten(key.as_bytes());
    let (sender, ended) = oneshot::channel();
    let stream = stream.clone();
    flight.subscribe(move || {
        sender.send(());
        stream.notify();
    });
    ended
}

/// Which failures of a compile are cached with the key. After any other failure the next lookup may
/// try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::execute) enum FailureCaching {
    All,
    /// All but running out of memory and finding no stored executable.
    ButForMemory,
    /// None: another executable of the region serves.
    Nothing,
}

impl FailureCaching {
    fn has(self, error: &DeviceError) -> bool {
        match self {
            _ if error.cause == Cause::Closed => false,
            FailureCaching::All => true,
            FailureCaching::ButForMemory => !matches!(error.cause, Cause::Memory | Cause::Uncached),
            FailureCaching::Nothing => false,
        }
    }
}

/// How a region runs if an executable needs too much memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::execute) enum MemoryFallback {
    /// In parts. The bytes are what the whole region needs, if this region was cut from it to save
    /// memory.
    Parts(Option<Bytes>),
    /// By its present executable, with its memory plan if the plugin reports one.
    Executable(Option<MemoryPlan>),
}

impl MemoryFallback {
    /// Whether the fallback needs less than the executable.
    fn saves(self, memory: MemoryPlan) -> bool {
        match self {
            // If one cut has not helped, another would not.
            MemoryFallback::Parts(whole) => whole.is_none_or(|whole| memory.saves_of(whole)),
            MemoryFallback::Executable(other) => other.is_none_or(|other| other.peak() < memory.peak()),
        }
    }
}

/// Counts a successful compile or load when it is dropped.
pub(in crate::execute) struct CompileCounterGuard<'a> {
    engine: &'a EngineShared,
    /// `None` for a load.
    took: Option<Duration>,
}

impl Drop for CompileCounterGuard<'_> {
    fn drop(&mut self) {
        let counters = self.engine.counters();
        match self.took {
            Some(took) => {
                counters.compile_nanos.add(took.as_nanos() as u64);
                counters.compiles.add(1);
            }
            None => counters.loads.add(1),
        }
    }
}

/// An executable to publish, with the guard to drop once it can be found; or the error.
pub(in crate::execute) type CompileResult<'a> =
    Result<(Executable, CompileCounterGuard<'a>), Arc<DeviceError>>;

/// One compile: everything that it depends on, and nothing else.
#[derive(Clone)]
pub(in crate::execute) struct Compile {
    pub(in crate::execute) spec: CompileSpec,
    pub(in crate::execute) otherwise: MemoryFallback,
}

impl Compile {
    /// Starts the compile. The result goes to the channel and, with a claim, to the cache.
    pub(in crate::execute) fn start(
        self,
        claim: Option<Claim<Executable, DeviceError>>,
        haste: CompilePriority,
        remembered: FailureCaching,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
    ) -> Receiver<CompileOutcome> {
        let (sender, receiver) = oneshot::channel();
        let (owner, outputs) = (stream.clone(), self.spec.outputs.clone());
        let pool = stream.engine().threads().compile();
        let tag = *info.reference.key.as_bytes();
        let task = self.task(info, stream, move |made, engine| {
            let compiled = match (made, claim) {
                (Ok((executable, tally)), Some(claim)) => {
                    let (hit, evicted) = claim.fulfil_and(executable, || drop(tally));
                    engine.report_evicted(&evicted);
                    Ok(hit)
                }
                (Ok((executable, tally)), None) => {
                    drop(tally);
                    Ok(Hit { artifact: Arc::new(executable), outputs, is_unproven: false })
                }
                (Err(error), claim) => {
                    if let Some(claim) = claim.filter(|_| remembered.has(&error)) {
                        let evicted = match error.cause {
                            Cause::ExceedsHost
                            | Cause::Oversized(_)
                            | Cause::TooManyOps
                            | Cause::Defective
                            | Cause::Stuck => claim.refuse(error.clone()),
                            Cause::Memory
                            | Cause::Closed
                            | Cause::Uncached
                            | Cause::Quarantined
                            | Cause::Other => claim.fail(error.clone()),
                        };
                        engine.report_evicted(&evicted);
                    }
                    Err(error)
                }
            };
            sender.send(compiled);
            owner.notify();
        });
        match haste {
            CompilePriority::Foreground => pool.push(QueueItem::new(task)),
            CompilePriority::Background => pool.push_background(Some(tag), QueueItem::new(task)),
        }
        receiver
    }

    /// Starts a background compile of an executable that no lookup asks for. `on_compiled` is called
    /// when it has ended.
    pub(in crate::execute) fn start_beside(
        self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        on_compiled: impl for<'a> FnOnce(CompileResult<'a>, &'a EngineShared) + Send + 'static,
    ) {
        let task = self.task(info, stream, on_compiled);
        stream.engine().threads().compile().push_background(None, QueueItem::new(task));
    }

    /// Counts the compile as requested and makes it a task of the pool.
    fn task(
        self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        on_compiled: impl for<'a> FnOnce(CompileResult<'a>, &'a EngineShared) + Send + 'static,
    ) -> Work {
        stream.engine().counters().compiles_asked.add(1);
        let completion = Completion::new(on_compiled);
        let refusal = completion.refusal(info, stream);
        let (info, owner) = (info.clone(), stream.clone());
        Work::refusable(move || self.run(&info, &owner, &completion), refusal)
    }

    /// Compiles on this thread.
    fn run(&self, info: &Arc<RegionInfo>, stream: &Arc<StreamShared>, completion: &Arc<Completion>) {
        let engine = stream.engine();
        let region = info.reference;
        let is_special = !self.spec.constants.is_empty();
        let compiled = guarded(|| {
            engine.has_room_for_code(region.ops)?;
            check_module_size(&info.canon)?;
            self.report_lowered(info, engine);
            if !is_special {
                engine.emit(|| Event::CompileStarted { region });
            }
            self.obtain(info, stream, completion)
        });
        let callback = completion.take();
        match compiled {
            Ok(obtained) => self.finish(obtained, callback, info, engine),
            Err(error) => {
                // Without a callback, the compile has already ended otherwise and was counted and
                // reported.
                let Some(on_compiled) = callback else { return };
                engine.counters().compile_failures.add(1);
                engine.emit(|| Event::CompileFailed { region, message: error.message.clone() });
                on_compiled(Err(Arc::new(error)), engine);
            }
        }
    }

    /// Hands out an executable or reports why it is not used, then stores it. Without `on_compiled`
    /// the compile came too late, and the executable is only stored.
    pub(in crate::execute) fn finish(
        &self,
        obtained: ObtainedExecutable,
        on_compiled: Option<OnCompiled>,
        info: &RegionInfo,
        engine: &EngineShared,
    ) {
        let ObtainedExecutable { executable, source, took, unstored } = obtained;
        let region = info.reference;
        let is_special = !self.spec.constants.is_empty();
        self.note(info, engine, Some(source.compile_time(took)));
        let mappings = executable.mappings();
        if let Some(on_compiled) = on_compiled {
            let eager = EagerMemory::of(info.canon.graph(), &self.request(info)).peak();
            let size = Bytes(executable.bytes());
            let memory = executable.memory();
            let loaded = || executable.pjrt().cloned();
            match source {
                // Reported when it is used.
                Source::Compiled if is_special => {}
                Source::Compiled => engine.emit(|| {
                    let (quick, executable) = (self.spec.tier == Tier::Baseline, loaded());
                    Event::CompileFinished { region, took, size, quick, memory, eager, executable }
                }),
                Source::Loaded { from, compile } => engine.emit(|| {
                    let executable = loaded();
                    Event::Loaded { region, from, took, compile, size, memory, executable }
                }),
            }
            let tally = CompileCounterGuard { engine, took: (source == Source::Compiled).then_some(took) };
            if let Some(memory) = self.oversized(&executable, region.ops, eager, engine) {
                engine.emit(|| Event::Oversized { region, memory, eager });
                drop((tally, executable));
                let peak = memory.peak();
                let message =
                    format!("it needs {peak} of memory at once as a whole, and its ops one by one {eager}");
                let cause = Cause::Oversized(peak);
                let error = DeviceError { cause, ..DeviceError::new(Stage::Compile, message) };
                return on_compiled(Err(Arc::new(error)), engine);
            }
            on_compiled(Ok((executable, tally)), engine);
            if is_special {
                let scalars = self.spec.constants.to_vec();
                engine.emit(|| Event::Specialised { region, scalars, took, size });
            }
        }
        engine.note_mappings(mappings);
        // Whoever waited for the executable has it by now.
        if unstored.is_some_and(|unstored| unstored.store(took)) {
            engine.counters().stores.add(1);
        }
    }

    /// Returns the memory plan of an executable that needs too much to be used. `eager` is what its
    /// ops need one by one.
    fn oversized(
        &self,
        executable: &Executable,
        ops: usize,
        eager: Bytes,
        engine: &EngineShared,
    ) -> Option<MemoryPlan> {
        let memory = executable.memory().filter(|_| ops > 1)?;
        let is_oversized = memory.is_oversized(eager, engine.config().memory_slack);
        (is_oversized && self.otherwise.saves(memory)).then_some(memory)
    }

    /// Emits the module that the compiler gets.
    fn report_lowered(&self, info: &RegionInfo, engine: &EngineShared) {
        engine.emit(|| {
            let (outputs, aliases) = self.spec.aliases(&info.canon);
            let (target, numerics) = (engine.device().target(), engine.device().numerics());
            let constants = &self.spec.constants;
            let module = lower::lower_for(target, &info.canon, &outputs, &aliases, numerics, constants);
            Event::Lowered { region: info.reference, outputs, module }
        });
    }

    fn request<'a>(&'a self, info: &'a RegionInfo) -> Request<'a> {
        Request { canon: &info.canon, spec: &self.spec }
    }
}

/// Turns a panic of a compile into an error.
pub fn guarded<T>(compile: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    let panicked = |_| Err(DeviceError::new(Stage::Compile, "the compiler layer panicked"));
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(panicked)
}

/// The inputs of the memory estimate of a compile.
struct Request<'a> {
    canon: &'a CanonRegion,
    spec: &'a CompileSpec,
}

impl Liveness for Request<'_> {
    fn is_lifted(&self, param: u32) -> bool {
        self.canon.lifted()[param as usize]
    }

    fn dies(&self, param: u32) -> bool {
        self.spec.donated.contains(&param)
    }

    fn is_output(&self, result: u32) -> bool {
        self.spec.outputs.contains(result)
    }
}
