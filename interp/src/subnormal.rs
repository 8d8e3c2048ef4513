//! Subnormal numbers of the operands and results of a call, on devices that count them as zero.
//!
//! Input: the data of operands or results, and the types that the call flushes ([`access`]).
//! Output: the same data with a zero of the same sign in place of each subnormal number.
//!
//! [`access`]: fuseline_fusion::subnormal::access

use std::sync::Arc;

use fuseline_fusion::subnormal::{flush, has_subnormal};
use fuseline_fusion::{DTypeSet, Literal};

/// Flushes the results that are of these types.
pub(super) fn flush_all(flushes: DTypeSet, results: &mut [Literal]) {
    let is_flushed = |result: &&mut Literal| flushes.contains(result.dtype().part());
    results.iter_mut().filter(is_flushed).for_each(flush);
}

/// The operands as an op that flushes reads them; `None` where they are the same.
pub(super) fn flushed(flushes: DTypeSet, operands: &[Arc<Literal>]) -> Option<Vec<Arc<Literal>>> {
    let is_changed =
        |operand: &Arc<Literal>| flushes.contains(operand.dtype().part()) && has_subnormal(operand);
    if flushes == DTypeSet::NONE || !operands.iter().any(is_changed) {
        return None;
    }
    let of = |operand: &Arc<Literal>| match is_changed(operand) {
        true => {
            let mut literal = Literal::clone(operand);
            flush(&mut literal);
            Arc::new(literal)
        }
        false => operand.clone(),
    };
    Some(operands.iter().map(of).collect())
}
