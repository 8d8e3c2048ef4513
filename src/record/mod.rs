//! Recording: from a call to an entry in a stream's log.
//!
//! Input: an op, its attributes and the values it reads, from any thread. Output: handles on its
//! results, at once, with types; the entry goes to the [`log`], where the stream's driver
//! (`execute`) finds it. Nothing here waits for another thread, except that a full log lets the
//! recording thread sleep.
//!
//! What is captured when an op is recorded: the call itself, the mode that is in force, the call
//! site. Nothing is looked up later that could have changed.

pub(crate) mod log;
pub(crate) mod memo;
mod room;
pub(crate) mod trace_cache;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::Site;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Mode, TraceOp};
use fuseline_sync::once::{Abandoned, Once, Promise};

use self::trace_cache::{End, ReplayTrace};
use crate::value::{ValueCell, ValuePromise};

/// One entry of a stream's log.
#[derive(Debug)]
pub(crate) enum Entry {
    /// An op was recorded.
    Op(TraceOp<ValuePromise>),
    /// The last handle on a value was dropped.
    Release(Arc<ValueCell>),
    /// The outside needs a value: a boundary, if a pending op makes it.
    Demand(Arc<ValueCell>, Boundary),
    /// A boundary wherever the stream stands.
    Flush(Boundary),
    /// A boundary, and everything before it is to be finished before the promise is kept.
    Fence(FencePromise),
    /// A boundary, and nothing after it runs before this place of another stream is reached.
    WaitFor(Arc<Fence>),
    /// Ops and releases that were recorded before in the same order, and how far they were what was
    /// expected.
    Replayed(Box<ReplayTrace>, End),
    /// An op that was given up, because for too long there was no room.
    Dropped,
}

impl Entry {
    /// Whether the program asks for something by it, so that there may be a boundary.
    pub(crate) fn is_ask(&self) -> bool {
        matches!(
            self,
            Entry::Demand(..) | Entry::Flush(_) | Entry::Fence(_) | Entry::Replayed(_, End::Asked(_))
        )
    }

    /// Whether the driver is to go through the log up to here.
    pub(crate) fn is_demanded(&self) -> bool {
        match self {
            Entry::Op(op) => op.mode != Mode::Fused || op.effect != Effect::Pure,
            Entry::Release(_) | Entry::Dropped => false,
            Entry::Replayed(_, end) => *end != End::Astray,
            Entry::Demand(..) | Entry::Flush(_) | Entry::Fence(_) | Entry::WaitFor(_) => true,
        }
    }
}

/// Whether everything before a fence is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fenced {
    /// It is.
    Done,
    /// The stream is gone.
    Abandoned,
}

impl Abandoned for Fenced {
    fn abandoned() -> Fenced {
        Fenced::Abandoned
    }
}

/// A place in a stream that can be waited for.
pub(crate) struct Fence(Once<Fenced>);

/// The duty to say when a fence is reached.
pub(crate) type FencePromise = Promise<Fenced, Fence>;

impl Fence {
    pub(crate) fn new() -> (Arc<Fence>, FencePromise) {
        Promise::new(Fence(Once::pending()))
    }
}

impl AsRef<Once<Fenced>> for Fence {
    fn as_ref(&self) -> &Once<Fenced> {
        &self.0
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fence")
    }
}

fuseline_sync::thread_local! {
    static SCOPED_MODE: Cell<Option<Mode>> = const { Cell::new(None) };
}

/// Codes of a stream's mode; 0 is the engine's.
const MODES: [Option<Mode>; 4] = [None, Some(Mode::Fused), Some(Mode::Strict), Some(Mode::Debug)];

/// The code of [`Mode::Fused`].
pub(crate) const FUSED: u32 = 1;

pub(crate) fn mode_code(mode: Option<Mode>) -> u32 {
    MODES.iter().position(|&known| known == mode).unwrap_or(0) as u32
}

/// The mode of a code that [`mode_code`] made.
pub(crate) fn mode_of(code: u32) -> Option<Mode> {
    MODES[code as usize % MODES.len()]
}

/// The mode that the calling thread is in by [`with_mode`], if any.
pub(crate) fn scoped_mode() -> Option<Mode> {
    SCOPED_MODE.try_with(Cell::get).ok().flatten()
}

/// Sets the mode that the calling thread is in; returns the one before.
pub(crate) fn swap_scoped_mode(mode: Option<Mode>) -> Option<Mode> {
    SCOPED_MODE.try_with(|scoped| scoped.replace(mode)).ok().flatten()
}

/// Whether a thread of the process has ever said where it is: programs in Rust never do, and then
/// nothing but this is looked at.
#[allow(clippy::disallowed_types, reason = "no model is about it, and a static has no constructor there")]
static IS_CALLER_SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fuseline_sync::thread_local! {
    static CALLER: Cell<Option<&'static Site>> = const { Cell::new(None) };
}

/// Where the calling thread is, in a program that is not in Rust ([`crate::embed::swap_caller`]).
#[inline(always)]
pub(crate) fn caller() -> Option<&'static Site> {
    if !IS_CALLER_SAID.load(std::sync::atomic::Ordering::Relaxed) {
        return None;
    }
    CALLER.try_with(Cell::get).ok().flatten()
}

/// Sets where the calling thread is; returns where it was.
pub(crate) fn swap_caller(site: Option<&'static Site>) -> Option<&'static Site> {
    // Written once: all threads read it.
    if site.is_some() && !IS_CALLER_SAID.load(std::sync::atomic::Ordering::Relaxed) {
        IS_CALLER_SAID.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    CALLER.try_with(|caller| caller.replace(site)).ok().flatten()
}

/// Calls `f` with a mode in force for every op that this thread records meanwhile, on whatever
/// stream. Scopes nest, and end when `f` returns or panics. The mode is captured when an op is
/// recorded, so nothing has to be flushed at either end.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// let x = engine.tensor(&[1.0f32, 4.0], &[2])?;
/// let y = fuseline::with_mode(fuseline::Mode::Debug, || x.sqrt())?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
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
