//! Infer rules: from operand types and attributes to result types.
//!
//! Each function is the `infer` of one or more rows of the op table and follows the constraints in
//! the StableHLO specification's section of that op. All arithmetic on sizes is checked: a rule
//! returns an error if a size exceeds 63 bits, and allocates nothing larger than its operands'
//! ranks.

pub(crate) mod chlo;
pub(crate) mod collective;
pub(super) mod composite;
pub(crate) mod contraction;
pub(super) mod control;
pub(crate) mod dynamic;
pub(super) mod elementwise;
pub(super) mod handler;
pub(crate) mod indexing;
pub(crate) mod linalg;
pub(super) mod movement;
pub(crate) mod reduction;
pub(super) mod source;
pub(crate) mod window;

use super::def::Call;
use crate::error::{OpError, OpErrorKind};
use crate::limits::MAX_ELEMS;

/// Converts a size computed in `i128` to a dimension.
fn dim(call: &Call<'_>, what: &str, value: i128) -> Result<u64, OpError> {
    match u64::try_from(value) {
        Ok(dim) if dim <= MAX_ELEMS => Ok(dim),
        Ok(_) => Err(call.error(
            OpErrorKind::Overflow,
            format!("{what} would be {value}"),
            "a dimension has at most 2^59 - 1 elements",
        )),
        Err(_) => {
            Err(call.shape_error(format!("{what} would be {value}"), "a dimension has at least 0 elements"))
        }
    }
}
