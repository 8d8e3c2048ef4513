//! Types that describe the contents of events.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, Difference};
use fuseline_fusion::region::{Input, Output};
use fuseline_fusion::{Bytes, OpCode, Site};

use crate::region::{RegionInfo, RegionRef};

/// One difference between a missed region and the most similar earlier one.
#[derive(Clone, Debug)]
pub struct Change {
    /// What differs.
    pub difference: Difference,
    /// Call site of the first op that it concerns.
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
    /// No region with this sequence of ops, or with half of it, was seen before.
    New,
    /// No region with this sequence of ops was seen before. Holds the first difference from the
    /// most similar one.
    Ops(OpsDiffer),
    /// A region with the same ops is known. Holds the differences.
    Changed(Vec<Change>),
    /// The region is known, but was not compiled for these outputs: other values are needed after
    /// it now.
    Outputs,
    /// The region is known, but the cache has no executable of it: it was not compiled, or was
    /// evicted.
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
            Miss::Gone => f.write_str(
                "it is known, but none of its executables is in the cache: \
                                       it was not compiled, or was evicted",
            ),
        }
    }
}

/// How the ops of a region differ from those of the most similar known region, which has the most
/// ops in common at the beginning and the end.
#[derive(Clone, Debug)]
pub struct OpsDiffer {
    /// Number of common ops.
    pub alike: usize,
    /// Number of ops of the region.
    pub of: usize,
    /// Number of the first op that differs.
    pub place: usize,
    /// That op with its call site; `None` if the region ends there.
    pub now: Option<(OpCode, Site)>,
    /// The same in the known region.
    pub then: Option<(OpCode, Site)>,
}

impl fmt::Display for OpsDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpsDiffer { alike, of, place, now, then } = self;
        write!(
            f,
            "its sequence of ops is new; {alike} of its {of} ops match the nearest known region, but op {place} "
        )?;
        match now {
            Some((op, site)) => write!(f, "is {op}, recorded at {site}, ")?,
            None => f.write_str("is missing, ")?,
        }
        match then {
            Some((op, site)) => write!(f, "where the known one has {op}, recorded at {site}"),
            None => f.write_str("where the known one ends"),
        }
    }
}

/// Something that varies among regions of the same ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Varies {
    /// The size of a dimension of an input.
    Dimension {
        /// Number of the region's input.
        input: usize,
        /// Number of the dimension.
        axis: usize,
    },
    /// The element type or rank of an input.
    Type {
        /// Number of the region's input.
        input: usize,
    },
    /// An attribute of an op.
    Attribute {
        /// Number of the op in the region.
        node: usize,
        /// The op.
        op: OpCode,
        /// Name of the attribute.
        name: &'static str,
    },
}

/// What varies among regions of the same ops, with its recent values.
#[derive(Clone, Debug)]
pub struct Varying {
    /// What varies.
    pub what: Varies,
    /// Its recent values, the latest last.
    pub latest: Vec<String>,
    /// Call site of the op, or of the first op that reads the input.
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
                "let the engine pad it (EngineConfig::shape_classes), or pad it to its largest size and mask the rest"
            }
            Varies::Type { .. } => "convert it to one type first",
            Varies::Attribute { .. } => "if it is a position, pass it as an operand (dynamic_slice, gather)",
        };
        write!(f, " was recently {}, recorded at {}: {advice}", self.latest.join(", "), self.site)
    }
}

/// How the host read a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Asked {
    /// A thread waited for the data.
    Read,
    /// A thread waited until the value was computed, and did not copy it.
    Wait,
    /// Nobody waited: a future or a callback gets the data.
    Async,
}

/// The live values that were made at a call site.
#[derive(Clone, Debug)]
pub struct LeakSite {
    /// Call site of the ops that made them.
    pub site: Site,
    /// Number of values.
    pub values: usize,
    /// Their memory on all replicas.
    pub bytes: Bytes,
}

/// The contents of a sealed region. Cheap to clone.
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

    /// The region.
    #[must_use]
    pub fn region(&self) -> RegionRef {
        self.info.reference
    }

    /// Its ops, in canonical form.
    #[must_use]
    pub fn canon(&self) -> &CanonRegion {
        &self.info.canon
    }

    /// Call site of each op, parallel to the nodes of its graph.
    #[must_use]
    pub fn sites(&self) -> &[Site] {
        &self.info.sites
    }

    /// The values that it reads, parallel to the parameters of its graph.
    #[must_use]
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The values that it computes, parallel to the results of its graph.
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

/// The remedy after memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Unused executables were dropped. The operation is retried when everything that was in flight
    /// has ended.
    Freed {
        /// Number of cache entries that were dropped.
        executables: usize,
        /// Memory that they occupied.
        bytes: Bytes,
        /// Number of regions in flight, on all streams.
        in_flight: usize,
    },
    /// The region runs in parts.
    Parts,
    /// None: the operation fails.
    None,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Freed { executables, bytes, in_flight } => write!(
                f,
                "dropped {executables} cached executables ({bytes}); it is retried when \
                 {in_flight} regions in flight have ended"
            ),
            Remedy::Parts => f.write_str("it runs in parts"),
            Remedy::None => f.write_str("no remedy is left"),
        }
    }
}

/// A cache outside of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheTier {
    /// A folder of the user.
    Disk,
    /// An object store of a fleet.
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

/// What happens about a plugin without a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QualificationStatus {
    /// Nothing: the user may qualify it.
    Missing {
        /// The command that does so.
        command: String,
    },
    /// A qualification has started in the background.
    Started,
    /// A qualification has ended.
    Finished {
        /// How many ops and element types the plugin computes wrongly. They are not compiled any
        /// more.
        defects: usize,
    },
}

impl fmt::Display for QualificationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QualificationStatus::Missing { command } => {
                write!(f, "its results are not verified; `{command}` verifies them")
            }
            QualificationStatus::Started => {
                f.write_str("a quick qualification has started in the background, at the lowest priority")
            }
            QualificationStatus::Finished { defects: 0 } => {
                f.write_str("the qualification has ended, and found nothing wrong")
            }
            QualificationStatus::Finished { defects } => write!(
                f,
                "the qualification has ended, and found {defects} pairs of an op and an element type \
                 wrong; the interpreter computes them from now on"
            ),
        }
    }
}
