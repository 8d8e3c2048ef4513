//! An allocator that counts a thread's memory, and fails where a test says so.
//!
//! A test program that includes this module has [`Counting`] as its allocator. Failures and counts
//! belong to one thread, so tests may run in parallel. Only [`live_bytes`] counts all threads.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are currently allocated, by any thread.
static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Bytes that this thread has allocated and not freed; negative if it freed memory of other
    /// threads.
    static NOW: Cell<i64> = const { Cell::new(0) };
    /// The maximum since [`peak`] began.
    static MOST: Cell<i64> = const { Cell::new(0) };
    /// The number of this thread's allocations.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// The number of the allocation that fails; none if it is zero.
    static FAILS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with counts.
#[derive(Debug)]
pub struct Counting;

/// Counts an allocation and returns whether it may succeed. A thread that ends has no thread-locals
/// any more, and allocates nothing of ours.
fn may_have(bytes: usize) -> bool {
    let counted = COUNT.try_with(|count| {
        count.set(count.get() + 1);
        count.get()
    });
    if counted.is_ok_and(|count| FAILS.try_with(Cell::get).is_ok_and(|fails| fails == count)) {
        return false;
    }
    let now = NOW.try_with(|now| {
        now.set(now.get().saturating_add(bytes as i64));
        now.get()
    });
    LIVE.fetch_add(bytes as i64, Ordering::Relaxed);
    if let Ok(now) = now {
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    }
    true
}

fn gives_back(bytes: usize) {
    LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
    let _ = NOW.try_with(|now| now.set(now.get().saturating_sub(bytes as i64)));
}

// SAFETY: every call goes to the system's allocator unchanged, or fails as an allocator may.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !may_have(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller guarantees what `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gives_back(layout.size());
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !may_have(size) {
            return std::ptr::null_mut();
        }
        gives_back(layout.size());
        // SAFETY: the pointer came from `System` with this layout, and the caller guarantees the
        // rest.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Bytes that the process has allocated and not freed.
pub fn live_bytes() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// Returns the result of a function, and the largest increase of this thread's allocated bytes
/// while it ran.
pub fn peak<T>(function: impl FnOnce() -> T) -> (T, u64) {
    let before = NOW.with(Cell::get);
    MOST.with(|most| most.set(before));
    let result = function();
    let most = MOST.with(Cell::get);
    (result, u64::try_from(most - before).unwrap_or(0))
}

/// Returns the result of a function, and the number of this thread's allocations while it ran.
pub fn count<T>(function: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNT.with(Cell::get);
    let result = function();
    (result, COUNT.with(Cell::get) - before)
}

/// Makes the `number`-th allocation from now fail, counted from one.
pub fn fail_at(number: u64) {
    FAILS.with(|fails| fails.set(COUNT.with(Cell::get) + number));
}
