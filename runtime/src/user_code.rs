//! Calls code of the user: event sinks, callbacks, handlers and fault plans.
//!
//! Such code may panic, and it runs on threads that a stream waits for. So its panics are caught,
//! and it must not wait for a stream.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fuseline_sync::lock_rank::before_user_code;

fuseline_sync::thread_local! {
    /// This thread is running a driver, or user code that a driver or a device may be waiting for.
    static DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a driver, an event sink, a callback or a handler, and so
/// must not wait for a stream.
#[inline]
pub fn is_driving() -> bool {
    DRIVING.try_with(Cell::get).unwrap_or(false)
}

/// Calls `f` while marking this thread as one that must not wait for a stream.
pub fn without_waiting<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = DRIVING.try_with(|driving| driving.set(self.0));
        }
    }
    let _restore = Restore(DRIVING.try_with(|driving| driving.replace(true)).unwrap_or(false));
    f()
}

/// Calls user code on a thread of the engine or the plugin. The code must not wait for a stream,
/// and its panics are caught. The error is the message of the panic.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn call_user<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    before_user_code();
    let called = without_waiting(|| catch_unwind(AssertUnwindSafe(f)));
    called.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Dropping the payload of a panic may panic too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        text.unwrap_or_else(|| "no message".to_owned())
    })
}

/// A user's object that the engine keeps. A panic in its `Drop` is caught, so that dropping an
/// engine never panics.
#[derive(Debug)]
pub struct Guest<T>(Option<T>);

impl<T> Guest<T> {
    /// Takes ownership of the value.
    pub fn new(guest: T) -> Guest<T> {
        Guest(Some(guest))
    }

    /// The value.
    pub fn get(&self) -> &T {
        self.0.as_ref().expect("bug: a guest object is used after it was dropped")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("bug: a guest object is used after it was dropped")
    }
}

impl<T> Drop for Guest<T> {
    fn drop(&mut self) {
        if let Some(guest) = self.0.take() {
            let _ = call_user(|| drop(guest));
        }
    }
}
