//! A value that is set once, by the owner of a promise, and that any thread can wait for.
//!
//! # State word
//!
//! One atomic pointer: `null` (pending, nobody waits), a pointer to a stack of waiters (pending),
//! or `DONE` (set).
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | pending `->` pending with one more waiter | any thread, [`Once::subscribe`] | compare-exchange, `Release` publishes the waiter; being a read-modify-write it also carries on what earlier waiters published |
//! | pending `-> DONE` | the owner of the [`Promise`], once, after writing the value | swap, `Release` publishes the value, `Acquire` gets the waiters |
//!
//! `DONE` is terminal: a value, once set, never changes.
//!
//! # Safety argument
//!
//! - ONCE-1: *The value is written once, before anybody reads it.* There is one [`Promise`] per
//!   [`Once`], and setting consumes it. Readers look at the value only after they saw `DONE` with
//!   `Acquire`.
//! - ONCE-2: *No wake-up is lost.* A waiter is pushed by a compare-exchange, which fails if the
//!   word has become `DONE`; then the caller is woken at once. If it succeeds, the swap to `DONE`
//!   sees the waiter in the stack.
//! - ONCE-3: *Every waiter is woken once and freed once*: by the swap, which takes the whole stack;
//!   or by `drop`, which frees without waking, if everything went away before the promise was
//!   resolved.
//! - ONCE-4: *A promise is always settled.* Dropping one sets the value of
//!   [`Abandoned::abandoned`], so nobody waits for ever for an abandoned value.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use crate::atomic::{AtomicPtr, Ordering};
use crate::{UnsafeCell, thread};

/// The value that a promise sets when it is dropped without being resolved.
pub trait Abandoned {
    /// The value of an abandoned promise.
    fn abandoned() -> Self;
}

struct Waiter {
    next: *mut Waiter,
    wake: Box<dyn FnOnce() + Send>,
}

/// The address that stands for `DONE`. Nothing is ever stored there.
#[inline(always)]
fn done() -> *mut Waiter {
    ptr::without_provenance_mut(1)
}

/// A value that is set at most once. See the module's documentation.
pub struct Once<T> {
    word: AtomicPtr<Waiter>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: holds because the value is written by one thread and read by others only after that
// (ONCE-1), which needs `T: Send` to move it there and `T: Sync` to share it; waiters are `Send`.
unsafe impl<T: Send + Sync> Send for Once<T> {}
// SAFETY: holds for the same reason.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// A pending value. Only [`Promise::new`] makes use of it.
    #[inline]
    pub fn pending() -> Once<T> {
        Once { word: AtomicPtr::new(ptr::null_mut()), value: UnsafeCell::new(None) }
    }

    /// A value that is set from the start.
    #[inline]
    pub fn ready(value: T) -> Once<T> {
        Once { word: AtomicPtr::new(done()), value: UnsafeCell::new(Some(value)) }
    }

    /// Whether it is pending and nobody ever waited for it.
    #[inline]
    pub fn is_untouched(&self) -> bool {
        self.word.load(Ordering::Relaxed).is_null()
    }

    /// The value, if it has been set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.word.load(ordering!(Acquire, "once_get")) != done() {
            return None;
        }
        // SAFETY: holds because `DONE` was seen with `Acquire`, after which nobody writes the value
        // (ONCE-1).
        self.value.with(|value| unsafe { (*value).as_ref() })
    }

    /// Calls `wake` once the value is set; at once if it is. `wake` runs on the thread that sets
    /// the value and must be short.
    pub fn subscribe(&self, wake: impl FnOnce() + Send + 'static) {
        let waiter = Box::into_raw(Box::new(Waiter { next: ptr::null_mut(), wake: Box::new(wake) }));
        // Relaxed: `top` is not dereferenced here, and a caller that finds `DONE` reads the value
        // through `get`.
        let mut top = self.word.load(Ordering::Relaxed);
        while top != done() {
            // SAFETY: holds because the waiter is ours until the compare-exchange below succeeds.
            unsafe { (*waiter).next = top };
            match self.word.compare_exchange_weak(
                top,
                waiter,
                ordering!(Release, "once_subscribe"),
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
        // SAFETY: holds because the waiter was not pushed, so it is still ours.
        let waiter = unsafe { Box::from_raw(waiter) };
        (waiter.wake)();
    }

    /// Takes the value out, if it has been set. Afterwards the `Once` can only be dropped.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        // SAFETY: holds because `&mut self` excludes all others: readers and the promise.
        self.value.with_mut(|value| unsafe { (*value).take() })
    }

    /// Sets the value and wakes all waiters. Called once, by the owner of the promise.
    fn set(&self, value: T) {
        // SAFETY: holds because the only promise was consumed for this call, and readers do not
        // access the value before `DONE` (ONCE-1).
        self.value.with_mut(|slot| unsafe { *slot = Some(value) });
        let mut top = self.word.swap(done(), ordering!(AcqRel, "once_set"));
        // Waiters come newest first; wake in the order of waiting.
        let mut waiters = Vec::new();
        while !top.is_null() {
            debug_assert_ne!(top, done(), "bug: a promise was resolved twice");
            // SAFETY: holds because the swap took the stack, so every waiter in it is ours
            // (ONCE-3).
            let waiter = unsafe { Box::from_raw(top) };
            top = waiter.next;
            waiters.push(waiter.wake);
        }
        waiters.into_iter().rev().for_each(|wake| wake());
    }

    /// Waits until the value is set or `deadline` passes; `None` in the latter case. Parks, never
    /// spins.
    #[inline]
    pub fn wait(&self, deadline: Option<Instant>) -> Option<&T> {
        if let Some(value) = self.get() {
            return Some(value);
        }
        let me = thread::current();
        self.subscribe(move || me.unpark());
        loop {
            if let Some(value) = self.get() {
                return Some(value);
            }
            match deadline {
                None => thread::park(),
                Some(deadline) if Instant::now() < deadline => thread::park_until(deadline),
                Some(_) => return None,
            }
        }
    }
}

impl<T> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("is_set", &self.get().is_some()).finish_non_exhaustive()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        let mut top = self.word.load(Ordering::Relaxed);
        while !top.is_null() && top != done() {
            // SAFETY: holds because `&mut self` excludes all others, so the stack is ours (ONCE-3).
            let waiter = unsafe { Box::from_raw(top) };
            top = waiter.next;
        }
    }
}

/// The right and duty to set the value of the [`Once`] inside `H` (ONCE-4). There is one per
/// pending `Once`.
pub struct Promise<T: Abandoned, H: AsRef<Once<T>>> {
    holder: Option<Arc<H>>,
    value: std::marker::PhantomData<T>,
}

impl<T: Abandoned, H: AsRef<Once<T>>> Promise<T, H> {
    /// Shares `holder`, whose `Once` must be pending and have no promise yet, and makes the promise
    /// for it.
    pub fn new(holder: H) -> (Arc<H>, Promise<T, H>) {
        let holder = Arc::new(holder);
        (holder.clone(), Promise::of(holder))
    }

    /// The promise for a `holder` whose `Once` is pending and has no promise yet.
    pub fn of(holder: Arc<H>) -> Promise<T, H> {
        debug_assert!((*holder).as_ref().get().is_none(), "bug: a promise for a value that is already set");
        Promise { holder: Some(holder), value: std::marker::PhantomData }
    }

    /// The object that the value belongs to.
    pub fn holder(&self) -> &Arc<H> {
        self.holder.as_ref().expect("bug: a promise outlives its resolution")
    }

    /// Sets the value and returns the object that it belongs to.
    pub fn resolve(mut self, value: T) -> Arc<H> {
        let holder = self.holder.take().expect("bug: a promise outlives its resolution");
        (*holder).as_ref().set(value);
        holder
    }
}

impl<T: Abandoned, H: AsRef<Once<T>>> Drop for Promise<T, H> {
    fn drop(&mut self) {
        if let Some(holder) = self.holder.take() {
            (*holder).as_ref().set(T::abandoned());
        }
    }
}

impl<T: Abandoned, H: AsRef<Once<T>>> fmt::Debug for Promise<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Value {
        Number(u32),
        Abandoned,
    }

    impl Abandoned for Value {
        fn abandoned() -> Value {
            Value::Abandoned
        }
    }

    struct Holder(Once<Value>);

    impl AsRef<Once<Value>> for Holder {
        fn as_ref(&self) -> &Once<Value> {
            &self.0
        }
    }

    fn pair() -> (Arc<Holder>, Promise<Value, Holder>) {
        Promise::new(Holder(Once::pending()))
    }

    #[test]
    fn loom_a_waiter_sees_the_value() {
        loom::model(|| {
            let (holder, promise) = pair();
            let setter = loom::thread::spawn(move || drop(promise.resolve(Value::Number(7))));
            assert_eq!(holder.0.wait(None), Some(&Value::Number(7)));
            setter.join().expect("no panic");
        });
    }

    #[test]
    fn loom_two_waiters_and_a_glance() {
        loom::model(|| {
            let (holder, promise) = pair();
            let other = holder.clone();
            let waiter = loom::thread::spawn(move || assert_eq!(other.0.wait(None), Some(&Value::Number(7))));
            let setter = loom::thread::spawn(move || drop(promise.resolve(Value::Number(7))));
            if let Some(value) = holder.0.get() {
                assert_eq!(*value, Value::Number(7));
            }
            assert_eq!(holder.0.wait(None), Some(&Value::Number(7)));
            waiter.join().expect("no panic");
            setter.join().expect("no panic");
        });
    }

    #[test]
    fn loom_a_dropped_promise_wakes() {
        loom::model(|| {
            let (holder, promise) = pair();
            let dropper = loom::thread::spawn(move || drop(promise));
            assert_eq!(holder.0.wait(None), Some(&Value::Abandoned));
            dropper.join().expect("no panic");
        });
    }

    /// Data that the subscription itself publishes.
    struct Published(UnsafeCell<u32>);
    // SAFETY: holds because the test writes before it subscribes and reads in the callback only.
    unsafe impl Send for Published {}
    // SAFETY: holds for the same reason.
    unsafe impl Sync for Published {}

    /// Each of two subscribers is called exactly once, and sees what the other wrote before
    /// subscribing only through its own data.
    #[test]
    fn loom_subscribers_are_called_once() {
        loom::model(|| {
            let (holder, promise) = pair();
            let called = Arc::new(crate::atomic::AtomicU32::new(0));
            let data = Arc::new(Published(UnsafeCell::new(0)));
            let threads: Vec<_> = (0..2)
                .map(|me| {
                    let (holder, called, data) = (holder.clone(), called.clone(), data.clone());
                    loom::thread::spawn(move || {
                        if me == 0 {
                            // SAFETY: holds because only this thread writes, before it subscribes,
                            // and only its own callback reads.
                            data.0.with_mut(|data| unsafe { *data = 5 });
                        }
                        holder.0.subscribe(move || {
                            if me == 0 {
                                // SAFETY: holds because the write came before the subscription.
                                assert_eq!(data.0.with(|data| unsafe { *data }), 5);
                            }
                            called.fetch_add(1, Ordering::Relaxed);
                        });
                    })
                })
                .collect();
            drop(promise.resolve(Value::Number(1)));
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert_eq!(called.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn loom_unwoken_waiters_are_freed() {
        loom::model(|| {
            let token = Arc::new(());
            let once = Once::<Value>::pending();
            let kept = token.clone();
            once.subscribe(move || drop(kept));
            drop(once);
            assert_eq!(Arc::strong_count(&token), 1);
        });
    }
}
