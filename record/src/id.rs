//! Ids of values.

use std::cell::Cell;

use fuseline_fusion::ValueId;
use fuseline_sync::next_block;

thread_local! {
    /// The ids this thread may give out without asking: from the first up to, not including, the
    /// second.
    static IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Ids handed to a thread at a time.
const ID_BLOCK: u64 = 1 << 12;

/// An id that no other value of the process has or had. A process-wide counter hands out blocks, so
/// that recording threads do not meet on it.
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
    // A thread that is ending has no block any more; it pays for a whole one.
    let raw = raw.unwrap_or_else(|_| next_block() * ID_BLOCK);
    ValueId::from_raw(raw).expect("blocks start at 1")
}
