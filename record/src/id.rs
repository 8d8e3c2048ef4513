//! Ids of values.

use std::cell::Cell;

use fuseline_fusion::ValueId;
use fuseline_sync::next_block;

thread_local! {
    /// The half-open range of ids that this thread may hand out without touching the shared
    /// counter.
    static IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Number of ids that a thread takes at a time.
const ID_BLOCK: u64 = 1 << 12;

/// An id that no other value of the process has or had. A process-wide counter hands out blocks of
/// ids, so that recording threads rarely contend on it.
#[inline]
pub(crate) fn fresh_id() -> ValueId {
    let raw = IDS.try_with(|ids| {
        let (mut next, mut end) = ids.get();
        if next == end {
            next = next_block() * ID_BLOCK;
            end = next + ID_BLOCK;
        }
        ids.set((next + 1, end));
        next
    });
    // The block of a thread that is ending is gone. Each id costs it a whole block.
    let raw = raw.unwrap_or_else(|_| next_block() * ID_BLOCK);
    ValueId::from_raw(raw).expect("blocks start at 1")
}
