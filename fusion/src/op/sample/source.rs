//! Ops that make data.

use std::sync::Arc;

use super::{Domain, Sample, Sampler, fill};
use crate::dtype::DType;
use crate::op::rules::source::RANDOM_BITS;
use crate::op::{RngAlgorithm, attrs};
use crate::shape::{Shape, TensorType};

pub(in crate::op) fn constant(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let ty = TensorType::of(dtype, &sampler.dims(0)).ok()?;
    let data = fill(sampler.entropy, &ty, Domain::Any, sampler.aim);
    Some(Sample::plain([], attrs::constant(Arc::new(data))))
}

pub(in crate::op) fn iota(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let dims = sampler.dims(1);
    let axis = sampler.below(dims.len()) as i64;
    Some(Sample::plain([], attrs::iota(dtype, Shape::new(&dims).ok()?, axis)))
}

pub(in crate::op) fn rng_bit_generator(sampler: &mut Sampler<'_>) -> Option<Sample> {
    // The bits of DEFAULT are the plugin's choice.
    let algorithm = sampler.one_of(&[RngAlgorithm::ThreeFry, RngAlgorithm::Philox])?;
    let words = if algorithm == RngAlgorithm::Philox && sampler.rarely(2) { 3 } else { 2 };
    let state = TensorType::of(DType::U64, &[words]).ok()?;
    let dtype = sampler.dtype_of(RANDOM_BITS)?;
    let shape = Shape::new(&sampler.dims(0)).ok()?;
    let state = sampler.operand_like(&state, Domain::Any);
    Some(Sample::plain([state], attrs::rng_bit_generator(algorithm, dtype, shape)))
}
