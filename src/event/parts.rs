//! What events say, in types of their own.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, Difference};
use fuseline_fusion::region::{Input, Output};
use fuseline_fusion::{Bytes, OpCode, Site};

use crate::error::RegionRef;
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
    /// No region with this sequence of ops was seen before, nor one with half of it.
    New,
    /// No region with this sequence of ops was seen before; this is where it parts from the nearest
    /// one.
    Ops(OpsDiffer),
    /// A region with the same ops is known; these are the differences.
    Changed(Vec<Change>),
    /// The region is known, but was not compiled for these outputs: other values are alive after it
    /// now.
    Outputs,
    /// The region is known, and no executable of it is in the cache: it was not compiled, or has
    /// made room for others.
    Gone,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::New => f.write_str("its sequence of ops is new"),
            Miss::Ops(differ) => differ.fmt(f),
            Miss::Changed(changes) => {
                f.write_str("it differs from the last region of the same ops: ")?;
                for (i, change) in changes.iter().enumerate() {
                    if i > 0 {
                        f.write_str("; ")?;
                    }
                    change.fmt(f)?;
                }
                Ok(())
            }
            Miss::Outputs => f.write_str("other values are alive after it than when it was compiled"),
            Miss::Gone => f.write_str("it is known, but none of its executables is in the cache: it was not compiled, or has made room"),
        }
    }
}

/// How the ops of a region differ from those of the nearest region that is known: the one with
/// which it has most ops in common at its beginning and end.
#[derive(Clone, Debug)]
pub struct OpsDiffer {
    /// Ops in common.
    pub alike: usize,
    /// Ops of the region.
    pub of: usize,
    /// Number of the first op that is another one.
    pub place: usize,
    /// That op, and where it was recorded; `None` if the region has ended there.
    pub now: Option<(OpCode, Site)>,
    /// The same of the region that is known.
    pub then: Option<(OpCode, Site)>,
}

impl fmt::Display for OpsDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpsDiffer { alike, of, place, now, then } = self;
        write!(
            f,
            "its sequence of ops is new; {alike} of its {of} ops are those of the nearest known region, but op {place} "
        )?;
        match now {
            Some((op, site)) => write!(f, "is {op}, recorded at {site}, ")?,
            None => f.write_str("is missing, ")?,
        }
        match then {
            Some((op, site)) => write!(f, "where that one has {op}, recorded at {site}"),
            None => f.write_str("where that one ends"),
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
                "let the engine pad it (EngineConfig::shape_classes), or keep it at its largest and mask what is not used"
            }
            Varies::Type { .. } => "convert it to one type first",
            Varies::Attribute { .. } => "where it is a place, say it by an operand (dynamic_slice, gather)",
        };
        write!(f, " was {} lately, recorded at {}: {advice}", self.latest.join(", "), self.site)
    }
}

/// What kept a sealed region from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Wait {
    /// Its executable was being compiled.
    Compile,
    /// It was being interpreted.
    Interpreter,
    /// An input was not there yet, which another stream makes.
    Input,
    /// As much was in flight as is allowed, or memory had run out and what was in flight had to
    /// end.
    InFlight,
}

impl Wait {
    /// A short name for logs and reports (`in_flight`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Wait::Compile => "compile",
            Wait::Interpreter => "interpreter",
            Wait::Input => "input",
            Wait::InFlight => "in_flight",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wait::Compile => "its compile",
            Wait::Interpreter => "the interpreter",
            Wait::Input => "an input that another stream makes",
            Wait::InFlight => "what is in flight before it",
        })
    }
}

/// How the host asked for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Asked {
    /// A thread waited for the data.
    Read,
    /// A thread waited until it was computed, and did not copy it.
    Wait,
    /// Nobody waited: a future or a callback gets the data.
    Async,
}

/// Values that were made at a call site and are alive.
#[derive(Clone, Debug)]
pub struct LeakSite {
    /// Where the ops that made them were recorded.
    pub site: Site,
    /// How many there are.
    pub values: usize,
    /// The memory that they take, on all replicas.
    pub bytes: Bytes,
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
    /// Executables that nobody used were dropped, and it is tried again when what was in flight has
    /// ended.
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

/// A cache outside of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheTier {
    /// A folder of the user's.
    Disk,
    /// An object store of a fleet's.
    Shared,
}

impl fmt::Display for CacheTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheTier::Disk => "disk cache",
            CacheTier::Shared => "shared cache",
        })
    }
}
