//! Contractions: products summed over dimensions.

use fuseline_fusion::op::attrs::{self, ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
use fuseline_fusion::{AttrValue, Attrs, DType, DTypeClass, DTypeSet};

use super::{Sample, Sampler, axes};

/// Element types of the other operand and of the result. Portable products have operands of one
/// type, and a result of that or a wider type.
pub(super) fn product_types(sampler: &mut Sampler<'_>, lhs: DType) -> Option<(DType, DType)> {
    if sampler.portable() || !sampler.rarely(4) {
        return Some((lhs, sampler.widened(lhs)));
    }
    let rhs = sampler.dtype_of(DTypeSet::ANY)?;
    let float = lhs.is_float() || rhs.is_float();
    let result = sampler.dtype_of(if float { DTypeSet::FLOAT } else { DTypeSet::ANY })?;
    Some((rhs, result))
}

/// The attributes, occasionally with a precision per operand.
fn with_precision(sampler: &mut Sampler<'_>, attrs: &Attrs, place: usize) -> Attrs {
    let mut values = attrs.values().to_vec();
    if sampler.rarely(3) {
        let members = [sampler.below(3) as u8, sampler.below(3) as u8];
        values[place] = AttrValue::Enums(members.into_iter().collect());
    }
    values.into_iter().collect()
}

/// The attributes of a `dot_general`, occasionally with an algorithm: `bf16 x bf16 -> f32` in one
/// to nine operations, or `f64` throughout.
fn with_algorithm(sampler: &mut Sampler<'_>, attrs: Attrs) -> Option<Attrs> {
    // Backends differ in what they do with an algorithm for other operand types.
    if sampler.portable() || !sampler.rarely(4) {
        return Some(attrs);
    }
    let (dtype, sum, operations) =
        sampler.one_of(&[(1, 3, 1), (1, 3, 3), (1, 3, 6), (1, 3, 9), (0, 0, 1), (4, 4, 1)])?;
    let ints = [1, 1, operations].map(AttrValue::Int);
    let fields = [dtype, dtype, sum].map(AttrValue::Enum).into_iter().chain(ints);
    let fields = fields.chain([AttrValue::Bool(false)]).collect();
    let mut values = attrs.values().to_vec();
    values[1] = AttrValue::Absent;
    values[2] = AttrValue::Struct(fields);
    Some(values.into_iter().collect())
}

pub(crate) fn dot_general(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (lhs, ty) = sampler.operand(sampler.row_dtypes(), 0)?;
    let rank = ty.rank();
    // The dimensions of lhs, permuted: first the contracting ones, then the batch, then the free
    // ones.
    let order = sampler.permutation(rank);
    let contracting = rank - sampler.below(rank + 1);
    let batching = sampler.below((rank - contracting).min(2) + 1);
    let (lhs_contracting, kept) = order.split_at(contracting);
    let lhs_batching = &kept[..batching];
    let free: Vec<u64> = (0..sampler.below(3)).map(|_| sampler.dim()).collect();
    // The dimensions of rhs: those paired with lhs, then its free ones, permuted again.
    let paired = lhs_contracting.iter().chain(lhs_batching).map(|&axis| ty.dims()[axis]);
    let sizes: Vec<u64> = paired.chain(free).collect();
    let places = sampler.permutation(sizes.len());
    let mut dims = vec![0; sizes.len()];
    for (&place, &size) in places.iter().zip(&sizes) {
        dims[place] = size;
    }
    let (rhs_contracting, kept) = places.split_at(contracting);
    let rhs_batching = &kept[..batching];
    let (rhs_dtype, result) = product_types(sampler, ty.dtype())?;
    let rhs = sampler.operand_of(rhs_dtype, &dims)?;
    let attrs = attrs::dot_general(
        DotDimensionNumbers {
            lhs_batching: &axes(lhs_batching),
            rhs_batching: &axes(rhs_batching),
            lhs_contracting: &axes(lhs_contracting),
            rhs_contracting: &axes(rhs_contracting),
        },
        result,
    );
    let attrs = with_precision(sampler, &attrs, 1);
    Some(Sample::plain([lhs, rhs], with_algorithm(sampler, attrs)?))
}

/// The positions of batch, features and space in one of input, kernel and output.
struct Layout {
    first: usize,
    second: usize,
    spatial: Vec<usize>,
}

fn layout(sampler: &mut Sampler<'_>, rank: usize) -> Layout {
    let order = sampler.permutation(rank);
    Layout { first: order[0], second: order[1], spatial: order[2..].to_vec() }
}

impl Layout {
    fn dims(&self, first: u64, second: u64, spatial: &[u64]) -> Vec<u64> {
        let mut dims = vec![0; 2 + spatial.len()];
        dims[self.first] = first;
        dims[self.second] = second;
        for (&axis, &size) in self.spatial.iter().zip(spatial) {
            dims[axis] = size;
        }
        dims
    }
}

pub(crate) fn convolution(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let lhs_dtype = sampler.dtype_of(sampler.row_dtypes())?;
    // XLA has no convolution of `bool`.
    if sampler.portable() && lhs_dtype.class() == DTypeClass::Bool {
        return None;
    }
    let spatial = sampler.below(3);
    let rank = spatial + 2;
    let (input, kernel, output) = (layout(sampler, rank), layout(sampler, rank), layout(sampler, rank));
    let mut options = ConvOptions::new(spatial);
    let groups = 1 + sampler.up_to(1);
    if sampler.rarely(3) {
        options.batch_group_count = groups as i64;
    } else {
        options.feature_group_count = groups as i64;
    }
    let (feature_groups, batch_groups) =
        (options.feature_group_count as u64, options.batch_group_count as u64);
    let features = 1 + sampler.up_to(1);
    let outputs = groups * (1 + sampler.up_to(1));
    let batch = batch_groups * (1 + sampler.up_to(1));
    let empty = sampler.rarely(24);
    let (mut base, mut taps) = (Vec::new(), Vec::new());
    for axis in 0..spatial {
        let (size, window) = (1 + sampler.up_to(4), 1 + sampler.up_to(2));
        options.window_strides[axis] = sampler.one_of(&[1, 2, 3])?;
        options.lhs_dilation[axis] = sampler.one_of(&[1, 1, 2, 3])?;
        options.rhs_dilation[axis] = sampler.one_of(&[1, 1, 2])?;
        options.window_reversal[axis] = sampler.rarely(3);
        let dilated = (size as i64 - 1) * options.lhs_dilation[axis] + 1;
        let low = sampler.one_of(&[0, 1, 2, -1])?;
        options.padding[axis] = (low, sampler.one_of(&[0, 1, 2, -1])?.max(-dilated - low));
        base.push(size);
        taps.push(window);
    }
    let batch = if empty { 0 } else { batch };
    let lhs = input.dims(batch, feature_groups * features, &base);
    let rhs = kernel.dims(features, outputs, &taps);
    let result = sampler.widened(lhs_dtype);
    let lhs = sampler.operand_of(lhs_dtype, &lhs)?;
    let rhs = sampler.operand_of(lhs_dtype, &rhs)?;
    let dims = ConvDimensionNumbers {
        input_batch: input.first as i64,
        input_feature: input.second as i64,
        input_spatial: axes(&input.spatial),
        kernel_input_feature: kernel.first as i64,
        kernel_output_feature: kernel.second as i64,
        kernel_spatial: axes(&kernel.spatial),
        output_batch: output.first as i64,
        output_feature: output.second as i64,
        output_spatial: axes(&output.spatial),
    };
    let attrs = attrs::convolution(&dims, &options, result);
    let attrs = with_precision(sampler, &attrs, 8);
    Some(Sample::plain([lhs, rhs], attrs))
}
