//! Attribute schemas of the ops and typed constructors for them.
//!
//! A schema gives the order of an op's attributes. The constructor next to it writes them in that
//! order, so no other code depends on it.

mod chlo;
mod collective;
mod composite;
mod control;
mod dynamic;
mod handler;
mod linalg;

use std::sync::Arc;

pub(super) use chlo::{RAGGED_DOT, SCAN, TOP_K};
pub use chlo::{RaggedDotDimensionNumbers, ragged_dot, scan, top_k};
pub use collective::*;
pub(super) use composite::COMPOSITE;
pub use composite::composite;
pub(super) use control::SORT;
pub use control::sort;
pub use dynamic::*;
pub(super) use handler::CUSTOM_CALL;
pub use handler::{custom_call, custom_call_at};
pub use linalg::*;

use super::enums::{Comparison, ComparisonType, RngAlgorithm};
use crate::attr::{AttrDef, AttrKind, AttrValue, Attrs, EnumDef, StructDef};
use crate::dtype::{DType, DTypeClass};
use crate::literal::Literal;
use crate::shape::Shape;

static DIRECTION: EnumDef =
    EnumDef { name: "comparison_direction", members: &["EQ", "NE", "GE", "GT", "LE", "LT"] };
static ORDER: EnumDef =
    EnumDef { name: "comparison_type", members: &["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"] };
static PRECISION: EnumDef = EnumDef { name: "precision", members: &["DEFAULT", "HIGH", "HIGHEST"] };
pub(super) static RNG_DISTRIBUTION: EnumDef =
    EnumDef { name: "rng_distribution", members: &["UNIFORM", "NORMAL"] };
static RNG_ALGORITHM: EnumDef =
    EnumDef { name: "rng_algorithm", members: &["DEFAULT", "THREE_FRY", "PHILOX"] };
/// Type names of a dot algorithm; printed without quotes, as types.
pub(super) static ALGORITHM_TYPE: EnumDef =
    EnumDef { name: "", members: &["f16", "bf16", "tf32", "f32", "f64", "f8E4M3FN", "f8E5M2", "i8", "i32"] };

pub(super) static COMPARE: [AttrDef; 2] = [
    AttrDef::required("comparison_direction", AttrKind::Enum(&DIRECTION)),
    AttrDef::required("compare_type", AttrKind::Enum(&ORDER)),
];

/// Attributes of `compare`.
#[must_use]
pub fn compare(direction: Comparison, order: ComparisonType) -> Attrs {
    Attrs::from([direction.into(), order.into()])
}

/// Attributes of `compare` with the default order of the element type: IEEE 754 for floats, the
/// integer order for others.
#[must_use]
pub fn compare_for(direction: Comparison, dtype: DType) -> Attrs {
    compare(
        direction,
        match dtype.class() {
            DTypeClass::Float | DTypeClass::Complex => ComparisonType::Float,
            DTypeClass::Signed => ComparisonType::Signed,
            DTypeClass::Unsigned | DTypeClass::Bool => ComparisonType::Unsigned,
        },
    )
}

pub(super) static DTYPE: [AttrDef; 1] = [AttrDef::from_result("dtype", AttrKind::DType)];

/// Attributes of `convert` and `bitcast_convert`.
#[must_use]
pub fn convert(dtype: DType) -> Attrs {
    Attrs::from([dtype.into()])
}

pub(super) static REDUCE_PRECISION: [AttrDef; 2] = [
    AttrDef::required("exponent_bits", AttrKind::Int32),
    AttrDef::required("mantissa_bits", AttrKind::Int32),
];

/// Attributes of `reduce_precision`.
#[must_use]
pub fn reduce_precision(exponent_bits: i64, mantissa_bits: i64) -> Attrs {
    Attrs::from([exponent_bits.into(), mantissa_bits.into()])
}

pub(super) static CONSTANT: [AttrDef; 1] = [AttrDef::required("value", AttrKind::Dense)];

/// Attributes of `constant`.
#[must_use]
pub fn constant(value: Arc<Literal>) -> Attrs {
    Attrs::from([AttrValue::Dense(value)])
}

pub(super) static IOTA: [AttrDef; 3] = [
    AttrDef::from_result("dtype", AttrKind::DType),
    AttrDef::from_result("shape", AttrKind::Shape),
    AttrDef::required("iota_dimension", AttrKind::Int),
];

/// Attributes of `iota` and `dynamic_iota`.
#[must_use]
pub fn iota(dtype: DType, shape: Shape, iota_dimension: i64) -> Attrs {
    Attrs::from([dtype.into(), shape.into(), iota_dimension.into()])
}

pub(super) static RNG_BIT_GENERATOR: [AttrDef; 3] = [
    AttrDef::required("rng_algorithm", AttrKind::Enum(&RNG_ALGORITHM)),
    AttrDef::from_result("dtype", AttrKind::DType),
    AttrDef::from_result("shape", AttrKind::Shape),
];

/// Attributes of `rng_bit_generator`; type and shape are those of the random bits.
#[must_use]
pub fn rng_bit_generator(algorithm: RngAlgorithm, dtype: DType, shape: Shape) -> Attrs {
    Attrs::from([algorithm.into(), dtype.into(), shape.into()])
}

pub(super) static BROADCAST_IN_DIM: [AttrDef; 2] = [
    AttrDef::from_result("shape", AttrKind::Shape),
    AttrDef::required("broadcast_dimensions", AttrKind::Ints),
];

/// Attributes of `broadcast_in_dim`.
#[must_use]
pub fn broadcast_in_dim(shape: Shape, broadcast_dimensions: &[i64]) -> Attrs {
    Attrs::from([shape.into(), broadcast_dimensions.into()])
}

pub(super) static RESHAPE: [AttrDef; 1] = [AttrDef::from_result("shape", AttrKind::Shape)];

/// Attributes of `reshape`, `dynamic_reshape` and `dynamic_pad`: the result's shape.
#[must_use]
pub fn reshape(shape: Shape) -> Attrs {
    Attrs::from([shape.into()])
}

pub(super) static TRANSPOSE: [AttrDef; 1] = [AttrDef::required("permutation", AttrKind::Ints)];

/// Attributes of `transpose`.
#[must_use]
pub fn transpose(permutation: &[i64]) -> Attrs {
    Attrs::from([permutation.into()])
}

pub(super) static SLICE: [AttrDef; 3] = [
    AttrDef::required("start_indices", AttrKind::Ints),
    AttrDef::required("limit_indices", AttrKind::Ints),
    AttrDef::required("strides", AttrKind::Ints),
];

/// Attributes of `slice`.
#[must_use]
pub fn slice(start_indices: &[i64], limit_indices: &[i64], strides: &[i64]) -> Attrs {
    Attrs::from([start_indices.into(), limit_indices.into(), strides.into()])
}

pub(super) static DIMENSION: [AttrDef; 1] = [AttrDef::required("dimension", AttrKind::Int)];

/// Attributes of `concatenate`.
#[must_use]
pub fn concatenate(dimension: i64) -> Attrs {
    Attrs::from([dimension.into()])
}

pub(super) static PAD: [AttrDef; 3] = [
    AttrDef::required("edge_padding_low", AttrKind::Ints),
    AttrDef::required("edge_padding_high", AttrKind::Ints),
    AttrDef::required("interior_padding", AttrKind::Ints),
];

/// Attributes of `pad`.
#[must_use]
pub fn pad(low: &[i64], high: &[i64], interior: &[i64]) -> Attrs {
    Attrs::from([low.into(), high.into(), interior.into()])
}

pub(super) static DIMENSIONS: [AttrDef; 1] = [AttrDef::required("dimensions", AttrKind::Ints)];

/// Attributes of `reverse` and `reduce`.
#[must_use]
pub fn dimensions(dimensions: &[i64]) -> Attrs {
    Attrs::from([dimensions.into()])
}

pub(super) static DYNAMIC_SLICE: [AttrDef; 1] = [AttrDef::required("slice_sizes", AttrKind::Ints)];

/// Attributes of `dynamic_slice`.
#[must_use]
pub fn dynamic_slice(slice_sizes: &[i64]) -> Attrs {
    Attrs::from([slice_sizes.into()])
}

static DOT_DIMS: StructDef = StructDef {
    mnemonic: "dot",
    keyword: "",
    fields: &[
        AttrDef::required("lhs_batching_dimensions", AttrKind::Ints),
        AttrDef::required("rhs_batching_dimensions", AttrKind::Ints),
        AttrDef::required("lhs_contracting_dimensions", AttrKind::Ints),
        AttrDef::required("rhs_contracting_dimensions", AttrKind::Ints),
    ],
};
static DOT_ALGORITHM: StructDef = StructDef {
    mnemonic: "dot_algorithm",
    keyword: "",
    fields: &[
        AttrDef::required("lhs_precision_type", AttrKind::Enum(&ALGORITHM_TYPE)),
        AttrDef::required("rhs_precision_type", AttrKind::Enum(&ALGORITHM_TYPE)),
        AttrDef::required("accumulation_type", AttrKind::Enum(&ALGORITHM_TYPE)),
        AttrDef::required("lhs_component_count", AttrKind::Int),
        AttrDef::required("rhs_component_count", AttrKind::Int),
        AttrDef::required("num_primitive_operations", AttrKind::Int),
        AttrDef::required("allow_imprecise_accumulation", AttrKind::Bool),
    ],
};
pub(super) static DOT_GENERAL: [AttrDef; 4] = [
    AttrDef::required("dot_dimension_numbers", AttrKind::Struct(&DOT_DIMS)),
    AttrDef::optional("precision_config", AttrKind::Enums(&PRECISION)),
    AttrDef::optional("algorithm", AttrKind::Struct(&DOT_ALGORITHM)),
    AttrDef::from_result("dtype", AttrKind::DType),
];

/// Dimension numbers of a `dot_general`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DotDimensionNumbers<'a> {
    /// Batch dimensions of lhs, paired with those of rhs.
    pub lhs_batching: &'a [i64],
    /// Batch dimensions of rhs.
    pub rhs_batching: &'a [i64],
    /// Contracting dimensions of lhs, paired with those of rhs.
    pub lhs_contracting: &'a [i64],
    /// Contracting dimensions of rhs.
    pub rhs_contracting: &'a [i64],
}

/// Attributes of `dot_general` at the default precision; `dtype` is the result's element type.
#[must_use]
pub fn dot_general(dims: DotDimensionNumbers<'_>, dtype: DType) -> Attrs {
    let group = AttrValue::Struct(Box::new([
        dims.lhs_batching.into(),
        dims.rhs_batching.into(),
        dims.lhs_contracting.into(),
        dims.rhs_contracting.into(),
    ]));
    Attrs::from([group, AttrValue::Absent, AttrValue::Absent, dtype.into()])
}

static CONV_DIMS: StructDef = StructDef {
    mnemonic: "conv",
    keyword: "raw",
    fields: &[
        AttrDef::required("input_batch_dimension", AttrKind::Int),
        AttrDef::required("input_feature_dimension", AttrKind::Int),
        AttrDef::required("input_spatial_dimensions", AttrKind::Ints),
        AttrDef::required("kernel_input_feature_dimension", AttrKind::Int),
        AttrDef::required("kernel_output_feature_dimension", AttrKind::Int),
        AttrDef::required("kernel_spatial_dimensions", AttrKind::Ints),
        AttrDef::required("output_batch_dimension", AttrKind::Int),
        AttrDef::required("output_feature_dimension", AttrKind::Int),
        AttrDef::required("output_spatial_dimensions", AttrKind::Ints),
    ],
};
/// In the order of [`crate::op::conv_attr`].
pub(super) static CONVOLUTION: [AttrDef; 10] = [
    AttrDef::required("window_strides", AttrKind::Ints),
    AttrDef::required("padding", AttrKind::Pairs),
    AttrDef::required("lhs_dilation", AttrKind::Ints),
    AttrDef::required("rhs_dilation", AttrKind::Ints),
    AttrDef::required("window_reversal", AttrKind::Bools),
    AttrDef::required("dimension_numbers", AttrKind::Struct(&CONV_DIMS)),
    AttrDef::required("feature_group_count", AttrKind::Int),
    AttrDef::required("batch_group_count", AttrKind::Int),
    AttrDef::optional("precision_config", AttrKind::Enums(&PRECISION)),
    AttrDef::from_result("dtype", AttrKind::DType),
];

/// The positions of batch, features and space in the input, the kernel and the output of a
/// convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are StableHLO's")]
pub struct ConvDimensionNumbers {
    pub input_batch: i64,
    pub input_feature: i64,
    pub input_spatial: Vec<i64>,
    pub kernel_input_feature: i64,
    pub kernel_output_feature: i64,
    pub kernel_spatial: Vec<i64>,
    pub output_batch: i64,
    pub output_feature: i64,
    pub output_spatial: Vec<i64>,
}

impl ConvDimensionNumbers {
    /// Batch, space, features for input and output; space, input features, output features for the
    /// kernel: `NHWC` and `HWIO` for two spatial dimensions.
    #[must_use]
    pub fn channels_last(spatial: usize) -> ConvDimensionNumbers {
        let n = spatial as i64;
        ConvDimensionNumbers {
            input_batch: 0,
            input_feature: n + 1,
            input_spatial: (1..=n).collect(),
            kernel_input_feature: n,
            kernel_output_feature: n + 1,
            kernel_spatial: (0..n).collect(),
            output_batch: 0,
            output_feature: n + 1,
            output_spatial: (1..=n).collect(),
        }
    }

    /// Batch, features, space for input and output; output features, input features, space for the
    /// kernel: `NCHW` and `OIHW` for two spatial dimensions.
    #[must_use]
    pub fn channels_first(spatial: usize) -> ConvDimensionNumbers {
        let space: Vec<i64> = (2..spatial as i64 + 2).collect();
        ConvDimensionNumbers {
            input_batch: 0,
            input_feature: 1,
            input_spatial: space.clone(),
            kernel_input_feature: 1,
            kernel_output_feature: 0,
            kernel_spatial: space.clone(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: space,
        }
    }
}

/// Window, padding, dilation and grouping of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Steps of the window, one per spatial dimension.
    pub window_strides: Vec<i64>,
    /// Padding of the input, (low, high) per spatial dimension; negative amounts remove elements.
    pub padding: Vec<(i64, i64)>,
    /// Dilation of the input; above 1 for a transposed convolution.
    pub lhs_dilation: Vec<i64>,
    /// Dilation of the kernel.
    pub rhs_dilation: Vec<i64>,
    /// Dimensions along which the kernel is reversed.
    pub window_reversal: Vec<bool>,
    /// Number of groups the features are split into.
    pub feature_group_count: i64,
    /// Number of groups the batch is split into.
    pub batch_group_count: i64,
}

impl ConvOptions {
    /// Stride 1, no padding, no dilation, one group.
    #[must_use]
    pub fn new(spatial: usize) -> ConvOptions {
        ConvOptions {
            window_strides: vec![1; spatial],
            padding: vec![(0, 0); spatial],
            lhs_dilation: vec![1; spatial],
            rhs_dilation: vec![1; spatial],
            window_reversal: vec![false; spatial],
            feature_group_count: 1,
            batch_group_count: 1,
        }
    }
}

/// Attributes of `convolution` at the default precision; `dtype` is the result's element type.
#[must_use]
pub fn convolution(dims: &ConvDimensionNumbers, options: &ConvOptions, dtype: DType) -> Attrs {
    let group = AttrValue::Struct(Box::new([
        dims.input_batch.into(),
        dims.input_feature.into(),
        dims.input_spatial.as_slice().into(),
        dims.kernel_input_feature.into(),
        dims.kernel_output_feature.into(),
        dims.kernel_spatial.as_slice().into(),
        dims.output_batch.into(),
        dims.output_feature.into(),
        dims.output_spatial.as_slice().into(),
    ]));
    Attrs::from([
        options.window_strides.as_slice().into(),
        options.padding.as_slice().into(),
        options.lhs_dilation.as_slice().into(),
        options.rhs_dilation.as_slice().into(),
        options.window_reversal.as_slice().into(),
        group,
        options.feature_group_count.into(),
        options.batch_group_count.into(),
        AttrValue::Absent,
        dtype.into(),
    ])
}

pub(super) static REDUCE_WINDOW: [AttrDef; 5] = [
    AttrDef::required("window_dimensions", AttrKind::Ints),
    AttrDef::required("window_strides", AttrKind::Ints),
    AttrDef::required("base_dilations", AttrKind::Ints),
    AttrDef::required("window_dilations", AttrKind::Ints),
    AttrDef::required("padding", AttrKind::Pairs),
];

/// Attributes of `reduce_window` without dilation.
#[must_use]
pub fn reduce_window(sizes: &[i64], strides: &[i64], padding: &[(i64, i64)]) -> Attrs {
    dilated_reduce_window(sizes, strides, &vec![1; sizes.len()], padding)
}

/// Attributes of `reduce_window` over windows whose elements lie `dilations` apart.
#[must_use]
pub fn dilated_reduce_window(
    sizes: &[i64],
    strides: &[i64],
    dilations: &[i64],
    padding: &[(i64, i64)],
) -> Attrs {
    let undilated = vec![1i64; sizes.len()];
    Attrs::from([sizes.into(), strides.into(), undilated.as_slice().into(), dilations.into(), padding.into()])
}

pub(super) static SELECT_AND_SCATTER: [AttrDef; 3] = [
    AttrDef::required("window_dimensions", AttrKind::Ints),
    AttrDef::required("window_strides", AttrKind::Ints),
    AttrDef::required("padding", AttrKind::Pairs),
];

/// Attributes of `select_and_scatter`.
#[must_use]
pub fn select_and_scatter(sizes: &[i64], strides: &[i64], padding: &[(i64, i64)]) -> Attrs {
    Attrs::from([sizes.into(), strides.into(), padding.into()])
}

static GATHER_DIMS: StructDef = StructDef {
    mnemonic: "gather",
    keyword: "",
    fields: &[
        AttrDef::required("offset_dims", AttrKind::Ints),
        AttrDef::required("collapsed_slice_dims", AttrKind::Ints),
        AttrDef::required("operand_batching_dims", AttrKind::Ints),
        AttrDef::required("start_indices_batching_dims", AttrKind::Ints),
        AttrDef::required("start_index_map", AttrKind::Ints),
        AttrDef::required("index_vector_dim", AttrKind::Int),
    ],
};
pub(super) static GATHER: [AttrDef; 3] = [
    AttrDef::required("dimension_numbers", AttrKind::Struct(&GATHER_DIMS)),
    AttrDef::required("slice_sizes", AttrKind::Ints),
    AttrDef::required("indices_are_sorted", AttrKind::Bool),
];

/// Dimension numbers of `gather` and `scatter`, which have the same parts under two names. The
/// comments give both names of each.
///
/// A window dimension of the result (gather) or of the updates (scatter) runs along the operand. A
/// collapsed dimension of the operand has one element per window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexDimensionNumbers<'a> {
    /// `offset_dims` of the result, `update_window_dims` of the updates.
    pub window: &'a [i64],
    /// `collapsed_slice_dims`, `inserted_window_dims`.
    pub collapsed: &'a [i64],
    /// `operand_batching_dims`, `input_batching_dims`.
    pub operand_batching: &'a [i64],
    /// `start_indices_batching_dims`, `scatter_indices_batching_dims`.
    pub indices_batching: &'a [i64],
    /// `start_index_map`, `scatter_dims_to_operand_dims`.
    pub index_map: &'a [i64],
    /// `index_vector_dim`.
    pub index_vector: i64,
}

impl From<IndexDimensionNumbers<'_>> for AttrValue {
    fn from(dims: IndexDimensionNumbers<'_>) -> Self {
        AttrValue::Struct(Box::new([
            dims.window.into(),
            dims.collapsed.into(),
            dims.operand_batching.into(),
            dims.indices_batching.into(),
            dims.index_map.into(),
            dims.index_vector.into(),
        ]))
    }
}

/// Attributes of `gather`.
#[must_use]
pub fn gather(dims: IndexDimensionNumbers<'_>, slice_sizes: &[i64], indices_are_sorted: bool) -> Attrs {
    Attrs::from([dims.into(), slice_sizes.into(), indices_are_sorted.into()])
}

static SCATTER_DIMS: StructDef = StructDef {
    mnemonic: "scatter",
    keyword: "",
    fields: &[
        AttrDef::required("update_window_dims", AttrKind::Ints),
        AttrDef::required("inserted_window_dims", AttrKind::Ints),
        AttrDef::required("input_batching_dims", AttrKind::Ints),
        AttrDef::required("scatter_indices_batching_dims", AttrKind::Ints),
        AttrDef::required("scatter_dims_to_operand_dims", AttrKind::Ints),
        AttrDef::required("index_vector_dim", AttrKind::Int),
    ],
};
pub(super) static SCATTER: [AttrDef; 3] = [
    AttrDef::required("scatter_dimension_numbers", AttrKind::Struct(&SCATTER_DIMS)),
    AttrDef::required("indices_are_sorted", AttrKind::Bool),
    AttrDef::required("unique_indices", AttrKind::Bool),
];

/// Attributes of `scatter`.
#[must_use]
pub fn scatter(dims: IndexDimensionNumbers<'_>, indices_are_sorted: bool, unique_indices: bool) -> Attrs {
    Attrs::from([dims.into(), indices_are_sorted.into(), unique_indices.into()])
}
