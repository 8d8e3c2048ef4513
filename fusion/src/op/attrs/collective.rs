//! Attributes of the collective ops.

use crate::attr::{AttrDef, AttrKind, AttrValue, Attrs, StructDef};
use crate::groups::Groups;

static CHANNEL: StructDef = StructDef {
    mnemonic: "channel_handle",
    keyword: "",
    fields: &[AttrDef::required("handle", AttrKind::Int), AttrDef::required("type", AttrKind::Int)],
};

const GROUPS: AttrDef = AttrDef::required("replica_groups", AttrKind::Groups);
const CHANNEL_HANDLE: AttrDef = AttrDef::optional("channel_handle", AttrKind::Struct(&CHANNEL));
const GLOBAL_IDS: AttrDef = AttrDef::optional("use_global_device_ids", AttrKind::Unit);

pub(in crate::op) static ALL_GATHER: [AttrDef; 4] =
    [GROUPS, AttrDef::required("all_gather_dim", AttrKind::Int), CHANNEL_HANDLE, GLOBAL_IDS];

/// Attributes of `all_gather` over the replicas.
#[must_use]
pub fn all_gather(groups: Groups, all_gather_dim: i64) -> Attrs {
    Attrs::from([groups.into(), all_gather_dim.into(), AttrValue::Absent, AttrValue::Absent])
}

pub(in crate::op) static ALL_REDUCE: [AttrDef; 3] = [GROUPS, CHANNEL_HANDLE, GLOBAL_IDS];

/// Attributes of `all_reduce` over the replicas.
#[must_use]
pub fn all_reduce(groups: Groups) -> Attrs {
    Attrs::from([groups.into(), AttrValue::Absent, AttrValue::Absent])
}

pub(in crate::op) static ALL_TO_ALL: [AttrDef; 5] = [
    GROUPS,
    AttrDef::required("split_dimension", AttrKind::Int),
    AttrDef::required("concat_dimension", AttrKind::Int),
    AttrDef::required("split_count", AttrKind::Int),
    CHANNEL_HANDLE,
];

/// Attributes of `all_to_all` over the replicas. The operand is split into as many parts as a group
/// has members.
#[must_use]
pub fn all_to_all(groups: Groups, split_dimension: i64, concat_dimension: i64) -> Attrs {
    let count = groups.columns() as i64;
    Attrs::from([
        groups.into(),
        split_dimension.into(),
        concat_dimension.into(),
        count.into(),
        AttrValue::Absent,
    ])
}

pub(in crate::op) static COLLECTIVE_BROADCAST: [AttrDef; 2] = [GROUPS, CHANNEL_HANDLE];

/// Attributes of `collective_broadcast` over the replicas, from the first of each group.
#[must_use]
pub fn collective_broadcast(groups: Groups) -> Attrs {
    Attrs::from([groups.into(), AttrValue::Absent])
}

pub(in crate::op) static COLLECTIVE_PERMUTE: [AttrDef; 2] =
    [AttrDef::required("source_target_pairs", AttrKind::Pairs), CHANNEL_HANDLE];

/// Attributes of `collective_permute` over the replicas, by pairs of source and target.
#[must_use]
pub fn collective_permute(source_target_pairs: &[(i64, i64)]) -> Attrs {
    Attrs::from([source_target_pairs.into(), AttrValue::Absent])
}

pub(in crate::op) static REDUCE_SCATTER: [AttrDef; 4] =
    [GROUPS, AttrDef::required("scatter_dimension", AttrKind::Int), CHANNEL_HANDLE, GLOBAL_IDS];

/// Attributes of `reduce_scatter` over the replicas.
#[must_use]
pub fn reduce_scatter(groups: Groups, scatter_dimension: i64) -> Attrs {
    Attrs::from([groups.into(), scatter_dimension.into(), AttrValue::Absent, AttrValue::Absent])
}
