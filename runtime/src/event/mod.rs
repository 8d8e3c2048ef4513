//! Events: what the engine reports about itself.
//!
//! Every boundary, miss, compile, fallback and failure is an [`Event`] with its reason. The
//! configuration sets a sink for them. Tests compare logs of events, the command-line tool prints
//! them, and the `tracing` feature forwards them. Without a sink an event costs one branch.

mod parts;
mod sink;
mod telemetry;

use std::fmt;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::lower::Module;
use fuseline_fusion::region::{Boundary, Mode};
use fuseline_fusion::{Bytes, Printable, Scalar, Site, StreamId};

pub use parts::{
    Asked, CacheTier, Change, LeakSite, Miss, OpsDiffer, QualificationStatus, Remedy, SealedRegion, Varies,
    Varying,
};
pub use sink::EventSink;
pub use sink::Events;
#[cfg(feature = "tracing")]
pub use sink::TracingSink;
pub(crate) use sink::{is_counted, is_telling};
pub(crate) use telemetry::Telemetry;

use crate::device::{CompilerFlag, MemoryPlan};
use crate::error::{Stage, Took};
use crate::region::{RegionRef, Wait};

/// Something that happened in the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The end of a region was decided.
    Sealed {
        /// The region.
        region: RegionRef,
        /// Why it ends there.
        boundary: Boundary,
        /// The mode of its ops.
        mode: Mode,
        /// Number of tensors that it reads.
        inputs: usize,
        /// Number of lifted scalars that it reads.
        scalars: usize,
        /// Number of its results that are needed later.
        outputs: usize,
        /// Call site of the read that ended the region, if a read did.
        asked: Option<Site>,
        /// The contents of the region.
        contents: SealedRegion,
    },
    /// A region without needed results and effects was skipped.
    Skipped {
        /// The region.
        region: RegionRef,
    },
    /// The memory cache had an executable.
    Hit {
        /// The region.
        region: RegionRef,
        /// Number of results that the executable returns and nobody needs.
        surplus: usize,
    },
    /// The memory cache had no executable.
    Miss {
        /// The region.
        region: RegionRef,
        /// The reason.
        why: Miss,
    },
    /// The same ops were missed again and again, each time with a difference. Reported once for a
    /// sequence of ops.
    RecompileStorm {
        /// The latest region of these ops.
        region: RegionRef,
        /// Number of misses.
        misses: u32,
        /// What changed in most of them. Empty if nothing changed repeatedly.
        varying: Vec<Varying>,
    },
    /// A region was lowered for the compiler, once for each of its compiles. On the reference
    /// device, which has no compiler, this is what a compiler would get.
    Lowered {
        /// The region.
        region: RegionRef,
        /// Numbers of the results that the module returns, ascending. There may be more than this
        /// execution needs.
        outputs: Vec<u32>,
        /// The module.
        module: Module,
    },
    /// A compile started on a compile thread.
    CompileStarted {
        /// The region.
        region: RegionRef,
    },
    /// A compile succeeded.
    CompileFinished {
        /// The region.
        region: RegionRef,
        /// Time of the compile.
        took: Duration,
        /// Memory that the executable occupies.
        size: Bytes,
        /// Whether it is a baseline executable, compiled in less time to slower code. If the region
        /// runs again, an optimized compile follows.
        quick: bool,
        /// Memory that an execution needs on each replica. `None` if the plugin does not report it,
        /// and on the reference device.
        memory: Option<MemoryPlan>,
        /// Memory that its ops would hold at once, one by one
        /// ([`fuseline_fusion::region::EagerMemory`]), on each replica.
        eager: Bytes,
        /// The executable; `None` on the reference device. A sink that keeps it also keeps the
        /// client alive.
        executable: Option<fuseline_pjrt::Executable>,
    },
    /// An executable from another process, or an earlier one, was loaded instead of compiling the
    /// region. This follows [`Event::CompileStarted`], in place of [`Event::CompileFinished`].
    Loaded {
        /// The region.
        region: RegionRef,
        /// The cache that had it.
        from: CacheTier,
        /// Time to find and load it.
        took: Duration,
        /// Time of its original compile.
        compile: Duration,
        /// Memory that the executable occupies.
        size: Bytes,
        /// Memory that an execution needs on each replica. `None` if the plugin does not report it.
        memory: Option<MemoryPlan>,
        /// The executable. A sink that keeps it also keeps the client alive.
        executable: Option<fuseline_pjrt::Executable>,
    },
    /// A problem with the caches outside of the process. It costs the time that they would save.
    CacheTrouble {
        /// The problem and its consequence.
        what: String,
    },
    /// A region was compiled in the background with scalars as constants that had the same value in
    /// many executions. The executable runs where they still have it.
    Specialised {
        /// The region.
        region: RegionRef,
        /// The scalars, by parameter of the region.
        scalars: Vec<(u32, Scalar)>,
        /// Time of the compile.
        took: Duration,
        /// Memory that the executable occupies.
        size: Bytes,
    },
    /// A region is compiled in the background without results that were not needed in many
    /// executions.
    OutputsPruned {
        /// The region.
        region: RegionRef,
        /// Number of unneeded results.
        surplus: usize,
        /// Number of executions that did not need them.
        executions: u64,
    },
    /// A region is compiled in the background to reuse inputs that died in many executions.
    DonationExtended {
        /// The region.
        region: RegionRef,
        /// The inputs, by parameter of the region.
        inputs: Vec<u32>,
        /// Number of executions in which they died.
        executions: u64,
    },
    /// A compile failed.
    CompileFailed {
        /// The region.
        region: RegionRef,
        /// The message of the compiler.
        message: String,
    },
    /// A region was handed to the device.
    Launched {
        /// The region.
        region: RegionRef,
        /// Parameters of the region that were donated.
        donated: Vec<u32>,
    },
    /// A region runs op by op, because it could not be compiled or run as a whole, or an input
    /// failed.
    Fallback {
        /// The region.
        region: RegionRef,
        /// The reason.
        why: String,
    },
    /// Memory ran out: on the device, or on the host for the compiler.
    OutOfMemory {
        /// The region that could not be compiled or executed; `None` for a transfer.
        region: Option<RegionRef>,
        /// The stage at which memory ran out.
        stage: Stage,
        /// Bytes of the region's results, or of the transfer, on all replicas.
        asked: Bytes,
        /// The remedy.
        remedy: Remedy,
    },
    /// An executable is not used, because it needs more memory than the ops of its region would one
    /// by one. The region runs in parts, or by its present executable if this one was to replace or
    /// complement it.
    Oversized {
        /// The region.
        region: RegionRef,
        /// Memory that the executable needs.
        memory: MemoryPlan,
        /// Memory that its ops would hold at once, one by one
        /// ([`fuseline_fusion::region::EagerMemory`]).
        eager: Bytes,
    },
    /// A region runs in parts, because it needs too much memory as a whole, or because the sizes of
    /// some of its ops vary.
    InParts {
        /// The region.
        region: RegionRef,
        /// Number of ops of each part. The parts are the units of a merged region, its halves, or
        /// the varying and the constant ops.
        parts: Vec<usize>,
        /// The reason.
        why: String,
    },
    /// A merged region runs as its units, because it has not been compiled as a whole yet.
    RanUnmerged {
        /// The region.
        region: RegionRef,
        /// Number of units.
        units: usize,
    },
    /// The interpreter runs a region, because it has run too few times to be compiled.
    Interpreted {
        /// The region.
        region: RegionRef,
        /// The number of this execution, from 1.
        run: u32,
        /// Number of executions that are interpreted in any case. Later ones are interpreted only
        /// while the compile is in progress.
        of: u32,
    },
    /// The interpreter runs a region of one op, because it crashed an earlier process or is part of
    /// a region that did. The results are the interpreter's even with `Numerics::Exact`.
    Quarantined {
        /// The region.
        region: RegionRef,
        /// What happened.
        why: String,
    },
    /// A region runs padded to sizes for which there is an executable, because its sizes vary and
    /// it has no executable of its own.
    Padded {
        /// The region.
        region: RegionRef,
        /// The key of the padded region.
        bucket: RegionKey,
        /// The sizes that vary, each with its padded size.
        sizes: Vec<(u64, u64)>,
    },
    /// The sizes of a region vary, and it is not padded. Reported once for the same ops.
    NotPadded {
        /// The region.
        region: RegionRef,
        /// The reason.
        why: String,
    },
    /// The interpreter, or the executable of the bucket, failed. The region is compiled.
    NotInterpreted {
        /// The region.
        region: RegionRef,
        /// The message of the failure.
        why: String,
    },
    /// A region runs op by op, because its executable is being compared with its ops.
    CheckRunning {
        /// The region.
        region: RegionRef,
    },
    /// The executable of a region was compared with its ops.
    Compared {
        /// The region that was run both ways.
        region: RegionRef,
        /// The first difference. If there is one, the executable is not used.
        difference: Option<String>,
    },
    /// Results of a region failed. So will everything that depends on them.
    Poisoned {
        /// The region.
        region: RegionRef,
        /// Number of results.
        values: usize,
        /// Op, call site and message of the device.
        why: String,
    },
    /// Executables of a key left the memory cache: its entry was evicted, or memory ran out and
    /// they were unused ([`Remedy::Freed`]). In the second case a failure that is cached with the
    /// key stays.
    Evicted {
        /// The key.
        key: RegionKey,
        /// Memory that they occupied.
        size: Bytes,
    },
    /// A user's callback panicked. This had no other effect.
    Panicked {
        /// The kind of callback.
        callback: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// A stream waits before launching more, because its in-flight limit is reached.
    Throttled {
        /// The region that waits.
        region: RegionRef,
    },
    /// A region proceeds after waiting. The regions behind it in its stream waited as long.
    Waited {
        /// The region.
        region: RegionRef,
        /// What it waited for.
        wait: Wait,
        /// Time since it became the first unlaunched region of its stream.
        took: Duration,
    },
    /// The results of a region are computed.
    Completed {
        /// The region.
        region: RegionRef,
        /// Time from its launch, or from the start of the interpreter, until it was done. On a
        /// device that includes what was in flight before it.
        took: Duration,
    },
    /// The host got a value that it read. Failed reads are not reported.
    HostRead {
        /// The stream that computes the value.
        stream: StreamId,
        /// Call site of the read.
        site: Site,
        /// The kind of read.
        asked: Asked,
        /// The region that computed it. `None` for data from the host, lifted scalars and failed
        /// values.
        region: Option<RegionRef>,
        /// Bytes copied to the host.
        bytes: Bytes,
        /// Time from the call until the region was launched.
        launch: Duration,
        /// Time from then until the data arrived.
        data: Duration,
    },
    /// The host waited for everything recorded on a stream.
    Synchronized {
        /// The stream.
        stream: StreamId,
        /// Call site of the wait.
        site: Site,
        /// Time of the wait.
        took: Duration,
    },
    /// A thread of the engine has worked on one task for longer than
    /// [`Deadlines`](crate::deadlines::Deadlines) allows, most likely inside the plugin. The thread is
    /// abandoned. [`Event::CompileFailed`] reports the region that it was compiling.
    Stuck {
        /// The kind of thread: `compile`, `later` (background compiles), `drive`, `interpret`, or
        /// `end`, which destroys the remains of an engine.
        thread: &'static str,
        /// Time spent so far.
        took: Duration,
        /// Number of stuck threads of this kind.
        stuck: usize,
        /// Whether another thread replaces it.
        is_replaced: bool,
    },
    /// So many threads are stuck in compiles that no compile starts until one returns.
    CompilesStopped {
        /// Number of stuck threads.
        stuck: usize,
    },
    /// Reads at one call site end regions again and again, with little recorded before each.
    /// Reported once for a call site.
    HotReads {
        /// The stream that is read.
        stream: StreamId,
        /// Call site of the reads.
        site: Site,
        /// Number of boundaries that they caused.
        reads: u32,
        /// Total number of ops recorded before these reads, each since the previous boundary.
        ops: u64,
    },
    /// Nobody has checked what the plugin computes in this environment. Reported once for an engine
    /// with a disk cache, and again when a qualification in the background ends.
    Unqualified {
        /// The path of the plugin.
        plugin: String,
        /// What happens about it.
        status: QualificationStatus,
    },
    /// The plugin refuses compiler flags that the engine sets, and they are left out. Reported
    /// once, when the engine starts.
    FlagsRefused {
        /// The flags.
        flags: Vec<CompilerFlag>,
    },
    /// The number of live values grows steadily. Reported once for a stream.
    Growth {
        /// The stream that computes them.
        stream: StreamId,
        /// Number of boundaries over which they grew: those that the program requested, or, if it
        /// requests none, the ends of its regions.
        boundaries: u32,
        /// Number of additional live values.
        more: usize,
        /// Most of the live values made since then, by the call sites that made the most.
        kept: Vec<LeakSite>,
    },
}

impl Event {
    /// A short name for logs (`compile_finished`).
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Event::Sealed { .. } => "sealed",
            Event::Skipped { .. } => "skipped",
            Event::Hit { .. } => "hit",
            Event::Miss { .. } => "miss",
            Event::Lowered { .. } => "lowered",
            Event::CompileStarted { .. } => "compile_started",
            Event::CompileFinished { .. } => "compile_finished",
            Event::Loaded { .. } => "loaded",
            Event::CacheTrouble { .. } => "cache_trouble",
            Event::OutputsPruned { .. } => "narrowed",
            Event::DonationExtended { .. } => "widened",
            Event::CompileFailed { .. } => "compile_failed",
            Event::Specialised { .. } => "specialised",
            Event::Launched { .. } => "launched",
            Event::Fallback { .. } => "fallback",
            Event::OutOfMemory { .. } => "out_of_memory",
            Event::Oversized { .. } => "oversized",
            Event::InParts { .. } => "in_parts",
            Event::RanUnmerged { .. } => "in_units",
            Event::RecompileStorm { .. } => "recompile_storm",
            Event::Interpreted { .. } => "interpreted",
            Event::NotInterpreted { .. } => "not_interpreted",
            Event::Quarantined { .. } => "quarantined",
            Event::Padded { .. } => "padded",
            Event::NotPadded { .. } => "not_padded",
            Event::CheckRunning { .. } => "shadowed",
            Event::Compared { .. } => "compared",
            Event::Poisoned { .. } => "poisoned",
            Event::Evicted { .. } => "evicted",
            Event::Panicked { .. } => "panicked",
            Event::Throttled { .. } => "throttled",
            Event::Waited { .. } => "waited",
            Event::Completed { .. } => "completed",
            Event::HostRead { .. } => "host_read",
            Event::Synchronized { .. } => "synchronized",
            Event::Stuck { .. } => "stuck",
            Event::CompilesStopped { .. } => "compiles_stopped",
            Event::HotReads { .. } => "hot_reads",
            Event::Growth { .. } => "growth",
            Event::FlagsRefused { .. } => "flags refused",
            Event::Unqualified { .. } => "unqualified",
        }
    }

    /// The region that the event concerns, if any.
    #[must_use]
    pub const fn region(&self) -> Option<&RegionRef> {
        match self {
            Event::Sealed { region, .. }
            | Event::Skipped { region }
            | Event::Hit { region, .. }
            | Event::Miss { region, .. }
            | Event::Lowered { region, .. }
            | Event::CompileStarted { region }
            | Event::CompileFinished { region, .. }
            | Event::Loaded { region, .. }
            | Event::CompileFailed { region, .. }
            | Event::OutputsPruned { region, .. }
            | Event::DonationExtended { region, .. }
            | Event::Specialised { region, .. }
            | Event::Launched { region, .. }
            | Event::Fallback { region, .. }
            | Event::Oversized { region, .. }
            | Event::InParts { region, .. }
            | Event::RanUnmerged { region, .. }
            | Event::RecompileStorm { region, .. }
            | Event::Interpreted { region, .. }
            | Event::NotInterpreted { region, .. }
            | Event::Quarantined { region, .. }
            | Event::Padded { region, .. }
            | Event::NotPadded { region, .. }
            | Event::CheckRunning { region }
            | Event::Compared { region, .. }
            | Event::Poisoned { region, .. }
            | Event::Throttled { region }
            | Event::Waited { region, .. }
            | Event::Completed { region, .. } => Some(region),
            Event::HostRead { region, .. } | Event::OutOfMemory { region, .. } => region.as_ref(),
            Event::Evicted { .. }
            | Event::CacheTrouble { .. }
            | Event::Panicked { .. }
            | Event::Synchronized { .. }
            | Event::Stuck { .. }
            | Event::CompilesStopped { .. }
            | Event::HotReads { .. }
            | Event::Growth { .. }
            | Event::FlagsRefused { .. }
            | Event::Unqualified { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(DisplayEvent(self)).fmt(f)
    }
}

/// An event as text. Control characters from plugins, files and programs are escaped.
struct DisplayEvent<'a>(&'a Event);

impl fmt::Display for DisplayEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Event::Sealed { region, boundary, mode, inputs, scalars, outputs, asked, .. } => {
                write!(f, "{region} ends because {boundary}")?;
                if let Some(site) = asked {
                    write!(f, " at {site}")?;
                }
                let mode = mode.name();
                write!(f, "; {mode} mode, {inputs} inputs, {scalars} scalars, {outputs} outputs")
            }
            Event::Skipped { region } => write!(f, "{region} is skipped: nobody uses its results"),
            Event::Hit { region, surplus: 0 } => write!(f, "{region} is in the cache"),
            Event::Hit { region, surplus } => {
                write!(f, "{region} is in the cache, with {surplus} more outputs than needed")
            }
            Event::Miss { region, why } => write!(f, "{region} is not in the cache: {why}"),
            Event::Lowered { region, module, .. } => {
                write!(f, "{region} was lowered to {} lines of StableHLO", module.text().lines().count())
            }
            Event::CompileStarted { region } => write!(f, "{region} is being compiled"),
            Event::CompileFinished { region, took, size, quick, .. } => {
                let how = if *quick { "(baseline) " } else { "" };
                write!(f, "{region} was compiled {how}in {:.1} ms ({size})", took.as_secs_f64() * 1e3)
            }
            Event::Loaded { region, from, took, compile, size, .. } => {
                let ms = |time: &Duration| time.as_secs_f64() * 1e3;
                write!(
                    f,
                    "{region} was loaded from the {from} in {:.1} ms ({size}); it was compiled in {:.1} ms",
                    ms(took),
                    ms(compile)
                )
            }
            Event::CacheTrouble { what } => f.write_str(what),
            Event::OutputsPruned { region, surplus, executions } => {
                write!(
                    f,
                    "{region} is compiled without {surplus} outputs that were unused in {executions} executions"
                )
            }
            Event::DonationExtended { region, inputs, executions } => write!(
                f,
                "{region} is compiled to reuse the memory of {} more inputs, which died in {executions} executions",
                inputs.len()
            ),
            Event::CompileFailed { region, message } => write!(f, "{region} was not compiled: {message}"),
            Event::Specialised { region, scalars, took, .. } => write!(
                f,
                "{region} was compiled in {:.1} ms with {} of its scalars as constants, because \
                 their values stay the same",
                took.as_secs_f64() * 1e3,
                scalars.len()
            ),
            Event::Launched { region, donated } if donated.is_empty() => write!(f, "{region} was launched"),
            Event::Launched { region, donated } => {
                write!(f, "{region} was launched, reusing the memory of {} inputs", donated.len())
            }
            Event::Fallback { region, why } => write!(f, "{region} runs op by op: {why}"),
            Event::OutOfMemory { region: Some(region), stage, asked, remedy } => {
                write!(f, "memory ran out while {stage} {region}, whose results take {asked}: {remedy}")
            }
            Event::OutOfMemory { region: None, stage, asked, remedy } => {
                write!(f, "memory ran out while {stage} {asked}: {remedy}")
            }
            Event::Oversized { region, memory, eager } => {
                write!(
                    f,
                    "{region} needs more memory as a whole than the {eager} that its ops need one by one: {memory}"
                )
            }
            Event::InParts { region, parts, why } => {
                write!(f, "{region} runs in {} parts: {why}", parts.len())
            }
            Event::RanUnmerged { region, units } => {
                write!(f, "{region} runs as its {units} units until it is compiled")
            }
            Event::RecompileStorm { region, misses, varying } => {
                write!(
                    f,
                    "{region}: the same ops missed the cache {misses} times, and each miss has to \
                     be compiled, interpreted or padded"
                )?;
                for varying in varying {
                    write!(f, "; {varying}")?;
                }
                Ok(())
            }
            Event::Interpreted { region, run, of } if run > of => {
                write!(f, "{region} is interpreted: execution {run}, its compile is in progress")
            }
            Event::Interpreted { region, run, of } => {
                write!(f, "{region} is interpreted: execution {run} of {of} before its compile is requested")
            }
            Event::NotInterpreted { region, why } => {
                write!(f, "{region} is compiled because the interpreter failed: {why}")
            }
            Event::Quarantined { region, why } => write!(f, "{region} is interpreted: {why}"),
            Event::Padded { region, bucket, sizes } => {
                write!(f, "{region} runs on executable {}, which serves several sizes:", bucket.short())?;
                let size = |&(size, padded): &(u64, u64)| format!(" {size} padded to {padded}");
                f.write_str(&sizes.iter().map(size).collect::<Vec<_>>().join(","))
            }
            Event::NotPadded { region, why } => {
                write!(f, "sizes of {region} vary, but are not padded to common ones: {why}")
            }
            Event::CheckRunning { region } => {
                write!(
                    f,
                    "{region} runs op by op until a check shows that it gives the same results as a whole"
                )
            }
            Event::Compared { region, difference: None } => {
                write!(f, "{region} gives the same results as its ops one by one")
            }
            Event::Compared { region, difference: Some(difference) } => {
                write!(
                    f,
                    "{region} is not fused again, because its results differ from those of its ops: {difference}"
                )
            }
            Event::Poisoned { region, values, why } => {
                write!(f, "{values} results of {region} failed: {why}")
            }
            Event::Evicted { key, size } => {
                write!(f, "the executable {} was evicted from the cache ({size})", key.short())
            }
            Event::Panicked { callback, message } => write!(f, "a {callback} callback panicked: {message}"),
            Event::Throttled { region } => write!(f, "{region} waits: the in-flight limit is reached"),
            Event::Waited { region, wait, took } => {
                write!(f, "{region} waited {} for {wait}", Took(*took))
            }
            Event::Completed { region, took } => write!(f, "{region} completed after {}", Took(*took)),
            Event::HostRead { site, asked, region, bytes, launch, data, .. } => {
                let (launch, data) = (Took(*launch), Took(*data));
                f.write_str(match asked {
                    Asked::Read | Asked::Async => "the host read ",
                    Asked::Wait => "the host waited for ",
                })?;
                match region {
                    Some(region) => write!(f, "a result of {region}")?,
                    None => f.write_str("a value that no region computed")?,
                }
                write!(f, " ({bytes}) at {site}: {launch} until its launch, {data} until the data arrived")?;
                if *asked == Asked::Async { f.write_str(", without waiting") } else { Ok(()) }
            }
            Event::Synchronized { stream, site, took } => {
                write!(f, "the host waited {} for all of stream {stream} at {site}", Took(*took))
            }
            Event::Stuck { thread, took, stuck, is_replaced } => {
                let then = if *is_replaced { "another thread replaces it" } else { "no thread replaces it" };
                let took = Took(*took);
                write!(
                    f,
                    "a {thread} thread has not returned from the plugin for {took} and is given \
                     up; {stuck} threads are stuck; {then}"
                )
            }
            Event::CompilesStopped { stuck } => write!(
                f,
                "no more compiles start, because {stuck} threads are stuck in the plugin: until \
                 one returns, regions run only on existing executables, as a whole or op by op, \
                 and all other results fail; if none returns, restart the process"
            ),
            Event::HotReads { site, reads, ops, .. } => write!(
                f,
                "the read at {site} has ended {reads} regions, of {} ops each on average, and \
                 each costs a device call and a wait; record more ops before each read, read less \
                 often, keep the decision on the device (select, while_loop), or read without \
                 waiting (Tensor::read)",
                ops / u64::from(*reads).max(1),
            ),
            Event::FlagsRefused { flags } => {
                f.write_str("the plugin does not know compiler flags that the engine sets")?;
                let mut mark = ':';
                for flag in flags {
                    let CompilerFlag { name, purpose, fallback, .. } = flag;
                    write!(f, "{mark} {name} ({purpose}; without it, {fallback})")?;
                    mark = ';';
                }
                Ok(())
            }
            Event::Unqualified { plugin, status } => {
                write!(f, "the plugin {plugin} has no certificate for this environment: {status}")
            }
            Event::Growth { stream, boundaries, more, kept } => {
                write!(
                    f,
                    "stream {stream} keeps more and more values alive: {more} more than {boundaries} boundaries ago"
                )?;
                for LeakSite { site, values, bytes } in kept {
                    write!(f, "; {values} of them ({bytes}) were created at {site}")?;
                }
                f.write_str(
                    ": drop values after their last use; of values kept for later, read the numbers and keep those",
                )
            }
        }
    }
}
