//! Callbacks of C's: a function, what it is given, and how that is freed.
//!
//! Invariant C3: what a callback is given is freed once, after its last call has returned, on any
//! thread, whether it was called or not.

use std::ffi::c_void;

/// Frees what a callback is given.
pub type fuseline_free_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// What a callback is given. Freed when it is dropped.
#[derive(Debug)]
pub(crate) struct User {
    data: *mut c_void,
    free: fuseline_free_fn,
}

// SAFETY: holds because the caller, who hands it over for callbacks on any thread, vouches for
// that.
unsafe impl Send for User {}
// SAFETY: holds for the same reason.
unsafe impl Sync for User {}

impl User {
    pub(crate) fn new(data: *mut c_void, free: fuseline_free_fn) -> User {
        User { data, free }
    }

    pub(crate) fn data(&self) -> *mut c_void {
        self.data
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: holds because the caller vouches for the function and what it is given, and
            // this is done once (C3).
            unsafe { free(self.data) };
        }
    }
}
