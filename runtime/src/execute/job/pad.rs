//! Runs a region by the executable of a larger one, or cut where its sizes vary
//! (PAD-4 to PAD-7 of `tier::padded_regions` and `tier::shape_split`).

use std::sync::Arc;

use fuseline_cache::{Hit, Lookup};
use fuseline_fusion::shape_class::resized;
use fuseline_fusion::{Scalar, TensorType};
use fuseline_sync::oneshot::Receiver;
use fuseline_sync::schedule::Pool;
use smallvec::SmallVec;

use super::interpret::{InterpreterResult, Param, failed, param, spawn};
use super::partition::Partition;
use super::prepare::{CompileClaim, LookupResult};
use super::{Job, JobState, Pending, Runner, cache_key};
use crate::device::{Buffer, CompileSpec, DeviceError, Executable, Tier};
use crate::engine::Task;
use crate::engine::queue_item::QueueItem;
use crate::engine::stream::StreamShared;
use crate::engine::value::{Outcome, ValueCell, ValuePromise};
use crate::event::Event;
use crate::execute::compile::{Compile, FailureCaching, MemoryFallback, follow};
use crate::tier::interpreter::ShapeCount;
use crate::tier::padded_regions::{PaddedRegion, Refusal, SizePlan};
use crate::tier::{CacheState, CompilePriority, CompileStart, History, Plan, Situation, choose};

impl Job {
    /// The state of the job if its region was padded or cut before and has no executable of its own.
    /// Otherwise returns the result of the lookup.
    pub(super) fn reuse_size_plan(
        &mut self,
        found: LookupResult,
        stream: &Arc<StreamShared>,
    ) -> Result<JobState, LookupResult> {
        let padded_regions = stream.engine().tiers().padded_regions().filter(|_| self.may_be_interpreted());
        // An executable of its own is better.
        let padded_regions = padded_regions.filter(|_| !matches!(found, Lookup::Hit(_)));
        let Some(padded_regions) = padded_regions else { return Err(found) };
        let key = self.info.reference.key;
        if matches!(found, Lookup::Claimed(_))
            && let Some(again) = padded_regions.count_split(key)
        {
            // Dropping the claim leaves it to the next lookup.
            let Some(places) = again else {
                self.is_past_interpreter = true;
                return Err(found);
            };
            return Ok(JobState::Split(Partition::At(places)));
        }
        let Some(padded) = padded_regions.known(key) else { return Err(found) };
        let (claim, other) = match found {
            Lookup::Claimed(claim) => (Some(claim), None),
            other => (None, Some(other)),
        };
        match self.run_in_bucket(padded, claim, stream) {
            Ok(state) => Ok(state),
            Err(claim) => Err(claim.map(Lookup::Claimed).or(other).expect("bug: what was found is lost")),
        }
    }

    /// Reports a miss. The state of the job if its region is padded or cut; otherwise returns the
    /// result of the lookup, with the number of sizes.
    pub(super) fn make_size_plan(
        &mut self,
        found: LookupResult,
        stream: &Arc<StreamShared>,
    ) -> Result<JobState, (LookupResult, ShapeCount)> {
        let claim = match found {
            Lookup::Claimed(claim) if !self.is_past_interpreter => claim,
            found => return Err((found, ShapeCount::Few)),
        };
        self.report_miss(claim.is_first(), stream);
        let engine = stream.engine();
        let Some(padded_regions) = engine.tiers().padded_regions().filter(|_| self.may_be_interpreted())
        else {
            return Err((Lookup::Claimed(claim), ShapeCount::Few));
        };
        match padded_regions.miss(&self.info, engine.device().environment()) {
            SizePlan::Pad(padded) => match self.run_in_bucket(padded, Some(claim), stream) {
                Ok(state) => Ok(state),
                Err(claim) => Err((Lookup::Claimed(claim.expect("bug: a claim is lost")), ShapeCount::Few)),
            },
            SizePlan::Refused(sizes, refusal) => {
                let region = self.info.reference;
                if let Some(refusal) = refusal {
                    engine.emit(|| Event::NotPadded { region, why: self.describe(&refusal) });
                }
                Err((Lookup::Claimed(claim), sizes))
            }
            SizePlan::Split(places) => Ok(JobState::Split(Partition::At(places))),
            SizePlan::None => Err((Lookup::Claimed(claim), ShapeCount::Few)),
        }
    }

    fn describe(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::NoRule { node, op } => {
                let (_, site) = self.info.address(*node);
                format!("there is no rule for {op} over a size that varies (op {node}, recorded at {site})")
            }
            Refusal::Masked => {
                "it sums over a size that varies, and padded the sum would be in another order; \
                                EngineConfig::shape_classes(ShapeClasses::Masked) allows that"
                    .to_owned()
            }
        }
    }

    /// The state of the job with a bucket. `claim` is for the region itself, if no executable of it
    /// exists or is being compiled. It is returned if the bucket cannot be used.
    fn run_in_bucket(
        &mut self,
        padded: Arc<PaddedRegion>,
        mut claim: Option<CompileClaim>,
        stream: &Arc<StreamShared>,
    ) -> Result<JobState, Option<CompileClaim>> {
        let engine = stream.engine();
        let bucket = padded.info.reference.key;
        let (key, needed) = (cache_key(&padded.info), padded.outputs(&self.needed));
        let tier = engine.tiers().interpreter();
        let counted = tier.and_then(|tier| tier.count(bucket));
        if let Some(claim) = claim.take_if(|_| padded.count_run()) {
            self.compile_own(claim, stream);
        }
        let planned = if tier.is_some() { padded.patience } else { 0 };
        let history = counted.unwrap_or(History::New { planned });
        let is_reproducible = engine.config().reproducible;
        loop {
            let found = engine.cache().lookup(&key, padded.info.canon.bytes(), &needed);
            let cache = CacheState::of(&found);
            let plan = choose(Situation { history, cache, is_reproducible, ..Situation::default() });
            return match (plan, found) {
                (Plan::Execute, Lookup::Hit(hit)) => {
                    if let Some(tier) = tier.filter(|_| counted.is_some()) {
                        tier.promote(bucket);
                    }
                    engine.counters().hits.add(1);
                    Ok(JobState::Ready(Runner::Padded(padded, hit)))
                }
                // The next lookup finds it in flight.
                (Plan::AwaitCompile { .. }, Lookup::Claimed(claim)) => {
                    padded.compile(claim, CompilePriority::Foreground, stream);
                    continue;
                }
                (Plan::AwaitCompile { .. }, Lookup::InFlight(flight)) => {
                    Ok(JobState::Waiting(Pending::OtherCompile(follow(bucket, flight, stream))))
                }
                (Plan::Interpret { run, is_until_compiled: true, .. }, Lookup::InFlight(flight)) => {
                    Ok(JobState::Ready(Runner::Interpreter(run, Some(follow(bucket, flight, stream)))))
                }
                (Plan::Interpret { run, compile, .. }, found) => {
                    if let (Some(start), Lookup::Claimed(claim)) = (compile, found) {
                        padded.compile(claim, start.priority, stream);
                    }
                    if let Some(tier) = tier.filter(|_| counted.is_none()) {
                        tier.begin(bucket, run);
                    }
                    Ok(JobState::Ready(Runner::Interpreter(run, None)))
                }
                // It failed, or has a key in common with another region.
                _ => {
                    self.leave_bucket(stream);
                    Err(claim)
                }
            };
        }
    }

    /// Compiles an executable of the region's own: it has come so often that this pays.
    fn compile_own(&self, claim: CompileClaim, stream: &Arc<StreamShared>) {
        let start = CompileStart { priority: CompilePriority::Background, tier: Tier::Baseline };
        drop(self.compile(Some(claim), start, stream));
    }

    /// Runs the region by the executable of its bucket. Its inputs have data.
    pub(super) fn run_padded(
        &self,
        padded: Arc<PaddedRegion>,
        hit: Hit<Executable>,
        pool: &Pool<QueueItem<Task>>,
        stream: &Arc<StreamShared>,
    ) -> Receiver<InterpreterResult> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().padded.add(1);
        engine.emit(|| Event::Padded {
            region,
            bucket: padded.info.reference.key,
            sizes: padded.sizes.clone(),
        });
        let params: Vec<Param> = self.inputs.iter().map(|input| param(input.value.cell())).collect();
        let output = |(index, value): &(u32, ValuePromise)| {
            (padded.results[*index as usize], value.holder().ty().clone())
        };
        let outputs: Vec<(u32, TensorType)> = self.outputs.iter().map(output).collect();
        let owner = stream.clone();
        spawn(region, pool, stream, move || {
            let results = run(&padded, &hit.artifact, params, &outputs, &owner);
            // It may be the last reference to the executable.
            drop(hit);
            results
        })
    }

    /// The bucket has failed, so the region runs without it.
    pub(super) fn leave_bucket(&self, stream: &StreamShared) {
        if let Some(padded_regions) = stream.engine().tiers().padded_regions() {
            padded_regions.remove(&self.info);
        }
    }
}

impl PaddedRegion {
    fn compile(&self, claim: CompileClaim, priority: CompilePriority, stream: &Arc<StreamShared>) {
        // The arguments are copies, so nothing is donated.
        let spec = CompileSpec { outputs: claim.outputs().clone(), ..CompileSpec::default() };
        let compile = Compile { spec, otherwise: MemoryFallback::Parts(None) };
        drop(compile.start(Some(claim), priority, FailureCaching::All, &self.info, stream));
    }
}

/// Runs a padded region on this thread and returns the requested results in their true types. It
/// waits for inputs that are still being computed.
fn run(
    padded: &PaddedRegion,
    executable: &Executable,
    params: Vec<Param>,
    outputs: &[(u32, TensorType)],
    stream: &StreamShared,
) -> InterpreterResult {
    let device = stream.engine().device();
    let resize = |buffer: &Buffer, to: &TensorType| {
        let bytes = device.download(buffer, 0)?;
        device.upload(to, &resized(&bytes, buffer.ty(), to))
    };
    let mut scalars: SmallVec<[Scalar; 16]> = SmallVec::new();
    // The copies and their positions among the arguments. Other arguments are used as they are.
    let (mut values, mut copies) = (Vec::<Arc<ValueCell>>::new(), Vec::<Option<Buffer>>::new());
    for (param, ty) in params.into_iter().zip(padded.info.canon.graph().params()) {
        match param {
            Param::Scalar(scalar) => scalars.push(scalar),
            Param::Value(value) => {
                let buffer = data(&value)?;
                copies.push(if buffer.ty() == ty { None } else { Some(resize(buffer, ty)?) });
                values.push(value);
            }
        }
    }
    scalars.extend_from_slice(&padded.scalars);
    let args = values.iter().zip(&copies).map(|(value, copy)| copy.as_ref().map_or_else(|| data(value), Ok));
    let args = args.collect::<Result<SmallVec<[&Buffer; 32]>, _>>()?;
    let executed = device.execute(executable, &args, scalars.into_iter(), &[])?;
    let mut results: Vec<Option<Buffer>> = executed.outputs.into_iter().map(Some).collect();
    let made = executable.outputs();
    let result = |(output, ty): &(u32, TensorType)| {
        let place = made.binary_search(output).ok();
        let buffer = place.and_then(|place| results[place].take());
        let buffer = buffer.ok_or_else(|| failed("bug: the bucket's executable does not return all"))?;
        if buffer.ty() == ty { Ok(buffer) } else { resize(&buffer, ty) }
    };
    outputs.iter().map(result).collect()
}

fn data(value: &ValueCell) -> Result<&Buffer, DeviceError> {
    match value.outcome().get() {
        Some(Outcome::Data { buffer, .. }) => Ok(buffer),
        other => Err(failed(format!("bug: an input has the outcome {other:?}"))),
    }
}
