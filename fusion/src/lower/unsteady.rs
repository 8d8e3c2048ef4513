//! Ops that a plugin rounds in one of two ways ([`super::exact`] lists them), and whether a region
//! needs a zero for fences.

use super::Numerics;
use crate::canon::CanonRegion;
use crate::ir::{OpCode, Signature};
use crate::op::Lowered;
use crate::shape::TensorType;

/// Whether a plugin rounds an op in one of two ways.
pub(super) fn is_unsteady(signature: &Signature) -> bool {
    let Some(dtype) = signature.results().first().map(TensorType::dtype).filter(|dtype| dtype.is_float())
    else {
        return false;
    };
    match signature.op() {
        OpCode::Rsqrt => true,
        OpCode::Erf | OpCode::Exponential | OpCode::Log | OpCode::LogPlusOne => dtype.bits() <= 32,
        _ => false,
    }
}

/// Whether the function for a region may have fences, and so takes a zero.
#[must_use]
pub fn has_zero(region: &CanonRegion, numerics: Numerics) -> bool {
    let is_one = || match region.graph().nodes() {
        [node] => {
            let signature = node.signature();
            matches!((signature.def().lower)(&signature.call()), Lowered::Itself) && !is_unsteady(signature)
        }
        _ => false,
    };
    numerics == Numerics::Exact && !is_one()
}
