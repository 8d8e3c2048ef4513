//! Recently missed regions, which explain why another region is new.

use std::sync::Arc;

use fuseline_fusion::canon::{Difference, RegionKey, diff};
use fuseline_fusion::{Graph, OpCode, Ref, Site};
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use super::recompile_storm::{MISSES, Storm};
use crate::event::{Change, Miss, OpsDiffer, Varies, Varying};
use crate::limits::{MAX_KNOWN_KEYS, MAX_KNOWN_REGIONS, MAX_TOLD_DIFFERENCES};
use crate::region::RegionInfo;

/// The regions of one sequence of ops.
struct SequenceHistory {
    /// The latest region of the sequence.
    latest: Arc<RegionInfo>,
    storm: Storm,
}

/// Why a region is not in the cache.
pub(crate) struct MissReport {
    pub(crate) why: Miss,
    /// The number of misses of the same ops and what varies about them, if that calls for a
    /// warning.
    pub(crate) storm: Option<(u32, Vec<Varying>)>,
}

/// A bounded memory of missed regions: their keys, and the latest region of each sequence of ops.
pub(crate) struct MissHistory {
    keys: Mutex<BoundedFifoMap<RegionKey, ()>>,
    latest: Mutex<BoundedFifoMap<u64, SequenceHistory>>,
}

impl MissHistory {
    pub(crate) fn new() -> MissHistory {
        MissHistory {
            keys: Mutex::new(Rank::MissHistoryKeys, BoundedFifoMap::with_room(MAX_KNOWN_KEYS)),
            latest: Mutex::new(Rank::MissHistory, BoundedFifoMap::with_room(MAX_KNOWN_REGIONS)),
        }
    }

    /// Explains why this region is not in the cache, and remembers it. `is_first`: the cache has no
    /// executable of the region, whatever its results. `explain`: the explanation is reported, so a
    /// search pays.
    pub(crate) fn miss(&self, info: &Arc<RegionInfo>, is_first: bool, explain: bool) -> MissReport {
        let skeleton = info.canon.skeleton();
        let mut latest = self.latest.lock();
        let (mut before, mut others) = (None, Vec::new());
        match latest.get_mut(&skeleton) {
            Some(known) => before = Some(std::mem::replace(&mut known.latest, info.clone())),
            None => {
                if explain {
                    others.extend(latest.values().map(|known| known.latest.clone()));
                }
                latest.insert(skeleton, SequenceHistory { latest: info.clone(), storm: Storm::default() });
            }
        }
        drop(latest);
        let mut keys = self.keys.lock();
        let is_known = keys.get_mut(&info.reference.key).is_some();
        if !is_known {
            keys.insert(info.reference.key, ());
        }
        drop(keys);
        let again = if is_first { Miss::Gone } else { Miss::Outputs };
        if is_known {
            return MissReport { why: again, storm: None };
        }
        let Some(before) = before else {
            let why = nearest(&others, info).map_or(Miss::New, Miss::Ops);
            return MissReport { why, storm: None };
        };
        let mut differences = diff(&before.canon, &info.canon);
        if differences.is_empty() {
            return MissReport { why: again, storm: None };
        }
        let storm = self.latest.lock().get_mut(&skeleton).and_then(|known| known.storm.missed(&differences));
        let varying = |(what, latest)| Varying { what, latest, site: site_of(what, info) };
        let storm = storm.map(|often| (MISSES, often.into_iter().map(varying).collect()));
        differences.truncate(MAX_TOLD_DIFFERENCES);
        let change = |difference| Change { site: site(&difference, info), difference };
        MissReport { why: Miss::Changed(differences.into_iter().map(change).collect()), storm }
    }
}

/// Where the ops of a region diverge from those of the most similar one, counted from both ends.
/// `None` if no other region shares half of them.
fn nearest(others: &[Arc<RegionInfo>], info: &RegionInfo) -> Option<OpsDiffer> {
    let ops = |info: &RegionInfo| -> Vec<OpCode> {
        info.canon.graph().nodes().iter().map(|node| node.signature().op()).collect()
    };
    let own = ops(info);
    let alike = |other: &Arc<RegionInfo>| {
        let theirs = ops(other);
        let least = own.len().min(theirs.len());
        let from_start = own.iter().zip(&theirs).take_while(|(own, theirs)| own == theirs).count();
        let from_end =
            own.iter().rev().zip(theirs.iter().rev()).take_while(|(own, theirs)| own == theirs).count();
        let alike = least.min(from_start + from_end);
        (2 * alike >= own.len().max(theirs.len())).then_some((alike, from_start))
    };
    let near = others.iter().filter_map(|other| alike(other).map(|(alike, place)| (alike, place, other)));
    // The latest of those that are equally similar.
    let (alike, place, other) = near.max_by_key(|(alike, _, other)| (*alike, other.reference.seq))?;
    let at = |info: &RegionInfo| {
        let node = info.canon.graph().nodes().get(place)?;
        Some((node.signature().op(), info.sites.get(place).cloned().unwrap_or_default()))
    };
    Some(OpsDiffer { alike, of: own.len(), place, now: at(info), then: at(other) })
}

/// Call site of something that varies.
fn site_of(what: Varies, info: &RegionInfo) -> Site {
    at(
        info,
        match what {
            Varies::Dimension { input, .. } | Varies::Type { input } => first_use(info.canon.graph(), input),
            Varies::Attribute { node, .. } => Some(node),
        },
    )
}

/// Call site of the first op that a difference concerns.
fn site(difference: &Difference, info: &RegionInfo) -> Site {
    let node = match difference {
        Difference::Param { index, .. } | Difference::Lifted { index, .. } => {
            first_use(info.canon.graph(), *index)
        }
        Difference::Op { node, .. }
        | Difference::Attribute { node, .. }
        | Difference::Body { node, .. }
        | Difference::Operand { node, .. } => Some(*node),
        _ => None,
    };
    at(info, node)
}

fn at(info: &RegionInfo, node: Option<usize>) -> Site {
    node.and_then(|node| info.sites.get(node).cloned()).unwrap_or_default()
}

fn first_use(graph: &Graph, param: usize) -> Option<usize> {
    let wanted = u32::try_from(param).ok().map(Ref::Param)?;
    graph.nodes().iter().position(|node| node.operands().contains(&wanted))
}
