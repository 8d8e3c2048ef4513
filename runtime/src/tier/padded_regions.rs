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
//! estimate. The limit of a single region (`interpreter.rs`) does not apply, because each size
//! of a triangular loop comes once. By the same measure a size gets its own executable. Where
//! regions are not padded, because an op has no rule or masks were not requested, that limit is
//! lifted too from the ninth size on. A region that takes too long to interpret is split so that
//! little of it is new (`shape_split.rs`).
//!
//! Input: a region that was missed. Output: a [`SizePlan`], which `execute/job/pad.rs` carries out.
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

use fuseline_cache::OutputSet;
use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, RegionKey};
use fuseline_fusion::shape_class::{Padded, ShapeClass, ShapeClassError, family_of};
use fuseline_fusion::{OpCode, Scalar};
use fuseline_sync::atomic::{AtomicU32, Ordering};
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use super::interpreter::{ShapeCount, patience};
use super::{FEW_RUNS, MAX_RUNS, shape_split};
use crate::limits::{MAX_BUCKETS, MAX_INTERPRETED_REGIONS, MAX_KNOWN_REGIONS};
use crate::region::{RegionInfo, RegionRef};
use crate::settings::{Buckets, ShapeClasses};

/// Number of sizes of the same ops that are compiled like other regions if they are not padded.
/// Jobs wait for these compiles one by one, so more of them would take long: a decoder waited 10 s
/// at its eleventh sequence of 64 tokens, with 20 ms per compile.
const FEW_SIZES: u32 = 8;

/// How often a class is searched for the same ops. If they repeatedly differ in more than sizes,
/// the search does not pay.
const MAX_TRIES: u32 = 8;

/// A region and its padding.
pub(crate) struct PaddedRegion {
    /// The padded region, shared by regions of the same bucket.
    pub(crate) info: Arc<RegionInfo>,
    /// For each result of the region, the number of the corresponding result of the padded region.
    pub(crate) results: Vec<u32>,
    /// The values of the parameters that the padded region has in addition.
    pub(crate) scalars: Vec<Scalar>,
    /// The sizes that vary, each with its padded size.
    pub(crate) sizes: Vec<(u64, u64)>,
    /// How often the bucket is interpreted before a job waits for its executable.
    pub(crate) patience: u32,
    /// Executions of this region, including interpreted ones.
    runs: AtomicU32,
}

/// The regions of one sequence of ops, on values of the same element types and ranks.
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
    /// By [`family_of`].
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
pub(crate) enum SizePlan {
    Pad(Arc<PaddedRegion>),
    /// It is not padded although its sizes vary. Holds how many sizes there are, and the reason if
    /// it has not been reported.
    Refused(ShapeCount, Option<Refusal>),
    /// It is cut before these ops, because little of it is new.
    Split(Vec<usize>),
    None,
}

/// Why regions with varying sizes are not padded.
pub(crate) enum Refusal {
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
    pub(crate) fn known(&self, key: RegionKey) -> Option<Arc<PaddedRegion>> {
        self.known.lock().regions.get_mut(&key).cloned()
    }

    /// Where the region is cut if it was cut before. `Some(None)` once it has been cut often
    /// enough.
    pub(crate) fn count_split(&self, key: RegionKey) -> Option<Option<Vec<usize>>> {
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
    pub(crate) fn remove(&self, info: &RegionInfo) {
        let mut known = self.known.lock();
        if known.regions.get_mut(&info.reference.key).is_none() {
            return;
        }
        known.regions.remove(&info.reference.key);
        if let Some(family) = known.families.get_mut(&family_of(&info.canon)) {
            family.class = None;
            family.tries = MAX_TRIES;
        }
    }

    /// Decides how a missed region runs.
    pub(crate) fn miss(&self, info: &RegionInfo, environment: &EnvFingerprint) -> SizePlan {
        let (canon, hash) = (&info.canon, family_of(&info.canon));
        let mut known = self.known.lock();
        let Some(family) = known.families.get_mut(&hash) else {
            let family =
                OpSequence { latest: canon.clone(), class: None, tries: 0, regions: 1, is_refused: false };
            known.families.insert(hash, family);
            return SizePlan::None;
        };
        family.regions = family.regions.saturating_add(1);
        let before = family.latest.clone();
        match self.padded(info, environment, &mut known) {
            SizePlan::Pad(padded_region) => SizePlan::Pad(padded_region),
            other => known.apart(info, &before).map_or(other, SizePlan::Split),
        }
    }

    /// Tries to pad a region whose ops have come at other sizes.
    fn padded(
        &self,
        info: &RegionInfo,
        environment: &EnvFingerprint,
        known: &mut PaddedRegionTable,
    ) -> SizePlan {
        let canon = &info.canon;
        let Some(family) = known.families.get_mut(&family_of(canon)) else { return SizePlan::None };
        let padded = match family.padded(canon, &|size| self.buckets.of(size)) {
            Ok(Some(padded)) if padded.is_masked() && self.which != ShapeClasses::Masked => {
                return family.refused(Refusal::Masked);
            }
            Ok(Some(padded)) => padded,
            Ok(None) | Err(ShapeClassError::Unlike) if family.is_refused => {
                return SizePlan::Refused(family.sizes(), None);
            }
            Ok(None) | Err(ShapeClassError::Unlike) => return SizePlan::None,
            Err(ShapeClassError::NoRule { node, op }) => return family.refused(Refusal::NoRule { node, op }),
        };
        let bucket = padded.region().key(environment);
        let shared = match known.buckets.get_mut(&bucket) {
            // Regions with equal keys have equal canonical forms, except in a hash collision. A
            // region that collides is not padded.
            Some(shared) if shared.canon == *padded.region() => shared.clone(),
            Some(_) => return SizePlan::None,
            None => {
                let shared = Arc::new(region_of(&padded, bucket, info));
                known.buckets.insert(bucket, shared.clone());
                shared
            }
        };
        let padded_region = Arc::new(PaddedRegion::new(&padded, shared, &info.canon));
        known.regions.insert(info.reference.key, padded_region.clone());
        SizePlan::Pad(padded_region)
    }
}

impl PaddedRegionTable {
    /// Where to cut a region that comes at many sizes and takes long to interpret, if most of it is
    /// not new. `before` is a region of another size.
    fn apart(&mut self, info: &RegionInfo, before: &CanonRegion) -> Option<Vec<usize>> {
        let is_many = self.families.get_mut(&family_of(&info.canon))?.sizes() == ShapeCount::Many;
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

    fn refused(&mut self, refusal: Refusal) -> SizePlan {
        let is_known = std::mem::replace(&mut self.is_refused, true);
        SizePlan::Refused(self.sizes(), (!is_known).then_some(refusal))
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

    /// Counts an execution of the region. Whether it has come so often that its own executable
    /// pays.
    pub(crate) fn count_run(&self) -> bool {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1 >= self.patience.max(MAX_RUNS)
    }

    /// The numbers of the padded results that correspond to results of the region.
    pub(crate) fn outputs(&self, of_region: &OutputSet) -> OutputSet {
        of_region.iter().map(|output| self.results[output as usize]).collect()
    }
}
