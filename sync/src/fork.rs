//! Whether this process is a copy of one in which the library was at work.
//!
//! The child of a fork has the memory of its parent and one of its threads: not those that compile
//! and work on streams, nor the plugin's. What they held is held for ever, and nothing that they
//! were asked for will come. So in a child nothing of the library is used any more:
//!
//! - B1: whatever asks for an engine's work in a child returns an error, before it takes a lock or
//!   waits.
//! - B2: no device, executable or buffer of the parent is let go in a child: that would call a
//!   plugin which waits for its threads. The streams that are alive when the process forks stay
//!   alive in the child, and with them all that they hold.
//!
//! A fork is noticed by what the C library calls around it (`pthread_atfork`). The list of streams
//! is locked meanwhile, so that the child finds it whole. A process that forks before it has an
//! engine, or has let go of the last one and never opened a plugin, has children that may use the
//! library. Where there is no `pthread_atfork` no fork is noticed.

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

    /// What stays alive in a child.
    type Kept = Weak<dyn Send + Sync>;

    struct List {
        kept: WeakSet<dyn Send + Sync>,
        has_plugin: bool,
    }

    /// The list, while it is locked.
    struct Locked(MutexGuard<'static, List>);

    /// Written before each unlock and read after each lock. The lock orders all by itself; but
    /// where threads meet on it that happens inside the standard library, which the thread
    /// sanitizer does not see into, and of this it can tell. The value
    /// changes, because LLVM would fold a static that always holds the same one.
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
        // Nothing that holds it panics half way.
        let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        TURN.load(Ordering::Acquire);
        Locked(list)
    }

    /// Has something stay alive in a child (B2).
    pub fn keep_in_child(kept: Kept) {
        watch();
        list().0.kept.push(kept);
    }

    /// A plugin is open, and its threads stay.
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
            // Without memory for it forks are not noticed.
            let _ = pthread_atfork(prepare, parent, child);
        });
    }

    extern "C" fn prepare() {
        let list = list();
        // A thread that is ending has nowhere to keep it.
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

    /// Never.
    #[inline(always)]
    pub fn is_forked() -> bool {
        false
    }

    /// No fork is noticed.
    pub fn keep_in_child(_kept: Weak<dyn Send + Sync>) {}

    /// No fork is noticed.
    pub fn note_plugin() {}
}

pub use real::{is_forked, keep_in_child, note_plugin};
