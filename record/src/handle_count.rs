//! How many handles a value has, and whose its reference is when the last one goes.
//!
//! The end of a life has a place in the program, so the last drop of a handle appends a release to
//! the log. While the value is on a tape that is not closed, the tape can note that place itself:
//! the drop leaves the place in the value, and with it the reference that was the handle's, for the
//! tape to find when it is closed. That takes one compare-exchange and no look at the gate, whoever
//! holds it.
//!
//! # State word
//!
//! One atomic integer: the number of handles in the lower half; two bits that say that the value is
//! on a tape, as a result (`MADE`) or as a parameter (`BOUND`); and above them its number among
//! those of the tape, or, once the last handle is gone, where the tape stood then.
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | `n -> n + 1`, with or without bits | owner of a handle, [`HandleCount::retain`] | add, relaxed: the handle keeps it alive |
//! | `n -> n - 1`, not to 0, with or without bits | owner of a handle, [`HandleCount::drop_one`] | compare-exchange, `Release` for whoever drops the last one |
//! | `1 -> 0`, no bits | owner of the last handle, [`HandleCount::drop_one`] | store, after a load with `Acquire` |
//! | `bits, 1 -> bits, 0, place` | owner of the last handle, [`HandleCount::drop_one`] | compare-exchange, `Release` publishes what it did with the value |
//! | anything `-> MADE, 1, number` | the tape, of a value that nobody else knows, [`HandleCount::make`] | store, relaxed |
//! | `n -> BOUND, n, number` | holder of the gate, [`HandleCount::bind`] | or, relaxed |
//! | `BOUND, n -> n` | the same, [`HandleCount::take_off`] | as below |
//! | `bits, n -> n` | holder of the gate, when the tape is closed, [`HandleCount::take_off`] | and, `Acquire` gets what the last owner did; so does the load of [`HandleCount::given`] |
//!
//! # Safety argument
//!
//! - H1: *The reference of the last handle has one next owner.* Bits are set while there is a
//!   handle whose owner is not dropping it (it is an operand of the call, or has not been handed
//!   out), and taken off by one read-modify-write. So the last drop either finds them and gives the
//!   reference away by its compare-exchange, which `given` or `take_off` then sees, or does not
//!   find them and keeps it.
//! - H2: *While bits are set, somebody has a reference*: a handle, or, since it was given away, the
//!   tape.
//! - H3: *The place that is left is one where the drop may be.* Who drops the last handle comes
//!   after all calls that had the value as an operand, and a tape's place is written before the
//!   call returns, so the place that is read is not above theirs. What follows from the drop is
//!   recorded when the place has been read.

use fuseline_sync::atomic::{AtomicU64, Ordering};
use fuseline_sync::ordering;

const HANDLES: u64 = u32::MAX as u64;
const MADE: u64 = 1 << 32;
const BOUND: u64 = 1 << 33;
const ON_TAPE: u64 = MADE | BOUND;
const PLACE: u32 = 34;
/// Where a tape stands is known but for a multiple of this.
const PLACES: u32 = 1 << (u64::BITS - PLACE);

/// What the drop of a handle was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Dropped {
    /// There are others.
    Shared,
    /// The last one: the end of the life is to be recorded.
    Last,
    /// The last one, on a tape that notes it. The reference that the handle had is the tape's now.
    MovedToTrace,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct HandleCount(AtomicU64);

impl HandleCount {
    /// One handle, on no tape.
    pub fn new() -> HandleCount {
        HandleCount(AtomicU64::new(1))
    }

    /// One handle more, made from one that exists.
    #[inline]
    pub fn retain(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One handle less. `at` is where the tape stands; it is asked if the value is on one.
    #[inline(always)]
    pub fn drop_one(&self, at: impl Fn() -> u32) -> Dropped {
        let mut word = self.0.load(ordering!(Acquire, "life_drop"));
        loop {
            if word == 1 {
                // Nobody can make another handle, or put the value on a tape, without a handle.
                self.0.store(0, Ordering::Relaxed);
                return Dropped::Last;
            }
            let (next, dropped) = match word & HANDLES {
                1 => (word & ON_TAPE | u64::from(at()) << PLACE, Dropped::MovedToTrace),
                _ => (word - 1, Dropped::Shared),
            };
            match self.0.compare_exchange_weak(
                word,
                next,
                ordering!(Release, "life_give"),
                ordering!(Acquire, "life_drop"),
            ) {
                Ok(_) => return dropped,
                Err(now) => word = now,
            }
        }
    }

    /// Whether anybody has a handle.
    pub fn has_handles(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HANDLES > 0
    }

    /// Whether it is on a tape, as a result. For who holds the gate.
    pub fn is_made(&self) -> bool {
        self.0.load(Ordering::Relaxed) & MADE != 0
    }

    /// As what it is on a tape, if it is and somebody has a handle. For who holds the gate and has
    /// one.
    pub fn number(&self) -> Option<Number> {
        let word = self.0.load(Ordering::Relaxed);
        let number = (word >> PLACE) as u32;
        match word & ON_TAPE {
            0 => None,
            MADE => Some(Number::Made(number)),
            _ => Some(Number::Bound(number)),
        }
    }

    /// Makes it a result of a tape, with one handle. Nobody else knows the value.
    #[inline]
    pub fn make(&self, number: u32) {
        self.0.store(MADE | 1 | u64::from(number) << PLACE, Ordering::Relaxed);
    }

    /// Makes it a parameter of a tape; it is on none. The caller holds the gate, and knows of a
    /// handle that is kept.
    pub fn bind(&self, number: u32) {
        self.0.fetch_or(BOUND | u64::from(number) << PLACE, Ordering::Relaxed);
    }

    /// Where the tape stood when the last handle was dropped, if it was.
    #[inline]
    pub fn given(&self) -> Option<TracePosition> {
        place(self.0.load(ordering!(Acquire, "life_given")))
    }

    /// It is on no tape from now on. Returns where the tape stood when the last handle was dropped,
    /// if it was.
    pub fn take_off(&self) -> Option<TracePosition> {
        place(self.0.fetch_and(HANDLES, ordering!(Acquire, "life_take_off")))
    }
}

/// What a value is on its tape: which of the results or parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// A result, by its number.
    Made(u32),
    /// A parameter, by its number.
    Bound(u32),
}

/// Where a tape stood, as far as a word has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePosition(u32);

impl TracePosition {
    /// How far behind `first`; 0 if that was not reached. The difference is less than half of
    /// [`PLACES`].
    pub fn since(self, first: u32) -> u32 {
        let ops = self.0.wrapping_sub(first) % PLACES;
        if ops < PLACES / 2 { ops } else { 0 }
    }
}

fn place(word: u64) -> Option<TracePosition> {
    (word & HANDLES == 0).then_some(TracePosition((word >> PLACE) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_drop_of_what_is_on_no_tape_is_told() {
        let handles = HandleCount::new();
        handles.retain();
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Shared);
        assert!(handles.has_handles());
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Last);
        assert!(!handles.has_handles());
    }

    #[test]
    fn the_last_drop_of_what_is_on_a_tape_leaves_its_place() {
        let handles = HandleCount::new();
        handles.make(7);
        assert_eq!(handles.number(), Some(Number::Made(7)));
        handles.retain();
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Shared);
        assert_eq!(handles.given(), None);
        assert_eq!(handles.drop_one(|| 65_536), Dropped::MovedToTrace);
        assert!(!handles.has_handles() && handles.is_made());
        assert_eq!(handles.given(), Some(TracePosition(65_536)));
        assert_eq!(handles.take_off(), Some(TracePosition(65_536)));
        assert!(!handles.is_made());

        let handles = HandleCount::new();
        assert_eq!(handles.number(), None);
        handles.bind(3);
        assert_eq!(handles.number(), Some(Number::Bound(3)));
        assert_eq!(handles.take_off(), None);
        handles.bind(4);
        assert_eq!(handles.number(), Some(Number::Bound(4)));
        assert_eq!(handles.take_off(), None);
        assert_eq!(handles.drop_one(|| unreachable!()), Dropped::Last);
    }

    #[test]
    fn places_go_round() {
        let first = PLACES - 5;
        for (at, since) in [(first, 0), (PLACES + 3, 8), (first - 1, 0), (first.wrapping_add(5 << 30), 0)] {
            let handles = HandleCount::new();
            handles.make(0);
            assert_eq!(handles.drop_one(|| at), Dropped::MovedToTrace);
            assert_eq!(handles.given().map(|stood| stood.since(first)), Some(since), "{at}");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use fuseline_sync::UnsafeCell;
    use fuseline_sync::atomic::AtomicU32;

    use super::*;

    /// A value whose owners touch it before they let go of it.
    struct Value {
        handles: HandleCount,
        touched: UnsafeCell<u32>,
        ops: AtomicU32,
    }

    // SAFETY: holds because the handles' owners and the tape touch the cell one after the other,
    // which the models check.
    unsafe impl Send for Value {}
    // SAFETY: holds for the same reason.
    unsafe impl Sync for Value {}

    impl Value {
        fn new() -> Arc<Value> {
            let value =
                Value { handles: HandleCount::new(), touched: UnsafeCell::new(0), ops: AtomicU32::new(0) };
            value.handles.make(0);
            Arc::new(value)
        }

        fn read(&self) -> u32 {
            // SAFETY: holds because nobody writes while there is a handle.
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

    /// Two handles go while the tape is closed: the reference of the last one has one next owner,
    /// who comes after both.
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
            let given = value.handles.given().or_else(|| value.handles.take_off());
            if given.is_some() {
                value.write();
            }
            let dropped: Vec<_> =
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            let last = dropped.iter().filter(|&&dropped| dropped == Dropped::Last).count();
            let gave = dropped.iter().filter(|&&dropped| dropped == Dropped::MovedToTrace).count();
            assert_eq!((last, gave), if given.is_some() { (0, 1) } else { (1, 0) });
        });
    }

    /// The same for a handle that goes before the tape looks: that it has gone is enough to be sure
    /// of the value.
    #[test]
    fn loom_who_finds_a_value_given_comes_after_its_owner() {
        loom::model(|| {
            let value = Value::new();
            let other = {
                let value = value.clone();
                loom::thread::spawn(move || {
                    let _ = value.drop_one();
                })
            };
            // Loom backtracks to the last access before a write only, which is the other thread's
            // own load. Without the yield it misses the schedule in which the tape looks last.
            loom::thread::yield_now();
            if value.handles.given().is_some() {
                value.write();
            }
            other.join().expect("no panic");
        });
    }

    /// A value is bound at the third op while another thread gives up a handle on it, and then the
    /// last one goes: not before that op.
    #[test]
    fn loom_a_place_is_not_above_what_is_known() {
        loom::model(|| {
            let value = Value::new();
            let _ = value.handles.take_off();
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
            assert_eq!(value.handles.given(), Some(TracePosition(2)));
        });
    }
}
