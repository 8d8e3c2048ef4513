//! Compiling a region on a thread of the compile pool, and the books that are kept of it.
//!
//! All compiles go through here, whatever they are for: the one that a new region needs, the one
//! that replaces a stopgap (`quick.rs`), one with scalars as constants (`specialise.rs`), one with
//! fewer results (`narrow.rs`), one for several sizes (`classes.rs`).
//!
//! ```text
//! asked, counted ─► Lowered ─► CompileStarted ─► compiled ─► CompileFinished ─► planned memory checked ─► in its place, counted
//!                                                   │                                  └──► Oversized ─► counted, not used
//!                                                   └──► counted ─► CompileFailed
//! ```
//!
//! Input: what a compile depends on, and a function that puts the executable where it is found, or
//! hears why there is none. Output: a call of that function, events and counters.
//!
//! Invariants:
//! - E6: a compile that was asked for is counted as ended once, and is counted well only from when
//!   its executable is found: who sees the counter finds the executable.
//! - E7: no executable is found whose planned memory was not checked. One that needs too much is
//!   told and not used; the region runs by what it has, and in parts if it has nothing.
//! - E8: the function is called once, however the compile ends, and a panic is such an end, as is
//!   that its thread is given up ([`Landing`]). So slots are filled, and claims used or given back;
//!   those of a task that the pool drops at its end are given back too.
//!
//! An executable with constants is told at the end only ([`Event::Specialised`]), when it is used.
//! One that nobody waits for is not used if it is oversized and needs more than the one that runs
//! until then: where that needs as much, keeping it would save nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::{Artifact as _, Claim, Flight, Hit, OutputSet};
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::region::{EagerMemory, Liveness};
use fuseline_fusion::{Bytes, lower};
use fuseline_sync::schedule::Work;
use fuseline_sync::{Mutex, Rank};

use super::compile_or_load::{ObtainedExecutable, Source};
use super::completion::{Landing, OnCompiled};
use crate::device::{
    Cause, DeviceError, Executable, ExecutableOptions, MemoryPlan, aliases, check_module_size,
};
use crate::engine::EngineShared;
use crate::error::Stage;
use crate::event::Event;
use crate::stream::StreamShared;
use crate::value::RegionInfo;

type Compiled = Result<Hit<Executable>, Arc<DeviceError>>;

#[derive(Default)]
struct SlotState {
    compiled: Option<Compiled>,
    landed: bool,
}

/// Where a compile leaves its result for the job that waits for it.
pub(super) struct CompileSlot(Mutex<SlotState>);

impl CompileSlot {
    fn new() -> Arc<CompileSlot> {
        Arc::new(CompileSlot(Mutex::new(Rank::CompileSlot, SlotState::default())))
    }

    /// What tells when a compile that somebody else has asked for has ended; the stream is notified
    /// then.
    pub(super) fn of(
        flight: Flight<Executable, DeviceError>,
        stream: &Arc<StreamShared>,
    ) -> Arc<CompileSlot> {
        let slot = CompileSlot::new();
        let (done, stream) = (slot.clone(), stream.clone());
        flight.subscribe(move || {
            done.landed();
            stream.notify();
        });
        slot
    }

    /// The result, once it is there.
    pub(super) fn take(&self) -> Option<Compiled> {
        self.0.lock().compiled.take()
    }

    /// The compile that was followed has ended.
    fn landed(&self) {
        self.0.lock().landed = true;
    }

    pub(super) fn has_landed(&self) -> bool {
        self.0.lock().landed
    }

    fn put(&self, compiled: Compiled) {
        self.0.lock().compiled = Some(compiled);
    }
}

/// Whether somebody waits for a compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompilePriority {
    /// A region cannot run before it has ended.
    Foreground,
    /// What it is for runs by other means until then.
    Background,
}

/// Which failures of a compile are remembered with the key. After any other whoever asks next has
/// the right to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureCaching {
    All,
    /// That memory ran out is not, nor that nobody has stored the executable.
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

/// What a region runs by if an executable needs too much memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryFallback {
    /// Its parts. It is one of a region that needs so much as a whole, if it was cut from one for
    /// that.
    Parts(Option<Bytes>),
    /// The executable that it has, which needs so much, if the plugin says so.
    Executable(Option<MemoryPlan>),
}

impl MemoryFallback {
    /// Whether that needs less than the executable.
    fn saves(self, memory: MemoryPlan) -> bool {
        match self {
            // Where the cut has not helped, the next one would not.
            MemoryFallback::Parts(whole) => whole.is_none_or(|whole| memory.saves_of(whole)),
            MemoryFallback::Executable(other) => other.is_none_or(|other| other.peak() < memory.peak()),
        }
    }
}

/// Counts a compile that ended well, when it is dropped.
pub(super) struct CompileCounterGuard<'a> {
    engine: &'a EngineShared,
    /// `None` if it was a load.
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

/// An executable to be put in its place, and what is to be dropped at the moment from which on it
/// is found there; or why there is none.
pub(super) type CompileResult<'a> = Result<(Executable, CompileCounterGuard<'a>), Arc<DeviceError>>;

/// One compile: everything that it depends on, and nothing else.
#[derive(Clone)]
pub(super) struct Compile {
    /// The results to return.
    pub(super) outputs: OutputSet,
    /// Parameters whose memory may be reused.
    pub(super) dying: Vec<u32>,
    pub(super) how: ExecutableOptions,
    pub(super) otherwise: MemoryFallback,
}

impl Compile {
    /// Starts it. The result goes to the slot and, with a claim, to the cache.
    pub(super) fn start(
        self,
        claim: Option<Claim<Executable, DeviceError>>,
        haste: CompilePriority,
        remembered: FailureCaching,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
    ) -> Arc<CompileSlot> {
        let slot = CompileSlot::new();
        let (result, owner, outputs) = (slot.clone(), stream.clone(), self.outputs.clone());
        let pool = stream.engine().compile_pool();
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
                            Cause::Oversized(_) | Cause::TooManyOps | Cause::Stuck => {
                                claim.refuse(error.clone())
                            }
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
            result.put(compiled);
            owner.notify();
        });
        match haste {
            CompilePriority::Foreground => pool.push(task),
            CompilePriority::Background => pool.push_unhurried(Some(tag), task),
        }
        slot
    }

    /// Starts it behind all that is waited for, for an executable that no look-up asks for. `land`
    /// is called when it has ended.
    pub(super) fn start_beside(
        self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        land: impl for<'a> FnOnce(CompileResult<'a>, &'a EngineShared) + Send + 'static,
    ) {
        let task = self.task(info, stream, land);
        stream.engine().compile_pool().push_unhurried(None, task);
    }

    /// The compile, which is counted as asked for.
    fn task(
        self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        land: impl for<'a> FnOnce(CompileResult<'a>, &'a EngineShared) + Send + 'static,
    ) -> Work {
        stream.engine().counters().compiles_asked.add(1);
        let landing = Landing::new(land);
        let refusal = landing.refusal(info, stream);
        let (info, owner) = (info.clone(), stream.clone());
        Work::refusable(move || self.run(&info, &owner, &landing), refusal)
    }

    /// Compiles, on this thread.
    fn run(&self, info: &Arc<RegionInfo>, stream: &Arc<StreamShared>, landing: &Arc<Landing>) {
        let engine = stream.engine();
        let region = info.reference;
        let is_special = !self.how.fixed.is_empty();
        let compiled = guarded(|| {
            engine.has_room_for_code(region.ops)?;
            check_module_size(&info.canon)?;
            self.report_lowered(info, engine);
            if !is_special {
                engine.emit(|| Event::CompileStarted { region });
            }
            self.obtain(info, stream, landing)
        });
        let landed = landing.take();
        match compiled {
            Ok(obtained) => self.finish(obtained, landed, info, engine),
            Err(error) => {
                // It has ended otherwise, if there is nobody to land, and was counted and told.
                let Some(land) = landed else { return };
                engine.counters().compile_failures.add(1);
                engine.emit(|| Event::CompileFailed { region, message: error.message.clone() });
                land(Err(Arc::new(error)), engine);
            }
        }
    }

    /// Hands an executable out, or says why it is not used; then it is stored. Nobody is to `land`
    /// if it has come too late: it is stored all the same.
    pub(super) fn finish(
        &self,
        obtained: ObtainedExecutable,
        land: Option<OnCompiled>,
        info: &RegionInfo,
        engine: &EngineShared,
    ) {
        let ObtainedExecutable { executable, source, took, unstored } = obtained;
        let region = info.reference;
        let is_special = !self.how.fixed.is_empty();
        self.note(info, engine, Some(source.compile_time(took)));
        let mappings = executable.mappings();
        if let Some(land) = land {
            let eager = EagerMemory::of(info.canon.graph(), &self.request(info)).peak();
            let size = Bytes(executable.bytes());
            let memory = executable.memory();
            let loaded = || executable.pjrt().cloned();
            match source {
                // Told when it is used.
                Source::Compiled if is_special => {}
                Source::Compiled => engine.emit(|| {
                    let (quick, executable) = (self.how.quick, loaded());
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
                return land(Err(Arc::new(error)), engine);
            }
            land(Ok((executable, tally)), engine);
            if is_special {
                let scalars = self.how.fixed.to_vec();
                engine.emit(|| Event::Specialised { region, scalars, took, size });
            }
        }
        engine.note_mappings(mappings);
        // Whoever waited for it has it.
        if unstored.is_some_and(|unstored| unstored.store(took)) {
            engine.counters().stores.add(1);
        }
    }

    /// What an executable needs, if that is so much that it is not used. `eager` is what its ops
    /// would hold one by one.
    fn oversized(
        &self,
        executable: &Executable,
        ops: usize,
        eager: Bytes,
        engine: &EngineShared,
    ) -> Option<MemoryPlan> {
        let memory = executable.memory().filter(|_| ops > 1)?;
        let is_oversized = memory.is_oversized(eager, engine.config().slack());
        (is_oversized && self.otherwise.saves(memory)).then_some(memory)
    }

    /// Tells what the compiler gets.
    fn report_lowered(&self, info: &RegionInfo, engine: &EngineShared) {
        engine.emit(|| {
            let (outputs, aliases) = aliases(&info.canon, &self.outputs, &self.dying);
            let (target, numerics) = (engine.device().target(), engine.device().numerics());
            let fixed = &self.how.fixed;
            let module = lower::lower_for(target, &info.canon, &outputs, &aliases, numerics, fixed);
            Event::Lowered { region: info.reference, outputs, module }
        });
    }

    fn request<'a>(&'a self, info: &'a RegionInfo) -> Request<'a> {
        Request { canon: &info.canon, outputs: &self.outputs, dying: &self.dying }
    }
}

/// A compile, of which a panic is an error.
pub(crate) fn guarded<T>(compile: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    let panicked = |_| Err(DeviceError::new(Stage::Compile, "the compiler layer panicked"));
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(panicked)
}

/// What a compile was asked for.
struct Request<'a> {
    canon: &'a CanonRegion,
    outputs: &'a OutputSet,
    dying: &'a [u32],
}

impl Liveness for Request<'_> {
    fn is_lifted(&self, param: u32) -> bool {
        self.canon.lifted()[param as usize]
    }

    fn dies(&self, param: u32) -> bool {
        self.dying.contains(&param)
    }

    fn is_output(&self, result: u32) -> bool {
        self.outputs.contains(result)
    }
}
