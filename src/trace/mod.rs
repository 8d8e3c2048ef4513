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
//! usual. Their outcome is [`Outcome::Traced`], which holds their position in the trace.
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
//!   constants ([`CaptureMode::Tensors`]).
//!
//! So a number in the body of a loop or branch is lifted as elsewhere: another number compiles
//! nothing. In a scalar function, and in a function that is called as one op ([`FunctionTrace`]), a
//! number is part of the key.
//!
//! The flags of checks ([`crate::check`]) in a function are one more result of it. Other bodies
//! check nothing.
//!
//! Deliberately absent: the mode, which is that of the whole op, and the call sites of the ops
//! inside. Errors of recording an inner op name its call site, but an op with bodies that fails on
//! the device names only the line that called it.

mod function;
mod tree;

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::ir::{Ref, Refs};
use fuseline_fusion::op::{Effect, attrs};
use fuseline_fusion::{
    Body, DType, Graph, OpCode, OpError, OpErrorKind, Signature, Site, TensorType, ValueId,
};
use fuseline_sync::{Mutex, Rank, next_block};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use function::{Function, FunctionTrace};
pub use tree::TensorTree;
pub(crate) use tree::with_tensors;

use crate::check::Expected;
use crate::error::{Error, Result};
use crate::record::RecordCall;
use crate::stream::{StreamShared, Tensors};
use crate::tensor::Tensor;
use crate::value::{Outcome, ValueCell};

/// How a body treats the outside values that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaptureMode {
    /// Outside values become operands of the op and parameters of the body.
    Operands,
    /// Lifted scalars become constants; other values are rejected.
    Constants,
    /// Lifted scalars become constants; other values become operands of the op and parameters of
    /// the body.
    Tensors,
}

impl CaptureMode {
    /// The capture mode for the bodies of an op.
    fn of(op: OpCode) -> CaptureMode {
        match op {
            OpCode::While | OpCode::If | OpCode::Case => CaptureMode::Operands,
            OpCode::Composite => CaptureMode::Tensors,
            _ => CaptureMode::Constants,
        }
    }
}

/// The position of a value in a trace.
#[derive(Clone, Debug)]
pub(crate) struct BodyPosition {
    trace: Arc<Trace>,
    value: Ref,
}

/// A body that is being recorded.
pub(crate) struct Trace {
    /// Increases in the order in which traces were begun.
    order: u64,
    /// The stream that is not a tracing one, for uploads.
    base: Arc<StreamShared>,
    outside: CaptureMode,
    /// A description for messages, such as `the body of while_loop`.
    what: &'static str,
    /// Where the op was called.
    site: Site,
    /// `None` once it has ended.
    state: Mutex<Option<TraceState>>,
}

#[derive(Default)]
struct TraceState {
    graph: Graph,
    /// For each parameter of the graph, the outside value that it stands for; `None` for a
    /// parameter of the op itself.
    params: Vec<Option<Tensor>>,
    /// The graph values of the outside values used so far.
    known: FxHashMap<ValueId, Ref>,
    /// Flags of checks, and the expectation for the elements of each.
    checks: Vec<(Ref, SmallVec<[Expected; 1]>)>,
}

/// Why a value cannot be used in a trace.
enum Unusable {
    OtherEngine,
    CaptureMode,
    Refused(OpError),
}

impl TraceState {
    fn value(&mut self, trace: &Trace, tensor: &Tensor) -> Result<Ref, Unusable> {
        let cell = tensor.cell();
        if let Some(place) = cell.place()
            && std::ptr::eq(&*place.trace, trace)
        {
            return Ok(place.value);
        }
        if let Some(&value) = self.known.get(&cell.id()) {
            return Ok(value);
        }
        let value = match (trace.outside, cell.as_scalar()) {
            (CaptureMode::Constants | CaptureMode::Tensors, Some(scalar)) => {
                let attrs = attrs::constant(Arc::new(scalar.to_literal()));
                let made = self.graph.push(OpCode::Constant, attrs, &[], &[]);
                made.map_err(Unusable::Refused)?[0]
            }
            (CaptureMode::Constants, None) => return Err(Unusable::CaptureMode),
            (_, None) if !Arc::ptr_eq(tensor.stream().engine(), trace.base.engine()) => {
                return Err(Unusable::OtherEngine);
            }
            (CaptureMode::Operands | CaptureMode::Tensors, _) => {
                self.params.push(Some(tensor.clone()));
                self.graph.param(cell.ty().clone())
            }
        };
        self.known.insert(cell.id(), value);
        Ok(value)
    }
}

impl Trace {
    fn is_open(&self) -> bool {
        self.state.lock().is_some()
    }

    /// The stream below this trace that is not a tracing one.
    pub(crate) fn base(&self) -> &Arc<StreamShared> {
        &self.base
    }

    /// Whether this records a function that is called as one op. Its calls can report the flags of
    /// checks inside.
    pub(crate) fn is_function(&self) -> bool {
        self.outside == CaptureMode::Tensors
    }

    /// Adds flags of a check to the results of the function.
    pub(crate) fn check(&self, flags: &BodyPosition, expected: SmallVec<[Expected; 1]>) {
        let _ = self.with(|state| state.checks.push((flags.value, expected)));
    }

    /// Calls `f` with the state; `None` if the trace has ended.
    fn with<R>(&self, f: impl FnOnce(&mut TraceState) -> R) -> Option<R> {
        self.state.lock().as_mut().map(f)
    }

    /// The error of a call that needs the data of a traced value.
    #[cold]
    pub(crate) fn no_data(&self, call: &str, site: Site) -> Error {
        let message = match self.is_open() {
            true => format!(
                "{call}: the value belongs to {self}, which is being recorded and has no data yet; return it from the \
                 closure and read what the call returns, or decide on the device: by the condition of `while_loop`, by \
                 `cond` or by `select`"
            ),
            false => format!(
                "{call}: the value belonged to {self}, which has ended, and it never has data; return it from the closure and \
                 read what the call returns"
            ),
        };
        Error::misuse(message, site)
    }

    /// The error of an op that uses a value of this trace after its end.
    #[cold]
    fn has_ended(&self, op: OpCode, given: &str) -> OpError {
        let given = format!("{given} belonged to {self}, which has ended");
        let rule = "a value that is created inside a closure can only be used inside it, while it runs";
        OpError::new(op.name(), OpErrorKind::Body, given, rule)
            .hint("return it from the closure and use what the call returns")
    }

    #[cold]
    fn refuse(&self, unusable: Unusable, op: OpCode, given: &str, site: &Site) -> Error {
        let error = match unusable {
            Unusable::Refused(error) => error,
            Unusable::OtherEngine => {
                let given = format!("{given} belongs to another engine");
                let rule = "read it to the host and upload it to this engine";
                OpError::new(op.name(), OpErrorKind::Body, given, rule)
            }
            Unusable::CaptureMode => {
                let given = format!("{given} comes from outside of {self}");
                let rule =
                    "such a function can only use its parameters, numbers and values computed from them";
                OpError::new(op.name(), OpErrorKind::Body, given, rule).hint(
                    "pass it to the call as one more operand, apply it before or after the call, or, if it is a \
                     constant, make it inside with `a.on_stream().constant(..)`, `a` being a parameter",
                )
            }
        };
        Error::op(error, site.clone())
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.site {
            Site::Unknown => f.write_str(self.what),
            _ => write!(f, "{} called at {}", self.what, self.site),
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({self})")
    }
}

fn operand_words(signature: &Signature, index: usize, tensor: &Tensor) -> String {
    let name = signature.def().operand_name(index, signature.operands().len());
    format!("{name}, {},", tensor.ty())
}

/// The stream on which an op that is called on `stream` with these operands is recorded (BODY-1).
pub(crate) fn home<'a>(
    stream: &'a Arc<StreamShared>,
    operands: impl IntoIterator<Item = &'a Tensor>,
) -> &'a Arc<StreamShared> {
    let order = |stream: &Arc<StreamShared>| stream.trace().map(|trace| trace.order);
    let traced = operands.into_iter().filter(|tensor| tensor.cell().place().is_some());
    traced
        .map(Tensor::stream)
        .fold(stream, |home, other| if order(other) > order(home) { other } else { home })
}

/// Records an op that is called on a tracing stream or has an operand of a trace.
#[cold]
pub(crate) fn record(
    stream: &Arc<StreamShared>,
    signature: &Arc<Signature>,
    operands: &[&Tensor],
    effect: Effect,
    site: &Site,
) -> Result<Tensors> {
    let op = signature.op();
    let refuse = |error| Err(Error::op(error, site.clone()));
    if let Some(trace) = stream.trace()
        && !trace.is_open()
    {
        return refuse(trace.has_ended(op, "the stream that it was called on"));
    }
    for (index, tensor) in operands.iter().enumerate() {
        if let Some(BodyPosition { trace, .. }) = tensor.cell().place()
            && !trace.is_open()
        {
            return refuse(trace.has_ended(op, &operand_words(signature, index, tensor)));
        }
    }
    let stream = home(stream, operands.iter().copied());
    let Some(trace) = stream.trace() else {
        return Err(crate::error::bug!("{op} has no operand of a trace"));
    };
    if effect == Effect::Ordered && signature.effect() == Effect::Pure {
        let given = format!("{trace} requests an effect that the op table does not list");
        let rule = "inside a body an op has only the effects of its row in the op table";
        return refuse(OpError::new(op.name(), OpErrorKind::Body, given, rule).hint("record it outside"));
    }
    let made = trace.with(|state| -> Result<Tensors> {
        let mut refs = Refs::new();
        for (index, tensor) in operands.iter().enumerate() {
            let value = state.value(trace, tensor).map_err(|unusable| {
                trace.refuse(unusable, op, &operand_words(signature, index, tensor), site)
            })?;
            refs.push(value);
        }
        state.graph.check_room(op).map_err(|error| Error::op(error, site.clone()))?;
        let values = state.graph.push_signature(signature.clone(), refs);
        let types = signature.results().iter();
        Ok(types.zip(values).map(|(ty, value)| trace.tensor(stream, ty.clone(), value)).collect())
    });
    made.unwrap_or_else(|| refuse(trace.has_ended(op, "an operand")))
}

impl Trace {
    fn tensor(self: &Arc<Self>, stream: &Arc<StreamShared>, ty: TensorType, value: Ref) -> Tensor {
        let place = BodyPosition { trace: self.clone(), value };
        Tensor::new(ValueCell::known(ty, Outcome::Traced(place)), stream.clone())
    }
}

impl BodyPosition {
    /// The trace that the value belongs to.
    pub(crate) fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }
}

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
        let trace = Arc::new(Trace {
            order: next_block(),
            base: stream.base().clone(),
            outside: CaptureMode::of(op),
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
            Some(value) => Ok(self.trace.tensor(&self.stream, ty, value)),
            None => Err(Error::misuse(format!("{} has ended", self.trace), Site::Unknown)),
        }
    }

    /// The flags of all checks in the trace, concatenated, and their expectations.
    fn checks(&self) -> Result<Option<(Tensor, SmallVec<[Expected; 1]>)>> {
        let checks = self.trace.with(|state| std::mem::take(&mut state.checks)).unwrap_or_default();
        let (mut flags, mut all) = (Vec::new(), SmallVec::new());
        for (value, expected) in checks {
            let count = expected.len();
            let ty = if count == 1 {
                TensorType::scalar(DType::U64)
            } else {
                TensorType::of(DType::U64, &[count as u64])?
            };
            flags.push(self.trace.tensor(&self.stream, ty, value).reshape(&[count])?);
            all.extend(expected);
        }
        let flags: Vec<&Tensor> = flags.iter().collect();
        match flags.is_empty() {
            true => Ok(None),
            false => Ok(Some((Tensor::concatenate(&flags, 0)?, all))),
        }
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
            let value = state.value(&self.trace, tensor).map_err(|unusable| {
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
    params: Vec<Option<Tensor>>,
    returns: Refs,
}

impl Recorded {
    /// The body, if it uses no outside value; otherwise the first such value.
    pub(crate) fn alone(self) -> Result<Body, Tensor> {
        let used = self.captures().next().cloned();
        used.map_or_else(|| Ok(self.close(&Captures::default(), false)), Err)
    }

    /// The outside values that the body uses.
    fn captures(&self) -> impl Iterator<Item = &Tensor> {
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
    fn of<'a>(used: impl Iterator<Item = &'a Tensor>, stream: &Arc<StreamShared>) -> Captures {
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
    let operands: Vec<&Tensor> = call.operands.iter().copied().chain(&captures.tensors).collect();
    let mut results = stream.record(RecordCall { bodies: &bodies, operands: &operands, ..call })?;
    if carries {
        results.truncate(own);
    }
    Ok(results)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use fuseline_fusion::DType;
    use fuseline_fusion::region::Boundary;

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
