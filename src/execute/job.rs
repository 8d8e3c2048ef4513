//! A job: one region on its way to the device.

use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::{Claim, Hit, Key, Lookup, OutputSet};
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Input, LoopFingerprint, Mode, Output, Region, Unit};
use fuseline_fusion::{Bytes, RegionSeq, Site, ValueId};
use fuseline_record::template::{LoopIteration, Template};

use super::EngineRegion;
use super::baseline;
use super::compile::{Compile, CompilePriority, CompileSlot, FailureCaching, MemoryFallback};
use super::interpreter_tier::{self, InterpretedRun, NextTier, ResultSlot};
use super::memory::MemoryWaiter;
use super::miss_history::MissReport;
use super::padded_regions::{PaddedRegion, ShapeCount};
use super::quarantine::QuarantineScope;
use crate::device::{Cause, DeviceError, Executable, ExecutableOptions};
use crate::error::{Failure, RegionRef, Stage};
use crate::event::{Event, SealedRegion, Wait};
use crate::record::{RecordedRegion, ReplayTrace};
use crate::stream::StreamShared;
use crate::value::{Outcome, RegionInfo, ValueCell, ValuePromise, ValueRef};

/// The state of a job.
pub(super) enum JobState {
    /// The executable has to be looked up.
    Wanted,
    /// The executable is being compiled for this job.
    Compiling(Arc<CompileSlot>),
    /// The executable is being compiled for another job. When that ends, this job looks it up
    /// again.
    Following(Arc<CompileSlot>),
    /// The executable is available.
    Ready(Hit<Executable>),
    /// The compile for this job failed.
    Refused(Arc<DeviceError>),
    /// An earlier compile failed, and the cache has its error.
    Known(Arc<DeviceError>),
    /// Memory ran out. The job goes on, with the executable if it had one, when some may be free.
    Short(Arc<MemoryWaiter>, Option<Hit<Executable>>),
    /// The executable of a merged region is not available, and nobody waits for it: its units run.
    RanUnmerged,
    /// An executable would serve these sizes only. The region is cut before these ops, so that few
    /// of its parts are new.
    ShapeSplit(Vec<usize>),
    /// The interpreter is to run the region: its executable is not wanted yet, or, with a slot, is
    /// being compiled.
    Interpreted(InterpretedRun, Option<Arc<CompileSlot>>),
    /// The region has no executable of its own, but its bucket has one.
    PaddedRegion(Arc<PaddedRegion>, Hit<Executable>),
    /// The region crashed a process, or is an op of a region that did. The interpreter runs it.
    Quarantined,
    /// The interpreter, or the executable of the bucket, is running the region.
    Interpreting(Arc<ResultSlot>),
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
    pub(super) was_cold: bool,
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
    /// The region runs op by op or in parts instead. The bytes are what it needs as a whole, if
    /// that is the reason.
    Parts(Vec<EngineRegion>, Option<Bytes>),
    /// The region runs op by op instead, and its ops are kept from the compiler.
    Quarantined(Vec<EngineRegion>, QuarantineScope),
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
    /// Brings a region into canonical form. Returns `None` for a region that nobody needs. `asked`
    /// is the call site that requested its result, if known.
    pub(super) fn new(
        region: EngineRegion,
        asked: Option<Site>,
        seq: RegionSeq,
        stream: &StreamShared,
    ) -> Option<Box<Job>> {
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

    /// Makes the job of a whole replayed trace. Returns `None` for a region that nobody needs.
    pub(super) fn replayed(
        trace: &mut ReplayTrace,
        boundary: Boundary,
        asked: Option<Site>,
        seq: RegionSeq,
        stream: &StreamShared,
    ) -> Option<Box<Job>> {
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

    fn of(info: Arc<RegionInfo>, ends: RegionBindings, stream: &StreamShared) -> Option<Box<Job>> {
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
        if needed.is_empty() && effect == Effect::Pure {
            engine.counters().skipped.add(1);
            engine.emit(|| Event::Skipped { region: reference });
            return None;
        }
        Some(Box::new(Job {
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
            was_cold: false,
            has_answered: false,
            part_of: None,
            quarantine: QuarantineScope::None,
            may_free: true,
            state: JobState::Wanted,
        }))
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

    /// Looks up the executable, and starts a compile if there is none. A merged region does not
    /// wait for that.
    pub(super) fn prepare(&mut self, stream: &Arc<StreamShared>) {
        if !matches!(self.state, JobState::Wanted) {
            return;
        }
        if let Some(state) = self.sheltered(stream) {
            self.state = state;
            return;
        }
        let engine = stream.engine();
        let key = cache_key(&self.info);
        let region = self.info.reference;
        let cold = engine.interpreter_tier().filter(|_| self.may_be_cold());
        let mut overdue = None;
        match cold.and_then(|cold| cold.again(region.key)) {
            Some(NextTier::Interpret(run)) => {
                if run.starts_compile()
                    && let Lookup::Claimed(claim) =
                        engine.cache().lookup(&key, self.info.canon.bytes(), &self.needed)
                {
                    // A region that has been interpreted often enough waits for the compile, or the
                    // interpreter goes on. In the second case the compile need not be fast.
                    let may_be_quick = !run.goes_on(engine.config());
                    self.compile_by(Some(claim), run.haste(), may_be_quick, stream);
                } else if run.haste() == CompilePriority::Foreground {
                    // The compile that was started speculatively is needed.
                    engine.compile_pool().hasten(region.key.as_bytes());
                }
                self.state = JobState::Interpreted(run, None);
                return;
            }
            Some(NextTier::Compile(run)) => {
                self.was_cold = true;
                overdue = Some(run);
            }
            None => {}
        }
        let found = engine.cache().lookup(&key, self.info.canon.bytes(), &self.needed);
        // For the manifest of a run that compiles nothing, and so neither interprets nor pads.
        let asked = match &found {
            Lookup::Claimed(claim) => engine.recorder().map(|_| claim.outputs().clone()),
            _ => None,
        };
        let found = match self.by_known_bucket(found, stream) {
            Ok(state) => {
                self.note_asked(asked, stream);
                self.state = state;
                return;
            }
            Err(found) => found,
        };
        self.state = match found {
            Lookup::Hit(hit) => self.hit(key, hit, stream),
            Lookup::InFlight(_) if self.runs_in_units(stream) => JobState::RanUnmerged,
            Lookup::Failed(_) | Lookup::Collision if self.is_joined() => JobState::RanUnmerged,
            Lookup::InFlight(flight) => {
                engine.compile_pool().hasten(region.key.as_bytes());
                let slot = CompileSlot::of(flight, stream);
                if let Some(run) = overdue.filter(|run| run.goes_on(engine.config())) {
                    self.state = JobState::Interpreted(run, Some(slot));
                    return;
                }
                JobState::Following(slot)
            }
            Lookup::Failed(error) => JobState::Known(error),
            Lookup::Claimed(claim) => {
                let (mut claim, mut sizes) = (claim, ShapeCount::Few);
                if !self.was_cold {
                    self.report_miss(claim.is_first(), stream);
                    (claim, sizes) = match self.by_new_bucket(claim, stream) {
                        Ok(state) => {
                            self.note_asked(asked, stream);
                            self.state = state;
                            return;
                        }
                        Err(not_padded) => not_padded,
                    };
                }
                let cold = cold.filter(|_| !self.was_cold);
                match cold.and_then(|cold| cold.first(region.key, self.info.canon.graph(), sizes)) {
                    Some(run) if self.is_stored(&claim, stream) => {
                        // Another process has compiled it: load it, and interpret at most while it
                        // loads.
                        let slot = self.compile(Some(claim), CompilePriority::Foreground, stream);
                        if let Some(cold) = cold {
                            cold.warm(region.key);
                        }
                        match interpreter_tier::is_done_before_a_load(self.info.canon.graph()) {
                            true => JobState::Interpreted(run, None),
                            false => JobState::Compiling(slot),
                        }
                    }
                    Some(run) => {
                        if run.starts_compile() {
                            self.compile(Some(claim), CompilePriority::Background, stream);
                        } else {
                            self.note_asked(asked, stream);
                        }
                        JobState::Interpreted(run, None)
                    }
                    None if self.runs_in_units(stream) => {
                        self.compile(Some(claim), CompilePriority::Background, stream);
                        JobState::RanUnmerged
                    }
                    None => {
                        JobState::Compiling(self.compile(Some(claim), CompilePriority::Foreground, stream))
                    }
                }
            }
            Lookup::Collision => {
                self.report_miss(true, stream);
                JobState::Compiling(self.compile(None, CompilePriority::Foreground, stream))
            }
        };
        if let Some(cold) = cold.filter(|_| overdue.is_some()) {
            cold.warm(region.key);
        }
    }

    /// Whether the store probably has the executable that a claim is for. `false` in a reproducible
    /// engine, whose runs must not depend on that.
    fn is_stored(&self, claim: &Claim<Executable, DeviceError>, stream: &StreamShared) -> bool {
        let engine = stream.engine();
        let Some(store) = engine.store().filter(|_| !engine.config().is_reproducible()) else { return false };
        let compile = self.compile_of(claim.outputs().clone());
        compile.ask(&compile.how, &self.info, store).is_some_and(|asked| store.may_have(&asked))
    }

    /// A fully optimized compile of the region.
    pub(super) fn compile_of(&self, outputs: OutputSet) -> Compile {
        let (dying, how) = (self.dying(), ExecutableOptions::default());
        Compile { outputs, dying, how, otherwise: MemoryFallback::Parts(None) }
    }

    /// Whether the units run while the executable does not exist.
    fn runs_in_units(&self, stream: &StreamShared) -> bool {
        self.is_joined() && !stream.engine().config().is_reproducible()
    }

    /// Notes a cache hit and reports it to the variant policies.
    pub(super) fn hit(&self, key: Key, hit: Hit<Executable>, stream: &Arc<StreamShared>) -> JobState {
        let (engine, region) = (stream.engine(), self.info.reference);
        engine.counters().hits.add(1);
        engine.emit(|| Event::Hit { region, surplus: hit.outputs.len() - self.needed.len() });
        self.replace_baseline(&hit, stream);
        self.note_unused_outputs(key, &hit, stream);
        JobState::Ready(hit)
    }

    /// Starts a compile. With a claim, the result also goes to the cache.
    pub(super) fn compile(
        &self,
        claim: Option<Claim<Executable, DeviceError>>,
        haste: CompilePriority,
        stream: &Arc<StreamShared>,
    ) -> Arc<CompileSlot> {
        // A merged region runs as its units until its optimized executable exists.
        let may_be_quick = claim.is_some() && !self.is_joined();
        self.compile_by(claim, haste, may_be_quick, stream)
    }

    /// As [`Job::compile`]. The compile is a baseline compile only if `may_be_quick`.
    fn compile_by(
        &self,
        claim: Option<Claim<Executable, DeviceError>>,
        haste: CompilePriority,
        may_be_quick: bool,
        stream: &Arc<StreamShared>,
    ) -> Arc<CompileSlot> {
        let outputs = claim.as_ref().map_or(&self.needed, Claim::outputs).clone();
        // A job that waits for the compile frees memory first, and a single op is always tried
        // again. Nobody ever waits for a merged region.
        let remembered = match self.is_joined() || !self.may_free && self.ops() > 1 {
            true => FailureCaching::All,
            false => FailureCaching::ButForMemory,
        };
        let quick = may_be_quick && baseline::pays(self.info.canon.graph(), stream.engine());
        let how = ExecutableOptions { quick, ..ExecutableOptions::default() };
        let compile =
            Compile { outputs, dying: self.dying(), how, otherwise: MemoryFallback::Parts(self.part_of) };
        compile.start(claim, haste, remembered, &self.info, stream)
    }

    /// Whether the interpreter may run the region when it is new.
    pub(super) fn may_be_cold(&self) -> bool {
        !self.was_cold && !self.is_joined() && self.mode == Mode::Fused && self.effect == Effect::Pure
    }

    /// Whether the region was merged from units.
    pub(super) fn is_joined(&self) -> bool {
        !self.units.is_empty()
    }

    /// The regions to run: the job itself, or the units of a merged region without an executable.
    pub(super) fn or_units(self: Box<Self>, stream: &StreamShared) -> Result<Box<Job>, Vec<EngineRegion>> {
        if !matches!(self.state, JobState::RanUnmerged) {
            return Ok(self);
        }
        let (region, units) = (self.info.reference, self.units.len());
        stream.engine().emit(|| Event::RanUnmerged { region, units });
        Err(self.into_region().into_units())
    }

    /// The executable that [`Job::prepare`] found.
    #[cfg(feature = "stages")]
    pub(super) fn take_hit(&mut self) -> Option<Hit<Executable>> {
        match std::mem::replace(&mut self.state, JobState::Wanted) {
            JobState::Ready(hit) => Some(hit),
            _ => None,
        }
    }

    /// Counts and reports a miss. `is_first`: the cache has no executable of the region, whatever
    /// its results.
    fn report_miss(&self, is_first: bool, stream: &StreamShared) {
        let engine = stream.engine();
        engine.counters().misses.add(1);
        let MissReport { why, storm } =
            engine.miss_history().miss(&self.info, is_first, engine.is_observed());
        let region = self.info.reference;
        engine.emit(|| Event::Miss { region, why });
        if let Some((misses, varying)) = storm {
            engine.emit(|| Event::RecompileStorm { region, misses, varying });
        }
    }

    /// Parameters whose memory may be reused when the region is compiled.
    pub(super) fn dying(&self) -> Vec<u32> {
        let dies = |(_, input): &(u32, &Input<ValueRef>)| input.dies && !input.lifted;
        (0u32..).zip(&self.inputs).filter(dies).map(|(index, _)| index).collect()
    }

    /// Advances the job as far as possible.
    pub(super) fn advance(mut self: Box<Self>, stream: &Arc<StreamShared>) -> Progress {
        loop {
            self.state = match self.state {
                JobState::Wanted => {
                    self.prepare(stream);
                    continue;
                }
                JobState::Compiling(slot) => match slot.take() {
                    None => {
                        self.state = JobState::Compiling(slot);
                        self.waits_for(Wait::Compile, stream);
                        return Progress::Blocked(self);
                    }
                    Some(Ok(hit)) => JobState::Ready(hit),
                    Some(Err(error)) => JobState::Refused(error),
                },
                JobState::Following(slot) => {
                    if !slot.has_landed() {
                        self.state = JobState::Following(slot);
                        self.waits_for(Wait::Compile, stream);
                        return Progress::Blocked(self);
                    }
                    JobState::Wanted
                }
                JobState::Ready(hit) => {
                    self.state = JobState::Wanted;
                    return self.launch(hit, stream);
                }
                JobState::Refused(error) => {
                    self.state = JobState::Wanted;
                    self.goes_on(stream);
                    return match error.cause {
                        Cause::Memory => self.out_of_memory(&error, None, stream),
                        Cause::Oversized(_) => self.in_parts(&error, stream),
                        Cause::TooManyOps if self.ops() > 1 => self.in_parts(&error, stream),
                        Cause::Quarantined => match self.in_quarantine(error, stream) {
                            Ok(mut job) => {
                                job.state = JobState::Quarantined;
                                self = job;
                                continue;
                            }
                            Err(instead) => instead,
                        },
                        Cause::TooManyOps | Cause::Stuck | Cause::Closed | Cause::Uncached | Cause::Other => {
                            self.give_up(&error, stream)
                        }
                    };
                }
                JobState::Known(error) => {
                    self.state = JobState::Wanted;
                    return match error.cause {
                        Cause::Memory | Cause::Oversized(_) | Cause::TooManyOps if self.ops() > 1 => {
                            self.in_parts(&error, stream)
                        }
                        Cause::Quarantined => {
                            self.state = JobState::Refused(error);
                            continue;
                        }
                        _ => self.give_up(&error, stream),
                    };
                }
                JobState::Short(room, hit) => {
                    if !room.has_ended() {
                        self.state = JobState::Short(room, hit);
                        self.waits_for(Wait::InFlight, stream);
                        return Progress::Blocked(self);
                    }
                    self.state = hit.map_or(JobState::Wanted, JobState::Ready);
                    self.goes_on(stream);
                    continue;
                }
                JobState::Interpreted(_, Some(slot)) if slot.has_landed() => JobState::Wanted,
                JobState::Interpreted(run, slot) => {
                    self.state = JobState::Interpreted(run, slot);
                    if self.awaits_input(stream) {
                        return Progress::Blocked(self);
                    }
                    self = match self.unless_an_input_failed(stream) {
                        Ok(job) => job,
                        Err(instead) => return instead,
                    };
                    match stream.engine().interpret_pool() {
                        Some(pool) => JobState::Interpreting(self.interpret(run, pool, stream)),
                        None => JobState::Wanted,
                    }
                }
                JobState::PaddedRegion(bucketed, hit) => {
                    self.state = JobState::Wanted;
                    if self.awaits_input(stream) {
                        self.state = JobState::PaddedRegion(bucketed, hit);
                        return Progress::Blocked(self);
                    }
                    self = match self.unless_an_input_failed(stream) {
                        Ok(job) => job,
                        Err(instead) => return instead,
                    };
                    match stream.engine().interpret_pool() {
                        Some(pool) => JobState::Interpreting(self.run_padded(bucketed, hit, pool, stream)),
                        None => JobState::Wanted,
                    }
                }
                JobState::Quarantined => {
                    self.state = JobState::Quarantined;
                    if self.awaits_input(stream) {
                        return Progress::Blocked(self);
                    }
                    self = match self.unless_an_input_failed(stream) {
                        Ok(job) => job,
                        Err(instead) => return instead,
                    };
                    JobState::Interpreting(self.take_shelter(stream))
                }
                JobState::Interpreting(slot) => {
                    let Some(interpreted) = slot.take() else {
                        self.state = JobState::Interpreting(slot);
                        self.waits_for(Wait::Interpreter, stream);
                        return Progress::Blocked(self);
                    };
                    self.was_cold = true;
                    self.state = JobState::Wanted;
                    self.goes_on(stream);
                    match self.fulfil_interpreted(interpreted, stream) {
                        Ok(step) => return step,
                        Err(job) => self = job,
                    }
                    JobState::Wanted
                }
                JobState::ShapeSplit(places) => {
                    self.state = JobState::Wanted;
                    return self.sizes_apart(&places, stream);
                }
                JobState::RanUnmerged => {
                    self.state = JobState::RanUnmerged;
                    return match self.or_units(stream) {
                        Ok(job) => Progress::Blocked(job),
                        Err(units) => Progress::Parts(units, None),
                    };
                }
            };
        }
    }

    /// The job is the first of its stream that is not launched, and it waits.
    pub(super) fn waits_for(&mut self, wait: Wait, stream: &StreamShared) {
        if self.waits.is_some_and(|(before, _)| before == wait) {
            return;
        }
        self.goes_on(stream);
        let since = Instant::now();
        self.waits = Some((wait, since));
        stream.activity().waits(wait, &self.info, since);
    }

    /// The wait is over.
    pub(super) fn goes_on(&mut self, stream: &StreamShared) {
        if let Some((wait, since)) = self.waits.take() {
            stream.activity().goes_on();
            let (region, took) = (self.info.reference, since.elapsed());
            stream.engine().emit(|| Event::Waited { region, wait, took });
        }
    }

    /// Keeps the job with its executable for a later attempt.
    pub(super) fn blocked(mut self: Box<Self>, hit: Hit<Executable>) -> Progress {
        self.state = JobState::Ready(hit);
        Progress::Blocked(self)
    }

    /// Keeps the job, with the executable if there is one, until memory may be free.
    pub(super) fn short_of_room(
        mut self: Box<Self>,
        room: Arc<MemoryWaiter>,
        hit: Option<Hit<Executable>>,
    ) -> Progress {
        self.state = JobState::Short(room, hit);
        Progress::Blocked(self)
    }

    /// The region failed as a whole. It runs op by op. Its results fail if it is a single op, or if
    /// its ops would not be compiled either.
    pub(super) fn give_up(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        if self.ops() > 1 && error.cause != Cause::Uncached {
            return self.split(error.message.clone(), stream);
        }
        self.fail_or_pass_on(error, stream)
    }

    /// Fails the results of the region, with the failure of an input if one failed, or with this
    /// error.
    pub(super) fn fail_or_pass_on(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        // The first failure is the one to report.
        let failure = self.failed_input();
        let failure = failure.unwrap_or_else(|| self.failure(0, error, error.message.clone()));
        self.poison(failure, stream)
    }

    /// Fails the whole region. There is no fallback for the error.
    pub(super) fn fail(self, error: &DeviceError, stream: &StreamShared) -> Progress {
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
        })
    }

    /// Splits the region into its ops.
    pub(super) fn split(self, why: String, stream: &StreamShared) -> Progress {
        let engine = stream.engine();
        engine.counters().fallbacks.add(1);
        let region = self.info.reference;
        engine.emit(|| Event::Fallback { region, why });
        Progress::Parts(self.into_region().split(), None)
    }

    pub(super) fn into_region(self) -> EngineRegion {
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
    pub(super) fn poison(self, failure: Arc<Failure>, stream: &StreamShared) -> Progress {
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
    pub(super) fn failed_input(&self) -> Option<Arc<Failure>> {
        self.inputs.iter().find_map(|input| match input.value.cell().outcome().get() {
            Some(Outcome::Failed(failure)) => Some(failure.clone()),
            Some(Outcome::Abandoned) => Some(Arc::new(Failure {
                stage: Stage::Execute,
                op: None,
                site: Site::Unknown,
                region: None,
                message: "an input was given up: the stream that makes it was dropped".to_owned(),
                resource_exhausted: false,
            })),
            _ => None,
        })
    }

    /// Whether the region is a single op.
    pub(super) fn is_single(&self) -> bool {
        self.ops() == 1
    }
}
