//! What a folder needs from time to time: room, and that somebody clears away what dead processes left.
//!
//! One process at a time sweeps, and no one waits for it. What was being written, and whose flight it was, is known by locks; so nothing is left
//! behind, and nothing is taken from a process that lives, however slow it is.

use std::io;
use std::time::SystemTime;

use super::dirs::Dirs;
use super::files::Files;
use super::{DiskCache, flight, marks};
use crate::name::Name;
use crate::sync::Ordering;

/// A sweep is due once this share of the most bytes was stored, in its inverse.
const SHARE: u64 = 16;

/// What remains of the most bytes after an eviction, in percent, so that the next store does not need another.
const LEFT: u64 = 90;

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
        self.try_sweep(max_bytes).unwrap_or_else(|error| {
            self.trouble("sweep", &error);
            None
        })
    }

    fn try_sweep(&self, max_bytes: u64) -> io::Result<Option<Swept>> {
        let dirs = self.dirs();
        // No entry has that name.
        let Some(_only) = flight::take(&self.files, &dirs, "sweep".to_owned())? else { return Ok(None) };
        self.counters.unswept.store(0, Ordering::Relaxed);
        let mut swept = Swept { orphans: self.take_orphans(&dirs)?, ..Swept::default() };
        self.end_quarantines(&dirs)?;
        let mut entries = self.aged(&dirs)?;
        entries.sort_by_key(|entry| entry.used);
        let now = SystemTime::now();
        let mut left: u64 = entries.iter().map(|entry| entry.size).sum();
        let goal = if left > max_bytes { max_bytes / 100 * LEFT } else { max_bytes };
        for entry in &entries {
            let is_old = now.duration_since(entry.used).is_ok_and(|age| age > self.config.max_age);
            let takes = is_old || left > goal;
            if !takes || flight::is_held(&*self.files, &dirs, &entry.name)? {
                swept.entries += 1;
                continue;
            }
            match self.files.unlink(&dirs.entries, &entry.name) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            if let Some(name) = Name::parse(&entry.name) {
                self.known.lock().remove(&name);
            }
            left -= entry.size;
            if is_old {
                swept.expired += 1;
            } else {
                swept.evicted += 1;
            }
        }
        swept.bytes = left;
        self.counters.evictions.fetch_add((swept.expired + swept.evicted) as u64, Ordering::Relaxed);
        Ok(Some(swept))
    }

    fn take_orphans(&self, dirs: &Dirs) -> io::Result<usize> {
        let files: &dyn Files = &*self.files;
        let mut taken = 0;
        for (dir, leaves) in [(&dirs.temp, false), (&dirs.flights, true)] {
            for name in files.list(dir)? {
                if leaves && name == "sweep" {
                    continue;
                }
                let file = match files.open(dir, &name) {
                    Ok(file) => file,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                if files.try_lock(&file)? {
                    // Under the lock: who takes a lock and finds that the file has no name any more takes another.
                    files.unlink(dir, &name)?;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    fn end_quarantines(&self, dirs: &Dirs) -> io::Result<()> {
        let now = SystemTime::now();
        let long_over = |quarantine: &marks::Quarantine| {
            // It is remembered for a while that there was one: the next is longer.
            quarantine.is_over(now)
                && now.duration_since(quarantine.until).is_ok_and(|past| past > self.config.max_age)
        };
        for name in self.files.list(&dirs.quarantine)? {
            let quarantine = marks::read_quarantine(&*self.files, dirs, &name)?;
            if quarantine.as_ref().is_none_or(long_over) {
                self.files.unlink(&dirs.quarantine, &name)?;
            }
        }
        Ok(())
    }

    /// The entries with when they were used; what is from the future counts as used now.
    fn aged(&self, dirs: &Dirs) -> io::Result<Vec<Aged>> {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for name in self.files.list(&dirs.entries)? {
            match self.files.stat_at(&dirs.entries, &name) {
                Ok(stat) => entries.push(Aged { name, used: stat.modified.min(now), size: stat.size }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }
}
