//! The regions seen lately, for saying why another one is new.

use std::sync::Arc;

use fuseline_fusion::canon::{Difference, diff};
use fuseline_fusion::{Graph, Ref, Site};

use super::recent::Recent;
use super::storm::{MISSES, Storm};
use crate::event::{Change, Miss, Varies, Varying};
use crate::limits::{MAX_KNOWN_REGIONS, MAX_TOLD_DIFFERENCES};
use crate::sync::Mutex;
use crate::value::RegionInfo;

/// A sequence of ops.
struct Known {
    /// The latest region of it.
    latest: Arc<RegionInfo>,
    storm: Storm,
}

/// Why a region is not in the cache.
pub(super) struct Missed {
    pub(super) why: Miss,
    /// How often the same ops were missed, and what varies about them, if that is worth a warning.
    pub(super) storm: Option<(u32, Vec<Varying>)>,
}

/// A bounded memory of regions that were missed, the latest of each sequence of ops.
pub(crate) struct KnownRegions(Mutex<Recent<u64, Known>>);

impl KnownRegions {
    pub(crate) fn new() -> KnownRegions {
        KnownRegions(Mutex::new(Recent::with_room(MAX_KNOWN_REGIONS)))
    }

    /// Why this region is not in the cache; remembers it.
    pub(super) fn miss(&self, info: &Arc<RegionInfo>) -> Missed {
        let skeleton = info.canon.skeleton();
        let mut known = self.0.lock();
        let before = match known.get_mut(&skeleton) {
            Some(known) => Some(std::mem::replace(&mut known.latest, info.clone())),
            None => {
                known.insert(skeleton, Known { latest: info.clone(), storm: Storm::default() });
                None
            }
        };
        drop(known);
        let Some(before) = before else { return Missed { why: Miss::New, storm: None } };
        let mut differences = diff(&before.canon, &info.canon);
        if differences.is_empty() {
            return Missed { why: Miss::Outputs, storm: None };
        }
        let storm = self.0.lock().get_mut(&skeleton).and_then(|known| known.storm.missed(&differences));
        let varying = |(what, latest)| Varying { what, latest, site: site_of(what, info) };
        let storm = storm.map(|often| (MISSES, often.into_iter().map(varying).collect()));
        differences.truncate(MAX_TOLD_DIFFERENCES);
        let change = |difference| Change { site: site(&difference, info), difference };
        Missed { why: Miss::Changed(differences.into_iter().map(change).collect()), storm }
    }
}

/// Where something that varies was recorded.
fn site_of(what: Varies, info: &RegionInfo) -> Site {
    at(
        info,
        match what {
            Varies::Dimension { input, .. } | Varies::Type { input } => first_use(info.canon.graph(), input),
            Varies::Attribute { node, .. } => Some(node),
        },
    )
}

/// Where the first op that a difference concerns was recorded.
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
