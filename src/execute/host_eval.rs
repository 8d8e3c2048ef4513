//! Results that follow from what the host has.
//!
//! Programs look at numbers that depend on nothing the device computes: whether a mask that was
//! made from a length is full. Such a read ends a region, and that may be a whole training step:
//! whoever reads would wait for it and for all that runs before it, and record nothing meanwhile.
//! So when a read has ended a region, what is read of it is computed by the interpreter if that
//! takes integers and `bool` alone, from nothing but numbers that are lifted. The region is
//! launched as ever, and nobody waits for it.
//!
//! Input: a job that a read has made. Output: the job, without the promises of what is read if that
//! was computed.
//!
//! Invariants:
//! - J7: a value that was computed so cannot be told from what the region makes: on integers and
//!   `bool` every op is exact ([`Rounding`]). The region stays what it is, with its key and the
//!   results that its executable is asked for. Nobody waits for it, and what goes wrong leaves the
//!   value to the region.
//!
//! [`Rounding`]: fuseline_fusion::op::Rounding

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::graph::Node;
use fuseline_fusion::op::{Effect, Fusibility, Signature};
use fuseline_fusion::region::Boundary;
use fuseline_fusion::{DTypeClass, Graph, Literal, Ref, TensorType};
use fuseline_interp::{self as interp, SumOrder};
use fuseline_sync::{Mutex, Rank};

use super::bounded_map::BoundedFifoMap;
use super::interpreter_tier::failed;
use super::job::Job;
use crate::device::{Buffer, DeviceError};
use crate::limits::MAX_FOREGONE_RESULTS;
use crate::stream::StreamShared;
use crate::value::{Outcome, Producer};

/// Most elements of such a result: what a program decides by is a number or a few.
const MAX_ELEMENTS: usize = 64;

/// Most that the interpreter may take, by its estimate. What it is about, an execution that is
/// waited for, takes that at least.
const LONGEST: Duration = Duration::from_micros(50);

/// The ops that make one result of a region.
struct BackwardSlice {
    graph: Graph,
    /// Which parameters of the region are those of the graph; they are lifted.
    params: Vec<u32>,
    /// Which result of the graph it is.
    result: u32,
}

/// A result of a region.
type ResultOf = (RegionKey, u32);

/// Which results of regions are computed so: a bounded number, the oldest are forgotten.
pub(crate) struct HostEval(Mutex<BoundedFifoMap<ResultOf, Option<Arc<BackwardSlice>>>>);

impl HostEval {
    pub(crate) fn new() -> HostEval {
        HostEval(Mutex::new(Rank::HostEval, BoundedFifoMap::with_room(MAX_FOREGONE_RESULTS)))
    }

    /// The ops that make a result, if they can be told from it.
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
    /// Computes what somebody reads, if it follows from what the host has.
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

/// Whether an op computes with integers and `bool` alone, in its bodies too, and nothing but its
/// results comes of it.
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
        // From the last of them back, so that each is met behind all that read it.
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

    /// These ops of a graph as one of their own.
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
