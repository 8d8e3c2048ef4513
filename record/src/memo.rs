//! A memo of the signatures that this thread has inferred.
//!
//! A steady loop repeats the same calls. Their types are inferred once, and all records share the
//! result. The tables are direct-mapped and thread-local, so a lookup takes no lock and touches no
//! contended counter, and their size is bounded. They cache pure functions, so they cannot be
//! stale. Their contents may differ between threads without consequence.
//!
//! The full key of a call is its op, attributes, bodies and operand types. A call of one or two
//! operands without attributes has a shorter key: the [`TypeToken`]s of its operands.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use fuseline_fusion::op::OperandTypes;
use fuseline_fusion::{Attrs, Body, OpCode, OpError, Signature, TensorType};
use rustc_hash::FxHasher;

use crate::handle::Handle;
use crate::type_token::{NO_TOKEN, TypeToken};

/// Number of entries of each table. A training step of a few hundred ops has fewer distinct calls.
const ENTRIES: usize = 1_024;

/// A signature and the type token of the first result.
#[derive(Clone, Debug)]
pub struct InferredCall {
    /// The checked call.
    pub signature: Arc<Signature>,
    type_token: TypeToken,
}

/// An op on one or two operands, without attributes.
struct Plain {
    op: OpCode,
    operands: [TypeToken; 2],
    known: InferredCall,
}

struct Memo {
    calls: Vec<Option<InferredCall>>,
    plain: Vec<Option<Plain>>,
}

thread_local! {
    static MEMO: RefCell<Memo> = const { RefCell::new(Memo { calls: Vec::new(), plain: Vec::new() }) };
}

impl InferredCall {
    fn new(signature: Arc<Signature>) -> InferredCall {
        let type_token = signature.results().first().map_or_else(TypeToken::fresh, TypeToken::of);
        InferredCall { signature, type_token }
    }

    /// The type token of a result.
    #[inline]
    pub fn type_token(&self, index: usize) -> TypeToken {
        if index == 0 { self.type_token } else { TypeToken::of(&self.signature.results()[index]) }
    }
}

impl Memo {
    #[inline]
    fn plain(&self, op: OpCode, operands: [TypeToken; 2]) -> Option<&InferredCall> {
        let plain = self.plain.get(plain_slot(op, operands))?.as_ref()?;
        (plain.op == op && plain.operands == operands).then_some(&plain.known)
    }
}

/// The type tokens of the operands, if they identify the call: it has one or two operands and
/// neither attributes nor bodies.
#[inline]
fn plain_operands<S, H: Handle<S>>(
    attrs: &Attrs,
    bodies: &[Arc<Body>],
    operands: &[&H],
) -> Option<[TypeToken; 2]> {
    if !attrs.values().is_empty() || !bodies.is_empty() {
        return None;
    }
    match operands {
        [one] => Some([one.cell().type_token(), NO_TOKEN]),
        [lhs, rhs] => Some([lhs.cell().type_token(), rhs.cell().type_token()]),
        _ => None,
    }
}

/// The memoized signature of a call without attributes and bodies, found by the type tokens of its
/// operands.
#[inline]
pub fn by_tokens<S, H: Handle<S>>(
    op: OpCode,
    attrs: &Attrs,
    bodies: &[Arc<Body>],
    operands: &[&H],
) -> Option<InferredCall> {
    let kinds = plain_operands(attrs, bodies, operands)?;
    MEMO.try_with(|memo| memo.borrow().plain(op, kinds).cloned()).ok().flatten()
}

/// The signature of a call that [`by_tokens`] did not find, from the memo or by inference.
///
/// # Errors
/// When the op table refuses the call.
#[inline(never)]
pub fn by_types<S, H: Handle<S>>(
    op: OpCode,
    attrs: &Attrs,
    bodies: &[Arc<Body>],
    operands: &[&H],
) -> Result<InferredCall, OpError> {
    let known = known(op, attrs, bodies, operands.iter().map(|tensor| tensor.cell().ty()))?;
    if let Some(operands) = plain_operands(attrs, bodies, operands) {
        let _ = MEMO.try_with(|memo| {
            let mut memo = memo.borrow_mut();
            if memo.plain.is_empty() {
                memo.plain.resize_with(ENTRIES, || None);
            }
            memo.plain[plain_slot(op, operands)] = Some(Plain { op, operands, known: known.clone() });
        });
    }
    Ok(known)
}

/// As [`by_types`], from the types of the operands alone.
///
/// # Errors
/// When the op table refuses the call.
pub fn signature<'a, I>(
    op: OpCode,
    attrs: &Attrs,
    bodies: &[Arc<Body>],
    operands: I,
) -> Result<Arc<Signature>, OpError>
where
    I: ExactSizeIterator<Item = &'a TensorType> + Clone,
{
    Ok(known(op, attrs, bodies, operands)?.signature)
}

fn known<'a, I>(op: OpCode, attrs: &Attrs, bodies: &[Arc<Body>], operands: I) -> Result<InferredCall, OpError>
where
    I: ExactSizeIterator<Item = &'a TensorType> + Clone,
{
    let slot = slot(op, attrs, bodies, operands.clone());
    let known = MEMO.try_with(|memo| {
        let memo = memo.borrow();
        let candidate = memo.calls.get(slot)?.as_ref()?;
        candidate.signature.is_for(op, attrs, bodies, operands.clone()).then(|| candidate.clone())
    });
    if let Ok(Some(known)) = known {
        return Ok(known);
    }
    let types: OperandTypes = operands.cloned().collect();
    let known = InferredCall::new(Arc::new(Signature::infer(op, attrs.clone(), bodies, &types)?));
    let _ = MEMO.try_with(|memo| {
        let mut memo = memo.borrow_mut();
        if memo.calls.is_empty() {
            memo.calls.resize(ENTRIES, None);
        }
        memo.calls[slot] = Some(known.clone());
    });
    Ok(known)
}

#[inline]
fn plain_slot(op: OpCode, [lhs, rhs]: [TypeToken; 2]) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write_u16(op.number());
    hasher.write_u64(lhs.0);
    hasher.write_u64(rhs.0);
    place(&hasher)
}

/// The table index for a hash.
#[inline]
fn place(hasher: &FxHasher) -> usize {
    // The high bits of a multiplicative hash are distributed best.
    (hasher.finish() >> 40) as usize % ENTRIES
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
        // This distributes well enough: bodies differ mostly in their first op and their type.
        if let Some(node) = body.graph().nodes().first() {
            hasher.write_u16(node.signature().op().number());
        }
        body.graph().params().first().hash(&mut hasher);
    }
    for ty in operands {
        ty.hash(&mut hasher);
    }
    place(&hasher)
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use fuseline_fusion::DType;

    use super::*;
    use crate::testing::TestHandle;

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

    /// With far more distinct calls than entries, each call still gets its own signature.
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

    #[test]
    fn calls_are_found_by_tokens() {
        let tensor = |dims: &[u64]| TestHandle::pending(TensorType::of(DType::F32, dims).unwrap());
        let mut found = 0;
        for round in 0..3 {
            for size in 1..2_000 {
                let (x, column) = (tensor(&[2, size]), tensor(&[size]));
                let none = Attrs::none();
                let known = |op, operands: &[&TestHandle]| match by_tokens(op, &none, &[], operands) {
                    Some(known) => Some(known),
                    None => by_types(op, &none, &[], operands).ok(),
                };
                let added = known(OpCode::Add, &[&x, &x]).unwrap();
                assert_eq!(added.signature.op(), OpCode::Add, "round {round}");
                assert_eq!(added.signature.results(), [x.cell().ty().clone()]);
                assert_eq!(known(OpCode::Tanh, &[&x]).unwrap().signature.op(), OpCode::Tanh);
                assert!(known(OpCode::Add, &[&x, &column]).is_none());
                assert!(known(OpCode::Add, &[&x]).is_none());
                // Another call may have replaced it.
                if let Some(again) = by_tokens(OpCode::Add, &none, &[], &[&x, &x]) {
                    assert!(Arc::ptr_eq(&again.signature, &added.signature));
                    found += 1;
                }
            }
        }
        assert!(found > 5_000, "{found} of 5,997");
    }
}
