//! Compiling for a run that comes later, and writing down what such a run needs.
//!
//! Input: what a region was asked for as; or a [`Recipe`] of another process. Output: a line of a manifest; or an entry of the disk cache.
//!
//! Invariant:
//! - E10: what is noted is what a run asks for that compiles nothing: regions as they were recorded, with the results and inputs of the execution
//!   that asked, neither compiled in a hurry nor padded, whatever this run did instead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::{Kind, OutputSet};
use fuseline_fusion::{RegionSeq, StreamId};

use super::compile::{Compile, Otherwise};
use super::job::Job;
use super::stored::Source;
use crate::device::{How, aliases};
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
        let how = How { quick: false, ..self.how.clone() };
        let (outputs, aliases) = aliases(&info.canon, &self.outputs, &self.dying);
        let wanted = Wanted { canon: &info.canon, outputs: &outputs, aliases: &aliases, how: &how };
        recorder.note(info, &wanted.encode(), took);
    }
}

impl Job {
    /// Writes the region down that runs by other means now, with the results that it was asked for; if somebody wants to know.
    pub(super) fn note_asked(&self, outputs: Option<OutputSet>, stream: &StreamShared) {
        let Some(outputs) = outputs else { return };
        let (dying, how) = (self.dying(), How::default());
        let compile = Compile { outputs, dying, how, otherwise: Otherwise::Parts(None) };
        // On this thread: the program may end as soon as it has the results, and takes the others along.
        compile.note(&self.info, stream.engine(), None);
    }
}

/// Has the disk cache have what a recipe makes, on this thread. An error says why it has not.
pub(crate) fn compile_ahead(recipe: &Recipe, engine: &EngineShared) -> Result<Ahead, String> {
    let made = catch_unwind(AssertUnwindSafe(|| make(recipe, engine)));
    made.unwrap_or_else(|_| Err("the compiler layer panicked".to_owned()))
}

fn make(recipe: &Recipe, engine: &EngineShared) -> Result<Ahead, String> {
    let store = engine.needed_store().map_err(|error| error.to_string())?;
    let canon = recipe.canon.clone();
    let reference = RegionRef {
        stream: StreamId(0),
        seq: RegionSeq(0),
        key: canon.key(engine.device().environment()),
        ops: canon.graph().nodes().len(),
    };
    let info = RegionInfo { reference, canon, sites: Arc::default() };
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
    match compile.obtain(&info, engine).map_err(|error| error.message)? {
        (_, Source::Loaded(_)) => Ok(Ahead::Present),
        (executable, Source::Compiled(took, unstored)) => {
            let unstored = unstored.ok_or("it is not an executable of a plugin")?;
            drop(executable);
            match unstored.store(took) {
                Some(_) => Ok(Ahead::Compiled(took)),
                // Somebody else was faster.
                None if store.may_have(&asked) => Ok(Ahead::Present),
                None => Err("it was compiled, but the plugin did not serialise it or the cache's folder cannot be written to; \
                             FUSELINE_CACHE=read-only forbids that too"
                    .to_owned()),
            }
        }
    }
}
