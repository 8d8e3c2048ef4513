//! STUB.

use super::{Sample, Sampler};

pub(in crate::op) fn unary(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn binary(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn compare(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn select(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn clamp(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn convert(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn bitcast_convert(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn reduce_precision(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}
