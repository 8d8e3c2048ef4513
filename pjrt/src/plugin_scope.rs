//! Ends the process safely while threads of ours are inside a plugin, or about to enter it.
//!
//! `exit` runs the destructors of a plugin's static objects while other threads go on. A background
//! compile, or a thread that drops the last reference to a client, then uses destroyed objects, and
//! the process ends by a signal although its work was done. Waiting for these threads does not
//! help, because objects that the plugin made after the exit handler was registered are destroyed
//! before it runs. So a thread that may be inside a plugin holds a [`PluginScope`]. Work in a queue
//! holds one too, because its thread may begin it while the destructors run. If a scope exists at
//! exit, the process ends at once with its exit status, and runs no further destructors. The child
//! of a fork, which does not have the plugin's threads, ends the same way.
//!
//! Handlers run in the reverse order of registration, and a plugin creates some objects when they
//! are first needed. So the handler is registered last of all: by a destructor of a thread-local
//! variable, since `exit` runs those of its own thread before any handler. Threads that have
//! neither opened a plugin nor been in a scope have no such variable. For an `exit` on one of them,
//! the handler is also registered when a plugin is opened, and again after 1, 2, 4, 8 and so on
//! scopes. If the C library has no `on_exit`, none of this happens.
//!
//! Invariant:
//! - EXIT-1: the threads of an engine, and threads of a user that drive a stream or copy data,
//!   enter a plugin only inside a scope. Work for another thread has its scope before that thread
//!   knows of it.
#![allow(
    clippy::disallowed_types,
    reason = "no model is about the end of a process, and a static needs a constant"
)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam::utils::CachePadded;
use fuseline_sync::fork::is_forked;

/// Number of scopes. All streams change it.
static INSIDE: CachePadded<AtomicUsize> = CachePadded::new(AtomicUsize::new(0));

/// While it exists, a thread may be inside a plugin: the one that holds it, or the one that takes
/// it from a queue.
#[derive(Debug)]
pub struct PluginScope(());

impl PluginScope {
    /// Enters the scope.
    #[inline]
    #[must_use]
    pub fn enter() -> PluginScope {
        INSIDE.fetch_add(1, Ordering::Relaxed);
        register_at_thread_end();
        PluginScope(())
    }
}

impl Drop for PluginScope {
    fn drop(&mut self) {
        static DONE: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
        if (DONE.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            register();
        }
        INSIDE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Registers the handler when the calling thread ends, or calls `exit`.
pub(super) fn register_at_thread_end() {
    thread_local! {
        static GUARD: ThreadExitGuard = const { ThreadExitGuard };
    }
    // A thread that is ending has registered the handler already.
    let _ = GUARD.try_with(|_| {});
}

/// Registers the handler when it is dropped.
struct ThreadExitGuard;

impl Drop for ThreadExitGuard {
    fn drop(&mut self) {
        // A registration is never undone, so short-lived threads must not add one each.
        const MAX_THREADS: u64 = 4096;
        static ENDED: AtomicU64 = AtomicU64::new(0);
        let ended = ENDED.fetch_add(1, Ordering::Relaxed);
        if ended < MAX_THREADS || is_main_thread() {
            register();
        }
    }
}

/// Whether the calling thread is the first one of the process.
fn is_main_thread() -> bool {
    let thread = std::fs::read_link("/proc/thread-self");
    let id = thread.as_ref().ok().and_then(|path| path.file_name()?.to_str()?.parse().ok());
    id == Some(std::process::id())
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
        safe fn fcloseall() -> c_int;
        safe fn _exit(status: c_int) -> !;
    }

    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if INSIDE.load(Ordering::Relaxed) > 0 || is_forked() {
            // Flushes all C streams as `exit` does. Unlike `fflush(NULL)`, it does not wait for a
            // stream that another thread has locked. Rust's own were flushed before.
            let _ = fcloseall();
            _exit(status);
        }
    }

    // Without room for another handler nothing changes.
    let _ = on_exit(at_exit, ptr::null_mut());
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn register() {}
