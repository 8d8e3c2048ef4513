//! A key-value store through which the clients of several processes meet.
//!
//! Multi-process clients use it at start to agree on who has which devices. A single process needs
//! none.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pjrt_sys::*;

use super::abi::{Block, KeyValueTryGetArgs};
use super::api::list;
use super::callback::shield;

/// A store shared by processes. It is called from threads of the plugin, several at a time. A panic
/// is caught and becomes an error of the call.
///
/// Keys and values are bytes. Errors are text for people.
pub trait KeyValueStore: Send + Sync {
    /// Waits until `key` has a value, at most for `timeout`.
    ///
    /// # Errors
    /// When the timeout passes or the store cannot be reached.
    fn get(&self, key: &[u8], timeout: Duration) -> Result<Vec<u8>, String>;

    /// The value of `key`, or `None` if it has none yet; does not wait.
    ///
    /// # Errors
    /// When the store cannot be reached.
    fn try_get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String>;

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// When the store cannot be reached.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String>;
}

/// The argument of the callbacks. Its address must stay valid as long as the client.
pub(super) struct Store(pub(super) Arc<dyn KeyValueStore>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// Sets the callbacks. `self` must not be moved or dropped before the client is destroyed.
    pub(super) fn fill(&self, args: &mut Block<PJRT_Client_Create_Args>) {
        let user_arg = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        args.kv_get_callback = Some(get);
        args.kv_get_user_arg = user_arg;
        args.kv_put_callback = Some(put);
        args.kv_put_user_arg = user_arg;
        args.tail.kv_try_get_callback = Some(try_get);
        args.tail.kv_try_get_user_arg = user_arg;
    }
}

/// Returns an error to the plugin.
type MakeError = *mut PJRT_CallbackError;

const NOT_FOUND: PJRT_Error_Code = PJRT_Error_Code_PJRT_Error_Code_NOT_FOUND;
const UNKNOWN: PJRT_Error_Code = PJRT_Error_Code_PJRT_Error_Code_UNKNOWN;

/// # Safety
/// `make` is what the plugin passed to the callback.
unsafe fn fail(make: MakeError, code: PJRT_Error_Code, words: &str) -> *mut PJRT_Error {
    // SAFETY: holds because the plugin passes a pointer to its function.
    let Some(Some(make)) = (unsafe { make.as_ref() }) else { return std::ptr::null_mut() };
    // SAFETY: holds because the words outlive the call, which copies them.
    unsafe { make(code, words.as_ptr().cast(), words.len()) }
}

/// Lends `value` to the plugin, which copies it and calls [`free`]. The length is stored in front
/// of the bytes.
fn lend(value: &[u8]) -> *mut c_char {
    let mut block = Vec::with_capacity(size_of::<usize>() + value.len());
    block.extend(value.len().to_ne_bytes());
    block.extend(value);
    let start = Box::into_raw(block.into_boxed_slice()).cast::<u8>();
    start.wrapping_add(size_of::<usize>()).cast()
}

unsafe extern "C" fn free(value: *mut c_char) {
    shield(|| {
        let start = value.cast::<u8>().wrapping_sub(size_of::<usize>());
        // SAFETY: holds because `lend` put the length there.
        let len = unsafe { start.cast::<usize>().read_unaligned() };
        let block = std::ptr::slice_from_raw_parts_mut(start, size_of::<usize>() + len);
        // SAFETY: holds because `lend` made the box of that size, and the plugin frees it once.
        drop(unsafe { Box::from_raw(block) });
    });
}

unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: holds because the plugin passes its own live struct.
    let args = unsafe { &mut *args };
    let outcome = shield(|| {
        // SAFETY: holds because the store outlives the client that calls.
        let store = unsafe { &*args.user_arg.cast::<Store>() };
        // SAFETY: holds because the key has that length.
        let key = unsafe { list(args.key.cast::<u8>(), args.key_size) };
        let timeout = Duration::from_millis(u64::try_from(args.timeout_in_ms).unwrap_or(0));
        store.0.get(key, timeout)
    });
    match outcome.unwrap_or_else(|| Err("the key-value store panicked".into())) {
        Ok(value) => {
            args.value = lend(&value);
            args.value_size = value.len();
            args.value_deleter_callback = Some(free);
            std::ptr::null_mut()
        }
        // SAFETY: holds because that is the plugin's own function.
        Err(words) => unsafe { fail(args.callback_error, NOT_FOUND, &words) },
    }
}

unsafe extern "C" fn try_get(args: *mut KeyValueTryGetArgs) -> *mut PJRT_Error {
    // SAFETY: holds because the plugin passes its own live struct.
    let args = unsafe { &mut *args };
    let outcome = shield(|| {
        // SAFETY: holds because the store outlives the client that calls.
        let store = unsafe { &*args.user_arg.cast::<Store>() };
        // SAFETY: holds because the key has that length.
        let key = unsafe { list(args.key.cast::<u8>(), args.key_size) };
        store.0.try_get(key)
    });
    match outcome.unwrap_or_else(|| Err("the key-value store panicked".into())) {
        Ok(Some(value)) => {
            args.value = lend(&value);
            args.value_size = value.len();
            args.value_deleter_callback = Some(free);
            std::ptr::null_mut()
        }
        // SAFETY: holds because that is the plugin's own function.
        Ok(None) => unsafe { fail(args.callback_error, NOT_FOUND, "the key has no value yet") },
        // SAFETY: holds because that is the plugin's own function.
        Err(words) => unsafe { fail(args.callback_error, UNKNOWN, &words) },
    }
}

unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: holds because the plugin passes its own live struct.
    let args = unsafe { &mut *args };
    let outcome = shield(|| {
        // SAFETY: holds because the store outlives the client that calls.
        let store = unsafe { &*args.user_arg.cast::<Store>() };
        // SAFETY: holds because the key has that length.
        let key = unsafe { list(args.key.cast::<u8>(), args.key_size) };
        // SAFETY: holds because the value has that length.
        let value = unsafe { list(args.value.cast::<u8>(), args.value_size) };
        store.0.put(key, value)
    });
    match outcome.unwrap_or_else(|| Err("the key-value store panicked".into())) {
        Ok(()) => std::ptr::null_mut(),
        // SAFETY: holds because that is the plugin's own function.
        Err(words) => unsafe { fail(args.callback_error, UNKNOWN, &words) },
    }
}
