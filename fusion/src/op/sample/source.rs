//! STUB.

use super::{Sample, Sampler};

pub(in crate::op) fn constant(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn iota(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn rng_bit_generator(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}
