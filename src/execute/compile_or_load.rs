//! What a compile does beside compiling: it looks whether somebody has done the same, and keeps what it has made for others.
//!
//! ```text
//! disk? ─► another process at it? ─► shared: asked, for a part of a compile's time ─► compile ─────────────────┐
//!                                       └─ an answer later: loaded on another thread ─► landed: the first of both ─► stored, offered
//! ```
//!
//! Input: a [`Compile`]. Output: an executable, compiled or loaded; and an entry, once the executable has been handed out.
//!
//! Invariants, with those of `src/store/mod.rs`:
//! - E9: what is loaded is what would have been compiled: asked for is what the final compile depends on, and what a compile in a hurry does only if
//!   that is what would be made now.
//! - E10: a store that is far away is waited for for a part of what the compile takes. After that the two race; what comes second is not used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_cache::disk::{Flight, Joined, Stage as Tried};
use fuseline_cache::{Kind, Name, Record};

use super::cold::compile_time;
use super::compile::Compile;
use super::landing::Landing;
use crate::device::{Cause, DeviceError, Executable, How, Probation, aliases};
use crate::engine::EngineShared;
use crate::error::Stage;
use crate::event::CacheTier;
use crate::pjrt;
use crate::store::{Asked, Fetching, Store, Storing, Suspect, Wanted};
use crate::stream::StreamShared;
use crate::value::RegionInfo;

/// How long another process is waited for that compiles the same, for each second that it should take, and at least.
const PATIENCE: u32 = 4;
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// The part of a compile's time, in its inverse, by which the shared tier is ahead: a compile that was begun in vain takes cores from others.
const HEAD_START: u32 = 4;

/// What a load takes at least that is compared with a compile: less is no reason to compile instead.
const SHORT_LOAD: Duration = Duration::from_millis(10);

/// Where an executable came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Compiled,
    /// It was loaded from there; how long its compile took then.
    Loaded {
        from: CacheTier,
        compile: Duration,
    },
}

impl Source {
    /// How long the compile took, whenever that was, of what took so long to come by.
    pub(super) fn compile_time(self, took: Duration) -> Duration {
        match self {
            Source::Compiled => took,
            Source::Loaded { compile, .. } => compile,
        }
    }
}

/// An executable, and what is to be done when it has been handed out.
pub(super) struct Obtained {
    pub(super) executable: Executable,
    pub(super) source: Source,
    /// How long it took to compile, or to find and load.
    pub(super) took: Duration,
    pub(super) unstored: Option<Unstored>,
}

/// What is to be stored.
pub(super) struct Unstored {
    store: Arc<Store>,
    asked: Asked,
    what: What,
    /// Others wait for it.
    flight: Option<Flight>,
    /// What it takes the place of.
    instead_of: Option<Asked>,
    /// The end of the program waits for it.
    _storing: Storing,
}

enum What {
    Compiled(pjrt::Executable),
    /// It came from far away.
    Record(Arc<Record>),
}

impl Compile {
    pub(super) fn ask(&self, how: &How, info: &RegionInfo, store: &Store) -> Option<Asked> {
        let (outputs, aliases) = aliases(&info.canon, &self.outputs, &self.dying);
        let wanted = Wanted { canon: &info.canon, outputs: &outputs, aliases: &aliases, how };
        store.ask(info.reference.key, &wanted)
    }

    /// The executable: loaded if somebody has made it, compiled otherwise.
    pub(super) fn obtain(
        &self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        landing: &Arc<Landing>,
    ) -> Result<Obtained, DeviceError> {
        let engine = stream.engine();
        let since = Instant::now();
        let final_how = self.how.at_leisure();
        let store = engine.settled_store();
        let asked = store.and_then(|store| Some((store, self.ask(&final_how, info, store)?)));
        let Some((store, asked)) = asked else {
            if engine.config().is_cache_only() {
                // The engine was not made without one.
                return Err(DeviceError::uncached("the disk cache cannot be used any more"));
            }
            let (executable, took) = self.compile(info, engine)?;
            return Ok(Obtained { executable, source: Source::Compiled, took, unstored: None });
        };
        let suspect = asked.suspect(&info.canon);
        if let Some(quarantine) = store.quarantine(suspect) {
            let error = DeviceError::new(Stage::Compile, quarantine.to_string());
            return Err(DeviceError { cause: Cause::Quarantined, ..error });
        }
        let loader = Loader { compile: self, info, store, engine, suspect, since };
        if let Some(loaded) = loader.load_kept(&asked, &final_how) {
            return Ok(loaded);
        }
        if engine.config().is_cache_only() {
            // There is nothing to do meanwhile.
            let record = store.fetch(&asked).and_then(|fetch| fetch.within(LEAST_PATIENCE));
            if let Some(loaded) = record.and_then(|record| loader.load_fetched(&record, &asked)) {
                return Ok(loaded);
            }
            let how = How { quick: true, ..final_how };
            let quick = self.ask(&how, info, store);
            let stopgap = quick.and_then(|quick| loader.load_kept(&quick, &how));
            return stopgap.ok_or_else(|| DeviceError::uncached(store.missing(&asked, info)));
        }
        let (mut in_a_hurry, mut instead_of) = (None, None);
        if let Some(quick) = self.ask(&How { quick: true, ..final_how.clone() }, info, store) {
            if self.how.quick {
                if let Some(loaded) = loader.load_kept(&quick, &self.how) {
                    return Ok(loaded);
                }
                in_a_hurry = Some(quick);
            } else if store.may_have(&quick) {
                instead_of = Some(quick);
            }
        }
        let estimate = compile_time(info.canon.graph());
        let asked_for = in_a_hurry.as_ref().unwrap_or(&asked);
        let flight = match store.join(asked_for, (estimate * PATIENCE).max(LEAST_PATIENCE)) {
            Joined::Mine(flight) => Some(flight),
            Joined::Alone => None,
            Joined::Made(_) => match loader.load_kept(asked_for, &self.how) {
                Some(loaded) => return Ok(loaded),
                None => None,
            },
        };
        let fetch = store.fetch(&asked);
        if let Some(fetch) = &fetch {
            if let Some(record) = fetch.within(estimate / HEAD_START)
                && let Some(loaded) = loader.load_fetched(&record, &asked)
            {
                return Ok(loaded);
            }
            fetch.then(self.racer(info, stream, landing));
        }
        let mark = store.mark(Tried::Make, suspect, asked_for.name());
        let (mut executable, took) = self.compile(info, engine)?;
        drop(mark);
        // What comes now is too late.
        fetch.into_iter().for_each(Fetching::take_back);
        let tried = asked_for.name();
        self.watch(&mut executable, suspect, tried, store);
        let unstored = executable.pjrt().cloned().map(|pjrt| {
            let (asked, what) = (in_a_hurry.unwrap_or(asked), What::Compiled(pjrt));
            Unstored { store: store.clone(), asked, what, flight, instead_of, _storing: store.storing() }
        });
        Ok(Obtained { executable, source: Source::Compiled, took, unstored })
    }

    /// What lands the answer of the shared tier, if it comes before the compile is done.
    fn racer(
        &self,
        info: &Arc<RegionInfo>,
        stream: &Arc<StreamShared>,
        landing: &Arc<Landing>,
    ) -> impl FnOnce(Arc<Record>) + Send + 'static {
        let (compile, info, landing) = (self.clone(), info.clone(), landing.clone());
        // Neither the stream nor the engine may go on a thread of the tier's.
        let stream = Arc::downgrade(stream);
        let since = Instant::now();
        move |record| {
            let Some(stream) = stream.upgrade() else { return };
            let pool = stream.engine().compile_pool().clone();
            let load = move || {
                let engine = stream.engine();
                let how = compile.how.at_leisure();
                let asked = engine.store().and_then(|store| Some((store, compile.ask(&how, &info, store)?)));
                let Some((store, asked)) = asked else { return };
                let suspect = asked.suspect(&info.canon);
                let loader = Loader { compile: &compile, info: &info, store, engine, suspect, since };
                let Some(loaded) = loader.load_fetched(&record, &asked) else { return };
                if let Some(land) = landing.take() {
                    compile.finish(loaded, Some(land), &info, engine);
                }
            };
            pool.push(load.into());
        }
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

    /// Has the first execution noted. The region is what is not tried again, compiled in a hurry or not.
    fn watch(&self, executable: &mut Executable, suspect: Suspect, tried: Name, store: &Arc<Store>) {
        let store = store.clone();
        executable.set_probation(Probation::new(move || store.mark(Tried::Run, suspect, tried)));
    }
}

/// What loading needs.
struct Loader<'a> {
    compile: &'a Compile,
    info: &'a RegionInfo,
    store: &'a Arc<Store>,
    engine: &'a EngineShared,
    /// What a crash is held against.
    suspect: Suspect,
    since: Instant,
}

impl Loader<'_> {
    /// Loads what the disk has, if it has something that is worth it.
    fn load_kept(&self, asked: &Asked, how: &How) -> Option<Obtained> {
        let record = self.store.load(asked)?;
        let (executable, took) = self.load(&record, asked, how).unwrap_or_else(|error| {
            // It was sealed here and is not damaged, so the plugin does not load what it has made.
            self.store.refused(asked, &error.message);
            None
        })?;
        // Where nothing is compiled there is nothing that would be faster.
        let may_compile = !self.engine.config().is_cache_only();
        if may_compile && took > record.made_in && took > SHORT_LOAD {
            self.store.note_not_worth_it(asked, record.made_in, took);
        }
        let source = Source::Loaded { from: CacheTier::Disk, compile: record.made_in };
        Some(Obtained { executable, source, took: self.since.elapsed(), unstored: None })
    }

    /// Loads what came from the shared tier.
    fn load_fetched(&self, record: &Arc<Record>, asked: &Asked) -> Option<Obtained> {
        let how = self.compile.how.at_leisure();
        // What a plugin elsewhere has made and this one does not load is a miss.
        let (executable, _) = self.load(record, asked, &how).ok().flatten()?;
        let source = Source::Loaded { from: CacheTier::Shared, compile: record.made_in };
        let unstored = Unstored {
            store: self.store.clone(),
            asked: asked.clone(),
            what: What::Record(record.clone()),
            flight: None,
            instead_of: None,
            _storing: self.store.storing(),
        };
        Some(Obtained { executable, source, took: self.since.elapsed(), unstored: Some(unstored) })
    }

    fn load(
        &self,
        record: &Record,
        asked: &Asked,
        how: &How,
    ) -> Result<Option<(Executable, Duration)>, DeviceError> {
        if record.kind != Kind::Artifact {
            return Ok(None);
        }
        let start = Instant::now();
        let mark = self.store.mark(Tried::Load, self.suspect, asked.name());
        let Compile { outputs, dying, .. } = self.compile;
        let loaded = self.engine.device().load(&self.info.canon, outputs, dying, how.clone(), record);
        drop(mark);
        let mut executable = loaded?;
        self.compile.watch(&mut executable, self.suspect, asked.name(), self.store);
        Ok(Some((executable, start.elapsed())))
    }
}

impl Unstored {
    /// Stores the executable, if the plugin can serialise it; whether it did.
    pub(super) fn store(self, took: Duration) -> bool {
        // One that takes longer to load than to compile is known.
        if self.store.may_have(&self.asked) {
            return false;
        }
        let stored = match &self.what {
            What::Record(record) => self.store.adopt(record),
            What::Compiled(executable) => match executable.serialize() {
                Ok(artifact) => self.store.keep(&self.asked, artifact, took),
                Err(_) => false,
            },
        };
        if stored && let Some(instead_of) = &self.instead_of {
            self.store.forget(instead_of);
        }
        // Who waits for it may look now.
        drop(self.flight);
        self.store.sweep(false);
        stored
    }
}
