//! Executables of other processes: what the compile cache has outside of this one.
//!
//! Input: what a compile depends on. Output: an executable that was loaded instead, and later, when one was compiled, an entry. The memory
//! cache is asked first, by the driver; this is asked by the thread that would compile, which a file, a lock of another process or
//! a loader may hold up as well as a compile would.
//!
//! ```text
//! request ─► quarantined? ─► entry on disk? ─► another process at it? ─► compiled ─► handed out ─► serialised, sealed, stored
//! ```
//!
//! Invariants:
//! - T1: what is loaded was serialised by this code, in the same environment, from the same region for the same results, aliases and constants: the
//!   request says all of it, the entry repeats it, and the seal vouches for both (`fuseline_cache::sealed`).
//! - T2: nothing that goes wrong here fails a compile, except that what crashed a process is not compiled as a whole while it is in quarantine.
//! - T3: an entry that takes longer to load than to compile is dropped, and is not made again in that environment.

mod environment;
mod missing;
mod place;
mod recipe;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuseline_cache::disk::{DiskCache, Joined, Mark, Quarantine, Stage, Told};
use fuseline_cache::{Fingerprint, Key, Kind, Record, Request};
use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::encode::Writer;
use fuseline_fusion::lower::Aliases;

pub(crate) use self::environment::Environment;
pub use self::place::DiskCacheConfig;
pub(crate) use self::recipe::Recipe;

use crate::config::EngineConfig;
use crate::device::{How, PjrtDevice};
use crate::event::{Event, Events};
use crate::pjrt::{ClientOptions, CrashNote};

/// The version of what requests and artifacts consist of.
const REQUEST: u8 = 1;

/// Which environment this is, once that is known.
#[derive(Debug)]
struct Here {
    fingerprint: Fingerprint,
    environment: Environment,
}

/// The tiers outside of the process.
#[derive(Debug)]
pub(crate) struct Store {
    disk: Arc<DiskCache>,
    /// Before the file that it writes to.
    _crash_note: Option<CrashNote>,
    here: OnceLock<Option<Here>>,
    events: Events,
}

/// A request, and the name that it has.
#[derive(Debug)]
pub(crate) struct Asked {
    region: Key,
    environment: Fingerprint,
    bytes: Vec<u8>,
}

impl Asked {
    pub(crate) fn request(&self) -> Request<'_> {
        Request { region: self.region, environment: self.environment, bytes: &self.bytes }
    }
}

/// Everything that a compile of a region depends on, but for the environment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) canon: &'a CanonRegion,
    pub(crate) outputs: &'a [u32],
    pub(crate) aliases: &'a Aliases,
    pub(crate) how: &'a How,
}

impl Wanted<'_> {
    /// An injective encoding; [`Recipe::decode`] reads it back.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(self.canon.bytes().len() + 64);
        out.byte(REQUEST);
        out.bytes(self.canon.bytes());
        out.len(self.outputs.len());
        self.outputs.iter().for_each(|&output| out.uint(u64::from(output)));
        let pairs = self.aliases.pairs();
        out.len(pairs.len());
        for &(param, position) in pairs {
            out.uint(u64::from(param));
            out.uint(u64::from(position));
        }
        out.len(self.how.fixed.len());
        for (param, scalar) in &self.how.fixed {
            out.uint(u64::from(*param));
            out.bytes(scalar.dtype().to_string().as_bytes());
            out.uint(scalar.bits());
        }
        out.byte(u8::from(self.how.quick));
        out.into_vec()
    }
}

impl Store {
    /// Opens what the configuration asks for. `None` if that is nothing; an error says why it cannot be used.
    pub(crate) fn open(config: &EngineConfig, events: &Events) -> Result<Option<Arc<Store>>, String> {
        let Some(place) = config.disk_cache_place()? else { return Ok(None) };
        let teller = events.clone();
        let observer = move |told: &Told<'_>| {
            teller.emit(|| Event::CacheTrouble {
                what: match told {
                    Told::Trouble { doing, error } => {
                        format!("the disk cache could not {doing}: {error}; it goes on without")
                    }
                    Told::Damaged { name, why } => {
                        format!("entry {name} of the disk cache is removed: {why}")
                    }
                    Told::Quarantined { name, what } => format!("{name} is in quarantine: {what}"),
                    other => format!("{other:?}"),
                },
            });
        };
        let disk = DiskCache::open(place, Arc::new(observer)).map_err(|off| off.to_string())?;
        let _crash_note = disk.crash_file().map(CrashNote::new);
        let (disk, here, events) = (Arc::new(disk), OnceLock::new(), events.clone());
        Ok(Some(Arc::new(Store { disk, _crash_note, here, events })))
    }

    /// Which environment this is, once that is known.
    pub(crate) fn environment(&self) -> Option<&Environment> {
        self.here.get()?.as_ref().map(|here| &here.environment)
    }

    /// Finds out which environment this is; the first call may read the plugin's file.
    pub(crate) fn settle(&self, device: &PjrtDevice, client_options: &ClientOptions) {
        let mut is_new = false;
        let here = self.here.get_or_init(|| {
            is_new = true;
            let path = device.device().client().plugin().path();
            match self.plugin_digest(path) {
                Ok(digest) => {
                    let environment =
                        Environment::of(device, &digest, &format!("{:?}", client_options.values()));
                    Some(Here { fingerprint: environment.fingerprint(), environment })
                }
                Err(error) => {
                    let path = path.display();
                    let what =
                        format!("the disk cache is off: the plugin's file {path} cannot be read: {error}");
                    self.events.emit(|| Event::CacheTrouble { what });
                    None
                }
            }
        });
        if let Some(here) = here
            && is_new
            && !self.disk.may_have(&Environment::request(here.fingerprint).name())
        {
            self.disk.store(&here.environment.to_note());
        }
    }

    /// The digest of a plugin's file, from a note if the file is the one that was read then.
    fn plugin_digest(&self, path: &std::path::Path) -> std::io::Result<blake3::Hash> {
        let identity = environment::identity(path)?;
        let request = Request {
            region: Key::new([0; 32]),
            environment: Fingerprint::of(b"plugin file"),
            bytes: &identity,
        };
        if let Some(record) =
            self.disk.may_have(&request.name()).then(|| self.disk.load(&request).found()).flatten()
            && let Ok(digest) = record.artifact.try_into()
        {
            return Ok(blake3::Hash::from_bytes(digest));
        }
        let digest = environment::digest(path)?;
        // One that was exchanged while it was read is not remembered.
        if environment::identity(path)? == identity {
            self.disk.store(&environment::note(request, digest.as_bytes().to_vec()));
        }
        Ok(digest)
    }

    /// The request for an executable. `None` while it is not known which environment this is, and where that cannot be known.
    pub(crate) fn ask(&self, key: RegionKey, wanted: &Wanted<'_>) -> Option<Asked> {
        let here = self.here.get()?.as_ref()?;
        let region = Key::new(*key.as_bytes());
        Some(Asked { region, environment: here.fingerprint, bytes: wanted.encode() })
    }

    /// Whether there is an entry, as far as that is known without looking.
    pub(crate) fn may_have(&self, asked: &Asked) -> bool {
        self.disk.may_have(&asked.request().name())
    }

    pub(crate) fn quarantine(&self, asked: &Asked) -> Option<Quarantine> {
        self.disk.quarantine(&asked.request().name())
    }

    pub(crate) fn mark(&self, stage: Stage, asked: &Asked) -> Option<Mark> {
        self.disk.mark(stage, &asked.request().name())
    }

    pub(crate) fn load(&self, asked: &Asked) -> Option<Record> {
        self.disk.load(&asked.request()).found()
    }

    pub(crate) fn join(&self, asked: &Asked, patience: Duration) -> Joined {
        self.disk.join(&asked.request(), patience)
    }

    /// The plugin did not load what it has made; it is removed.
    pub(crate) fn refused(&self, asked: &Asked, why: &str) {
        let name = asked.request().name();
        self.events.emit(|| Event::CacheTrouble {
            what: format!("entry {name} of the disk cache is removed, the plugin does not load it: {why}"),
        });
        self.disk.remove(&name);
    }

    /// An entry turned out to be of no use.
    pub(crate) fn forget(&self, asked: &Asked) {
        self.disk.remove(&asked.request().name());
    }

    /// Stores an executable that took so long to compile.
    pub(crate) fn keep(&self, asked: &Asked, artifact: Vec<u8>, made_in: Duration) -> bool {
        self.disk.store(&record(asked, Kind::Artifact, artifact, made_in, None))
    }

    /// Remembers that an executable takes longer to load than to compile.
    pub(crate) fn note_not_worth_it(&self, asked: &Asked, made_in: Duration, loaded_in: Duration) {
        self.disk.store(&record(asked, Kind::NotWorthIt, Vec::new(), made_in, Some(loaded_in)));
    }

    /// Clears away what dead processes left, and makes room; always, or if it is due.
    pub(crate) fn sweep(&self, always: bool) {
        if always || self.disk.is_sweep_due() {
            self.disk.sweep();
        }
    }
}

fn record(
    asked: &Asked,
    kind: Kind,
    artifact: Vec<u8>,
    made_in: Duration,
    loaded_in: Option<Duration>,
) -> Record {
    Record {
        kind,
        environment: asked.environment,
        region: asked.region,
        made_in,
        loaded_in,
        request: asked.bytes.clone(),
        artifact,
    }
}
