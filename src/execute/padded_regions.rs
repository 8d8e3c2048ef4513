//! Regions at varying sizes that share one executable.
//!
//! A program with a cache that grows, or with truncated batches, makes a region of new types in
//! each step. Once the same ops were new at two sizes, they have a shape class
//! ([`fuseline_fusion::shape_class`]). From the third size on, a new region of the class is
//! *padded*: its inputs are copied into larger ones, the executable of the bucket runs on them, and
//! the part within the true sizes is copied out. So a size that comes once costs no compile. A size
//! that stays gets its own executable in the background.
//!
//! A region that is quick to interpret is interpreted until that has taken as long as a compile, by
//! estimate. The limit of a single region (`interpreter_tier.rs`) does not apply, because each size
//! of a triangular loop comes once. By the same measure a size gets its own executable. Where
//! regions are not padded, because an op has no rule or masks were not requested, that limit is
//! lifted too from the ninth size on. A region that takes too long to interpret is split so that
//! little of it is new (`shape_split.rs`).
//!
//! Input: a region that was missed. Output: a [`PaddedRegion`], and [`ResultSlot`]s with results.
//!
//! Invariants:
//! - PAD-4: how often the regions of a bucket are interpreted before a job waits for its executable
//!   follows from the record, as if they were one region (TIER-1). Which executable then runs a
//!   region, the one of the bucket or its own, depends on when a compile ends.
//! - PAD-5: a failure of a bucket costs speed: the region runs as if it had no class.
//! - PAD-6: regions whose float sums would change their order are padded on request only
//!   ([`ShapeClasses::Masked`]).
//!
//! Data is resized in the host's memory on the interpreter's thread. So padding exists where the
//! interpreter tier does: on XLA's CPU backend, in Fused mode, with one replica and
//! `Numerics::Fast`.

use std::sync::Arc;

use fuseline_cache::{Claim, Hit, Key, Lookup, OutputSet};
use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, RegionKey};
use fuseline_fusion::region::Boundary;
use fuseline_fusion::shape_class::{Padded, ShapeClass, ShapeClassError, resized};
use fuseline_fusion::{OpCode, Scalar, TensorType};
use fuseline_sync::atomic::{AtomicU32, Ordering};
use fuseline_sync::schedule::Pool;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::bounded_map::BoundedFifoMap;
use super::compile::{Compile, CompilePriority, CompileSlot, FailureCaching, MemoryFallback};
use super::interpreter_tier::{
    FEW_RUNS, Interpreted, MAX_RUNS, NextTier, Param, ResultSlot, failed, param, patience,
};
use super::job::{Job, JobState, Progress};
use super::shape_split;
use crate::config::{Buckets, ShapeClasses};
use crate::device::{Buffer, DeviceError, Executable, ExecutableOptions};
use crate::engine::Task;
use crate::error::RegionRef;
use crate::event::Event;
use crate::limits::{MAX_BUCKETS, MAX_INTERPRETED_REGIONS, MAX_KNOWN_REGIONS};
use crate::stream::StreamShared;
use crate::value::{Outcome, RegionInfo, ValueCell, ValuePromise};

/// Number of sizes of the same ops that are compiled like other regions if they are not padded.
/// Jobs wait for these compiles one by one, so more of them would take long: a decoder waited 10 s
/// at its eleventh sequence of 64 tokens, with 20 ms per compile.
const FEW_SIZES: u32 = 8;

/// How often a class is searched for the same ops. If they repeatedly differ in more than sizes,
/// the search does not pay.
const MAX_TRIES: u32 = 8;

/// A region and its padding.
pub(super) struct PaddedRegion {
    /// The padded region, shared by regions of the same bucket.
    info: Arc<RegionInfo>,
    /// For each result of the region, the number of the corresponding result of the padded region.
    results: Vec<u32>,
    /// The values of the parameters that the padded region has in addition.
    scalars: Vec<Scalar>,
    /// The sizes that vary, each with its padded size.
    sizes: Vec<(u64, u64)>,
    /// How often the bucket is interpreted before a job waits for its executable.
    patience: u32,
    /// Executions of this region, including interpreted ones.
    runs: AtomicU32,
}

/// The regions of one sequence of ops.
struct OpSequence {
    latest: Arc<CanonRegion>,
    class: Option<ShapeClass>,
    /// How many searches for a class have failed.
    tries: u32,
    /// How many regions of these ops were missed.
    regions: u32,
    /// Whether their sizes vary and they are not padded. The reason has been reported.
    is_refused: bool,
}

struct PaddedRegionTable {
    /// By their sequence of ops.
    families: BoundedFifoMap<u64, OpSequence>,
    /// By the keys of the original regions.
    regions: BoundedFifoMap<RegionKey, Arc<PaddedRegion>>,
    /// Padded regions by their keys.
    buckets: BoundedFifoMap<RegionKey, Arc<RegionInfo>>,
    /// Where regions are cut, and how often each was.
    apart: BoundedFifoMap<RegionKey, (Vec<usize>, u32)>,
}

/// The recent shape classes.
pub(crate) struct PaddedRegions {
    known: Mutex<PaddedRegionTable>,
    which: ShapeClasses,
    buckets: Buckets,
}

/// How a missed region can run.
enum Found {
    Bucket(Arc<PaddedRegion>),
    /// It is not padded although its sizes vary. Holds how many sizes there are, and the reason if
    /// it has not been reported.
    Refused(ShapeCount, Option<Refusal>),
    /// It is cut before these ops, because little of it is new.
    ShapeSplit(Vec<usize>),
    Nothing,
}

/// How many sizes a region has that is not padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShapeCount {
    /// More than [`FEW_SIZES`].
    Many,
    Few,
}

/// Why regions with varying sizes are not padded.
enum Refusal {
    NoRule {
        node: usize,
        op: OpCode,
    },
    /// Masks were not requested.
    Masked,
}

impl PaddedRegions {
    /// Returns `None` if padding is off.
    pub(crate) fn new(which: ShapeClasses, buckets: Buckets) -> Option<PaddedRegions> {
        let known = PaddedRegionTable {
            families: BoundedFifoMap::with_room(MAX_KNOWN_REGIONS),
            regions: BoundedFifoMap::with_room(MAX_INTERPRETED_REGIONS),
            buckets: BoundedFifoMap::with_room(MAX_BUCKETS),
            apart: BoundedFifoMap::with_room(MAX_INTERPRETED_REGIONS),
        };
        (which != ShapeClasses::Off).then(|| PaddedRegions {
            known: Mutex::new(Rank::ShapeClasses, known),
            which,
            buckets,
        })
    }

    /// The bucket of a region that was padded before.
    fn known(&self, key: RegionKey) -> Option<Arc<PaddedRegion>> {
        self.known.lock().regions.get_mut(&key).cloned()
    }

    /// Where the region is cut if it was cut before. `Some(None)` once it has been cut often
    /// enough.
    fn again_apart(&self, key: RegionKey) -> Option<Option<Vec<usize>>> {
        let mut known = self.known.lock();
        let (places, times) = known.apart.get_mut(&key)?;
        if *times >= MAX_RUNS {
            return Some(None);
        }
        *times += 1;
        Some(Some(places.clone()))
    }

    /// The executable of the bucket failed. The region runs without it, and so do regions of the
    /// same ops that have not been padded.
    fn give_up(&self, info: &RegionInfo) {
        let mut known = self.known.lock();
        if known.regions.get_mut(&info.reference.key).is_none() {
            return;
        }
        known.regions.remove(&info.reference.key);
        if let Some(family) = known.families.get_mut(&info.canon.skeleton()) {
            family.class = None;
            family.tries = MAX_TRIES;
        }
    }

    /// Decides how a missed region runs.
    fn missed(&self, info: &RegionInfo, environment: &EnvFingerprint) -> Found {
        let (canon, skeleton) = (&info.canon, info.canon.skeleton());
        let mut known = self.known.lock();
        let Some(family) = known.families.get_mut(&skeleton) else {
            let family =
                OpSequence { latest: canon.clone(), class: None, tries: 0, regions: 1, is_refused: false };
            known.families.insert(skeleton, family);
            return Found::Nothing;
        };
        family.regions = family.regions.saturating_add(1);
        let before = family.latest.clone();
        match self.padded(info, environment, &mut known) {
            Found::Bucket(bucketed) => Found::Bucket(bucketed),
            other => known.apart(info, &before).map_or(other, Found::ShapeSplit),
        }
    }

    /// Tries to pad a region whose ops have come at other sizes.
    fn padded(
        &self,
        info: &RegionInfo,
        environment: &EnvFingerprint,
        known: &mut PaddedRegionTable,
    ) -> Found {
        let canon = &info.canon;
        let Some(family) = known.families.get_mut(&canon.skeleton()) else { return Found::Nothing };
        let padded = match family.padded(canon, &|size| self.buckets.of(size)) {
            Ok(Some(padded)) if padded.is_masked() && self.which != ShapeClasses::Masked => {
                return family.refused(Refusal::Masked);
            }
            Ok(Some(padded)) => padded,
            Ok(None) | Err(ShapeClassError::Unlike) if family.is_refused => {
                return Found::Refused(family.sizes(), None);
            }
            Ok(None) | Err(ShapeClassError::Unlike) => return Found::Nothing,
            Err(ShapeClassError::NoRule { node, op }) => return family.refused(Refusal::NoRule { node, op }),
        };
        let bucket = padded.region().key(environment);
        let shared = match known.buckets.get_mut(&bucket) {
            // Regions with equal keys have equal canonical forms, except in a hash collision. A
            // region that collides is not padded.
            Some(shared) if shared.canon == *padded.region() => shared.clone(),
            Some(_) => return Found::Nothing,
            None => {
                let shared = Arc::new(region_of(&padded, bucket, info));
                known.buckets.insert(bucket, shared.clone());
                shared
            }
        };
        let bucketed = Arc::new(PaddedRegion::new(&padded, shared, &info.canon));
        known.regions.insert(info.reference.key, bucketed.clone());
        Found::Bucket(bucketed)
    }
}

impl PaddedRegionTable {
    /// Where to cut a region that comes at many sizes and takes long to interpret, if most of it is
    /// not new. `before` is a region of another size.
    fn apart(&mut self, info: &RegionInfo, before: &CanonRegion) -> Option<Vec<usize>> {
        let is_many = self.families.get_mut(&info.canon.skeleton())?.sizes() == ShapeCount::Many;
        let graph = info.canon.graph();
        let places =
            shape_split::places(before.graph(), graph).filter(|_| is_many && patience(graph) < FEW_RUNS)?;
        self.apart.insert(info.reference.key, (places.clone(), 1));
        Some(places)
    }
}

impl OpSequence {
    /// The padded form of a region. `None` while its sizes have varied only once.
    fn padded(
        &mut self,
        region: &Arc<CanonRegion>,
        bucket: &dyn Fn(u64) -> u64,
    ) -> Result<Option<Padded>, ShapeClassError> {
        let latest = std::mem::replace(&mut self.latest, region.clone());
        if self.tries >= MAX_TRIES {
            return Ok(None);
        }
        let found = match &self.class {
            None => ShapeClass::of(&latest, region).map(|class| (Some(class), None)),
            Some(class) => match class.pad(region, bucket) {
                Ok(padded) => return Ok(Some(padded)),
                // Another size varies too.
                Err(_) => class.with(region).and_then(|wider| {
                    let padded = wider.pad(region, bucket)?;
                    Ok((Some(wider), Some(padded)))
                }),
            },
        };
        match found {
            Ok((class, padded)) => {
                self.class = class;
                Ok(padded)
            }
            Err(why) => {
                self.class = None;
                self.tries += 1;
                Err(why)
            }
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Found {
        let is_known = std::mem::replace(&mut self.is_refused, true);
        Found::Refused(self.sizes(), (!is_known).then_some(refusal))
    }

    fn sizes(&self) -> ShapeCount {
        if self.regions > FEW_SIZES { ShapeCount::Many } else { ShapeCount::Few }
    }
}

/// The info of the region that another one is padded to.
fn region_of(padded: &Padded, key: RegionKey, of: &RegionInfo) -> RegionInfo {
    let canon = padded.region().clone();
    let sites = padded.origins().iter().map(|&node| of.address(node).1).collect();
    let reference = RegionRef { key, ops: canon.graph().nodes().len(), ..of.reference };
    RegionInfo::new(reference, canon, Arc::new(sites))
}

impl PaddedRegion {
    fn new(padded: &Padded, info: Arc<RegionInfo>, of: &CanonRegion) -> PaddedRegion {
        PaddedRegion {
            info,
            results: padded.results().to_vec(),
            scalars: padded.scalars().to_vec(),
            sizes: padded.sizes().to_vec(),
            patience: patience(of.graph()),
            runs: AtomicU32::new(0),
        }
    }

    /// The numbers of the padded results that correspond to results of the region.
    fn outputs(&self, of_region: &OutputSet) -> OutputSet {
        of_region.iter().map(|output| self.results[output as usize]).collect()
    }
}

impl Job {
    /// The state of the job if its region was padded before and has no executable of its own.
    /// Otherwise returns the result of the lookup.
    pub(super) fn by_known_bucket(
        &mut self,
        found: Lookup<Executable, DeviceError>,
        stream: &Arc<StreamShared>,
    ) -> Result<JobState, Lookup<Executable, DeviceError>> {
        let classes = stream.engine().padded_regions().filter(|_| self.may_be_cold());
        // An executable of its own is better.
        let classes = classes.filter(|_| !matches!(found, Lookup::Hit(_)));
        let Some(classes) = classes else { return Err(found) };
        if matches!(found, Lookup::Claimed(_))
            && let Some(again) = classes.again_apart(self.info.reference.key)
        {
            // Dropping the claim leaves it to the next lookup.
            let Some(places) = again else {
                self.was_cold = true;
                return Err(found);
            };
            return Ok(JobState::ShapeSplit(places));
        }
        let Some(bucketed) = classes.known(self.info.reference.key) else { return Err(found) };
        let (claim, other) = match found {
            Lookup::Claimed(claim) => (Some(claim), None),
            other => (None, Some(other)),
        };
        match self.by_bucket(bucketed, claim, stream) {
            Ok(state) => Ok(state),
            Err(claim) => Err(claim.map(Lookup::Claimed).or(other).expect("bug: what was found is lost")),
        }
    }

    /// The state of the job if its missed region is padded. Otherwise returns the claim, with the
    /// number of sizes.
    pub(super) fn by_new_bucket(
        &mut self,
        claim: Claim<Executable, DeviceError>,
        stream: &Arc<StreamShared>,
    ) -> Result<JobState, (Claim<Executable, DeviceError>, ShapeCount)> {
        let engine = stream.engine();
        let Some(classes) = engine.padded_regions().filter(|_| self.may_be_cold()) else {
            return Err((claim, ShapeCount::Few));
        };
        match classes.missed(&self.info, engine.device().environment()) {
            Found::Bucket(bucketed) => match self.by_bucket(bucketed, Some(claim), stream) {
                Ok(state) => Ok(state),
                Err(claim) => Err((claim.expect("bug: a claim is lost"), ShapeCount::Few)),
            },
            Found::Refused(sizes, refusal) => {
                let region = self.info.reference;
                if let Some(refusal) = refusal {
                    engine.emit(|| Event::NotPadded { region, why: self.words(&refusal) });
                }
                Err((claim, sizes))
            }
            Found::ShapeSplit(places) => Ok(JobState::ShapeSplit(places)),
            Found::Nothing => Err((claim, ShapeCount::Few)),
        }
    }

    /// Runs the region in parts, few of which are new.
    pub(super) fn sizes_apart(self, places: &[usize], stream: &StreamShared) -> Progress {
        let (engine, region) = (stream.engine(), self.info.reference);
        let parts = self.into_region().cut(places, Boundary::Sizes);
        let why =
            || "few of its ops come at sizes that vary, so that not much is new of another size".to_owned();
        engine.report_parts(region, &parts, why);
        Progress::Parts(parts, None)
    }

    fn words(&self, refusal: &Refusal) -> String {
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
    fn by_bucket(
        &mut self,
        bucketed: Arc<PaddedRegion>,
        mut claim: Option<Claim<Executable, DeviceError>>,
        stream: &Arc<StreamShared>,
    ) -> Result<JobState, Option<Claim<Executable, DeviceError>>> {
        let engine = stream.engine();
        let (info, needed) = (&bucketed.info, bucketed.outputs(&self.needed));
        let bucket = info.reference.key;
        let key = Key::new(*bucket.as_bytes());
        let cold = engine.interpreter_tier();
        let again = cold.and_then(|cold| cold.again(bucket));
        let runs = bucketed.runs.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(claim) = claim.take_if(|_| runs >= bucketed.patience.max(MAX_RUNS)) {
            // It has come so often that its own executable pays.
            self.compile(Some(claim), CompilePriority::Background, stream);
        }
        loop {
            let found = engine.cache().lookup(&key, info.canon.bytes(), &needed);
            if let Some(NextTier::Interpret(run)) = again {
                if let Lookup::Claimed(claim) = found
                    && run.starts_compile()
                {
                    bucketed.compile(claim, run.haste(), stream);
                }
                return Ok(JobState::Interpreted(run, None));
            }
            match found {
                Lookup::Hit(hit) => {
                    if let Some(cold) = cold.filter(|_| again.is_some()) {
                        cold.warm(bucket);
                    }
                    engine.counters().hits.add(1);
                    return Ok(JobState::PaddedRegion(bucketed, hit));
                }
                Lookup::InFlight(flight) => {
                    engine.compile_pool().hasten(bucket.as_bytes());
                    let slot = CompileSlot::of(flight, stream);
                    return Ok(match again {
                        Some(NextTier::Compile(run)) if run.goes_on(engine.config()) => {
                            JobState::Interpreted(run, Some(slot))
                        }
                        _ => JobState::Following(slot),
                    });
                }
                Lookup::Claimed(claim) => {
                    let run = cold.filter(|_| again.is_none());
                    let run = run.and_then(|cold| cold.first_of(bucket, bucketed.patience));
                    let Some(run) = run else {
                        // The next lookup finds it in flight.
                        bucketed.compile(claim, CompilePriority::Foreground, stream);
                        continue;
                    };
                    if run.starts_compile() {
                        bucketed.compile(claim, CompilePriority::Background, stream);
                    }
                    return Ok(JobState::Interpreted(run, None));
                }
                Lookup::Failed(_) | Lookup::Collision => {
                    if let Some(classes) = engine.padded_regions() {
                        classes.give_up(&self.info);
                    }
                    return Err(claim);
                }
            }
        }
    }

    /// Runs the region by the executable of its bucket. Its inputs have data.
    pub(super) fn run_padded(
        &self,
        bucketed: Arc<PaddedRegion>,
        hit: Hit<Executable>,
        pool: &Pool<Task>,
        stream: &Arc<StreamShared>,
    ) -> Arc<ResultSlot> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().padded.add(1);
        engine.emit(|| Event::Padded {
            region,
            bucket: bucketed.info.reference.key,
            sizes: bucketed.sizes.clone(),
        });
        let params: Vec<Param> = self.inputs.iter().map(|input| param(input.value.cell())).collect();
        let output = |(index, value): &(u32, ValuePromise)| {
            (bucketed.results[*index as usize], value.holder().ty().clone())
        };
        let outputs: Vec<(u32, TensorType)> = self.outputs.iter().map(output).collect();
        let owner = stream.clone();
        ResultSlot::filled_by(region, pool, stream, move || {
            let results = run(&bucketed, &hit.artifact, params, &outputs, &owner);
            // It may be the last reference to the executable.
            drop(hit);
            results
        })
    }

    /// The bucket has failed, so the region runs without it.
    pub(super) fn leaves_bucket(&self, stream: &StreamShared) {
        if let Some(classes) = stream.engine().padded_regions() {
            classes.give_up(&self.info);
        }
    }
}

impl PaddedRegion {
    fn compile(
        &self,
        claim: Claim<Executable, DeviceError>,
        haste: CompilePriority,
        stream: &Arc<StreamShared>,
    ) {
        let outputs = claim.outputs().clone();
        // The arguments are copies, so nothing is donated.
        let dying = Vec::new();
        let compile = Compile {
            outputs,
            dying,
            how: ExecutableOptions::default(),
            otherwise: MemoryFallback::Parts(None),
        };
        drop(compile.start(Some(claim), haste, FailureCaching::All, &self.info, stream));
    }
}

/// Runs a padded region on this thread and returns the requested results in their true types. It
/// waits for inputs that are still being computed.
fn run(
    bucketed: &PaddedRegion,
    executable: &Executable,
    params: Vec<Param>,
    outputs: &[(u32, TensorType)],
    stream: &StreamShared,
) -> Interpreted {
    let device = stream.engine().device();
    let resize = |buffer: &Buffer, to: &TensorType| {
        let bytes = device.download(buffer, 0)?;
        device.upload(to, &resized(&bytes, buffer.ty(), to))
    };
    let mut scalars: SmallVec<[Scalar; 16]> = SmallVec::new();
    // The copies and their positions among the arguments. Other arguments are used as they are.
    let (mut values, mut copies) = (Vec::<Arc<ValueCell>>::new(), Vec::<Option<Buffer>>::new());
    for (param, ty) in params.into_iter().zip(bucketed.info.canon.graph().params()) {
        match param {
            Param::Scalar(scalar) => scalars.push(scalar),
            Param::Value(value) => {
                let buffer = data(&value)?;
                copies.push(if buffer.ty() == ty { None } else { Some(resize(buffer, ty)?) });
                values.push(value);
            }
        }
    }
    scalars.extend_from_slice(&bucketed.scalars);
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
