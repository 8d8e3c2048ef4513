//! Events and counters of a shared cache.

use std::fmt;
use std::time::Duration;

use super::trouble::{SharedDamage, Trouble};
use crate::name::Name;
use crate::sync::{AtomicU64, Ordering};

/// An event of a shared cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedEvent {
    /// Reads failed several times in a row, or the probe did: reads are paused.
    Offline {
        /// The last problem.
        why: Trouble,
        /// When reads are tried again.
        retry_in: Duration,
    },
    /// The store answers reads again.
    Online {
        /// How long reads were paused.
        after: Duration,
    },
    /// Writes failed several times in a row, or the probe did: writes are paused. Reads continue.
    WritesPaused {
        /// The last problem.
        why: Trouble,
        /// When writes are tried again.
        retry_in: Duration,
    },
    /// The store accepts writes again.
    WritesResumed {
        /// How long writes were paused.
        after: Duration,
    },
    /// The object is not a valid entry. It was a miss.
    Damaged {
        /// The entry.
        name: Name,
        /// The damage.
        why: SharedDamage,
    },
    /// A good entry has overwritten a damaged one.
    Healed {
        /// The entry.
        name: Name,
    },
    /// Several entries in a row were sealed with another key, so this process probably has the
    /// wrong one. None of them is overwritten until an entry with this key is read.
    OtherKey,
    /// The store never accepted the entry, and writing it is not tried again.
    NotWritten {
        /// The entry.
        name: Name,
        /// The last problem.
        why: Trouble,
    },
    /// Newer entries displaced some from the write queue. Reported once, until the queue was empty.
    QueueFull,
}

impl fmt::Display for SharedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedEvent::Offline { why, retry_in } => write!(
                f,
                "the shared cache is not used: {why}; everything is compiled locally, and the \
                 cache is tried again in {retry_in:.1?}"
            ),
            SharedEvent::Online { after } => write!(f, "the shared cache is used again, after {after:.1?}"),
            SharedEvent::WritesPaused { why, retry_in } => {
                write!(f, "nothing is written to the shared cache: {why}; writing is tried again in {retry_in:.1?}")
            }
            SharedEvent::WritesResumed { after } => {
                write!(f, "the shared cache is written to again, after {after:.1?}")
            }
            SharedEvent::Damaged { name, why } => {
                write!(f, "entry {name:?} of the shared cache was not used: {why}")
            }
            SharedEvent::Healed { name } => {
                write!(f, "entry {name:?} of the shared cache was damaged and is written again")
            }
            SharedEvent::OtherKey => f.write_str(
                "the entries of the shared cache are sealed with another key: use the same key on \
                 every machine of the fleet, or a separate prefix for this machine",
            ),
            SharedEvent::NotWritten { name, why } => {
                write!(f, "entry {name:?} could not be written to the shared cache: {why}")
            }
            SharedEvent::QueueFull => f.write_str(
                "the shared cache does not accept entries as fast as they are compiled: the oldest are not shared",
            ),
        }
    }
}

/// Counters since the cache was opened, and its current state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// Reads that found an entry. Fetches that joined a read only count in `joined`.
    pub hits: u64,
    /// Reads that found none, and fetches that were answered from memory.
    pub misses: u64,
    /// Misses that were remembered, so that no request was sent.
    pub misses_remembered: u64,
    /// Fetches that joined a read in flight.
    pub joined: u64,
    /// Objects that were not valid entries.
    pub damaged: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Fetches that were answered at once because reads are paused.
    pub offline_answers: u64,
    /// Fetches that were answered at once because too many were waiting.
    pub busy_answers: u64,
    /// Reads that were cancelled because nobody waited for them.
    pub cancelled: u64,
    /// How often reads were paused.
    pub went_offline: u64,
    /// Total time of such pauses.
    pub offline_for: Duration,
    /// Whether reads are paused.
    pub is_offline: bool,
    /// Whether writes are paused.
    pub writes_paused: bool,
    /// Bytes of objects received.
    pub bytes_down: u64,
    /// Bytes of entries written.
    pub bytes_up: u64,
    /// Entries written, including healed ones.
    pub written: u64,
    /// Entries that existed already.
    pub already_there: u64,
    /// Damaged entries that were overwritten.
    pub healed: u64,
    /// Failed write attempts.
    pub write_errors: u64,
    /// Entries that were given up after several attempts.
    pub not_written: u64,
    /// Entries that newer ones displaced, or that were too large for the queue.
    pub dropped: u64,
    /// Entries in the write queue.
    pub queued: u64,
    /// Bytes in the write queue.
    pub queued_bytes: u64,
    /// Total time of the reads that found an entry, none or a damaged one.
    pub read_time: Duration,
    /// The longest such read.
    pub longest_read: Duration,
    /// Total time of successful writes.
    pub write_time: Duration,
    /// The longest such write.
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

/// Total and maximum of durations.
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

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds `more`.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

pub(crate) fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

impl Counters {
    /// The counters; the caller fills in the current state.
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
