//! A combining lock (flat combining) around the trace of a stream, for which no thread waits.
//!
//! While a stream is replayed, entries pass through its [`CombiningLock`], one thread at a time.
//! They go onto the trace or, if they are not what was expected, behind the trace into the log. A
//! thread that finds the lock held defers its entry to the holder, which handles it before it
//! releases the lock. So no thread waits, and entries that happen one after the other keep their
//! order. While nothing is replayed the lock is open: entries go to the log directly, at the cost
//! of one load.
//!
//! # State word
//!
//! One atomic pointer: one of the states below, or a pointer to a stack of deferred entries, which
//! implies `HELD`.
//!
//! | state | meaning |
//! |---|---|
//! | `OPEN` | entries go to the log directly |
//! | `READY` | the same; the program has just requested what may be a boundary, so the next op may begin a trace |
//! | `FRESH` | the same, and it was a boundary: nothing is pending |
//! | `CLOSED` | entries go through the lock, and no thread holds it |
//! | `HELD`, or a stack | entries go through the lock, and a thread holds it |
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | `OPEN -> READY`, `OPEN, READY -> FRESH`, `READY, FRESH -> OPEN` | any thread; hints | compare-exchange, relaxed: a read-modify-write continues the release sequence of `release` |
//! | `READY, FRESH, CLOSED -> HELD` | a thread that acquires the lock, [`CombiningLock::acquire`] | compare-exchange, `Acquire` synchronises with the previous holder |
//! | `HELD -> HELD` with one more entry | a thread that finds the lock held, [`CombiningLock::defer`] | compare-exchange, `Release` publishes the entry |
//! | stack `-> HELD` | the holder, when it takes the deferred entries | swap, `Acquire` gets the entries |
//! | `HELD -> OPEN, READY, FRESH, CLOSED` | the holder, [`LockGuard::release`] | compare-exchange, `Release` publishes what it did |
//!
//! # Safety argument
//!
//! - LOCK-1: *One thread at a time accesses the guarded data.* `HELD` is entered by one
//!   compare-exchange from a state that is not `HELD`, and only the thread that entered it leaves
//!   it.
//! - LOCK-2: *No deferred entry is lost.* The compare-exchange that releases the lock fails while
//!   there is a stack.
//! - LOCK-3: *Order is kept.* A thread that sees the lock open, with `Acquire`, comes after
//!   everything that the last holder put into the log, including deferred entries. An entry that is
//!   deferred after another lies above it in the stack, which is emptied from the bottom.

use std::ptr;

use fuseline_sync::atomic::{AtomicPtr, Ordering};
use fuseline_sync::{UnsafeCell, ordering};

struct DeferredEntry<E> {
    entry: E,
    below: *mut DeferredEntry<E>,
}

/// The state of the lock for a thread that brings an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    /// Entries go to the log directly.
    Open,
    /// The same; the next op may begin a trace.
    Ready,
    /// The same, and no op is pending.
    Fresh,
    /// Entries go through the lock.
    Closed,
}

const OPEN: usize = 0;
const READY: usize = 1;
const FRESH: usize = 2;
const CLOSED: usize = 3;
const HELD: usize = 4;

/// The address that encodes a state. It is never dereferenced.
fn word<E>(state: usize) -> *mut DeferredEntry<E> {
    ptr::without_provenance_mut(state)
}

impl LockState {
    fn word<E>(self) -> *mut DeferredEntry<E> {
        word(match self {
            LockState::Open => OPEN,
            LockState::Ready => READY,
            LockState::Fresh => FRESH,
            LockState::Closed => CLOSED,
        })
    }
}

/// Whether a thread holds the lock, according to this word.
fn is_held(word: usize) -> bool {
    word >= HELD
}

/// A lock whose holder handles the entries of other threads. See the module's documentation.
pub(crate) struct CombiningLock<S, E> {
    word: AtomicPtr<DeferredEntry<E>>,
    data: UnsafeCell<S>,
}

// SAFETY: holds because one thread at a time accesses the guarded data (LOCK-1), and entries move
// from the thread that defers them to the one that takes them.
unsafe impl<S: Send, E: Send> Send for CombiningLock<S, E> {}
// SAFETY: holds for the same reason; no two threads have a `&S`.
unsafe impl<S: Send, E: Send> Sync for CombiningLock<S, E> {}

/// Exclusive access to the guarded data.
pub(crate) struct LockGuard<'a, S, E> {
    lock: &'a CombiningLock<S, E>,
}

impl<S, E> CombiningLock<S, E> {
    /// An open lock.
    pub(crate) fn new(data: S) -> CombiningLock<S, E> {
        CombiningLock { word: AtomicPtr::new(word(OPEN)), data: UnsafeCell::new(data) }
    }

    /// The current state. A thread that sees the lock open comes after everything that the last
    /// holder did.
    #[inline(always)]
    pub(crate) fn state(&self) -> LockState {
        match self.word.load(ordering!(Acquire, "lock_state")).addr() {
            OPEN => LockState::Open,
            READY => LockState::Ready,
            FRESH => LockState::Fresh,
            _ => LockState::Closed,
        }
    }

    /// Notes that the program has requested what may be a boundary.
    pub(crate) fn make_ready(&self) {
        self.change(&[OPEN], READY);
    }

    /// Notes that the program has requested a boundary.
    pub(crate) fn make_fresh(&self) {
        self.change(&[OPEN, READY], FRESH);
    }

    /// Notes that the op after a boundary began no trace.
    pub(crate) fn make_open(&self) {
        self.change(&[READY, FRESH], OPEN);
    }

    fn change(&self, from: &[usize], to: usize) {
        for &from in from {
            let _ = self.word.compare_exchange(word(from), word(to), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Acquires the lock if it is in the state `from`, which means that no thread holds it.
    #[inline(always)]
    pub(crate) fn acquire(&self, from: LockState) -> Option<LockGuard<'_, S, E>> {
        debug_assert_ne!(from, LockState::Open, "an open lock is not acquired");
        self.word
            .compare_exchange(from.word(), word(HELD), ordering!(Acquire, "lock_acquire"), Ordering::Relaxed)
            .is_ok()
            .then(|| LockGuard { lock: self })
    }

    /// Defers an entry to the lock holder.
    ///
    /// # Errors
    /// Returns the entry if no thread holds the lock.
    pub(crate) fn defer(&self, entry: E) -> Result<(), E> {
        let deferred = Box::into_raw(Box::new(DeferredEntry { entry, below: ptr::null_mut() }));
        // Relaxed: this thread does not read the entries below.
        let mut top = self.word.load(Ordering::Relaxed);
        while is_held(top.addr()) {
            // SAFETY: holds because this thread owns the entry until the compare-exchange below
            // succeeds.
            unsafe { (*deferred).below = top };
            match self.word.compare_exchange_weak(
                top,
                deferred,
                ordering!(Release, "lock_defer"),
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => top = now,
            }
        }
        // SAFETY: holds because the entry was not pushed, so this thread still owns it.
        Err(unsafe { Box::from_raw(deferred) }.entry)
    }

    /// Takes the deferred entries, the latest first.
    fn take_deferred(&self) -> Vec<E> {
        let mut top = self.word.swap(word(HELD), ordering!(Acquire, "lock_take_deferred"));
        let mut entries = Vec::new();
        while top.addr() > HELD {
            // SAFETY: holds because the swap took the stack, so this thread owns everything in it
            // (LOCK-2).
            let deferred = unsafe { Box::from_raw(top) };
            top = deferred.below;
            entries.push(deferred.entry);
        }
        entries
    }
}

impl<S, E> LockGuard<'_, S, E> {
    /// The guarded data.
    #[inline(always)]
    pub(crate) fn data(&mut self) -> &mut S {
        let data = self.lock.data.with_mut(|data| data);
        // SAFETY: holds because one thread at a time holds the lock (LOCK-1), which is this thread,
        // and `&mut self` excludes a second borrow.
        unsafe { &mut *data }
    }

    /// Releases the lock into the state `next`. If entries were deferred, calls `handle_deferred`
    /// with each of them first, in order; the last call decides the state.
    #[inline(always)]
    pub(crate) fn release(mut self, next: LockState, handle_deferred: impl FnMut(&mut S, E) -> LockState) {
        if !self.try_release(next) {
            self.release_deferred(next, handle_deferred);
        }
        std::mem::forget(self);
    }

    #[cold]
    fn release_deferred(
        &mut self,
        mut next: LockState,
        mut handle_deferred: impl FnMut(&mut S, E) -> LockState,
    ) {
        while !self.try_release(next) {
            for entry in self.lock.take_deferred().into_iter().rev() {
                next = handle_deferred(self.data(), entry);
            }
        }
    }

    #[inline(always)]
    fn try_release(&self, next: LockState) -> bool {
        self.lock
            .word
            .compare_exchange(word(HELD), next.word(), ordering!(Release, "lock_release"), Ordering::Relaxed)
            .is_ok()
    }
}

impl<S, E> Drop for LockGuard<'_, S, E> {
    /// Runs only after a panic, which is a bug. The deferred entries are lost and their promises
    /// broken, which their waiters see. The stream goes on without a trace.
    fn drop(&mut self) {
        while !self.try_release(LockState::Open) {
            drop(self.lock.take_deferred());
        }
    }
}

impl<S, E> Drop for CombiningLock<S, E> {
    fn drop(&mut self) {
        drop(self.take_deferred());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Numbers = CombiningLock<Vec<u32>, u32>;

    #[test]
    fn deferred_entries_are_handled_in_order_before_the_lock_opens() {
        let lock = Numbers::new(Vec::new());
        assert_eq!(lock.defer(1), Err(1), "nobody holds it");
        assert!(lock.acquire(LockState::Ready).is_none());
        lock.make_ready();
        let mut guard = lock.acquire(LockState::Ready).unwrap();
        assert_eq!(lock.state(), LockState::Closed);
        assert!(lock.acquire(LockState::Closed).is_none());
        guard.data().push(0);
        assert_eq!([lock.defer(1), lock.defer(2), lock.defer(3)], [Ok(()); 3]);
        guard.release(LockState::Closed, |seen, entry| {
            // Deferred while other entries are handled.
            if entry == 1 {
                assert_eq!(lock.defer(4), Ok(()));
            }
            seen.push(entry);
            LockState::Open
        });
        assert_eq!(lock.state(), LockState::Open);
        lock.make_ready();
        assert_eq!(*lock.acquire(LockState::Ready).unwrap().data(), [0, 1, 2, 3, 4]);
        assert_eq!(lock.state(), LockState::Open, "dropped without a word");
    }

    #[test]
    fn deferred_entries_are_dropped_with_the_lock() {
        let lock = CombiningLock::<(), Arc<()>>::new(());
        let entry = Arc::new(());
        lock.make_ready();
        let guard = lock.acquire(LockState::Ready).unwrap();
        lock.defer(entry.clone()).unwrap();
        drop(guard);
        assert_eq!(Arc::strong_count(&entry), 1);
        lock.make_ready();
        std::mem::forget(lock.acquire(LockState::Ready).unwrap());
        lock.defer(entry.clone()).unwrap();
        drop(lock);
        assert_eq!(Arc::strong_count(&entry), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use fuseline_sync::atomic::AtomicU32;

    use super::*;

    /// An entry. The cell lets loom check who may access it.
    struct TestEntry(UnsafeCell<u32>);

    // SAFETY: holds because an entry is passed on through the lock, which the models check.
    unsafe impl Send for TestEntry {}

    impl TestEntry {
        fn read(&self) -> u32 {
            // SAFETY: holds because the thread that has the entry is its only owner.
            self.0.with(|number| unsafe { *number })
        }
    }

    struct TestStream {
        lock: CombiningLock<u32, TestEntry>,
        /// What lock holders put into the log.
        log: UnsafeCell<Vec<u32>>,
    }

    // SAFETY: holds because the log is accessed by lock holders and by threads that come after
    // them, which the models check.
    unsafe impl Sync for TestStream {}
    // SAFETY: holds for the same reason.
    unsafe impl Send for TestStream {}

    impl TestStream {
        fn closed() -> Arc<TestStream> {
            let stream = TestStream { lock: CombiningLock::new(0), log: UnsafeCell::new(Vec::new()) };
            stream.lock.make_ready();
            let guard = stream.lock.acquire(LockState::Ready).expect("nobody else");
            guard.release(LockState::Closed, |_, _| LockState::Closed);
            Arc::new(stream)
        }

        fn log(&self, entry: u32) {
            // SAFETY: holds because the caller holds the lock, or has seen it open and is alone.
            self.log.with_mut(|log| unsafe { (*log).push(entry) });
        }

        /// Takes an entry through the lock. The holder increments the guarded counter. An odd entry
        /// opens the lock.
        fn enter(&self, entry: u32) {
            let next = |entry: u32| if entry % 2 == 1 { LockState::Open } else { LockState::Closed };
            let number = entry;
            let mut entry = TestEntry(UnsafeCell::new(number));
            loop {
                if let Some(mut guard) = self.lock.acquire(LockState::Closed) {
                    *guard.data() += 1;
                    self.log(number);
                    guard.release(next(number), |count, entry| {
                        *count += 1;
                        self.log(entry.read());
                        LockState::Open
                    });
                    return;
                }
                match self.lock.defer(entry) {
                    Ok(()) => return,
                    Err(back) => entry = back,
                }
                if self.lock.state() != LockState::Closed {
                    return;
                }
            }
        }
    }

    /// Two threads bring an entry each. Both entries are handled, and neither thread waits.
    #[test]
    fn loom_deferred_entries_are_handled() {
        loom::model(|| {
            let stream = TestStream::closed();
            let other = {
                let stream = stream.clone();
                loom::thread::spawn(move || stream.enter(2))
            };
            stream.enter(4);
            other.join().expect("no panic");
            // SAFETY: holds because the other thread has ended.
            let mut seen = stream.log.with(|log| unsafe { (*log).clone() });
            seen.sort_unstable();
            assert_eq!(seen, [2, 4]);
        });
    }

    /// A thread that sees the lock open comes after what the holder put into the log.
    #[test]
    fn loom_a_thread_that_sees_the_lock_open_comes_after_the_holder() {
        loom::model(|| {
            let stream = TestStream::closed();
            let other = {
                let stream = stream.clone();
                loom::thread::spawn(move || stream.enter(1))
            };
            if stream.lock.state() == LockState::Open {
                stream.log(3);
            }
            other.join().expect("no panic");
        });
    }

    /// The same for deferred entries: an op that uses the result of a deferred op finds that op in
    /// the log, or the lock closed.
    #[test]
    fn loom_a_deferred_entry_comes_before_its_consequences() {
        loom::model(|| {
            let stream = TestStream::closed();
            let is_recorded = Arc::new(AtomicU32::new(0));
            let holder = {
                let stream = stream.clone();
                loom::thread::spawn(move || stream.enter(1))
            };
            let producer = {
                let (stream, is_recorded) = (stream.clone(), is_recorded.clone());
                loom::thread::spawn(move || {
                    stream.enter(5);
                    is_recorded.store(1, Ordering::Release);
                })
            };
            if is_recorded.load(Ordering::Acquire) == 1 && stream.lock.state() == LockState::Open {
                // SAFETY: holds because the thread that opened the lock has handled the deferred
                // entries (LOCK-3).
                let seen = stream.log.with(|log| unsafe { (*log).clone() });
                assert!(!seen.is_empty(), "a thread opened the lock");
            }
            holder.join().expect("no panic");
            producer.join().expect("no panic");
        });
    }
}
