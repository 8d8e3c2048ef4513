//! Sub-traces: the bodies of loops, branches, reductions and sorts, recorded by ordinary tensor
//! calls.
//!
//! Input: calls on placeholders, made by a closure or, in the API for frameworks, between a begin
//! and an end. Output: the [`Body`] of an op, and the outside values that the body uses.
//!
//! ```text
//! closure ─► Tensor method ─► record ─┬─ no operand of a trace ─► log of the stream
//!                                     └─ else: graph of the trace
//!                                        ─► Recorded ─► unite ─► Body, captures ─► record
//! ```
//!
//! A [`Trace`] is a graph under construction. Ops reach it through a *tracing stream*, a
//! [`StreamShared`] that has a trace and whose log and driver stay idle. Its values are tensors
//! like any others: type and shape are known at once, and the op table rejects invalid calls as
//! usual. Their outcome is `Outcome::Traced`, which holds their position in the trace.
//!
//! Invariants:
//! - BODY-1: an op belongs to the trace that was begun last among those of its receiver and its
//!   operands, or to the receiver's stream if there is none. The thread does not matter: a closure
//!   may use several. An op whose operands all come from outside is recorded outside, which hoists
//!   it out of the loop.
//! - BODY-2: a trace appends nothing to a log, neither ops nor releases. A closure that fails or
//!   panics leaves the stream as it was.
//! - BODY-3: a value of a trace is used only while the trace is open. After that, every call on the
//!   value fails with an error that names the body it belonged to.
//! - BODY-4: a body sees nothing but its parameters. An outside value that it uses is a capture:
//!   one more operand of the op and one more parameter of every body ([`CaptureMode::Operands`]),
//!   in the order of first use. A loop passes captures from iteration to iteration. The scalar
//!   functions of reductions, sorts and scatters have no captures, and a lifted scalar becomes a
//!   constant ([`CaptureMode::Constants`]). A user's function has captures, and numbers are
//!   constants ([`CaptureMode::Tensors`]), unless its ops are recorded instead of a call
//!   ([`CaptureMode::Inline`]).
//!
//! So a number in the body of a loop or branch is lifted as elsewhere: another number compiles
//! nothing. In a scalar function, and in a function that is called as one op ([`FunctionTrace`]), a
//! number is part of the key.
//!
//! The flags of checks (`runtime::stream::checks`) in a function are one more result of it. Other
//! bodies check nothing.
//!
//! Deliberately absent: the mode, which is that of the whole op, and the call sites of the ops
//! inside. Errors of recording an inner op name its call site, but an op with bodies that fails on
//! the device names only the line that called it.

mod function;
mod tree;

use std::sync::Arc;

use fuseline_fusion::ir::{Ref, Refs};
use fuseline_fusion::{Body, DType, Graph, OpCode, Site, TensorType, ValueId};
use fuseline_sync::{Mutex, Rank, next_block};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use function::{Function, FunctionTrace};
pub use tree::TensorTree;
pub(crate) use tree::with_tensors;

use fuseline_runtime::internals::{
    BodyPosition, CaptureMode, Expected, RecordCall, StreamShared, TensorHandle, Trace, TraceState,
};
use fuseline_runtime::{Error, Result};

use crate::handle::{Tensor, Tensors, record};

/// The flags of checks, and the expectation for each element.
type Check = (Tensor, SmallVec<[Expected; 1]>);

/// Keeps a trace open; dropping it ends the trace.
#[derive(Debug)]
pub(crate) struct Open {
    stream: Arc<StreamShared>,
    trace: Arc<Trace>,
    op: OpCode,
}

impl Open {
    /// Begins a body of an op that will be recorded on `stream` or inside a trace. `what` describes
    /// the body in messages.
    pub(crate) fn begin(stream: &Arc<StreamShared>, op: OpCode, what: &'static str, site: &Site) -> Open {
        Open::begin_with(CaptureMode::of(op), stream, op, what, site)
    }

    /// As [`Open::begin`], with another capture mode than that of the op.
    fn begin_with(
        outside: CaptureMode,
        stream: &Arc<StreamShared>,
        op: OpCode,
        what: &'static str,
        site: &Site,
    ) -> Open {
        let trace = Arc::new(Trace {
            order: next_block(),
            base: stream.base().clone(),
            outside,
            what,
            site: site.clone(),
            state: Mutex::new(Rank::Trace, Some(TraceState::default())),
        });
        Open { stream: StreamShared::tracing(trace.clone()), trace, op }
    }

    /// The tracing stream.
    pub(crate) fn stream(&self) -> &Arc<StreamShared> {
        &self.stream
    }

    /// Adds a parameter of the op itself.
    pub(crate) fn param(&self, ty: TensorType) -> Result<Tensor> {
        let value = self.trace.with(|state| {
            state.params.push(None);
            state.graph.param(ty.clone())
        });
        match value {
            Some(value) => Ok(Tensor::from_handle(self.trace.tensor(&self.stream, ty, value))),
            None => Err(Error::misuse(format!("{} has ended", self.trace), Site::Unknown)),
        }
    }

    /// The flags of the checks in the trace, and the expectations for the elements of each.
    fn checks(&self) -> Result<Vec<Check>> {
        let checks = self.trace.with(|state| std::mem::take(&mut state.checks)).unwrap_or_default();
        let flags = checks.into_iter().map(|(value, expected)| {
            let ty = match expected.len() {
                1 => TensorType::scalar(DType::U64),
                count => TensorType::of(DType::U64, &[count as u64])?,
            };
            Ok((Tensor::from_handle(self.trace.tensor(&self.stream, ty, value)), expected))
        });
        flags.collect()
    }

    /// Adds a parameter for each of `tensors`, the tensors of `like`, in the structure of `like`.
    pub(crate) fn params_like<T: TensorTree>(&self, like: &T, tensors: &[Tensor]) -> Result<T> {
        let params = tensors.iter().map(|tensor| self.param(tensor.ty().clone()));
        with_tensors(like, params.collect::<Result<Vec<_>>>()?)
    }

    /// Ends the body with the values that it returns, which may be outside values.
    pub(crate) fn end(&self, returns: &[Tensor]) -> Result<Recorded> {
        let site = &self.trace.site;
        let refuse = |trace: &Trace, tensor: &Tensor| {
            let given = format!("a value returned, {},", tensor.ty());
            Err(Error::op(trace.has_ended(self.op, &given), site.clone()))
        };
        for tensor in returns {
            if let Some(BodyPosition { trace, .. }) = tensor.cell().place()
                && !trace.is_open()
            {
                return refuse(trace, tensor);
            }
        }
        // Two statements, so that the lock is released before the contents are dropped.
        let state = self.trace.state.lock().take();
        let Some(mut state) = state else {
            return Err(Error::misuse(format!("{} has ended", self.trace), site.clone()));
        };
        let mut refs = Refs::new();
        for tensor in returns {
            let value = state.value(&self.trace, tensor.handle()).map_err(|unusable| {
                let given = format!("a value returned, {},", tensor.ty());
                self.trace.refuse(unusable, self.op, &given, site)
            })?;
            refs.push(value);
        }
        Ok(Recorded { graph: state.graph, params: state.params, returns: refs })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let state = self.trace.state.lock().take();
        drop(state);
    }
}

/// A recorded body before its captures are united with those of the op's other bodies.
pub(crate) struct Recorded {
    graph: Graph,
    /// As in [`TraceState`].
    params: Vec<Option<TensorHandle>>,
    returns: Refs,
}

impl Recorded {
    /// The body, if it uses no outside value; otherwise the first such value.
    pub(crate) fn alone(self) -> Result<Body, Tensor> {
        let used = self.captures().next().cloned().map(Tensor::from_handle);
        used.map_or_else(|| Ok(self.close(&Captures::default(), false)), Err)
    }

    /// The outside values that the body uses.
    fn captures(&self) -> impl Iterator<Item = &TensorHandle> {
        self.params.iter().flatten()
    }

    /// The body with `captures` as additional parameters, which it also returns if `hands_on` is
    /// set.
    fn close(self, captures: &Captures, hands_on: bool) -> Body {
        let Recorded { graph, params, returns } = self;
        let own = params.iter().filter(|capture| capture.is_none()).count() as u32;
        let mut next = 0;
        let places: Vec<Ref> = params
            .iter()
            .map(|capture| match capture {
                Some(tensor) => Ref::Param(own + captures.places[&tensor.id()]),
                None => {
                    next += 1;
                    Ref::Param(next - 1)
                }
            })
            .collect();
        let moved = |value: Ref| match value {
            Ref::Param(index) => places[index as usize],
            Ref::Result(_) => value,
        };
        let mut united = Graph::with_capacity_of(&graph);
        for (ty, _) in graph.params().iter().zip(&params).filter(|(_, capture)| capture.is_none()) {
            united.param(ty.clone());
        }
        let mut returns: Refs = returns.into_iter().map(moved).collect();
        for tensor in &captures.tensors {
            let param = united.param(tensor.ty().clone());
            if hands_on {
                returns.push(param);
            }
        }
        for node in graph.nodes() {
            let operands = node.operands().iter().map(|&operand| moved(operand)).collect();
            united.push_signature(node.signature().clone(), operands);
        }
        Body::new(united, &returns).expect("bug: a trace returns a value that it does not have")
    }
}

/// The outside values that the bodies of one op use.
#[derive(Default)]
struct Captures {
    tensors: Vec<Tensor>,
    places: FxHashMap<ValueId, u32>,
}

impl Captures {
    fn of<'a>(used: impl Iterator<Item = &'a TensorHandle>, stream: &Arc<StreamShared>) -> Captures {
        let mut captures = Captures::default();
        for tensor in used {
            let place = captures.tensors.len() as u32;
            captures.places.entry(tensor.id()).or_insert_with(|| {
                // A number that was created in a body belongs to that body's stream. Its value is
                // usable on every stream.
                let home = if tensor.cell().is_scalar() { stream } else { tensor.stream() };
                captures.tensors.push(Tensor::another(tensor.cell(), home));
                place
            });
        }
        captures
    }
}

/// Records an op whose bodies were traced, with their captures as additional operands. `call` has
/// no bodies yet. Returns the results without the captures that a loop passes on.
pub(crate) fn record_with(
    stream: &Arc<StreamShared>,
    call: RecordCall<'_>,
    bodies: Vec<Recorded>,
) -> Result<Tensors> {
    let captures = Captures::of(bodies.iter().flat_map(Recorded::captures), stream);
    // The second body of a loop returns everything that the loop carries, captures included. No
    // other body returns captures.
    let carries = call.op == OpCode::While;
    let bodies: Vec<Arc<Body>> = bodies
        .into_iter()
        .enumerate()
        .map(|(index, body)| Arc::new(body.close(&captures, carries && index == 1)))
        .collect();
    let own = call.operands.len();
    let captured = captures.tensors.iter().map(Tensor::handle);
    let operands: Vec<&TensorHandle> = call.operands.iter().copied().chain(captured).collect();
    let mut results = record(stream, RecordCall { bodies: &bodies, operands: &operands, ..call })?;
    if carries {
        results.truncate(own);
    }
    Ok(results)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use fuseline_fusion::DType;
    use fuseline_fusion::region::Boundary;

    use super::*;
    use crate::engine::Engine;

    /// BODY-2: recording, dropping, flushing and demanding inside a trace append nothing to any log
    /// and take no ticket.
    #[test]
    fn a_trace_appends_nothing_to_a_log() {
        let engine = Engine::reference();
        let base = engine.stream().shared();
        let outside = engine.full(1.0f32, &[2]).unwrap();
        engine.synchronize().unwrap();
        let place = base.log().read().place();
        let open = Open::begin(base, OpCode::While, "a body", &Site::Unknown);
        let x = open.param(TensorType::of(DType::F32, &[2]).unwrap()).unwrap();
        for _ in 0..100 {
            drop(((&x * 0.5).unwrap() + &outside).unwrap());
        }
        x.on_stream().flush();
        open.stream().need(x.cell(), Boundary::HostRead);
        x.on_ready(drop);
        drop(x.on_stream().zeros(DType::F32, &[2]).unwrap());
        let returned = open.end(&[x]).unwrap();
        assert_eq!(returned.captures().count(), 101, "the tensor and each number");
        let inner = open.stream().clone();
        drop((returned, open));
        assert!(inner.log().read().pop().is_none() && base.log().read().pop().is_none());
        assert_eq!(base.log().read().place(), place);
    }
}
