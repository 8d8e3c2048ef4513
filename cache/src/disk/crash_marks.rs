//! Crash marks: what a process is about to try for the first time, so that the next process can
//! tell what crashed it.
//!
//! A plugin that crashes takes the process down, and the next process would crash at the same
//! point. So before a process compiles, loads or runs an artifact for the first time, it writes two
//! names into a slot of its *marks*, a file that is locked while the process lives. Afterwards it
//! clears the slot. The first name is the *suspect*, which a crash is attributed to. The second is
//! the entry that is tried; a suspect may have several. Each of the two writes is 72 bytes to the
//! page cache, a few µs. A signal handler for crashes writes a byte, [`CRASHED`] (not in this
//! crate, which has no unsafe code). The next process finds marks without a lock. The suspects of a
//! process that crashed go into *quarantine*: they are not tried again for a time, so each costs
//! one process and not every one. Their entries are removed and made again after that time, in case
//! they were the cause. A process that was killed, was interrupted or exited proves nothing about
//! its marks: an entry holds exactly what the plugin produced, and deadlines handle an entry that
//! hangs.
//!
//! Invariants:
//! - DISK-4: while a [`Mark`] lives, its name is in the file. So the names of a crash are found,
//!   and perhaps a few others that were in progress.
//! - DISK-5: what is in quarantine ends no process before its time is over. Each further crash
//!   makes the time eight times as long.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dirs::Dirs;
use super::files::Files;
use super::{flight, random_name, write_all};
use crate::name::Name;
use crate::sync::Mutex;

/// Written to the first byte (offset 0) of a process's marks when it crashes.
pub const CRASHED: &[u8; 1] = b"!";

/// The first and the longest duration of a quarantine.
const FIRST_TERM: Duration = Duration::from_secs(24 * 3600);
const LAST_TERM: Duration = Duration::from_secs(64 * 24 * 3600);

/// Bytes of a slot: a stage, padding, and two names.
const SLOT: usize = 72;
/// Offset of the first slot, after the crash byte and padding.
const SLOTS_AT: u64 = 40;
/// Maximum number of slots; further attempts are not marked. Far fewer compiles and first
/// executions are in progress at once.
const MAX_SLOTS: u32 = 512;

/// What is tried, in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Compiling an artifact.
    Make,
    /// Loading an artifact.
    Load,
    /// Its first execution.
    Run,
}

impl Stage {
    const ALL: [(Stage, u8, &str); 3] =
        [(Stage::Make, b'm', "compile"), (Stage::Load, b'l', "load"), (Stage::Run, b'r', "first run")];

    fn code(self) -> u8 {
        Stage::ALL.into_iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }

    fn of(code: u8) -> Option<Stage> {
        Stage::ALL.into_iter().find(|row| row.1 == code).map(|row| row.0)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Stage::ALL.into_iter().find(|row| row.0 == *self).map_or("", |row| row.2))
    }
}

/// Why something is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The stage that crashed the latest process.
    pub stage: Stage,
    /// The number of processes that it crashed.
    pub deaths: u32,
    /// When it may be tried again.
    pub until: SystemTime,
}

impl fmt::Display for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.until.duration_since(SystemTime::now()).unwrap_or_default();
        let hours = left.as_secs().div_ceil(3600);
        let times = if self.deaths == 1 { "a process" } else { "several processes" };
        write!(f, "its {} crashed {times}; it is not tried again for {hours} h", self.stage)
    }
}

impl Quarantine {
    /// The quarantine after one more crash.
    pub(super) fn after(before: Option<Quarantine>, stage: Stage, now: SystemTime) -> Quarantine {
        let deaths = before.map_or(0, |before| before.deaths).saturating_add(1);
        let term = FIRST_TERM.saturating_mul(8u32.saturating_pow(deaths - 1)).min(LAST_TERM);
        Quarantine { stage, deaths, until: now + term }
    }

    fn write(&self) -> String {
        let until = self.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        format!("{} {} {until}\n", char::from(self.stage.code()), self.deaths)
    }

    fn read(text: &str) -> Option<Quarantine> {
        let mut words = text.split_ascii_whitespace();
        let [stage] = *words.next()?.as_bytes() else { return None };
        let (stage, deaths) = (Stage::of(stage)?, words.next()?.parse().ok()?);
        let until = UNIX_EPOCH.checked_add(Duration::from_secs(words.next()?.parse().ok()?))?;
        words.next().is_none().then_some(Quarantine { stage, deaths, until })
    }

    /// Whether it has expired. A remaining time above the maximum means that a clock was wrong.
    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        self.until.duration_since(now).is_ok_and(|left| left > LAST_TERM) || self.until <= now
    }
}

/// The marks file of this process.
#[derive(Debug)]
pub(super) struct Marks {
    files: Arc<dyn Files>,
    dirs: Arc<Dirs>,
    name: String,
    file: Arc<OwnedFd>,
    process: u32,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    used: u32,
}

/// A slot in the marks of this process. Dropping it clears the slot.
#[derive(Debug)]
pub struct Mark {
    marks: Arc<Marks>,
    slot: u32,
}

impl Marks {
    pub(super) fn open(files: &Arc<dyn Files>, dirs: &Arc<Dirs>) -> io::Result<Marks> {
        for _ in 0..10 {
            let name = random_name()?;
            let file = files.create(&dirs.marks, &name)?;
            // Another process may have taken the file for one of a dead process before it was
            // locked.
            let is_locked =
                files.try_lock(&file).and_then(|locked| Ok(locked && files.stat(&file)?.links > 0));
            match is_locked {
                Ok(true) => {
                    let (files, dirs, process) = (files.clone(), dirs.clone(), files.process());
                    let (file, slots) = (Arc::new(file), Mutex::new(Slots::default()));
                    return Ok(Marks { files, dirs, name, file, process, slots });
                }
                Ok(false) => {}
                Err(error) => {
                    // Without working locks, no other process could remove it.
                    drop(files.unlink(&dirs.marks, &name));
                    return Err(error);
                }
            }
        }
        Err(io::Error::from(io::ErrorKind::WouldBlock))
    }

    /// The file, for a signal handler.
    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Marks an attempt. `None` if there is no free slot.
    pub(super) fn mark(
        self: &Arc<Self>,
        stage: Stage,
        suspect: &Name,
        entry: &Name,
    ) -> io::Result<Option<Mark>> {
        let slot = {
            let mut slots = self.slots.lock();
            match slots.free.pop() {
                Some(slot) => slot,
                None if slots.used < MAX_SLOTS => {
                    slots.used += 1;
                    slots.used - 1
                }
                None => return Ok(None),
            }
        };
        let mark = Mark { marks: self.clone(), slot };
        mark.write(stage.code(), [suspect.as_bytes(), entry.as_bytes()])?;
        Ok(Some(mark))
    }
}

impl Mark {
    fn write(&self, stage: u8, [suspect, entry]: [&[u8; 32]; 2]) -> io::Result<()> {
        let mut bytes = [0; SLOT];
        bytes[0] = stage;
        bytes[8..40].copy_from_slice(suspect);
        bytes[40..].copy_from_slice(entry);
        let offset = SLOTS_AT + u64::from(self.slot) * SLOT as u64;
        self.marks.files.write_at(&self.marks.file, &bytes, offset)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A slot that cannot be cleared would be blamed for a later crash, so it is not reused.
        if self.write(0, [&[0; 32]; 2]).is_ok() {
            self.marks.slots.lock().free.push(self.slot);
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        if self.files.process() == self.process {
            drop(self.files.unlink(&self.dirs.marks, &self.name));
        }
    }
}

/// What a dead process was about to try.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeadProcess {
    pub(super) crashed: bool,
    pub(super) tried: Vec<Attempt>,
}

/// A suspect, the last stage that it reached, and its entries that were tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) stage: Stage,
    pub(super) suspect: Name,
    pub(super) entries: Vec<Name>,
}

impl DeadProcess {
    fn read(bytes: &[u8]) -> DeadProcess {
        let slots = bytes.get(SLOTS_AT as usize..).unwrap_or_default();
        let slot = |slot: &[u8; SLOT]| {
            let entry = Name::new(*slot.last_chunk()?);
            let suspect = Name::new(*slot[8..].first_chunk()?);
            Some((Stage::of(slot[0])?, suspect, entry))
        };
        let mut tried: Vec<Attempt> = Vec::new();
        for (stage, suspect, entry) in slots.as_chunks().0.iter().filter_map(slot) {
            match tried.iter_mut().find(|known| known.suspect == suspect) {
                // It was one crash, at the latest stage.
                Some(known) => {
                    known.stage = known.stage.max(stage);
                    known.entries.push(entry);
                }
                None => tried.push(Attempt { stage, suspect, entries: vec![entry] }),
            }
        }
        DeadProcess { crashed: bytes.first() == CRASHED.first(), tried }
    }

    /// The marks with this name, if their process is dead, and the file, whose lock keeps other
    /// processes from judging it too.
    pub(super) fn take(
        files: &dyn Files,
        dirs: &Dirs,
        name: &str,
    ) -> io::Result<Option<(OwnedFd, DeadProcess)>> {
        let Some(file) = flight::take_abandoned(files, &dirs.marks, name)? else { return Ok(None) };
        let most = SLOTS_AT as usize + MAX_SLOTS as usize * SLOT;
        let dead = DeadProcess::read(&read_up_to(files, &file, most)?);
        Ok(Some((file, dead)))
    }
}

/// The beginning of a file, at most `most` bytes.
pub(super) fn read_up_to(files: &dyn Files, file: &OwnedFd, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_on(files, file, &mut bytes, most)?;
    Ok(bytes)
}

/// Continues reading until there are `most` bytes, or the file ends.
pub(super) fn read_on(files: &dyn Files, file: &OwnedFd, bytes: &mut Vec<u8>, most: usize) -> io::Result<()> {
    let mut len = bytes.len();
    // One allocation of zeroed memory; growing in steps would write it several times.
    let mut all = vec![0; most.max(len)];
    all[..len].copy_from_slice(bytes);
    while len < most {
        match files.read(file, &mut all[len..])? {
            0 => break,
            more => len += more,
        }
    }
    all.truncate(len);
    *bytes = all;
    Ok(())
}

/// The quarantine under a name; `None` if the file is malformed.
pub(super) fn read_quarantine(files: &dyn Files, dirs: &Dirs, name: &str) -> io::Result<Option<Quarantine>> {
    let file = files.open(&dirs.quarantine, name)?;
    let bytes = read_up_to(files, &file, 64)?;
    Ok(std::str::from_utf8(&bytes).ok().and_then(Quarantine::read))
}

/// Puts a name into quarantine.
pub(super) fn write_quarantine(
    files: &dyn Files,
    dirs: &Dirs,
    name: &Name,
    what: &Quarantine,
) -> io::Result<()> {
    let temp = random_name()?;
    let file = files.create(&dirs.temp, &temp)?;
    // Like an entry: locked, so that no sweep removes it, and renamed only once it is complete.
    drop(files.try_lock(&file));
    let written = write_all(files, &file, what.write().as_bytes())
        .and_then(|()| files.rename((&dirs.temp, &temp), (&dirs.quarantine, &name.to_string())));
    if written.is_err() {
        drop(files.unlink(&dirs.temp, &temp));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarantine_is_read_as_it_was_written() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let mut last = None;
        for (deaths, days) in [(1, 1), (2, 8), (3, 64), (4, 64)] {
            let quarantine = Quarantine::after(last, Stage::Load, now);
            assert_eq!(quarantine.deaths, deaths);
            assert_eq!(quarantine.until, now + Duration::from_secs(days * 24 * 3600));
            assert_eq!(Quarantine::read(&quarantine.write()), Some(quarantine));
            assert!(!quarantine.is_over(now) && quarantine.is_over(quarantine.until));
            // A quarantine that was written while the clock was a year ahead.
            assert!(quarantine.is_over(now - Duration::from_secs(365 * 24 * 3600)));
            last = Some(quarantine);
        }
        for text in ["", "x 1 1", "m 1", "m x 1", "m 1 1 1", "mm 1 1", "m 1 99999999999999999999999"] {
            assert_eq!(Quarantine::read(text), None, "{text}");
        }
    }

    #[test]
    fn marks_that_are_cut_off_are_read_as_far_as_they_go() {
        let mut bytes = vec![0; SLOTS_AT as usize];
        for (stage, entry) in [(b'l', 6), (b'r', 7)] {
            let mut slot = [0; SLOT];
            slot[0] = stage;
            slot[8..40].copy_from_slice(&[5; 32]);
            slot[40..].copy_from_slice(&[entry; 32]);
            bytes.extend(slot);
        }
        let [suspect, load, run] = [5, 6, 7].map(|byte| Name::new([byte; 32]));
        let tried = vec![Attempt { stage: Stage::Run, suspect, entries: vec![load, run] }];
        assert_eq!(DeadProcess::read(&bytes), DeadProcess { crashed: false, tried: tried.clone() });
        bytes.extend([b'm', 1, 2]);
        bytes[0] = CRASHED[0];
        assert_eq!(DeadProcess::read(&bytes), DeadProcess { crashed: true, tried });
        assert_eq!(DeadProcess::read(&[]), DeadProcess { crashed: false, tried: Vec::new() });
    }
}
