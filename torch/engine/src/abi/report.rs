//! What a user asks of the engine beside ops: timelines, caches, forks.

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the callers are in C++, and owe what `abi` says")]
#![allow(clippy::disallowed_types, reason = "no model checker drives this crate")]

use fuseline::aot::{Manifest, Warmed};

use crate::abi::{MESSAGE, Status, guarded, list};
use crate::call::unsupported;
use crate::device;

/// Begins a timeline: events of the engine are kept from now on. Another one that is kept ends.
#[unsafe(no_mangle)]
pub extern "C" fn flt_profile_begin() -> Status {
    guarded(|| {
        device::engine()?;
        device::begin_timeline();
        Ok(())
    })
}

/// A step of the program begins, if there is a timeline.
#[unsafe(no_mangle)]
pub extern "C" fn flt_profile_mark(name: *const u8, len: usize) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
        let name = String::from_utf8_lossy(unsafe { list(name, len) });
        if let Some(timeline) = device::timeline() {
            timeline.mark(name);
        }
        Ok(())
    })
}

/// Ends the timeline and writes it as a page, if it has a path; its summary is told by
/// `flt_message`.
#[unsafe(no_mangle)]
pub extern "C" fn flt_profile_end(path: *const u8, len: usize) -> Status {
    guarded(|| {
        let Some(timeline) = device::end_timeline() else {
            return unsupported(
                "no timeline is kept: another profile began meanwhile, or this one has ended",
            );
        };
        // SAFETY: holds because the shim gives so many bytes.
        let path = String::from_utf8_lossy(unsafe { list(path, len) });
        if !path.is_empty()
            && let Err(error) = std::fs::write(&*path, timeline.page("torch.fuseline.profile"))
        {
            return unsupported(format!("{path} cannot be written: {error}"));
        }
        MESSAGE.set(timeline.summary().to_string());
        Ok(())
    })
}

/// Compiles what a manifest has and the disk cache has not; told are how many were compiled, were
/// there, and failed, and then why, a line each.
#[unsafe(no_mangle)]
pub extern "C" fn flt_warm_cache(path: *const u8, len: usize) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
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

/// Why executables are not kept on the disk although they were to be, or the latest trouble with
/// those that are, or nothing.
#[unsafe(no_mangle)]
pub extern "C" fn flt_no_disk_cache() -> Status {
    guarded(|| {
        let off = device::engine()?.why_no_disk_cache().map(str::to_owned);
        MESSAGE.set(off.or_else(device::disk_trouble).unwrap_or_default());
        Ok(())
    })
}

/// Whether [`flt_warnings`] has something to tell.
#[unsafe(no_mangle)]
pub extern "C" fn flt_has_warnings() -> bool {
    device::has_warnings()
}

/// What the engine has turned off by itself and nobody was told yet, a line each, by `flt_message`.
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

/// Begins no more compiles in the background, if the engine is open: the process is about to end.
#[unsafe(no_mangle)]
pub extern "C" fn flt_pause_background_compiles() {
    device::pause_background_compiles();
}

/// Whether this process was forked from one in which the engine was open.
#[unsafe(no_mangle)]
pub extern "C" fn flt_is_forked() -> bool {
    device::is_forked()
}
