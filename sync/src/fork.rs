//! Detects that this process is a forked copy of one that was using the library.
//!
//! The child of a fork has the memory of its parent, but only one of its threads: not those that
//! compile and drive streams, nor the plugin's. Locks that those threads held stay locked, and what
//! they were asked for never comes. So a child uses nothing of the library:
//!
//! - FORK-1: a call in a child that needs an engine returns an error, before it takes a lock or
//!   waits.
//! - FORK-2: a child drops no device, executable or buffer of the parent: that would call a plugin,
//!   which would wait for its threads. The streams that are alive when the process forks stay alive
//!   in the child, with everything that they hold.
//!
//! The library detects a fork by `pthread_atfork`. The list of streams is locked meanwhile, so that
//! the child finds it consistent. If a process forks before it has an engine, or after it has
//! dropped the last one and has never opened a plugin, its children may use the library. Without
//! `pthread_atfork` no fork is detected.

#[cfg(all(unix, not(any(loom, shuttle))))]
mod real {
    #![allow(
        clippy::disallowed_types,
        reason = "a lock that is passed through a fork, and no part of a model"
    )]

    use std::cell::Cell;
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Mutex, MutexGuard, Once, PoisonError, Weak};

    use crate::WeakSet;

    /// An object that stays alive in a child.
    type ForkObject = Weak<dyn Send + Sync>;

    struct List {
        kept: WeakSet<dyn Send + Sync>,
        has_plugin: bool,
    }

    /// The locked list.
    struct Locked(MutexGuard<'static, List>);

    /// Written before each unlock and read after each lock. The lock itself orders everything. But
    /// threads that contend for it meet inside the standard library, which the thread sanitizer
    /// does not see; it sees this. The value changes, because LLVM would fold a static that is
    /// constant.
    static TURN: AtomicU32 = AtomicU32::new(0);

    impl Drop for Locked {
        fn drop(&mut self) {
            TURN.fetch_add(1, Ordering::Release);
        }
    }

    static FORKED: AtomicBool = AtomicBool::new(false);
    static LIST: Mutex<List> = Mutex::new(List { kept: WeakSet::new(64), has_plugin: false });

    thread_local! {
        /// The lock on the list, while this thread forks.
        static FORKING: Cell<Option<Locked>> = const { Cell::new(None) };
    }

    /// Whether this process was forked from one that was using the library.
    #[inline(always)]
    pub fn is_forked() -> bool {
        FORKED.load(Ordering::Relaxed)
    }

    fn list() -> Locked {
        // Nothing that holds the lock panics in between.
        let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        TURN.load(Ordering::Acquire);
        Locked(list)
    }

    /// Keeps an object alive in a child (FORK-2).
    pub fn keep_in_child(kept: ForkObject) {
        watch();
        list().0.kept.push(kept);
    }

    /// Notes that a plugin is open. Its threads stay.
    pub fn note_plugin() {
        watch();
        list().0.has_plugin = true;
    }

    fn watch() {
        // SAFETY: holds because this is the declaration of the C library's headers, and the
        // function may be called at any time.
        unsafe extern "C" {
            safe fn pthread_atfork(
                prepare: extern "C" fn(),
                parent: extern "C" fn(),
                child: extern "C" fn(),
            ) -> c_int;
        }
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // If memory runs out here, forks are not detected.
            let _ = pthread_atfork(prepare, parent, child);
        });
    }

    extern "C" fn prepare() {
        let list = list();
        // A thread that is ending cannot keep it.
        let _ = FORKING.try_with(|forking| forking.set(Some(list)));
    }

    extern "C" fn parent() {
        drop(FORKING.try_with(Cell::take));
    }

    extern "C" fn child() {
        let list = FORKING.try_with(Cell::take).ok().flatten();
        let mut is_used = true;
        if let Some(list) = &list {
            is_used = list.0.has_plugin;
            for kept in list.0.kept.iter() {
                is_used = true;
                std::mem::forget(kept);
            }
        }
        if is_used {
            FORKED.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(not(all(unix, not(any(loom, shuttle)))))]
mod real {
    use std::sync::Weak;

    /// Always `false`: forks are not detected.
    #[inline(always)]
    pub fn is_forked() -> bool {
        false
    }

    /// Does nothing: forks are not detected.
    pub fn keep_in_child(_kept: Weak<dyn Send + Sync>) {}

    /// Does nothing: forks are not detected.
    pub fn note_plugin() {}
}

pub use real::{is_forked, keep_in_child, note_plugin};
