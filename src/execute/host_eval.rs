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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::ir::Node;
use fuseline_fusion::op::{Effect, Fusibility, Signature};
use fuseline_fusion::region::Boundary;
use fuseline_fusion::{DTypeClass, Graph, Literal, Ref, TensorType};
use fuseline_interp::{self as interp, SumOrder};
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use super::interpreter_tier::failed;
use super::job::Job;
use crate::device::{Buffer, DeviceError};
use crate::limits::MAX_HOST_EVAL_RESULTS;
use crate::stream::StreamShared;
use crate::value::{Outcome, Producer};

/// Maximum number of elements of such a result. Programs decide by one number or a few.
const MAX_ELEMENTS: usize = 64;

/// Maximum time of the interpreter, by its estimate. The execution that a reader would wait for
/// takes at least that long.
const LONGEST: Duration = Duration::from_micros(50);

/// The ops that make one result of a region.
struct BackwardSlice {
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
    fn cone(
        &self,
        key: RegionKey,
        graph: &Graph,
        lifted: &[bool],
        result: u32,
    ) -> Option<Arc<BackwardSlice>> {
        if let Some(known) = self.0.lock().get_mut(&(key, result)) {
            return known.clone();
        }
        let cone = BackwardSlice::of(graph, lifted, result).map(Arc::new);
        self.0.lock().insert((key, result), cone.clone());
        cone
    }
}

impl Job {
    /// Computes the values that are being read, where the host can.
    pub(super) fn answer(&mut self, stream: &StreamShared) {
        let engine = stream.engine();
        let host_eval = engine.host_eval().filter(|_| self.boundary == Boundary::HostRead && self.is_fused());
        let Some(host_eval) =
            host_eval.filter(|_| self.effect == Effect::Pure && engine.device().replicas() == 1)
        else {
            return;
        };
        for (result, promise) in std::mem::take(&mut self.outputs) {
            let buffer = promise.holder().is_read().then(|| self.host_eval(result, host_eval, stream));
            match buffer.flatten() {
                Some(buffer) => {
                    self.has_answered = true;
                    engine.counters().host_evaluated.add(1);
                    let maker = Some(Producer { region: self.info.clone(), result });
                    drop(promise.resolve(Outcome::Data { buffer, maker }));
                }
                None => self.outputs.push((result, promise)),
            }
        }
    }

    fn host_eval(&self, result: u32, host_eval: &HostEval, stream: &StreamShared) -> Option<Buffer> {
        let canon = &self.info.canon;
        let cone = host_eval.cone(self.info.reference.key, canon.graph(), canon.lifted(), result)?;
        let device = stream.engine().device();
        let arithmetic = device.target().arithmetic(SumOrder::AnyOrder);
        let operand = |&at: &u32| match self.inputs.get(at as usize)?.value.cell().outcome().get() {
            Some(Outcome::Scalar(scalar)) => Some(Arc::new(scalar.to_literal())),
            _ => None,
        };
        let operands = cone.params.iter().map(operand).collect::<Option<Vec<_>>>()?;
        let run = || -> Result<Buffer, DeviceError> {
            let made: Vec<Arc<Literal>> = interp::run_for(&cone.graph, &operands, &[cone.result], arithmetic)
                .map_err(|error| failed(error.to_string()))?;
            let data = made.first().ok_or_else(|| failed("bug: a cone makes nothing"))?;
            device.upload(data.ty(), data.bytes())
        };
        catch_unwind(AssertUnwindSafe(run)).ok()?.ok()
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
        let cone = BackwardSlice::cut(graph, nodes, params, wanted)?;
        interp::estimate(&cone.graph).is_some_and(|takes| takes <= LONGEST).then_some(cone)
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
