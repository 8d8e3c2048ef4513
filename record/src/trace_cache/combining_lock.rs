//! Who holds the tape of a stream, without anybody waiting for it.
//!
//! While a stream is replayed, what is recorded goes through its [`CombiningLock`], one thread at a
//! time: into the tape, or, if it is not what was expected, behind the tape into the log. A thread
//! that finds the gate held leaves its entry there, and whoever holds it sees to the entry before
//! letting go. So nobody waits, and entries that happen one after the other keep their order. While
//! nothing is replayed the gate is open: entries go to the log directly, at the cost of one load.
//!
//! # State word
//!
//! One atomic pointer: one of the states below, or a pointer to a stack of entries that were left,
//! which means `HELD`.
//!
//! | state | meaning |
//! |---|---|
//! | `OPEN` | entries go to the log directly |
//! | `READY` | the same; the program has just asked for what may be a boundary, so that the next op may begin a tape |
//! | `FRESH` | the same, and it was one: nothing is pending |
//! | `CLOSED` | entries go through the gate, and nobody holds it |
//! | `HELD`, or a stack | entries go through the gate, and somebody holds it |
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | `OPEN -> READY`, `OPEN, READY -> FRESH`, `READY, FRESH -> OPEN` | anybody; hints | compare-exchange, relaxed: a read-modify-write carries on what `release` published |
//! | `READY, FRESH, CLOSED -> HELD` | a thread that takes it, [`CombiningLock::hold`] | compare-exchange, `Acquire` gets the holder before |
//! | `HELD -> HELD` with one more entry | a thread that finds it held, [`CombiningLock::leave`] | compare-exchange, `Release` publishes the entry |
//! | stack `-> HELD` | the holder, when it takes what was left | swap, `Acquire` gets the entries |
//! | `HELD -> OPEN, READY, FRESH, CLOSED` | the holder, [`Held::release`] | compare-exchange, `Release` publishes what it did |
//!
//! # Safety argument
//!
//! - D1: *One thread at a time touches what is inside.* `HELD` is entered by one compare-exchange
//!   from a state that is not `HELD`, and only the thread that entered leaves it.
//! - D2: *Nothing that was left is forgotten*: the compare-exchange that lets go fails while there
//!   is a stack.
//! - D3: *Order is kept.* Who sees the gate open, with `Acquire`, comes after all that the last
//!   holder put into the log, what was left with it included. An entry that is left after another
//!   one lies above it in the stack, which is emptied from the bottom.

use std::ptr;

use fuseline_sync::atomic::{AtomicPtr, Ordering};
use fuseline_sync::{UnsafeCell, ordering};

struct DeferredEntry<E> {
    entry: E,
    below: *mut DeferredEntry<E>,
}

/// What a gate is for those who come with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    /// Entries go to the log.
    Open,
    /// The same; the next op may begin a tape.
    Ready,
    /// The same, and no op is pending.
    Fresh,
    /// Entries go through the gate.
    Closed,
}

const OPEN: usize = 0;
const READY: usize = 1;
const FRESH: usize = 2;
const CLOSED: usize = 3;
const HELD: usize = 4;

/// The address that stands for a state. Nothing is ever stored there.
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

/// Whether a word says that somebody holds the gate.
fn is_held(word: usize) -> bool {
    word >= HELD
}

/// See the module's documentation.
pub(crate) struct CombiningLock<S, E> {
    word: AtomicPtr<DeferredEntry<E>>,
    inside: UnsafeCell<S>,
}

// SAFETY: holds because what is inside is touched by one thread at a time (D1), and entries move
// from the thread that leaves them to the one that takes them.
unsafe impl<S: Send, E: Send> Send for CombiningLock<S, E> {}
// SAFETY: holds for the same reason; no `&S` is handed to two threads.
unsafe impl<S: Send, E: Send> Sync for CombiningLock<S, E> {}

/// The right to what is inside.
pub(crate) struct Held<'a, S, E> {
    lock: &'a CombiningLock<S, E>,
}

impl<S, E> CombiningLock<S, E> {
    /// An open gate.
    pub(crate) fn new(inside: S) -> CombiningLock<S, E> {
        CombiningLock { word: AtomicPtr::new(word(OPEN)), inside: UnsafeCell::new(inside) }
    }

    /// What it is now. Who sees it open comes after everything that the last holder did.
    #[inline(always)]
    pub(crate) fn state(&self) -> LockState {
        match self.word.load(ordering!(Acquire, "gate_state")).addr() {
            OPEN => LockState::Open,
            READY => LockState::Ready,
            FRESH => LockState::Fresh,
            _ => LockState::Closed,
        }
    }

    /// The program has asked for what may be a boundary.
    pub(crate) fn make_ready(&self) {
        self.change(&[OPEN], READY);
    }

    /// The program has asked for a boundary.
    pub(crate) fn make_fresh(&self) {
        self.change(&[OPEN, READY], FRESH);
    }

    /// What has come after a boundary begins no tape.
    pub(crate) fn make_open(&self) {
        self.change(&[READY, FRESH], OPEN);
    }

    fn change(&self, from: &[usize], to: usize) {
        for &from in from {
            let _ = self.word.compare_exchange(word(from), word(to), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes the gate, if it is in the state `from`, which means that nobody holds it.
    #[inline(always)]
    pub(crate) fn hold(&self, from: LockState) -> Option<Held<'_, S, E>> {
        debug_assert_ne!(from, LockState::Open, "an open gate is not held");
        self.word
            .compare_exchange(from.word(), word(HELD), ordering!(Acquire, "gate_hold"), Ordering::Relaxed)
            .is_ok()
            .then(|| Held { lock: self })
    }

    /// Leaves an entry with whoever holds the gate.
    ///
    /// # Errors
    /// With the entry, if nobody does.
    pub(crate) fn leave(&self, entry: E) -> Result<(), E> {
        let left = Box::into_raw(Box::new(DeferredEntry { entry, below: ptr::null_mut() }));
        // Relaxed: what is below is not looked at here.
        let mut top = self.word.load(Ordering::Relaxed);
        while is_held(top.addr()) {
            // SAFETY: holds because the entry is ours until the compare-exchange below succeeds.
            unsafe { (*left).below = top };
            match self.word.compare_exchange_weak(
                top,
                left,
                ordering!(Release, "gate_leave"),
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => top = now,
            }
        }
        // SAFETY: holds because the entry was not pushed, so it is still ours.
        Err(unsafe { Box::from_raw(left) }.entry)
    }

    /// Takes what was left, the latest first.
    fn take_left(&self) -> Vec<E> {
        let mut top = self.word.swap(word(HELD), ordering!(Acquire, "gate_take"));
        let mut entries = Vec::new();
        while top.addr() > HELD {
            // SAFETY: holds because the swap took the stack, so everything in it is ours (D2).
            let left = unsafe { Box::from_raw(top) };
            top = left.below;
            entries.push(left.entry);
        }
        entries
    }
}

impl<S, E> Held<'_, S, E> {
    /// What is inside.
    #[inline(always)]
    pub(crate) fn inside(&mut self) -> &mut S {
        let inside = self.lock.inside.with_mut(|inside| inside);
        // SAFETY: holds because one thread at a time holds the gate (D1), which is us, and `&mut
        // self` says that we are not in here already.
        unsafe { &mut *inside }
    }

    /// Lets go of the gate, which is then in the state `next`, unless something was left: `see_to`
    /// is called with each entry, in order, and says what the state is then.
    #[inline(always)]
    pub(crate) fn release(mut self, next: LockState, see_to: impl FnMut(&mut S, E) -> LockState) {
        if !self.try_release(next) {
            self.release_left(next, see_to);
        }
        std::mem::forget(self);
    }

    #[cold]
    fn release_left(&mut self, mut next: LockState, mut see_to: impl FnMut(&mut S, E) -> LockState) {
        while !self.try_release(next) {
            for entry in self.lock.take_left().into_iter().rev() {
                next = see_to(self.inside(), entry);
            }
        }
    }

    #[inline(always)]
    fn try_release(&self, next: LockState) -> bool {
        self.lock
            .word
            .compare_exchange(word(HELD), next.word(), ordering!(Release, "gate_release"), Ordering::Relaxed)
            .is_ok()
    }
}

impl<S, E> Drop for Held<'_, S, E> {
    /// Something panicked that must not, a bug of ours: what was left is lost, its promises are
    /// broken and so told, and the stream goes on without a tape.
    fn drop(&mut self) {
        while !self.try_release(LockState::Open) {
            drop(self.lock.take_left());
        }
    }
}

impl<S, E> Drop for CombiningLock<S, E> {
    fn drop(&mut self) {
        drop(self.take_left());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Numbers = CombiningLock<Vec<u32>, u32>;

    #[test]
    fn what_is_left_is_seen_to_in_order_before_the_gate_opens() {
        let lock = Numbers::new(Vec::new());
        assert_eq!(lock.leave(1), Err(1), "nobody holds it");
        assert!(lock.hold(LockState::Ready).is_none());
        lock.make_ready();
        let mut held = lock.hold(LockState::Ready).unwrap();
        assert_eq!(lock.state(), LockState::Closed);
        assert!(lock.hold(LockState::Closed).is_none());
        held.inside().push(0);
        assert_eq!([lock.leave(1), lock.leave(2), lock.leave(3)], [Ok(()); 3]);
        held.release(LockState::Closed, |seen, entry| {
            // Left while others are seen to.
            if entry == 1 {
                assert_eq!(lock.leave(4), Ok(()));
            }
            seen.push(entry);
            LockState::Open
        });
        assert_eq!(lock.state(), LockState::Open);
        lock.make_ready();
        assert_eq!(*lock.hold(LockState::Ready).unwrap().inside(), [0, 1, 2, 3, 4]);
        assert_eq!(lock.state(), LockState::Open, "dropped without a word");
    }

    #[test]
    fn what_nobody_saw_to_is_dropped() {
        let lock = CombiningLock::<(), Arc<()>>::new(());
        let entry = Arc::new(());
        lock.make_ready();
        let held = lock.hold(LockState::Ready).unwrap();
        lock.leave(entry.clone()).unwrap();
        drop(held);
        assert_eq!(Arc::strong_count(&entry), 1);
        lock.make_ready();
        std::mem::forget(lock.hold(LockState::Ready).unwrap());
        lock.leave(entry.clone()).unwrap();
        drop(lock);
        assert_eq!(Arc::strong_count(&entry), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use fuseline_sync::atomic::AtomicU32;

    use super::*;

    /// An entry: a cell, so that loom sees who may look at it.
    struct Paper(UnsafeCell<u32>);

    // SAFETY: holds because a paper is passed on through the gate, which the models check.
    unsafe impl Send for Paper {}

    impl Paper {
        fn read(&self) -> u32 {
            // SAFETY: holds because whoever has the paper is its only owner.
            self.0.with(|number| unsafe { *number })
        }
    }

    struct Line {
        lock: CombiningLock<u32, Paper>,
        /// What holders put into the log.
        log: UnsafeCell<Vec<u32>>,
    }

    // SAFETY: holds because the log is touched by holders of the gate, and by who comes after them,
    // which the models check.
    unsafe impl Sync for Line {}
    // SAFETY: holds for the same reason.
    unsafe impl Send for Line {}

    impl Line {
        fn closed() -> Arc<Line> {
            let line = Line { lock: CombiningLock::new(0), log: UnsafeCell::new(Vec::new()) };
            line.lock.make_ready();
            let held = line.lock.hold(LockState::Ready).expect("nobody else");
            held.release(LockState::Closed, |_, _| LockState::Closed);
            Arc::new(line)
        }

        fn log(&self, entry: u32) {
            // SAFETY: holds because the caller holds the gate, or has seen it open and is alone.
            self.log.with_mut(|log| unsafe { (*log).push(entry) });
        }

        /// Takes an entry through the gate. Who holds it counts in what is inside; an odd entry
        /// opens the gate.
        fn enter(&self, entry: u32) {
            let next = |entry: u32| if entry % 2 == 1 { LockState::Open } else { LockState::Closed };
            let number = entry;
            let mut entry = Paper(UnsafeCell::new(number));
            loop {
                if let Some(mut held) = self.lock.hold(LockState::Closed) {
                    *held.inside() += 1;
                    self.log(number);
                    held.release(next(number), |count, entry| {
                        *count += 1;
                        self.log(entry.read());
                        LockState::Open
                    });
                    return;
                }
                match self.lock.leave(entry) {
                    Ok(()) => return,
                    Err(back) => entry = back,
                }
                if self.lock.state() != LockState::Closed {
                    return;
                }
            }
        }
    }

    /// Two threads come with an entry each; both entries are seen to, and neither thread waits.
    #[test]
    fn loom_what_is_left_at_the_gate_is_seen_to() {
        loom::model(|| {
            let line = Line::closed();
            let other = {
                let line = line.clone();
                loom::thread::spawn(move || line.enter(2))
            };
            line.enter(4);
            other.join().expect("no panic");
            // SAFETY: holds because the other thread has ended.
            let mut seen = line.log.with(|log| unsafe { (*log).clone() });
            seen.sort_unstable();
            assert_eq!(seen, [2, 4]);
        });
    }

    /// A thread that sees the gate open comes after what the holder put into the log.
    #[test]
    fn loom_who_sees_the_gate_open_comes_after_the_holder() {
        loom::model(|| {
            let line = Line::closed();
            let other = {
                let line = line.clone();
                loom::thread::spawn(move || line.enter(1))
            };
            if line.lock.state() == LockState::Open {
                line.log(3);
            }
            other.join().expect("no panic");
        });
    }

    /// The same for what was left: an op that uses the result of one that was left finds it in the
    /// log, or the gate closed.
    #[test]
    fn loom_what_was_left_comes_before_what_follows_from_it() {
        loom::model(|| {
            let line = Line::closed();
            let made = Arc::new(AtomicU32::new(0));
            let holder = {
                let line = line.clone();
                loom::thread::spawn(move || line.enter(1))
            };
            let maker = {
                let (line, made) = (line.clone(), made.clone());
                loom::thread::spawn(move || {
                    line.enter(5);
                    made.store(1, Ordering::Release);
                })
            };
            if made.load(Ordering::Acquire) == 1 && line.lock.state() == LockState::Open {
                // SAFETY: holds because whoever opened the gate has seen to what was left (D3).
                let seen = line.log.with(|log| unsafe { (*log).clone() });
                assert!(!seen.is_empty(), "somebody opened the gate");
            }
            holder.join().expect("no panic");
            maker.join().expect("no panic");
        });
    }
}
