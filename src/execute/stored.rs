//! What a compile does beside compiling: it looks whether another process has done the same, and keeps what it has made for the next.
//!
//! Input: a [`Compile`]. Output: an executable, compiled or loaded; and an entry, once the executable has been handed out.
//!
//! Invariants, with those of `src/store/mod.rs`:
//! - E9: what is loaded is what would have been compiled: asked for is what the final compile depends on, and what a compile in a hurry does only if
//!   that is what would be made now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_cache::Kind;
use fuseline_cache::disk::{Flight, Joined, Stage as Tried};
use fuseline_fusion::Bytes;

use super::cold::compile_time;
use super::compile::Compile;
use crate::device::{DeviceError, Executable, How, Probation, aliases};
use crate::engine::EngineShared;
use crate::error::Stage;
use crate::pjrt;
use crate::store::{Asked, Store, Wanted};
use crate::value::RegionInfo;

/// How long another process is waited for that compiles the same, for each second that it should take, and at least.
const PATIENCE: u32 = 4;
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// What a load takes at least that is compared with a compile: less is no reason to compile instead.
const SHORT_LOAD: Duration = Duration::from_millis(10);

/// Where an executable came from.
pub(super) enum Source {
    /// It was compiled, in so much time; it is to be stored so.
    Compiled(Duration, Option<Unstored>),
    /// It was loaded; how long its compile took then.
    Loaded(Duration),
}

impl Source {
    /// How long the compile took, whenever that was.
    pub(super) fn compile_time(&self) -> Duration {
        match self {
            Source::Compiled(took, _) | Source::Loaded(took) => *took,
        }
    }
}

/// What is to be done with an executable when it has been handed out.
pub(super) struct Unstored {
    store: Arc<Store>,
    asked: Asked,
    executable: pjrt::Executable,
    /// Others wait for it.
    flight: Option<Flight>,
    /// What it takes the place of.
    instead_of: Option<Asked>,
}

impl Compile {
    pub(super) fn ask(&self, how: &How, info: &RegionInfo, store: &Store) -> Option<Asked> {
        let (outputs, aliases) = aliases(&info.canon, &self.outputs, &self.dying);
        let wanted = Wanted { canon: &info.canon, outputs: &outputs, aliases: &aliases, how };
        store.ask(info.reference.key, &wanted)
    }

    /// Whether there is an entry for it, as far as that is known without looking.
    pub(super) fn is_stored(&self, info: &RegionInfo, store: &Store) -> bool {
        self.ask(&self.how, info, store).is_some_and(|asked| store.may_have(&asked))
    }

    /// The executable: loaded if another process has made it, compiled otherwise.
    pub(super) fn obtain(
        &self,
        info: &RegionInfo,
        engine: &EngineShared,
    ) -> Result<(Executable, Source), DeviceError> {
        let store = engine.settled_store();
        let final_how = How { quick: false, ..self.how.clone() };
        let ask = |how: &How| store.and_then(|store| Some((store, self.ask(how, info, store)?)));
        let Some((store, asked)) = ask(&final_how) else {
            if engine.config().is_cache_only() {
                // The engine was not made without one.
                return Err(DeviceError::uncached("the disk cache cannot be used any more"));
            }
            let (executable, took) = self.compile(info, engine)?;
            return Ok((executable, Source::Compiled(took, None)));
        };
        if let Some(quarantine) = store.quarantine(&asked) {
            return Err(DeviceError::new(Stage::Compile, quarantine.to_string()));
        }
        if let Some(loaded) = self.load(&asked, &asked, &final_how, info, store, engine) {
            return Ok(loaded);
        }
        if engine.config().is_cache_only() {
            let how = How { quick: true, ..final_how };
            let quick = self.ask(&how, info, store);
            let stopgap = quick.and_then(|quick| self.load(&quick, &asked, &how, info, store, engine));
            return stopgap.ok_or_else(|| DeviceError::uncached(store.missing(&asked, info)));
        }
        let (mut in_a_hurry, mut instead_of) = (None, None);
        if let Some((_, quick)) = ask(&How { quick: true, ..final_how.clone() }) {
            if self.how.quick {
                if let Some(loaded) = self.load(&quick, &asked, &self.how, info, store, engine) {
                    return Ok(loaded);
                }
                in_a_hurry = Some(quick);
            } else if store.may_have(&quick) {
                instead_of = Some(quick);
            }
        }
        let patience = (compile_time(info.canon.graph()) * PATIENCE).max(LEAST_PATIENCE);
        let asked_for = in_a_hurry.as_ref().unwrap_or(&asked);
        let flight = match store.join(asked_for, patience) {
            Joined::Mine(flight) => Some(flight),
            Joined::Alone => None,
            Joined::Made(_) => {
                if let Some(loaded) = self.load(asked_for, &asked, &self.how, info, store, engine) {
                    return Ok(loaded);
                }
                None
            }
        };
        let mark = store.mark(Tried::Make, &asked);
        let (mut executable, took) = self.compile(info, engine)?;
        drop(mark);
        let unstored = executable.pjrt().cloned().map(|pjrt| {
            let asked = in_a_hurry.unwrap_or(asked);
            Unstored { store: store.clone(), asked, executable: pjrt, flight, instead_of }
        });
        self.watch(&mut executable, info, store);
        Ok((executable, Source::Compiled(took, unstored)))
    }

    fn compile(
        &self,
        info: &RegionInfo,
        engine: &EngineShared,
    ) -> Result<(Executable, Duration), DeviceError> {
        let start = Instant::now();
        let (outputs, dying) = (&self.outputs, self.dying.as_slice());
        let executable = engine.device().compile(&info.canon, outputs, dying, self.how.clone())?;
        Ok((executable, start.elapsed()))
    }

    /// Has the first execution noted.
    fn watch(&self, executable: &mut Executable, info: &RegionInfo, store: &Arc<Store>) {
        // The region is what is not tried again, compiled in a hurry or not.
        let how = How { quick: false, ..self.how.clone() };
        if let Some(asked) = self.ask(&how, info, store) {
            let store = store.clone();
            executable.set_probation(Probation::new(move || store.mark(Tried::Run, &asked)));
        }
    }

    /// Loads what answers a request, if there is something that does and is worth it. `final_one` is what a crash is held against.
    fn load(
        &self,
        asked: &Asked,
        final_one: &Asked,
        how: &How,
        info: &RegionInfo,
        store: &Arc<Store>,
        engine: &EngineShared,
    ) -> Option<(Executable, Source)> {
        let record = store.load(asked).filter(|record| record.kind == Kind::Artifact)?;
        let start = Instant::now();
        let mark = store.mark(Tried::Load, final_one);
        let loaded = engine.device().load(&info.canon, &self.outputs, &self.dying, how.clone(), &record);
        drop(mark);
        let took = start.elapsed();
        match loaded {
            Ok(mut executable) => {
                // Where nothing is compiled there is nothing that would be faster.
                if took > record.made_in && took > SHORT_LOAD && !engine.config().is_cache_only() {
                    store.note_not_worth_it(asked, record.made_in, took);
                }
                self.watch(&mut executable, info, store);
                Some((executable, Source::Loaded(record.made_in)))
            }
            Err(error) => {
                // It was sealed here and is not damaged, so the plugin does not load what it has made.
                store.refused(asked, &error.message);
                None
            }
        }
    }
}

impl Unstored {
    /// Stores the executable, if the plugin can serialise it. Returns its size as stored.
    pub(super) fn store(self, took: Duration) -> Option<Bytes> {
        // One that takes longer to load than to compile is known.
        if self.store.may_have(&self.asked) {
            return None;
        }
        let artifact = self.executable.serialize().ok()?;
        let size = Bytes(artifact.len() as u64);
        let stored = self.store.keep(&self.asked, artifact, took);
        if stored && let Some(instead_of) = &self.instead_of {
            self.store.forget(instead_of);
        }
        // Who waits for it may look now.
        drop(self.flight);
        self.store.sweep(false);
        stored.then_some(size)
    }
}
