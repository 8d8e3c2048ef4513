//! STUB.

use super::{Sample, Sampler};

pub(in crate::op) fn broadcast_in_dim(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn reshape(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn transpose(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn slice(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn concatenate(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn pad(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn reverse(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn dynamic_slice(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn dynamic_update_slice(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn optimization_barrier(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}
