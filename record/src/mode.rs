//! What an op captures of the thread that records it: the mode in force and the call site.

use std::cell::Cell;

use fuseline_fusion::Site;
use fuseline_fusion::region::Mode;

fuseline_sync::thread_local! {
    static SCOPED_MODE: Cell<Option<Mode>> = const { Cell::new(None) };
}

/// The modes of a stream by code. Code 0 means the mode of the engine.
const MODES: [Option<Mode>; 4] = [None, Some(Mode::Fused), Some(Mode::Strict), Some(Mode::Debug)];

/// The code of [`Mode::Fused`].
pub const FUSED: u32 = 1;

/// The code of a mode; `None` means the mode of the engine.
#[must_use]
#[inline]
pub fn mode_code(mode: Option<Mode>) -> u32 {
    MODES.iter().position(|&known| known == mode).unwrap_or(0) as u32
}

/// The mode of a code that [`mode_code`] returned.
#[inline]
pub fn mode_of(code: u32) -> Option<Mode> {
    MODES[code as usize % MODES.len()]
}

/// The mode that [`with_mode`] has set for the calling thread, if any.
#[inline]
pub fn scoped_mode() -> Option<Mode> {
    SCOPED_MODE.try_with(Cell::get).ok().flatten()
}

/// Sets the mode of the calling thread and returns the previous one.
#[inline]
pub fn swap_scoped_mode(mode: Option<Mode>) -> Option<Mode> {
    SCOPED_MODE.try_with(|scoped| scoped.replace(mode)).ok().flatten()
}

/// Whether any thread of the process has ever set a caller. Rust programs never do, and then
/// [`caller`] reads only this flag.
#[allow(clippy::disallowed_types, reason = "no model is about it, and a static has no constructor there")]
static HAS_CALLER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fuseline_sync::thread_local! {
    static CALLER: Cell<Option<&'static Site>> = const { Cell::new(None) };
}

/// The call site that a front end in another language has set for this thread
/// (`embed::swap_caller`).
#[inline(always)]
pub fn caller() -> Option<&'static Site> {
    if !HAS_CALLER.load(std::sync::atomic::Ordering::Relaxed) {
        return None;
    }
    CALLER.try_with(Cell::get).ok().flatten()
}

/// Sets the call site of the calling thread and returns the previous one.
pub fn swap_caller(site: Option<&'static Site>) -> Option<&'static Site> {
    // Write it only once, because all threads read it.
    if site.is_some() && !HAS_CALLER.load(std::sync::atomic::Ordering::Relaxed) {
        HAS_CALLER.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    CALLER.try_with(|caller| caller.replace(site)).ok().flatten()
}

/// Calls `f`. Every op that this thread records meanwhile, on any stream, has the given mode.
/// Scopes nest, and end when `f` returns or panics. An op captures its mode when it is recorded, so
/// nothing has to be flushed at either end.
pub fn with_mode<R>(mode: Mode, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Mode>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = SCOPED_MODE.try_with(|scoped| scoped.set(self.0));
        }
    }
    let _restore = Restore(SCOPED_MODE.with(|scoped| scoped.replace(Some(mode))));
    f()
}
