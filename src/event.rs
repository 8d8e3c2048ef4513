//! What the engine tells about itself.
//!
//! Every boundary, miss, compile, fallback and failure is an [`Event`] with its reason. A sink is set in the config; tests
//! compare logs of events, the command-line tool prints them, and the `tracing` feature forwards them. Without a sink an
//! event costs one branch.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuseline_fusion::canon::{CanonRegion, Difference, RegionKey};
use fuseline_fusion::lower::Module;
use fuseline_fusion::region::{Boundary, Input, Mode, Output};
use fuseline_fusion::{Bytes, OpCode, Site};

use crate::device::MemoryPlan;
use crate::error::{RegionRef, Stage};
use crate::execute::without_waiting;
use crate::pjrt;
use crate::value::RegionInfo;

/// One difference between a missed region and the nearest one that was seen before.
#[derive(Clone, Debug)]
pub struct Change {
    /// What differs.
    pub difference: Difference,
    /// Where the first op that it concerns was recorded.
    pub site: Site,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, recorded at {}", self.difference, self.site)
    }
}

/// Why a region had to be compiled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Miss {
    /// No region with this sequence of ops was seen before.
    New,
    /// A region with the same ops is known; these are the differences.
    Changed(Vec<Change>),
    /// The region is known, but was not compiled for these outputs: other values are alive after it now.
    Outputs,
    /// The region was seen before and has left the cache since, or its compile failed before.
    Gone,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::New => f.write_str("its sequence of ops is new"),
            Miss::Changed(changes) => {
                f.write_str("it differs from the nearest known region: ")?;
                for (i, change) in changes.iter().enumerate() {
                    if i > 0 {
                        f.write_str("; ")?;
                    }
                    change.fmt(f)?;
                }
                Ok(())
            }
            Miss::Outputs => f.write_str("other values are alive after it than when it was compiled"),
            Miss::Gone => f.write_str("its executable is not in the cache any more"),
        }
    }
}

/// Something that can vary among regions of the same ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Varies {
    /// The size of a dimension of an input.
    Dimension {
        /// Which input of the region.
        input: usize,
        /// Which dimension of it.
        axis: usize,
    },
    /// The element type or rank of an input.
    Type {
        /// Which input of the region.
        input: usize,
    },
    /// An attribute of an op.
    Attribute {
        /// Which op of the region.
        node: usize,
        /// The op.
        op: OpCode,
        /// Name of the attribute.
        name: &'static str,
    },
}

/// What varies among regions of the same ops, and how.
#[derive(Clone, Debug)]
pub struct Varying {
    /// What it is.
    pub what: Varies,
    /// What it was lately, the latest last.
    pub latest: Vec<String>,
    /// Where the op was recorded, or the first op that reads the input.
    pub site: Site,
}

impl fmt::Display for Varying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Varies::Dimension { input, axis } => write!(f, "dimension {axis} of input {input}"),
            Varies::Type { input } => write!(f, "input {input}"),
            Varies::Attribute { op, name, .. } => write!(f, "{name} of {op}"),
        }?;
        let advice = match self.what {
            Varies::Dimension { .. } => {
                "pad it to a few sizes, or keep it at its largest and mask what is not used"
            }
            Varies::Type { .. } => "convert it to one type first",
            Varies::Attribute { .. } => "where it is a place, say it by an operand (dynamic_slice, gather)",
        };
        write!(f, " was {} lately, recorded at {}: {advice}", self.latest.join(", "), self.site)
    }
}

/// What a sealed region consists of. Cheap to clone.
#[derive(Clone)]
pub struct SealedRegion {
    info: Arc<RegionInfo>,
    inputs: Arc<[Input]>,
    outputs: Arc<[Output]>,
}

impl SealedRegion {
    pub(crate) fn new(info: Arc<RegionInfo>, inputs: Arc<[Input]>, outputs: Arc<[Output]>) -> SealedRegion {
        SealedRegion { info, inputs, outputs }
    }

    /// Which one.
    #[must_use]
    pub fn region(&self) -> RegionRef {
        self.info.reference
    }

    /// Its ops, in canonical form.
    #[must_use]
    pub fn canon(&self) -> &CanonRegion {
        &self.info.canon
    }

    /// Where each op was recorded, parallel to the nodes of its graph.
    #[must_use]
    pub fn sites(&self) -> &[Site] {
        &self.info.sites
    }

    /// The values it reads, parallel to the parameters of its graph.
    #[must_use]
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The values it makes, parallel to the results of its graph.
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }
}

impl fmt::Debug for SealedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedRegion({})", self.info.reference)
    }
}

/// What is done when memory has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Executables that nobody used were dropped, and it is tried again when what was in flight has ended.
    Freed {
        /// Entries of the cache that were dropped.
        executables: usize,
        /// Bytes that they held.
        bytes: Bytes,
        /// Regions in flight, of all streams.
        in_flight: usize,
    },
    /// The region runs in parts.
    Parts,
    /// Nothing: it fails.
    None,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Freed { executables, bytes, in_flight } => write!(
                f,
                "dropped {executables} cached executables ({bytes}), and trying again when {in_flight} regions in flight have ended"
            ),
            Remedy::Parts => f.write_str("running in parts"),
            Remedy::None => f.write_str("nothing helps"),
        }
    }
}

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
    /// The same ops were missed again and again, each time with something new about them. Told once for a sequence of ops.
    RecompileStorm {
        /// The latest of them.
        region: RegionRef,
        /// How many there were.
        misses: u32,
        /// What changed most of the times. Nothing if it was never the same thing twice.
        varying: Vec<Varying>,
    },
    /// A region was written down for the compiler. On the reference device, which has no compiler, this is what a compiler
    /// would get.
    Lowered {
        /// Which one.
        region: RegionRef,
        /// Numbers of the results that the module returns, ascending. There may be more than this execution needs.
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
        /// Memory that an execution needs, on each replica; `None` if the plugin does not say, and on the reference device.
        memory: Option<MemoryPlan>,
        /// What its ops would hold at once, one by one ([`fuseline_fusion::region::Held`]), on each replica.
        eager: Bytes,
        /// The executable; `None` on the reference device. A sink that keeps it keeps the client alive too.
        executable: Option<pjrt::Executable>,
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
    /// A region runs op by op, because it could not be compiled or run as a whole or one of its inputs failed.
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
    /// A compiled region is not used, because it needs more memory than its ops would one by one.
    Oversized {
        /// Which one.
        region: RegionRef,
        /// What its executable needs.
        memory: MemoryPlan,
        /// What its ops would hold at once, one by one ([`fuseline_fusion::region::Held`]).
        eager: Bytes,
    },
    /// A region runs in parts, because it needs too much memory as a whole.
    InParts {
        /// Which one.
        region: RegionRef,
        /// Number of ops of each part: of the units that it was joined from, or of its halves.
        parts: Vec<usize>,
        /// Why.
        why: String,
    },
    /// A region that was joined from units runs as these, because it has not been compiled as a whole yet.
    InUnits {
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
        /// How many there are before it waits for its executable.
        of: u32,
    },
    /// The interpreter failed; the region is compiled.
    NotInterpreted {
        /// Which one.
        region: RegionRef,
        /// What it said.
        why: String,
    },
    /// A region runs op by op, because its executable is being compared with its ops.
    Shadowed {
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
    /// An entry left the memory cache to make room.
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
            Event::CompileFailed { .. } => "compile_failed",
            Event::Launched { .. } => "launched",
            Event::Fallback { .. } => "fallback",
            Event::OutOfMemory { .. } => "out_of_memory",
            Event::Oversized { .. } => "oversized",
            Event::InParts { .. } => "in_parts",
            Event::InUnits { .. } => "in_units",
            Event::RecompileStorm { .. } => "recompile_storm",
            Event::Interpreted { .. } => "interpreted",
            Event::NotInterpreted { .. } => "not_interpreted",
            Event::Shadowed { .. } => "shadowed",
            Event::Compared { .. } => "compared",
            Event::Poisoned { .. } => "poisoned",
            Event::Evicted { .. } => "evicted",
            Event::Panicked { .. } => "panicked",
            Event::Throttled { .. } => "throttled",
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
            | Event::CompileFailed { region, .. }
            | Event::Launched { region, .. }
            | Event::Fallback { region, .. }
            | Event::Oversized { region, .. }
            | Event::InParts { region, .. }
            | Event::InUnits { region, .. }
            | Event::RecompileStorm { region, .. }
            | Event::Interpreted { region, .. }
            | Event::NotInterpreted { region, .. }
            | Event::Shadowed { region }
            | Event::Compared { region, .. }
            | Event::Poisoned { region, .. }
            | Event::Throttled { region } => Some(region),
            Event::OutOfMemory { region, .. } => region.as_ref(),
            Event::Evicted { .. } | Event::Panicked { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Sealed { region, boundary, mode, inputs, scalars, outputs, .. } => write!(
                f,
                "{region} ends because {boundary}; {} mode, {inputs} inputs, {scalars} scalars, {outputs} outputs",
                mode.name()
            ),
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
            Event::CompileFinished { region, took, size, .. } => {
                write!(f, "{region} was compiled in {:.1} ms ({size})", took.as_secs_f64() * 1e3)
            }
            Event::CompileFailed { region, message } => write!(f, "{region} was not compiled: {message}"),
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
            Event::InUnits { region, units } => {
                write!(f, "{region} runs as its {units} units until it is compiled")
            }
            Event::RecompileStorm { region, misses, varying } => {
                write!(f, "{region}: the same ops were new {misses} times, and each time is a compile")?;
                for varying in varying {
                    write!(f, "; {varying}")?;
                }
                Ok(())
            }
            Event::Interpreted { region, run, of } => {
                write!(f, "{region} is interpreted: execution {run} of {of} before it waits to be compiled")
            }
            Event::NotInterpreted { region, why } => {
                write!(f, "{region} is compiled since the interpreter failed: {why}")
            }
            Event::Shadowed { region } => {
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
        }
    }
}

/// Where events go. Called on whatever thread the event happens on, possibly on several at once; it should be quick. A
/// panic in it is caught, counted and otherwise ignored.
pub trait EventSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> EventSink for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

/// Calls code of the user's on a thread of the engine's or the plugin's: it must not wait for a stream, and a panic in it
/// goes no further. The error is the panic's message.
pub(crate) fn call_user<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    let called = without_waiting(|| catch_unwind(AssertUnwindSafe(f)));
    called.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // What was thrown may throw again when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        text.unwrap_or_else(|| "no message".to_owned())
    })
}

/// The configured sink, if any.
#[derive(Clone, Default)]
pub(crate) struct Events(Option<Arc<dyn EventSink>>);

impl Events {
    pub(crate) fn to(sink: Option<Arc<dyn EventSink>>) -> Events {
        Events(sink)
    }

    /// Whether there is a sink.
    pub(crate) fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Tells the sink, if there is one; `event` is only made then. Returns false if the sink panicked.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) -> bool {
        match &self.0 {
            None => true,
            Some(sink) => {
                let event = event();
                call_user(|| sink.event(&event)).is_ok()
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Events(on)" } else { "Events(off)" })
    }
}

/// Forwards events to [`tracing`]: failures and fallbacks as warnings, the rest as debug events, all under the target
/// `fuseline`.
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingSink;

#[cfg(feature = "tracing")]
impl EventSink for TracingSink {
    fn event(&self, event: &Event) {
        let region = event.region().map(ToString::to_string);
        let (name, region) = (event.name(), region.as_deref());
        match event {
            Event::CompileFailed { .. }
            | Event::Fallback { .. }
            | Event::OutOfMemory { .. }
            | Event::NotInterpreted { .. }
            | Event::RecompileStorm { .. }
            | Event::Compared { difference: Some(_), .. }
            | Event::Poisoned { .. }
            | Event::Panicked { .. } => {
                tracing::warn!(target: "fuseline", event = name, region, "{event}");
            }
            _ => tracing::debug!(target: "fuseline", event = name, region, "{event}"),
        }
    }
}
