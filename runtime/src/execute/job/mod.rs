//! A job: one region on its way to the device.
//!
//! Input: a sealed region. Output: results, or smaller regions that run instead. This module has
//! the job and its states; each module below has one thing that a job does.

mod advance;
mod differential_check;
mod host_eval;
mod interpret;
mod launch;
mod memory;
mod pad;
mod partition;
mod prepare;
mod quarantine;
mod variants;

use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::{Hit, Key, OutputSet};
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Input, LoopFingerprint, Mode, Output, Region, Unit};
use fuseline_fusion::{Bytes, RegionSeq, Site, ValueId};
use fuseline_record::template::{LoopIteration, Template};
use fuseline_sync::oneshot::Receiver;

use self::interpret::InterpreterResult;
pub(super) use self::launch::BoundArguments;
use self::partition::Partition;
pub(super) use self::partition::Parts;
use super::EngineRegion;
use super::compile::CompileOutcome;
use crate::device::{Cause, DeviceError, Executable};
use crate::engine::stream::StreamShared;
use crate::engine::value::{Outcome, ValueCell, ValuePromise, ValueRef};
use crate::engine::{RecordedRegion, ReplayTrace};
use crate::error::{Failure, Stage};
use crate::event::{Event, SealedRegion};
use crate::region::{RegionInfo, RegionRef, Wait};
use crate::tier::InterpretedRun;
use crate::tier::padded_regions::PaddedRegion;

/// The state of a job. `advance.rs` has the transitions.
pub(super) enum JobState {
    /// How it runs is not decided.
    New,
    /// It waits for a result of another thread, which notifies the stream.
    Waiting(Pending),
    /// It runs as soon as its inputs have data.
    Ready(Runner),
    /// No executable is available.
    Refused(Refusal),
    /// It runs as several regions: the units of a merged region that has no executable yet, or
    /// parts of a region whose sizes vary.
    Split(Partition),
}

/// What a job waits for.
pub(super) enum Pending {
    /// The compile for this job.
    Compile(Receiver<CompileOutcome>),
    /// The compile for another job. When that ends, this job looks its executable up again.
    OtherCompile(Receiver<()>),
    /// Free memory. The job goes on with the executable, if it had one.
    Memory(Receiver<()>, Option<Hit<Executable>>),
    /// Results that another thread computes.
    Results(Receiver<InterpreterResult>),
}

/// What runs the region.
pub(super) enum Runner {
    Executable(Hit<Executable>),
    /// The interpreter, unless the compile of another job ends before that.
    Interpreter(InterpretedRun, Option<Receiver<()>>),
    /// The executable of a larger region, to which the inputs are padded.
    Padded(Arc<PaddedRegion>, Hit<Executable>),
    /// The interpreter, because the region crashed a process or is an op of a region that did.
    Quarantined,
}

/// Why no executable is available.
pub(super) struct Refusal {
    error: Arc<DeviceError>,
    /// An earlier compile failed, and the cache has its error.
    is_cached: bool,
}

/// A sealed region, its inputs and outputs, and the state of its execution.
pub(super) struct Job {
    pub(super) info: Arc<RegionInfo>,
    pub(super) inputs: Vec<Input<ValueRef>>,
    /// The results that are needed, by their number.
    pub(super) outputs: Vec<(u32, ValuePromise)>,
    mode: Mode,
    pub(super) effect: Effect,
    pub(super) boundary: Boundary,
    /// The units of a merged region.
    units: Vec<Unit>,
    /// The numbers of the results that are needed.
    pub(super) needed: OutputSet,
    /// Bytes of these results on all replicas.
    pub(super) output_bytes: Bytes,
    /// The input from another stream that the job has subscribed to.
    pub(super) awaits: Option<ValueId>,
    /// What the job waits for as the first of its stream, and since when.
    waits: Option<(Wait, Instant)>,
    /// Whether the region was interpreted, or is past the interpreter tier.
    is_past_interpreter: bool,
    /// Whether a read of this region was answered by host evaluation.
    pub(super) has_answered: bool,
    /// The memory need of the whole region, if this region was cut from it to save memory.
    pub(super) part_of: Option<Bytes>,
    /// Whether the region is kept from the compiler because it crashed a process or may have.
    pub(super) quarantine: QuarantineScope,
    /// Memory has not yet been freed for this job.
    pub(super) may_free: bool,
    state: JobState,
}

/// The result of [`Job::advance`].
pub(super) enum Progress {
    /// The region was launched, or its results have failed.
    Done,
    /// The job waits. The stream will be notified.
    Blocked(Box<Job>),
    /// The region runs as several instead.
    Parts(Parts),
}

/// Whether a job is kept from the plugin's compiler.
#[derive(Clone, Debug, Default)]
pub(super) enum QuarantineScope {
    #[default]
    None,
    /// It is one op of a region in quarantine.
    Part(Arc<DeviceError>),
    /// It is in quarantine itself.
    Itself(Arc<DeviceError>),
}

/// The key of a region in the memory cache.
pub(super) fn cache_key(info: &RegionInfo) -> Key {
    Key::new(*info.reference.key.as_bytes())
}

/// The inputs and outputs of a region, and what its end decides.
struct RegionBindings {
    inputs: Vec<Input<ValueRef>>,
    live: Vec<(u32, ValuePromise)>,
    boundary: Boundary,
    mode: Mode,
    effect: Effect,
    units: Vec<Unit>,
    /// Call site of the read that ended the region, if one did.
    asked: Option<Site>,
    /// Every result, if the engine is observed.
    all: Option<Arc<[Output]>>,
}

impl Job {
    /// Brings a region into canonical form. `asked` is the call site that requested its result, if
    /// known.
    pub(super) fn new(
        region: EngineRegion,
        asked: Option<Site>,
        seq: RegionSeq,
        stream: &StreamShared,
    ) -> Box<Job> {
        let engine = stream.engine();
        let Region { graph, inputs, outputs, sites, units, boundary, mode, effect, .. } = region;
        let ops = graph.nodes().len();
        let canon = CanonRegion::new(graph, inputs.iter().map(|input| input.lifted).collect());
        let key = canon.key(engine.device().environment());
        let reference = RegionRef { stream: stream.id(), seq, key, ops };
        let info = Arc::new(RegionInfo::new(reference, Arc::new(canon), Arc::new(sites)));
        let output =
            |output: &Output<ValuePromise>| Output { value: output.value.holder().id(), live: output.live };
        let all = engine.is_observed().then(|| outputs.iter().map(output).collect());
        let live = (0u32..).zip(outputs).filter(|(_, output)| output.live);
        let live = live.map(|(index, output)| (index, output.value)).collect();
        let asked = asked.filter(|_| boundary == Boundary::HostRead);
        Job::of(info, RegionBindings { inputs, live, boundary, mode, effect, units, asked, all }, stream)
    }

    /// Makes the job of a whole replayed trace.
    pub(super) fn replayed(
        trace: &mut ReplayTrace,
        boundary: Boundary,
        asked: Option<Site>,
        seq: RegionSeq,
        stream: &StreamShared,
    ) -> Box<Job> {
        let engine = stream.engine();
        let output = |(value, live)| Output { value, live };
        let all = engine.is_observed().then(|| trace.outputs().map(output).collect());
        let template = trace.template().clone();
        let RecordedRegion { inputs, live, sites } = trace.take_region();
        let reference = RegionRef { stream: stream.id(), seq, key: template.key, ops: template.ops() };
        let info = Arc::new(RegionInfo::new(reference, template.canon.clone(), sites));
        let (mode, effect, units) = (Mode::Fused, Effect::Pure, template.units.clone());
        Job::of(info, RegionBindings { inputs, live, boundary, mode, effect, units, asked, all }, stream)
    }

    fn of(info: Arc<RegionInfo>, ends: RegionBindings, stream: &StreamShared) -> Box<Job> {
        let engine = stream.engine();
        let RegionBindings { inputs, live: outputs, boundary, mode, effect, units, asked, all } = ends;
        let needed: OutputSet = outputs.iter().map(|&(index, _)| index).collect();
        let bytes = outputs.iter().map(|(_, value)| value.holder().ty().bytes());
        let bytes = bytes.fold(Bytes(0), Bytes::saturating_add);
        let output_bytes = Bytes(bytes.0.saturating_mul(engine.device().replicas() as u64));
        if boundary.is_asked_for() {
            outputs.iter().for_each(|(_, value)| value.holder().set_boundary_passed());
        }
        let reference = info.reference;
        engine.counters().regions.add(1);
        engine.emit(|| {
            let scalars = inputs.iter().filter(|input| input.lifted).count();
            let seen = inputs.iter().map(|input| Input {
                value: input.value.cell().id(),
                lifted: input.lifted,
                dies: input.dies,
            });
            let contents = SealedRegion::new(info.clone(), seen.collect(), all.unwrap_or_default());
            Event::Sealed {
                region: reference,
                boundary,
                mode,
                inputs: inputs.len() - scalars,
                scalars,
                outputs: needed.len(),
                asked,
                contents,
            }
        });
        let job = Box::new(Job {
            info,
            inputs,
            outputs,
            mode,
            effect,
            boundary,
            units,
            needed,
            output_bytes,
            awaits: None,
            waits: None,
            is_past_interpreter: false,
            has_answered: false,
            part_of: None,
            quarantine: QuarantineScope::None,
            may_free: true,
            state: JobState::New,
        });
        if job.is_skipped() {
            engine.counters().skipped.add(1);
            engine.emit(|| Event::Skipped { region: reference });
        }
        job
    }

    /// Whether nobody needs the region, so that it does not run.
    pub(super) fn is_skipped(&self) -> bool {
        self.needed.is_empty() && self.effect == Effect::Pure
    }

    /// Reports the region to the trace cache, which may make a template of it.
    pub(super) fn note(
        &self,
        round: Option<LoopFingerprint>,
        stream: &StreamShared,
    ) -> Option<Arc<Template>> {
        let info = &self.info;
        let round = round.map(|fingerprint| LoopIteration { fingerprint, boundary: self.boundary });
        stream.replay().note(info.reference.key, round, &info.canon, &info.sites, &self.units)
    }

    /// Whether it was recorded in Fused mode.
    pub(super) fn is_fused(&self) -> bool {
        self.mode == Mode::Fused
    }

    /// Number of ops.
    pub(super) fn ops(&self) -> usize {
        self.info.reference.ops
    }

    /// Whether the interpreter may run the region when it is new.
    fn may_be_interpreted(&self) -> bool {
        !self.is_past_interpreter
            && !self.is_merged()
            && self.mode == Mode::Fused
            && self.effect == Effect::Pure
    }

    /// Whether the region was merged from units.
    fn is_merged(&self) -> bool {
        !self.units.is_empty()
    }

    /// The regions to run: the job itself, or the units of a merged region without an executable.
    pub(super) fn or_units(self: Box<Self>, stream: &StreamShared) -> Result<Box<Job>, Vec<EngineRegion>> {
        match self.state {
            JobState::Split(Partition::Units) => Err(self.into_unmerged(stream)),
            _ => Ok(self),
        }
    }

    /// The executable that [`Job::prepare`] found.
    #[cfg(feature = "stages")]
    pub(super) fn take_hit(&mut self) -> Option<Hit<Executable>> {
        match std::mem::replace(&mut self.state, JobState::New) {
            JobState::Ready(Runner::Executable(hit)) => Some(hit),
            _ => None,
        }
    }

    /// The region failed as a whole. It runs op by op. Its results fail if it is a single op, or if
    /// its ops would not be compiled either.
    fn give_up(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        if self.ops() > 1 && error.cause != Cause::Uncached {
            return self.split(error.message.clone(), stream);
        }
        self.fail_or_pass_on(error, stream)
    }

    /// Fails the results of the region, with the failure of an input if one failed, or with this
    /// error.
    fn fail_or_pass_on(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        // The first failure is the one to report.
        let failure = self.failed_input();
        let failure = failure.unwrap_or_else(|| self.failure(0, error, error.message.clone()));
        self.poison(failure, stream)
    }

    /// Fails the whole region. There is no fallback for the error.
    fn fail(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        let message = match self.ops() {
            1 => error.message.clone(),
            ops => format!("{} (one of the {ops} ops of the region up to this one)", error.message),
        };
        let failure = self.failure(self.ops() - 1, error, message);
        self.poison(failure, stream)
    }

    /// Describes the failure of an op of this region.
    fn failure(&self, node: usize, error: &DeviceError, message: String) -> Arc<Failure> {
        let (op, site) = self.info.address(node);
        Arc::new(Failure {
            stage: error.stage,
            op,
            site,
            region: Some(self.info.reference),
            message,
            resource_exhausted: error.is_out_of_memory(),
            plugin: error.plugin.clone(),
        })
    }

    fn into_region(self) -> EngineRegion {
        let Job { info, inputs, outputs, units, boundary, mode, effect, .. } = self;
        let graph = info.canon.graph().clone();
        let sites = Vec::clone(&info.sites);
        let mut live = outputs.into_iter().peekable();
        let types = graph.nodes().iter().flat_map(|node| node.signature().results());
        let outputs = (0u32..).zip(types).map(|(index, ty)| match live.next_if(|&(live, _)| live == index) {
            Some((_, value)) => Output { value, live: true },
            // Nobody outside holds this value. The parts of the region pass it on.
            None => Output { value: ValueCell::promised_to_nobody(ty.clone()), live: false },
        });
        let outputs = outputs.collect();
        Region {
            graph,
            inputs,
            outputs,
            sites,
            units,
            spans_user_boundaries: false,
            round: None,
            boundary,
            mode,
            effect,
        }
    }

    /// Fails all results.
    fn poison(self, failure: Arc<Failure>, stream: &StreamShared) -> Progress {
        let engine = stream.engine();
        engine.counters().poisoned.add(self.needed.len() as u64);
        engine.keep_failure(&failure);
        let (region, values) = (self.info.reference, self.needed.len());
        engine.emit(|| Event::Poisoned { region, values, why: failure.to_string() });
        for (_, value) in self.outputs {
            drop(value.resolve(Outcome::Failed(failure.clone())));
        }
        Progress::Done
    }

    /// The failure of the first input that has one.
    fn failed_input(&self) -> Option<Arc<Failure>> {
        self.inputs.iter().find_map(|input| match input.value.cell().outcome().get() {
            Some(Outcome::Failed(failure)) => Some(failure.clone()),
            Some(Outcome::Abandoned) => Some(Arc::new(Failure {
                stage: Stage::Execute,
                op: None,
                site: Site::Unknown,
                region: None,
                message: "an input was given up: the stream that makes it was dropped".to_owned(),
                resource_exhausted: false,
                plugin: None,
            })),
            _ => None,
        })
    }

    /// Whether the region is a single op.
    fn is_single(&self) -> bool {
        self.ops() == 1
    }
}
