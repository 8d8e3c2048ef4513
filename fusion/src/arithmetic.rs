//! How a device computes where the StableHLO specification leaves a choice.
//!
//! Plain data. [`crate::lower::Target::arithmetic`] gives the arithmetic of a device. An
//! interpreter that stands in for the device follows it.

use crate::dtype::DTypeSet;

/// The order in which sums of products are accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOrder {
    /// One term after the other. This is the reference order.
    InOrder,
    /// The fastest order for products and convolutions of `f32`, and blockwise for sums of `f32`,
    /// which lowers their rounding error (INTERP-4).
    AnyOrder,
}

/// The arithmetic of a device, where the specification leaves a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The order of sums of products.
    pub sums: SumOrder,
    /// Element types whose subnormal numbers are flushed: ops that compute read and write them as
    /// zeros of the same sign ([`crate::subnormal`]). A complex number is flushed in both parts if
    /// the set contains the type of its parts.
    pub flushed: DTypeSet,
}

impl Arithmetic {
    /// The arithmetic of the specification: sums in order, no flushing.
    pub const REFERENCE: Arithmetic = Arithmetic { sums: SumOrder::InOrder, flushed: DTypeSet::NONE };

    /// The same arithmetic with sums in order, for a body that is called for each element.
    #[inline]
    #[must_use]
    pub fn in_order(self) -> Arithmetic {
        Arithmetic { sums: SumOrder::InOrder, ..self }
    }
}
