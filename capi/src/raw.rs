//! From the pointers of C to what Rust can look at.
//!
//! Everything a caller hands over is looked at here and nowhere else. Obligations are the caller's,
//! and stand once in the header: a pointer that is not null points to what its type says, for as
//! long as the call takes, and a text ends with a zero byte. What can be checked is: null where
//! something must be, texts that are not UTF-8, lengths that no memory has.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::error::{Fault, Result};

/// What must be there.
pub(crate) fn given<T>(value: Option<T>, name: &str) -> Result<T> {
    value.ok_or_else(|| Fault::invalid(format!("{name} is null")))
}

/// Where a result goes.
pub(crate) fn put<T>(
    out: Option<&mut MaybeUninit<T>>,
    name: &str,
    value: impl FnOnce() -> Result<T>,
) -> Result<()> {
    let out = given(out, name)?;
    out.write(value()?);
    Ok(())
}

/// A text that may be left out.
///
/// # Safety
/// Null, or the start of bytes that end with a zero and stay for `'a`.
pub(crate) unsafe fn text_or_none<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: holds because the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|error| Fault::invalid(format!("{name} is not UTF-8: {error}")))
}

/// A text.
///
/// # Safety
/// As [`text_or_none`].
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: holds because the caller vouches for it.
    given(unsafe { text_or_none(text, name) }?, name)
}

/// So many elements; none may be null.
///
/// # Safety
/// `data` is null or the start of `len` elements that stay and do not change for `'a`.
#[inline]
pub(crate) unsafe fn list<'a, T>(data: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(data, len, name)?;
    // SAFETY: holds because the caller vouches for it, and pointer and length are what a slice may
    // have.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Room for so many elements.
///
/// # Safety
/// `data` is null or the start of room for `len` elements that nobody else uses for `'a`.
#[inline]
pub(crate) unsafe fn room<'a, T>(data: *mut T, len: usize, name: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(data.cast_const(), len, name)?;
    // SAFETY: holds because the caller vouches for it, pointer and length are what a slice may
    // have, and elements need not be set.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

#[inline]
fn check<T>(data: *const T, len: usize, name: &str) -> Result<()> {
    if data.is_null() {
        return Err(Fault::invalid(format!("{name} is null, and {len} elements are said to be there")));
    }
    if !data.is_aligned() {
        return Err(Fault::invalid(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    if len.checked_mul(size_of::<T>().max(1)).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Fault::invalid(format!("{name} has {len} elements, more than there is memory")));
    }
    Ok(())
}

/// A time in nanoseconds; all ones is none.
pub(crate) fn timeout(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != u64::MAX).then(|| Duration::from_nanos(nanoseconds))
}

/// Writes as many as there is room for.
pub(crate) fn copy_out<T>(values: impl IntoIterator<Item = T>, room: &mut [MaybeUninit<T>]) {
    for (value, place) in values.into_iter().zip(room) {
        place.write(value);
    }
}
