//! Values as the engine instantiates them: their outcomes, and the regions that produce them.
//!
//! The cells themselves belong to the recorder ([`fuseline_record::value`]).

use std::sync::Arc;

use fuseline_fusion::ir::Ref;
use fuseline_fusion::{OpCode, Scalar, Site};
use fuseline_record::value;
use fuseline_sync::once::Abandoned;

use crate::device::Buffer;
use crate::engine::BodyPosition;
use crate::error::Failure;
use crate::region::RegionInfo;

/// A value.
pub type ValueCell = value::ValueCell<Outcome>;

/// The engine's promise to produce a value.
pub(crate) type ValuePromise = value::ValuePromise<Outcome>;

/// A reference to a value, as regions hold it.
pub(crate) type ValueRef = value::ValueRef<Outcome>;

/// The region that produced a value, and the index of the result.
#[derive(Clone, Debug)]
pub struct Producer {
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

/// The outcome of a value.
#[derive(Debug)]
pub enum Outcome {
    /// The data is on the device, or on its way there.
    Data {
        /// The data.
        buffer: Buffer,
        /// `None` for data from the host.
        maker: Option<Producer>,
    },
    /// A lifted scalar, which the host knows.
    Scalar(Scalar),
    /// A value of a body that is or was recorded; it has no data of its own.
    Traced(BodyPosition),
    /// The value could not be computed.
    Failed(Arc<Failure>),
    /// The value will never be computed, because its stream or engine was dropped.
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
