//! Functions of the engine other than ops: timelines, caches, warnings, forks.

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the callers are in C++, and owe what `abi` says")]
#![allow(clippy::disallowed_types, reason = "no model checker drives this crate")]

use fuseline::aot::{Manifest, Warmed};

use crate::abi::{MESSAGE, Status, guarded, list};
use crate::call::unsupported;
use crate::device;

/// Begins a timeline, which collects the engine's events from now on. It replaces an active one.
#[unsafe(no_mangle)]
pub extern "C" fn flt_profile_begin() -> Status {
    guarded(|| {
        device::engine()?;
        device::begin_timeline();
        Ok(())
    })
}

/// Marks the beginning of a step, if there is a timeline.
#[unsafe(no_mangle)]
pub extern "C" fn flt_profile_mark(name: *const u8, len: usize) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let name = String::from_utf8_lossy(unsafe { list(name, len) });
        if let Some(timeline) = device::timeline() {
            timeline.mark(name);
        }
        Ok(())
    })
}

/// Ends the timeline and writes it as a page if a path is given. `flt_message` returns its summary.
#[unsafe(no_mangle)]
pub extern "C" fn flt_profile_end(path: *const u8, len: usize) -> Status {
    guarded(|| {
        let Some(timeline) = device::end_timeline() else {
            return unsupported(
                "there is no timeline: another profile has begun, or this one has already ended",
            );
        };
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let path = String::from_utf8_lossy(unsafe { list(path, len) });
        if !path.is_empty()
            && let Err(error) = std::fs::write(&*path, timeline.page("Profile of a PyTorch program"))
        {
            return unsupported(format!("{path} cannot be written: {error}"));
        }
        MESSAGE.set(timeline.summary().to_string());
        Ok(())
    })
}

/// Compiles the regions of a manifest that are not in the disk cache. `flt_message` returns how
/// many were compiled, present and failed, and the reasons, one per line.
#[unsafe(no_mangle)]
pub extern "C" fn flt_warm_cache(path: *const u8, len: usize) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let path = String::from_utf8_lossy(unsafe { list(path, len) });
        let manifest = Manifest::read(&*path)?;
        let (mut compiled, mut present, mut failed) = (0, 0, Vec::new());
        for warmed in device::engine()?.warm_cache(&manifest, |_, _| {})? {
            match warmed {
                Warmed::Compiled(_) => compiled += 1,
                Warmed::Failed(why) => failed.push(why.replace('\n', " ")),
                _ => present += 1,
            }
        }
        MESSAGE.set(format!("{compiled} {present} {}\n{}", failed.len(), failed.join("\n")));
        Ok(())
    })
}

/// Writes why there is no disk cache although one was requested, or the latest problem with it, or
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn flt_no_disk_cache() -> Status {
    guarded(|| {
        let off = device::engine()?.why_no_disk_cache().map(str::to_owned);
        MESSAGE.set(off.or_else(device::disk_trouble).unwrap_or_default());
        Ok(())
    })
}

/// Whether [`flt_warnings`] has any.
#[unsafe(no_mangle)]
pub extern "C" fn flt_has_warnings() -> bool {
    device::has_warnings()
}

/// Writes what the engine has turned off by itself and not yet reported, one per line.
#[unsafe(no_mangle)]
pub extern "C" fn flt_warnings() -> Status {
    guarded(|| {
        MESSAGE.set(device::take_warnings());
        Ok(())
    })
}

/// Whether the engine is open in this process.
#[unsafe(no_mangle)]
pub extern "C" fn flt_is_open() -> bool {
    device::is_open()
}

/// Stops new background compiles if the engine is open, because the process is about to end.
#[unsafe(no_mangle)]
pub extern "C" fn flt_pause_background_compiles() {
    device::pause_background_compiles();
}

/// Whether this process was forked from one whose engine was open.
#[unsafe(no_mangle)]
pub extern "C" fn flt_is_forked() -> bool {
    device::is_forked()
}
