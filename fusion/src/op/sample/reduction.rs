//! STUB.

use super::{Sample, Sampler};

pub(in crate::op) fn reduce(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn reduce_window(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn select_and_scatter(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}
