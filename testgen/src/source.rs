//! Ops that produce data.

use std::sync::Arc;

use fuseline_fusion::element::{Store, from_f64, from_int, mask};
use fuseline_fusion::op::{RANDOM_BITS, RngAlgorithm, RngDistribution, attrs};
use fuseline_fusion::{DType, Shape, TensorType};

use super::{Domain, Sample, SampleOperand, Sampler, fill};

pub(crate) fn constant(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let ty = TensorType::of(dtype, &sampler.dims(0)).ok()?;
    let data = fill(sampler.entropy, &ty, Domain::Any, sampler.aim);
    Some(Sample::plain([], attrs::constant(Arc::new(data))))
}

pub(crate) fn iota(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let dims = sampler.dims(1);
    let axis = sampler.below(dims.len()) as i64;
    Some(Sample::plain([], attrs::iota(dtype, Shape::new(&dims).ok()?, axis)))
}

pub(crate) fn rng_bit_generator(sampler: &mut Sampler<'_>) -> Option<Sample> {
    // The plugin chooses the bits of `DEFAULT`.
    let algorithm = sampler.one_of(&[RngAlgorithm::ThreeFry, RngAlgorithm::Philox])?;
    let words = if algorithm == RngAlgorithm::Philox && sampler.rarely(2) { 3 } else { 2 };
    let state = TensorType::of(DType::U64, &[words]).ok()?;
    let dtype = sampler.dtype_of(RANDOM_BITS)?;
    let shape = Shape::new(&sampler.dims(0)).ok()?;
    let state = sampler.operand_like(&state, Domain::Any);
    Some(Sample::plain([state], attrs::rng_bit_generator(algorithm, dtype, shape)))
}

pub(crate) fn rng(sampler: &mut Sampler<'_>) -> Option<Sample> {
    // The result is only known if there is a single number to draw.
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let first = sampler.up_to(8) as i64;
    let (distribution, a, b) = if dtype.is_float() {
        (RngDistribution::Normal, from_f64(dtype, first as f64 / 4.0), 0)
    } else {
        let first = first % (mask(dtype) >> 1).clamp(1, 8) as i64;
        (RngDistribution::Uniform, from_int(dtype, first.into()), from_int(dtype, (first + 1).into()))
    };
    let scalar =
        |bits| SampleOperand::Given(Arc::new(Store::filled(TensorType::scalar(dtype), bits).finish()));
    let dims = sampler.dims(0);
    let sizes: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
    let operands = [scalar(a), scalar(b), sampler.list(&sizes)?];
    Some(Sample::plain(operands, attrs::rng(distribution, Shape::new(&dims).ok()?)))
}
