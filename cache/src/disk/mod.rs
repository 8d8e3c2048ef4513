//! The disk tier: artifacts of earlier processes.
//!
//! What is read from here runs as native code, so it is read only from a folder that is the user's
//! alone (`dirs.rs`) and believed only if it was sealed with the user's secret (`sealed.rs`).
//! Whatever else is found is a miss, and is removed, so that the place heals with the next
//! artifact. Entries appear whole: they are written under another name first. No wait for the disk
//! (`fsync`) by default, which takes 10 ms: a power cut may leave an entry cut off or of zeros, and
//! such entries are found out as any other damage.
//!
//! Input: [`Request`]s and [`Record`]s. Output: the same. All of it blocks, as the file system
//! does; whoever must not be held up calls it on another thread. Nothing here starts threads. What
//! goes wrong is told to an observer, and costs what the tier saves, no more.
//!
//! # Many processes
//!
//! They share the folder, without anything that runs for it. Of those that miss one entry at once,
//! one makes it (`flight.rs`). Locks are the file system's (`flock`), which go with their process;
//! where they do not work every process is on its own. What a killed process leaves is taken by the
//! next sweep, which knows it by its lock. What a process crashed on is not tried again
//! (`marks.rs`).
//!
//! # Invariants
//!
//! - DK1, DK2: `sealed.rs`; DK3: `dirs.rs`; DK4, DK5: `marks.rs`.
//! - DK6: an entry is under its name whole, or not at all, whenever the process ends.
//! - DK7: after a load that found damage there is no such entry, and a store puts one there. So it
//!   is with what is no file of the user's to read.
//! - DK8: entries leave in the order in which they were last used, those first that are too old;
//!   none whose flight is under way.
//! - DK9: no failure of a call of the file system is more than a miss. It is told once for each
//!   kind of call and failure.

mod crash_marks;
mod dirs;
mod files;
mod flight;
mod given;
mod inspect;
mod secret;
mod strange;
mod sweep;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::crash_marks::{CRASHED, Mark, Quarantine, Stage};
#[cfg(feature = "shared")]
pub(crate) use self::files::check_limit;
pub use self::files::{Files, Stat, System};
pub use self::flight::{Flight, JoinOutcome};
pub use self::given::{Output, open_given, resolve_new, write_given};
pub use self::inspect::{EntryInfo, StrayFile, Unusable};
pub use self::secret::read_key;
pub use self::sweep::Swept;

use self::crash_marks::{Attempt, DeadProcess, Marks};
use self::dirs::{CreatePolicy, Dirs};
use self::strange::{OWNER_READS, clear, clear_strange, unusable};
use crate::name::{Name, Request};
use crate::sealed::{Damage, HEADER, MAX_ENTRY, Record, Sealer, Secret, announced};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Entries that are used are touched, no more than this often: a write to the file system for each
/// load would be too many.
const TOUCH_EVERY: Duration = Duration::from_secs(3600);

/// How many files are made for an entry if sweeps take one after the other.
const MAX_TEMPS: u32 = 10;

/// For how long nothing is stored after a store failed, at first; twice as long after each further
/// one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(3600);

/// Where the secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file of the user's. It is made if it is not there.
    File(PathBuf),
    /// The operator.
    Given(Secret),
}

/// How a disk tier is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its folder. Those above it are made if need be.
    pub root: PathBuf,
    /// What entries are sealed with.
    pub secret: SecretSource,
    /// Most bytes of all entries together.
    pub max_bytes: u64,
    /// For how long an entry is kept that nobody uses.
    pub max_age: Duration,
    /// Whether a store waits until its entry is on the disk.
    pub sync: bool,
    /// Whether nothing is stored, and nothing of the folder is made, changed or removed.
    pub read_only: bool,
}

impl DiskConfig {
    /// In a folder, with a secret; 2 GiB, 90 days.
    #[must_use]
    pub fn new(root: PathBuf, secret: SecretSource) -> DiskConfig {
        let max_age = Duration::from_secs(90 * 24 * 3600);
        DiskConfig { root, secret, max_bytes: 2 << 30, max_age, sync: false, read_only: false }
    }
}

/// Why there is no disk tier.
#[derive(Debug)]
pub struct DiskDisabled {
    /// The file or folder that it is about.
    pub path: PathBuf,
    /// What is the matter with it.
    pub why: Reason,
}

/// What is the matter with a file or folder.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A call failed: what it was to do, and what the operating system says.
    Io {
        /// As a verb.
        doing: &'static str,
        /// Its words.
        error: io::Error,
    },
    /// It is no folder.
    NoFolder,
    /// It belongs to somebody else.
    Owner {
        /// To whom.
        owner: u32,
        /// Who asks.
        user: u32,
    },
    /// Others may use it too; its mode.
    Mode(u32),
    /// Others may exchange what is in it.
    OthersWrite,
    /// It is a link that somebody else made, where others may make some; whose it is.
    Link(u32),
    /// Others may change what is in the folder of the key; its mode.
    OthersChange(u32),
    /// It cannot be the secret.
    KeyFile(&'static str),
}

impl DiskDisabled {
    fn io(doing: &'static str, path: PathBuf, error: io::Error) -> DiskDisabled {
        DiskDisabled { path, why: Reason::Io { doing, error } }
    }
}

impl fmt::Display for DiskDisabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Reason::Io { doing, error } => write!(f, "could not {doing} {path}: {error}"),
            Reason::NoFolder => write!(f, "{path} is no folder, and a link to one will not do"),
            Reason::Owner { owner, user } => {
                write!(f, "{path} belongs to user {owner}, and this process runs as user {user}")
            }
            Reason::Mode(mode) => {
                write!(f, "others may use {path} (its mode is {mode:o}): `chmod go= {path}` changes that")
            }
            Reason::OthersWrite => {
                write!(
                    f,
                    "others may exchange what is in {path}: the cache needs another folder, or `chmod go-w {path}`"
                )
            }
            Reason::Link(owner) => {
                write!(
                    f,
                    "{path} is a link that user {owner} made, in a folder where others may: it is not followed"
                )
            }
            Reason::OthersChange(mode) => {
                write!(
                    f,
                    "others may change what is in {path} (its mode is {mode:o}): `chmod go-w {path}` changes that"
                )
            }
            Reason::KeyFile(why) => write!(f, "{path} cannot be a key: {why}"),
        }
    }
}

impl std::error::Error for DiskDisabled {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Reason::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Something that an observer is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum DiskEvent<'a> {
    /// A call of the file system failed. Told once for each kind of call and failure.
    Trouble {
        /// What was to be done, as a verb with its object.
        doing: &'static str,
        /// What the operating system says.
        error: &'a io::Error,
    },
    /// An entry is damaged; it was removed.
    Damaged {
        /// Its name.
        name: Name,
        /// What is wrong with it.
        why: &'a str,
    },
    /// Something ended a process, and is not tried again for a time.
    Quarantined {
        /// Its name.
        name: Name,
        /// What and for how long.
        what: Quarantine,
    },
}

/// Who is told what happens.
pub type Observer = Arc<dyn Fn(&DiskEvent<'_>) + Send + Sync>;

/// What a load came to.
#[derive(Debug)]
#[must_use]
pub enum Loaded {
    /// It is there.
    Found(Record),
    /// It is not; damage and failures are told to the observer.
    Absent,
}

impl Loaded {
    /// What was found.
    #[must_use]
    pub fn found(self) -> Option<Record> {
        match self {
            Loaded::Found(record) => Some(record),
            Loaded::Absent => None,
        }
    }
}

/// Counters since the tier was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Loads that found an entry.
    pub hits: u64,
    /// Loads that did not.
    pub misses: u64,
    /// Entries that were damaged.
    pub damaged: u64,
    /// Entries that were stored.
    pub stores: u64,
    /// Stores that failed or were left out after failures.
    pub failed_stores: u64,
    /// Bytes read from entries.
    pub bytes_read: u64,
    /// Bytes stored.
    pub bytes_written: u64,
    /// Entries that left to make room, or for their age.
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    stores: AtomicU64,
    failed_stores: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    evictions: AtomicU64,
    /// Bytes stored since the last sweep.
    unswept: AtomicU64,
}

/// When nothing is stored.
#[derive(Debug, Default)]
struct Pause {
    until: Option<Instant>,
    next: Option<Duration>,
}

/// The disk tier of one folder. See the [module](self).
pub struct DiskCache {
    files: Arc<dyn Files>,
    config: DiskConfig,
    sealer: Sealer,
    dirs: Mutex<Arc<Dirs>>,
    marks: Option<Arc<Marks>>,
    /// Names of entries that were there when it was opened, or were stored or loaded since.
    known: Mutex<HashSet<Name>>,
    quarantined: Mutex<HashMap<Name, Quarantine>>,
    /// What was told: what was to be done, and what the operating system said, by its number as far
    /// as there is one.
    told: Mutex<HashSet<(&'static str, Option<i32>, io::ErrorKind)>>,
    pause: Mutex<Pause>,
    observer: Observer,
    counters: Counters,
}

impl DiskCache {
    /// Opens the folder, and makes what is not there of it. Looks for what crashed earlier
    /// processes.
    ///
    /// # Errors
    /// When the folder or the secret cannot be used, with what to do about it.
    pub fn open(config: DiskConfig, observer: Observer) -> Result<DiskCache, DiskDisabled> {
        DiskCache::open_on(Arc::new(System), config, observer)
    }

    /// [`DiskCache::open`], with other calls than the operating system's.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(
        files: Arc<dyn Files>,
        config: DiskConfig,
        observer: Observer,
    ) -> Result<DiskCache, DiskDisabled> {
        let missing = if config.read_only { CreatePolicy::Refuse } else { CreatePolicy::Make };
        let secret = match &config.secret {
            SecretSource::Given(secret) => secret.clone(),
            SecretSource::File(path) => secret::read_or_make(&*files, path, missing)?,
        };
        let dirs = Arc::new(Dirs::open(&*files, &config.root, missing)?);
        let mut cache = DiskCache {
            sealer: Sealer::new(&secret),
            dirs: Mutex::new(dirs.clone()),
            marks: None,
            known: Mutex::new(HashSet::new()),
            quarantined: Mutex::new(HashMap::new()),
            told: Mutex::new(HashSet::new()),
            pause: Mutex::new(Pause::default()),
            observer,
            counters: Counters::default(),
            config,
            files,
        };
        cache.take_dead(&dirs);
        cache.read_quarantine(&dirs);
        match cache.files.list(&dirs.entries) {
            Ok(names) => *cache.known.lock() = names.iter().filter_map(|name| Name::parse(name)).collect(),
            Err(error) => cache.trouble("list the entries", &error),
        }
        if !cache.config.read_only {
            match Marks::open(&cache.files, &dirs) {
                Ok(marks) => cache.marks = Some(Arc::new(marks)),
                Err(error) => cache.trouble("make the marks", &error),
            }
        }
        Ok(cache)
    }

    /// Its folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.config.root
    }

    /// What it was opened with.
    #[must_use]
    pub fn config(&self) -> &DiskConfig {
        &self.config
    }

    fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    fn dirs(&self) -> Arc<Dirs> {
        self.dirs.lock().clone()
    }

    /// Opens the folders by their path again, where somebody may have removed those that were
    /// opened. Makes what is not there.
    fn reopen(&self) {
        if let Ok(dirs) = Dirs::open(&*self.files, &self.config.root, CreatePolicy::Make) {
            *self.dirs.lock() = Arc::new(dirs);
        }
    }

    /// Whether there was an entry of this name when it was last looked; without looking.
    pub fn may_have(&self, name: &Name) -> bool {
        self.known.lock().contains(name)
    }

    /// Why something of this name is not to be tried, if it is not.
    pub fn quarantine(&self, name: &Name) -> Option<Quarantine> {
        let quarantine = *self.quarantined.lock().get(name)?;
        (!quarantine.is_over(self.files.now())).then_some(quarantine)
    }

    /// Says that something is tried for the first time, as long as what is returned lives. `None`
    /// where it cannot be said. `suspect` is what a crash is held against
    /// ([`DiskCache::quarantine`]), `entry` what is tried of it, whether it is there or not.
    pub fn mark(&self, stage: Stage, suspect: &Name, entry: &Name) -> Option<Mark> {
        self.marks.as_ref()?.mark(stage, suspect, entry).unwrap_or_else(|error| {
            self.trouble("write a mark", &error);
            None
        })
    }

    /// The open file to whose first byte [`CRASHED`] is to be written if the process crashes.
    pub fn crash_file(&self) -> Option<Arc<OwnedFd>> {
        self.marks.as_ref().map(|marks| marks.file().clone())
    }

    /// Looks for what answers a request. [`Record::kind`] says whether that is an artifact.
    pub fn load(&self, request: &Request<'_>) -> Loaded {
        let name = request.name();
        let read = self.read(&name).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            self.counters.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let record = self.sealer.open(&name, bytes).map_err(Unread::Damage)?;
            // Names differ where requests do, unless somebody can break the hash; the request is
            // what counts.
            if record.request() == *request { Ok(Some(record)) } else { Err(Unread::Damage(Damage::Request)) }
        });
        let found = match read {
            Ok(found) => {
                let mut known = self.known.lock();
                if found.is_some() {
                    known.insert(name)
                } else {
                    known.remove(&name)
                };
                found
            }
            Err(unread) => {
                self.unread(&name, &unread);
                None
            }
        };
        let counter = if found.is_some() { &self.counters.hits } else { &self.counters.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found.map_or(Loaded::Absent, Loaded::Found)
    }

    /// What could not be read or believed is told, and removed if it is its own fault.
    fn unread(&self, name: &Name, unread: &Unread) {
        match unread {
            Unread::Io(doing, error) => {
                // It may be there all the same, when there are files to be opened again. What was
                // opened and cannot be read is stored anew, in another place of the disk.
                if *doing == READ {
                    self.known.lock().remove(name);
                }
                self.trouble(doing, error);
            }
            Unread::Damage(_) | Unread::Refused(_) => {
                self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                (self.observer)(&DiskEvent::Damaged { name: *name, why: &unread.to_string() });
                if self.config.read_only {
                    self.known.lock().remove(name);
                } else {
                    self.remove(name);
                }
            }
        }
    }

    /// Reads the bytes of an entry; nothing of them is believed.
    fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Unread> {
        let (files, dirs, text) = (&self.files, self.dirs(), name.to_string());
        let file = match files.open(&dirs.entries, &text) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) if is_link(&error) => return Err(Unread::Refused("it is a link")),
            Err(error) => {
                // What cannot be opened whenever it is tried is in the way; what could not be
                // opened this time may be good.
                let stat = files.stat_at(&dirs.entries, &text).ok();
                let unusable = stat.and_then(|stat| unusable(&stat, files.user()));
                return Err(unusable.map_or(Unread::Io("open an entry", error), Unread::Refused));
            }
        };
        let stat = files.stat(&file).map_err(|error| Unread::Io("look at an entry", error))?;
        if let Some(why) = unusable(&Stat { mode: stat.mode | OWNER_READS, ..stat }, files.user()) {
            return Err(Unread::Refused(why));
        }
        // Without a name it was replaced or removed since it was opened, and is whole all the same.
        if stat.links > 1 {
            return Err(Unread::Refused("it has a second name"));
        }
        if stat.mode & 0o022 != 0 {
            return Err(Unread::Refused("others may write to it"));
        }
        if stat.size > MAX_ENTRY {
            return Err(Unread::Refused("it is larger than any entry"));
        }
        if stat.size > self.config.max_bytes {
            return Err(Unread::Refused("it is larger than all entries together may be"));
        }
        let broken = |error| Unread::Io(READ, error);
        let mut bytes = crash_marks::read_up_to(&**files, &file, HEADER).map_err(broken)?;
        // No memory for what its header does not announce, and no reading of what is a hole.
        if announced(name, &bytes).map_err(Unread::Damage)? != stat.size {
            return Err(Unread::Damage(Damage::Length));
        }
        // One more, to see that it ends there.
        let most = usize::try_from(stat.size).map_or(usize::MAX, |size| size + 1);
        crash_marks::read_on(&**files, &file, &mut bytes, most).map_err(broken)?;
        let now = files.now();
        // One from the future would never be the oldest.
        let is_stale = now.duration_since(stat.modified).map_or(true, |age| age >= TOUCH_EVERY);
        if is_stale
            && !self.config.read_only
            && let Err(error) = files.touch(&file)
        {
            self.trouble("touch an entry", &error);
        }
        Ok(Some(bytes))
    }

    /// Writes an entry, in the place of one that may be there. Whether it did: what goes wrong is
    /// told, and then nothing is stored for a while.
    pub fn store(&self, record: &Record) -> bool {
        if self.config.read_only {
            return false;
        }
        if self.pause.lock().until.is_some_and(|until| self.files.instant() < until) {
            self.counters.failed_stores.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let bytes = self.sealer.seal(record);
        let name = record.name();
        if bytes.len() as u64 > MAX_ENTRY.min(self.config.max_bytes) {
            return false;
        }
        let written = match self.write(&name, &bytes) {
            // The folder may be gone, or a sweep took the file before it was locked.
            Err((_, error)) if is_gone(&error) => {
                self.reopen();
                self.write(&name, &bytes)
            }
            written => written,
        };
        let now = self.files.instant();
        let mut pause = self.pause.lock();
        match written {
            Ok(()) => {
                *pause = Pause::default();
                drop(pause);
                self.counters.stores.fetch_add(1, Ordering::Relaxed);
                self.counters.bytes_written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.counters.unswept.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.known.lock().insert(name);
                true
            }
            Err((doing, error)) => {
                let term = pause.next.unwrap_or(FIRST_PAUSE);
                *pause = Pause { until: Some(now + term), next: Some((term * 2).min(LAST_PAUSE)) };
                drop(pause);
                self.counters.failed_stores.fetch_add(1, Ordering::Relaxed);
                self.trouble(doing, &error);
                false
            }
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), (&'static str, io::Error)> {
        let (files, dirs) = (&*self.files, self.dirs());
        let (temp, file) = self.create_temp(&dirs)?;
        let written = write_all(files, &file, bytes)
            .map_err(|error| ("write an entry", error))
            .and_then(|()| match self.config.sync {
                true => files.sync(&file).map_err(|error| ("wait for an entry", error)),
                false => Ok(()),
            })
            .and_then(|()| {
                let (from, to) = ((&dirs.temp, &*temp), (&dirs.entries, &*name.to_string()));
                let renamed = match files.rename(from, to) {
                    // Somebody made a folder of the entry's name.
                    Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                        clear(files, &dirs, to.1).and_then(|()| files.rename(from, to))
                    }
                    renamed => renamed,
                };
                renamed.map_err(|error| ("name an entry", error))
            });
        if written.is_err() {
            drop(files.unlink(&dirs.temp, &temp));
        }
        if self.config.sync && written.is_ok() {
            // It is there, only perhaps not after a power cut.
            return files.sync(&dirs.entries).map_err(|error| ("wait for the name of an entry", error));
        }
        written
    }

    /// Makes a file for an entry, locked, so that no sweep takes it. Where locks do not work one
    /// may, and then the entry is missed.
    fn create_temp(&self, dirs: &Dirs) -> Result<(String, OwnedFd), (&'static str, io::Error)> {
        let files = &*self.files;
        for _ in 0..MAX_TEMPS {
            let temp = random_name().map_err(|error| ("make a random name", error))?;
            let file = files.create(&dirs.temp, &temp).map_err(|error| ("make an entry", error))?;
            match files.try_lock(&file) {
                // A sweep has come between the two calls, and takes it or has taken it.
                Ok(false) => {}
                Ok(true) if files.stat(&file).is_ok_and(|stat| stat.links == 0) => {}
                Ok(true) | Err(_) => return Ok((temp, file)),
            }
        }
        Err(("lock an entry", io::ErrorKind::WouldBlock.into()))
    }

    /// Removes an entry. `false` where there was none, and where it may or can not be removed: not
    /// by who only reads.
    pub fn remove(&self, name: &Name) -> bool {
        self.known.lock().remove(name);
        if self.config.read_only {
            return false;
        }
        match clear(&*self.files, &self.dirs(), &name.to_string()) {
            Ok(()) => true,
            Err(error) if is_absent(&error) => false,
            Err(error) => {
                self.trouble("remove an entry", &error);
                false
            }
        }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        DiskStats {
            hits: read(&counters.hits),
            misses: read(&counters.misses),
            damaged: read(&counters.damaged),
            stores: read(&counters.stores),
            failed_stores: read(&counters.failed_stores),
            bytes_read: read(&counters.bytes_read),
            bytes_written: read(&counters.bytes_written),
            evictions: read(&counters.evictions),
        }
    }

    /// Something did not work; told the first time.
    fn trouble(&self, doing: &'static str, error: &io::Error) {
        if self.told.lock().insert((doing, error.raw_os_error(), error.kind())) {
            (self.observer)(&DiskEvent::Trouble { doing, error });
        }
    }

    /// Judges what processes that are gone were about to try.
    fn take_dead(&self, dirs: &Dirs) {
        if self.config.read_only {
            return;
        }
        let names = self.files.list(&dirs.marks).unwrap_or_else(|error| {
            self.trouble("list the marks", &error);
            Vec::new()
        });
        for name in names {
            // One that cannot be read says nothing about the next.
            if let Err(error) = self.judge(dirs, &name)
                && !clear_strange(&*self.files, dirs, &dirs.marks, &name)
            {
                self.trouble("read what crashed", &error);
            }
        }
    }

    /// Judges one process, if it is gone. Its marks are removed when what follows from them is
    /// written down, not before: otherwise they are for the next one to judge.
    fn judge(&self, dirs: &Dirs, marks: &str) -> io::Result<()> {
        let files = &*self.files;
        let Some((_lock, dead)) = DeadProcess::take(files, dirs, marks)? else { return Ok(()) };
        let mut is_written = true;
        let tried = if dead.crashed { dead.tried } else { Vec::new() };
        for Attempt { stage, suspect: name, entries } in tried {
            let before = crash_marks::read_quarantine(files, dirs, &name.to_string()).ok().flatten();
            let what = Quarantine::after(before, stage, files.now());
            if let Err(error) = crash_marks::write_quarantine(files, dirs, &name, &what) {
                self.trouble("write the quarantine", &error);
                is_written = false;
            }
            self.quarantined.lock().insert(name, what);
            (self.observer)(&DiskEvent::Quarantined { name, what });
            for entry in entries {
                self.remove(&entry);
            }
        }
        if is_written { files.unlink(&dirs.marks, marks) } else { Ok(()) }
    }

    fn read_quarantine(&self, dirs: &Dirs) {
        let names = self.files.list(&dirs.quarantine).unwrap_or_else(|error| {
            self.trouble("list the quarantine", &error);
            Vec::new()
        });
        for text in names {
            let Some(name) = Name::parse(&text) else { continue };
            match crash_marks::read_quarantine(&*self.files, dirs, &text) {
                Ok(Some(quarantine)) => drop(self.quarantined.lock().insert(name, quarantine)),
                Ok(None) => {}
                // A sweep has ended it.
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    if self.config.read_only || !clear_strange(&*self.files, dirs, &dirs.quarantine, &text) {
                        self.trouble("read the quarantine", &error);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskCache({}, {:?})", self.config.root.display(), self.stats())
    }
}

/// Why an entry is not believed.
#[derive(Debug)]
enum Unread {
    Io(&'static str, io::Error),
    Refused(&'static str),
    Damage(Damage),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Io(doing, error) => write!(f, "could not {doing}: {error}"),
            Unread::Refused(why) => f.write_str(why),
            Unread::Damage(damage) => damage.fmt(f),
        }
    }
}

/// What reading an entry is called.
const READ: &str = "read an entry";

/// What opening a link says that must not be one.
fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// What a call says of a name that nothing has.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// What a call says in a folder that somebody has removed.
fn is_gone(error: &io::Error) -> bool {
    is_absent(error) || error.kind() == io::ErrorKind::StaleNetworkFileHandle
}

fn write_all(files: &dyn Files, file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match files.write(file, bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

/// 32 bytes that nobody can guess, for a key.
///
/// # Errors
/// The operating system's.
pub fn random_key() -> io::Result<[u8; 32]> {
    random()
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut random = [0; N];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(random)
}

/// A name that nothing else has.
fn random_name() -> io::Result<String> {
    Ok(random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
