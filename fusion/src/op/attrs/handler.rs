//! Attributes of calls to handlers.

use crate::attr::{AttrDef, AttrKind, Attrs};
use crate::handler::Config;

/// Positions of the attributes of `custom_call`.
pub mod custom_call_at {
    /// The name of the target.
    pub const TARGET: usize = 0;
    /// The configuration.
    pub const CONFIG: usize = 1;
    /// Whether the target has a side effect.
    pub const EFFECT: usize = 2;
}

pub(in crate::op) static CUSTOM_CALL: [AttrDef; 3] = [
    AttrDef::required("call_target_name", AttrKind::Name),
    AttrDef::required("backend_config", AttrKind::Config),
    AttrDef::required("has_side_effect", AttrKind::Bool),
];

/// Attributes of `custom_call`. `has_side_effect` is that of the target
/// ([`crate::handler::Target::has_side_effect`]).
#[must_use]
pub fn custom_call(target: &str, config: Config, has_side_effect: bool) -> Attrs {
    Attrs::from([target.into(), config.into(), has_side_effect.into()])
}
