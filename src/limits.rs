//! Hard limits of the engine, with units and reasons. Those of ops and shapes are in
//! [`fuseline_fusion::limits`].

use fuseline_fusion::Bytes;

/// Log entries between two hints to the driver that there is work: what about 500 ops leave in the
/// log, a record and a release per op. Where a region ends is hardly ever known sooner, and waking
/// a thread costs the recording one 5 to 50 µs on a virtual machine.
pub(crate) const ENTRIES_PER_HINT: u64 = 1_024;

/// Regions that a stream may have sealed but not launched, because they are being compiled or too
/// much is in flight. The driver stops reading the log beyond that, which in the end lets the
/// recording thread wait.
pub(crate) const MAX_QUEUED_REGIONS: usize = 64;

/// A value of so many bytes whose last handle is dropped is worth waking the driver for.
pub(crate) const LARGE_RELEASE: Bytes = Bytes(1 << 20);

/// Keys remembered for telling regions that come back from new ones: 40 bytes each, more than the
/// cache has room for by default.
pub(crate) const MAX_KNOWN_KEYS: usize = 16_384;

/// Sequences of ops of which the latest region is remembered, for saying in what another one of
/// them differs.
pub(crate) const MAX_KNOWN_REGIONS: usize = 1_024;

/// Differences told of one miss.
pub(crate) const MAX_TOLD_DIFFERENCES: usize = 4;

/// Ops that event sinks may have recorded on an engine beyond as many as its program has: a sink
/// that records for each event of what it has recorded would never come to an end.
pub(crate) const MAX_SINK_OPS: u64 = 4_096;

/// Failures kept for whoever asks the engine for them; older ones are forgotten.
pub(crate) const MAX_KEPT_FAILURES: usize = 64;

/// Threads of an engine that make calls which somebody waits for with a deadline; further ones wait
/// for these.
pub(crate) const MAX_ASIDE: usize = 32;

/// Results of regions remembered as ones that the host computes when they are read, or does not.
pub(crate) const MAX_FOREGONE_RESULTS: usize = 1_024;

/// Regions remembered as interpreted and not yet compiled.
pub(crate) const MAX_COLD_REGIONS: usize = 4_096;

/// Padded regions remembered, each for all sizes of its bucket.
pub(crate) const MAX_BUCKETS: usize = 256;

/// How much more memory than its ops one by one a region may need as a whole: the quarter of that,
/// if it is more than the slack of the configuration.
pub(crate) const MAX_MORE_SHARE: u64 = 4;

/// What a half of a region has to save of the whole's memory to be worth another cut: a quarter.
/// Where XLA's scratch is that of a few ops, and not of many, no cut helps (the benchmark's
/// `stencil` needs 1.5 times what its ops hold, whether it has 120 ops or 12).
pub(crate) const MIN_SAVED_SHARE: u64 = 4;

/// Default of [`crate::EngineConfig::memory_slack`]. Of the measured programs a region needs at
/// most 14 MiB more as a whole, at up to 3.7 times what its ops hold (`lstm`, docs/memory.md), and
/// running it in halves that need less costs more compiles than memory of that size is worth.
pub(crate) const MEMORY_SLACK: Bytes = Bytes(16 << 20);
