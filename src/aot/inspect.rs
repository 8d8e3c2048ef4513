//! The folder of the disk cache, for those who look after it.
//!
//! Input: where it is. Output: its entries and what they say, each checked as a run would;
//! removals. A folder that is opened to look is not changed by that, nor made.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuseline_cache::disk::{DiskCache, Quarantine, StrayFile};
use fuseline_cache::{Kind, Name, Record};
use fuseline_fusion::Bytes;
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::{self, Numerics};

use super::Environment;
use crate::device::aliases;
use crate::error::{Error, Result};
use crate::store::{self, DiskCacheConfig, QuarantineKey, Recipe};

/// A file among the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFile {
    pub(crate) name: Name,
    /// Bytes of the file.
    pub size: Bytes,
    /// When it was last used, to an hour or so.
    pub used: SystemTime,
}

impl EntryFile {
    /// The name of the entry: 64 hexadecimal digits.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.to_string()
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EntryKind {
    /// An executable.
    Executable,
    /// That an executable takes longer to load than to compile; it is not there.
    NotWorthIt,
    /// What an environment is, or a plugin's file.
    Note,
}

impl EntryKind {
    /// As one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EntryKind::Executable => "executable",
            EntryKind::NotWorthIt => "not_worth_it",
            EntryKind::Note => "note",
        }
    }
}

/// What an entry says.
#[derive(Clone, Debug)]
pub struct Entry {
    kind: EntryKind,
    environment: String,
    region: String,
    made_in: Duration,
    loaded_in: Option<Duration>,
    artifact: Bytes,
    recipe: Option<Recipe>,
    /// What a crash of its region is noted as.
    suspect: Option<Name>,
}

impl Entry {
    fn of(record: &Record) -> std::result::Result<Entry, String> {
        let (kind, recipe) = match record.kind {
            Kind::Artifact => (EntryKind::Executable, Some(Recipe::decode(&record.request)?)),
            Kind::NotWorthIt => (EntryKind::NotWorthIt, Some(Recipe::decode(&record.request)?)),
            Kind::Note => (EntryKind::Note, None),
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

    /// What it is.
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

    /// How long it took to load, if that was noted.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        self.loaded_in
    }

    /// Bytes of the serialised executable.
    #[must_use]
    pub fn artifact_bytes(&self) -> Bytes {
        self.artifact
    }

    /// The region, unless it is a note.
    #[must_use]
    pub fn canon(&self) -> Option<&CanonRegion> {
        self.recipe.as_ref().map(|recipe| &*recipe.canon)
    }

    /// Number of the region's ops; 0 of a note.
    #[must_use]
    pub fn ops(&self) -> usize {
        self.canon().map_or(0, |canon| canon.graph().nodes().len())
    }

    /// The results that it returns, by their numbers in the region.
    #[must_use]
    pub fn outputs(&self) -> Vec<u32> {
        self.recipe.iter().flat_map(|recipe| recipe.outputs.iter()).collect()
    }

    /// Parameters whose memory it may reuse, each with the result that gets it, by its place among
    /// those returned.
    #[must_use]
    pub fn aliases(&self) -> Vec<(u32, u32)> {
        let Some(recipe) = &self.recipe else { return Vec::new() };
        aliases(&recipe.canon, &recipe.outputs, &recipe.dying).1.pairs().to_vec()
    }

    /// Lifted scalars that are compiled in: parameter and value.
    #[must_use]
    pub fn constants(&self) -> Vec<(u32, String)> {
        let fixed = self.recipe.iter().flat_map(|recipe| recipe.how.fixed.iter());
        fixed.map(|(param, scalar)| (*param, scalar.to_literal().to_string())).collect()
    }

    /// Whether it was compiled in a hurry, to slower code.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.recipe.as_ref().is_some_and(|recipe| recipe.how.quick)
    }

    /// The region as a StableHLO module, as it is lowered without regard to a device. Empty for a
    /// note.
    #[must_use]
    pub fn module(&self) -> String {
        let Some(recipe) = &self.recipe else { return String::new() };
        let (outputs, aliases) = aliases(&recipe.canon, &recipe.outputs, &recipe.dying);
        lower::lower(&recipe.canon, &outputs, &aliases, Numerics::Fast).text().to_owned()
    }
}

/// Something that ended a process, and is not tried again for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub(crate) name: Name,
    quarantine: Quarantine,
}

impl Quarantined {
    /// What stands for the region, whatever is compiled of it: 64 hexadecimal digits.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.to_string()
    }

    /// Whether an entry is of the region.
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
    /// Opens a folder to look at it. `None` if it is not there.
    ///
    /// # Errors
    /// When it cannot be used, with what to do.
    pub fn look(config: &DiskCacheConfig) -> Result<Option<Folder>> {
        let config = config.clone().read_only(true);
        let place = config.resolve(|name| std::env::var_os(name)).map_err(Error::setup)?;
        match std::fs::symlink_metadata(&place.root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Folder::open_at(place).map(Some),
        }
    }

    /// Opens a folder to change it; it is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be used, with what to do.
    pub fn open(config: &DiskCacheConfig) -> Result<Folder> {
        Folder::open_at(config.resolve(|name| std::env::var_os(name)).map_err(Error::setup)?)
    }

    fn open_at(place: fuseline_cache::disk::DiskConfig) -> Result<Folder> {
        // What goes wrong here is an error of a call, and not told beside it.
        let opened = DiskCache::open(place, Arc::new(|_| {}));
        opened.map(|disk| Folder { disk }).map_err(|off| Error::setup(off.to_string()))
    }

    fn failed(&self, doing: &str, error: &std::io::Error) -> Error {
        Error::setup(format!("could not {doing} {}: {error}", self.path().display()))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.disk.root()
    }

    /// The entries' files, by name.
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

    /// What an entry says, once its seal was checked. `None` if it is gone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(&self, file: &EntryFile) -> Result<Option<Entry>> {
        let record = self.disk.open_entry(&file.name).map_err(|unusable| Error::setup(unusable.why))?;
        record.as_ref().map(Entry::of).transpose().map_err(Error::setup)
    }

    /// The environments that are known here, by their fingerprints.
    ///
    /// # Errors
    /// When the entries cannot be listed.
    pub fn environments(&self, entries: &[Entry]) -> BTreeMap<String, Environment> {
        let wanted: HashSet<&str> = entries.iter().map(Entry::environment).collect();
        let read = |fingerprint: &str| {
            let name = store::Environment::request(fuseline_cache::Fingerprint::parse(fingerprint)?).name();
            let record = self.disk.open_entry(&name).ok()??;
            Some((fingerprint.to_owned(), Environment::new(store::Environment::of_note(&record)?)))
        };
        wanted.into_iter().filter_map(read).collect()
    }

    /// Removes an entry. Whether it was there.
    pub fn remove(&self, file: &EntryFile) -> bool {
        self.disk.remove(&file.name)
    }

    /// Whether some process is at making an entry, which is then better left alone.
    #[must_use]
    pub fn is_in_flight(&self, file: &EntryFile) -> bool {
        self.disk.is_in_flight(&file.name).unwrap_or(false)
    }

    /// What is not tried again for a time, because it crashed.
    #[must_use]
    pub fn quarantine(&self) -> Vec<Quarantined> {
        let all = self.disk.quarantines().into_iter();
        all.map(|(name, quarantine)| Quarantined { name, quarantine }).collect()
    }

    /// Has something tried again.
    ///
    /// # Errors
    /// When the folder cannot be changed.
    pub fn release(&self, quarantined: &Quarantined) -> Result<bool> {
        let released = self.disk.release(&quarantined.name);
        released.map_err(|error| self.failed("change the quarantine of", &error))
    }

    /// How many files dead processes have left, and how many have names that no entry has.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn litter(&self) -> Result<(usize, usize)> {
        let litter = self.disk.litter().map_err(|error| self.failed("list", &error))?;
        let StrayFile { orphans, strangers } = litter;
        Ok((orphans, strangers))
    }
}
