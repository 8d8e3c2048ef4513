//! Callbacks from C: a function, its user data, and how that is freed.
//!
//! - CAPI-3: user data is freed once, on any thread, after its last call has returned, also if it
//!   was never called.

use std::ffi::c_void;

/// Frees the user data of a callback.
pub type fuseline_free_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// The user data of a callback. Dropping it frees the data.
#[derive(Debug)]
pub(crate) struct User {
    data: *mut c_void,
    free: fuseline_free_fn,
}

// SAFETY: the caller passes user data for callbacks on any thread, as the header says.
unsafe impl Send for User {}
// SAFETY: as above; several callbacks may use it concurrently.
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
            // SAFETY: the caller guarantees that `free` accepts this user data, and it is called
            // once (CANON-3).
            unsafe { free(self.data) };
        }
    }
}
