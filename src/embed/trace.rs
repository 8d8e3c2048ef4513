//! Whole graphs: ops recorded into a program instead of being run, and programs called like ops.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::limits::MAX_CONSTANT_BYTES;
use fuseline_fusion::op::{Effect, attrs};
use fuseline_fusion::program::{Program, ProgramId, ProgramOp, ProgramValue, Role};
use fuseline_fusion::{Attrs, Body, Bytes, Literal, OpCode, Scalar, Site, TensorType};
use fuseline_interp::MAX_VALUE_BYTES;
use fuseline_record::memo;
use fuseline_runtime::internals::bug;
use fuseline_runtime::{Error, Result};
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::report::told;
use super::table::Missing;
use super::{Lane, RecordedResult, Session, StreamHandle, ValueHandle, handles};
use crate::handle::Tensor;
use crate::stream::Stream;

handles! {
    /// Id of a function of a session.
    FunctionHandle, "function";
}

/// What the id of a value refers to.
#[derive(Clone)]
pub(super) enum EmbeddedValue {
    /// A value that is, or will be, on the device.
    Tensor(Tensor),
    /// A value of a program that is being traced. Behind a pointer, because slots are copied for
    /// each recorded op and should be small.
    Traced(Arc<Traced>),
}

/// A value of a program that is being traced.
pub(super) struct Traced {
    pub(super) trace: Arc<Trace>,
    pub(super) id: ProgramId,
    pub(super) ty: TensorType,
}

impl EmbeddedValue {
    pub(super) fn ty(&self) -> &TensorType {
        match self {
            EmbeddedValue::Tensor(tensor) => tensor.ty(),
            EmbeddedValue::Traced(traced) => &traced.ty,
        }
    }
}

#[derive(Default)]
struct EmbeddedTraceState {
    values: Vec<ProgramValue>,
    /// The values that each call supplies. They have no data, however large they are.
    inputs: Vec<(ProgramId, TensorType)>,
    /// Values that are lifted scalars.
    scalars: HashMap<ProgramId, Scalar>,
    ops: Vec<ProgramOp>,
    next: u32,
}

impl EmbeddedTraceState {
    fn fresh(&mut self) -> ProgramId {
        self.next += 1;
        ProgramId(self.next - 1)
    }
}

/// A program that is being recorded.
pub(super) struct Trace {
    /// `None` after the end of the trace.
    state: Mutex<Option<EmbeddedTraceState>>,
    /// The number of replicas of the engine.
    replicas: usize,
}

impl Trace {
    fn with<R>(&self, site: &Site, f: impl FnOnce(&mut EmbeddedTraceState) -> R) -> Result<R> {
        let mut state = self.state.lock();
        match state.as_mut() {
            Some(state) => Ok(f(state)),
            None => Err(Error::misuse("the trace has ended", site.clone())),
        }
    }

    /// Adds a value with this data to the program.
    pub(super) fn bound(&self, data: Literal) -> Result<ProgramId> {
        self.with(&Site::Unknown, |state| {
            let id = state.fresh();
            state.values.push(ProgramValue { id, role: Role::Input, data: Arc::new(data) });
            id
        })
    }

    /// Adds a lifted scalar to the program.
    pub(super) fn scalar(&self, value: Scalar) -> Result<ProgramId> {
        let id = self.bound(value.to_literal())?;
        self.with(&Site::Unknown, |state| state.scalars.insert(id, value))?;
        Ok(id)
    }

    /// Adds an input that each call supplies.
    pub(super) fn input(&self, ty: &TensorType) -> Result<ProgramId> {
        self.with(&Site::Unknown, |state| {
            let id = state.fresh();
            state.inputs.push((id, ty.clone()));
            id
        })
    }

    pub(super) fn record(
        self: &Arc<Self>,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[EmbeddedValue],
        site: Site,
    ) -> Result<SmallVec<[EmbeddedValue; 1]>> {
        let types = operands.iter().map(EmbeddedValue::ty);
        let signature =
            memo::signature(op, &attrs, bodies, types).map_err(|error| Error::op(error, site.clone()))?;
        signature.check_replicas(self.replicas).map_err(|error| Error::op(error, site.clone()))?;
        let mut ids = Vec::new();
        for operand in operands {
            match operand {
                EmbeddedValue::Traced(traced) if Arc::ptr_eq(&traced.trace, self) => ids.push(traced.id),
                _ => {
                    let message = format!(
                        "{op}: an operand is not a value of this trace; create placeholders for values from outside"
                    );
                    return Err(Error::misuse(message, site));
                }
            }
        }
        self.with(&site, |state| {
            let results: Vec<ProgramId> = signature.results().iter().map(|_| state.fresh()).collect();
            let held = results.iter().zip(signature.results()).map(|(&id, ty)| {
                EmbeddedValue::Traced(Arc::new(Traced { trace: self.clone(), id, ty: ty.clone() }))
            });
            let held = held.collect();
            state.ops.push(ProgramOp { signature: signature.clone(), operands: ids, results });
            held
        })
    }
}

/// A program that can be called.
pub(super) struct Function {
    /// The recorded program, without the inputs that a call supplies.
    program: Program,
    /// The inputs that a call supplies, in order.
    inputs: Vec<(ProgramId, TensorType)>,
    scalars: HashMap<ProgramId, Scalar>,
}

impl Session {
    /// Begins a program. Ops recorded under the returned id are checked and typed as usual but not
    /// run. The inputs of the program are the placeholders created under that id, in order. Lifted
    /// scalars and constants created under it keep their values. Any thread may record; the order
    /// of the program is that of the calls.
    ///
    /// # Errors
    /// When there are too many streams.
    pub fn begin_trace(&self) -> Result<StreamHandle> {
        let replicas = self.0.engine.replicas();
        self.open(Lane::Trace(Arc::new(Trace {
            state: Mutex::new(Rank::EmbeddedTrace, Some(EmbeddedTraceState::default())),
            replicas,
        })))
    }

    /// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace
    /// becomes invalid. The ids of its values still have to be released.
    ///
    /// # Errors
    /// When an id is invalid, or an output is no value of the trace. Then the trace goes on.
    pub fn end_trace(
        &self,
        trace: StreamHandle,
        name: &str,
        outputs: &[ValueHandle],
    ) -> Result<FunctionHandle> {
        told(self.finish_trace(trace, name, outputs))
    }

    fn finish_trace(
        &self,
        handle: StreamHandle,
        name: &str,
        outputs: &[ValueHandle],
    ) -> Result<FunctionHandle> {
        let refuse = |message: String| Err(Error::misuse(message, Site::Unknown));
        let Lane::Trace(trace) = self.lane(handle, "end_trace", &Site::Unknown)? else {
            return refuse(format!("end_trace: {handle} is not a trace"));
        };
        let mut ids = Vec::new();
        for &output in outputs {
            match self.held(output, "end_trace", &Site::Unknown)? {
                EmbeddedValue::Traced(traced) if Arc::ptr_eq(&traced.trace, &trace) => ids.push(traced.id),
                _ => return refuse(format!("end_trace: {output} is not a value of this trace")),
            }
        }
        let Some(EmbeddedTraceState { values, inputs, scalars, ops, .. }) = trace.state.lock().take() else {
            return refuse("end_trace: the trace has ended".to_owned());
        };
        // Only the call that ended the trace releases its id.
        self.close_stream(handle)?;
        let name = name.to_owned();
        let program =
            Program { name, source: "traced".to_owned(), values, ops, outputs: ids, ..Program::default() };
        self.add_function(Function { program, inputs, scalars })
    }

    /// Makes a function of a program: an op of the framework that consists of recorded ops. It is
    /// called by [`Session::call`] and fused like other ops. Its inputs are those of the program,
    /// in order.
    ///
    /// # Errors
    /// When there are too many.
    pub fn register(&self, program: Program) -> Result<FunctionHandle> {
        let is_input = |value: &&ProgramValue| value.role == Role::Input;
        let input = |value: &ProgramValue| (value.id, value.data.ty().clone());
        let inputs = program.values.iter().filter(is_input).map(input).collect();
        told(self.add_function(Function { program, inputs, scalars: HashMap::new() }))
    }

    fn add_function(&self, function: Function) -> Result<FunctionHandle> {
        let added = self.0.functions.insert(Arc::new(function)).map(FunctionHandle);
        added.map_err(|missing| Error::misuse(format!("a new function: the table {missing}"), Site::Unknown))
    }

    fn function(&self, function: FunctionHandle, what: &str, site: &Site) -> Result<Arc<Function>> {
        self.0.functions.get(function.0).map_err(|missing: Missing| function.missing(missing, what, site))
    }

    /// Releases the id of a function.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn forget(&self, function: FunctionHandle) -> Result<()> {
        let gone = self.0.functions.release(function.0);
        told(gone.map(drop).map_err(|missing| function.missing(missing, "forget", &Site::Unknown)))
    }

    /// The program of a function, to save, inspect or run elsewhere. Inputs that a call supplies
    /// are zeros in it.
    ///
    /// # Errors
    /// When the id is invalid, or when the inputs have more bytes than [`MAX_VALUE_BYTES`] or than
    /// can be allocated.
    pub fn program(&self, function: FunctionHandle) -> Result<Program> {
        told(self.function(function, "program", &Site::Unknown).and_then(|function| function.whole()))
    }

    /// Records the ops of a function on a stream or into a trace, and returns its outputs. They
    /// share regions with the ops before and after, unless those are separated by flushes.
    ///
    /// # Errors
    /// When an id is invalid, or the number or types of the operands do not match the function's
    /// inputs.
    pub fn call(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        operands: &[ValueHandle],
        site: Site,
    ) -> Result<SmallVec<[RecordedResult; 1]>> {
        told(self.call_one(stream, function, operands, site))
    }

    fn call_one(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        operands: &[ValueHandle],
        site: Site,
    ) -> Result<SmallVec<[RecordedResult; 1]>> {
        let lane = self.lane(stream, "call", &site)?;
        let function = self.function(function, "call", &site)?;
        let mut values = self.arguments(&lane, &function, operands, &site)?;
        let program = &function.program;
        let undefined = |uses: &str, id: &ProgramId| {
            let message = format!("call of {}: it {uses} {id}, which it does not define", program.name);
            Error::misuse(message, site.clone())
        };
        for op in &program.ops {
            let read = |id: &ProgramId| values.get(id).cloned().ok_or_else(|| undefined("uses", id));
            let operands: Vec<EmbeddedValue> = op.operands.iter().map(read).collect::<Result<_>>()?;
            let signature = &op.signature;
            let (attrs, bodies) = (Attrs::clone(signature.attrs()), signature.bodies());
            let results =
                lane.record(signature.op(), attrs, bodies, &operands, Effect::Pure, site.clone())?;
            values.extend(op.results.iter().copied().zip(results));
        }
        let output = |id: &ProgramId| values.get(id).cloned().ok_or_else(|| undefined("returns", id));
        let outputs: SmallVec<[EmbeddedValue; 4]> =
            program.outputs.iter().map(output).collect::<Result<_>>()?;
        drop(values);
        self.keep_all(outputs)
    }

    /// The values that a call of a function begins with: its inputs, scalars and constants.
    fn arguments(
        &self,
        lane: &Lane,
        function: &Function,
        operands: &[ValueHandle],
        site: &Site,
    ) -> Result<HashMap<ProgramId, EmbeddedValue>> {
        let Function { program, inputs, scalars } = function;
        let refuse = |message: String| Err(Error::misuse(message, site.clone()));
        if operands.len() != inputs.len() {
            let (wanted, given) = (inputs.len(), operands.len());
            return refuse(format!(
                "call of {}: it takes {wanted} inputs, but {given} were given",
                program.name
            ));
        }
        let mut values: HashMap<ProgramId, EmbeddedValue> = HashMap::new();
        for ((id, wanted), &operand) in inputs.iter().zip(operands) {
            let held = self.held(operand, &program.name, site)?;
            if held.ty() != wanted {
                let given = held.ty();
                return refuse(format!(
                    "call of {}: an input must be {wanted}, but {given} was given",
                    program.name
                ));
            }
            values.insert(*id, held);
        }
        for value in &program.values {
            if values.contains_key(&value.id) {
                continue;
            }
            let scalar = scalars.get(&value.id).copied();
            values.insert(value.id, bind(lane, value, scalar, site)?);
        }
        Ok(values)
    }
}

impl Function {
    /// The program with all its values. Inputs that a call supplies are zeros.
    fn whole(&self) -> Result<Program> {
        let mut program = self.program.clone();
        let known: HashSet<ProgramId> = program.values.iter().map(|value| value.id).collect();
        let absent = || self.inputs.iter().filter(|(id, _)| !known.contains(id));
        let bytes = absent().map(|(_, ty)| ty.bytes()).fold(Bytes(0), Bytes::saturating_add);
        let too_large = |why: &str| {
            let message = format!("program: its inputs would take {bytes} of zeros, {why}");
            Error::misuse(message, Site::Unknown)
        };
        if bytes > MAX_VALUE_BYTES {
            return Err(too_large(&format!("but a program file has room for at most {MAX_VALUE_BYTES}")));
        }
        for (id, ty) in absent() {
            let zeros = Literal::try_zeros(ty.clone())
                .ok_or_else(|| too_large("for which there is not enough memory"))?;
            program.values.push(ProgramValue { id: *id, role: Role::Input, data: Arc::new(zeros) });
        }
        // In the order of creation.
        program.values.sort_by_key(|value| value.id);
        Ok(program)
    }
}

/// Creates a value that is part of the program.
fn bind(lane: &Lane, value: &ProgramValue, scalar: Option<Scalar>, site: &Site) -> Result<EmbeddedValue> {
    let data = &value.data;
    let constant = |lane: &Lane| {
        let attrs = attrs::constant(data.clone());
        let mut made = lane.record(OpCode::Constant, attrs, &[], &[], Effect::Pure, site.clone())?;
        made.pop().ok_or_else(|| bug!("a constant has one result"))
    };
    let small = data.ty().bytes().0 <= MAX_CONSTANT_BYTES;
    match (lane, value.role) {
        (lane, Role::Const) if small => constant(lane),
        (Lane::Stream(stream), _) => on_stream(stream, data, scalar),
        (Lane::Body(body), _) => on_stream(&Stream::of(body.stream().clone()), data, scalar),
        (Lane::Trace(trace), _) => {
            let id = match scalar {
                Some(scalar) => trace.scalar(scalar)?,
                None => trace.bound(Literal::clone(data))?,
            };
            Ok(EmbeddedValue::Traced(Arc::new(Traced { trace: trace.clone(), id, ty: data.ty().clone() })))
        }
    }
}

fn on_stream(stream: &Stream, data: &Literal, scalar: Option<Scalar>) -> Result<EmbeddedValue> {
    Ok(EmbeddedValue::Tensor(match scalar {
        Some(scalar) => stream.lift(scalar),
        None => stream.from_literal(data)?,
    }))
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({}, {} ops)", self.program.name, self.program.ops.len())
    }
}
