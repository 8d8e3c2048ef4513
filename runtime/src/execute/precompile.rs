//! Compiles ahead of time for a later run, and records what such a run needs.
//!
//! Input: the request of a region, or a [`Recipe`] of another process. Output: a line of a
//! manifest, or an entry of the disk cache.
//!
//! Invariant:
//! - EXEC-11: a note describes what a run asks for that compiles nothing: regions as they were
//!   recorded, with the results and inputs of the execution that asked, neither compiled as
//!   baseline nor padded, whatever this run did instead.

use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::SealedKind;
use fuseline_fusion::RegionSeq;
use fuseline_sync::schedule::{Refused, Work};

use super::compile::{Compile, Completion, MemoryFallback, ObtainedExecutable, Source, guarded};
use crate::device::Tier;
use crate::engine::EngineShared;
use crate::engine::queue_item::QueueItem;
use crate::engine::stream::StreamShared;
use crate::region::{RegionInfo, RegionRef};
use crate::store::{Recipe, encode};

/// The outcome of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// It was compiled in this time, and stored.
    Compiled(Duration),
    /// The cache had it.
    Present,
}

impl Compile {
    /// Writes the request to the manifest, if one is recorded. `took` is the time of its compile,
    /// if it was compiled.
    pub(super) fn note(&self, info: &RegionInfo, engine: &EngineShared, took: Option<Duration>) {
        let Some(recorder) = engine.stores().manifest() else { return };
        recorder.note(info, &encode(&info.canon, &self.spec.in_tier(Tier::Optimized)), took);
    }
}

/// Makes the disk cache hold what a recipe describes, on a compile thread. `told` is called once,
/// with the outcome or the reason of a failure. If the compile is too late, `told` is called while
/// it is still running.
pub fn compile_ahead(
    recipe: Recipe,
    stream: &Arc<StreamShared>,
    told: impl Fn(Result<Ahead, String>) + Clone + Send + 'static,
) {
    let (owner, refused) = (stream.clone(), told.clone());
    let work = move || {
        let made = guarded(|| Ok(make(&recipe, &owner)));
        drop(owner);
        told(made.unwrap_or_else(|error| Err(error.message)));
    };
    let refusal = move |why| {
        refused(Err(match why {
            Refused::Late(_) => "the plugin does not answer (Deadlines::compile)".to_owned(),
            Refused::Closed(stuck) => format!("{stuck} threads are stuck in the plugin, so it was not asked"),
        }));
    };
    stream.engine().threads().compile().push(QueueItem::new(Work::refusable(work, refusal)));
}

fn make(recipe: &Recipe, stream: &Arc<StreamShared>) -> Result<Ahead, String> {
    let engine = stream.engine();
    let store = engine.needed_store().map_err(|error| error.to_string())?;
    let canon = recipe.canon.clone();
    let reference = RegionRef {
        stream: stream.id(),
        seq: RegionSeq(0),
        key: canon.key(engine.device().environment()),
        ops: canon.graph().nodes().len(),
    };
    let info = Arc::new(RegionInfo::new(reference, canon, Arc::default()));
    let compile = Compile { spec: recipe.spec.clone(), otherwise: MemoryFallback::Parts(None) };
    let asked =
        compile.ask(compile.spec.tier, &info, store).ok_or("the compile environment cannot be determined")?;
    match store.load(&asked).map(|record| record.kind) {
        Some(SealedKind::Artifact) => return Ok(Ahead::Present),
        // Whoever asks ahead of time wants no note that the entry is not worth loading.
        Some(_) => store.forget(&asked),
        None => {}
    }
    // A late answer of the shared tier is stored. Nobody else waits for it.
    let completion = Completion::new(|_, _| {});
    let obtained = compile.obtain(&info, stream, &completion).map_err(|error| error.message)?;
    let ObtainedExecutable { executable, source, took, unstored } = obtained;
    drop(executable);
    let made = match source {
        Source::Compiled => Ahead::Compiled(took),
        Source::Loaded { .. } => Ahead::Present,
    };
    let Some(unstored) = unstored else {
        let nothing_to_store = made == Ahead::Present;
        return nothing_to_store
            .then_some(made)
            .ok_or_else(|| "it is not an executable of a plugin".to_owned());
    };
    if unstored.store(took) {
        return Ok(made);
    }
    // Another process may have been faster.
    store.may_have(&asked).then_some(Ahead::Present).ok_or_else(|| {
        "it was compiled, but the plugin did not serialise it or the cache's folder cannot be written to; \
         FUSELINE_CACHE=read-only forbids that too"
            .to_owned()
    })
}
