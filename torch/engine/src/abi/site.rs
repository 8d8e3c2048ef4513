//! Places in the Python program, for errors, events and timelines.
//!
//! The shim finds the line that a call comes from (`torch/csrc/site.cpp`) and says it before
//! anything is recorded. A place is made once for its text and lives as long as the process, so
//! saying it costs no more than storing a pointer.

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the callers are in C++, and owe what `abi` says")]
#![allow(clippy::disallowed_types, reason = "no model checker drives this crate")]

use std::collections::HashMap;

use fuseline::Site;
use fuseline::embed::swap_caller;
use parking_lot::Mutex;

use crate::abi::list;

/// A place in the program.
#[derive(Debug)]
pub struct FltSite(Site);

/// The place of a text, such as "train.py:12 in step".
#[unsafe(no_mangle)]
pub extern "C" fn flt_site(text: *const u8, len: usize) -> &'static FltSite {
    static SITES: Mutex<Option<HashMap<&'static str, &'static FltSite>>> = Mutex::new(None);
    // SAFETY: holds because the shim gives so many bytes.
    let text = String::from_utf8_lossy(unsafe { list(text, len) });
    let mut sites = SITES.lock();
    let sites = sites.get_or_insert_default();
    if let Some(site) = sites.get(&*text) {
        return site;
    }
    let text: &'static str = String::leak(text.into_owned());
    let site: &'static FltSite = Box::leak(Box::new(FltSite(Site::Static(text))));
    sites.insert(text, site);
    site
}

/// Says where the program is on the calling thread from now on; null is nowhere.
#[unsafe(no_mangle)]
pub extern "C" fn flt_at(site: Option<&'static FltSite>) {
    swap_caller(site.map(|site| &site.0));
}
