//! The end of the process while threads of ours are inside a plugin.
//!
//! `exit` runs the destructors of a plugin's static objects while other threads go on. A compile that nobody waits for, or the last reference
//! to a client, dropped on the thread that had it, then finds them gone, and the process ends by a signal after its work was done. Waiting
//! for these threads is no help: what a plugin made after the handler was registered is gone by then. So threads of ours that may be inside a
//! plugin say so ([`Inside`]), and if there are any at the end, the process ends at once, with the status it was to end with, and without
//! running any more destructors. So does the child of a fork, in which a plugin's threads are not there to be waited for.
//!
//! The handler is registered when a plugin is opened, and again after 1, 2, 4, 8 and so on pieces of work: handlers run in the reverse order,
//! and a plugin makes some of its objects when they are first needed. Where the C library has no `on_exit` nothing of this is done.
#![allow(
    clippy::disallowed_types,
    reason = "no model is about the end of a process, and a static needs a constant"
)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fuseline_sync::fork::is_forked;

/// Threads that may be inside a plugin.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// The calling thread may be inside a plugin as long as this lives.
#[derive(Debug)]
pub struct Inside(());

impl Inside {
    /// It may be from now on.
    #[inline]
    #[must_use]
    pub fn enter() -> Inside {
        INSIDE.fetch_add(1, Ordering::Relaxed);
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        static DONE: AtomicU64 = AtomicU64::new(0);
        if (DONE.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            register();
        }
        INSIDE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Has the process end without destructors if threads are inside a plugin then.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn register() {
    use std::ffi::{c_int, c_void};
    use std::ptr;

    // SAFETY: holds because these are the declarations of glibc's headers, and the functions may be called on any thread at any time.
    unsafe extern "C" {
        safe fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        safe fn fflush(stream: *mut c_void) -> c_int;
        safe fn _exit(status: c_int) -> !;
    }

    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if INSIDE.load(Ordering::Relaxed) > 0 || is_forked() {
            // All streams of C's; Rust's own are flushed before.
            let _ = fflush(ptr::null_mut());
            _exit(status);
        }
    }

    // Without room for another handler everything is as it was.
    let _ = on_exit(at_exit, ptr::null_mut());
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn register() {}
