//! Numbers that stand for types, so that comparing types compares words.
//!
//! - TOKEN-1: values with the same token have the same type. In a process, a token is given to one
//!   type, once.
//! - TOKEN-2: values of the same type may have different tokens, because each thread assigns its
//!   own tokens and may forget them. So different tokens prove nothing.

use std::cell::RefCell;

use fuseline_fusion::TensorType;

use crate::id::fresh_id;

/// Number of entries of the table of a thread. A training step of a few hundred ops has fewer
/// types.
const ENTRIES: usize = 1_024;

thread_local! {
    static TOKENS: RefCell<Vec<Option<(TensorType, TypeToken)>>> = const { RefCell::new(Vec::new()) };
}

/// A number that stands for a type (TOKEN-1, TOKEN-2). It comes from the counter of value ids, so
/// it is unique. The numbers for an absent operand and for scalars of each element type are below
/// all ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeToken(pub(crate) u64);

/// The token of an absent operand.
pub(crate) const NO_TOKEN: TypeToken = TypeToken(0);

impl TypeToken {
    /// The token that this thread has assigned to a type.
    #[must_use]
    #[inline]
    pub fn of(ty: &TensorType) -> TypeToken {
        match ty.rank() {
            0 => TypeToken(1 + u64::from(ty.dtype().code())),
            _ => TypeToken::numbered(ty),
        }
    }

    fn numbered(ty: &TensorType) -> TypeToken {
        let slot = ty.short_hash() as usize % ENTRIES;
        // The table of a thread that is ending is gone.
        let known = TOKENS.try_with(|tokens| {
            let mut tokens = tokens.borrow_mut();
            if tokens.is_empty() {
                tokens.resize(ENTRIES, None);
            }
            match &tokens[slot] {
                Some((known, token)) if known == ty => *token,
                _ => {
                    let token = TypeToken::fresh();
                    tokens[slot] = Some((ty.clone(), token));
                    token
                }
            }
        });
        known.unwrap_or_else(|_| TypeToken::fresh())
    }

    /// A token that stands for no type yet.
    pub(crate) fn fresh() -> TypeToken {
        TypeToken(fresh_id().to_raw())
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use fuseline_fusion::DType;
    use fuseline_sync::thread;

    use super::*;

    /// TOKEN-1, with far more types than entries, on two threads that assign tokens independently.
    #[test]
    fn a_token_stands_for_one_type() {
        let number = || {
            let tokens = (0..2).flat_map(|_| 0..5_000u64);
            tokens
                .map(|size| (TypeToken::of(&TensorType::of(DType::F32, &[size]).unwrap()), size))
                .collect::<Vec<_>>()
        };
        let (send, receive) = std::sync::mpsc::channel();
        let other = thread::spawn("numbers".to_owned(), move || send.send(number()).unwrap()).unwrap();
        let mut of_token = std::collections::HashMap::new();
        for (token, size) in number().into_iter().chain(receive.recv().unwrap()) {
            assert_eq!(*of_token.entry(token.0).or_insert(size), size);
        }
        other.join().unwrap();
        for dims in [&[3][..], &[]] {
            let of = |dtype| TypeToken::of(&TensorType::of(dtype, dims).unwrap());
            assert_eq!(of(DType::F32), of(DType::F32));
            assert_ne!(of(DType::F32), of(DType::F64));
        }
    }
}
