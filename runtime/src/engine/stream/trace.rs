//! Bodies under construction, and how ops reach them. `crate::trace` begins and ends them, and has
//! their invariants (BODY-1 to BODY-4).

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::ir::{Ref, Refs};
use fuseline_fusion::op::{Effect, attrs};
use fuseline_fusion::{Graph, OpCode, OpError, OpErrorKind, Signature, Site, TensorType, ValueId};
use fuseline_sync::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::checks::Expected;
use super::handle::TensorHandle;
use super::{StreamShared, TensorHandles};
use crate::engine::BodyPosition;
use crate::engine::value::{Outcome, ValueCell};
use crate::error::{Error, Result};

/// How a body treats the outside values that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Outside values become operands of the op and parameters of the body.
    Operands,
    /// Lifted scalars become constants; other values are rejected.
    Constants,
    /// Lifted scalars become constants; other values become operands of the op and parameters of
    /// the body.
    Tensors,
    /// As [`CaptureMode::Operands`], for a function whose ops are recorded instead of a call.
    Inline,
}

impl CaptureMode {
    /// The capture mode for the bodies of an op.
    pub fn of(op: OpCode) -> CaptureMode {
        match op {
            OpCode::While | OpCode::If | OpCode::Case => CaptureMode::Operands,
            OpCode::Composite => CaptureMode::Tensors,
            _ => CaptureMode::Constants,
        }
    }
}

/// A body that is being recorded.
pub struct Trace {
    /// Increases in the order in which traces were begun.
    pub order: u64,
    /// The stream that is not a tracing one, for uploads.
    pub base: Arc<StreamShared>,
    /// How the body treats outside values.
    pub outside: CaptureMode,
    /// A description for messages, such as `the body of while_loop`.
    pub what: &'static str,
    /// Where the op was called.
    pub site: Site,
    /// `None` once it has ended.
    pub state: Mutex<Option<TraceState>>,
}

/// The contents of a trace.
#[derive(Debug, Default)]
pub struct TraceState {
    /// The ops so far.
    pub graph: Graph,
    /// For each parameter of the graph, the outside value that it stands for; `None` for a
    /// parameter of the op itself.
    pub params: Vec<Option<TensorHandle>>,
    /// The graph values of the outside values used so far.
    pub(crate) known: FxHashMap<ValueId, Ref>,
    /// Flags of checks, and the expectation for the elements of each.
    pub checks: Vec<(Ref, SmallVec<[Expected; 1]>)>,
}

/// Why a value cannot be used in a trace.
#[derive(Debug)]
pub enum Unusable {
    /// It belongs to another engine.
    OtherEngine,
    /// The body takes no outside value.
    CaptureMode,
    /// The op table refuses it.
    Refused(OpError),
}

impl TraceState {
    /// The graph value of a tensor. An outside value becomes a parameter or a constant.
    ///
    /// # Errors
    /// When the tensor cannot be used in the trace.
    pub fn value(&mut self, trace: &Trace, tensor: &TensorHandle) -> Result<Ref, Unusable> {
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
            (CaptureMode::Operands | CaptureMode::Tensors | CaptureMode::Inline, _) => {
                self.params.push(Some(tensor.clone()));
                self.graph.param(cell.ty().clone())
            }
        };
        self.known.insert(cell.id(), value);
        Ok(value)
    }
}

impl Trace {
    /// Whether the trace has not ended.
    pub fn is_open(&self) -> bool {
        self.state.lock().is_some()
    }

    /// The stream below this trace that is not a tracing one.
    pub fn base(&self) -> &Arc<StreamShared> {
        &self.base
    }

    /// Whether this records a function. Its calls can report the flags of checks inside.
    pub fn is_function(&self) -> bool {
        matches!(self.outside, CaptureMode::Tensors | CaptureMode::Inline)
    }

    /// Adds flags of a check to the results of the function.
    pub(crate) fn check(&self, flags: &BodyPosition, expected: SmallVec<[Expected; 1]>) {
        let _ = self.with(|state| state.checks.push((flags.value, expected)));
    }

    /// Calls `f` with the state; `None` if the trace has ended.
    pub fn with<R>(&self, f: impl FnOnce(&mut TraceState) -> R) -> Option<R> {
        self.state.lock().as_mut().map(f)
    }

    /// The error of a call that needs the data of a traced value.
    #[cold]
    pub(crate) fn no_data(&self, call: &str, site: Site) -> Error {
        let message = match self.is_open() {
            true => format!(
                "{call}: the value belongs to {self}, which is being recorded and has no data yet; \
                 return it from the closure and read what the call returns, or decide on the \
                 device: by the condition of `while_loop`, by `cond` or by `select`"
            ),
            false => format!(
                "{call}: the value belonged to {self}, which has ended, and it never has data; \
                 return it from the closure and read what the call returns"
            ),
        };
        Error::misuse(message, site)
    }

    /// The error of an op that uses a value of this trace after its end.
    #[cold]
    pub fn has_ended(&self, op: OpCode, given: &str) -> OpError {
        let given = format!("{given} belonged to {self}, which has ended");
        let rule = "a value that is created inside a closure can only be used inside it, while it runs";
        OpError::new(op.name(), OpErrorKind::Body, given, rule)
            .hint("return it from the closure and use what the call returns")
    }

    /// The error of an op that uses an unusable value.
    #[cold]
    pub fn refuse(&self, unusable: Unusable, op: OpCode, given: &str, site: &Site) -> Error {
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
                    "pass it to the call as one more operand, apply it before or after the call, \
                     or, if it is a constant, make it inside with `a.on_stream().constant(..)`, \
                     `a` being a parameter",
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

fn operand_words(signature: &Signature, index: usize, tensor: &TensorHandle) -> String {
    let name = signature.def().operand_name(index, signature.operands().len());
    format!("{name}, {},", tensor.ty())
}

/// The stream on which an op that is called on `stream` with these operands is recorded (BODY-1).
pub fn home<'a>(
    stream: &'a Arc<StreamShared>,
    operands: impl IntoIterator<Item = &'a TensorHandle>,
) -> &'a Arc<StreamShared> {
    let order = |stream: &Arc<StreamShared>| stream.trace().map(|trace| trace.order);
    let traced = operands.into_iter().filter(|tensor| tensor.cell().place().is_some());
    traced
        .map(TensorHandle::stream)
        .fold(stream, |home, other| if order(other) > order(home) { other } else { home })
}

/// Records an op that is called on a tracing stream or has an operand of a trace.
#[cold]
pub(crate) fn record(
    stream: &Arc<StreamShared>,
    signature: &Arc<Signature>,
    operands: &[&TensorHandle],
    effect: Effect,
    site: &Site,
) -> Result<TensorHandles> {
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
    let made = trace.with(|state| -> Result<TensorHandles> {
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
    /// A handle on a value of the trace.
    pub fn tensor(self: &Arc<Self>, stream: &Arc<StreamShared>, ty: TensorType, value: Ref) -> TensorHandle {
        let place = BodyPosition { trace: self.clone(), value };
        TensorHandle::new(ValueCell::known(ty, Outcome::Traced(place)), stream.clone())
    }
}
