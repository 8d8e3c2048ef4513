//! A note of the moment at which the process crashes.
//!
//! A plugin that crashes takes the process along. What it was at stands in a file (of the disk
//! cache), and so that the next process can tell a crash from a process that was interrupted or
//! killed, a handler of the signals that a crash is writes one byte to it. Then what was there
//! before the handler gets the signal: a handler of the host's, or the default action, which ends
//! the process. Nothing else is done in it; all that it calls may be called there
//! (`signal-safety(7)`).
//!
//! Invariants:
//! - P10: a signal has the same end with and without the handler. One that was sent is sent again,
//!   one of a faulting instruction comes again when that is executed again.
//! - P11: a process that was forked off notes nothing: the file is its parent's.
#![allow(
    clippy::disallowed_types,
    reason = "no model is about the end of a process, and a handler needs atomics alone"
)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Once};

/// The signals of a crash.
const SIGNALS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// What is written.
static CRASHED: [u8; 1] = [CrashNote::BYTE];

/// Files to write to; -1 is none. More engines than that at once have no note.
static FILES: [AtomicI32; 16] = [const { AtomicI32::new(-1) }; 16];

/// Whose files these are.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// What was there before, by place in [`SIGNALS`]; set once and never freed.
static BEFORE: [AtomicPtr<libc::sigaction>; SIGNALS.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS.len()];

/// A file that is told if the process crashes, as long as this lives.
#[derive(Debug)]
pub struct CrashNote {
    place: Option<usize>,
    file: Arc<OwnedFd>,
}

impl CrashNote {
    /// The byte that the file begins with after a crash.
    pub const BYTE: u8 = b'!';

    /// Installs the handler, the first time.
    pub fn new(file: Arc<OwnedFd>) -> CrashNote {
        static INSTALLED: Once = Once::new();
        OWNER.store(std::process::id() as i32, Ordering::Relaxed);
        INSTALLED.call_once(install);
        let fd = file.as_raw_fd();
        let take =
            |place: &AtomicI32| place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        CrashNote { place: FILES.iter().position(take), file }
    }
}

impl Drop for CrashNote {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            debug_assert_eq!(FILES[place].load(Ordering::Relaxed), self.file.as_raw_fd());
            FILES[place].store(-1, Ordering::Relaxed);
        }
    }
}

fn install() {
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        let old = Box::into_raw(Box::new(action(libc::SIG_DFL)));
        // In place before the handler is, which looks there.
        before.store(old, Ordering::Release);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_crash;
        let mut new = action(handler as usize);
        // On the stack for signals, if a thread has one: its own may be what overflowed.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: holds because both actions are initialised, and the handler calls only what may
        // be called there.
        if unsafe { libc::sigaction(signal, &raw const new, old) } != 0 {
            // Nothing was installed, so nothing looks there.
            before.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

/// An action without flags.
fn action(handler: usize) -> libc::sigaction {
    // SAFETY: holds because the structure consists of numbers and an optional pointer to a
    // function, for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action
}

/// Notes the crash. May be called in a handler.
fn note() {
    // SAFETY: holds because the function takes nothing and may be called in a handler.
    let pid = unsafe { libc::getpid() };
    if pid != OWNER.load(Ordering::Relaxed) {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: holds because the structure is the caller's own; the function is a system call that
    // takes no lock.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if !is_known || limit.rlim_cur == 0 {
        // Not a byte may be written (`ulimit -f 0`): trying would be another signal (P10).
        return;
    }
    for fd in FILES.iter().map(|file| file.load(Ordering::Relaxed)).filter(|&fd| fd >= 0) {
        // SAFETY: holds because the byte is static, and the function may be called in a handler; a
        // file that was closed meanwhile is an error.
        let _ = unsafe { libc::pwrite(fd, CRASHED.as_ptr().cast(), CRASHED.len(), 0) };
    }
}

extern "C" fn on_crash(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    note();
    let place = SIGNALS.iter().position(|other| *other == signal);
    let before = place.map_or(ptr::null_mut(), |place| BEFORE[place].load(Ordering::Acquire));
    if before.is_null() {
        return;
    }
    // SAFETY: holds because what is there was set by `install`, once, and is never freed; the
    // function may be called in a handler.
    let _ = unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    // SAFETY: holds because the system hands a handler with `SA_SIGINFO` the signal's information.
    let code = unsafe { (*info).si_code };
    if code <= 0 {
        // It was sent, by `abort` for example, and comes no second time by itself. It is held back
        // until the handler returns. SAFETY: holds because the function may be called in a handler.
        let _ = unsafe { libc::raise(signal) };
    }
}
