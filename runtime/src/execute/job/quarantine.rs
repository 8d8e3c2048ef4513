//! Runs regions that crashed an earlier process without asking the plugin to compile them.
//!
//! The quarantine is per region, whatever results it returns. Another set of results, another
//! donation or constants are no reason to try it again (`compile/load.rs`). The region still has
//! results:
//!
//! ```text
//! several ops ─► op by op; each by its executable, or interpreted if that is quick, or compiled
//! one op ──────► interpreted, however long that takes; an error if the interpreter cannot run it
//! ```
//!
//! Each op of a region that crashed may be the cause. So it is compiled only where the interpreter
//! would take longer than the compile. If it crashes then, it is in quarantine itself from the next
//! process on.
//!
//! Input: a job whose compile was refused because of the quarantine, or a part of one. Output: its
//! results. The interpreter computes them on its own thread. Operands and results are copied where
//! the device has separate memory.
//!
//! Invariants:
//! - TIER-5: no region in quarantine is compiled, loaded or executed by the plugin.
//! - TIER-6: only what the interpreter cannot run either fails, with both reasons.
//!
//! Results are the interpreter's: within the tolerance of the op table, but with `Numerics::Exact`
//! not the bits of the device. The event says so.

use std::sync::Arc;

use fuseline_cache::Lookup;
use fuseline_fusion::Literal;
use fuseline_sync::oneshot::Receiver;

use super::interpret::{InterpreterResult, Param, operand};
use super::{Job, JobState, Progress, QuarantineScope, Refusal, Runner, cache_key};
use crate::device::{Cause, DeviceError, SpecializedScalars};
use crate::engine::stream::StreamShared;
use crate::event::Event;
use crate::region::RegionInfo;
use crate::tier::cost::is_interpreted_before_a_compile;

impl Job {
    /// How an op of a region in quarantine runs without a compile. `None` if it is compiled.
    pub(super) fn quarantined_state(&mut self, stream: &Arc<StreamShared>) -> Option<JobState> {
        let QuarantineScope::Part(..) = self.quarantine else { return None };
        if !is_interpreted_before_a_compile(self.info.canon.graph()) {
            self.quarantine = QuarantineScope::None;
            return None;
        }
        let key = cache_key(&self.info);
        match stream.engine().cache().lookup(&key, self.info.canon.bytes(), &self.needed) {
            // It was compiled by itself without a crash.
            Lookup::Hit(hit) => {
                self.quarantine = QuarantineScope::None;
                Some(self.hit(hit, stream))
            }
            Lookup::Failed(error) if error.cause == Cause::Quarantined => {
                Some(JobState::Refused(Refusal { error, is_cached: true }))
            }
            // Dropping a claim returns it.
            _ => Some(JobState::Ready(Runner::Quarantined)),
        }
    }

    /// How a region proceeds whose compile was refused because of the quarantine.
    pub(super) fn enter_quarantine(
        mut self: Box<Self>,
        error: Arc<DeviceError>,
        stream: &StreamShared,
    ) -> Result<Box<Job>, Progress> {
        if self.is_single() {
            self.quarantine = QuarantineScope::Itself(error);
            return Ok(self);
        }
        let message = format!("of region {}, {}", self.info.reference.key.short(), error.message);
        let part = DeviceError { message, ..DeviceError::clone(&error) };
        Err(self.split_in(QuarantineScope::Part(Arc::new(part)), error.message.clone(), stream))
    }

    /// The ops that the plugin computes wrongly, by position.
    pub(super) fn defective_ops(&self, stream: &StreamShared) -> Vec<usize> {
        let found = stream.engine().defects().find(self.info.canon.graph(), &SpecializedScalars::new());
        found.into_iter().map(|op| op.node).collect()
    }

    /// Interprets the op. Its inputs have data.
    pub(super) fn interpret_quarantined(&self, stream: &Arc<StreamShared>) -> Receiver<InterpreterResult> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().interpreted.add(1);
        engine.emit(|| {
            let why = match &self.quarantine {
                QuarantineScope::None => String::new(),
                QuarantineScope::Itself(error) | QuarantineScope::Part(error) => error.message.clone(),
            };
            Event::Quarantined { region, why }
        });
        self.interpret_by(interpreted, engine.threads().quarantine(), stream)
    }

    /// How a quarantined job proceeds after the interpreter failed. Returns the job if it is
    /// compiled now.
    pub(super) fn leave_quarantine(
        mut self: Box<Self>,
        error: DeviceError,
        stream: &StreamShared,
    ) -> Result<Box<Job>, Progress> {
        match std::mem::take(&mut self.quarantine) {
            QuarantineScope::Itself(why) => {
                let message = format!(
                    "{}, and the interpreter, which runs it instead, failed: {}",
                    why.message, error.message
                );
                Err(self.fail_or_pass_on(&DeviceError { message, ..error }, stream))
            }
            QuarantineScope::None | QuarantineScope::Part(..) => {
                let region = self.info.reference;
                stream.engine().emit(|| Event::NotInterpreted { region, why: error.message });
                Ok(self)
            }
        }
    }
}

/// Computes the results of a region on each replica, on this thread. It waits for inputs that are
/// still being computed.
fn interpreted(
    info: &RegionInfo,
    params: &[Param],
    outputs: &[u32],
    stream: &StreamShared,
) -> InterpreterResult {
    let engine = stream.engine();
    let device = engine.device();
    let data = |param: &Param, replica: usize| {
        operand(param, |buffer, ty| engine.with_room(ty.bytes(), || device.download(buffer, replica)))
    };
    let operands = |replica| params.iter().map(|param| data(param, replica)).collect();
    let operands = (0..device.replicas()).map(operands).collect::<Result<Vec<Vec<_>>, DeviceError>>()?;
    let results = device.interpret_each(info.canon.graph(), &operands, outputs)?;
    let upload = |each: &crate::device::PerReplica<Arc<Literal>>| {
        let ty = each[0].ty();
        engine.with_room(ty.bytes(), || device.upload_each(ty, &mut each.iter().map(|data| data.bytes())))
    };
    results.iter().map(upload).collect()
}
