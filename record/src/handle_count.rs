//! The number of handles of a value, and who owns the last handle's reference after it is dropped.
//!
//! The end of a value's lifetime has a position in the program, so the last drop of a handle
//! appends a release to the log. While the value is on an open trace, the trace notes that position
//! itself. The drop stores the trace position in the state word and leaves the handle's reference
//! to the trace, which finds both when it is closed. This takes one compare-exchange and does not
//! involve the combining lock.
//!
//! # State word
//!
//! One atomic integer. The lower half is the number of handles. Two bits say that the value is on a
//! trace, as a result (`RESULT`) or as a parameter (`PARAMETER`). The bits above hold its index
//! among the results or parameters of the trace, or, once the last handle is gone, the position of
//! the trace at that time.
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | `n -> n + 1`, with or without bits | owner of a handle, [`HandleCount::retain`] | add, relaxed: the handle keeps it alive |
//! | `n -> n - 1`, not to 0, with or without bits | owner of a handle, [`HandleCount::drop_one`] | compare-exchange, `Release` for the thread that drops the last one |
//! | `1 -> 0`, no bits | owner of the last handle, [`HandleCount::drop_one`] | store, after a load with `Acquire` |
//! | `bits, 1 -> bits, 0, position` | owner of the last handle, [`HandleCount::drop_one`] | compare-exchange, `Release` publishes what it did with the value |
//! | anything `-> RESULT, 1, index` | the trace, for a value that no other thread knows, [`HandleCount::set_result`] | store, relaxed |
//! | `n -> PARAMETER, n, index` | holder of the combining lock, [`HandleCount::bind`] | or, relaxed |
//! | `PARAMETER, n -> n` | the same, [`HandleCount::detach`] | as below |
//! | `bits, n -> n` | holder of the combining lock, when the trace is closed, [`HandleCount::detach`] | and, `Acquire` gets what the last owner did; so does the load of [`HandleCount::drop_position`] |
//!
//! # Safety argument
//!
//! - HANDLE-1: *The reference of the last handle has exactly one next owner.* Bits are set while
//!   there is a handle that its owner is not dropping: it is an operand of the call, or has not
//!   been handed out. One read-modify-write clears them. So the last drop has two cases. If it
//!   finds the bits, its compare-exchange gives the reference to the trace, which `drop_position`
//!   or `detach` then sees. If it does not find them, it keeps the reference.
//! - HANDLE-2: *While bits are set, a reference exists*: that of a handle or, after it was given
//!   away, that of the trace.
//! - HANDLE-3: *The stored position is a valid position of the drop.* The last drop comes after all
//!   calls that had the value as an operand, and the position of a trace is written before such a
//!   call returns. So the position that the drop reads is not before any of them. Whatever follows
//!   from the drop is recorded after the position was read.

use fuseline_sync::atomic::{AtomicU64, Ordering};
use fuseline_sync::ordering;

const HANDLES: u64 = u32::MAX as u64;
const RESULT: u64 = 1 << 32;
const PARAMETER: u64 = 1 << 33;
const ON_TRACE: u64 = RESULT | PARAMETER;
const POSITION_SHIFT: u32 = 34;
/// Positions of a trace are stored modulo this number.
const POSITIONS: u32 = 1 << (u64::BITS - POSITION_SHIFT);

/// The result of dropping a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Dropped {
    /// There are other handles.
    Shared,
    /// It was the last handle. The caller has to record the release.
    Last,
    /// It was the last handle, and the value is on a trace, which notes the release. The handle's
    /// reference now belongs to the trace.
    MovedToTrace,
}

/// The handle count of a value. See the module's documentation.
#[derive(Debug)]
pub struct HandleCount(AtomicU64);

impl Default for HandleCount {
    fn default() -> HandleCount {
        HandleCount::new()
    }
}

impl HandleCount {
    /// One handle, on no trace.
    #[must_use]
    #[inline]
    pub fn new() -> HandleCount {
        HandleCount(AtomicU64::new(1))
    }

    /// Counts another handle, made from an existing one.
    #[inline]
    pub fn retain(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one handle less. `at` returns the position of the trace; it is called if the value is
    /// on one.
    #[inline(always)]
    pub fn drop_one(&self, at: impl Fn() -> u32) -> Dropped {
        let mut word = self.0.load(ordering!(Acquire, "handles_drop"));
        loop {
            if word == 1 {
                // Without a handle, no thread can make another one or put the value on a trace.
                self.0.store(0, Ordering::Relaxed);
                return Dropped::Last;
            }
            let (next, dropped) = match word & HANDLES {
                1 => (word & ON_TRACE | u64::from(at()) << POSITION_SHIFT, Dropped::MovedToTrace),
                _ => (word - 1, Dropped::Shared),
            };
            match self.0.compare_exchange_weak(
                word,
                next,
                ordering!(Release, "handles_move"),
                ordering!(Acquire, "handles_drop"),
            ) {
                Ok(_) => return dropped,
                Err(now) => word = now,
            }
        }
    }

    /// Whether there is a handle.
    #[inline]
    pub fn has_handles(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HANDLES > 0
    }

    /// Whether the value is a result of a trace. The caller holds the combining lock.
    #[inline]
    pub fn is_result(&self) -> bool {
        self.0.load(Ordering::Relaxed) & RESULT != 0
    }

    /// Which result or parameter of a trace the value is, if it is on one. The caller holds the
    /// combining lock and a handle.
    #[inline]
    pub fn trace_index(&self) -> Option<TraceIndex> {
        let word = self.0.load(Ordering::Relaxed);
        let index = (word >> POSITION_SHIFT) as u32;
        match word & ON_TRACE {
            0 => None,
            RESULT => Some(TraceIndex::Result(index)),
            _ => Some(TraceIndex::Parameter(index)),
        }
    }

    /// Makes the value a result of a trace, with one handle. No other thread knows the value.
    #[inline]
    pub fn set_result(&self, index: u32) {
        self.0.store(RESULT | 1 | u64::from(index) << POSITION_SHIFT, Ordering::Relaxed);
    }

    /// Makes the value, which is on no trace, a parameter of one. The caller holds the combining
    /// lock and knows of a handle that is kept.
    #[inline]
    pub fn bind(&self, index: u32) {
        self.0.fetch_or(PARAMETER | u64::from(index) << POSITION_SHIFT, Ordering::Relaxed);
    }

    /// The position of the trace when the last handle was dropped, if it was dropped.
    #[inline]
    pub fn drop_position(&self) -> Option<TracePosition> {
        position(self.0.load(ordering!(Acquire, "handles_position")))
    }

    /// Takes the value off its trace. Returns the position of the trace when the last handle was
    /// dropped, if it was dropped.
    #[inline]
    pub fn detach(&self) -> Option<TracePosition> {
        position(self.0.fetch_and(HANDLES, ordering!(Acquire, "handles_detach")))
    }
}

/// Which result or parameter of its trace a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceIndex {
    /// The index of a result.
    Result(u32),
    /// The index of a parameter.
    Parameter(u32),
}

/// A position of a trace, modulo `POSITIONS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePosition(u32);

impl TracePosition {
    /// Number of ops since `first`; 0 if the position is before it. The difference must be less
    /// than half of `POSITIONS`.
    #[inline]
    pub fn since(self, first: u32) -> u32 {
        let ops = self.0.wrapping_sub(first) % POSITIONS;
        if ops < POSITIONS / 2 { ops } else { 0 }
    }
}

#[inline]
fn position(word: u64) -> Option<TracePosition> {
    (word & HANDLES == 0).then_some(TracePosition((word >> POSITION_SHIFT) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_drop_of_a_value_on_no_trace_is_reported() {
        let handles = HandleCount::new();
        handles.retain();
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Shared);
        assert!(handles.has_handles());
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Last);
        assert!(!handles.has_handles());
    }

    #[test]
    fn the_last_drop_of_a_value_on_a_trace_stores_its_position() {
        let handles = HandleCount::new();
        handles.set_result(7);
        assert_eq!(handles.trace_index(), Some(TraceIndex::Result(7)));
        handles.retain();
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Shared);
        assert_eq!(handles.drop_position(), None);
        assert_eq!(handles.drop_one(|| 65_536), Dropped::MovedToTrace);
        assert!(!handles.has_handles() && handles.is_result());
        assert_eq!(handles.drop_position(), Some(TracePosition(65_536)));
        assert_eq!(handles.detach(), Some(TracePosition(65_536)));
        assert!(!handles.is_result());

        let handles = HandleCount::new();
        assert_eq!(handles.trace_index(), None);
        handles.bind(3);
        assert_eq!(handles.trace_index(), Some(TraceIndex::Parameter(3)));
        assert_eq!(handles.detach(), None);
        handles.bind(4);
        assert_eq!(handles.trace_index(), Some(TraceIndex::Parameter(4)));
        assert_eq!(handles.detach(), None);
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Last);
    }

    #[test]
    fn positions_wrap() {
        let first = POSITIONS - 5;
        for (at, since) in [(first, 0), (POSITIONS + 3, 8), (first - 1, 0), (first.wrapping_add(5 << 30), 0)]
        {
            let handles = HandleCount::new();
            handles.set_result(0);
            assert_eq!(handles.drop_one(|| at), Dropped::MovedToTrace);
            assert_eq!(handles.drop_position().map(|position| position.since(first)), Some(since), "{at}");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use fuseline_sync::UnsafeCell;
    use fuseline_sync::atomic::AtomicU32;

    use super::*;

    /// A value that its owners access before they drop their handles.
    struct Value {
        handles: HandleCount,
        touched: UnsafeCell<u32>,
        ops: AtomicU32,
    }

    // SAFETY: holds because the handles' owners and the trace access the cell one after the other,
    // which the models check.
    unsafe impl Send for Value {}
    // SAFETY: holds for the same reason.
    unsafe impl Sync for Value {}

    impl Value {
        fn new() -> Arc<Value> {
            let value =
                Value { handles: HandleCount::new(), touched: UnsafeCell::new(0), ops: AtomicU32::new(0) };
            value.handles.set_result(0);
            Arc::new(value)
        }

        fn read(&self) -> u32 {
            // SAFETY: holds because no thread writes while there is a handle.
            self.touched.with(|touched| unsafe { *touched })
        }

        fn write(&self) {
            // SAFETY: holds because the caller has found that there is no handle any more.
            self.touched.with_mut(|touched| unsafe { *touched += 1 });
        }

        fn drop_one(&self) -> Dropped {
            assert_eq!(self.read(), 0);
            self.handles.drop_one(|| self.ops.load(Ordering::Relaxed))
        }
    }

    /// Two handles are dropped while the trace is closed. The last reference has exactly one next
    /// owner, which comes after both drops.
    #[test]
    fn loom_the_last_reference_has_one_owner() {
        loom::model(|| {
            let value = Value::new();
            value.handles.retain();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let value = value.clone();
                    loom::thread::spawn(move || {
                        let dropped = value.drop_one();
                        if dropped == Dropped::Last {
                            value.write();
                        }
                        dropped
                    })
                })
                .collect();
            let position = value.handles.drop_position().or_else(|| value.handles.detach());
            if position.is_some() {
                value.write();
            }
            let dropped: Vec<_> =
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            let last = dropped.iter().filter(|&&dropped| dropped == Dropped::Last).count();
            let moved = dropped.iter().filter(|&&dropped| dropped == Dropped::MovedToTrace).count();
            assert_eq!((last, moved), if position.is_some() { (0, 1) } else { (1, 0) });
        });
    }

    /// The same for a handle that is dropped before the trace looks. Seeing the drop is enough for
    /// the trace to own the value.
    #[test]
    fn loom_a_stored_position_comes_after_the_drop() {
        loom::model(|| {
            let value = Value::new();
            let other = {
                let value = value.clone();
                loom::thread::spawn(move || {
                    let _ = value.drop_one();
                })
            };
            // Loom backtracks to the last access before a write only, which is the other thread's
            // own load. Without the yield it misses the schedule in which the trace looks last.
            loom::thread::yield_now();
            if value.handles.drop_position().is_some() {
                value.write();
            }
            other.join().expect("no panic");
        });
    }

    /// A value is bound at the third op while another thread drops a handle on it. Then the last
    /// handle is dropped, and its position is not before that op.
    #[test]
    fn loom_a_position_is_not_before_the_bind() {
        loom::model(|| {
            let value = Value::new();
            let _ = value.handles.detach();
            value.handles.retain();
            let other = {
                let value = value.clone();
                loom::thread::spawn(move || {
                    let _ = value.drop_one();
                })
            };
            value.ops.store(2, Ordering::Relaxed);
            value.handles.bind(0);
            let _ = value.drop_one();
            other.join().expect("no panic");
            assert_eq!(value.handles.drop_position(), Some(TracePosition(2)));
        });
    }
}
