//! Hard limits of the recorder, with units and reasons.

/// Number of traces that may be in the log of a stream. Each is a region, so this equals the
/// default limit of regions in flight. Beyond it the recording thread waits.
pub const MAX_TRACES: usize = 32;

/// Number of entries, about 200 bytes each, that threads may defer to the holder of a stream's
/// combining lock. Beyond it they wait. The limit is small under shuttle, so that small scenarios
/// reach it.
pub(crate) const MAX_DEFERRED: u32 = if cfg!(shuttle) { 2 } else { 1_024 };

/// Number of released values that an open trace keeps until it ends although they are not part of
/// it.
pub(crate) const MAX_OTHERS: usize = 4_096;
