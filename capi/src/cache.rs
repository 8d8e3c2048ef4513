//! Control of the caches of executables.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use engine::aot::{Manifest, Warmed};

use crate::error::{c_text, fuseline_error, guard, guarded};
use crate::raw::{put, text};
use crate::session::{fuseline_session, session};

/// What happened to the regions of a manifest.
#[repr(C)]
pub struct fuseline_warmed {
    /// Regions that were compiled and stored.
    pub compiled: u64,
    /// Regions that were already present.
    pub present: u64,
    /// Regions that could not be compiled or stored.
    pub failed: u64,
    /// Why the first of these failed, or null. Free it with fuseline_text_free.
    pub why: *mut c_char,
}

/// Drops every executable of the engine's memory cache. Executions that are running finish.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_cache_clear(session: Option<&fuseline_session>) -> *mut fuseline_error {
    guard("fuseline_cache_clear", || {
        self::session(session)?.engine().clear_cache();
        Ok(())
    })
}

/// Compiles the regions of a manifest that are not in the disk cache, on the engine's compile
/// threads. Waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_cache_warm(
    session: Option<&fuseline_session>,
    manifest: *const c_char,
    warmed: Option<&mut MaybeUninit<fuseline_warmed>>,
) -> *mut fuseline_error {
    guard("fuseline_cache_warm", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let manifest = Manifest::read(unsafe { text(manifest, "manifest") }?)?;
        put(warmed, "warmed", || {
            let all = session.engine().warm_cache(&manifest, |_, _| {})?;
            let mut out = fuseline_warmed { compiled: 0, present: 0, failed: 0, why: std::ptr::null_mut() };
            for one in &all {
                match one {
                    Warmed::Compiled(_) => out.compiled += 1,
                    Warmed::Present => out.present += 1,
                    Warmed::Failed(why) => {
                        out.failed += 1;
                        if out.why.is_null() {
                            out.why = c_text(why.as_str()).into_raw();
                        }
                    }
                    other => {
                        out.failed += 1;
                        debug_assert!(false, "bug: unexpected {other:?}");
                    }
                }
            }
            Ok(out)
        })
    })
}

/// Why this engine has no disk cache although one was requested; null if it has one, and if none
/// was requested. Free it with fuseline_text_free.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_cache_trouble(session: Option<&fuseline_session>) -> *mut c_char {
    guarded(std::ptr::null_mut(), || {
        let why = session.and_then(|session| session.session.engine().why_no_disk_cache());
        why.map_or(std::ptr::null_mut(), |why| c_text(why).into_raw())
    })
}
