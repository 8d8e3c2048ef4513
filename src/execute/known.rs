//! The regions seen lately, for saying why another one is new.

use std::collections::VecDeque;
use std::sync::Arc;

use fuseline_fusion::canon::{Difference, diff};
use fuseline_fusion::{Graph, Ref, Site};
use rustc_hash::FxHashMap;

use crate::event::{Change, Miss};
use crate::limits::{MAX_KNOWN_REGIONS, MAX_TOLD_DIFFERENCES};
use crate::sync::Mutex;
use crate::value::RegionInfo;

#[derive(Default)]
struct State {
    /// The latest region of each sequence of ops.
    nearest: FxHashMap<u64, Arc<RegionInfo>>,
    order: VecDeque<u64>,
}

/// A bounded memory of regions that were missed, the latest of each sequence of ops.
pub(crate) struct KnownRegions(Mutex<State>);

impl KnownRegions {
    pub(crate) fn new() -> KnownRegions {
        KnownRegions(Mutex::new(State::default()))
    }

    /// Why this region is not in the cache; remembers it.
    pub(super) fn miss(&self, info: &Arc<RegionInfo>) -> Miss {
        let skeleton = info.canon.skeleton();
        let mut state = self.0.lock();
        let before = state.nearest.insert(skeleton, info.clone());
        if before.is_none() {
            state.order.push_back(skeleton);
            if state.order.len() > MAX_KNOWN_REGIONS
                && let Some(oldest) = state.order.pop_front()
            {
                state.nearest.remove(&oldest);
            }
        }
        drop(state);
        let Some(before) = before else { return Miss::New };
        let mut differences = diff(&before.canon, &info.canon);
        if differences.is_empty() {
            return Miss::Outputs;
        }
        differences.truncate(MAX_TOLD_DIFFERENCES);
        let change = |difference| Change { site: site(&difference, info), difference };
        Miss::Changed(differences.into_iter().map(change).collect())
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
