//! STUB.

use super::{Sample, Sampler};

pub(in crate::op) fn gather(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}

pub(in crate::op) fn scatter(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    None
}
