//! Values, which tensors are handles on.
//!
//! A [`ValueCell`] is the engine's record of one value: its id, its type and, once it is known, its
//! outcome (data, or the reason why there is none). The user's handles share it with the log
//! entries and regions that produce or read it. When the last reference goes, the device memory
//! goes.
//!
//! Invariants:
//! - VALUE-1: handles are counted separately from references ([`HandleCount`]). When their number
//!   becomes zero, a release is appended to the log of the value's stream, or its trace notes it.
//!   So the end of its life has a place in the program.
//! - VALUE-2: no handle can be made from a value without handles. So a region that has seen the
//!   release of a value and holds the last reference to it is its last reader, and may reuse its
//!   memory.
//! - VALUE-3: the outcome of a value is set once ([`Once`]).

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

/// The outcome of a value: data, a failure, or another state that the engine defines.
pub trait Outcome: Abandoned + fmt::Debug + Send + Sync + 'static {
    /// The position of a value in a traced body.
    type BodyPosition;

    /// The outcome of a lifted scalar.
    fn of_scalar(scalar: Scalar) -> Self;

    /// The scalar, if the value is a lifted one.
    fn as_scalar(&self) -> Option<Scalar>;

    /// The position of the value in a body, if it belongs to one.
    fn body_position(&self) -> Option<&Self::BodyPosition>;
}

/// One value.
pub struct ValueCell<O> {
    /// Changes when the cell is reused ([`ValueCell::recycle`]).
    id: AtomicU64,
    /// Number of handles (VALUE-1), and whether the value is on a trace.
    handles: HandleCount,
    ty: TensorType,
    /// The token of `ty`.
    type_token: TypeToken,
    /// Whether the value is a lifted scalar.
    is_scalar: bool,
    /// Whether a boundary has been requested since the op that produces the value. Then a demand
    /// for the value is no boundary any more.
    boundary_passed: AtomicBool,
    /// Whether the host has requested the data.
    read: AtomicBool,
    /// A bound that the elements, which are indices, were checked against, and the round of checks
    /// ([`ValueCell::set_known_below`]); 0 for none.
    known_below: AtomicU64,
    outcome: Once<O>,
}

/// The engine's promise to produce a value.
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

    /// The value of an op's result, with one handle and no promise yet.
    pub fn pending(ty: TensorType) -> ValueCell<O> {
        let type_token = TypeToken::of(&ty);
        ValueCell::new(ty, type_token, false, false, Once::pending())
    }

    /// The value of an op's result, with one handle, and the promise to produce it.
    pub fn promised(ty: TensorType) -> (Arc<ValueCell<O>>, ValuePromise<O>) {
        ValuePromise::new(ValueCell::pending(ty))
    }

    /// As [`ValueCell::promised`], for a type whose token is known.
    #[inline(always)]
    pub fn promised_as(ty: TensorType, type_token: TypeToken) -> (Arc<ValueCell<O>>, ValuePromise<O>) {
        ValuePromise::new(ValueCell::new(ty, type_token, false, false, Once::pending()))
    }

    /// Reuses the cell of a value that was never computed for a new value of the same type: result
    /// `number` of a trace. The caller must hold the only reference. False if a thread has waited
    /// for the old value.
    #[inline]
    pub fn recycle(&self, number: u32) -> bool {
        // Synchronise with the threads that dropped their references.
        fence(ordering!(Acquire, "value_renew"));
        if !self.outcome.is_untouched() {
            return false;
        }
        self.id.store(fresh_id().to_raw(), Ordering::Relaxed);
        self.handles.set_result(number);
        self.boundary_passed.store(false, Ordering::Relaxed);
        self.read.store(false, Ordering::Relaxed);
        self.known_below.store(0, Ordering::Relaxed);
        true
    }

    /// The handle count, which also says whether the value is on a trace.
    #[inline(always)]
    pub fn handles(&self) -> &HandleCount {
        &self.handles
    }

    /// The promise of a value without handles, which one op produces for other ops.
    pub fn promised_to_nobody(ty: TensorType) -> ValuePromise<O> {
        let (cell, promise) = ValueCell::promised(ty);
        let dropped = cell.handles.drop_one(|| 0);
        debug_assert_eq!(dropped, Dropped::Last, "bug: a new value is on a trace");
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

    /// The id, which no other value of the process has or had.
    #[must_use]
    #[inline]
    pub fn id(&self) -> ValueId {
        ValueId::from_raw(self.id.load(Ordering::Relaxed)).expect("bug: a value without an id")
    }

    /// The type.
    #[must_use]
    #[inline]
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The token of the type.
    #[inline]
    pub fn type_token(&self) -> TypeToken {
        self.type_token
    }

    /// The outcome.
    #[must_use]
    #[inline]
    pub fn outcome(&self) -> &Once<O> {
        &self.outcome
    }

    /// Takes the outcome, for the last owner, which is about to drop the value.
    pub fn take_outcome(&mut self) -> Option<O> {
        self.outcome.take()
    }

    /// Whether it is a lifted scalar.
    #[inline]
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }

    /// The number, if the value is a lifted scalar.
    pub fn as_scalar(&self) -> Option<Scalar> {
        self.outcome.get()?.as_scalar()
    }

    /// The position in a body, if the value belongs to one.
    pub fn place(&self) -> Option<&O::BodyPosition> {
        self.outcome.get()?.body_position()
    }

    /// Whether there is a handle on the value.
    pub fn has_handles(&self) -> bool {
        self.handles.has_handles()
    }

    /// Whether a demand for the value may be a boundary, which the driver decides. A stale answer
    /// costs a log entry.
    pub fn needs_boundary(&self) -> bool {
        !self.boundary_passed.load(Ordering::Relaxed)
    }

    /// Notes that the host requests the data. The log entry with the demand follows.
    pub fn set_read(&self) {
        self.read.store(true, Ordering::Relaxed);
    }

    /// Whether the host has requested the data.
    pub fn is_read(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }

    /// Whether a check of this round has already been recorded that the elements are indices below
    /// `size`. Values do not change, so one check suffices.
    pub fn is_known_below(&self, size: u64, round: u32) -> bool {
        let word = self.known_below.load(Ordering::Relaxed);
        word >> 32 == u64::from(round) && word & u64::from(u32::MAX) <= size
    }

    /// Notes that such a check has been recorded.
    pub fn set_known_below(&self, size: u64, round: u32) {
        // Larger sizes are not remembered. If two threads race, the last one wins, and both have
        // recorded their checks.
        if size <= u64::from(u32::MAX) && !self.is_known_below(size, round) {
            self.known_below.store(u64::from(round) << 32 | size, Ordering::Relaxed);
        }
    }

    /// Notes that the value was in a region that ended at a requested boundary.
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

    /// The value, if this is the only reference to it.
    pub fn get_mut(&mut self) -> Option<&mut ValueCell<O>> {
        Arc::get_mut(&mut self.0)
    }

    /// Whether this is the only reference. If so, and if the owning region has seen the value's
    /// release, the region is the last reader and may reuse the memory (VALUE-2).
    pub fn is_last(&self) -> bool {
        let is_last = Arc::strong_count(&self.0) == 1;
        debug_assert!(!is_last || !self.0.has_handles(), "bug: {self:?} is to be reused and has a handle");
        // Accesses through dropped references happen before the memory is overwritten.
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

    /// The promise of a pending `cell` that has none yet.
    #[inline(always)]
    pub fn of(cell: Arc<ValueCell<O>>) -> ValuePromise<O> {
        ValuePromise(Promise::of(cell))
    }

    /// The promised value.
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

    /// A value with a model of `Arc`'s reference count, which loom does not see: decremented with
    /// `Release`, read with `Relaxed`.
    struct Counted {
        value: ValueRef,
        references: AtomicU32,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: holds because the owners of references access the memory one after the other, which
    // the models check.
    unsafe impl Send for Counted {}
    // SAFETY: holds for the same reason.
    unsafe impl Sync for Counted {}

    /// Another thread accesses a value and drops its reference. This thread calls `last` if its
    /// reference is the only one left.
    fn with_concurrent_reader(other: fn(&Counted), last: fn(&Counted)) {
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

    /// A value that a thread has waited for is not recycled.
    #[test]
    fn loom_what_was_waited_for_is_not_renewed() {
        with_concurrent_reader(
            |counted| counted.value.0.outcome().subscribe(|| ()),
            |counted| assert!(!counted.value.0.recycle(1), "somebody waits for it"),
        );
    }

    /// VALUE-2: memory is overwritten after all accesses of other threads.
    #[test]
    fn loom_the_last_reader_comes_after_the_others() {
        with_concurrent_reader(
            // SAFETY: holds because the other thread writes only after this reference has been
            // dropped.
            |counted| counted.memory.with(|memory| assert_eq!(unsafe { *memory }, 0)),
            |counted| {
                assert!(counted.value.is_last());
                // SAFETY: holds because there is no other reference.
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

    /// VALUE-2.
    #[test]
    fn memory_is_reused_by_the_last_reader() {
        let cell = ValueCell::scalar(Scalar::new(1.0f32));
        let (first, last) = (ValueRef::of(cell.clone()), ValueRef::of(cell));
        assert!(!first.is_last());
        assert_eq!(first.0.handles().drop_one(|| 0), Dropped::Last);
        drop(first);
        assert!(last.is_last());
    }

    /// A violation of VALUE-2 is detected.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is to be reused and has a handle")]
    fn memory_with_a_handle_is_not_reused() {
        ValueRef::of(ValueCell::scalar(Scalar::new(1.0f32))).is_last();
    }
}
