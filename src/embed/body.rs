//! Bodies of ops: loops, branches and functions of elements, recorded by the same calls as other
//! ops.

use std::sync::Arc;

use fuseline_fusion::{Body, OpCode, Site};
use fuseline_runtime::internals::RecordCall;
use fuseline_runtime::{Error, Result};
use smallvec::SmallVec;

use super::report::told;
use super::trace::EmbeddedValue;
use super::value::tensors_of;
use super::{Call, Lane, RecordedResult, Session, StreamHandle, ValueHandle};
use crate::handle::{Tensor, handles};
use crate::trace::{self, Open, Recorded};

impl Session {
    /// Begins a body of an op that will be recorded: the condition or body of a `while`, a branch,
    /// or the function of a `reduce`. The placeholders created under the returned id are its
    /// parameters, in order. Ops recorded under it, or anywhere with one of its values, become its
    /// ops. They are checked and typed as usual, and their values have no data. Bodies nest, and
    /// any thread may record.
    ///
    /// Bodies of `while`, `if` and `case` may use values from outside: [`Session::record_with`]
    /// makes them operands and parameters. Other bodies may use lifted scalars, as constants.
    /// Errors about the body contain `site`.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// use fuseline::embed::{Call, Session};
    /// use fuseline::fusion::Scalar;
    /// use fuseline::fusion::op::{Comparison, attrs};
    /// use fuseline::{DType, EngineConfig, OpCode, Site, TensorType};
    ///
    /// let session = Session::reference(EngineConfig::new())?;
    /// let stream = session.open_stream()?;
    /// let ty = TensorType::scalar(DType::F32);
    /// // while x < limit { x = x + x }
    /// let start = session.upload(stream, &ty, &1.5f32.to_le_bytes())?;
    /// let limit = session.scalar(stream, Scalar::new(10.0f32))?;
    /// let condition = session.begin_body(OpCode::While, Site::Unknown)?;
    /// let x = session.placeholder(condition, &ty)?;
    /// let compare = attrs::compare_for(Comparison::Lt, DType::F32);
    /// let less = session.record(condition, Call::new(OpCode::Compare, &[x, limit]).with(compare))?;
    /// let body = session.begin_body(OpCode::While, Site::Unknown)?;
    /// let y = session.placeholder(body, &ty)?;
    /// let twice = session.record(body, Call::new(OpCode::Add, &[y, y]))?;
    /// let operands = [start];
    /// let call = Call::new(OpCode::While, &operands);
    /// let end = session.record_with(stream, call, &[(condition, &[less[0].id]), (body, &[twice[0].id])])?;
    /// assert_eq!(session.read(end[0].id)?.to_vec::<f32>()?, [12.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there are too many streams.
    pub fn begin_body(&self, op: OpCode, site: Site) -> Result<StreamHandle> {
        let base = self.engine().stream().shared();
        self.open(Lane::Body(Arc::new(Open::begin(base, op, "a body", &site))))
    }

    /// Records an op with bodies begun by [`Session::begin_body`], each with the values that it
    /// returns, in the op's order. This ends the bodies and makes their ids invalid. The ids of
    /// their values still have to be released. `call` has no bodies. The results are those of the
    /// op: values that a loop carries only because a body uses them are not included.
    ///
    /// # Errors
    /// When an id is invalid, or one of `bodies` is no body: then nothing has changed. When a body
    /// returns a value that it cannot use, or the op table rejects the call: then nothing was
    /// recorded, but the bodies have ended.
    pub fn record_with(
        &self,
        stream: StreamHandle,
        call: Call<'_>,
        bodies: &[(StreamHandle, &[ValueHandle])],
    ) -> Result<SmallVec<[RecordedResult; 1]>> {
        told(self.record_with_one(stream, call, bodies))
    }

    fn record_with_one(
        &self,
        stream: StreamHandle,
        call: Call<'_>,
        bodies: &[(StreamHandle, &[ValueHandle])],
    ) -> Result<SmallVec<[RecordedResult; 1]>> {
        let Call { op, attrs, bodies: ready, operands, effect, site } = call;
        if !ready.is_empty() {
            let message = format!(
                "{op}: some bodies are ended and others are open; pass only open bodies, or end all of them"
            );
            return Err(Error::misuse(message, site));
        }
        let lane = match self.lane(stream, op.name(), &site)? {
            Lane::Stream(stream) => stream.shared().clone(),
            Lane::Body(body) => body.stream().clone(),
            Lane::Trace(_) => {
                let message = format!(
                    "{op}: a trace takes only bodies that use no value from outside; end them with end_body"
                );
                return Err(Error::misuse(message, site));
            }
        };
        let operands = operands.iter().map(|&operand| self.held(operand, op.name(), &site));
        let operands: Vec<EmbeddedValue> = operands.collect::<Result<_>>()?;
        let open = bodies.iter().map(|&(body, returns)| self.open_body(body, returns, op.name(), &site));
        let open: Vec<(Arc<Open>, Vec<Tensor>)> = open.collect::<Result<_>>()?;
        for &(body, _) in bodies {
            self.close_stream(body)?;
        }
        let recorded = open.iter().map(|(body, returns)| body.end(returns));
        let recorded: Vec<Recorded> = recorded.collect::<Result<_>>()?;
        let operands = tensors_of(op, &operands, &site)?;
        let call =
            RecordCall { op, attrs: &attrs, bodies: &[], operands: handles(&operands), effect, site: &site };
        let results = trace::record_with(&lane, call, recorded)?;
        self.keep_all(results.into_iter().map(EmbeddedValue::Tensor))
    }

    /// Ends a body that uses no value from outside and returns it, for any number of calls
    /// ([`Call::bodies`]). Its id becomes invalid. The ids of its values still have to be released.
    ///
    /// # Errors
    /// When an id is invalid: then nothing has changed. When the body uses or returns a value from
    /// outside: then it has ended.
    pub fn end_body(&self, body: StreamHandle, returns: &[ValueHandle]) -> Result<Arc<Body>> {
        told(self.end_body_one(body, returns))
    }

    fn end_body_one(&self, body: StreamHandle, returns: &[ValueHandle]) -> Result<Arc<Body>> {
        let (open, returns) = self.open_body(body, returns, "end_body", &Site::Unknown)?;
        self.close_stream(body)?;
        let alone = open.end(&returns)?.alone();
        alone.map(Arc::new).map_err(|tensor| {
            let message = format!(
                "end_body: the body uses a value from outside, {}; make it a parameter, or record \
                 the op with record_with, which does that",
                tensor.ty()
            );
            Error::misuse(message, Site::Unknown)
        })
    }

    fn open_body(
        &self,
        body: StreamHandle,
        returns: &[ValueHandle],
        what: &str,
        site: &Site,
    ) -> Result<(Arc<Open>, Vec<Tensor>)> {
        let Lane::Body(open) = self.lane(body, what, site)? else {
            return Err(Error::misuse(format!("{what}: {body} is not a body"), site.clone()));
        };
        Ok((open, self.tensors(returns, what)?))
    }
}
