//! Compiling executables that return no more than is needed: what [`Surplus`](crate::device::Surplus) asks for.

use std::sync::Arc;

use fuseline_cache::{Hit, Key};

use super::cold::compile_time;
use super::compile::{Compile, Haste, Otherwise, Remembered};
use super::job::Job;
use crate::device::{Executable, How};
use crate::event::Event;
use crate::stream::StreamShared;

impl Job {
    /// Notes what of an executable's results the job needs, and has one compiled that returns less if that pays.
    pub(super) fn note_surplus(&self, key: Key, hit: &Hit<Executable>, stream: &Arc<StreamShared>) {
        let config = stream.engine().config();
        let is_free = hit.outputs != self.needed && !config.is_reproducible() && !config.is_cache_only();
        let Some(surplus) = hit.artifact.surplus().filter(|_| is_free) else { return };
        let canon = &self.info.canon;
        let compile = || compile_time(canon.graph());
        let Some(narrower) = surplus.note(canon, hit.artifact.outputs(), &self.needed, compile) else {
            return;
        };
        let engine = stream.engine();
        let Some(claim) = engine.cache().claim_narrower(&key, canon.bytes(), narrower.outputs) else {
            return;
        };
        let (region, executions) = (self.info.reference, narrower.executions);
        let surplus = hit.outputs.len() - claim.outputs().len();
        engine.emit(|| Event::Narrowed { region, surplus, executions });
        let compile = Compile {
            outputs: claim.outputs().clone(),
            dying: self.dying(),
            how: How::default(),
            otherwise: Otherwise::Executable(hit.artifact.memory()),
        };
        // It goes to the cache, where the next execution finds it.
        let _ = compile.start(Some(claim), Haste::Unhurried, Remembered::Nothing, &self.info, stream);
    }
}
