//! Records that the process crashes.
//!
//! A crash of a plugin ends the process. A file of the disk cache says what the process was doing.
//! The next process has to tell a crash from an interrupted or killed process, so a handler of the
//! crash signals writes one byte to that file. Then the previous action gets the signal: a handler
//! of the host program, or the default action, which ends the process. The handler does nothing
//! else, and everything that it calls is async-signal-safe (`signal-safety(7)`).
//!
//! Invariants:
//! - CRASH-10: a signal has the same effect with and without the handler. A signal that was sent is
//!   sent again; a faulting instruction raises its signal again when it is executed again.
//! - CRASH-11: a forked process records nothing: the file belongs to its parent.
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

/// The byte to write.
static CRASHED: [u8; 1] = [CrashNote::BYTE];

/// Files to write to; -1 is none. Further engines have no crash note.
static FILES: [AtomicI32; 16] = [const { AtomicI32::new(-1) }; 16];

/// The process that owns these files.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The previous actions, by position in [`SIGNALS`]; set once and never freed.
static BEFORE: [AtomicPtr<libc::sigaction>; SIGNALS.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS.len()];

/// A file that records a crash of the process while this lives.
#[derive(Debug)]
pub struct CrashNote {
    place: Option<usize>,
    file: Arc<OwnedFd>,
}

impl CrashNote {
    /// The first byte of the file after a crash.
    pub const BYTE: u8 = b'!';

    /// Registers the file, and installs the handler the first time.
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
        // Set before the handler is installed, which reads it.
        before.store(old, Ordering::Release);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_crash;
        let mut new = action(handler as usize);
        // On the signal stack, if the thread has one: its own stack may have overflowed.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: holds because both actions are initialised, and the handler calls only what may
        // be called there.
        if unsafe { libc::sigaction(signal, &raw const new, old) } != 0 {
            // Nothing was installed, so nothing reads it.
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

/// Records the crash. Async-signal-safe.
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
        // No byte may be written (`ulimit -f 0`): trying would raise another signal (CRASH-10).
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
        // The signal was sent, by `abort` for example, and does not come again by itself. It is
        // blocked until the handler returns. SAFETY: holds because the function may be called in a
        // handler.
        let _ = unsafe { libc::raise(signal) };
    }
}
