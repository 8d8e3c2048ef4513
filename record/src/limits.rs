//! Hard limits of the recorder, with units and reasons.

/// Traces that may be in the log of a stream, each a region: as many as may be in flight by
/// default. Beyond that the recording thread waits.
pub const MAX_TRACES: usize = 32;

/// Entries that threads may leave with the one that holds the trace of a stream, about 200 bytes
/// each; then they wait. Few under shuttle, so that a small scenario gets there.
pub(crate) const MAX_DEFERRED: u32 = if cfg!(shuttle) { 2 } else { 1_024 };

/// Values that are released while a trace is under way that they are not on, at most: they are
/// kept until it ends.
pub(crate) const MAX_OTHERS: usize = 4_096;
