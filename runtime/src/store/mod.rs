//! Executables of other processes: the compile cache outside of this process.
//!
//! Input: what a compile depends on. Output: a loaded executable that replaces the compile; or an
//! entry, once an executable was compiled. The driver asks the memory cache first. The compile
//! thread asks this store, because a file, another process's lock or a loader may take as long as a
//! compile.
//!
//! ```text
//! request ─► quarantined? ─► entry on disk? ─► another process compiling?
//!         ─► compiled ─► handed out ─► serialized, sealed, stored
//! ```
//!
//! Invariants:
//! - STORE-1: a loaded executable was serialized by this code, in the same environment, from the
//!   same region, for the same results, aliases and constants. The request contains all of that,
//!   the entry repeats it, and the seal covers both (`fuseline_cache::sealed`). If the environment
//!   cannot be determined, nothing is stored or looked up.
//! - STORE-2: no failure here fails a compile, except that a region that crashed a process is not
//!   compiled as a whole while it is in quarantine.
//! - STORE-3: an entry that takes longer to load than to compile is dropped and not made again in
//!   that environment.

mod config;
mod environment;
mod manifest;
mod manifest_writer;
mod miss_explanation;
mod recipe;
mod shared;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fuseline_cache::disk::{CRASHED, DiskCache, DiskEvent, JoinOutcome, Mark, Quarantine, Stage};
use fuseline_cache::{Fingerprint, Key, Name, Record, Request, SealedKind};
use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::encode::Writer;
use fuseline_sync::{Condvar, Mutex, Rank};

pub use self::config::DiskCacheConfig;
pub(crate) use self::config::StoreConfig;
#[cfg(feature = "shared-cache")]
pub(crate) use self::config::shared_of_variables;
pub use self::environment::Environment;
pub use self::manifest::{Manifest, ManifestRegion};
pub(crate) use self::manifest_writer::ManifestWriter;
pub use self::recipe::Recipe;
pub(crate) use self::shared::Fetching;
use fuseline_pjrt::named_files::NamedFiles;
use fuseline_pjrt::{ClientOptions, CrashNote, Flag, Plugin, Value};

use self::shared::Shared;
use crate::device::{CompileSpec, Compiler, Tier};
use crate::event::{Event, Events};

/// The version of the format of requests and artifacts.
const REQUEST: u8 = 1;

/// First byte of the encoding that identifies a region, independent of how it is compiled.
const REGION: u8 = 2;

const _: () = assert!(CrashNote::BYTE == CRASHED[0], "a note is what the cache looks for");

/// How long the end of a program waits for executables that are being stored.
const LONGEST_STORE: Duration = Duration::from_secs(5);

/// The environment of this process, once it is known.
#[derive(Debug)]
struct KnownEnvironment {
    fingerprint: Fingerprint,
    environment: Environment,
    plugin: Plugin,
    /// The files that options name.
    files: NamedFiles,
}

/// The tiers outside of the process: the disk, and the shared tier of a fleet.
#[derive(Debug)]
pub struct Store {
    disk: Option<DiskCache>,
    _crash_note: Option<CrashNote>,
    shared: Option<Shared>,
    here: OnceLock<Result<KnownEnvironment, String>>,
    /// Why the environment is not known any more.
    lost: OnceLock<String>,
    events: Events,
    under_way: Arc<UnderWay>,
}

/// Counts executables that were handed out and are being stored.
#[derive(Debug)]
struct UnderWay {
    count: Mutex<usize>,
    fewer: Condvar,
}

/// Counts one executable as being stored until this is dropped.
#[derive(Debug)]
pub(crate) struct StoreGuard(Arc<UnderWay>);

impl Drop for StoreGuard {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.fewer.notify_all();
    }
}

/// A request and its name.
#[derive(Clone, Debug)]
pub struct StoreKey {
    region: Key,
    environment: Fingerprint,
    bytes: Arc<[u8]>,
    name: Name,
}

impl StoreKey {
    pub(crate) fn request(&self) -> Request<'_> {
        Request { region: self.region, environment: self.environment, bytes: &self.bytes }
    }

    /// The name of the entry.
    pub fn name(&self) -> Name {
        self.name
    }

    /// The key under which a crash of the region is recorded. `canon` is the canonical form of the
    /// request.
    pub fn suspect(&self, canon: &CanonRegion) -> QuarantineKey {
        QuarantineKey::of(self.region, self.environment, canon)
    }
}

/// A region that may crash the process, independent of its results, donations, constants and
/// compile options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineKey(Name);

impl QuarantineKey {
    /// The key of a region in an environment.
    pub fn of(region: Key, environment: Fingerprint, canon: &CanonRegion) -> QuarantineKey {
        let mut bytes = Writer::with_capacity(canon.bytes().len() + 16);
        bytes.byte(REGION);
        bytes.bytes(canon.bytes());
        QuarantineKey(Request { region, environment, bytes: &bytes.into_vec() }.name())
    }

    /// Its name in the crash marks and in quarantine.
    pub fn name(self) -> Name {
        self.0
    }
}

/// An injective encoding of a region and what it is compiled for. [`Recipe::decode`] reads it.
pub(crate) fn encode(canon: &CanonRegion, spec: &CompileSpec) -> Vec<u8> {
    let (outputs, aliases) = spec.aliases(canon);
    let mut out = Writer::with_capacity(canon.bytes().len() + 64);
    out.byte(REQUEST);
    out.bytes(canon.bytes());
    out.len(outputs.len());
    outputs.iter().for_each(|&output| out.uint(u64::from(output)));
    let pairs = aliases.pairs();
    out.len(pairs.len());
    for &(param, position) in pairs {
        out.uint(u64::from(param));
        out.uint(u64::from(position));
    }
    out.len(spec.constants.len());
    for (param, scalar) in &spec.constants {
        out.uint(u64::from(*param));
        out.bytes(scalar.dtype().to_string().as_bytes());
        out.uint(scalar.bits());
    }
    out.byte(u8::from(spec.tier == Tier::Baseline));
    out.into_vec()
}

impl Store {
    /// Opens the configured tiers. Also returns why there is no disk cache, if one was configured.
    pub fn open(config: &StoreConfig, events: &Events) -> (Option<Arc<Store>>, Option<String>) {
        let (disk, no_disk) = match open_disk(config, events) {
            Ok(disk) => (disk, None),
            Err(why) => (None, Some(why)),
        };
        let shared = Shared::open(config, events);
        if disk.is_none() && shared.is_none() {
            return (None, no_disk);
        }
        let _crash_note = disk.as_ref().and_then(DiskCache::crash_file).map(CrashNote::new);
        let under_way = Arc::new(UnderWay { count: Mutex::new(Rank::UnderWay, 0), fewer: Condvar::new() });
        let (here, lost, events) = (OnceLock::new(), OnceLock::new(), events.clone());
        (Some(Arc::new(Store { disk, _crash_note, shared, here, lost, events, under_way })), no_disk)
    }

    /// Whether there is a disk cache.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// The environment of a compiler, for an engine without a disk cache. It reads the plugin's
    /// file.
    ///
    /// # Errors
    /// Why the environment cannot be determined.
    pub(crate) fn environment_without_disk(
        compiler: &Compiler,
        client_options: &ClientOptions,
    ) -> Result<Environment, String> {
        let digest = compiler.plugin().origin().digest()?;
        let files = files_of_options(compiler, client_options)?;
        Environment::of(compiler, &digest, &format!("{:?}", client_options.values()), &files)
    }

    /// Whether nothing can be stored on disk.
    pub(crate) fn is_read_only(&self) -> bool {
        self.disk.as_ref().is_none_or(|disk| disk.config().read_only)
    }

    /// The environment of this process, once it is known.
    pub fn environment(&self) -> Option<&Environment> {
        self.here().map(|here| &here.environment)
    }

    /// Why the environment cannot be determined, so that nothing is stored.
    pub fn why_unknown(&self) -> Option<&str> {
        let unknown = self.here.get().and_then(|here| here.as_ref().err());
        unknown.or_else(|| self.lost.get()).map(String::as_str)
    }

    fn here(&self) -> Option<&KnownEnvironment> {
        let here = self.here.get()?.as_ref().ok()?;
        if let Err(why) = here.plugin.origin().check().and_then(|()| here.files.check()) {
            if self.lost.set(why).is_ok() {
                self.report_unknown();
            }
            return None;
        }
        self.lost.get().is_none().then_some(here)
    }

    fn report_unknown(&self) {
        let why = self.why_unknown().unwrap_or_default();
        self.events.emit(|| Event::CacheTrouble { what: format!("the disk cache is off: {why}") });
    }

    /// Counts an executable as being stored; see [`Store::wait`].
    pub(crate) fn storing(&self) -> StoreGuard {
        *self.under_way.count.lock() += 1;
        StoreGuard(self.under_way.clone())
    }

    /// Waits some seconds at most until the executables that were handed out are stored. A program
    /// that ends at once would lose them.
    pub fn wait(&self) {
        let deadline = Instant::now() + LONGEST_STORE;
        let mut count = self.under_way.count.lock();
        while *count > 0 && Instant::now() < deadline {
            count = self.under_way.fewer.wait_until(count, deadline);
        }
        drop(count);
        if let Some(shared) = &self.shared {
            shared.flush(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Determines the environment if that does not require reading the plugin's file, because a
    /// note has its digest.
    pub(crate) fn settle_quickly(&self, compiler: &Compiler, client_options: &ClientOptions) {
        if let (Ok(identity), Some(disk)) = (compiler.plugin().origin().identity(), &self.disk)
            && disk.may_have(&plugin_request(&identity).name())
        {
            self.settle(compiler, client_options);
        }
    }

    /// Determines the environment. The first call may read the plugin's file.
    pub fn settle(&self, compiler: &Compiler, client_options: &ClientOptions) {
        let mut is_new = false;
        let here = self.here.get_or_init(|| {
            is_new = true;
            let plugin = compiler.plugin();
            let digest = self.plugin_digest(plugin)?;
            let files = files_of_options(compiler, client_options)?;
            let options = format!("{:?}", client_options.values());
            let environment = Environment::of(compiler, &digest, &options, &files)?;
            Ok(KnownEnvironment { fingerprint: environment.fingerprint(), environment, plugin, files })
        });
        if !is_new {
            return;
        }
        if here.is_err() {
            self.report_unknown();
        }
        if let Ok(here) = here
            && let Some(disk) = self.disk.as_ref()
            && disk.load(&Environment::request(here.fingerprint)).found().is_none()
        {
            disk.store(&here.environment.to_note());
        }
    }

    /// The digest of the file that a plugin was loaded from. A note supplies it if the file is
    /// unchanged.
    fn plugin_digest(&self, plugin: Plugin) -> Result<blake3::Hash, String> {
        let identity = plugin.origin().identity()?;
        let request = plugin_request(&identity);
        let known = self.disk.as_ref().filter(|disk| disk.may_have(&request.name()));
        if let Some(record) = known.and_then(|disk| disk.load(&request).found())
            && let Ok(digest) = record.artifact.try_into()
        {
            return Ok(blake3::Hash::from_bytes(digest));
        }
        let digest = plugin.origin().digest()?;
        if let Some(disk) = &self.disk {
            disk.store(&environment::note(request, digest.as_bytes().to_vec()));
        }
        Ok(digest)
    }

    /// The request for an executable. `None` while the environment is unknown.
    pub fn ask(&self, key: RegionKey, canon: &CanonRegion, spec: &CompileSpec) -> Option<StoreKey> {
        let environment = self.here()?.fingerprint;
        let region = Key::new(*key.as_bytes());
        let bytes: Arc<[u8]> = encode(canon, spec).into();
        let name = Request { region, environment, bytes: &bytes }.name();
        Some(StoreKey { region, environment, bytes, name })
    }

    /// Whether the disk probably has an entry, without looking.
    pub fn may_have(&self, asked: &StoreKey) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.may_have(&asked.name))
    }

    /// Marks a region as one that may end the process.
    pub fn quarantine(&self, suspect: QuarantineKey) -> Option<Quarantine> {
        self.disk.as_ref()?.quarantine(&suspect.0)
    }

    /// `tried` is the name of the entry that is tried.
    pub fn mark(&self, stage: Stage, suspect: QuarantineKey, tried: Name) -> Option<Mark> {
        self.disk.as_ref()?.mark(stage, &suspect.0, &tried)
    }

    /// The entry of the disk cache, if there is one.
    pub fn load(&self, asked: &StoreKey) -> Option<Record> {
        self.disk.as_ref()?.load(&asked.request()).found()
    }

    /// Joins the processes that want the same entry.
    pub fn join(&self, asked: &StoreKey, patience: Duration) -> JoinOutcome {
        self.disk.as_ref().map_or(JoinOutcome::NoLock, |disk| disk.join(&asked.request(), patience))
    }

    /// Asks the shared tier, if there is one.
    pub(crate) fn fetch(&self, asked: &StoreKey) -> Option<Fetching> {
        self.shared.as_ref().map(|shared| shared.fetch(&asked.request()))
    }

    /// Reports and removes an entry that the plugin made and cannot load.
    pub(crate) fn refused(&self, asked: &StoreKey, why: &str) {
        let name = asked.name;
        self.events.emit(|| Event::CacheTrouble {
            what: format!("entry {name} of the disk cache is removed, the plugin does not load it: {why}"),
        });
        self.forget(asked);
    }

    /// Removes an entry that is of no use.
    pub fn forget(&self, asked: &StoreKey) {
        if let Some(disk) = &self.disk {
            disk.remove(&asked.name);
        }
    }

    /// Stores an executable with its compile time, and offers it to the shared tier.
    pub fn keep(&self, asked: &StoreKey, artifact: Vec<u8>, made_in: Duration) -> bool {
        // The first compile may reveal that the flags in effect are unknown.
        if self.here().is_none() {
            return false;
        }
        let record = record(asked, SealedKind::Artifact, artifact, made_in, None);
        let stored = self.disk.as_ref().is_some_and(|disk| disk.store(&record));
        if let Some(shared) = &self.shared {
            shared.offer(record);
        }
        stored
    }

    /// Stores a record from the shared tier.
    pub(crate) fn adopt(&self, record: &Record) -> bool {
        self.here().is_some() && self.disk.as_ref().is_some_and(|disk| disk.store(record))
    }

    /// Stores a note that an executable takes longer to load than to compile.
    pub(crate) fn note_not_worth_it(&self, asked: &StoreKey, made_in: Duration, loaded_in: Duration) {
        self.adopt(&record(asked, SealedKind::NotWorthIt, Vec::new(), made_in, Some(loaded_in)));
    }

    /// Removes what dead processes left, and evicts entries. With `always` even if that is not due.
    pub fn sweep(&self, always: bool) {
        if let Some(disk) = self.disk.as_ref().filter(|disk| always || disk.is_sweep_due()) {
            disk.sweep();
        }
    }

    /// The note with this name, if there is one.
    pub(crate) fn load_note(&self, name: &[u8]) -> Option<Vec<u8>> {
        let is_known = self.disk.as_ref()?.may_have(&note_request(name).name());
        is_known.then(|| self.load_new_note(name)).flatten()
    }

    /// The note with this name, also if another process has stored it since this one has listed the
    /// entries.
    pub(crate) fn load_new_note(&self, name: &[u8]) -> Option<Vec<u8>> {
        let record = self.disk.as_ref()?.load(&note_request(name)).found()?;
        Some(record.artifact)
    }

    /// Keeps a note for other processes.
    pub(crate) fn keep_note(&self, name: &[u8], note: &[u8]) {
        if let Some(disk) = &self.disk {
            disk.store(&environment::note(note_request(name), note.to_vec()));
        }
    }
}

fn open_disk(config: &StoreConfig, events: &Events) -> Result<Option<DiskCache>, String> {
    let Some(place) = config.disk.clone()? else { return Ok(None) };
    let teller = events.clone();
    let observer = move |told: &DiskEvent<'_>| {
        teller.emit(|| Event::CacheTrouble {
            what: match told {
                DiskEvent::Trouble { doing, error } => {
                    format!("the disk cache could not {doing}: {error}; it goes on without")
                }
                DiskEvent::Damaged { name, why } => {
                    format!("entry {name} of the disk cache is removed: {why}")
                }
                DiskEvent::Quarantined { name, what } => format!("{name} is in quarantine: {what}"),
                other => format!("{other:?}"),
            },
        });
    };
    DiskCache::open(place, Arc::new(observer)).map(Some).map_err(|off| off.to_string())
}

/// The files that client options and compiler flags name.
///
/// # Errors
/// If the contents of one cannot be determined.
fn files_of_options(compiler: &Compiler, client: &ClientOptions) -> Result<NamedFiles, String> {
    let mut files = NamedFiles::default();
    for (name, value) in client.values() {
        if let Value::String(text) = value {
            files.add_option("client option", name, text)?;
        }
    }
    for (name, value) in compiler.flags() {
        if let Flag::String(text) = value {
            files.add_option("compiler flag", name, text)?;
        }
    }
    Ok(files)
}

/// The request for the digest of a plugin file with this identity.
fn plugin_request(identity: &[u8]) -> Request<'_> {
    Request { region: Key::new([0; 32]), environment: Fingerprint::of(b"plugin file"), bytes: identity }
}

/// The request for the note with this name.
fn note_request(name: &[u8]) -> Request<'_> {
    Request { region: Key::new([0; 32]), environment: Fingerprint::of(b"notes"), bytes: name }
}

fn record(
    asked: &StoreKey,
    kind: SealedKind,
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
        request: asked.bytes.to_vec(),
        artifact,
    }
}
