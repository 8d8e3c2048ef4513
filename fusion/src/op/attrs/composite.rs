//! Attributes of composites.

use crate::attr::{AttrDef, AttrKind, Attrs};

pub(in crate::op) static COMPOSITE: [AttrDef; 1] = [AttrDef::required("name", AttrKind::Name)];

/// Attributes of `composite`.
#[must_use]
pub fn composite(name: &str) -> Attrs {
    Attrs::from([name.into()])
}
