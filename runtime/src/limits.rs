//! Hard limits of the engine, with units and reasons. Those of ops and shapes are in
//! [`fuseline_fusion::limits`].

use fuseline_fusion::Bytes;

/// Number of log entries between two hints to the driver that there is work. It is what about 500
/// ops leave in the log, with a record and a release per op. The end of a region is rarely known
/// sooner, and waking a thread costs the recording thread 5 to 50 µs on a virtual machine.
pub(crate) const ENTRIES_PER_HINT: u64 = 1_024;

/// Maximum number of regions of a stream that are sealed but not launched, because they are being
/// compiled or too much is in flight. Beyond that the driver stops reading the log, and in the end
/// the recording thread waits.
pub(crate) const MAX_QUEUED_REGIONS: usize = 64;

/// Size from which dropping the last handle of a value wakes the driver.
pub(crate) const LARGE_RELEASE: Bytes = Bytes(1 << 20);

/// Maximum number of remembered keys, by which known regions are told from new ones. They take 40
/// bytes each, and are more than the cache holds by default.
pub(crate) const MAX_KNOWN_KEYS: usize = 16_384;

/// Maximum number of sequences of ops whose latest region is remembered, to explain how another one
/// differs.
pub(crate) const MAX_KNOWN_REGIONS: usize = 1_024;

/// Maximum number of differences reported for one miss.
pub(crate) const MAX_TOLD_DIFFERENCES: usize = 4;

/// Maximum number of ops that event sinks may record on an engine beyond the number of the
/// program's ops. A sink that records ops for each event would otherwise never end.
pub(crate) const MAX_SINK_OPS: u64 = 4_096;

/// Maximum number of failures kept for `embed::Session::take_failures`. Older ones are
/// forgotten.
pub(crate) const MAX_KEPT_FAILURES: usize = 64;

/// Maximum number of threads of an engine that make plugin calls with a deadline. Further calls
/// wait for these threads.
pub(crate) const MAX_PLUGIN_CALLS: usize = 32;

/// Maximum number of results for which it is remembered whether the host can evaluate them.
pub(crate) const MAX_HOST_EVAL_RESULTS: usize = 1_024;

/// Maximum number of regions remembered as interpreted and not yet compiled.
pub(crate) const MAX_INTERPRETED_REGIONS: usize = 4_096;

/// Maximum number of padded regions, each for all sizes of its bucket.
pub(crate) const MAX_BUCKETS: usize = 256;

/// Inverse of the part by which a region as a whole may need more memory than its ops one by one: a
/// quarter. More counts only if it also exceeds the slack of the configuration.
pub(crate) const MAX_MORE_SHARE: u64 = 4;

/// Inverse of the part of a region's memory that a half has to save to be worth another cut: a
/// quarter. Where XLA's scratch belongs to a few ops, no cut helps (the benchmark's `stencil` needs
/// 1.5 times what its ops hold, whether it has 120 ops or 12).
pub(crate) const MIN_SAVED_SHARE: u64 = 4;

/// Default of `EngineConfig::memory_slack`. Of the measured programs, a region needs at
/// most 14 MiB more as a whole, at up to 3.7 times what its ops hold (`lstm`, docs/memory.md).
/// Running it in halves that need less costs more compiles than memory of that size is worth.
pub(crate) const MEMORY_SLACK: Bytes = Bytes(16 << 20);
