//! Inspection of a folder from outside of a run: its entries, their contents, and stray files.
//!
//! Input: an open tier. Output: names, sizes and times; records, checked like those of a run
//! (DISK-1); problems of files. Inspection removes nothing, and changes nothing in a read-only
//! tier.

use std::fmt;
use std::io;
use std::time::SystemTime;

use super::crash_marks::Quarantine;
use super::files::Files;
use super::{DiskCache, Unread, flight, is_absent, unusable};
use crate::name::Name;
use crate::sealed::Record;

/// File system metadata of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// Its name.
    pub name: Name,
    /// Bytes of its file.
    pub size: u64,
    /// When it was last used, accurate to about an hour.
    pub used: SystemTime,
}

/// Files that are not entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrayFile {
    /// Files of dead processes; the next sweep removes them.
    pub orphans: usize,
    /// Files in the folder of entries whose names are not those of entries.
    pub strangers: usize,
}

/// Why an entry cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Whether the entry itself is at fault, permanently; otherwise a file system call failed.
    pub is_damaged: bool,
    /// The problem.
    pub why: String,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unusable {}

impl DiskCache {
    /// The current entries, by name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list(&self) -> io::Result<Vec<EntryInfo>> {
        let dirs = self.dirs();
        let mut entries = Vec::new();
        for text in self.files().list(&dirs.entries)? {
            let Some(name) = Name::parse(&text) else { continue };
            match self.files().stat_at(&dirs.entries, &text) {
                Ok(stat) => entries.push(EntryInfo { name, size: stat.size, used: stat.modified }),
                // It was removed meanwhile.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort_unstable_by_key(|entry| entry.name);
        Ok(entries)
    }

    /// Reads the entry with a name, for any request. `None` if there is none.
    ///
    /// # Errors
    /// The problem of the entry, which is not removed.
    pub fn open_entry(&self, name: &Name) -> Result<Option<Record>, Unusable> {
        let unusable = |unread: Unread| Unusable {
            is_damaged: !matches!(unread, Unread::Io(..)),
            why: unread.to_string(),
        };
        let Some(bytes) = self.read(name).map_err(unusable)? else { return Ok(None) };
        self.sealer.open(name, bytes).map(Some).map_err(|damage| unusable(Unread::Damage(damage)))
    }

    /// Whether a process is compiling the artifact with this name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn is_in_flight(&self, name: &Name) -> io::Result<bool> {
        flight::is_held(&**self.files(), &self.dirs(), &name.to_string())
    }

    /// What was in quarantine when the tier was opened, including expired quarantines.
    #[must_use]
    pub fn quarantines(&self) -> Vec<(Name, Quarantine)> {
        let quarantined = self.quarantined.lock();
        let mut all: Vec<_> = quarantined.iter().map(|(name, quarantine)| (*name, *quarantine)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }

    /// Ends a quarantine; returns whether there was one.
    ///
    /// # Errors
    /// The operating system's.
    pub fn release(&self, name: &Name) -> io::Result<bool> {
        self.quarantined.lock().remove(name);
        match self.files().unlink(&self.dirs().quarantine, &name.to_string()) {
            Ok(()) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Counts files that are not entries.
    ///
    /// # Errors
    /// The operating system's.
    pub fn litter(&self) -> io::Result<StrayFile> {
        let (files, dirs): (&dyn Files, _) = (&**self.files(), self.dirs());
        let names = files.list(&dirs.entries)?;
        let mut litter = StrayFile {
            strangers: names.iter().filter(|name| Name::parse(name).is_none()).count(),
            ..StrayFile::default()
        };
        for dir in [&dirs.temp, &dirs.flights, &dirs.marks] {
            for name in files.list(dir)? {
                let file = match files.open(dir, &name) {
                    Ok(file) => file,
                    Err(error) if is_absent(&error) => continue,
                    Err(error) => {
                        let stat = files.stat_at(dir, &name).ok();
                        if stat.is_some_and(|stat| unusable(&stat, files.user()).is_some()) {
                            litter.orphans += 1;
                            continue;
                        }
                        return Err(error);
                    }
                };
                // The lock is released at once.
                litter.orphans += usize::from(files.try_lock(&file)?);
            }
        }
        Ok(litter)
    }
}
