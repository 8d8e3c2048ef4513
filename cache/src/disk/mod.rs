//! The disk tier: artifacts of earlier processes.
//!
//! Its contents run as native code. So they are read only from a folder that belongs to the user
//! alone (`dirs.rs`) and trusted only if they were sealed with the user's secret (`sealed.rs`). Any
//! other file is a miss and is removed, so the next artifact repairs the entry. Entries appear
//! atomically, because they are written under another name first. By default the tier does not wait
//! for the disk (`fsync`), which takes 10 ms. A power cut may truncate an entry or fill it with
//! zeros; the seal detects this like any other damage.
//!
//! Input: [`Request`]s and [`Record`]s. Output: the same. All calls block, like the file system's;
//! callers that must not block use another thread. The tier starts no threads. It reports problems
//! to an observer; a problem costs no more than what the tier saves.
//!
//! # Many processes
//!
//! Processes share the folder without a server. If several miss the same entry, one compiles it
//! (`flight.rs`). Locks are the file system's (`flock`), which end with their process; where they
//! do not work, every process is on its own. The next sweep removes the files of killed processes,
//! which it recognizes by their missing locks. What crashed a process is not tried again
//! (`crash_marks.rs`).
//!
//! # Invariants
//!
//! - DK1, DK2: `sealed.rs`; DK3: `dirs.rs`; DK4, DK5: `crash_marks.rs`.
//! - DISK-6: an entry is under its name complete or not at all, whenever the process ends.
//! - DISK-7: after a load that found damage the entry does not exist, and a store replaces it. The
//!   same holds for anything that is not a readable file of the user.
//! - DISK-8: entries are evicted in the order of their last use, expired ones first; never during
//!   their flight.
//! - DISK-9: a failed file system call causes at most a miss. It is reported once for each kind of
//!   call and failure.

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

/// How often an entry in use is touched at most, because a write for each load would be too many.
const TOUCH_EVERY: Duration = Duration::from_secs(3600);

/// How many files are created for an entry if sweeps remove one after the other.
const MAX_TEMPS: u32 = 10;

/// How long nothing is stored after a failed store, at first; the time doubles after each further
/// one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(3600);

/// The source of the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file of the user's. It is created if it does not exist.
    File(PathBuf),
    /// Given by the operator.
    Given(Secret),
}

/// Settings of a disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its folder. Missing parent folders are created.
    pub root: PathBuf,
    /// The secret that entries are sealed with.
    pub secret: SecretSource,
    /// Maximum number of bytes of all entries together.
    pub max_bytes: u64,
    /// How long an unused entry is kept.
    pub max_age: Duration,
    /// Whether a store waits until its entry is on disk.
    pub sync: bool,
    /// Whether the tier stores nothing, and creates, changes and removes nothing in the folder.
    pub read_only: bool,
}

impl DiskConfig {
    /// Defaults for a folder and a secret: 2 GiB, 90 days.
    #[must_use]
    pub fn new(root: PathBuf, secret: SecretSource) -> DiskConfig {
        let max_age = Duration::from_secs(90 * 24 * 3600);
        DiskConfig { root, secret, max_bytes: 2 << 30, max_age, sync: false, read_only: false }
    }
}

/// Why there is no disk tier.
#[derive(Debug)]
pub struct DiskDisabled {
    /// The file or folder with the problem.
    pub path: PathBuf,
    /// The problem.
    pub why: Reason,
}

/// The problem of a file or folder.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A call failed: its purpose and the error.
    Io {
        /// The purpose, as a verb.
        doing: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// It is not a folder.
    NoFolder,
    /// Another user owns it.
    Owner {
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Others have access too; its mode.
    Mode(u32),
    /// Others may replace its contents.
    OthersWrite,
    /// Another user made this link, in a folder where others may; the owner of the link.
    Link(u32),
    /// Others may change the contents of the key's folder; its mode.
    OthersChange(u32),
    /// Its contents cannot be a secret.
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
            Reason::NoFolder => write!(f, "{path} is not a folder (a link to a folder is not accepted)"),
            Reason::Owner { owner, user } => {
                write!(f, "{path} belongs to user {owner}, and this process runs as user {user}")
            }
            Reason::Mode(mode) => {
                write!(f, "other users have access to {path} (its mode is {mode:o}): run `chmod go= {path}`")
            }
            Reason::OthersWrite => {
                write!(
                    f,
                    "other users can replace what is in {path}: choose another folder for the \
                     cache, or run `chmod go-w {path}`"
                )
            }
            Reason::Link(owner) => {
                write!(
                    f,
                    "{path} is a link of user {owner} in a folder where other users can create \
                     links: it is not followed"
                )
            }
            Reason::OthersChange(mode) => {
                write!(
                    f,
                    "other users can change what is in {path} (its mode is {mode:o}): run `chmod go-w {path}`"
                )
            }
            Reason::KeyFile(why) => write!(f, "{path} cannot be used as a key: {why}"),
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

/// An event for the observer.
#[derive(Debug)]
#[non_exhaustive]
pub enum DiskEvent<'a> {
    /// A file system call failed. Reported once for each kind of call and failure.
    Trouble {
        /// The purpose, as a verb with its object.
        doing: &'static str,
        /// The operating system's error.
        error: &'a io::Error,
    },
    /// An entry was damaged and was removed.
    Damaged {
        /// Its name.
        name: Name,
        /// The kind of damage.
        why: &'a str,
    },
    /// Something crashed a process, and is not tried again for a time.
    Quarantined {
        /// Its name.
        name: Name,
        /// The stage, and for how long.
        what: Quarantine,
    },
}

/// The receiver of events.
pub type Observer = Arc<dyn Fn(&DiskEvent<'_>) + Send + Sync>;

/// The outcome of a load.
#[derive(Debug)]
#[must_use]
pub enum Loaded {
    /// There is an entry.
    Found(Record),
    /// There is none. Damage and failures were reported to the observer.
    Absent,
}

impl Loaded {
    /// The record, if one was found.
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
    /// Loads that found none.
    pub misses: u64,
    /// Entries that were damaged.
    pub damaged: u64,
    /// Entries that were stored.
    pub stores: u64,
    /// Stores that failed or were skipped after failures.
    pub failed_stores: u64,
    /// Bytes read from entries.
    pub bytes_read: u64,
    /// Bytes stored.
    pub bytes_written: u64,
    /// Entries that were evicted for space or age.
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

/// When stores are paused.
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
    /// Names of entries that existed when the tier was opened, or were stored or loaded since.
    known: Mutex<HashSet<Name>>,
    quarantined: Mutex<HashMap<Name, Quarantine>>,
    /// Reported problems: the purpose of the call, and the error with its number if it has one.
    reported: Mutex<HashSet<(&'static str, Option<i32>, io::ErrorKind)>>,
    pause: Mutex<Pause>,
    observer: Observer,
    counters: Counters,
}

impl DiskCache {
    /// Opens the folder, and creates what is missing. Processes the crash marks of dead processes.
    ///
    /// # Errors
    /// If the folder or the secret cannot be used; the error says what to do.
    pub fn open(config: DiskConfig, observer: Observer) -> Result<DiskCache, DiskDisabled> {
        DiskCache::open_on(Arc::new(System), config, observer)
    }

    /// [`DiskCache::open`] with other calls than the operating system's.
    ///
    /// # Errors
    /// As [`DiskCache::open`].
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
            reported: Mutex::new(HashSet::new()),
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

    /// The settings that it was opened with.
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

    /// Opens the folders by path again, because the open ones may have been removed. Creates what
    /// is missing.
    fn reopen(&self) {
        if let Ok(dirs) = Dirs::open(&*self.files, &self.config.root, CreatePolicy::Make) {
            *self.dirs.lock() = Arc::new(dirs);
        }
    }

    /// Whether the entry existed when it was last checked. Does not check again.
    pub fn may_have(&self, name: &Name) -> bool {
        self.known.lock().contains(name)
    }

    /// The quarantine of this name, if it has not expired.
    pub fn quarantine(&self, name: &Name) -> Option<Quarantine> {
        let quarantine = *self.quarantined.lock().get(name)?;
        (!quarantine.is_over(self.files.now())).then_some(quarantine)
    }

    /// Marks a first attempt while the result lives. `None` if it cannot be marked. A crash is
    /// attributed to `suspect` ([`DiskCache::quarantine`]); `entry` is what is tried, whether it
    /// exists or not.
    pub fn mark(&self, stage: Stage, suspect: &Name, entry: &Name) -> Option<Mark> {
        self.marks.as_ref()?.mark(stage, suspect, entry).unwrap_or_else(|error| {
            self.trouble("write a mark", &error);
            None
        })
    }

    /// The open file whose first byte is to become [`CRASHED`] if the process crashes.
    pub fn crash_file(&self) -> Option<Arc<OwnedFd>> {
        self.marks.as_ref().map(|marks| marks.file().clone())
    }

    /// Looks for the answer to a request. [`Record::kind`] tells whether it is an artifact.
    pub fn load(&self, request: &Request<'_>) -> Loaded {
        let name = request.name();
        let read = self.read(&name).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            self.counters.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let record = self.sealer.open(&name, bytes).map_err(Unread::Damage)?;
            // Different requests have different names unless the hash is broken, so the requests
            // are compared.
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

    /// Reports an entry that is unreadable or not trusted; removes it if the entry is at fault.
    fn unread(&self, name: &Name, unread: &Unread) {
        match unread {
            Unread::Io(doing, error) => {
                // The entry may exist and be readable once files can be opened again. If an open
                // file cannot be read, the entry is stored again, at another place on the disk.
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

    /// Reads the bytes of an entry, which are not trusted yet.
    fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Unread> {
        let (files, dirs, text) = (&self.files, self.dirs(), name.to_string());
        let file = match files.open(&dirs.entries, &text) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) if is_link(&error) => return Err(Unread::Refused("it is a link")),
            Err(error) => {
                // A file that can never be opened is in the way; a temporary failure says nothing
                // about it.
                let stat = files.stat_at(&dirs.entries, &text).ok();
                let unusable = stat.and_then(|stat| unusable(&stat, files.user()));
                return Err(unusable.map_or(Unread::Io("open an entry", error), Unread::Refused));
            }
        };
        let stat = files.stat(&file).map_err(|error| Unread::Io("examine an entry", error))?;
        if let Some(why) = unusable(&Stat { mode: stat.mode | OWNER_READS, ..stat }, files.user()) {
            return Err(Unread::Refused(why));
        }
        // A file without a name was replaced or removed since it was opened, and is complete
        // anyway.
        if stat.links > 1 {
            return Err(Unread::Refused("it has a second hard link"));
        }
        if stat.mode & 0o022 != 0 {
            return Err(Unread::Refused("other users can write to it"));
        }
        if stat.size > MAX_ENTRY {
            return Err(Unread::Refused("it is larger than any entry"));
        }
        if stat.size > self.config.max_bytes {
            return Err(Unread::Refused("it is larger than the size limit of the cache"));
        }
        let broken = |error| Unread::Io(READ, error);
        let mut bytes = crash_marks::read_up_to(&**files, &file, HEADER).map_err(broken)?;
        // Compared before allocating: a file may have holes and be larger than its header
        // announces.
        if announced(name, &bytes).map_err(Unread::Damage)? != stat.size {
            return Err(Unread::Damage(Damage::Length));
        }
        // One more byte, to verify that the file ends there.
        let most = usize::try_from(stat.size).map_or(usize::MAX, |size| size + 1);
        crash_marks::read_on(&**files, &file, &mut bytes, most).map_err(broken)?;
        let now = files.now();
        // An entry with a time in the future would never be the oldest.
        let is_stale = now.duration_since(stat.modified).map_or(true, |age| age >= TOUCH_EVERY);
        if is_stale
            && !self.config.read_only
            && let Err(error) = files.touch(&file)
        {
            self.trouble("touch an entry", &error);
        }
        Ok(Some(bytes))
    }

    /// Writes an entry, replacing any existing one; returns whether it did. A failure is reported,
    /// and stores are paused for a while.
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
            // The folder may be gone, or a sweep removed the file before it was locked.
            Err((_, error)) if is_folder_removed(&error) => {
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
                    // There is a folder with the entry's name.
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
            // The entry exists, but may not survive a power cut.
            return files.sync(&dirs.entries).map_err(|error| ("wait for the name of an entry", error));
        }
        written
    }

    /// Creates a locked file for an entry, so that no sweep removes it. Where locks do not work a
    /// sweep may, and then the entry is missed.
    fn create_temp(&self, dirs: &Dirs) -> Result<(String, OwnedFd), (&'static str, io::Error)> {
        let files = &*self.files;
        for _ in 0..MAX_TEMPS {
            let temp = random_name().map_err(|error| ("make a random name", error))?;
            let file = files.create(&dirs.temp, &temp).map_err(|error| ("make an entry", error))?;
            match files.try_lock(&file) {
                // A sweep came between the two calls, and removes it or has removed it.
                Ok(false) => {}
                Ok(true) if files.stat(&file).is_ok_and(|stat| stat.links == 0) => {}
                Ok(true) | Err(_) => return Ok((temp, file)),
            }
        }
        Err(("lock an entry", io::ErrorKind::WouldBlock.into()))
    }

    /// Removes an entry. `false` if there was none, or it cannot be removed, as in a read-only
    /// tier.
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

    /// Reports a problem, once.
    fn trouble(&self, doing: &'static str, error: &io::Error) {
        if self.reported.lock().insert((doing, error.raw_os_error(), error.kind())) {
            (self.observer)(&DiskEvent::Trouble { doing, error });
        }
    }

    /// Processes the crash marks of dead processes.
    fn take_dead(&self, dirs: &Dirs) {
        if self.config.read_only {
            return;
        }
        let names = self.files.list(&dirs.marks).unwrap_or_else(|error| {
            self.trouble("list the marks", &error);
            Vec::new()
        });
        for name in names {
            // A file that cannot be read says nothing about the next one.
            if let Err(error) = self.judge(dirs, &name)
                && !clear_strange(&*self.files, dirs, &dirs.marks, &name)
            {
                self.trouble("read what crashed", &error);
            }
        }
    }

    /// Judges one process, if it is dead. Its marks are removed after the consequences are
    /// recorded, not before: otherwise they are left for the next process to judge.
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
                // A sweep has removed it.
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

/// Why an entry was not used.
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

/// The purpose of a read call.
const READ: &str = "read an entry";

/// Whether this is the error of opening a link with `NOFOLLOW`.
fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Whether this is the error of a name that does not exist.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Whether this is the error of a name in a removed folder.
fn is_folder_removed(error: &io::Error) -> bool {
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

/// 32 random bytes for a key.
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

/// A unique name.
fn random_name() -> io::Result<String> {
    Ok(random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
