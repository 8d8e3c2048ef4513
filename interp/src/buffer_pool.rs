//! Reuses the memory of results after their last read for results of later ops.
//!
//! An allocator returns large blocks to the system and requests them again, with a page fault for
//! each 4 KiB. That takes longer than a sum of two tensors. (`nbody/512` of the benchmark, 457 ops
//! on 1 MiB each: 110 ms without this, 45 with it; 2 cores, 2026-11-24.)
//!
//! Invariants:
//! - The thread that runs a graph keeps the blocks, until the run ends ([`Reuse`]).
//! - At most [`MOST`] blocks are kept, all of them freed by the same run: a run never holds more
//!   than its peak plus these.

use std::cell::RefCell;
use std::sync::Arc;

use fuseline_fusion::Literal;

/// Minimum size of a block that is kept, in bytes. The allocator itself keeps smaller ones.
const LEAST: usize = 64 << 10;

/// Maximum number of blocks.
const MOST: usize = 8;

thread_local! {
    /// The blocks, while a graph runs.
    static BLOCKS: RefCell<Option<Vec<Vec<u8>>>> = const { RefCell::new(None) };
}

/// While it lives, this thread keeps blocks. A second one on a thread does nothing.
pub(super) struct Reuse {
    is_first: bool,
}

impl Reuse {
    pub(super) fn new() -> Reuse {
        BLOCKS.with_borrow_mut(|kept| {
            let is_first = kept.is_none();
            kept.get_or_insert_default();
            Reuse { is_first }
        })
    }
}

impl Drop for Reuse {
    fn drop(&mut self) {
        if self.is_first {
            BLOCKS.with_borrow_mut(Option::take);
        }
    }
}

/// Keeps the memory of a result, if it has no other references.
pub(super) fn free(result: Arc<Literal>) {
    if result.bytes().len() < LEAST {
        return;
    }
    let Some(literal) = Arc::into_inner(result) else { return };
    BLOCKS.with_borrow_mut(|kept| {
        if let Some(kept) = kept {
            if kept.len() == MOST {
                kept.remove(0);
            }
            kept.push(literal.into_bytes());
        }
    });
}

/// A buffer of `len` bytes with arbitrary contents, to be overwritten.
pub(super) fn room(len: usize) -> Vec<u8> {
    let kept = (len >= LEAST).then(|| {
        BLOCKS.with_borrow_mut(|kept| {
            let kept = kept.as_mut()?;
            let fits = |block: &Vec<u8>| (len..=2 * len).contains(&block.capacity());
            let place = kept.iter().rposition(fits)?;
            Some(kept.swap_remove(place))
        })
    });
    match kept.flatten() {
        Some(mut block) => {
            block.resize(len, 0);
            block
        }
        None => vec![0; len],
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::{DType, TensorType};

    use super::*;

    fn literal(bytes: Vec<u8>) -> Arc<Literal> {
        let ty = TensorType::of(DType::U8, &[bytes.len() as u64]).unwrap();
        Arc::new(Literal::from_bytes(ty, bytes).unwrap())
    }

    #[test]
    fn memory_is_kept_while_a_graph_is_run() {
        let kept = || BLOCKS.with_borrow(|kept| kept.as_ref().map(Vec::len));
        let at = |block: &Vec<u8>| block.as_ptr();
        free(literal(vec![1; LEAST]));
        assert_eq!(kept(), None);
        let reuse = Reuse::new();
        let block = vec![1; 2 * LEAST];
        let place = at(&block);
        free(literal(block));
        drop(Reuse::new());
        assert_eq!(kept(), Some(1));
        // Requests of another size, then of a fitting one.
        assert_ne!(at(&room(3 * LEAST)), place);
        let block = room(LEAST + 1);
        assert_eq!((at(&block), block.len()), (place, LEAST + 1));
        let shared = literal(block);
        free(shared.clone());
        free(literal(vec![1; LEAST - 1]));
        assert_eq!(kept(), Some(0), "somebody has the one, the other is small");
        (0..2 * MOST).for_each(|_| free(literal(vec![1; LEAST])));
        assert_eq!(kept(), Some(MOST));
        drop(reuse);
        assert_eq!(kept(), None);
    }
}
