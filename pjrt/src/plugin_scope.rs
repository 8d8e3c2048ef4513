//! Ends the process safely while threads of ours are inside a plugin.
//!
//! `exit` runs the destructors of a plugin's static objects while other threads go on. A background
//! compile, or a thread that drops the last reference to a client, then uses destroyed objects, and
//! the process ends by a signal although its work was done. Waiting for these threads does not
//! help, because objects that the plugin made after the exit handler was registered are destroyed
//! before it runs. So threads that may be inside a plugin hold a [`PluginScope`]. If there are any
//! at exit, the process ends at once with its exit status, without running further destructors. So
//! does the child of a fork, which does not have the plugin's threads.
//!
//! The handler is registered when a plugin is opened, and again after 1, 2, 4, 8 and so on scopes:
//! handlers run in the reverse order, and a plugin creates some objects when they are first needed.
//! If the C library has no `on_exit`, none of this happens.
#![allow(
    clippy::disallowed_types,
    reason = "no model is about the end of a process, and a static needs a constant"
)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fuseline_sync::fork::is_forked;

/// Number of threads that may be inside a plugin.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Marks the calling thread as possibly inside a plugin while this lives.
#[derive(Debug)]
pub struct PluginScope(());

impl PluginScope {
    /// Marks the calling thread.
    #[inline]
    #[must_use]
    pub fn enter() -> PluginScope {
        INSIDE.fetch_add(1, Ordering::Relaxed);
        PluginScope(())
    }
}

impl Drop for PluginScope {
    fn drop(&mut self) {
        static DONE: AtomicU64 = AtomicU64::new(0);
        if (DONE.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            register();
        }
        INSIDE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Registers a handler that ends the process without destructors if threads are inside a plugin.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn register() {
    use std::ffi::{c_int, c_void};
    use std::ptr;

    // SAFETY: holds because these are the declarations of glibc's headers, and the functions may be
    // called on any thread at any time.
    unsafe extern "C" {
        safe fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        safe fn fflush(stream: *mut c_void) -> c_int;
        safe fn _exit(status: c_int) -> !;
    }

    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if INSIDE.load(Ordering::Relaxed) > 0 || is_forked() {
            // Flushes all C streams; Rust's own were flushed before.
            let _ = fflush(ptr::null_mut());
            _exit(status);
        }
    }

    // Without room for another handler nothing changes.
    let _ = on_exit(at_exit, ptr::null_mut());
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn register() {}
