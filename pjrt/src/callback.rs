//! Functions of ours that a plugin calls.
//!
//! Invariants:
//! - CALLBACK-1. No panic leaves this crate through a plugin's frames: every `extern "C"` function
//!   of the layer consists of a call of [`shield`].
//! - CALLBACK-2. While one of our callbacks runs, [`inside`] is true on that thread. If the last
//!   handle of a client is dropped then, another thread destroys the client, because the callback
//!   may be running on a thread that the client has to join.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// True while a plugin is calling a callback of ours on this thread.
#[inline]
pub fn inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// Runs `body`, and catches and counts a panic. Returns `None` after a panic.
pub(super) fn shield<R>(body: impl FnOnce() -> R) -> Option<R> {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    // Unwind safety: nothing that `body` borrows is used after a panic.
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let outcome = outcome.map_err(dispose).ok();
    DEPTH.with(|depth| depth.set(depth.get() - 1));
    outcome
}

/// Drops a panic's payload, whose own destructor may panic too.
fn dispose(payload: Box<dyn Any + Send>) {
    error::count_panic();
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        error::leak(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a payload that panics when it is dropped");
        }
    }

    #[test]
    fn a_panic_whose_payload_panics_is_stopped() {
        let before = error::counters();
        assert_eq!(shield(|| std::panic::panic_any(Bomb)), None::<()>);
        assert!(!inside());
        assert_eq!(shield(inside), Some(true));
        assert!(error::counters().callback_panics > before.callback_panics);
        assert!(error::counters().leaks > before.leaks);
    }
}
