//! Signatures that this thread has inferred before.
//!
//! A steady loop makes the same calls again and again; their types are inferred once and shared by every record. The table is
//! direct-mapped and belongs to a thread, so looking something up takes no lock and no contended counter, and its size is
//! bounded whatever a program does. Being a cache of a pure function, it cannot be stale, and what it holds differs between
//! threads without consequence: keys are made of contents.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use fuseline_fusion::op::OperandTypes;
use fuseline_fusion::{Attrs, Body, OpCode, OpError, Signature, TensorType};
use rustc_hash::FxHasher;

/// Number of entries. A training step of a few hundred ops has fewer distinct calls than that.
const ENTRIES: usize = 1_024;

thread_local! {
    static MEMO: RefCell<Vec<Option<Arc<Signature>>>> = const { RefCell::new(Vec::new()) };
}

/// The signature of a call, inferred unless this thread has done so before.
///
/// # Errors
/// When the op table refuses the call.
pub(crate) fn signature<'a, I>(
    op: OpCode,
    attrs: &Attrs,
    bodies: &[Arc<Body>],
    operands: I,
) -> Result<Arc<Signature>, OpError>
where
    I: ExactSizeIterator<Item = &'a TensorType> + Clone,
{
    let slot = slot(op, attrs, bodies, operands.clone());
    let known = MEMO.try_with(|memo| {
        let memo = memo.borrow();
        let candidate = memo.get(slot)?.as_ref()?;
        candidate.is_for(op, attrs, bodies, operands.clone()).then(|| candidate.clone())
    });
    if let Ok(Some(signature)) = known {
        return Ok(signature);
    }
    let types: OperandTypes = operands.cloned().collect();
    let signature = Arc::new(Signature::infer(op, attrs.clone(), bodies, &types)?);
    // A thread that is ending remembers nothing any more.
    let _ = MEMO.try_with(|memo| {
        let mut memo = memo.borrow_mut();
        if memo.is_empty() {
            memo.resize(ENTRIES, None);
        }
        memo[slot] = Some(signature.clone());
    });
    Ok(signature)
}

fn slot<'a>(
    op: OpCode,
    attrs: &Attrs,
    bodies: &[Arc<Body>],
    operands: impl Iterator<Item = &'a TensorType>,
) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write_u16(op.number());
    if !attrs.values().is_empty() {
        attrs.hash(&mut hasher);
    }
    for body in bodies {
        // Enough to spread: bodies differ mostly in their first op and their type.
        if let Some(node) = body.graph().nodes().first() {
            hasher.write_u16(node.signature().op().number());
        }
        body.graph().params().first().hash(&mut hasher);
    }
    for ty in operands {
        hasher.write_u8(ty.dtype().code());
        for &dim in ty.dims() {
            hasher.write_u64(dim);
        }
    }
    // The high bits of a multiplicative hash are the good ones.
    (hasher.finish() >> 40) as usize % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuseline_fusion::DType;

    #[test]
    fn a_second_call_shares_the_signature_and_another_one_does_not() {
        let ty = TensorType::of(DType::F32, &[4]).unwrap();
        let wide = TensorType::of(DType::F32, &[8]).unwrap();
        let add =
            |ty: &TensorType| signature(OpCode::Add, &Attrs::none(), &[], [ty, ty].into_iter()).unwrap();
        let first = add(&ty);
        assert!(Arc::ptr_eq(&first, &add(&ty)));
        assert_eq!(add(&wide).results(), [wide]);
        assert!(signature(OpCode::Add, &Attrs::none(), &[], [&ty].into_iter()).is_err());
    }

    /// Far more distinct calls than entries: each gets its own signature all the same.
    #[test]
    fn collisions_are_told_apart() {
        for round in 0..2 {
            for size in 0..5_000u64 {
                let ty = TensorType::of(DType::F32, &[size]).unwrap();
                let found = signature(OpCode::Negate, &Attrs::none(), &[], [&ty].into_iter()).unwrap();
                assert_eq!(found.results(), [ty], "round {round}");
            }
        }
    }
}
