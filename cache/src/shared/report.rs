//! What a shared cache tells: events as they happen, and counts.

use std::fmt;
use std::time::Duration;

use super::trouble::{SharedDamage, Trouble};
use crate::name::Name;
use crate::sync::{AtomicU64, Ordering};

/// Something that somebody may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedEvent {
    /// Reads failed several times in a row, or the probe did: for a while, nothing is read.
    Offline {
        /// What went wrong the last time.
        why: Trouble,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// The store answers reads again.
    Online {
        /// How long it did not.
        after: Duration,
    },
    /// Writes failed several times in a row, or the probe did: for a while, nothing is written.
    /// Reads go on.
    WritesPaused {
        /// What went wrong the last time.
        why: Trouble,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// The store takes writes again.
    WritesResumed {
        /// How long it did not.
        after: Duration,
    },
    /// What the store gave is no good entry. It was a miss.
    Damaged {
        /// The entry.
        name: Name,
        /// What is wrong with it.
        why: SharedDamage,
    },
    /// A good entry was written over one that was damaged.
    Healed {
        /// The entry.
        name: Name,
    },
    /// Several entries in a row were sealed with another key: it is likely that this process has
    /// the wrong one. Until one is read that was not, none of them is written over.
    OtherKey,
    /// The store never took the entry, and will not be asked again.
    NotWritten {
        /// The entry.
        name: Name,
        /// What went wrong the last time.
        why: Trouble,
    },
    /// Entries that were to be written gave way to newer ones. Told once, until the queue has been
    /// empty.
    QueueFull,
}

impl fmt::Display for SharedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedEvent::Offline { why, retry_in } => write!(
                f,
                "the shared cache is not used: {why}; everything is compiled here, and it is tried again in {retry_in:.1?}"
            ),
            SharedEvent::Online { after } => write!(f, "the shared cache is used again, after {after:.1?}"),
            SharedEvent::WritesPaused { why, retry_in } => {
                write!(f, "nothing is written to the shared cache: {why}; it is tried again in {retry_in:.1?}")
            }
            SharedEvent::WritesResumed { after } => {
                write!(f, "the shared cache is written to again, after {after:.1?}")
            }
            SharedEvent::Damaged { name, why } => {
                write!(f, "entry {name:?} of the shared cache was not used: {why}")
            }
            SharedEvent::Healed { name } => {
                write!(f, "entry {name:?} of the shared cache was damaged and is written anew")
            }
            SharedEvent::OtherKey => f.write_str(
                "the entries of the shared cache are written with another key: give every machine of the fleet the same one, or \
                 this one a prefix of its own",
            ),
            SharedEvent::NotWritten { name, why } => {
                write!(f, "entry {name:?} could not be written to the shared cache: {why}")
            }
            SharedEvent::QueueFull => f.write_str(
                "the shared cache does not take entries as fast as they are made: the oldest are not shared",
            ),
        }
    }
}

/// Counts since the cache was opened, and what is the case now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// Reads that ended with an entry. Fetches that joined one are in `joined` alone.
    pub hits: u64,
    /// Reads that found none, and fetches that were answered from memory.
    pub misses: u64,
    /// Misses that were remembered, so that nothing was asked.
    pub misses_remembered: u64,
    /// Fetches that joined one that was under way.
    pub joined: u64,
    /// Objects that were no good entry.
    pub damaged: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Fetches that were answered at once because the store is left alone.
    pub offline_answers: u64,
    /// Fetches that were answered at once because too many were waiting.
    pub busy_answers: u64,
    /// Reads that nobody waited for any more and that were given up.
    pub cancelled: u64,
    /// How often it went offline.
    pub went_offline: u64,
    /// How long it was offline, in all.
    pub offline_for: Duration,
    /// Whether it is.
    pub is_offline: bool,
    /// Whether writes are paused.
    pub writes_paused: bool,
    /// Bytes of objects that came.
    pub bytes_down: u64,
    /// Bytes of entries that were written.
    pub bytes_up: u64,
    /// Entries that were written, the healed ones included.
    pub written: u64,
    /// Entries that were already there.
    pub already_there: u64,
    /// Damaged entries that were written over.
    pub healed: u64,
    /// Writes that failed, each attempt.
    pub write_errors: u64,
    /// Entries that were given up after several attempts.
    pub not_written: u64,
    /// Entries that gave way to newer ones, or were too large for the queue.
    pub dropped: u64,
    /// Entries that wait to be written.
    pub queued: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// How long the reads took that ended with an entry, without one or with a damaged one, in all.
    pub read_time: Duration,
    /// The longest of them.
    pub longest_read: Duration,
    /// How long the writes took that the store took, in all.
    pub write_time: Duration,
    /// The longest of them.
    pub longest_write: Duration,
}

/// The counters behind [`SharedStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) misses_remembered: AtomicU64,
    pub(crate) joined: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) offline_answers: AtomicU64,
    pub(crate) busy_answers: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) went_offline: AtomicU64,
    pub(crate) offline_micros: AtomicU64,
    pub(crate) bytes_down: AtomicU64,
    pub(crate) bytes_up: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) already_there: AtomicU64,
    pub(crate) healed: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) not_written: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) reads: Times,
    pub(crate) writes: Times,
}

/// Durations: their sum and the longest.
#[derive(Debug, Default)]
pub(crate) struct Times {
    micros: AtomicU64,
    longest: AtomicU64,
}

impl Times {
    pub(crate) fn add(&self, took: Duration) {
        let micros = micros(took);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// So many more.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

pub(crate) fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

impl Counters {
    /// The counts; what is the case now is left for the caller to fill in.
    pub(crate) fn read(&self) -> SharedStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_micros(get(counter));
        SharedStats {
            hits: get(&self.hits),
            misses: get(&self.misses),
            misses_remembered: get(&self.misses_remembered),
            joined: get(&self.joined),
            damaged: get(&self.damaged),
            read_errors: get(&self.read_errors),
            offline_answers: get(&self.offline_answers),
            busy_answers: get(&self.busy_answers),
            cancelled: get(&self.cancelled),
            went_offline: get(&self.went_offline),
            offline_for: time(&self.offline_micros),
            bytes_down: get(&self.bytes_down),
            bytes_up: get(&self.bytes_up),
            written: get(&self.written),
            already_there: get(&self.already_there),
            healed: get(&self.healed),
            write_errors: get(&self.write_errors),
            not_written: get(&self.not_written),
            dropped: get(&self.dropped),
            read_time: time(&self.reads.micros),
            longest_read: time(&self.reads.longest),
            write_time: time(&self.writes.micros),
            longest_write: time(&self.writes.longest),
            ..SharedStats::default()
        }
    }
}
