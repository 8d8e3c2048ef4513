//! Call sites: positions in the front end's program.
//!
//! A site is an interned pointer, because recording names one for each op and must be cheap.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::Arc;

use engine::Site;
use engine::embed::swap_site;
#[allow(clippy::disallowed_types, reason = "no model is about what is looked up once for each text")]
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::error::{fuseline_error, guard};
use crate::raw::{put, text};

/// A call site in the front end's program. It is never freed, and there is one for each text.
pub struct fuseline_site(Site);

/// The site of a text, such as "train.py:12", for errors, events and timelines. It is never part of
/// a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_site_of(
    text: *const c_char,
    site: Option<&mut MaybeUninit<*const fuseline_site>>,
) -> *mut fuseline_error {
    #[allow(clippy::disallowed_types, reason = "see above")]
    static SITES: Mutex<Option<FxHashMap<Arc<str>, &'static fuseline_site>>> = Mutex::new(None);
    guard("fuseline_site_of", || {
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let text = unsafe { self::text(text, "text") }?;
        put(site, "site", || {
            let mut sites = SITES.lock();
            let sites = sites.get_or_insert_default();
            if let Some(site) = sites.get(text) {
                return Ok(std::ptr::from_ref(*site));
            }
            let text: Arc<str> = Arc::from(text);
            let site: &'static fuseline_site = Box::leak(Box::new(fuseline_site(Site::Host(text.clone()))));
            sites.insert(text, site);
            Ok(std::ptr::from_ref(site))
        })
    })
}

/// Sets the site of the calling thread, which events about reads and waits name from now on; null
/// means unknown. It has no other effect.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_set_thread_site(site: Option<&fuseline_site>) {
    crate::error::guarded((), || drop(swap_site(site.map(|site| site.0.clone()))));
}

pub(crate) fn site(site: Option<&fuseline_site>) -> Site {
    site_ref(site).clone()
}

pub(crate) fn site_ref(site: Option<&fuseline_site>) -> &Site {
    static UNKNOWN: Site = Site::Unknown;
    site.map_or(&UNKNOWN, |site| &site.0)
}
