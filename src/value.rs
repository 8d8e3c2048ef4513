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

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::graph::Ref;
use fuseline_fusion::region::{TraceResult, TraceValue};
use fuseline_fusion::{OpCode, Scalar, Site, TensorType, ValueId};
use fuseline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fuseline_sync::once::{Abandoned, Once, Promise};
use fuseline_sync::{StatCounter, fence, next_block, ordering};

use crate::device::Buffer;
use crate::error::{Failure, RegionRef};
use crate::record::memo::TypeToken;
use crate::record::trace_cache::{Dropped, HandleCount};
use crate::trace::BodyPosition;

/// What is known of a region after it was sealed: for events, errors and explanations.
#[derive(Debug)]
pub(crate) struct RegionInfo {
    pub(crate) reference: RegionRef,
    pub(crate) canon: Arc<CanonRegion>,
    /// Where each op was recorded.
    pub(crate) sites: Arc<Vec<Site>>,
    /// Where it stands among the regions of its stream that were launched, from 1 on; 0 before
    /// that.
    launched: AtomicU64,
}

impl RegionInfo {
    pub(crate) fn new(reference: RegionRef, canon: Arc<CanonRegion>, sites: Arc<Vec<Site>>) -> RegionInfo {
        RegionInfo { reference, canon, sites, launched: AtomicU64::new(0) }
    }

    /// It is launched as the region with this number, before anybody has a result.
    pub(crate) fn set_launched(&self, number: u64) {
        self.launched.store(number, Ordering::Relaxed);
    }

    /// Its number, for who has a result.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// Op and call site of a node.
    pub(crate) fn address(&self, node: usize) -> (Option<OpCode>, Site) {
        let op = self.canon.graph().nodes().get(node).map(|node| node.signature().op());
        (op, self.sites.get(node).cloned().unwrap_or_default())
    }
}

/// Which region made a value, and as which result.
#[derive(Clone, Debug)]
pub(crate) struct Producer {
    pub(crate) region: Arc<RegionInfo>,
    pub(crate) result: u32,
}

impl Producer {
    /// Op and call site.
    pub(crate) fn address(&self) -> (Option<OpCode>, Site) {
        match self.region.canon.graph().maker(Ref::Result(self.result)) {
            Some(node) => self.region.address(node),
            None => (None, Site::Unknown),
        }
    }
}

/// How a value turned out.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its data is on the device, or on its way there.
    Data {
        buffer: Buffer,
        /// `None` for data from the host.
        maker: Option<Producer>,
    },
    /// It is a lifted scalar, known to the host.
    Scalar(Scalar),
    /// It belongs to a body that is or was recorded, and has no data of its own.
    Traced(BodyPosition),
    /// It could not be computed.
    Failed(Arc<Failure>),
    /// Nobody will compute it.
    Abandoned,
}

impl Abandoned for Outcome {
    fn abandoned() -> Outcome {
        Outcome::Abandoned
    }
}

/// One value.
pub(crate) struct ValueCell {
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
    outcome: Once<Outcome>,
}

/// The engine's duty to make a value.
#[derive(Debug)]
pub(crate) struct ValuePromise(Promise<Outcome, ValueCell>);

/// A reference to a value, as regions hold it.
#[derive(Clone)]
pub(crate) struct ValueRef(pub(crate) Arc<ValueCell>);

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

impl ValueCell {
    #[inline(always)]
    fn new(
        ty: TensorType,
        type_token: TypeToken,
        boundary_passed: bool,
        is_scalar: bool,
        outcome: Once<Outcome>,
    ) -> ValueCell {
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
    pub(crate) fn pending(ty: TensorType) -> ValueCell {
        let type_token = TypeToken::of(&ty);
        ValueCell::new(ty, type_token, false, false, Once::pending())
    }

    /// A value that an op makes, with one handle, and the promise to make it.
    pub(crate) fn promised(ty: TensorType) -> (Arc<ValueCell>, ValuePromise) {
        ValuePromise::new(ValueCell::pending(ty))
    }

    /// The same for a type whose kind is known.
    #[inline(always)]
    pub(crate) fn promised_as(ty: TensorType, type_token: TypeToken) -> (Arc<ValueCell>, ValuePromise) {
        ValuePromise::new(ValueCell::new(ty, type_token, false, false, Once::pending()))
    }

    /// Makes another value of the same type, the result of a tape with this number, of one that was
    /// never made, and to which nobody has a reference but the caller. False if somebody has waited
    /// for it.
    #[inline]
    pub(crate) fn recycle(&self, number: u32) -> bool {
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
    pub(crate) fn handles(&self) -> &HandleCount {
        &self.handles
    }

    /// The promise of a value without handles, which an op makes for other ops.
    pub(crate) fn promised_to_nobody(ty: TensorType) -> ValuePromise {
        let (cell, promise) = ValueCell::promised(ty);
        let dropped = cell.handles.drop_one(|| 0);
        debug_assert_eq!(dropped, Dropped::Last, "bug: a new value is on a tape");
        promise
    }

    /// A value whose outcome is known, with one handle.
    pub(crate) fn known(ty: TensorType, outcome: Outcome) -> Arc<ValueCell> {
        let type_token = TypeToken::of(&ty);
        let is_scalar = matches!(outcome, Outcome::Scalar(_));
        Arc::new(ValueCell::new(ty, type_token, true, is_scalar, Once::ready(outcome)))
    }

    /// A lifted scalar, with one handle.
    pub(crate) fn scalar(scalar: Scalar) -> Arc<ValueCell> {
        ValueCell::known(TensorType::scalar(scalar.dtype()), Outcome::Scalar(scalar))
    }

    pub(crate) fn id(&self) -> ValueId {
        ValueId::from_raw(self.id.load(Ordering::Relaxed)).expect("bug: a value without an id")
    }

    pub(crate) fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// What its type is found by sooner.
    #[inline]
    pub(crate) fn type_token(&self) -> TypeToken {
        self.type_token
    }

    pub(crate) fn outcome(&self) -> &Once<Outcome> {
        &self.outcome
    }

    /// What became of it, for the last who has the value and is about to drop it.
    pub(crate) fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// Whether it is a lifted scalar.
    #[inline]
    pub(crate) fn is_scalar(&self) -> bool {
        self.is_scalar
    }

    /// The scalar, if it is a lifted one.
    pub(crate) fn as_scalar(&self) -> Option<Scalar> {
        match self.outcome.get() {
            Some(Outcome::Scalar(scalar)) => Some(*scalar),
            _ => None,
        }
    }

    /// Where it is in a body, if it belongs to one.
    pub(crate) fn place(&self) -> Option<&BodyPosition> {
        match self.outcome.get() {
            Some(Outcome::Traced(place)) => Some(place),
            _ => None,
        }
    }

    /// Whether anybody has a handle on it.
    pub(crate) fn has_handles(&self) -> bool {
        self.handles.has_handles()
    }

    /// Whether asking for it may be a boundary, as the log of its stream will tell. A stale answer
    /// costs a log entry.
    pub(crate) fn needs_boundary(&self) -> bool {
        !self.boundary_passed.load(Ordering::Relaxed)
    }

    /// The host asks for its data. The entry of the log that says so comes behind.
    pub(crate) fn set_read(&self) {
        self.read.store(true, Ordering::Relaxed);
    }

    /// Whether the host has asked for its data.
    pub(crate) fn is_read(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }

    /// Whether it is checked already, in this round, that its elements are indices below `size`:
    /// values do not change.
    pub(crate) fn is_known_below(&self, size: u64, round: u32) -> bool {
        let word = self.known_below.load(Ordering::Relaxed);
        word >> 32 == u64::from(round) && word & u64::from(u32::MAX) <= size
    }

    /// That is checked from now on.
    pub(crate) fn set_known_below(&self, size: u64, round: u32) {
        // Larger ones are not remembered. Between two threads the last one counts, and each has had
        // its check recorded.
        if size <= u64::from(u32::MAX) && !self.is_known_below(size, round) {
            self.known_below.store(u64::from(round) << 32 | size, Ordering::Relaxed);
        }
    }

    /// It was in a region that ended where the program asked.
    pub(crate) fn set_boundary_passed(&self) {
        self.boundary_passed.store(true, Ordering::Relaxed);
    }
}

impl AsRef<Once<Outcome>> for ValueCell {
    fn as_ref(&self) -> &Once<Outcome> {
        &self.outcome
    }
}

impl fmt::Debug for ValueCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id(), self.ty)
    }
}

impl fmt::Debug for ValueRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ValueRef {
    /// Whether this is the only reference. The region that has it and has seen the value's release
    /// is its last reader then, and may reuse its memory (V2).
    pub(crate) fn is_last(&self) -> bool {
        let is_last = Arc::strong_count(&self.0) == 1;
        debug_assert!(!is_last || !self.0.has_handles(), "bug: {self:?} is to be reused and has a handle");
        // What those who had references did with its memory comes before what overwrites it.
        fence(ordering!(Acquire, "value_last"));
        is_last
    }
}

impl TraceValue for ValueRef {
    fn id(&self) -> ValueId {
        self.0.id()
    }
}

impl ValuePromise {
    #[inline(always)]
    fn new(cell: ValueCell) -> (Arc<ValueCell>, ValuePromise) {
        let (cell, promise) = Promise::new(cell);
        (cell, ValuePromise(promise))
    }

    /// The promise for a pending `cell` that has none yet.
    #[inline(always)]
    pub(crate) fn of(cell: Arc<ValueCell>) -> ValuePromise {
        ValuePromise(Promise::of(cell))
    }

    /// The value to be made.
    #[inline(always)]
    pub(crate) fn holder(&self) -> &Arc<ValueCell> {
        self.0.holder()
    }

    /// Sets the outcome; returns the value.
    pub(crate) fn resolve(self, outcome: Outcome) -> Arc<ValueCell> {
        self.0.resolve(outcome)
    }
}

impl TraceResult for ValuePromise {
    type Value = ValueRef;

    fn value(&self) -> ValueRef {
        ValueRef(self.holder().clone())
    }

    fn id(&self) -> ValueId {
        self.holder().id()
    }
}

/// A counter that many threads add to and anybody reads.
#[derive(Debug)]
pub(crate) struct Counter(StatCounter);

impl Counter {
    pub(crate) fn new() -> Counter {
        Counter(StatCounter::new(0))
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Makes it at least so much.
    pub(crate) fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use fuseline_fusion::DType;
    use fuseline_sync::UnsafeCell;
    use fuseline_sync::atomic::AtomicU32;

    use super::*;

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
            let counted =
                Counted { value: ValueRef(cell), references: AtomicU32::new(2), memory: UnsafeCell::new(0) };
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

    /// V2.
    #[test]
    fn memory_is_reused_by_the_last_reader() {
        let cell = ValueCell::scalar(Scalar::new(1.0f32));
        let (first, last) = (ValueRef(cell.clone()), ValueRef(cell));
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
        ValueRef(ValueCell::scalar(Scalar::new(1.0f32))).is_last();
    }
}
