//! Decides how a job runs.
//!
//! Input: a new job. Output: its next state, by the plan that [`choose`] makes of the region's
//! history and of what the cache has. Compiles that the plan contains are started here.

use std::sync::Arc;

use fuseline_cache::{Claim, Hit, Lookup, OutputSet};
use fuseline_fusion::region::Input;
use fuseline_sync::oneshot::Receiver;

use super::partition::Partition;
use super::{Job, JobState, Pending, Refusal, Runner, cache_key};
use crate::device::{CompileSpec, DeviceError, Executable, Tier};
use crate::engine::stream::StreamShared;
use crate::engine::value::ValueRef;
use crate::error::Stage;
use crate::event::Event;
use crate::execute::compile::{Compile, CompileOutcome, FailureCaching, MemoryFallback, follow};
use crate::tier::interpreter::{InterpreterTier, ShapeCount, planned_runs};
use crate::tier::miss_history::MissReport;
use crate::tier::{
    CacheState, CompilePriority, CompileStart, History, InterpretedRun, Plan, Situation, baseline, choose,
    cost,
};

/// What the cache answers to the lookup of an executable.
pub(super) type LookupResult = Lookup<Executable, DeviceError>;

/// The exclusive right to compile an executable for the cache.
pub(super) type CompileClaim = Claim<Executable, DeviceError>;

impl Job {
    /// Decides how the job runs, and starts the compile that it needs. A merged region does not
    /// wait for that.
    pub(in crate::execute) fn prepare(&mut self, stream: &Arc<StreamShared>) {
        if !matches!(self.state, JobState::New) {
            return;
        }
        self.state = match self.quarantined_state(stream) {
            Some(state) => state,
            None => self.choose_runner(stream),
        };
    }

    fn choose_runner(&mut self, stream: &Arc<StreamShared>) -> JobState {
        let engine = stream.engine();
        let region = self.info.reference;
        let tier = engine.tiers().interpreter().filter(|_| self.may_be_interpreted());
        let history = tier.and_then(|tier| tier.count(region.key));
        if let Some(history @ History::Planned(run)) = history {
            let found = run.starts_compile().then(|| self.look_up(stream));
            let cache = found.as_ref().map_or(CacheState::Unknown, CacheState::of);
            return self.carry_out(choose(self.situation(history, cache, stream)), found, tier, stream);
        }
        self.is_past_interpreter |= history.is_some();
        let found = match self.look_up(stream) {
            // What the plan would be, without the detour: this is the path of a steady program.
            Lookup::Hit(hit) if history.is_none() => return self.hit(hit, stream),
            found => found,
        };
        // For the manifest of a run that compiles nothing, and so neither interprets nor pads.
        let requested = match &found {
            Lookup::Claimed(claim) => engine.stores().manifest().map(|_| claim.outputs().clone()),
            _ => None,
        };
        let plan = self.reuse_size_plan(found, stream).or_else(|found| self.make_size_plan(found, stream));
        let (found, sizes) = match plan {
            Ok(state) => {
                self.note_request(requested, stream);
                return state;
            }
            Err(unplanned) => unplanned,
        };
        let tier = tier.filter(|_| !self.is_past_interpreter);
        let (cache, planned) = self.cache_state(&found, tier, sizes, stream);
        let plan = choose(self.situation(history.unwrap_or(History::New { planned }), cache, stream));
        if let Plan::Interpret { compile: None, .. } = plan {
            self.note_request(requested, stream);
        }
        if let (Some(History::Overdue(_)), Some(tier)) = (history, engine.tiers().interpreter())
            && !matches!(plan, Plan::Interpret { .. })
        {
            tier.promote(region.key);
        }
        self.carry_out(plan, Some(found), tier, stream)
    }

    fn look_up(&self, stream: &StreamShared) -> LookupResult {
        stream.engine().cache().lookup(&cache_key(&self.info), self.info.canon.bytes(), &self.needed)
    }

    /// What the cache has, and how often the region may be interpreted if it has nothing.
    fn cache_state(
        &self,
        found: &LookupResult,
        tier: Option<&InterpreterTier>,
        sizes: ShapeCount,
        stream: &StreamShared,
    ) -> (CacheState, u32) {
        let Lookup::Claimed(claim) = found else { return (CacheState::of(found), 0) };
        let planned = tier.map_or(0, |_| planned_runs(self.info.canon.graph(), sizes));
        let is_stored = planned > 0 && self.is_stored(claim, stream);
        (if is_stored { CacheState::Stored } else { CacheState::Missing }, planned)
    }

    fn situation(&self, history: History, cache: CacheState, stream: &StreamShared) -> Situation {
        Situation {
            history,
            cache,
            is_merged: self.is_merged(),
            is_reproducible: stream.engine().config().reproducible,
            is_interpreted_before_a_load: cache == CacheState::Stored
                && cost::is_interpreted_before_a_load(self.info.canon.graph()),
        }
    }

    /// Carries out a plan with what the cache has answered.
    fn carry_out(
        &mut self,
        plan: Plan,
        found: Option<LookupResult>,
        tier: Option<&InterpreterTier>,
        stream: &Arc<StreamShared>,
    ) -> JobState {
        let key = self.info.reference.key;
        match (plan, found) {
            (Plan::Execute, Some(Lookup::Hit(hit))) => self.hit(hit, stream),
            (Plan::FallBack, Some(Lookup::Failed(error))) => {
                JobState::Refused(Refusal { error, is_cached: true })
            }
            (Plan::RunUnits { compile }, found) => {
                if let (Some(start), Some(Lookup::Claimed(claim))) = (compile, found) {
                    self.compile(Some(claim), start, stream);
                }
                JobState::Split(Partition::Units)
            }
            (Plan::AwaitCompile { .. }, Some(Lookup::InFlight(flight))) => {
                JobState::Waiting(Pending::OtherCompile(follow(key, flight, stream)))
            }
            (Plan::AwaitCompile { compile: Some(start) }, Some(Lookup::Collision)) => {
                self.report_miss(true, stream);
                JobState::Waiting(Pending::Compile(self.compile(None, start, stream)))
            }
            (Plan::AwaitCompile { compile: Some(start) }, Some(Lookup::Claimed(claim))) => {
                JobState::Waiting(Pending::Compile(self.compile(Some(claim), start, stream)))
            }
            (Plan::Interpret { run, is_until_compiled: true, .. }, Some(Lookup::InFlight(flight))) => {
                JobState::Ready(Runner::Interpreter(run, Some(follow(key, flight, stream))))
            }
            (Plan::Interpret { run, compile, hastens, .. }, found) => {
                self.begin_interpreting(run, compile, found, tier, stream);
                if hastens {
                    stream.engine().threads().compile().hasten(key.as_bytes());
                }
                JobState::Ready(Runner::Interpreter(run, None))
            }
            (plan, found) => self.refuse_plan(plan, found.as_ref()),
        }
    }

    /// Starts what is compiled beside an interpreted execution, and counts the first of a plan.
    fn begin_interpreting(
        &self,
        run: InterpretedRun,
        compile: Option<CompileStart>,
        found: Option<LookupResult>,
        tier: Option<&InterpreterTier>,
        stream: &Arc<StreamShared>,
    ) {
        let is_load = compile.is_some_and(|start| start.priority == CompilePriority::Foreground);
        if let (Some(start), Some(Lookup::Claimed(claim))) = (compile, found) {
            drop(self.compile(Some(claim), start, stream));
        }
        // A region whose executable is loaded meanwhile is not interpreted again.
        if let Some(tier) = tier.filter(|_| run.number == 1 && !is_load) {
            tier.begin(self.info.reference.key, run);
        }
    }

    /// Reports a plan that contradicts the cache, which is a bug. The region runs op by op.
    fn refuse_plan(&self, plan: Plan, found: Option<&LookupResult>) -> JobState {
        debug_assert!(false, "bug: {plan:?} after the cache has answered {found:?}");
        let message = format!("bug: {} cannot be run by the plan {plan:?}", self.info.reference);
        let error = Arc::new(DeviceError::new(Stage::Compile, message));
        JobState::Refused(Refusal { error, is_cached: false })
    }

    /// Whether the store probably has the executable that a claim is for. `false` in a reproducible
    /// engine, whose runs must not depend on that.
    fn is_stored(&self, claim: &CompileClaim, stream: &StreamShared) -> bool {
        let engine = stream.engine();
        let Some(store) = engine.stores().store().filter(|_| !engine.config().reproducible) else {
            return false;
        };
        let compile = self.compile_of(claim.outputs().clone());
        compile.ask(Tier::Optimized, &self.info, store).is_some_and(|asked| store.may_have(&asked))
    }

    /// A fully optimized compile of the region.
    fn compile_of(&self, outputs: OutputSet) -> Compile {
        let spec = CompileSpec { outputs, donated: self.dying(), ..CompileSpec::default() };
        Compile { spec, otherwise: MemoryFallback::Parts(None) }
    }

    /// Writes the region, which runs by other means now, to the manifest, with the results that
    /// were requested. `outputs` is `None` if no manifest is recorded.
    fn note_request(&self, outputs: Option<OutputSet>, stream: &StreamShared) {
        let Some(outputs) = outputs else { return };
        // On this thread: the program may end as soon as it has the results, which would stop other
        // threads.
        self.compile_of(outputs).note(&self.info, stream.engine(), None);
    }

    /// Notes a cache hit and reports it to the variant policies.
    pub(super) fn hit(&self, hit: Hit<Executable>, stream: &Arc<StreamShared>) -> JobState {
        let (engine, region) = (stream.engine(), self.info.reference);
        engine.counters().hits.add(1);
        engine.emit(|| Event::Hit { region, surplus: hit.outputs.len() - self.needed.len() });
        self.observe_lookup(&hit, stream);
        JobState::Ready(Runner::Executable(hit))
    }

    /// Starts a compile. With a claim, the result also goes to the cache.
    pub(super) fn compile(
        &self,
        claim: Option<CompileClaim>,
        start: CompileStart,
        stream: &Arc<StreamShared>,
    ) -> Receiver<CompileOutcome> {
        let outputs = claim.as_ref().map_or(&self.needed, Claim::outputs).clone();
        // A job that waits for the compile frees memory first, and a single op is always tried
        // again. Nobody ever waits for a merged region.
        let caching = match self.is_merged() || !self.may_free && self.ops() > 1 {
            true => FailureCaching::All,
            false => FailureCaching::ButForMemory,
        };
        let engine = stream.engine();
        let may_be_baseline = start.tier == Tier::Baseline
            && engine.config().compiles_quickly()
            && engine.device().has_quick_compiles();
        let tier = match may_be_baseline && baseline::pays(self.info.canon.graph()) {
            true => Tier::Baseline,
            false => Tier::Optimized,
        };
        let spec = CompileSpec { outputs, donated: self.dying(), tier, ..CompileSpec::default() };
        let compile = Compile { spec, otherwise: MemoryFallback::Parts(self.part_of) };
        compile.start(claim, start.priority, caching, &self.info, stream)
    }

    /// Counts and reports a miss. `is_first`: the cache has no executable of the region, whatever
    /// its results.
    pub(super) fn report_miss(&self, is_first: bool, stream: &StreamShared) {
        let engine = stream.engine();
        engine.counters().misses.add(1);
        let MissReport { why, storm } =
            engine.tiers().history().miss(&self.info, is_first, engine.is_observed());
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
}

impl CacheState {
    /// What the cache has. It does not look into the store.
    pub(super) fn of(found: &LookupResult) -> CacheState {
        match found {
            Lookup::Hit(_) => CacheState::Hit,
            Lookup::InFlight(_) => CacheState::Compiling,
            Lookup::Failed(_) => CacheState::Failed,
            Lookup::Collision => CacheState::Collision,
            Lookup::Claimed(_) => CacheState::Missing,
        }
    }
}
