//! Runs a region as several smaller ones.
//!
//! Input: a job and a [`Partition`]. Output: regions with the same ops and results, in order. Each
//! becomes a job of its own.

use std::collections::BTreeSet;

use fuseline_fusion::Bytes;
use fuseline_fusion::region::Boundary;

use super::{Job, Progress, QuarantineScope};
use crate::device::{Cause, DeviceError};
use crate::engine::stream::StreamShared;
use crate::event::Event;
use crate::execute::EngineRegion;

/// How a region is partitioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::execute) enum Partition {
    /// Each op by itself.
    Ops,
    /// In two where least memory is alive.
    Halves,
    /// The units that a merged region was made of.
    Units,
    /// Before these ops, where the sizes of a region vary.
    At(Vec<usize>),
    /// Before and after each of these ops, so that each is a region.
    Around(Vec<usize>),
}

/// The parts of a region.
pub(in crate::execute) struct Parts {
    pub(in crate::execute) regions: Vec<EngineRegion>,
    /// The memory need of the whole region, if that is the reason.
    pub(in crate::execute) part_of: Option<Bytes>,
    /// Whether the parts are kept from the compiler.
    pub(in crate::execute) quarantine: QuarantineScope,
}

impl Parts {
    fn of(regions: Vec<EngineRegion>) -> Parts {
        Parts { regions, part_of: None, quarantine: QuarantineScope::None }
    }
}

impl Job {
    fn into_parts(self, partition: &Partition) -> Vec<EngineRegion> {
        let count = self.ops();
        let region = self.into_region();
        match partition {
            Partition::Ops => region.split(),
            Partition::Units => region.into_units(),
            Partition::At(places) => region.cut(places, Boundary::Sizes),
            Partition::Around(ops) => {
                let places: BTreeSet<usize> = ops.iter().flat_map(|&op| [op, op + 1]).collect();
                let places: Vec<usize> =
                    places.into_iter().filter(|place| (1..count).contains(place)).collect();
                region.cut(&places, Boundary::Fallback)
            }
            Partition::Halves => match region.halve() {
                Ok(halves) => Vec::from(halves),
                // Not reached: whoever halves a region has several ops.
                Err(region) => region.split(),
            },
        }
    }

    /// Runs the region in parts without counting or reporting it.
    pub(super) fn run_ops(self) -> Progress {
        Progress::Parts(Parts::of(self.into_parts(&Partition::Ops)))
    }

    /// Runs the region as its units, or in parts few of which are new.
    pub(super) fn run_partition(self, partition: &Partition, stream: &StreamShared) -> Progress {
        let regions = match partition {
            Partition::Units => self.into_unmerged(stream),
            partition => self.into_reported_parts(partition, stream, || {
                "few of its ops come at sizes that vary, so that not much is new of another size".to_owned()
            }),
        };
        Progress::Parts(Parts::of(regions))
    }

    /// The units of a merged region that run instead of it.
    pub(super) fn into_unmerged(self, stream: &StreamShared) -> Vec<EngineRegion> {
        let (region, units) = (self.info.reference, self.units.len());
        stream.engine().emit(|| Event::RanUnmerged { region, units });
        self.into_parts(&Partition::Units)
    }

    /// Runs the region, which has several ops, in parts that need less memory at once: its units if
    /// it was merged, or else two halves.
    pub(super) fn in_parts(self, why: &DeviceError, stream: &StreamShared) -> Progress {
        debug_assert!(self.ops() > 1, "bug: {} has no parts", self.info.reference);
        let partition = if self.is_merged() { Partition::Units } else { Partition::Halves };
        let regions = self.into_reported_parts(&partition, stream, || why.message.clone());
        let part_of = match why.cause {
            Cause::Oversized(whole) => Some(whole),
            _ => None,
        };
        Progress::Parts(Parts { part_of, ..Parts::of(regions) })
    }

    /// Runs the ops that the plugin computes wrongly by themselves, and those between them as
    /// regions.
    pub(super) fn isolate(self, ops: Vec<usize>, why: String, stream: &StreamShared) -> Progress {
        stream.engine().counters().fallbacks.add(1);
        let regions = self.into_reported_parts(&Partition::Around(ops), stream, || why);
        Progress::Parts(Parts::of(regions))
    }

    /// Runs the region op by op.
    pub(super) fn split(self, why: String, stream: &StreamShared) -> Progress {
        self.split_in(QuarantineScope::None, why, stream)
    }

    /// As [`Job::split`], for ops that are kept from the compiler.
    pub(super) fn split_in(self, scope: QuarantineScope, why: String, stream: &StreamShared) -> Progress {
        let engine = stream.engine();
        engine.counters().fallbacks.add(1);
        let region = self.info.reference;
        engine.emit(|| Event::Fallback { region, why });
        Progress::Parts(Parts { quarantine: scope, ..Parts::of(self.into_parts(&Partition::Ops)) })
    }

    fn into_reported_parts(
        self,
        partition: &Partition,
        stream: &StreamShared,
        why: impl FnOnce() -> String,
    ) -> Vec<EngineRegion> {
        let (engine, region) = (stream.engine(), self.info.reference);
        let parts = self.into_parts(partition);
        engine.counters().partitioned.add(1);
        engine.emit(|| Event::InParts {
            region,
            parts: parts.iter().map(|part| part.sites.len()).collect(),
            why: why(),
        });
        parts
    }
}
