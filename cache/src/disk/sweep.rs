//! Sweeps: eviction, and removal of the files of dead processes.
//!
//! One process at a time sweeps, and none waits for it. Locks tell which files are being written
//! and which flights are active. So no file is left behind, and none is taken from a live process,
//! however slow it is.

use std::io;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use super::dirs::Dirs;
use super::files::Files;
use super::{DiskCache, clear, clear_strange, crash_marks, flight, is_absent, is_folder_removed, is_link};
use crate::name::Name;
use crate::sync::Ordering;

/// A sweep is due after every 1/16 of the maximum bytes is stored.
const SHARE: u64 = 16;

/// The percentage of the maximum that an eviction leaves, so that the next store does not need
/// another.
const PERCENT_AFTER_EVICTION: u64 = 90;

/// The file in the folder of flights that the sweeping process locks.
const SWEEP: &str = "sweep";

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files of dead processes.
    pub orphans: usize,
    /// Entries that had expired.
    pub expired: usize,
    /// Entries that were evicted for space.
    pub evicted: usize,
    /// Entries that remain.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// File system metadata of an entry.
struct Aged {
    name: String,
    used: SystemTime,
    size: u64,
}

impl DiskCache {
    /// Whether enough was stored for a [sweep](DiskCache::sweep).
    #[must_use]
    pub fn is_sweep_due(&self) -> bool {
        self.counters.unswept.load(Ordering::Relaxed) >= self.config.max_bytes / SHARE
    }

    /// Removes stray files and evicts entries; `None` if another process is sweeping, or the sweep
    /// failed.
    pub fn sweep(&self) -> Option<Swept> {
        self.sweep_to(self.config.max_bytes)
    }

    /// [`DiskCache::sweep`] to at most `max_bytes`.
    pub fn sweep_to(&self, max_bytes: u64) -> Option<Swept> {
        if self.config.read_only {
            return None;
        }
        // Not the name of any entry.
        let take = |dirs: &_| flight::take(&self.files, dirs, SWEEP.to_owned());
        let mut dirs = self.dirs();
        let mut only = take(&dirs);
        if only.as_ref().is_err_and(is_folder_removed) {
            self.reopen();
            dirs = self.dirs();
            only = take(&dirs);
        }
        let _only = match only {
            Ok(Some(only)) => Some(only),
            Ok(None) => return None,
            // Where locks do not work, eviction is needed all the same.
            Err(error) => {
                self.trouble("lock the sweep", &error);
                None
            }
        };
        self.counters.unswept.store(0, Ordering::Relaxed);
        // A failure with one file does not stop the others.
        let orphans = self.take_orphans(&dirs, &dirs.temp) + self.take_orphans(&dirs, &dirs.flights);
        self.end_quarantines(&dirs);
        self.make_room(&dirs, max_bytes).map(|swept| Swept { orphans, ..swept })
    }

    fn make_room(&self, dirs: &Dirs, max_bytes: u64) -> Option<Swept> {
        let mut entries = self.aged(dirs)?;
        entries.sort_by(|one, other| (one.used, &one.name).cmp(&(other.used, &other.name)));
        let now = self.files.now();
        // Files with holes may have any length.
        let mut left: u128 = entries.iter().map(|entry| u128::from(entry.size)).sum();
        let mut swept = Swept::default();
        let goal = if left > max_bytes.into() { max_bytes / 100 * PERCENT_AFTER_EVICTION } else { max_bytes };
        for entry in &entries {
            let is_old = now.duration_since(entry.used).is_ok_and(|age| age > self.config.max_age);
            let goes = (is_old || left > goal.into()) && !self.is_under_way(dirs, &entry.name);
            if !goes || !self.evict(dirs, &entry.name) {
                swept.entries += 1;
                continue;
            }
            left -= u128::from(entry.size);
            if is_old {
                swept.expired += 1;
            } else {
                swept.evicted += 1;
            }
        }
        swept.bytes = u64::try_from(left).unwrap_or(u64::MAX);
        self.counters.evictions.fetch_add((swept.expired + swept.evicted) as u64, Ordering::Relaxed);
        Some(swept)
    }

    fn is_under_way(&self, dirs: &Dirs, name: &str) -> bool {
        flight::is_held(&*self.files, dirs, name).unwrap_or_else(|error| {
            if !clear_strange(&*self.files, dirs, &dirs.flights, name) {
                self.trouble("examine a flight", &error);
            }
            false
        })
    }

    /// Evicts an entry; returns whether it is gone.
    fn evict(&self, dirs: &Dirs, name: &str) -> bool {
        match clear(&*self.files, dirs, name) {
            Err(error) if !is_absent(&error) => {
                self.trouble("remove an entry", &error);
                return false;
            }
            _ => {}
        }
        if let Some(name) = Name::parse(name) {
            self.known.lock().remove(&name);
        }
        true
    }

    /// The names in a folder, as far as they can be read.
    fn names(&self, dir: &OwnedFd, doing: &'static str) -> Option<Vec<String>> {
        self.files.list(dir).map_err(|error| self.trouble(doing, &error)).ok()
    }

    /// Removes the files without a lock.
    fn take_orphans(&self, dirs: &Dirs, dir: &OwnedFd) -> usize {
        let files: &dyn Files = &*self.files;
        let names = self.names(dir, "list leftover files").unwrap_or_default();
        let mut taken = 0;
        for name in names.iter().filter(|name| *name != SWEEP) {
            let removed = match flight::take_abandoned(files, dir, name) {
                // While it is locked: a process that then locks a file without a name creates
                // another.
                Ok(Some(_lock)) => files.unlink(dir, name),
                Ok(None) => continue,
                // A folder's contents belong to another user, who may remove them.
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                    match files.remove_dir(dir, name) {
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => continue,
                        removed => removed,
                    }
                }
                Err(error) if is_link(&error) => files.unlink(dir, name),
                // Foreign files have no locks.
                Err(_) if clear_strange(files, dirs, dir, name) => Ok(()),
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => taken += 1,
                // An entry that was being written has its final name now.
                Err(error) if is_absent(&error) => {}
                Err(error) => self.trouble("remove leftover files", &error),
            }
        }
        taken
    }

    fn end_quarantines(&self, dirs: &Dirs) {
        let now = self.files.now();
        let long_over = |quarantine: &crash_marks::Quarantine| {
            // An expired quarantine is kept for a while, because the next one is longer.
            quarantine.is_over(now)
                && now.duration_since(quarantine.until).is_ok_and(|past| past > self.config.max_age)
        };
        for name in self.names(&dirs.quarantine, "list the quarantine").unwrap_or_default() {
            let ended = match crash_marks::read_quarantine(&*self.files, dirs, &name) {
                Ok(quarantine) if quarantine.as_ref().is_none_or(long_over) => {
                    self.files.unlink(&dirs.quarantine, &name)
                }
                other => other.map(drop),
            };
            if let Err(error) = ended
                && !is_absent(&error)
                && !clear_strange(&*self.files, dirs, &dirs.quarantine, &name)
            {
                self.trouble("end a quarantine", &error);
            }
        }
    }

    /// The entries with the times of their last use. A time in the future counts as now.
    fn aged(&self, dirs: &Dirs) -> Option<Vec<Aged>> {
        let now = self.files.now();
        let mut entries = Vec::new();
        for name in self.names(&dirs.entries, "list the entries")? {
            match self.files.stat_at(&dirs.entries, &name) {
                Ok(stat) => entries.push(Aged { name, used: stat.modified.min(now), size: stat.size }),
                Err(error) if is_absent(&error) => {}
                Err(error) => self.trouble("examine an entry", &error),
            }
        }
        Some(entries)
    }
}
