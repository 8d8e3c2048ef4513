//! Call sites in the Python program, for errors, events and timelines.
//!
//! The shim finds the line of a call (`torch/csrc/site.cpp`) and sets it before anything is
//! recorded. A call site is interned by its text and lives as long as the process, so setting it
//! only stores a pointer.

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the callers are in C++, and owe what `abi` says")]
#![allow(clippy::disallowed_types, reason = "no model checker drives this crate")]

use std::collections::HashMap;

use fuseline::Site;
use fuseline::embed::swap_caller;
use parking_lot::Mutex;

use crate::abi::list;

/// A call site in the program.
#[derive(Debug)]
pub struct FltSite(Site);

/// Interns the call site of a text, such as "train.py:12 in step".
#[unsafe(no_mangle)]
pub extern "C" fn flt_site(text: *const u8, len: usize) -> &'static FltSite {
    static SITES: Mutex<Option<HashMap<&'static str, &'static FltSite>>> = Mutex::new(None);
    // SAFETY: the shim passes that many readable bytes, which live through the call.
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

/// Sets the call site of the calling thread. Null means unknown.
#[unsafe(no_mangle)]
pub extern "C" fn flt_at(site: Option<&'static FltSite>) {
    swap_caller(site.map(|site| &site.0));
}
