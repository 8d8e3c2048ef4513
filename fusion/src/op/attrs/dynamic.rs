//! Attributes of ops whose sizes are operands, and of `rng`.
//!
//! A call infers the types of its handles at once. A recorded call with dynamic sizes therefore
//! carries the result's shape, in addition to the operand that gives it when the program runs.

use super::{CONV_DIMS, GATHER_DIMS, IndexDimensionNumbers, PRECISION, RNG_DISTRIBUTION};
use crate::attr::{AttrDef, AttrKind, AttrValue, Attrs};
use crate::op::conv_attr;
use crate::op::enums::RngDistribution;
use crate::shape::Shape;

/// Attributes of `get_dimension_size`.
#[must_use]
pub fn get_dimension_size(dimension: i64) -> Attrs {
    Attrs::from([dimension.into()])
}

pub(in crate::op) static RNG: [AttrDef; 2] = [
    AttrDef::required("rng_distribution", AttrKind::Enum(&RNG_DISTRIBUTION)),
    AttrDef::from_result("shape", AttrKind::Shape),
];

/// Attributes of `rng`.
#[must_use]
pub fn rng(distribution: RngDistribution, shape: Shape) -> Attrs {
    Attrs::from([distribution.into(), shape.into()])
}

pub(in crate::op) static DYNAMIC_BROADCAST_IN_DIM: [AttrDef; 4] = [
    AttrDef::from_result("shape", AttrKind::Shape),
    AttrDef::required("broadcast_dimensions", AttrKind::Ints),
    AttrDef::optional("known_expanding_dimensions", AttrKind::Ints),
    AttrDef::optional("known_nonexpanding_dimensions", AttrKind::Ints),
];

/// Attributes of `dynamic_broadcast_in_dim`, without lists of dimensions that are known to expand
/// or not.
#[must_use]
pub fn dynamic_broadcast_in_dim(shape: Shape, broadcast_dimensions: &[i64]) -> Attrs {
    Attrs::from([shape.into(), broadcast_dimensions.into(), AttrValue::Absent, AttrValue::Absent])
}

/// As for `convolution`, at the same positions, with the result's shape in place of the padding.
pub(in crate::op) static DYNAMIC_CONV: [AttrDef; 10] = [
    AttrDef::required("window_strides", AttrKind::Ints),
    AttrDef::from_result("shape", AttrKind::Shape),
    AttrDef::required("lhs_dilation", AttrKind::Ints),
    AttrDef::required("rhs_dilation", AttrKind::Ints),
    AttrDef::required("window_reversal", AttrKind::Bools),
    AttrDef::required("dimension_numbers", AttrKind::Struct(&CONV_DIMS)),
    AttrDef::required("feature_group_count", AttrKind::Int),
    AttrDef::required("batch_group_count", AttrKind::Int),
    AttrDef::optional("precision_config", AttrKind::Enums(&PRECISION)),
    AttrDef::from_result("dtype", AttrKind::DType),
];

/// Attributes of `dynamic_conv`: those of a `convolution` without the padding, and the result's
/// shape.
///
/// # Panics
/// If the attributes are not those of a `convolution`.
#[must_use]
pub fn dynamic_conv(convolution: &Attrs, shape: Shape) -> Attrs {
    let mut values = convolution.values().to_vec();
    values[conv_attr::PADDING] = shape.into();
    values.into_iter().collect()
}

pub(in crate::op) static DYNAMIC_GATHER: [AttrDef; 3] = [
    AttrDef::required("dimension_numbers", AttrKind::Struct(&GATHER_DIMS)),
    AttrDef::from_result("shape", AttrKind::Shape),
    AttrDef::required("indices_are_sorted", AttrKind::Bool),
];

/// Attributes of `dynamic_gather`.
#[must_use]
pub fn dynamic_gather(dims: IndexDimensionNumbers<'_>, shape: Shape, indices_are_sorted: bool) -> Attrs {
    Attrs::from([dims.into(), shape.into(), indices_are_sorted.into()])
}
