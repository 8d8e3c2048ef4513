//! Looking at a folder from outside of a run: which entries there are, what they say, and what else lies there.
//!
//! Input: an open tier. Output: names, sizes and times; records, checked as those of a run are (DK1); what is wrong with a file. Nothing is
//! removed by looking, and of a tier that is read-only nothing is changed.

use std::fmt;
use std::io;
use std::time::SystemTime;

use super::files::Files;
use super::marks::Quarantine;
use super::{DiskCache, Unread, flight, is_absent, unusable};
use crate::name::Name;
use crate::sealed::Record;

/// An entry, as the file system has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Bytes of its file.
    pub size: u64,
    /// When it was last used, to an hour or so.
    pub used: SystemTime,
}

/// Files that are no entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Litter {
    /// Files of processes that are gone; the next sweep takes them.
    pub orphans: usize,
    /// Files among the entries that have no entry's name.
    pub strangers: usize,
}

/// Why an entry cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// It is its own fault, and stays so; otherwise a call of the file system failed.
    pub is_damaged: bool,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unusable {}

impl DiskCache {
    /// The entries that there are now, by name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let dirs = self.dirs();
        let mut entries = Vec::new();
        for text in self.files().list(&dirs.entries)? {
            let Some(name) = Name::parse(&text) else { continue };
            match self.files().stat_at(&dirs.entries, &text) {
                Ok(stat) => entries.push(Listed { name, size: stat.size, used: stat.modified }),
                // Somebody has removed it since.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort_unstable_by_key(|entry| entry.name);
        Ok(entries)
    }

    /// What the entry of a name says, whatever it answers. `None` if there is none.
    ///
    /// # Errors
    /// What is wrong with it. It is left where it is.
    pub fn open_entry(&self, name: &Name) -> Result<Option<Record>, Unusable> {
        let unusable = |unread: Unread| Unusable {
            is_damaged: !matches!(unread, Unread::Io(..)),
            why: unread.to_string(),
        };
        let Some(bytes) = self.read(name).map_err(unusable)? else { return Ok(None) };
        self.sealer.open(name, bytes).map(Some).map_err(|damage| unusable(Unread::Damage(damage)))
    }

    /// Whether some process makes the artifact of this name now.
    ///
    /// # Errors
    /// The operating system's.
    pub fn is_in_flight(&self, name: &Name) -> io::Result<bool> {
        flight::is_held(&**self.files(), &self.dirs(), &name.to_string())
    }

    /// What was in quarantine when the tier was opened, whether or not its time is over.
    #[must_use]
    pub fn quarantines(&self) -> Vec<(Name, Quarantine)> {
        let quarantined = self.quarantined.lock();
        let mut all: Vec<_> = quarantined.iter().map(|(name, quarantine)| (*name, *quarantine)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }

    /// Lets something out of quarantine. Whether it was in it.
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

    /// Counts what is no entry.
    ///
    /// # Errors
    /// The operating system's.
    pub fn litter(&self) -> io::Result<Litter> {
        let (files, dirs): (&dyn Files, _) = (&**self.files(), self.dirs());
        let names = files.list(&dirs.entries)?;
        let mut litter = Litter {
            strangers: names.iter().filter(|name| Name::parse(name).is_none()).count(),
            ..Litter::default()
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
                // The lock is given back at once.
                litter.orphans += usize::from(files.try_lock(&file)?);
            }
        }
        Ok(litter)
    }
}
