//! Values: what tensors are handles on.
//!
//! A [`ValueCell`] is the engine's record of one value: identity, type and, once it is known, its
//! data or why there is none. It is shared by the user's handles, by the log entries and regions
//! that make or read it, and by nobody else; when the last of them goes, the device memory goes.
//!
//! Invariants:
//! - V1: the number of handles is counted apart ([`HandleCount`]). When it becomes zero, a release
//!   is appended to the value's stream, or its tape finds that out, so that the end of its life has
//!   a place in the program.
//! - V2: no handle can be made from a value without handles. So a region that holds the last
//!   reference to a value whose release it has seen is its last reader, and may reuse its memory.
//! - V3: the data of a value is set once ([`Once`]).

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::region::{TraceResult, TraceValue};
use fuseline_fusion::{Scalar, TensorType, ValueId};
use fuseline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fuseline_sync::once::{Abandoned, Once, Promise};
use fuseline_sync::{fence, ordering};

use crate::handle_count::{Dropped, HandleCount};
use crate::id::fresh_id;
use crate::type_token::TypeToken;

/// What becomes of a value: data, a failure, or whatever else the engine knows.
pub trait Outcome: Abandoned + fmt::Debug + Send + Sync + 'static {
    /// Where a value stands in a body that is traced.
    type BodyPosition;

    /// The outcome of a lifted scalar.
    fn of_scalar(scalar: Scalar) -> Self;

    /// The scalar, if the value is a lifted one.
    fn as_scalar(&self) -> Option<Scalar>;

    /// Where the value is in a body, if it belongs to one.
    fn body_position(&self) -> Option<&Self::BodyPosition>;
}

/// One value.
pub struct ValueCell<O> {
    /// Changes when the cell is used again ([`ValueCell::recycle`]).
    id: AtomicU64,
    /// Number of handles (V1), and whether it is on a tape.
    handles: HandleCount,
    ty: TensorType,
    /// Of this type.
    type_token: TypeToken,
    /// It is a lifted scalar.
    is_scalar: bool,
    /// Asking for it is no boundary any more: the program has asked for one since the op that makes
    /// it.
    boundary_passed: AtomicBool,
    /// The host has asked for its data.
    read: AtomicBool,
    /// What its elements, indices, are known to be below, and since which round of checks
    /// ([`ValueCell::set_known_below`]); 0 for nothing.
    known_below: AtomicU64,
    outcome: Once<O>,
}

/// The engine's duty to make a value.
#[derive(Debug)]
pub struct ValuePromise<O: Outcome>(Promise<O, ValueCell<O>>);

/// A reference to a value, as regions hold it.
pub struct ValueRef<O>(Arc<ValueCell<O>>);

impl<O> Clone for ValueRef<O> {
    fn clone(&self) -> ValueRef<O> {
        ValueRef(self.0.clone())
    }
}

impl<O: Outcome> ValueCell<O> {
    #[inline(always)]
    fn new(
        ty: TensorType,
        type_token: TypeToken,
        boundary_passed: bool,
        is_scalar: bool,
        outcome: Once<O>,
    ) -> ValueCell<O> {
        ValueCell {
            id: AtomicU64::new(fresh_id().to_raw()),
            handles: HandleCount::new(),
            ty,
            type_token,
            is_scalar,
            boundary_passed: AtomicBool::new(boundary_passed),
            read: AtomicBool::new(false),
            known_below: AtomicU64::new(0),
            outcome,
        }
    }

    /// A value that an op makes, with one handle, and no promise to make it yet.
    pub fn pending(ty: TensorType) -> ValueCell<O> {
        let type_token = TypeToken::of(&ty);
        ValueCell::new(ty, type_token, false, false, Once::pending())
    }

    /// A value that an op makes, with one handle, and the promise to make it.
    pub fn promised(ty: TensorType) -> (Arc<ValueCell<O>>, ValuePromise<O>) {
        ValuePromise::new(ValueCell::pending(ty))
    }

    /// The same for a type whose kind is known.
    #[inline(always)]
    pub fn promised_as(ty: TensorType, type_token: TypeToken) -> (Arc<ValueCell<O>>, ValuePromise<O>) {
        ValuePromise::new(ValueCell::new(ty, type_token, false, false, Once::pending()))
    }

    /// Makes another value of the same type, the result of a tape with this number, of one that was
    /// never made, and to which nobody has a reference but the caller. False if somebody has waited
    /// for it.
    #[inline]
    pub fn recycle(&self, number: u32) -> bool {
        // What those who had references did comes before.
        fence(ordering!(Acquire, "value_renew"));
        if !self.outcome.is_untouched() {
            return false;
        }
        self.id.store(fresh_id().to_raw(), Ordering::Relaxed);
        self.handles.make(number);
        self.boundary_passed.store(false, Ordering::Relaxed);
        self.read.store(false, Ordering::Relaxed);
        self.known_below.store(0, Ordering::Relaxed);
        true
    }

    /// Number of handles, and whether it is on a tape.
    #[inline(always)]
    pub fn handles(&self) -> &HandleCount {
        &self.handles
    }

    /// The promise of a value without handles, which an op makes for other ops.
    pub fn promised_to_nobody(ty: TensorType) -> ValuePromise<O> {
        let (cell, promise) = ValueCell::promised(ty);
        let dropped = cell.handles.drop_one(|| 0);
        debug_assert_eq!(dropped, Dropped::Last, "bug: a new value is on a tape");
        promise
    }

    /// A value whose outcome is known, with one handle.
    pub fn known(ty: TensorType, outcome: O) -> Arc<ValueCell<O>> {
        let type_token = TypeToken::of(&ty);
        let is_scalar = outcome.as_scalar().is_some();
        Arc::new(ValueCell::new(ty, type_token, true, is_scalar, Once::ready(outcome)))
    }

    /// A lifted scalar, with one handle.
    pub fn scalar(scalar: Scalar) -> Arc<ValueCell<O>> {
        ValueCell::known(TensorType::scalar(scalar.dtype()), O::of_scalar(scalar))
    }

    /// Its id, which no other value of the process has or had.
    #[must_use]
    pub fn id(&self) -> ValueId {
        ValueId::from_raw(self.id.load(Ordering::Relaxed)).expect("bug: a value without an id")
    }

    /// Its type.
    #[must_use]
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// What its type is found by sooner.
    #[inline]
    pub fn type_token(&self) -> TypeToken {
        self.type_token
    }

    /// What becomes of it.
    #[must_use]
    pub fn outcome(&self) -> &Once<O> {
        &self.outcome
    }

    /// What became of it, for the last who has the value and is about to drop it.
    pub fn take_outcome(&mut self) -> Option<O> {
        self.outcome.take()
    }

    /// Whether it is a lifted scalar.
    #[inline]
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }

    /// The scalar, if it is a lifted one.
    pub fn as_scalar(&self) -> Option<Scalar> {
        self.outcome.get()?.as_scalar()
    }

    /// Where it is in a body, if it belongs to one.
    pub fn place(&self) -> Option<&O::BodyPosition> {
        self.outcome.get()?.body_position()
    }

    /// Whether anybody has a handle on it.
    pub fn has_handles(&self) -> bool {
        self.handles.has_handles()
    }

    /// Whether asking for it may be a boundary, as the log of its stream will tell. A stale answer
    /// costs a log entry.
    pub fn needs_boundary(&self) -> bool {
        !self.boundary_passed.load(Ordering::Relaxed)
    }

    /// The host asks for its data. The entry of the log that says so comes behind.
    pub fn set_read(&self) {
        self.read.store(true, Ordering::Relaxed);
    }

    /// Whether the host has asked for its data.
    pub fn is_read(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }

    /// Whether it is checked already, in this round, that its elements are indices below `size`:
    /// values do not change.
    pub fn is_known_below(&self, size: u64, round: u32) -> bool {
        let word = self.known_below.load(Ordering::Relaxed);
        word >> 32 == u64::from(round) && word & u64::from(u32::MAX) <= size
    }

    /// That is checked from now on.
    pub fn set_known_below(&self, size: u64, round: u32) {
        // Larger ones are not remembered. Between two threads the last one counts, and each has had
        // its check recorded.
        if size <= u64::from(u32::MAX) && !self.is_known_below(size, round) {
            self.known_below.store(u64::from(round) << 32 | size, Ordering::Relaxed);
        }
    }

    /// It was in a region that ended where the program asked.
    pub fn set_boundary_passed(&self) {
        self.boundary_passed.store(true, Ordering::Relaxed);
    }
}

impl<O> AsRef<Once<O>> for ValueCell<O> {
    fn as_ref(&self) -> &Once<O> {
        &self.outcome
    }
}

impl<O: Outcome> fmt::Debug for ValueCell<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id(), self.ty)
    }
}

impl<O: Outcome> fmt::Debug for ValueRef<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<O: Outcome> ValueRef<O> {
    /// A reference to a value.
    #[inline(always)]
    #[must_use]
    pub fn of(cell: Arc<ValueCell<O>>) -> ValueRef<O> {
        ValueRef(cell)
    }

    /// The value.
    #[inline(always)]
    #[must_use]
    pub fn cell(&self) -> &Arc<ValueCell<O>> {
        &self.0
    }

    /// The value, for the only one who has a reference to it.
    pub fn get_mut(&mut self) -> Option<&mut ValueCell<O>> {
        Arc::get_mut(&mut self.0)
    }

    /// Whether this is the only reference. The region that has it and has seen the value's release
    /// is its last reader then, and may reuse its memory (V2).
    pub fn is_last(&self) -> bool {
        let is_last = Arc::strong_count(&self.0) == 1;
        debug_assert!(!is_last || !self.0.has_handles(), "bug: {self:?} is to be reused and has a handle");
        // What those who had references did with its memory comes before what overwrites it.
        fence(ordering!(Acquire, "value_last"));
        is_last
    }
}

impl<O: Outcome> TraceValue for ValueRef<O> {
    fn id(&self) -> ValueId {
        self.0.id()
    }
}

impl<O: Outcome> ValuePromise<O> {
    #[inline(always)]
    fn new(cell: ValueCell<O>) -> (Arc<ValueCell<O>>, ValuePromise<O>) {
        let (cell, promise) = Promise::new(cell);
        (cell, ValuePromise(promise))
    }

    /// The promise for a pending `cell` that has none yet.
    #[inline(always)]
    pub fn of(cell: Arc<ValueCell<O>>) -> ValuePromise<O> {
        ValuePromise(Promise::of(cell))
    }

    /// The value to be made.
    #[inline(always)]
    pub fn holder(&self) -> &Arc<ValueCell<O>> {
        self.0.holder()
    }

    /// Sets the outcome; returns the value.
    pub fn resolve(self, outcome: O) -> Arc<ValueCell<O>> {
        self.0.resolve(outcome)
    }
}

impl<O: Outcome> TraceResult for ValuePromise<O> {
    type Value = ValueRef<O>;

    fn value(&self) -> ValueRef<O> {
        ValueRef(self.holder().clone())
    }

    fn id(&self) -> ValueId {
        self.holder().id()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use fuseline_fusion::DType;
    use fuseline_sync::UnsafeCell;
    use fuseline_sync::atomic::AtomicU32;

    use super::*;
    use crate::testing::{TestOutcome, ValueCell};

    type ValueRef = super::ValueRef<TestOutcome>;

    /// A value with its references counted as `Arc` counts them, which loom does not see: given up
    /// with `Release`, looked at with `Relaxed`.
    struct Counted {
        value: ValueRef,
        references: AtomicU32,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: holds because the memory is used by one reference's owner after the other, which the
    // models check.
    unsafe impl Send for Counted {}
    // SAFETY: holds for the same reason.
    unsafe impl Sync for Counted {}

    /// Another thread does something with a value and gives its reference up; this one looks at it
    /// when it is the only one left.
    fn beside(other: fn(&Counted), last: fn(&Counted)) {
        loom::model(move || {
            let cell = Arc::new(ValueCell::pending(TensorType::scalar(DType::F32)));
            let _ = cell.handles().drop_one(|| 0);
            let counted = Counted {
                value: ValueRef::of(cell),
                references: AtomicU32::new(2),
                memory: UnsafeCell::new(0),
            };
            let counted = Arc::new(counted);
            let theirs = counted.clone();
            let thread = loom::thread::spawn(move || {
                other(&theirs);
                theirs.references.fetch_sub(1, Ordering::Release);
            });
            if counted.references.load(Ordering::Relaxed) == 1 {
                last(&counted);
            }
            thread.join().expect("no panic");
        });
    }

    /// A value that somebody has waited for is not made anew.
    #[test]
    fn loom_what_was_waited_for_is_not_renewed() {
        beside(
            |counted| counted.value.0.outcome().subscribe(|| ()),
            |counted| assert!(!counted.value.0.recycle(1), "somebody waits for it"),
        );
    }

    /// V2: memory is overwritten after all that others did with it.
    #[test]
    fn loom_the_last_reader_comes_after_the_others() {
        beside(
            // SAFETY: holds because the other one writes only when this reference has been given
            // up.
            |counted| counted.memory.with(|memory| assert_eq!(unsafe { *memory }, 0)),
            |counted| {
                assert!(counted.value.is_last());
                // SAFETY: holds because nobody else has a reference.
                counted.memory.with_mut(|memory| unsafe { *memory = 1 });
            },
        );
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::testing::{TestOutcome, ValueCell};

    type ValueRef = super::ValueRef<TestOutcome>;

    /// V2.
    #[test]
    fn memory_is_reused_by_the_last_reader() {
        let cell = ValueCell::scalar(Scalar::new(1.0f32));
        let (first, last) = (ValueRef::of(cell.clone()), ValueRef::of(cell));
        assert!(!first.is_last());
        assert_eq!(first.0.handles().drop_one(|| 0), Dropped::Last);
        drop(first);
        assert!(last.is_last());
    }

    /// V2, where somebody has broken it.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is to be reused and has a handle")]
    fn memory_with_a_handle_is_not_reused() {
        ValueRef::of(ValueCell::scalar(Scalar::new(1.0f32))).is_last();
    }
}
