//! Records ops: the trace cache, or else the memo and an entry of the log.

use std::sync::Arc;

use fuseline_fusion::Site;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Mode, Operand, Operands, Results, TraceOp};
use fuseline_record::handle::TakeResults;
use fuseline_record::handle_count::Dropped;
use fuseline_record::memo::{self, InferredCall};
use fuseline_record::trace_cache::ReplayOutcome;
use fuseline_sync::fork::is_forked;

use super::{StreamShared, TensorHandle, may_wait, trace};
use crate::engine::value::{ValueCell, ValuePromise, ValueRef};
use crate::engine::{Entry, RecordCall};
use crate::error::{Error, Result};
use crate::event::is_counted;
use crate::limits::LARGE_RELEASE;

impl StreamShared {
    /// Records an op and puts its results into `results` at once. In Debug mode it returns when
    /// they are computed and checked.
    #[inline]
    pub fn record_into(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        results: &mut impl TakeResults<TensorHandle>,
    ) -> Result<()> {
        Error::unless_forked(call.site)?;
        match self.replay.record(call, self, results) {
            ReplayOutcome::Yes => Ok(()),
            ReplayOutcome::No => self.record_new(call, call.inferred(), results),
            ReplayOutcome::TooMany => Err(self.no_room()),
        }
    }

    /// As [`StreamShared::record_into`], for an op with one result. `wrap` makes the caller's type
    /// of its handle, here instead of behind the call, where it would copy the result.
    #[inline(always)]
    pub fn record_one<T>(
        self: &Arc<Self>,
        call: RecordCall<'_>,
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Result<T> {
        match self.record_fast(&call) {
            Some(result) => Ok(wrap(result)),
            None => {
                #[expect(clippy::redundant_locals, reason = "a copy, so that the one above has no address")]
                let call = call;
                self.record_slow(&call, wrap)
            }
        }
    }

    /// Records an op with one result on the fast path of the trace cache, if it is the expected
    /// one. `None` means that it still has to be recorded.
    #[inline(always)]
    pub fn record_fast(self: &Arc<Self>, call: &RecordCall<'_>) -> Option<TensorHandle> {
        self.replay.record_fast(call, self).map(|cell| TensorHandle::new(cell, self.clone()))
    }

    /// Records an op with one result when the fast path did not apply.
    #[inline(never)]
    pub fn record_slow<T>(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Result<T> {
        self.record_single(call, || call.inferred(), wrap)
    }

    /// Records an op with one result and two operands, if the operands have the same type. `None`
    /// means that it still has to be recorded; the expected trace is unaffected.
    #[inline(never)]
    pub fn record_same_type<T>(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        [lhs, rhs]: [&TensorHandle; 2],
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Option<Result<T>> {
        let known = call.inferred();
        // A memoized call proves that the types fit, so they need not be compared.
        if known.is_none() && lhs.ty() != rhs.ty() {
            return None;
        }
        Some(self.record_single(call, || known, wrap))
    }

    #[inline(always)]
    fn record_single<T>(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        known: impl FnOnce() -> Option<InferredCall>,
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Result<T> {
        Error::unless_forked(call.site)?;
        let mut result = None;
        match self.replay.record(call, self, &mut result) {
            ReplayOutcome::Yes => {}
            ReplayOutcome::No => self.record_new(call, known(), &mut result)?,
            ReplayOutcome::TooMany => return Err(self.no_room()),
        }
        result.map(wrap).ok_or_else(|| crate::error::bug!("{} has no result", call.op))
    }

    #[inline(always)]
    fn record_new(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        known: Option<InferredCall>,
        made: &mut impl TakeResults<TensorHandle>,
    ) -> Result<()> {
        let &RecordCall { op, attrs, bodies, operands, effect, site } = call;
        if is_counted() {
            self.count_sink_op(site)?;
        }
        let known = match known {
            Some(known) => known,
            None => {
                memo::by_types(op, attrs, bodies, operands).map_err(|error| Error::op(error, site.clone()))?
            }
        };
        let signature = &known.signature;
        if signature.is_joint()
            && let Err(error) = signature.check_replicas(self.engine.device().replicas())
        {
            return Err(Error::op(error, site.clone()));
        }
        let mut inputs = Operands::new();
        if self.trace.is_some() || !self.take_operands(operands, &mut inputs, site)? {
            let traced = trace::record(self, signature, operands, effect, site)?;
            traced.into_iter().for_each(|tensor| made.put(tensor));
            return Ok(());
        }
        let mode = self.mode();
        let effect = if signature.effect() == Effect::Ordered { Effect::Ordered } else { effect };
        let results = self.promise(&known, made);
        if self.engine.captures().is_on() {
            self.engine.captures().record(signature, operands, made.taken());
        }
        let signature = known.signature;
        let op = TraceOp { signature, operands: inputs, results, effect, mode, site: site.clone() };
        self.replay.submit_with(Entry::Op(op), operands, self);
        if self.was_given_up(made.taken().first()) {
            return Err(self.no_room());
        }
        match mode {
            Mode::Fused if effect == Effect::Pure => {}
            Mode::Fused | Mode::Strict => self.notify(),
            Mode::Debug => {
                may_wait()?;
                self.run_by(self.engine.deadline());
                for tensor in made.taken() {
                    tensor.check()?;
                }
            }
        }
        Ok(())
    }

    /// References to the operands of an op, for the log. False if an operand belongs to a body, and
    /// therefore the op.
    #[inline]
    pub(crate) fn take_operands(
        self: &Arc<Self>,
        operands: &[&TensorHandle],
        inputs: &mut Operands<ValueRef>,
        site: &Site,
    ) -> Result<bool> {
        for tensor in operands {
            let cell = tensor.cell();
            inputs.push(if cell.is_scalar() {
                Operand::Scalar(ValueRef::of(cell.clone()))
            } else if Arc::ptr_eq(tensor.stream(), self) || self.borrow(tensor, operands, site)? {
                Operand::Tensor(ValueRef::of(cell.clone()))
            } else {
                return Ok(false);
            });
        }
        Ok(true)
    }

    /// Creates handles on the results of an op and returns the promises to produce them.
    #[inline]
    pub(crate) fn promise(
        self: &Arc<Self>,
        known: &InferredCall,
        made: &mut impl TakeResults<TensorHandle>,
    ) -> Results<ValuePromise> {
        let mut results = Results::new();
        for (index, ty) in known.signature.results().iter().enumerate() {
            let (cell, promise) = ValueCell::promised_as(ty.clone(), known.type_token(index));
            results.push(promise);
            made.put(TensorHandle::new(cell, self.clone()));
        }
        results
    }

    /// Makes a tensor of another stream usable as an operand on this one. False if an operand
    /// belongs to a body, and therefore the op.
    #[cold]
    fn borrow(
        self: &Arc<Self>,
        tensor: &TensorHandle,
        operands: &[&TensorHandle],
        site: &Site,
    ) -> Result<bool> {
        if operands.iter().any(|operand| operand.cell().place().is_some()) {
            return Ok(false);
        }
        let (owner, cell) = (tensor.stream(), tensor.cell());
        if !Arc::ptr_eq(&owner.engine, &self.engine) {
            return Err(Error::misuse(
                "a tensor of another engine was used; read it to the host and upload it here",
                site.clone(),
            ));
        }
        self.checks.borrow(&owner.checks);
        if cell.needs_boundary() || cell.outcome().get().is_none() {
            owner.need(cell, Boundary::CrossStream);
        }
        Ok(true)
    }

    /// Drops a handle on a value.
    #[inline]
    pub(crate) fn drop_handle(self: &Arc<Self>, value: Arc<ValueCell>) {
        match value.handles().drop_one(|| self.replay.at()) {
            // The reference now belongs to the trace (HANDLE-1 of `record::handle_count`).
            Dropped::MovedToTrace => std::mem::forget(value),
            Dropped::Shared => drop(value),
            Dropped::Last if self.trace.is_none() => self.release(value),
            Dropped::Last => {}
        }
    }

    /// Records that the last handle on a value was dropped.
    #[inline(never)]
    fn release(self: &Arc<Self>, value: Arc<ValueCell>) {
        if is_forked() {
            return std::mem::forget(value);
        }
        // The entry holds the memory until the driver processes it, and nothing else may notify the
        // driver.
        let is_large = value.outcome().get().is_some() && value.ty().bytes() >= LARGE_RELEASE;
        self.replay.submit(Entry::Release(value), self);
        if is_large {
            self.notify();
        }
    }
}
