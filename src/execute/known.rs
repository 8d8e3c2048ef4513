//! The regions seen lately, for saying why another one is new.

use std::collections::VecDeque;
use std::sync::Arc;

use fuseline_fusion::canon::{Difference, diff};
use fuseline_fusion::{Graph, Ref, Site};
use rustc_hash::FxHashMap;

use super::storm::Storm;
use crate::event::{Change, Miss, Varying};
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

#[derive(Default)]
struct State {
    /// By sequence of ops.
    nearest: FxHashMap<u64, Known>,
    order: VecDeque<u64>,
}

/// A bounded memory of regions that were missed, the latest of each sequence of ops.
pub(crate) struct KnownRegions(Mutex<State>);

impl KnownRegions {
    pub(crate) fn new() -> KnownRegions {
        KnownRegions(Mutex::new(State::default()))
    }

    /// Why this region is not in the cache; remembers it.
    pub(super) fn miss(&self, info: &Arc<RegionInfo>) -> Missed {
        let skeleton = info.canon.skeleton();
        let mut state = self.0.lock();
        let before = match state.nearest.get_mut(&skeleton) {
            Some(known) => Some(std::mem::replace(&mut known.latest, info.clone())),
            None => {
                state.nearest.insert(skeleton, Known { latest: info.clone(), storm: Storm::default() });
                state.order.push_back(skeleton);
                if state.order.len() > MAX_KNOWN_REGIONS
                    && let Some(oldest) = state.order.pop_front()
                {
                    state.nearest.remove(&oldest);
                }
                None
            }
        };
        drop(state);
        let Some(before) = before else { return Missed { why: Miss::New, storm: None } };
        let differences = diff(&before.canon, &info.canon);
        if differences.is_empty() {
            return Missed { why: Miss::Outputs, storm: None };
        }
        let mut changes: Vec<(Difference, Site)> = differences
            .into_iter()
            .map(|difference| {
                let site = site(&difference, info);
                (difference, site)
            })
            .collect();
        let storm = self.0.lock().nearest.get_mut(&skeleton).and_then(|known| known.storm.missed(&changes));
        changes.truncate(MAX_TOLD_DIFFERENCES);
        let change = |(difference, site)| Change { site, difference };
        Missed { why: Miss::Changed(changes.into_iter().map(change).collect()), storm }
    }
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
    node.and_then(|node| info.sites.get(node).cloned()).unwrap_or_default()
}

fn first_use(graph: &Graph, param: usize) -> Option<usize> {
    let wanted = u32::try_from(param).ok().map(Ref::Param)?;
    graph.nodes().iter().position(|node| node.operands().contains(&wanted))
}
