//! Ids and call sites that records carry.

use std::fmt;
use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::Arc;

use crate::printable::InLine;

/// Identity of a value within one process: never reused, so a log line names one value for ever.
///
/// The engine packs a storage index and a generation into it; to everybody else it is opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(NonZeroU64);

impl ValueId {
    /// Wraps a raw id; `None` for zero.
    #[inline]
    #[must_use]
    pub fn from_raw(raw: u64) -> Option<ValueId> {
        NonZeroU64::new(raw).map(ValueId)
    }

    /// The raw id, for a foreign interface or a log.
    #[inline]
    #[must_use]
    pub fn to_raw(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{:x}", self.0)
    }
}

impl fmt::Debug for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Identity of a stream within one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Number of a region within its stream, counted from 0 in the order of sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionSeq(pub u64);

impl fmt::Display for RegionSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Where an op was recorded. Never part of a key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Site {
    /// Not known.
    #[default]
    Unknown,
    /// A Rust call, from `#[track_caller]`.
    Rust(&'static Location<'static>),
    /// A place in the embedder's own language, as it wants it printed (`model.py:40`).
    Host(Arc<str>),
    /// The same, of a text that lives as long as the process. Copying it counts no references, for
    /// which threads would wait for one another.
    Static(&'static str),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Unknown => f.write_str("an unknown place"),
            Site::Rust(location) => write!(f, "{}:{}", location.file(), location.line()),
            Site::Host(place) => InLine(place).fmt(f),
            Site::Static(place) => InLine(place).fmt(f),
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
