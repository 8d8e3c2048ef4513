//! Converts pointers from C to Rust references.
//!
//! All data from a caller is read here and nowhere else. The obligations are the caller's, and the
//! header states them once: a pointer that is not null points to what its type says for the
//! duration of the call, and a text ends with a zero byte. This file checks what can be checked:
//! null where a value is required, texts that are not UTF-8, alignment, and sizes that exceed
//! memory.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::error::{Fault, Result};

/// Requires a value.
pub(crate) fn given<T>(value: Option<T>, name: &str) -> Result<T> {
    value.ok_or_else(|| Fault::invalid(format!("{name} is null")))
}

/// Writes a result.
pub(crate) fn put<T>(
    out: Option<&mut MaybeUninit<T>>,
    name: &str,
    value: impl FnOnce() -> Result<T>,
) -> Result<()> {
    let out = given(out, name)?;
    out.write(value()?);
    Ok(())
}

/// An optional text.
///
/// # Safety
/// `text` is null, or the start of bytes that end with a zero and live for `'a`.
pub(crate) unsafe fn text_or_none<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees a zero-terminated text, and it is not null.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|error| Fault::invalid(format!("{name} is not UTF-8: {error}")))
}

/// A required text.
///
/// # Safety
/// As [`text_or_none`].
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: the caller guarantees what [`text_or_none`] requires.
    given(unsafe { text_or_none(text, name) }?, name)
}

/// A slice of `len` elements. Null is an error unless `len` is 0.
///
/// # Safety
/// `data` is null or the start of `len` elements that stay and do not change for `'a`.
#[inline]
pub(crate) unsafe fn list<'a, T>(data: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(data, len, name)?;
    // SAFETY: the caller guarantees the elements. `check` has found pointer and length valid for a
    // slice.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Memory for `len` elements.
///
/// # Safety
/// `data` is null or the start of room for `len` elements that nobody else uses for `'a`.
#[inline]
pub(crate) unsafe fn room<'a, T>(data: *mut T, len: usize, name: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(data.cast_const(), len, name)?;
    // SAFETY: the caller guarantees the memory. `check` has found pointer and length valid for a
    // slice, and the elements need not be initialized.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

#[inline]
fn check<T>(data: *const T, len: usize, name: &str) -> Result<()> {
    if data.is_null() {
        return Err(Fault::invalid(format!("{name} is null, but should have {len} elements")));
    }
    if !data.is_aligned() {
        return Err(Fault::invalid(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    if len.checked_mul(size_of::<T>().max(1)).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Fault::invalid(format!("{name} has {len} elements, more than fit into memory")));
    }
    Ok(())
}

/// A timeout in nanoseconds; all ones means none.
pub(crate) fn timeout(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != u64::MAX).then(|| Duration::from_nanos(nanoseconds))
}

/// Writes as many values as fit.
pub(crate) fn copy_out<T>(values: impl IntoIterator<Item = T>, room: &mut [MaybeUninit<T>]) {
    for (value, place) in values.into_iter().zip(room) {
        place.write(value);
    }
}
