//! Compiles executables that return no more than is needed, as
//! [`UnusedOutputs`](crate::device::UnusedOutputs) decides.

use std::sync::Arc;

use fuseline_cache::{Hit, Key};

use super::compile::{Compile, CompilePriority, FailureCaching, MemoryFallback};
use super::interpreter_tier::compile_time;
use super::job::Job;
use crate::device::{Executable, ExecutableOptions};
use crate::event::Event;
use crate::stream::StreamShared;

impl Job {
    /// Notes which results of an executable the job needs. Compiles one that returns fewer when
    /// that pays.
    pub(super) fn note_unused_outputs(&self, key: Key, hit: &Hit<Executable>, stream: &Arc<StreamShared>) {
        let config = stream.engine().config();
        let is_free = hit.outputs != self.needed && !config.is_reproducible() && !config.is_cache_only();
        let Some(unused_outputs) = hit.artifact.unused_outputs().filter(|_| is_free) else { return };
        let canon = &self.info.canon;
        let compile = || compile_time(canon.graph());
        let Some(narrower) = unused_outputs.note(canon, hit.artifact.outputs(), &self.needed, compile) else {
            return;
        };
        let engine = stream.engine();
        let Some(claim) = engine.cache().claim_narrower(&key, canon.bytes(), narrower.outputs) else {
            return;
        };
        let (region, executions) = (self.info.reference, narrower.executions);
        let surplus = hit.outputs.len() - claim.outputs().len();
        engine.emit(|| Event::OutputsPruned { region, surplus, executions });
        let compile = Compile {
            outputs: claim.outputs().clone(),
            dying: self.dying(),
            how: ExecutableOptions::default(),
            otherwise: MemoryFallback::Executable(hit.artifact.memory()),
        };
        // The result goes to the cache, where the next execution finds it.
        let _ = compile.start(
            Some(claim),
            CompilePriority::Background,
            FailureCaching::Nothing,
            &self.info,
            stream,
        );
    }
}
