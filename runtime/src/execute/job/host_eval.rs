//! Answers the reads of a job by host evaluation (TIER-7 of `tier::host_eval`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::region::Boundary;
use fuseline_interp::SumOrder;

use super::Job;
use super::interpret::failed;
use crate::device::{Buffer, DeviceError};
use crate::engine::stream::StreamShared;
use crate::engine::value::{Outcome, Producer};
use crate::tier::host_eval::HostEval;

impl Job {
    /// Computes the values that are being read, where the host can.
    pub(in crate::execute) fn answer(&mut self, stream: &StreamShared) {
        let engine = stream.engine();
        let host_eval =
            engine.tiers().host_eval().filter(|_| self.boundary == Boundary::HostRead && self.is_fused());
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
        let slice = host_eval.slice(self.info.reference.key, canon.graph(), canon.lifted(), result)?;
        let device = stream.engine().device();
        let arithmetic = device.target().arithmetic(SumOrder::AnyOrder);
        let operand = |&at: &u32| match self.inputs.get(at as usize)?.value.cell().outcome().get() {
            Some(Outcome::Scalar(scalar)) => Some(Arc::new(scalar.to_literal())),
            _ => None,
        };
        let operands = slice.params().iter().map(operand).collect::<Option<Vec<_>>>()?;
        let run = || -> Result<Buffer, DeviceError> {
            let data = slice.run(&operands, arithmetic).map_err(failed)?;
            device.upload(data.ty(), data.bytes())
        };
        catch_unwind(AssertUnwindSafe(run)).ok()?.ok()
    }
}
