//! Attributes of the ops of the CHLO dialect.

use super::{DotDimensionNumbers, PRECISION};
use crate::attr::{AttrDef, AttrKind, AttrValue, Attrs, StructDef};
use crate::dtype::DType;

pub(in crate::op) static TOP_K: [AttrDef; 2] =
    [AttrDef::required("k", AttrKind::Int), AttrDef::optional("is_stable", AttrKind::Bool)];

/// Attributes of `top_k`.
#[must_use]
pub fn top_k(k: i64) -> Attrs {
    Attrs::from([k.into(), AttrValue::Absent])
}

static RAGGED_DIMS: StructDef = StructDef {
    mnemonic: "ragged_dot",
    keyword: "",
    fields: &[
        AttrDef::required("lhs_batching_dimensions", AttrKind::Ints),
        AttrDef::required("rhs_batching_dimensions", AttrKind::Ints),
        AttrDef::required("lhs_contracting_dimensions", AttrKind::Ints),
        AttrDef::required("rhs_contracting_dimensions", AttrKind::Ints),
        AttrDef::required("lhs_ragged_dimensions", AttrKind::Ints),
        AttrDef::required("rhs_group_dimensions", AttrKind::Ints),
    ],
};
pub(in crate::op) static RAGGED_DOT: [AttrDef; 3] = [
    AttrDef::required("ragged_dot_dimension_numbers", AttrKind::Struct(&RAGGED_DIMS)),
    AttrDef::optional("precision_config", AttrKind::Enums(&PRECISION)),
    AttrDef::from_result("dtype", AttrKind::DType),
];

/// Dimension numbers of a `ragged_dot`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaggedDotDimensionNumbers<'a> {
    /// Batching and contracting dimensions, as in `dot_general`.
    pub dot: DotDimensionNumbers<'a>,
    /// The dimension of lhs that is divided into groups: free, contracting or batching.
    pub lhs_ragged: i64,
    /// The dimension of rhs with one element per group, if the ragged one is free.
    pub rhs_group: Option<i64>,
}

/// Attributes of `ragged_dot` at the default precision; `dtype` is the result's element type.
#[must_use]
pub fn ragged_dot(dims: RaggedDotDimensionNumbers<'_>, dtype: DType) -> Attrs {
    let group = AttrValue::Struct(Box::new([
        dims.dot.lhs_batching.into(),
        dims.dot.rhs_batching.into(),
        dims.dot.lhs_contracting.into(),
        dims.dot.rhs_contracting.into(),
        [dims.lhs_ragged][..].into(),
        dims.rhs_group.as_slice().into(),
    ]));
    Attrs::from([group, AttrValue::Absent, dtype.into()])
}

/// In the order of [`crate::op::infer::chlo::scan_attr`].
pub(in crate::op) static SCAN: [AttrDef; 6] = [
    AttrDef::required("dimension", AttrKind::Int),
    AttrDef::optional("scan_dim_size", AttrKind::Int),
    AttrDef::optional("is_reverse", AttrKind::Bool),
    AttrDef::optional("is_associative", AttrKind::Bool),
    AttrDef::required("operandSegmentSizes", AttrKind::Ints),
    AttrDef::required("resultSegmentSizes", AttrKind::Ints),
];

/// Attributes of `scan` over `inputs` inputs with `carries` carried values and `outputs` outputs,
/// along `dimension`, from its end if `reverse`.
#[must_use]
pub fn scan(dimension: i64, reverse: bool, inputs: usize, outputs: usize, carries: usize) -> Attrs {
    let segments = |first: usize| AttrValue::from(&[first as i64, carries as i64][..]);
    Attrs::from([
        dimension.into(),
        AttrValue::Absent,
        if reverse { true.into() } else { AttrValue::Absent },
        AttrValue::Absent,
        segments(inputs),
        segments(outputs),
    ])
}
