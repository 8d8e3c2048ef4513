//! What the engine tells about itself.
//!
//! Every boundary, miss, compile, fallback and failure is an [`Event`] with its reason. A sink is
//! set in the config; tests compare logs of events, the command-line tool prints them, and the
//! `tracing` feature forwards them. Without a sink an event costs one branch.

mod parts;
mod sink;

use std::fmt;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::lower::Module;
use fuseline_fusion::region::{Boundary, Mode};
use fuseline_fusion::{Bytes, Printable, Scalar, Site, StreamId};

pub use parts::{
    Asked, CacheTier, Change, LeakSite, Miss, OpsDiffer, Remedy, SealedRegion, Varies, Varying, Wait,
};
pub use sink::EventSink;
#[cfg(feature = "tracing")]
pub use sink::TracingSink;
pub(crate) use sink::{Events, Guest, call_user, is_counted, is_telling, note_replayed};

use crate::device::MemoryPlan;
use crate::error::{RegionRef, Stage};
use crate::pjrt;

/// Something that happened in the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A region's end was fixed.
    Sealed {
        /// Which one.
        region: RegionRef,
        /// Why it ends there.
        boundary: Boundary,
        /// The mode of its ops.
        mode: Mode,
        /// Number of tensors it reads.
        inputs: usize,
        /// Number of lifted scalars it reads.
        scalars: usize,
        /// Number of values that live after it.
        outputs: usize,
        /// Where the host asked for the value for which the region ends, if that is why.
        asked: Option<Site>,
        /// What it consists of.
        contents: SealedRegion,
    },
    /// A region without living results and effects was left out.
    Skipped {
        /// Which one.
        region: RegionRef,
    },
    /// An executable was found.
    Hit {
        /// For which region.
        region: RegionRef,
        /// Results that the executable returns and nobody needs.
        surplus: usize,
    },
    /// No executable was found.
    Miss {
        /// For which region.
        region: RegionRef,
        /// Why.
        why: Miss,
    },
    /// The same ops were missed again and again, each time with something new about them. Told once
    /// for a sequence of ops.
    RecompileStorm {
        /// The latest of them.
        region: RegionRef,
        /// How many there were.
        misses: u32,
        /// What changed most of the times. Nothing if it was never the same thing twice.
        varying: Vec<Varying>,
    },
    /// A region was written down for the compiler, once for each of its compiles. On the reference
    /// device, which has no compiler, this is what a compiler would get.
    Lowered {
        /// Which one.
        region: RegionRef,
        /// Numbers of the results that the module returns, ascending. There may be more than this
        /// execution needs.
        outputs: Vec<u32>,
        /// The module.
        module: Module,
    },
    /// A compile began, on a compile thread.
    CompileStarted {
        /// Of which region.
        region: RegionRef,
    },
    /// A compile ended well.
    CompileFinished {
        /// Of which region.
        region: RegionRef,
        /// How long it took.
        took: Duration,
        /// Memory that the executable holds.
        size: Bytes,
        /// Whether it was compiled in less time to slower code; if the region is run again, another
        /// compile follows.
        quick: bool,
        /// Memory that an execution needs, on each replica; `None` if the plugin does not say, and
        /// on the reference device.
        memory: Option<MemoryPlan>,
        /// What its ops would hold at once, one by one ([`fuseline_fusion::region::Held`]), on each
        /// replica.
        eager: Bytes,
        /// The executable; `None` on the reference device. A sink that keeps it keeps the client
        /// alive too.
        executable: Option<pjrt::Executable>,
    },
    /// What a region was compiled to in another process, or earlier, was loaded instead of
    /// compiling it. It comes after [`Event::CompileStarted`], in the place of
    /// [`Event::CompileFinished`].
    Loaded {
        /// Of which region.
        region: RegionRef,
        /// Where it was.
        from: CacheTier,
        /// How long it took to find and load.
        took: Duration,
        /// How long the compile took then.
        compile: Duration,
        /// Memory that the executable holds.
        size: Bytes,
        /// Memory that an execution needs, on each replica; `None` if the plugin does not say.
        memory: Option<MemoryPlan>,
        /// The executable. A sink that keeps it keeps the client alive too.
        executable: Option<pjrt::Executable>,
    },
    /// Something is the matter with the caches outside of the process. It costs what they would
    /// save.
    CacheTrouble {
        /// What, and what becomes of it.
        what: String,
    },
    /// A region was compiled once more, beside what runs, with scalars as constants that had had
    /// the same value in many executions. It is used where they still have it.
    Specialised {
        /// Which one.
        region: RegionRef,
        /// The scalars, by parameter of the region.
        scalars: Vec<(u32, Scalar)>,
        /// How long the compile took.
        took: Duration,
        /// Memory that the executable holds.
        size: Bytes,
    },
    /// A region is compiled once more, beside what runs, without results that were not needed in
    /// many executions.
    OutputsPruned {
        /// Which one.
        region: RegionRef,
        /// How many results it was that nobody needed.
        surplus: usize,
        /// In how many executions.
        executions: u64,
    },
    /// A region is compiled once more, beside what runs, to reuse the memory of inputs that died in
    /// many executions.
    DonationExtended {
        /// Which one.
        region: RegionRef,
        /// The inputs, by parameter of the region.
        inputs: Vec<u32>,
        /// In how many executions.
        executions: u64,
    },
    /// A compile failed.
    CompileFailed {
        /// Of which region.
        region: RegionRef,
        /// The compiler's words.
        message: String,
    },
    /// A region was handed to the device.
    Launched {
        /// Which one.
        region: RegionRef,
        /// Parameters of the region whose memory was given to outputs.
        donated: Vec<u32>,
    },
    /// A region runs op by op, because it could not be compiled or run as a whole or one of its
    /// inputs failed.
    Fallback {
        /// Which one.
        region: RegionRef,
        /// Why.
        why: String,
    },
    /// Memory ran out: on the device, or on the host for the compiler.
    OutOfMemory {
        /// The region that could not be compiled or executed; `None` for a transfer.
        region: Option<RegionRef>,
        /// What could not be done.
        stage: Stage,
        /// Bytes of the region's results, or of the transfer, on all replicas.
        asked: Bytes,
        /// What is done about it.
        remedy: Remedy,
    },
    /// An executable is not used, because it needs more memory than its region's ops would one by
    /// one. The region runs in parts, or by the executable that it has, if this one was compiled to
    /// take its place or to stand beside it.
    Oversized {
        /// Which one.
        region: RegionRef,
        /// What its executable needs.
        memory: MemoryPlan,
        /// What its ops would hold at once, one by one ([`fuseline_fusion::region::Held`]).
        eager: Bytes,
    },
    /// A region runs in parts, because it needs too much memory as a whole, or because some of its
    /// ops come at sizes that vary.
    InParts {
        /// Which one.
        region: RegionRef,
        /// Number of ops of each part: of the units that it was joined from, of its halves, or of
        /// what varies and what does not.
        parts: Vec<usize>,
        /// Why.
        why: String,
    },
    /// A region that was joined from units runs as these, because it has not been compiled as a
    /// whole yet.
    RanUnmerged {
        /// Which one.
        region: RegionRef,
        /// How many units.
        units: usize,
    },
    /// A region is interpreted, since it was run too seldom to be compiled.
    Interpreted {
        /// Which one.
        region: RegionRef,
        /// Which of its executions, from 1.
        run: u32,
        /// How many there are whatever its compile takes; those after them are for as long as it is
        /// under way.
        of: u32,
    },
    /// A region of one op is interpreted, since it crashed an earlier process or is of a region
    /// that did. With `Numerics::Exact` too its numbers are the interpreter's.
    Quarantined {
        /// Which one.
        region: RegionRef,
        /// What happened.
        why: String,
    },
    /// A region runs padded to sizes for which there is an executable, since sizes vary and it has
    /// none of its own.
    Padded {
        /// Which one.
        region: RegionRef,
        /// The key of the region that it is padded to.
        bucket: RegionKey,
        /// The sizes that vary, each with what it is padded to.
        sizes: Vec<(u64, u64)>,
    },
    /// Sizes of a region vary, and it is not padded. Told once for the same ops.
    NotPadded {
        /// Which one.
        region: RegionRef,
        /// Why.
        why: String,
    },
    /// The interpreter, or the executable for several sizes, failed; the region is compiled.
    NotInterpreted {
        /// Which one.
        region: RegionRef,
        /// What it said.
        why: String,
    },
    /// A region runs op by op, because its executable is being compared with its ops.
    CheckRunning {
        /// Which one.
        region: RegionRef,
    },
    /// A region's executable was compared with its ops.
    Compared {
        /// The region that was run both ways.
        region: RegionRef,
        /// The first difference. If there is one, the executable is not used.
        difference: Option<String>,
    },
    /// Results of a region failed; everything that depends on them will.
    Poisoned {
        /// Which region.
        region: RegionRef,
        /// How many results.
        values: usize,
        /// Op, place and the device's words.
        why: String,
    },
    /// Executables of a key left the memory cache: its entry did, to make room, or memory ran out
    /// and nobody was using them ([`Remedy::Freed`]); what is known of a key that failed stays
    /// then.
    Evicted {
        /// Its key.
        key: RegionKey,
        /// Memory it held.
        size: Bytes,
    },
    /// A callback of the user's panicked; nothing else came of it.
    Panicked {
        /// What kind of callback it was.
        callback: &'static str,
        /// The panic's message.
        message: String,
    },
    /// A stream waits before handing more to the device: as much is in flight as is allowed.
    Throttled {
        /// The region that waits.
        region: RegionRef,
    },
    /// A region goes on that had to wait. The regions behind it in its stream waited as long.
    Waited {
        /// Which one.
        region: RegionRef,
        /// For what.
        wait: Wait,
        /// How long, from when it was the first of its stream that was not launched.
        took: Duration,
    },
    /// The results of a region are computed.
    Completed {
        /// Which one.
        region: RegionRef,
        /// From when it was handed to the device, or the interpreter began, until it was done. On a
        /// device that includes what was in flight before it.
        took: Duration,
    },
    /// The host has got a value that it asked for. Reads that fail are not told.
    HostRead {
        /// The stream that makes it.
        stream: StreamId,
        /// Where the host asked.
        site: Site,
        /// How it asked.
        asked: Asked,
        /// The region that made it. `None` for data from the host, lifted scalars, and what failed.
        region: Option<RegionRef>,
        /// What was copied to the host.
        bytes: Bytes,
        /// From the call until the region was handed to the device.
        launch: Duration,
        /// From then until the data was there.
        data: Duration,
    },
    /// The host has waited for everything that was recorded on a stream, to its end.
    Synchronized {
        /// Which one.
        stream: StreamId,
        /// Where the host asked.
        site: Site,
        /// How long it waited.
        took: Duration,
    },
    /// A thread of the engine has been at one piece of work for longer than
    /// [`Deadlines`](crate::Deadlines) allows, most likely inside the plugin. It is left there.
    /// What region it compiled is told by [`Event::CompileFailed`].
    Stuck {
        /// What kind of thread: `compile`, `later` (which compiles what nobody waits for), `drive`,
        /// `interpret`, or `end`, which destroys what is left of an engine.
        thread: &'static str,
        /// How long it has been.
        took: Duration,
        /// Threads of this kind that are stuck.
        stuck: usize,
        /// Whether another one takes its place.
        is_replaced: bool,
    },
    /// So many threads are stuck in compiles that no more are started until one comes back.
    CompilesStopped {
        /// How many.
        stuck: usize,
    },
    /// Reads at one call site end regions again and again, with little recorded before each. Told
    /// once for a call site.
    HotReads {
        /// The stream that is read.
        stream: StreamId,
        /// Where the host asks.
        site: Site,
        /// How many boundaries it has made.
        reads: u32,
        /// Ops recorded before these, each since the boundary before it, altogether.
        ops: u64,
    },
    /// Ever more values are alive. Told once for a stream.
    Growth {
        /// The stream that makes them.
        stream: StreamId,
        /// How many boundaries this took: those that the program asked for, or, where it asks for
        /// none, the ends of its regions.
        boundaries: u32,
        /// How many more are alive than before these.
        more: usize,
        /// Most of what was made since then and is alive, by the call sites that made most of it.
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
        }
    }

    /// The region it is about, if it is about one.
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
            | Event::Growth { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(Words(self)).fmt(f)
    }
}

/// An event as it is put into words, whatever characters are in what plugins, files and programs
/// say.
struct Words<'a>(&'a Event);

impl fmt::Display for Words<'_> {
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
            Event::Skipped { region } => write!(f, "{region} is left out: nobody uses its results"),
            Event::Hit { region, surplus: 0 } => write!(f, "{region} is in the cache"),
            Event::Hit { region, surplus } => {
                write!(f, "{region} is in the cache, with {surplus} outputs more than needed")
            }
            Event::Miss { region, why } => write!(f, "{region} is not in the cache: {why}"),
            Event::Lowered { region, module, .. } => {
                write!(f, "{region} was lowered to {} lines of StableHLO", module.text().lines().count())
            }
            Event::CompileStarted { region } => write!(f, "{region} is being compiled"),
            Event::CompileFinished { region, took, size, quick, .. } => {
                let how = if *quick { "quickly, " } else { "" };
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
                    "{region} is compiled without {surplus} outputs that nobody needed in {executions} executions"
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
                "{region} was compiled in {:.1} ms with {} of its scalars as constants, since they stay the same",
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
                    "{region} needs more memory than the {eager} that its ops would hold one by one: {memory}"
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
                    "{region}: the same ops were new {misses} times, and what is new has to be compiled, interpreted or padded"
                )?;
                for varying in varying {
                    write!(f, "; {varying}")?;
                }
                Ok(())
            }
            Event::Interpreted { region, run, of } if run > of => {
                write!(f, "{region} is interpreted: execution {run}, its compile is under way")
            }
            Event::Interpreted { region, run, of } => {
                write!(
                    f,
                    "{region} is interpreted: execution {run} of {of} before its executable is asked for"
                )
            }
            Event::NotInterpreted { region, why } => {
                write!(f, "{region} is compiled since the interpreter failed: {why}")
            }
            Event::Quarantined { region, why } => write!(f, "{region} is interpreted: {why}"),
            Event::Padded { region, bucket, sizes } => {
                write!(f, "{region} runs by {}, which is for several sizes:", bucket.short())?;
                let size = |&(size, padded): &(u64, u64)| format!(" {size} padded to {padded}");
                f.write_str(&sizes.iter().map(size).collect::<Vec<_>>().join(","))
            }
            Event::NotPadded { region, why } => {
                write!(f, "sizes of {region} vary, and are not padded to a few: {why}")
            }
            Event::CheckRunning { region } => {
                write!(f, "{region} runs op by op until it is known whether it gives the same as a whole")
            }
            Event::Compared { region, difference: None } => {
                write!(f, "{region} gives what its ops give one by one")
            }
            Event::Compared { region, difference: Some(difference) } => {
                write!(f, "{region} is not fused again, since it differs from its ops: {difference}")
            }
            Event::Poisoned { region, values, why } => {
                write!(f, "{values} results of {region} failed: {why}")
            }
            Event::Evicted { key, size } => {
                write!(f, "the executable {} left the cache ({size})", key.short())
            }
            Event::Panicked { callback, message } => write!(f, "a {callback} callback panicked: {message}"),
            Event::Throttled { region } => write!(f, "{region} waits: enough is in flight"),
            Event::Waited { region, wait, took } => {
                write!(f, "{region} waited {} for {wait}", Took(*took))
            }
            Event::Completed { region, took } => write!(f, "{region} was done after {}", Took(*took)),
            Event::HostRead { site, asked, region, bytes, launch, data, .. } => {
                let (launch, data) = (Took(*launch), Took(*data));
                f.write_str(match asked {
                    Asked::Read | Asked::Async => "the host read ",
                    Asked::Wait => "the host waited for ",
                })?;
                match region {
                    Some(region) => write!(f, "a result of {region}")?,
                    None => f.write_str("a value of no region")?,
                }
                write!(f, " ({bytes}) at {site}: {launch} until it was launched, {data} until it was there")?;
                if *asked == Asked::Async { f.write_str(", without waiting") } else { Ok(()) }
            }
            Event::Synchronized { stream, site, took } => {
                write!(f, "the host waited {} for all of stream {stream} at {site}", Took(*took))
            }
            Event::Stuck { thread, took, stuck, is_replaced } => {
                let then = if *is_replaced { "another takes its place" } else { "no other takes its place" };
                let took = Took(*took);
                write!(
                    f,
                    "a {thread} thread has not come back from the plugin for {took} and is left there; {stuck} are; {then}"
                )
            }
            Event::CompilesStopped { stuck } => write!(
                f,
                "no more compiles are started, since {stuck} threads are stuck in the plugin: regions run by what is compiled, op by op, and \
                 the results of what is not fail, until a thread comes back; if none does, start the process anew"
            ),
            Event::HotReads { site, reads, ops, .. } => write!(
                f,
                "the read at {site} has ended {reads} regions, with {} ops before each on average: each is a call of the device and a \
                 wait; record more before it is read, read only now and then, keep the decision on the device (select, \
                 while_loop), or ask without waiting (Tensor::read)",
                ops / u64::from(*reads).max(1),
            ),
            Event::Growth { stream, boundaries, more, kept } => {
                write!(
                    f,
                    "stream {stream} keeps ever more values: {more} more than {boundaries} boundaries before"
                )?;
                for LeakSite { site, values, bytes } in kept {
                    write!(f, "; {values} of them ({bytes}) were made at {site}")?;
                }
                f.write_str(
                    ": drop them when they have been used; of what is kept for later, read the numbers and keep these",
                )
            }
        }
    }
}

/// A time with three digits, for people.
#[derive(Clone, Copy)]
pub(crate) struct Took(pub(crate) Duration);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (value, unit) = match seconds {
            s if s >= 1.0 => (s, "s"),
            s if s >= 1e-3 => (s * 1e3, "ms"),
            s => (s * 1e6, "µs"),
        };
        match value {
            v if v >= 100.0 => write!(f, "{v:.0} {unit}"),
            v if v >= 10.0 => write!(f, "{v:.1} {unit}"),
            v => write!(f, "{v:.2} {unit}"),
        }
    }
}
