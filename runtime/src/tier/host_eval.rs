//! Evaluates results on the host if they follow from data that the host has.
//!
//! Programs read numbers that depend on nothing the device computes, such as whether a mask that
//! was made from a length is full. Such a read ends a region, possibly a whole training step. The
//! reader would wait for the region and everything before it, and record nothing meanwhile. So when
//! a read has ended a region, the interpreter computes the value if that takes only integers and
//! `bool`, from lifted scalars only. The region is launched as usual, and nobody waits for it.
//!
//! Input: a job whose region a read has ended. Output: the job, without the promises of the values
//! that were computed.
//!
//! Invariants:
//! - TIER-7: a value that was computed here equals the one that the region makes: every op on
//!   integers and `bool` is exact ([`Rounding`]). The region, its key and the results that its
//!   executable returns stay the same. A failure leaves the value to the region.
//!
//! [`Rounding`]: fuseline_fusion::op::Rounding

use std::sync::Arc;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::ir::Node;
use fuseline_fusion::op::{Effect, Fusibility, Signature};
use fuseline_fusion::{DTypeClass, Graph, Literal, Ref, TensorType};
use fuseline_interp::{self as interp, Arithmetic};
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use crate::limits::MAX_HOST_EVAL_RESULTS;

/// Maximum number of elements of such a result. Programs decide by one number or a few.
const MAX_ELEMENTS: usize = 64;

/// Maximum time of the interpreter, by its estimate. The execution that a reader would wait for
/// takes at least that long.
const LONGEST: Duration = Duration::from_micros(50);

/// The ops that make one result of a region.
pub(crate) struct BackwardSlice {
    graph: Graph,
    /// The parameters of the region that correspond to those of the graph. They are lifted.
    params: Vec<u32>,
    /// The number of the result in the graph.
    result: u32,
}

/// One result of a region.
type ResultOf = (RegionKey, u32);

/// The backward slices of results, in a bounded map that forgets the oldest. `None` if a result
/// cannot be evaluated on the host.
pub(crate) struct HostEval(Mutex<BoundedFifoMap<ResultOf, Option<Arc<BackwardSlice>>>>);

impl HostEval {
    pub(crate) fn new() -> HostEval {
        HostEval(Mutex::new(Rank::HostEval, BoundedFifoMap::with_room(MAX_HOST_EVAL_RESULTS)))
    }

    /// The ops that make a result, if the host can evaluate them.
    pub(crate) fn slice(
        &self,
        key: RegionKey,
        graph: &Graph,
        lifted: &[bool],
        result: u32,
    ) -> Option<Arc<BackwardSlice>> {
        if let Some(known) = self.0.lock().get_mut(&(key, result)) {
            return known.clone();
        }
        let slice = BackwardSlice::of(graph, lifted, result).map(Arc::new);
        self.0.lock().insert((key, result), slice.clone());
        slice
    }
}

fn is_exact(ty: &TensorType) -> bool {
    !matches!(ty.dtype().class(), DTypeClass::Float | DTypeClass::Complex)
}

/// Whether an op, with its bodies, computes with integers and `bool` only and has no effect besides
/// its results.
fn is_exact_op(signature: &Signature) -> bool {
    let def = signature.def();
    let types = || signature.operands().iter().chain(signature.results());
    def.effect == Effect::Pure
        && def.fusibility != Fusibility::Opaque
        && types().all(is_exact)
        && signature.bodies().iter().all(|body| {
            let graph = body.graph();
            graph.params().iter().all(is_exact)
                && graph.nodes().iter().all(|node| is_exact_op(node.signature()))
        })
}

impl BackwardSlice {
    /// The parameters of the region that it reads, in the order of its operands.
    pub(crate) fn params(&self) -> &[u32] {
        &self.params
    }

    /// Computes the result. The error is a description.
    pub(crate) fn run(
        &self,
        operands: &[Arc<Literal>],
        arithmetic: Arithmetic,
    ) -> Result<Arc<Literal>, String> {
        let results = interp::run_for(&self.graph, operands, &[self.result], arithmetic)
            .map_err(|error| error.to_string())?;
        results.into_iter().next().ok_or_else(|| "bug: the slice has no result".to_owned())
    }

    fn of(graph: &Graph, lifted: &[bool], result: u32) -> Option<BackwardSlice> {
        let wanted = Ref::Result(result);
        if graph.type_of(wanted)?.elems().get() > MAX_ELEMENTS {
            return None;
        }
        // Backwards from the last op, so that an op is visited after all ops that read it.
        let mut is_in = vec![false; graph.nodes().len()];
        let last = graph.maker(wanted)?;
        is_in[last] = true;
        let mut params = vec![];
        for at in (0..=last).rev() {
            if !is_in[at] {
                continue;
            }
            let node = &graph.nodes()[at];
            if !is_exact_op(node.signature()) {
                return None;
            }
            for &operand in node.operands() {
                match (operand, graph.maker(operand)) {
                    (_, Some(maker)) => is_in[maker] = true,
                    (Ref::Param(index), None) => {
                        if !lifted.get(index as usize).copied().unwrap_or(false) {
                            return None;
                        }
                        params.push(index);
                    }
                    (Ref::Result(_), None) => return None,
                }
            }
        }
        params.sort_unstable();
        params.dedup();
        let nodes =
            graph.nodes()[..=last].iter().zip(&is_in).filter(|&(_, &is_in)| is_in).map(|(node, _)| node);
        let slice = BackwardSlice::cut(graph, nodes, params, wanted)?;
        interp::estimate(&slice.graph).is_some_and(|takes| takes <= LONGEST).then_some(slice)
    }

    /// Copies these ops into a graph of their own.
    fn cut<'a>(
        from: &Graph,
        nodes: impl Iterator<Item = &'a Node>,
        params: Vec<u32>,
        wanted: Ref,
    ) -> Option<BackwardSlice> {
        let mut graph = Graph::new();
        let mut places: Vec<(Ref, Ref)> = Vec::new();
        for &index in &params {
            let place = graph.param(from.type_of(Ref::Param(index))?.clone());
            places.push((Ref::Param(index), place));
        }
        let place_of = |places: &[(Ref, Ref)], value| {
            places.iter().rev().find(|&&(before, _)| before == value).map(|&(_, place)| place)
        };
        for node in nodes {
            let operands = node.operands().iter().map(|&operand| place_of(&places, operand));
            let operands = operands.collect::<Option<_>>()?;
            let made = graph.push_signature(node.signature().clone(), operands);
            places.extend(node.results().zip(made));
        }
        match place_of(&places, wanted)? {
            Ref::Result(result) => Some(BackwardSlice { graph, params, result }),
            Ref::Param(_) => None,
        }
    }
}
