//! Compiling executables that reuse the memory of more inputs: what [`Undonated`](crate::device::Undonated) asks for.

use std::sync::Arc;

use fuseline_cache::{Hit, Key};
use fuseline_fusion::lower::Aliases;

use super::cold::compile_time;
use super::compile::{Compile, Otherwise};
use super::job::Job;
use crate::device::{Executable, How};
use crate::event::Event;
use crate::stream::StreamShared;

impl Job {
    /// Notes which inputs die without their memory being reused, and has an executable compiled that reuses it if that pays. All inputs
    /// have data, and the executable is about to be launched.
    pub(super) fn note_undonated(&self, hit: &Hit<Executable>, stream: &Arc<StreamShared>) {
        let config = stream.engine().config();
        let is_free = !config.is_reproducible() && !config.is_cache_only();
        let Some(undonated) = hit.artifact.undonated().filter(|_| is_free) else { return };
        let canon = &self.info.canon;
        let compile = || compile_time(canon.graph());
        let Some(wider) = undonated.note(canon, |param| self.may_reuse(param), compile) else { return };
        let (region, inputs, executions) = (self.info.reference, wider.params.clone(), wider.executions);
        let mut dying = wider.params;
        dying.extend(hit.artifact.reusable().iter().map(|&(_, param)| param));
        dying.sort_unstable();
        // Two may have been asked for that the same result could be written over.
        let aliases = Aliases::pair(canon, hit.artifact.outputs(), &dying);
        if aliases.pairs().len() <= hit.artifact.reusable().len() {
            return;
        }
        stream.engine().emit(|| Event::Widened { region, inputs, executions });
        self.replace(hit.artifact.clone(), dying, stream);
    }

    /// Compiles another executable behind all that is waited for, with the same results, which takes the place of one in the cache. `dying` are
    /// the parameters whose memory it may reuse.
    pub(super) fn replace(&self, old: Arc<Executable>, dying: Vec<u32>, stream: &Arc<StreamShared>) {
        let compile = Compile {
            outputs: old.outputs().iter().copied().collect(),
            dying,
            how: How::default(),
            otherwise: Otherwise::Executable(old.memory()),
        };
        let key = Key::new(*self.info.reference.key.as_bytes());
        compile.start_beside(&self.info, stream, move |made, engine| {
            let Ok((executable, tally)) = made else { return };
            let evicted = engine.cache().replace(&key, &old, executable);
            drop(tally);
            engine.tell_evicted(&evicted.unwrap_or_default());
        });
    }
}
