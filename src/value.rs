//! Values as the engine knows them: what becomes of one, and which region made it.
//!
//! The cells themselves are the recorder's ([`fuseline_record::value`]).

use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::graph::Ref;
use fuseline_fusion::{OpCode, Scalar, Site};
use fuseline_record::value;
use fuseline_sync::StatCounter;
use fuseline_sync::atomic::{AtomicU64, Ordering};
use fuseline_sync::once::Abandoned;

use crate::device::Buffer;
use crate::error::{Failure, RegionRef};
use crate::trace::BodyPosition;

/// A value.
pub(crate) type ValueCell = value::ValueCell<Outcome>;

/// The engine's duty to make a value.
pub(crate) type ValuePromise = value::ValuePromise<Outcome>;

/// A reference to a value, as regions hold it.
pub(crate) type ValueRef = value::ValueRef<Outcome>;

/// What is known of a region after it was sealed: for events, errors and explanations.
#[derive(Debug)]
pub(crate) struct RegionInfo {
    pub(crate) reference: RegionRef,
    pub(crate) canon: Arc<CanonRegion>,
    /// Where each op was recorded.
    pub(crate) sites: Arc<Vec<Site>>,
    /// Where it stands among the regions of its stream that were launched, from 1 on; 0 before
    /// that.
    launched: AtomicU64,
}

impl RegionInfo {
    pub(crate) fn new(reference: RegionRef, canon: Arc<CanonRegion>, sites: Arc<Vec<Site>>) -> RegionInfo {
        RegionInfo { reference, canon, sites, launched: AtomicU64::new(0) }
    }

    /// It is launched as the region with this number, before anybody has a result.
    pub(crate) fn set_launched(&self, number: u64) {
        self.launched.store(number, Ordering::Relaxed);
    }

    /// Its number, for who has a result.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// Op and call site of a node.
    pub(crate) fn address(&self, node: usize) -> (Option<OpCode>, Site) {
        let op = self.canon.graph().nodes().get(node).map(|node| node.signature().op());
        (op, self.sites.get(node).cloned().unwrap_or_default())
    }
}

/// Which region made a value, and as which result.
#[derive(Clone, Debug)]
pub(crate) struct Producer {
    pub(crate) region: Arc<RegionInfo>,
    pub(crate) result: u32,
}

impl Producer {
    /// Op and call site.
    pub(crate) fn address(&self) -> (Option<OpCode>, Site) {
        match self.region.canon.graph().maker(Ref::Result(self.result)) {
            Some(node) => self.region.address(node),
            None => (None, Site::Unknown),
        }
    }
}

/// How a value turned out.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its data is on the device, or on its way there.
    Data {
        buffer: Buffer,
        /// `None` for data from the host.
        maker: Option<Producer>,
    },
    /// It is a lifted scalar, known to the host.
    Scalar(Scalar),
    /// It belongs to a body that is or was recorded, and has no data of its own.
    Traced(BodyPosition),
    /// It could not be computed.
    Failed(Arc<Failure>),
    /// Nobody will compute it.
    Abandoned,
}

impl Abandoned for Outcome {
    fn abandoned() -> Outcome {
        Outcome::Abandoned
    }
}

impl value::Outcome for Outcome {
    type BodyPosition = BodyPosition;

    #[inline]
    fn of_scalar(scalar: Scalar) -> Outcome {
        Outcome::Scalar(scalar)
    }

    #[inline]
    fn as_scalar(&self) -> Option<Scalar> {
        match self {
            Outcome::Scalar(scalar) => Some(*scalar),
            _ => None,
        }
    }

    #[inline]
    fn body_position(&self) -> Option<&BodyPosition> {
        match self {
            Outcome::Traced(position) => Some(position),
            _ => None,
        }
    }
}

/// A counter that many threads add to and anybody reads.
#[derive(Debug)]
pub(crate) struct Counter(StatCounter);

impl Counter {
    pub(crate) fn new() -> Counter {
        Counter(StatCounter::new(0))
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Makes it at least so much.
    pub(crate) fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
