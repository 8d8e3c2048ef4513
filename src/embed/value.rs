//! Values by id: creation, recording, reference counts, replacement.

use std::sync::Arc;

use fuseline_fusion::op::{Effect, attrs};
use fuseline_fusion::{Attrs, Body, Literal, OpCode, Scalar, Site, TensorType};
use fuseline_record::mode::caller;
use fuseline_runtime::internals::{Outcome, RecordCall, StreamShared, ValueCell};
use fuseline_runtime::{Error, Result};
use smallvec::SmallVec;

use super::report::told;
use super::trace::{EmbeddedValue, Traced};
use super::{Lane, RecordedResult, Session, StreamHandle, ValueHandle};
use crate::handle::{Tensor, handles, record};
use crate::pjrt::HostData;
use crate::stream::Stream;

/// An op to be recorded.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The op.
    pub op: OpCode,
    /// Its attributes.
    pub attrs: Attrs,
    /// Its functions, for ops that have them.
    pub bodies: &'a [Arc<Body>],
    /// Its operands, from any streams.
    pub operands: &'a [ValueHandle],
    /// Its effect besides its results, if more than the op table says.
    pub effect: Effect,
    /// Call site in the user's program, as the framework wants it printed. It appears in errors and
    /// events and is never part of a key.
    pub site: Site,
}

impl<'a> Call<'a> {
    /// Creates a pure op without attributes and functions, from an unknown call site.
    #[must_use]
    pub fn new(op: OpCode, operands: &'a [ValueHandle]) -> Call<'a> {
        Call { op, attrs: Attrs::none(), bodies: &[], operands, effect: Effect::Pure, site: Site::Unknown }
    }

    /// Sets the attributes.
    #[must_use]
    pub fn with(mut self, attrs: Attrs) -> Call<'a> {
        self.attrs = attrs;
        self
    }

    /// Sets the call site.
    #[must_use]
    pub fn at(mut self, site: Site) -> Call<'a> {
        self.site = site;
        self
    }
}

/// An op to be recorded, with borrowed parts. Front ends that record many ops avoid allocations
/// with it.
#[derive(Clone, Copy, Debug)]
pub struct CallRef<'a> {
    /// The op.
    pub op: OpCode,
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// Its functions, for ops that have them.
    pub bodies: &'a [Arc<Body>],
    /// Its operands, from any streams.
    pub operands: &'a [ValueHandle],
    /// Its effect besides its results.
    pub effect: Effect,
    /// Call site in the user's program. A shared [`Site::Host`] is compared and copied as a
    /// pointer.
    pub site: &'a Site,
}

impl Session {
    pub(super) fn held(&self, value: ValueHandle, what: &str, site: &Site) -> Result<EmbeddedValue> {
        self.0.values.get(value.0).map_err(|missing| value.missing(missing, what, site))
    }

    /// The tensor of an id.
    pub(super) fn tensor(&self, value: ValueHandle, what: &str) -> Result<Tensor> {
        match self.held(value, what, &Site::Unknown)? {
            EmbeddedValue::Tensor(tensor) => Ok(tensor),
            EmbeddedValue::Traced(_) => {
                let message = format!("{what}: {value} belongs to a trace and has no data");
                Err(Error::misuse(message, Site::Unknown))
            }
        }
    }

    pub(super) fn tensors(&self, values: &[ValueHandle], what: &str) -> Result<Vec<Tensor>> {
        values.iter().map(|&value| self.tensor(value, what)).collect()
    }

    pub(super) fn keep(&self, held: EmbeddedValue) -> Result<ValueHandle> {
        let kept = self.0.values.insert(held).map(ValueHandle);
        kept.map_err(|missing| Error::misuse(format!("a new value: the table {missing}"), Site::Unknown))
    }

    pub(super) fn keep_tensor(&self, tensor: Result<Tensor>) -> Result<ValueHandle> {
        told(tensor.and_then(|tensor| self.keep(EmbeddedValue::Tensor(tensor))))
    }

    // ----- making values -----

    /// Creates a value from dense, row-major bytes, which are copied before this returns. Every
    /// replica gets the same.
    ///
    /// # Errors
    /// When the id of the stream is invalid or of a trace, the length does not match the type, or
    /// the device fails.
    pub fn upload(&self, stream: StreamHandle, ty: &TensorType, bytes: &[u8]) -> Result<ValueHandle> {
        self.keep_tensor(self.stream(stream, "upload").and_then(|stream| stream.upload(ty.clone(), bytes)))
    }

    /// As [`Session::upload`], with separate bytes for each replica: one slice for each.
    ///
    /// # Errors
    /// As [`Session::upload`], and when there are more or fewer slices than replicas.
    pub fn upload_per_replica(
        &self,
        stream: StreamHandle,
        ty: &TensorType,
        parts: &[&[u8]],
    ) -> Result<ValueHandle> {
        self.keep_tensor(
            self.stream(stream, "upload_per_replica")
                .and_then(|stream| stream.upload_each(ty.clone(), parts)),
        )
    }

    /// Creates a value from dense, row-major bytes that the device may use in place. They must not
    /// change while `data` is alive. `data` is dropped on any thread when nothing needs it any
    /// more. XLA:CPU does not copy bytes aligned to [`crate::pjrt::ZERO_COPY_ALIGN`]. Such memory
    /// is never reused for results.
    ///
    /// # Errors
    /// As [`Session::upload`]; `data` is dropped.
    pub fn upload_shared(
        &self,
        stream: StreamHandle,
        ty: &TensorType,
        data: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<ValueHandle> {
        let data = HostData::zero_copy(data);
        self.keep_tensor(
            self.stream(stream, "upload_shared").and_then(|stream| stream.upload_owned(ty, data)),
        )
    }

    /// Creates a constant. Its data is compiled in and part of the key.
    ///
    /// # Errors
    /// When the id of the stream is invalid, or the data is larger than
    /// [`fuseline_fusion::limits::MAX_CONSTANT_BYTES`].
    pub fn constant(&self, stream: StreamHandle, data: Literal, site: Site) -> Result<ValueHandle> {
        let attrs = attrs::constant(Arc::new(data));
        let mut made = self.record(stream, Call::new(OpCode::Constant, &[]).with(attrs).at(site))?;
        Ok(made.remove(0).id)
    }

    /// Creates a lifted scalar: a rank-0 value that is passed to each execution and is not part of
    /// any key. In a trace it is an input with this value.
    ///
    /// # Errors
    /// When the id of the stream is invalid.
    pub fn scalar(&self, stream: StreamHandle, value: Scalar) -> Result<ValueHandle> {
        told(self.lane(stream, "scalar", &Site::Unknown).and_then(|lane| match lane {
            Lane::Stream(stream) => self.keep(EmbeddedValue::Tensor(stream.lift(value))),
            Lane::Body(body) => {
                self.keep(EmbeddedValue::Tensor(Stream::of(body.stream().clone()).lift(value)))
            }
            Lane::Trace(trace) => {
                let ty = TensorType::scalar(value.dtype());
                let id = trace.scalar(value)?;
                self.keep(EmbeddedValue::Traced(Arc::new(Traced { trace, id, ty })))
            }
        }))
    }

    /// Creates a value without data. On a stream, [`Session::fill`] sets the data later. Ops with
    /// it may be recorded before that. They hold up their stream once they have to run, and so does
    /// a wait for their results. If it is released without data, everything that depends on it
    /// fails. In a body it is a parameter and in a trace an input of the program; neither is
    /// filled.
    ///
    /// # Errors
    /// When the id of the stream is invalid.
    pub fn placeholder(&self, stream: StreamHandle, ty: &TensorType) -> Result<ValueHandle> {
        told(self.lane(stream, "placeholder", &Site::Unknown).and_then(|lane| match lane {
            Lane::Stream(stream) => {
                let (cell, promise) = ValueCell::promised(ty.clone());
                let value = self.keep(EmbeddedValue::Tensor(Tensor::new(cell, stream.shared().clone())))?;
                let site = caller().cloned().unwrap_or_default();
                self.0.unfilled.insert(value, self.0.engine.shared().promises().list(promise, site));
                Ok(value)
            }
            Lane::Body(body) => self.keep(EmbeddedValue::Tensor(body.param(ty.clone())?)),
            Lane::Trace(trace) => {
                let id = trace.input(ty)?;
                self.keep(EmbeddedValue::Traced(Arc::new(Traced { trace, id, ty: ty.clone() })))
            }
        }))
    }

    /// Sets the data of a placeholder, once.
    ///
    /// # Errors
    /// When the id is invalid or is no unfilled placeholder, the length does not match, or the
    /// device fails. In the last two cases the placeholder can still be filled.
    pub fn fill(&self, placeholder: ValueHandle, bytes: &[u8]) -> Result<()> {
        told(self.tensor(placeholder, "fill").and_then(|tensor| {
            let none = || {
                let message = format!("fill: {placeholder} is not a placeholder, or was already filled");
                Error::misuse(message, Site::Unknown)
            };
            if !self.0.unfilled.has(placeholder) {
                return Err(none());
            }
            let buffer = tensor.on_stream().upload_buffer(tensor.ty(), bytes)?;
            let promise = self.0.unfilled.take(placeholder).ok_or_else(none)?;
            promise.resolve(Outcome::Data { buffer, maker: None });
            Ok(())
        }))
    }

    // ----- recording -----

    /// Records an op on a stream or into a trace, and returns its results, each with one reference.
    ///
    /// # Errors
    /// When an id is invalid, a value of a trace is used outside of it or vice versa, or the op
    /// table rejects the call. The error names op and call site. In Debug mode, also when the op
    /// fails.
    pub fn record(&self, stream: StreamHandle, call: Call<'_>) -> Result<SmallVec<[RecordedResult; 1]>> {
        let Call { op, ref attrs, bodies, operands, effect, ref site } = call;
        let mut results = SmallVec::new();
        self.record_each(stream, &CallRef { op, attrs, bodies, operands, effect, site }, |id, ty| {
            results.push(RecordedResult { id, ty: ty.clone() });
        })?;
        Ok(results)
    }

    /// As [`Session::record`], for a borrowed call. After the op was recorded, `made` is called
    /// with each result, which has one reference. It is meant for front ends that record each op of
    /// a loop: besides recording it costs one lookup per id.
    ///
    /// # Errors
    /// As [`Session::record`].
    pub fn record_each(
        &self,
        stream: StreamHandle,
        call: &CallRef<'_>,
        mut made: impl FnMut(ValueHandle, &TensorType),
    ) -> Result<()> {
        told(self.record_and_keep(stream, call, &mut made))
    }

    fn record_and_keep(
        &self,
        stream: StreamHandle,
        call: &CallRef<'_>,
        made: &mut dyn FnMut(ValueHandle, &TensorType),
    ) -> Result<()> {
        let &CallRef { op, attrs, bodies, effect, site, .. } = call;
        let lane = self.lane(stream, op.name(), site)?;
        let on = match &lane {
            Lane::Stream(stream) => stream.shared(),
            Lane::Body(body) => body.stream(),
            Lane::Trace(trace) => {
                let held = |&operand: &ValueHandle| self.held(operand, op.name(), site);
                let operands = call.operands.iter().map(held).collect::<Result<Vec<_>>>()?;
                let results = trace.record(op, attrs.clone(), bodies, &operands, site.clone())?;
                return results.into_iter().try_for_each(|held| self.hand_out(held, made));
            }
        };
        let mut tensors: SmallVec<[Tensor; 4]> = SmallVec::new();
        for &operand in call.operands {
            match self.held(operand, op.name(), site)? {
                EmbeddedValue::Tensor(tensor) => tensors.push(tensor),
                EmbeddedValue::Traced(_) => return Err(of_a_trace(op, site)),
            }
        }
        let operands: SmallVec<[&Tensor; 4]> = tensors.iter().collect();
        let call = RecordCall { op, attrs, bodies, operands: handles(&operands), effect, site };
        if let Some(result) = on.record_fast(&call) {
            return self.hand_out(EmbeddedValue::Tensor(Tensor::from_handle(result)), made);
        }
        record(on, call)?
            .into_iter()
            .try_for_each(|result| self.hand_out(EmbeddedValue::Tensor(result), made))
    }

    /// Gives a result an id, and passes that on.
    #[inline]
    fn hand_out(&self, held: EmbeddedValue, made: &mut dyn FnMut(ValueHandle, &TensorType)) -> Result<()> {
        let ty = held.ty().clone();
        made(self.keep(held)?, &ty);
        Ok(())
    }

    pub(super) fn keep_all(
        &self,
        results: impl IntoIterator<Item = EmbeddedValue>,
    ) -> Result<SmallVec<[RecordedResult; 1]>> {
        results
            .into_iter()
            .map(|held| {
                let ty = held.ty().clone();
                Ok(RecordedResult { id: self.keep(held)?, ty })
            })
            .collect()
    }

    // ----- lifetimes and versions -----

    /// Adds a reference to a value.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn retain(&self, value: ValueHandle) -> Result<()> {
        let retained = self.0.values.retain(value.0);
        told(retained.map_err(|missing| value.missing(missing, "retain", &Site::Unknown)))
    }

    /// Removes a reference. The last one makes the id invalid, and ends the life of the value at
    /// this point of its stream's program.
    ///
    /// # Errors
    /// When the id is invalid, as it is after its last release.
    pub fn release(&self, value: ValueHandle) -> Result<()> {
        let released = self.0.values.release(value.0);
        let released = told(released.map_err(|missing| value.missing(missing, "release", &Site::Unknown)))?;
        if let Some(EmbeddedValue::Tensor(tensor)) = &released
            && !tensor.is_resolved()
        {
            drop(self.0.unfilled.take(value));
        }
        drop(released);
        Ok(())
    }

    /// Rebinds an id to another value, as an in-place write does. Both ids stay valid, and `new`
    /// keeps its own reference. Returns how often the id has been replaced.
    ///
    /// # Errors
    /// When an id is invalid, or the types differ (see [`Session::rebind`]). Then nothing has
    /// changed.
    pub fn replace(&self, value: ValueHandle, new: ValueHandle) -> Result<u64> {
        told(self.swap(value, new, true))
    }

    /// As [`Session::replace`], for any type, as resizing a storage does.
    ///
    /// # Errors
    /// When an id is invalid.
    pub fn rebind(&self, value: ValueHandle, new: ValueHandle) -> Result<u64> {
        told(self.swap(value, new, false))
    }

    fn swap(&self, value: ValueHandle, new: ValueHandle, same_type: bool) -> Result<u64> {
        let held = self.held(new, "replace", &Site::Unknown)?;
        let ty = held.ty().clone();
        let check = |old: &EmbeddedValue| match same_type && *old.ty() != ty {
            true => {
                let message = format!("replace: {value} is {}, but the new value is {ty}", old.ty());
                Err(Error::misuse(message, Site::Unknown))
            }
            false => Ok(()),
        };
        let swapped = self.0.values.replace(value.0, held, check);
        let (old, version) =
            swapped.map_err(|missing| value.missing(missing, "replace", &Site::Unknown))??;
        // A placeholder that nobody can fill any more fails what depends on it, instead of holding
        // it up for ever.
        drop(self.0.unfilled.take(value));
        drop(old);
        Ok(version)
    }

    /// How often the id has been replaced.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn version(&self, value: ValueHandle) -> Result<u64> {
        let version = self.0.values.version(value.0);
        told(version.map_err(|missing| value.missing(missing, "version", &Site::Unknown)))
    }

    /// Element type and shape of the value that the id refers to now.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn ty(&self, value: ValueHandle) -> Result<TensorType> {
        told(self.held(value, "ty", &Site::Unknown)).map(|held| held.ty().clone())
    }
}

impl Lane {
    /// Records an op.
    pub(super) fn record(
        &self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[EmbeddedValue],
        effect: Effect,
        site: Site,
    ) -> Result<SmallVec<[EmbeddedValue; 1]>> {
        match self {
            Lane::Trace(trace) => trace.record(op, attrs, bodies, operands, site),
            Lane::Stream(stream) => record_on(stream.shared(), op, attrs, bodies, operands, effect, site),
            Lane::Body(body) => record_on(body.stream(), op, attrs, bodies, operands, effect, site),
        }
    }
}

/// The operands of an op that is recorded on a stream or in a body.
pub(super) fn tensors_of<'a>(
    op: OpCode,
    operands: &'a [EmbeddedValue],
    site: &Site,
) -> Result<SmallVec<[&'a Tensor; 4]>> {
    let tensor = |operand: &'a EmbeddedValue| match operand {
        EmbeddedValue::Tensor(tensor) => Ok(tensor),
        EmbeddedValue::Traced(_) => Err(of_a_trace(op, site)),
    };
    operands.iter().map(tensor).collect()
}

#[cold]
fn of_a_trace(op: OpCode, site: &Site) -> Error {
    Error::misuse(format!("{op}: an operand belongs to a trace and has no data"), site.clone())
}

fn record_on(
    stream: &Arc<StreamShared>,
    op: OpCode,
    attrs: Attrs,
    bodies: &[Arc<Body>],
    operands: &[EmbeddedValue],
    effect: Effect,
    site: Site,
) -> Result<SmallVec<[EmbeddedValue; 1]>> {
    let operands = tensors_of(op, operands, &site)?;
    let call = RecordCall { op, attrs: &attrs, bodies, operands: handles(&operands), effect, site: &site };
    Ok(record(stream, call)?.into_iter().map(EmbeddedValue::Tensor).collect())
}
