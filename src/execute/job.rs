//! One region on its way to the device.

use std::sync::Arc;
use std::time::Instant;

use fuseline_cache::{Claim, Hit, Key, Lookup, OutputSet};
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Input, LoopFingerprint, Mode, Output, Region, Unit};
use fuseline_fusion::{Bytes, RegionSeq, Site, ValueId};
use fuseline_record::template::{LoopId, Template};

use super::EngineRegion;
use super::baseline;
use super::compile::{Compile, CompilePriority, CompileSlot, FailureCaching, MemoryFallback};
use super::interpreter_tier::{self, InterpretedRun, NextTier, Slot};
use super::memory::MemoryWaiter;
use super::miss_history::MissReport;
use super::padded_regions::{PaddedRegion, ShapeCount};
use super::quarantine::QuarantineScope;
use crate::device::{Cause, DeviceError, Executable, ExecutableOptions};
use crate::error::{Failure, RegionRef, Stage};
use crate::event::{Event, SealedRegion, Wait};
use crate::record::{Recorded, ReplayTrace};
use crate::stream::StreamShared;
use crate::value::{Outcome, RegionInfo, ValueCell, ValuePromise, ValueRef};

/// Where a job stands.
pub(super) enum State {
    /// An executable has to be looked for.
    Wanted,
    /// It is being compiled for this job.
    Compiling(Arc<CompileSlot>),
    /// It is being compiled for somebody else; looked for again when that has ended.
    Following(Arc<CompileSlot>),
    /// It is there.
    Ready(Hit<Executable>),
    /// It will not be: the region cannot be compiled.
    Refused(Arc<DeviceError>),
    /// It will not be, as is known from before.
    Known(Arc<DeviceError>),
    /// There was no memory; it goes on, with the executable if there is one, when there may be
    /// some.
    Short(Arc<MemoryWaiter>, Option<Hit<Executable>>),
    /// It is not there now, and nobody waits for it: the region's units run instead.
    RanUnmerged,
    /// It would be for these sizes only: the region is cut before these ops, and few of its parts
    /// are new.
    Apart(Vec<usize>),
    /// It is not wanted yet, or, with the slot, not there yet, and the interpreter has the time
    /// until then.
    Cold(InterpretedRun, Option<Arc<CompileSlot>>),
    /// There is none of its own, but one for its sizes and others.
    PaddedRegion(Arc<PaddedRegion>, Hit<Executable>),
    /// It will not be: the region crashed a process, or is an op of one that did. The interpreter
    /// runs it.
    Quarantined,
    /// It is not wanted yet, or will not be, and the interpreter or the executable of its bucket is
    /// at it.
    Interpreting(Arc<Slot>),
}

/// A sealed region, what it reads and makes, and how far it has come.
pub(super) struct Job {
    pub(super) info: Arc<RegionInfo>,
    pub(super) inputs: Vec<Input<ValueRef>>,
    /// The results that live on, by their number.
    pub(super) outputs: Vec<(u32, ValuePromise)>,
    mode: Mode,
    pub(super) effect: Effect,
    pub(super) boundary: Boundary,
    /// What it was joined from, if it was.
    units: Vec<Unit>,
    /// Their numbers.
    pub(super) needed: OutputSet,
    /// Bytes of those, on all replicas.
    pub(super) output_bytes: Bytes,
    /// The input from another stream that the job has asked to be told about.
    pub(super) awaits: Option<ValueId>,
    /// What it waits for as the first of its stream, and since when.
    waits: Option<(Wait, Instant)>,
    /// Whether it was interpreted, or would have been.
    pub(super) was_cold: bool,
    /// Whether somebody who reads of it has what they read.
    pub(super) has_answered: bool,
    /// What the region needs as a whole that this one was cut from for that.
    pub(super) part_of: Option<Bytes>,
    /// Whether it is kept from the compiler, because it crashed a process or may have.
    pub(super) quarantine: QuarantineScope,
    /// Memory was not yet freed for it.
    pub(super) may_free: bool,
    state: State,
}

/// What [`Job::advance`] came to.
pub(super) enum Progress {
    /// It was launched, or its results have failed.
    Done,
    /// It waits; the stream will be notified.
    Blocked(Box<Job>),
    /// It runs op by op instead, or in parts; with what it needs as a whole, if it is for that.
    Parts(Vec<EngineRegion>, Option<Bytes>),
    /// It runs op by op instead, and its ops are kept from the compiler.
    Quarantined(Vec<EngineRegion>, QuarantineScope),
}

/// What the cache knows a region by.
pub(super) fn cache_key(info: &RegionInfo) -> Key {
    Key::new(*info.reference.key.as_bytes())
}

/// The ends of a region.
struct RegionBindings {
    inputs: Vec<Input<ValueRef>>,
    live: Vec<(u32, ValuePromise)>,
    boundary: Boundary,
    mode: Mode,
    effect: Effect,
    units: Vec<Unit>,
    /// Where the host asked for a value, if that is why it ends.
    asked: Option<Site>,
    /// Every result, for those who look at the region, if somebody does.
    all: Option<Arc<[Output]>>,
}

impl Job {
    /// Brings a region into canonical form. `None` for one that nobody needs. `asked` is where the
    /// host asked for it, if that is known.
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

    /// The region that a whole tape is. `None` for one that nobody needs.
    pub(super) fn replayed(
        tape: &mut ReplayTrace,
        boundary: Boundary,
        asked: Option<Site>,
        seq: RegionSeq,
        stream: &StreamShared,
    ) -> Option<Box<Job>> {
        let engine = stream.engine();
        let output = |(value, live)| Output { value, live };
        let all = engine.is_observed().then(|| tape.outputs().map(output).collect());
        let template = tape.template().clone();
        let Recorded { inputs, live, sites } = tape.take_region();
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
            state: State::Wanted,
        }))
    }

    /// Makes a template of it, if it is one now.
    pub(super) fn note(
        &self,
        round: Option<LoopFingerprint>,
        stream: &StreamShared,
    ) -> Option<Arc<Template>> {
        let info = &self.info;
        let round = round.map(|print| LoopId { print, boundary: self.boundary });
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

    /// Looks for an executable, and sees to it that one is made if there is none. A region that was
    /// joined from units does not wait for that.
    pub(super) fn prepare(&mut self, stream: &Arc<StreamShared>) {
        if !matches!(self.state, State::Wanted) {
            return;
        }
        if let Some(state) = self.sheltered(stream) {
            self.state = state;
            return;
        }
        let engine = stream.engine();
        let key = cache_key(&self.info);
        let region = self.info.reference;
        let cold = engine.cold().filter(|_| self.may_be_cold());
        let mut overdue = None;
        match cold.and_then(|cold| cold.again(region.key)) {
            Some(NextTier::Interpret(run)) => {
                if run.starts_compile()
                    && let Lookup::Claimed(claim) =
                        engine.cache().lookup(&key, self.info.canon.bytes(), &self.needed)
                {
                    // When the region has been interpreted often enough it is waited for, or the
                    // interpreter goes on; then there is no hurry.
                    let may_be_quick = !run.goes_on(engine.config());
                    self.compile_by(Some(claim), run.haste(), may_be_quick, stream);
                } else if run.haste() == CompilePriority::Foreground {
                    // What was begun in case it is run again is needed.
                    engine.compile_pool().hasten(region.key.as_bytes());
                }
                self.state = State::Cold(run, None);
                return;
            }
            Some(NextTier::Compile(run)) => {
                self.was_cold = true;
                overdue = Some(run);
            }
            None => {}
        }
        let found = engine.cache().lookup(&key, self.info.canon.bytes(), &self.needed);
        // For a run that may compile nothing, and so does neither interpret nor pad.
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
            Lookup::InFlight(_) if self.runs_in_units(stream) => State::RanUnmerged,
            Lookup::Failed(_) | Lookup::Collision if self.is_joined() => State::RanUnmerged,
            Lookup::InFlight(flight) => {
                engine.compile_pool().hasten(region.key.as_bytes());
                let slot = CompileSlot::of(flight, stream);
                if let Some(run) = overdue.filter(|run| run.goes_on(engine.config())) {
                    self.state = State::Cold(run, Some(slot));
                    return;
                }
                State::Following(slot)
            }
            Lookup::Failed(error) => State::Known(error),
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
                        // Another process has compiled it: it is loaded, and interpreted at most
                        // while that takes.
                        let slot = self.compile(Some(claim), CompilePriority::Foreground, stream);
                        if let Some(cold) = cold {
                            cold.warm(region.key);
                        }
                        match interpreter_tier::is_done_before_a_load(self.info.canon.graph()) {
                            true => State::Cold(run, None),
                            false => State::Compiling(slot),
                        }
                    }
                    Some(run) => {
                        if run.starts_compile() {
                            self.compile(Some(claim), CompilePriority::Background, stream);
                        } else {
                            self.note_asked(asked, stream);
                        }
                        State::Cold(run, None)
                    }
                    None if self.runs_in_units(stream) => {
                        self.compile(Some(claim), CompilePriority::Background, stream);
                        State::RanUnmerged
                    }
                    None => State::Compiling(self.compile(Some(claim), CompilePriority::Foreground, stream)),
                }
            }
            Lookup::Collision => {
                self.report_miss(true, stream);
                State::Compiling(self.compile(None, CompilePriority::Foreground, stream))
            }
        };
        if let Some(cold) = cold.filter(|_| overdue.is_some()) {
            cold.warm(region.key);
        }
    }

    /// Whether what a claim is for can be loaded, as far as that is known, and what runs may depend
    /// on it.
    fn is_stored(&self, claim: &Claim<Executable, DeviceError>, stream: &StreamShared) -> bool {
        let engine = stream.engine();
        let Some(store) = engine.store().filter(|_| !engine.config().is_reproducible()) else { return false };
        let compile = self.compile_of(claim.outputs().clone());
        compile.ask(&compile.how, &self.info, store).is_some_and(|asked| store.may_have(&asked))
    }

    /// A compile of the region by itself, with all that the compiler has.
    pub(super) fn compile_of(&self, outputs: OutputSet) -> Compile {
        let (dying, how) = (self.dying(), ExecutableOptions::default());
        Compile { outputs, dying, how, otherwise: MemoryFallback::Parts(None) }
    }

    /// Whether it runs as its units while its executable is not there.
    fn runs_in_units(&self, stream: &StreamShared) -> bool {
        self.is_joined() && !stream.engine().config().is_reproducible()
    }

    /// It is there.
    pub(super) fn hit(&self, key: Key, hit: Hit<Executable>, stream: &Arc<StreamShared>) -> State {
        let (engine, region) = (stream.engine(), self.info.reference);
        engine.counters().hits.add(1);
        engine.emit(|| Event::Hit { region, surplus: hit.outputs.len() - self.needed.len() });
        self.replace_stopgap(&hit, stream);
        self.note_surplus(key, &hit, stream);
        State::Ready(hit)
    }

    /// Starts a compile; with a claim, for the cache too.
    pub(super) fn compile(
        &self,
        claim: Option<Claim<Executable, DeviceError>>,
        haste: CompilePriority,
        stream: &Arc<StreamShared>,
    ) -> Arc<CompileSlot> {
        // What is joined runs as its units until its best executable is there.
        let may_be_quick = claim.is_some() && !self.is_joined();
        self.compile_by(claim, haste, may_be_quick, stream)
    }

    /// [`Job::compile`], in a hurry only if it may be.
    fn compile_by(
        &self,
        claim: Option<Claim<Executable, DeviceError>>,
        haste: CompilePriority,
        may_be_quick: bool,
        stream: &Arc<StreamShared>,
    ) -> Arc<CompileSlot> {
        let outputs = claim.as_ref().map_or(&self.needed, Claim::outputs).clone();
        // Who waits for it frees memory first, and a single op is tried again whenever it comes.
        // Nobody ever waits for what is joined.
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

    /// Whether it is interpreted if it is new.
    pub(super) fn may_be_cold(&self) -> bool {
        !self.was_cold && !self.is_joined() && self.mode == Mode::Fused && self.effect == Effect::Pure
    }

    /// Whether units were joined to this region.
    pub(super) fn is_joined(&self) -> bool {
        !self.units.is_empty()
    }

    /// The regions to run instead: the job itself, or, if it was joined and its executable is not
    /// there, its units.
    pub(super) fn or_units(self: Box<Self>, stream: &StreamShared) -> Result<Box<Job>, Vec<EngineRegion>> {
        if !matches!(self.state, State::RanUnmerged) {
            return Ok(self);
        }
        let (region, units) = (self.info.reference, self.units.len());
        stream.engine().emit(|| Event::RanUnmerged { region, units });
        Err(self.into_region().into_units())
    }

    /// The executable that [`Job::prepare`] found.
    #[cfg(feature = "stages")]
    pub(super) fn take_hit(&mut self) -> Option<Hit<Executable>> {
        match std::mem::replace(&mut self.state, State::Wanted) {
            State::Ready(hit) => Some(hit),
            _ => None,
        }
    }

    /// `is_first`: no executable of the region is in the cache, whatever it returns.
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

    /// Goes on as far as possible.
    pub(super) fn advance(mut self: Box<Self>, stream: &Arc<StreamShared>) -> Progress {
        loop {
            self.state = match self.state {
                State::Wanted => {
                    self.prepare(stream);
                    continue;
                }
                State::Compiling(slot) => match slot.take() {
                    None => {
                        self.state = State::Compiling(slot);
                        self.waits_for(Wait::Compile, stream);
                        return Progress::Blocked(self);
                    }
                    Some(Ok(hit)) => State::Ready(hit),
                    Some(Err(error)) => State::Refused(error),
                },
                State::Following(slot) => {
                    if !slot.has_landed() {
                        self.state = State::Following(slot);
                        self.waits_for(Wait::Compile, stream);
                        return Progress::Blocked(self);
                    }
                    State::Wanted
                }
                State::Ready(hit) => {
                    self.state = State::Wanted;
                    return self.launch(hit, stream);
                }
                State::Refused(error) => {
                    self.state = State::Wanted;
                    self.goes_on(stream);
                    return match error.cause {
                        Cause::Memory => self.out_of_memory(&error, None, stream),
                        Cause::Oversized(_) => self.in_parts(&error, stream),
                        Cause::TooManyOps if self.ops() > 1 => self.in_parts(&error, stream),
                        Cause::Quarantined => match self.in_quarantine(error, stream) {
                            Ok(mut job) => {
                                job.state = State::Quarantined;
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
                State::Known(error) => {
                    self.state = State::Wanted;
                    return match error.cause {
                        Cause::Memory | Cause::Oversized(_) | Cause::TooManyOps if self.ops() > 1 => {
                            self.in_parts(&error, stream)
                        }
                        Cause::Quarantined => {
                            self.state = State::Refused(error);
                            continue;
                        }
                        _ => self.give_up(&error, stream),
                    };
                }
                State::Short(room, hit) => {
                    if !room.has_ended() {
                        self.state = State::Short(room, hit);
                        self.waits_for(Wait::InFlight, stream);
                        return Progress::Blocked(self);
                    }
                    self.state = hit.map_or(State::Wanted, State::Ready);
                    self.goes_on(stream);
                    continue;
                }
                State::Cold(_, Some(slot)) if slot.has_landed() => State::Wanted,
                State::Cold(run, slot) => {
                    self.state = State::Cold(run, slot);
                    if self.awaits_input(stream) {
                        return Progress::Blocked(self);
                    }
                    self = match self.unless_an_input_failed(stream) {
                        Ok(job) => job,
                        Err(instead) => return instead,
                    };
                    match stream.engine().interpret_pool() {
                        Some(pool) => State::Interpreting(self.interpret(run, pool, stream)),
                        None => State::Wanted,
                    }
                }
                State::PaddedRegion(bucketed, hit) => {
                    self.state = State::Wanted;
                    if self.awaits_input(stream) {
                        self.state = State::PaddedRegion(bucketed, hit);
                        return Progress::Blocked(self);
                    }
                    self = match self.unless_an_input_failed(stream) {
                        Ok(job) => job,
                        Err(instead) => return instead,
                    };
                    match stream.engine().interpret_pool() {
                        Some(pool) => State::Interpreting(self.run_padded(bucketed, hit, pool, stream)),
                        None => State::Wanted,
                    }
                }
                State::Quarantined => {
                    self.state = State::Quarantined;
                    if self.awaits_input(stream) {
                        return Progress::Blocked(self);
                    }
                    self = match self.unless_an_input_failed(stream) {
                        Ok(job) => job,
                        Err(instead) => return instead,
                    };
                    State::Interpreting(self.take_shelter(stream))
                }
                State::Interpreting(slot) => {
                    let Some(interpreted) = slot.take() else {
                        self.state = State::Interpreting(slot);
                        self.waits_for(Wait::Interpreter, stream);
                        return Progress::Blocked(self);
                    };
                    self.was_cold = true;
                    self.state = State::Wanted;
                    self.goes_on(stream);
                    match self.fulfil_interpreted(interpreted, stream) {
                        Ok(step) => return step,
                        Err(job) => self = job,
                    }
                    State::Wanted
                }
                State::Apart(places) => {
                    self.state = State::Wanted;
                    return self.sizes_apart(&places, stream);
                }
                State::RanUnmerged => {
                    self.state = State::RanUnmerged;
                    return match self.or_units(stream) {
                        Ok(job) => Progress::Blocked(job),
                        Err(units) => Progress::Parts(units, None),
                    };
                }
            };
        }
    }

    /// It is the first of its stream that is not launched, and waits.
    pub(super) fn waits_for(&mut self, wait: Wait, stream: &StreamShared) {
        if self.waits.is_some_and(|(before, _)| before == wait) {
            return;
        }
        self.goes_on(stream);
        let since = Instant::now();
        self.waits = Some((wait, since));
        stream.activity().waits(wait, &self.info, since);
    }

    /// It waits no longer.
    pub(super) fn goes_on(&mut self, stream: &StreamShared) {
        if let Some((wait, since)) = self.waits.take() {
            stream.activity().goes_on();
            let (region, took) = (self.info.reference, since.elapsed());
            stream.engine().emit(|| Event::Waited { region, wait, took });
        }
    }

    /// Keeps the job with its executable until later.
    pub(super) fn blocked(mut self: Box<Self>, hit: Hit<Executable>) -> Progress {
        self.state = State::Ready(hit);
        Progress::Blocked(self)
    }

    /// Keeps the job, and the executable if there is one, until there may be memory.
    pub(super) fn short_of_room(
        mut self: Box<Self>,
        room: Arc<MemoryWaiter>,
        hit: Option<Hit<Executable>>,
    ) -> Progress {
        self.state = State::Short(room, hit);
        Progress::Blocked(self)
    }

    /// The region failed as a whole: it runs op by op, or, if it is one op, or its ops would not be
    /// compiled either, its results fail.
    pub(super) fn give_up(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        if self.ops() > 1 && error.cause != Cause::Uncached {
            return self.split(error.message.clone(), stream);
        }
        self.fail_or_pass_on(error, stream)
    }

    /// The region's only op failed, or all of them: with an error, or because an input of it had.
    pub(super) fn fail_or_pass_on(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        // What went wrong first is what to say.
        let failure = self.failed_input();
        let failure = failure.unwrap_or_else(|| self.failure(0, error, error.message.clone()));
        self.poison(failure, stream)
    }

    /// The whole region failed with an error that leaves nothing to be tried.
    pub(super) fn fail(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        let message = match self.ops() {
            1 => error.message.clone(),
            ops => format!("{} (one of the {ops} ops of the region up to this one)", error.message),
        };
        let failure = self.failure(self.ops() - 1, error, message);
        self.poison(failure, stream)
    }

    /// What to say of an op of this region that failed.
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

    /// Takes the region apart.
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
            // Nobody outside has it; the parts of the region hand it on.
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

    /// Whether it runs op by op already.
    pub(super) fn is_single(&self) -> bool {
        self.ops() == 1
    }
}
