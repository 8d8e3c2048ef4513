//! The folder of the disk cache, for tools that manage it.
//!
//! Input: its location. Output: its entries and their contents, each verified as a run would;
//! removals. Opening a folder for inspection neither changes nor creates it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuseline_cache::disk::{DiskCache, Quarantine, StrayFile};
use fuseline_cache::{Name, Record, SealedKind};
use fuseline_fusion::Bytes;
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::{self, Numerics};
use fuseline_runtime::internals::{QuarantineKey, Recipe, StoreEnvironment, Tier};
use fuseline_runtime::{DiskCacheConfig, Error, Result};

use super::Environment;

/// A file of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFile {
    pub(crate) name: Name,
    /// Size of the file.
    pub size: Bytes,
    /// When it was last used, to about an hour.
    pub used: SystemTime,
}

impl EntryFile {
    /// The name of the entry: 64 hexadecimal digits.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.to_string()
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EntryKind {
    /// An executable.
    Executable,
    /// A note that an executable takes longer to load than to compile, and is not stored.
    NotWorthIt,
    /// A description of an environment, or of a plugin's file.
    Note,
}

impl EntryKind {
    /// The kind as one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EntryKind::Executable => "executable",
            EntryKind::NotWorthIt => "not_worth_it",
            EntryKind::Note => "note",
        }
    }
}

/// The contents of an entry.
#[derive(Clone, Debug)]
pub struct Entry {
    kind: EntryKind,
    environment: String,
    region: String,
    made_in: Duration,
    loaded_in: Option<Duration>,
    artifact: Bytes,
    recipe: Option<Recipe>,
    /// The key under which a crash of its region is recorded.
    suspect: Option<Name>,
}

impl Entry {
    fn of(record: &Record) -> std::result::Result<Entry, String> {
        let (kind, recipe) = match record.kind {
            SealedKind::Artifact => (EntryKind::Executable, Some(Recipe::decode(&record.request)?)),
            SealedKind::NotWorthIt => (EntryKind::NotWorthIt, Some(Recipe::decode(&record.request)?)),
            SealedKind::Note => (EntryKind::Note, None),
        };
        let suspect =
            |recipe: &Recipe| QuarantineKey::of(record.region, record.environment, &recipe.canon).name();
        Ok(Entry {
            suspect: recipe.as_ref().map(suspect),
            kind,
            environment: record.environment.to_string(),
            region: record.region.to_string(),
            made_in: record.made_in,
            loaded_in: record.loaded_in,
            artifact: Bytes(record.artifact.len() as u64),
            recipe,
        })
    }

    /// The kind of the entry.
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    /// The fingerprint of its environment.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// The key of its region in that environment.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// How long the compile took.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        self.made_in
    }

    /// How long a load took, if that was recorded.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        self.loaded_in
    }

    /// Size of the serialized executable.
    #[must_use]
    pub fn artifact_bytes(&self) -> Bytes {
        self.artifact
    }

    /// The region, unless it is a note.
    #[must_use]
    pub fn canon(&self) -> Option<&CanonRegion> {
        self.recipe.as_ref().map(|recipe| &*recipe.canon)
    }

    /// Number of the region's ops; 0 for a note.
    #[must_use]
    pub fn ops(&self) -> usize {
        self.canon().map_or(0, |canon| canon.graph().nodes().len())
    }

    /// The results that it returns, by their numbers in the region.
    #[must_use]
    pub fn outputs(&self) -> Vec<u32> {
        self.recipe.iter().flat_map(|recipe| recipe.spec.outputs.iter()).collect()
    }

    /// Donated parameters, each with the result that aliases it, as the position among the returned
    /// results.
    #[must_use]
    pub fn aliases(&self) -> Vec<(u32, u32)> {
        let Some(recipe) = &self.recipe else { return Vec::new() };
        recipe.spec.aliases(&recipe.canon).1.pairs().to_vec()
    }

    /// Lifted scalars that are compiled in: parameter and value.
    #[must_use]
    pub fn constants(&self) -> Vec<(u32, String)> {
        let fixed = self.recipe.iter().flat_map(|recipe| recipe.spec.constants.iter());
        fixed.map(|(param, scalar)| (*param, scalar.to_literal().to_string())).collect()
    }

    /// Whether it is a baseline executable, compiled without optimizations.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.recipe.as_ref().is_some_and(|recipe| recipe.spec.tier == Tier::Baseline)
    }

    /// The region as a StableHLO module, lowered without regard to a device. Empty for a note.
    #[must_use]
    pub fn module(&self) -> String {
        let Some(recipe) = &self.recipe else { return String::new() };
        let (outputs, aliases) = recipe.spec.aliases(&recipe.canon);
        lower::lower(&recipe.canon, &outputs, &aliases, Numerics::Fast).text().to_owned()
    }
}

/// A region that crashed a process, and is not tried again for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub(crate) name: Name,
    quarantine: Quarantine,
}

impl Quarantined {
    /// The name of the region, independent of how it is compiled: 64 hexadecimal digits.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.to_string()
    }

    /// Whether an entry belongs to the region.
    #[must_use]
    pub fn is_about(&self, entry: &Entry) -> bool {
        entry.suspect == Some(self.name)
    }

    /// When it may be tried again.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.quarantine.until
    }
}

/// What happened, and for how long it is not tried again.
impl fmt::Display for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quarantine.fmt(f)
    }
}

/// The folder of the disk cache.
#[derive(Debug)]
pub struct Folder {
    pub(crate) disk: DiskCache,
}

impl Folder {
    /// Opens a folder for inspection. `None` if it does not exist.
    ///
    /// # Errors
    /// When it cannot be used, with the remedy.
    pub fn look(config: &DiskCacheConfig) -> Result<Option<Folder>> {
        let config = config.clone().read_only(true);
        let place = config.resolve(|name| std::env::var_os(name)).map_err(Error::setup)?;
        match std::fs::symlink_metadata(&place.root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Folder::open_at(place).map(Some),
        }
    }

    /// Opens a folder to change it. Creates it if it does not exist.
    ///
    /// # Errors
    /// When it cannot be used, with the remedy.
    pub fn open(config: &DiskCacheConfig) -> Result<Folder> {
        Folder::open_at(config.resolve(|name| std::env::var_os(name)).map_err(Error::setup)?)
    }

    fn open_at(place: fuseline_cache::disk::DiskConfig) -> Result<Folder> {
        // Problems are returned as errors and need no observer.
        let opened = DiskCache::open(place, Arc::new(|_| {}));
        opened.map(|disk| Folder { disk }).map_err(|off| Error::setup(off.to_string()))
    }

    fn failed(&self, doing: &str, error: &std::io::Error) -> Error {
        Error::setup(format!("could not {doing} {}: {error}", self.path().display()))
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.disk.root()
    }

    /// The files of the entries, by name.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn files(&self) -> Result<Vec<EntryFile>> {
        let listed = self.disk.list().map_err(|error| self.failed("list the entries in", &error))?;
        Ok(listed
            .into_iter()
            .map(|listed| EntryFile { name: listed.name, size: Bytes(listed.size), used: listed.used })
            .collect())
    }

    /// Reads an entry and checks its seal. `None` if it is gone.
    ///
    /// # Errors
    /// When the entry is damaged, with the reason.
    pub fn read(&self, file: &EntryFile) -> Result<Option<Entry>> {
        let record = self.disk.open_entry(&file.name).map_err(|unusable| Error::setup(unusable.why))?;
        record.as_ref().map(Entry::of).transpose().map_err(Error::setup)
    }

    /// The environments of these entries for which the folder has a note, by their fingerprints.
    pub fn environments(&self, entries: &[Entry]) -> BTreeMap<String, Environment> {
        let wanted: HashSet<&str> = entries.iter().map(Entry::environment).collect();
        let read = |fingerprint: &str| {
            let name = StoreEnvironment::request(fuseline_cache::Fingerprint::parse(fingerprint)?).name();
            let record = self.disk.open_entry(&name).ok()??;
            Some((fingerprint.to_owned(), Environment::new(StoreEnvironment::of_note(&record)?)))
        };
        wanted.into_iter().filter_map(read).collect()
    }

    /// Removes an entry. Returns whether it existed.
    pub fn remove(&self, file: &EntryFile) -> bool {
        self.disk.remove(&file.name)
    }

    /// Whether a process is writing an entry, which should then be left alone.
    #[must_use]
    pub fn is_in_flight(&self, file: &EntryFile) -> bool {
        self.disk.is_in_flight(&file.name).unwrap_or(false)
    }

    /// Regions that crashed and are not tried again for a time.
    #[must_use]
    pub fn quarantine(&self) -> Vec<Quarantined> {
        let all = self.disk.quarantines().into_iter();
        all.map(|(name, quarantine)| Quarantined { name, quarantine }).collect()
    }

    /// Ends the quarantine of a region, so that it is tried again.
    ///
    /// # Errors
    /// When the folder cannot be changed.
    pub fn release(&self, quarantined: &Quarantined) -> Result<bool> {
        let released = self.disk.release(&quarantined.name);
        released.map_err(|error| self.failed("change the quarantine of", &error))
    }

    /// The number of files that dead processes have left, and of files with names that no entry
    /// has.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn litter(&self) -> Result<(usize, usize)> {
        let litter = self.disk.litter().map_err(|error| self.failed("list", &error))?;
        let StrayFile { orphans, strangers } = litter;
        Ok((orphans, strangers))
    }
}
