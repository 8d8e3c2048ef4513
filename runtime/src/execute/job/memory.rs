//! What a job does when memory runs out (MEMORY-1 to MEMORY-4 of `execute::memory`).

use std::sync::Arc;

use fuseline_cache::Hit;
use fuseline_fusion::op::Effect;
use fuseline_sync::oneshot;

use super::{Job, JobState, Pending, Progress, cache_key};
use crate::device::{Cause, DeviceError, Executable};
use crate::engine::stream::StreamShared;
use crate::error::Stage;
use crate::event::Remedy;

impl Job {
    /// Handles a region that could not be compiled or executed for lack of memory. With `hit` it
    /// was executed. Its inputs have data.
    pub(super) fn out_of_memory(
        mut self: Box<Self>,
        error: &DeviceError,
        hit: Option<Hit<Executable>>,
        stream: &Arc<StreamShared>,
    ) -> Progress {
        let engine = stream.engine();
        let (region, asked) = (self.info.reference, self.output_bytes);
        engine.counters().out_of_memory.add(1);
        // MEMORY-1: an op with an effect may have been partly executed.
        let may_repeat = self.effect == Effect::Pure || error.stage == Stage::Compile;
        // Freeing memory does not help a region that exceeds the memory of the host.
        let is_passing = error.cause == Cause::Memory;
        if may_repeat && is_passing && std::mem::take(&mut self.may_free) {
            let (ended, room) = oneshot::channel();
            let owner = Arc::downgrade(stream);
            let remedy = engine.free_memory(move || {
                ended.send(());
                if let Some(stream) = owner.upgrade() {
                    StreamShared::notify_from_outside(stream);
                }
            });
            engine.report_out_of_memory(Some(region), error.stage, asked, remedy);
            self.state = JobState::Waiting(Pending::Memory(room, hit));
            return Progress::Blocked(self);
        }
        if self.ops() == 1 {
            let error = engine.without_remedy(Some(region), error, asked);
            return self.fail_or_pass_on(&error, stream);
        }
        engine.report_out_of_memory(Some(region), error.stage, asked, Remedy::Parts);
        if let Some(hit) = hit {
            let key = cache_key(&self.info);
            let known = Arc::new(error.clone());
            let _ = engine.cache().discard(&key, self.info.canon.bytes(), &hit.artifact, known);
        }
        self.in_parts(error, stream)
    }

    /// Handles an execution that ran out of memory and has taken inputs away, so nothing can be
    /// tried.
    pub(super) fn out_of_memory_for_good(self, error: &DeviceError, stream: &StreamShared) -> Progress {
        let engine = stream.engine();
        engine.counters().out_of_memory.add(1);
        let error = engine.without_remedy(Some(self.info.reference), error, self.output_bytes);
        self.fail(&error, stream)
    }
}
