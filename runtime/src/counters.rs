//! Counters of an engine.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use fuseline_fusion::Bytes;
use fuseline_sync::StatCounter;
use fuseline_sync::atomic::Ordering;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters.
        #[derive(Debug)]
        pub struct AtomicCounters {
            $(pub(crate) $name: Counter,)*
            pub(crate) compile_nanos: Counter,
            stall_nanos: Counter,
            longest_stall_nanos: Counter,
        }

        impl AtomicCounters {
            pub(crate) fn new() -> AtomicCounters {
                AtomicCounters {
                    $($name: Counter::new(),)*
                    compile_nanos: Counter::new(),
                    stall_nanos: Counter::new(),
                    longest_stall_nanos: Counter::new(),
                }
            }

            /// Counts a recording thread as waiting until the result is dropped.
            #[inline]
            pub(crate) fn stall(&self) -> Stall<'_> {
                Stall { counters: self, since: Instant::now() }
            }

            /// The current values.
            pub fn read(&self) -> Counters {
                let ended = self.compiles.get() + self.loads.get() + self.compile_failures.get();
                Counters {
                    $($name: self.$name.get(),)*
                    compile_time: Duration::from_nanos(self.compile_nanos.get()),
                    stall_time: Duration::from_nanos(self.stall_nanos.get()),
                    longest_stall: Duration::from_nanos(self.longest_stall_nanos.get()),
                    pending_compiles: self.compiles_asked.get().saturating_sub(ended),
                    cached_executables: 0,
                    cached_bytes: Bytes(0),
                    cached_mappings: 0,
                    mappings: 0,
                    live_values: 0,
                    live_bytes: Bytes(0),
                }
            }
        }

        /// What an engine has done since it was created. A snapshot: the counters are read one
        /// after the other while the engine may be running.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Total time of compiles, summed over compile threads.
            pub compile_time: Duration,
            /// Total time that recording threads have waited because too much was recorded ahead,
            /// summed over threads. Waiting for data that the host reads is not counted.
            pub stall_time: Duration,
            /// The longest of these waits since the engine was created.
            pub longest_stall: Duration,
            /// Compiles that were requested and have not ended, including background compiles.
            pub pending_compiles: u64,
            /// Number of regions in the memory cache now.
            pub cached_executables: u64,
            /// Memory that the cache occupies now.
            pub cached_bytes: Bytes,
            /// Estimated number of memory mappings of the executables in the cache now; 0 except on
            /// CPU plugins.
            pub cached_mappings: u64,
            /// Memory mappings of the process when last counted, which happens after some compiles
            /// (`EngineConfig::max_mappings`).
            pub mappings: u64,
            /// Number of values that have data on the device now.
            pub live_values: u64,
            /// Their size on all replicas.
            pub live_bytes: Bytes,
        }

        impl Counters {
            /// Every counter by its name, for foreign interfaces. Times are in nanoseconds, and
            /// their names end in `_ns`.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static CStr, u64)> {
                let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                vec![
                    $((name(concat!(stringify!($name), "\0")), self.$name),)*
                    (c"compile_time_ns", nanos(self.compile_time)),
                    (c"stall_time_ns", nanos(self.stall_time)),
                    (c"longest_stall_ns", nanos(self.longest_stall)),
                    (c"pending_compiles", self.pending_compiles),
                    (c"cached_executables", self.cached_executables),
                    (c"cached_bytes", self.cached_bytes.0),
                    (c"cached_mappings", self.cached_mappings),
                    (c"mappings", self.mappings),
                    (c"live_values", self.live_values),
                    (c"live_bytes", self.live_bytes.0),
                ]
            }

            /// The differences to an earlier snapshot. Values that describe the present are those
            /// of this snapshot.
            #[must_use]
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters {
                    $($name: self.$name - earlier.$name,)*
                    compile_time: self.compile_time - earlier.compile_time,
                    stall_time: self.stall_time - earlier.stall_time,
                    ..*self
                }
            }
        }
    };
}

counters! {
    /// Ops that left the log.
    ops,
    /// Ops among them that were replayed, because the program had recorded the same ops before.
    replayed,
    /// Regions sealed.
    regions,
    /// Regions skipped because nobody used their results.
    skipped,
    /// Regions whose executable was in the memory cache.
    hits,
    /// Regions whose executable was not in the memory cache.
    misses,
    /// Requested compiles, including background compiles.
    compiles_asked,
    /// Successful compiles. Their executables are in use by then.
    compiles,
    /// Executables loaded from a cache outside of the process instead of compiled.
    loads,
    /// Executables stored in such a cache.
    stores,
    /// Compiles that failed.
    compile_failures,
    /// Executions on the device.
    executions,
    /// Executions among them with steady scalars compiled in.
    specialised,
    /// Executions of new regions in the interpreter.
    interpreted,
    /// Values that the host computed when they were read, because they depend only on integers that
    /// it has.
    host_evaluated,
    /// Regions that ran padded, by the executable of a bucket.
    padded,
    /// Regions that fell back to running op by op.
    fallbacks,
    /// Times that memory ran out, in a compile, an execution or a transfer.
    out_of_memory,
    /// Regions that ran in parts, because they would have needed too much memory as a whole, or
    /// because the sizes of some of their ops vary.
    partitioned,
    /// Executables compared with their ops.
    compared,
    /// Executables among them that differ, and are not used.
    different,
    /// Values that failed.
    poisoned,
    /// Donated inputs.
    donations,
    /// Keys whose executables left the memory cache, to make room or because memory ran out.
    evictions,
    /// Values read by the host.
    host_reads,
    /// Bytes moved from the host to the device.
    bytes_up,
    /// Bytes moved from the device to the host.
    bytes_down,
    /// Panics caught in event sinks and callbacks.
    panics,
    /// Threads that were abandoned because they did not return from the plugin
    /// ([`Deadlines`](crate::deadlines::Deadlines)).
    stuck,
    /// Times that a call which records an op had to wait ([`Counters::stall_time`]).
    stalls,
}

/// Converts text that ends with a zero byte.
const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Measures the wait of a recording thread.
#[derive(Debug)]
pub struct Stall<'a> {
    counters: &'a AtomicCounters,
    since: Instant,
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        let took = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counters.stalls.add(1);
        self.counters.stall_nanos.add(took);
        self.counters.longest_stall_nanos.raise(took);
    }
}

/// A statistics counter that any thread may add to and read.
#[derive(Debug)]
pub(crate) struct Counter(StatCounter);

impl Counter {
    pub(crate) fn new() -> Counter {
        Counter(StatCounter::new(0))
    }

    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Raises the counter to at least `to`.
    pub(crate) fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
