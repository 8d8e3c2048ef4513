//! Compiling for a run that comes later, and writing down what such a run needs.
//!
//! Input: what a region was asked for as; or a [`Recipe`] of another process. Output: a line of a manifest; or an entry of the disk cache.
//!
//! Invariant:
//! - E11: what is noted is what a run asks for that compiles nothing: regions as they were recorded, with the results and inputs of the execution
//!   that asked, neither compiled in a hurry nor padded, whatever this run did instead.

use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::{Kind, OutputSet};
use fuseline_fusion::RegionSeq;
use fuseline_sync::schedule::{Refused, Work};

use super::compile::{Compile, Otherwise, guarded};
use super::job::Job;
use super::landing::Landing;
use super::stored::{Obtained, Source};
use crate::device::aliases;
use crate::engine::EngineShared;
use crate::error::RegionRef;
use crate::store::{Recipe, Wanted};
use crate::stream::StreamShared;
use crate::value::RegionInfo;

/// What became of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// It was compiled, in so much time, and stored.
    Compiled(Duration),
    /// It was there.
    Present,
}

impl Compile {
    /// Writes down what was asked for, if somebody wants to know. `took`: how long its compile did, if it was compiled.
    pub(super) fn note(&self, info: &RegionInfo, engine: &EngineShared, took: Option<Duration>) {
        let Some(recorder) = engine.recorder() else { return };
        let how = self.how.at_leisure();
        let (outputs, aliases) = aliases(&info.canon, &self.outputs, &self.dying);
        let wanted = Wanted { canon: &info.canon, outputs: &outputs, aliases: &aliases, how: &how };
        recorder.note(info, &wanted.encode(), took);
    }
}

impl Job {
    /// Writes the region down that runs by other means now, with the results that it was asked for; if somebody wants to know.
    pub(super) fn note_asked(&self, outputs: Option<OutputSet>, stream: &StreamShared) {
        let Some(outputs) = outputs else { return };
        // On this thread: the program may end as soon as it has the results, and takes the others along.
        self.compile_of(outputs).note(&self.info, stream.engine(), None);
    }
}

/// Has the disk cache have what a recipe makes, on a thread that compiles; then `told` is called, once, with whether it has, or why it has not. It
/// may be called while the thread is still at it, if that does not come back in time.
pub(crate) fn compile_ahead(
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
    stream.engine().compile_pool().push(Work::refusable(work, refusal));
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
    let compile = Compile {
        outputs: recipe.outputs.clone(),
        dying: recipe.dying.clone(),
        how: recipe.how.clone(),
        otherwise: Otherwise::Parts(None),
    };
    let asked = compile.ask(&compile.how, &info, store).ok_or("it is not known which environment this is")?;
    match store.load(&asked).map(|record| record.kind) {
        Some(Kind::Artifact) => return Ok(Ahead::Present),
        // Who asks for it ahead of time does not want to compile it.
        Some(_) => store.forget(&asked),
        None => {}
    }
    // What the shared tier may bring while this thread compiles is stored, and else nobody waits for it.
    let landing = Landing::new(|_, _| {});
    let obtained = compile.obtain(&info, stream, &landing).map_err(|error| error.message)?;
    let Obtained { executable, source, took, unstored } = obtained;
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
    // Somebody else may have been faster.
    store.may_have(&asked).then_some(Ahead::Present).ok_or_else(|| {
        "it was compiled, but the plugin did not serialise it or the cache's folder cannot be written to; \
         FUSELINE_CACHE=read-only forbids that too"
            .to_owned()
    })
}
