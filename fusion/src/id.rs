//! Ids and call sites of recorded ops.

use std::fmt;
use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::Arc;

use crate::printable::InLine;

/// Identity of a value within one process. It is never reused, so an id in a log names one value
/// for ever.
///
/// The engine packs a storage index and a generation into it. To all other code it is opaque.
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

/// The call site of an op. It is never part of a key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Site {
    /// Unknown.
    #[default]
    Unknown,
    /// A Rust call, from `#[track_caller]`.
    Rust(&'static Location<'static>),
    /// A location in the embedder's own language, as it should be printed (`model.py:40`).
    Host(Arc<str>),
    /// A location whose text lives as long as the process. Copying it needs no reference count,
    /// which threads would contend for.
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
