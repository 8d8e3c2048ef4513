//! Ops with sizes as operands: calls of their static twins, with attributes turned into operands.

use std::sync::Arc;

use fuseline_fusion::element::{Store, from_int, to_int};
use fuseline_fusion::op::attrs;
use fuseline_fusion::op::dims::conv_attr;
use fuseline_fusion::{AttrValue, DType, DTypeSet, OpCode, Shape, Signature, TensorType};

use super::{Sample, SampleOperand, Sampler, indexing, movement};

impl Sampler<'_> {
    /// Integers as an operand, of a type that represents them all.
    pub(super) fn sizes(&mut self, sizes: &[i64], dims: &[u64]) -> Option<SampleOperand> {
        let holds = |dtype: &DType| {
            let back = |&size: &i64| to_int(*dtype, from_int(*dtype, size.into())) == size.into();
            sizes.iter().all(back)
        };
        let dtypes: Vec<DType> = DTypeSet::INT.and(self.dtypes).iter().filter(holds).collect();
        let dtype = self.one_of(&dtypes)?;
        let ty = TensorType::of(dtype, dims).ok()?;
        let bits = sizes.iter().map(|&size| from_int(dtype, size.into()));
        Some(SampleOperand::Given(Arc::new(Store::collect(ty, bits).finish())))
    }

    /// A list of integers as an operand.
    pub(super) fn list(&mut self, sizes: &[i64]) -> Option<SampleOperand> {
        self.sizes(sizes, &[sizes.len() as u64])
    }

    /// The shape of a sample's result, as a call of `op`.
    fn result_shape(&self, op: OpCode, sample: &Sample) -> Option<Shape> {
        let types: Vec<TensorType> =
            sample.operands.iter().map(|operand| operand.ty(self.pool).clone()).collect();
        let signature = Signature::infer(op, sample.attrs.clone(), &sample.bodies, &types).ok()?;
        Some(signature.results()[0].shape().clone())
    }

    /// The sample with the sizes of a shape as its last operand.
    fn with_shape(&mut self, mut sample: Sample, shape: &Shape) -> Option<Sample> {
        let sizes: Vec<i64> = shape.dims().iter().map(|&dim| dim as i64).collect();
        sample.operands.push(self.list(&sizes)?);
        Some(sample)
    }
}

pub(crate) fn get_dimension_size(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 1)?;
    let axis = sampler.below(ty.rank());
    Some(Sample::plain([operand], attrs::get_dimension_size(axis as i64)))
}

pub(crate) fn broadcast_in_dim(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let mut sample = movement::broadcast_in_dim(sampler)?;
    let shape = sample.attrs.view().shape(0).clone();
    let mut values = sample.attrs.values().to_vec();
    // Occasionally states for each dimension whether it expands.
    let known = sampler.rarely(3);
    let from = sample.operands[0].ty(sampler.pool).dims();
    let expands = |(axis, &to): (usize, &i64)| (from[axis] != shape.dim(to as usize), axis as i64);
    let axes: Vec<(bool, i64)> = sample.attrs.view().ints(1).iter().enumerate().map(expands).collect();
    for kind in [true, false] {
        let list: Vec<i64> = axes.iter().filter(|axis| axis.0 == kind).map(|axis| axis.1).collect();
        values.push(if known { list.as_slice().into() } else { AttrValue::Absent });
    }
    sample.attrs = values.into_iter().collect();
    sampler.with_shape(sample, &shape)
}

pub(crate) fn reshape(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let sample = movement::reshape(sampler)?;
    let shape = sample.attrs.view().shape(0).clone();
    sampler.with_shape(sample, &shape)
}

pub(crate) fn iota(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(DTypeSet::NUMBER)?;
    let shape = Shape::new(&sampler.dims(1)).ok()?;
    let axis = sampler.below(shape.rank()) as i64;
    let sample = Sample::plain([], attrs::iota(dtype, shape.clone(), axis));
    sampler.with_shape(sample, &shape)
}

pub(crate) fn gather(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let mut sample = indexing::gather(sampler)?;
    let shape = sampler.result_shape(OpCode::Gather, &sample)?;
    let sizes = sample.attrs.view().ints(1).to_vec();
    let mut values = sample.attrs.values().to_vec();
    values[1] = shape.into();
    sample.attrs = values.into_iter().collect();
    sample.operands.push(sampler.list(&sizes)?);
    Some(sample)
}

pub(crate) fn pad(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let mut sample = movement::pad(sampler)?;
    let shape = sampler.result_shape(OpCode::Pad, &sample)?;
    let lists = [0, 1, 2].map(|place| sample.attrs.view().ints(place).to_vec());
    for list in &lists {
        sample.operands.push(sampler.list(list)?);
    }
    sample.attrs = attrs::reshape(shape);
    Some(sample)
}

pub(crate) fn conv(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let mut sample = super::contraction::convolution(sampler)?;
    let shape = sampler.result_shape(OpCode::Convolution, &sample)?;
    let pairs = sample.attrs.view().pairs(conv_attr::PADDING);
    let padding: Vec<i64> = pairs.iter().flat_map(|&(low, high)| [low, high]).collect();
    sample.operands.push(sampler.sizes(&padding, &[padding.len() as u64 / 2, 2])?);
    sample.attrs = attrs::dynamic_conv(&sample.attrs, shape);
    Some(sample)
}
