//! Compiles executables that may reuse more inputs, as
//! [`DonationProfile`](crate::device::DonationProfile) decides.

use std::sync::Arc;

use fuseline_cache::{Hit, Key};
use fuseline_fusion::lower::Aliases;

use super::compile::{Compile, MemoryFallback};
use super::interpreter_tier::compile_time;
use super::job::Job;
use crate::device::{Executable, ExecutableOptions};
use crate::event::Event;
use crate::stream::StreamShared;

impl Job {
    /// Notes which inputs die without being donated. Compiles an executable that reuses them when
    /// that pays. All inputs have data, and the executable is about to be launched.
    pub(super) fn note_donations(&self, hit: &Hit<Executable>, stream: &Arc<StreamShared>) {
        let config = stream.engine().config();
        let is_free = !config.is_reproducible() && !config.is_cache_only();
        let Some(donation_profile) = hit.artifact.donation_profile().filter(|_| is_free) else { return };
        let canon = &self.info.canon;
        let compile = || compile_time(canon.graph());
        let Some(wider) = donation_profile.note(canon, |param| self.may_reuse(param), compile) else {
            return;
        };
        let (region, inputs, executions) = (self.info.reference, wider.params.clone(), wider.executions);
        let mut dying = wider.params;
        dying.extend(hit.artifact.reusable().iter().map(|&(_, param)| param));
        dying.sort_unstable();
        // Two of the requested inputs may compete for the same result.
        let aliases = Aliases::pair(canon, hit.artifact.outputs(), &dying);
        if aliases.pairs().len() <= hit.artifact.reusable().len() {
            return;
        }
        stream.engine().emit(|| Event::DonationExtended { region, inputs, executions });
        self.replace(hit.artifact.clone(), dying, stream);
    }

    /// Compiles an executable with the same results in the background. It replaces `old` in the
    /// cache. `dying` are the parameters that it may reuse.
    pub(super) fn replace(&self, old: Arc<Executable>, dying: Vec<u32>, stream: &Arc<StreamShared>) {
        let compile = Compile {
            outputs: old.outputs().iter().copied().collect(),
            dying,
            how: ExecutableOptions::default(),
            otherwise: MemoryFallback::Executable(old.memory()),
        };
        let key = Key::new(*self.info.reference.key.as_bytes());
        compile.start_beside(&self.info, stream, move |made, engine| {
            let Ok((executable, tally)) = made else { return };
            let evicted = engine.cache().replace(&key, &old, executable);
            drop(tally);
            engine.report_evicted(&evicted.unwrap_or_default());
        });
    }
}
