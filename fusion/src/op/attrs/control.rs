//! Attributes of control flow and `sort`.

use crate::attr::{AttrDef, AttrKind, Attrs};

pub(in crate::op) static SORT: [AttrDef; 2] =
    [AttrDef::required("dimension", AttrKind::Int), AttrDef::required("is_stable", AttrKind::Bool)];

/// Attributes of `sort`. The dimension is not negative.
#[must_use]
pub fn sort(dimension: i64, is_stable: bool) -> Attrs {
    Attrs::from([dimension.into(), is_stable.into()])
}
