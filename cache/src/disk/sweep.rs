//! What a folder needs from time to time: room, and that somebody clears away what dead processes
//! left.
//!
//! One process at a time sweeps, and no one waits for it. What was being written, and whose flight
//! it was, is known by locks; so nothing is left behind, and nothing is taken from a process that
//! lives, however slow it is.

use std::io;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use super::dirs::Dirs;
use super::files::Files;
use super::{DiskCache, clear, clear_strange, crash_marks, flight, is_absent, is_gone, is_link};
use crate::name::Name;
use crate::sync::Ordering;

/// A sweep is due once this share of the most bytes was stored, in its inverse.
const SHARE: u64 = 16;

/// What remains of the most bytes after an eviction, in percent, so that the next store does not
/// need another.
const LEFT: u64 = 90;

/// The file in the folder of flights that the one who sweeps has locked.
const SWEEP: &str = "sweep";

/// What a sweep took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files of processes that are gone.
    pub orphans: usize,
    /// Entries that were too old.
    pub expired: usize,
    /// Entries that left to make room.
    pub evicted: usize,
    /// Entries that are left.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// An entry, as the file system has it.
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

    /// Clears away and makes room; `None` if somebody else is doing that, or it cannot be done.
    pub fn sweep(&self) -> Option<Swept> {
        self.sweep_to(self.config.max_bytes)
    }

    /// [`DiskCache::sweep`], to so many bytes at most.
    pub fn sweep_to(&self, max_bytes: u64) -> Option<Swept> {
        if self.config.read_only {
            return None;
        }
        // No entry has that name.
        let take = |dirs: &_| flight::take(&self.files, dirs, SWEEP.to_owned());
        let mut dirs = self.dirs();
        let mut only = take(&dirs);
        if only.as_ref().is_err_and(is_gone) {
            self.reopen();
            dirs = self.dirs();
            only = take(&dirs);
        }
        let _only = match only {
            Ok(Some(only)) => Some(only),
            Ok(None) => return None,
            // Where locks do not work, room has to be made all the same.
            Err(error) => {
                self.trouble("lock the sweep", &error);
                None
            }
        };
        self.counters.unswept.store(0, Ordering::Relaxed);
        // What goes wrong with one file says nothing about the next one.
        let orphans = self.take_orphans(&dirs, &dirs.temp) + self.take_orphans(&dirs, &dirs.flights);
        self.end_quarantines(&dirs);
        self.make_room(&dirs, max_bytes).map(|swept| Swept { orphans, ..swept })
    }

    fn make_room(&self, dirs: &Dirs, max_bytes: u64) -> Option<Swept> {
        let mut entries = self.aged(dirs)?;
        entries.sort_by(|one, other| (one.used, &one.name).cmp(&(other.used, &other.name)));
        let now = self.files.now();
        // Files with holes may be as long as they like.
        let mut left: u128 = entries.iter().map(|entry| u128::from(entry.size)).sum();
        let mut swept = Swept::default();
        let goal = if left > max_bytes.into() { max_bytes / 100 * LEFT } else { max_bytes };
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
                self.trouble("look at a flight", &error);
            }
            false
        })
    }

    /// Whether it is no longer there.
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

    /// The names in a folder, as far as they can be known.
    fn names(&self, dir: &OwnedFd, doing: &'static str) -> Option<Vec<String>> {
        self.files.list(dir).map_err(|error| self.trouble(doing, &error)).ok()
    }

    /// Takes the files that nobody has locked.
    fn take_orphans(&self, dirs: &Dirs, dir: &OwnedFd) -> usize {
        let files: &dyn Files = &*self.files;
        let names = self.names(dir, "list what was left behind").unwrap_or_default();
        let mut taken = 0;
        for name in names.iter().filter(|name| *name != SWEEP) {
            let removed = match flight::take_left_behind(files, dir, name) {
                // Under the lock: who takes a lock and finds that the file has no name any more
                // takes another.
                Ok(Some(_lock)) => files.unlink(dir, name),
                Ok(None) => continue,
                // What is in it is somebody's, who may remove it.
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                    match files.remove_dir(dir, name) {
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => continue,
                        removed => removed,
                    }
                }
                Err(error) if is_link(&error) => files.unlink(dir, name),
                // Nobody has a lock of what is none of ours.
                Err(_) if clear_strange(files, dirs, dir, name) => Ok(()),
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => taken += 1,
                // An entry that was being written has its name now.
                Err(error) if is_absent(&error) => {}
                Err(error) => self.trouble("take what was left behind", &error),
            }
        }
        taken
    }

    fn end_quarantines(&self, dirs: &Dirs) {
        let now = self.files.now();
        let long_over = |quarantine: &crash_marks::Quarantine| {
            // It is remembered for a while that there was one: the next is longer.
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

    /// The entries with when they were used; what is from the future counts as used now.
    fn aged(&self, dirs: &Dirs) -> Option<Vec<Aged>> {
        let now = self.files.now();
        let mut entries = Vec::new();
        for name in self.names(&dirs.entries, "list the entries")? {
            match self.files.stat_at(&dirs.entries, &name) {
                Ok(stat) => entries.push(Aged { name, used: stat.modified.min(now), size: stat.size }),
                Err(error) if is_absent(&error) => {}
                Err(error) => self.trouble("look at an entry", &error),
            }
        }
        Some(entries)
    }
}
