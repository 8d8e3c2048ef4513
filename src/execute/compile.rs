//! Compiling a region on a thread of the compile pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::{Artifact as _, Claim, Hit, OutputSet};
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::region::{Ends, Held};
use fuseline_fusion::{Bytes, Scalar, lower};

use crate::device::{Cause, DeviceError, Executable, How, aliases};
use crate::engine::EngineShared;
use crate::error::{RegionRef, Stage};
use crate::event::Event;
use crate::stream::StreamShared;
use crate::sync::Mutex;
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
    pub(super) fn new() -> Arc<CompileSlot> {
        Arc::new(CompileSlot(Mutex::new(SlotState::default())))
    }

    /// The result, once it is there.
    pub(super) fn take(&self) -> Option<Compiled> {
        self.0.lock().compiled.take()
    }

    /// The compile that was followed has ended.
    pub(super) fn landed(&self) {
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
pub(super) enum Haste {
    /// A region cannot run before it has ended.
    Awaited,
    /// What it is for runs by other means until then.
    Unhurried,
    /// Another executable of the region does, until then and if it fails: that is not remembered.
    Dispensable,
}

/// A compile, of which a panic is an error.
pub(super) fn guarded(
    compile: impl FnOnce() -> Result<Executable, DeviceError>,
) -> Result<Executable, DeviceError> {
    let panicked = |_| Err(DeviceError::new(Stage::Compile, "the compiler layer panicked"));
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(panicked)
}

/// Tells what the compiler gets of a region.
pub(super) fn tell_lowered(
    info: &RegionInfo,
    outputs: &OutputSet,
    dying: &[u32],
    fixed: &[(u32, Scalar)],
    engine: &EngineShared,
) {
    engine.emit(|| {
        let (outputs, aliases) = aliases(&info.canon, outputs, dying);
        let (target, numerics) = (engine.device().target(), engine.device().numerics());
        let module = lower::lower_for(target, &info.canon, &outputs, &aliases, numerics, fixed);
        Event::Lowered { region: info.reference, outputs, module }
    });
}

/// What the ops of a region would hold one by one.
pub(super) fn eager(canon: &CanonRegion, outputs: &OutputSet, dying: &[u32]) -> Bytes {
    Held::of(canon.graph(), &Request { canon, outputs, dying }).peak()
}

/// One compile: everything that it depends on, and nothing else.
pub(super) struct Compile {
    /// The results to return.
    pub(super) outputs: OutputSet,
    /// Parameters whose memory may be reused.
    pub(super) dying: Vec<u32>,
    pub(super) haste: Haste,
    /// Whether it takes less time, to slower code.
    pub(super) quick: bool,
    /// What the region needs as a whole that this one was cut from for that.
    pub(super) part_of: Option<Bytes>,
    /// That it ran out of memory is remembered with the key. If not, whoever asks next has the right to try.
    pub(super) keeps_failures: bool,
}

impl Compile {
    /// Starts it. With a claim, the result goes to the cache too.
    pub(super) fn start(
        self,
        stream: &Arc<StreamShared>,
        info: &Arc<RegionInfo>,
        claim: Option<Claim<Executable, DeviceError>>,
    ) -> Arc<CompileSlot> {
        let Compile { outputs, dying, haste, quick, part_of, keeps_failures } = self;
        let slot = CompileSlot::new();
        let (result, info, owner) = (slot.clone(), info.clone(), stream.clone());
        let pool = stream.engine().compile_pool();
        stream.engine().counters().compiles_asked.add(1);
        let tag = *info.reference.key.as_bytes();
        let task = Box::new(move || {
            let engine = owner.engine();
            let region = info.reference;
            tell_lowered(&info, &outputs, &dying, &[], engine);
            engine.emit(|| Event::CompileStarted { region });
            let start = Instant::now();
            let how = How { quick, ..How::default() };
            let compile = || engine.device().compile(&info.canon, &outputs, &dying, how);
            let compiled = guarded(compile);
            let took = start.elapsed();
            let compiled = match compiled {
                Ok(executable) => {
                    let size = Bytes(executable.bytes());
                    let eager = eager(&info.canon, &outputs, &dying);
                    engine.emit(|| {
                        let (memory, executable) = (executable.memory(), executable.pjrt().cloned());
                        Event::CompileFinished { region, took, size, quick, memory, eager, executable }
                    });
                    let count = || {
                        engine.counters().compile_nanos.add(took.as_nanos() as u64);
                        engine.counters().compiles.add(1);
                    };
                    match oversized(&executable, eager, part_of, region, engine) {
                        Some(error) => {
                            count();
                            let error = Arc::new(error);
                            if let Some(claim) = claim.filter(|_| haste != Haste::Dispensable) {
                                engine.tell_evicted(&claim.refuse(error.clone()));
                            }
                            Err(error)
                        }
                        None => Ok(match claim {
                            Some(claim) => {
                                let (hit, evicted) = claim.fulfil_and(executable, count);
                                engine.tell_evicted(&evicted);
                                hit
                            }
                            None => {
                                count();
                                Hit { artifact: Arc::new(executable), outputs, is_unproven: false }
                            }
                        }),
                    }
                }
                Err(error) => {
                    engine.counters().compile_failures.add(1);
                    let message = error.message.clone();
                    engine.emit(|| Event::CompileFailed { region, message });
                    let error = Arc::new(error);
                    let is_kept =
                        haste != Haste::Dispensable && (!error.is_out_of_memory() || keeps_failures);
                    if let Some(claim) = claim.filter(|_| is_kept) {
                        engine.tell_evicted(&claim.fail(error.clone()));
                    }
                    Err(error)
                }
            };
            result.put(compiled);
            owner.notify();
        });
        match haste {
            Haste::Awaited => pool.push(task),
            Haste::Unhurried | Haste::Dispensable => pool.push_unhurried(Some(tag), task),
        }
        slot
    }
}

/// What a compile was asked for.
struct Request<'a> {
    canon: &'a CanonRegion,
    outputs: &'a OutputSet,
    dying: &'a [u32],
}

impl Ends for Request<'_> {
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

/// Why an executable is not used, if it needs too much memory. `eager` is what its ops would hold one by one, `part_of` what the region needs
/// that it was cut from.
fn oversized(
    executable: &Executable,
    eager: Bytes,
    part_of: Option<Bytes>,
    region: RegionRef,
    engine: &EngineShared,
) -> Option<DeviceError> {
    let memory = executable.memory().filter(|_| region.ops > 1)?;
    let is_oversized = memory.is_oversized(eager, engine.config().slack());
    // Where the cut has not helped, the next one would not.
    if !is_oversized || part_of.is_some_and(|whole| !memory.saves_of(whole)) {
        return None;
    }
    engine.emit(|| Event::Oversized { region, memory, eager });
    let message =
        format!("it needs {} of memory at once as a whole, and its ops one by one {eager}", memory.peak());
    let cause = Cause::Oversized(memory.peak());
    Some(DeviceError { cause, ..DeviceError::new(Stage::Compile, message) })
}
