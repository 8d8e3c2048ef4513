//! The arithmetic of a device: what the specification leaves open.
//!
//! Plain data. [`crate::lower::Target::arithmetic`] says it of a device, and an interpreter that
//! stands in for the device follows it.

use crate::dtype::DTypeSet;

/// How sums of products are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOrder {
    /// One term after the other: what others are compared with.
    InOrder,
    /// As is fastest, for products and convolutions of `f32`, and in blocks for its sums (J4):
    /// those err less.
    AnyOrder,
}

/// How a device computes, where the specification leaves that open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// How sums of products may be taken.
    pub sums: SumOrder,
    /// Element types whose subnormal numbers ops that compute read and write as zeros of the same
    /// sign ([`crate::subnormal`]). A complex number is flushed in both parts where its part's type
    /// is in the set.
    pub flushed: DTypeSet,
}

impl Arithmetic {
    /// What the specification says: sums in order, and subnormal numbers are numbers.
    pub const REFERENCE: Arithmetic = Arithmetic { sums: SumOrder::InOrder, flushed: DTypeSet::NONE };

    /// The same for a body that is called for each element: its sums are taken in order.
    #[inline]
    #[must_use]
    pub fn in_order(self) -> Arithmetic {
        Arithmetic { sums: SumOrder::InOrder, ..self }
    }
}
