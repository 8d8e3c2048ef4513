#![doc = include_str!("../README.md")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "the other side of the C API: it trusts the caller's pointers as far as a C plugin does, and uses no model checker"
)]

mod buffer;
mod client;
mod defects;
mod event;
mod executable;
mod functions;
mod plan;
mod points;
mod registry;
mod table;
mod world;

use std::ffi::{CStr, CString, c_char, c_void};

use crate::registry::{KINDS, Kind, die};

/// The symbol that every PJRT plugin exports.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    table::now()
}

/// A text from a test.
unsafe fn words<'a>(text: *const c_char) -> &'a str {
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_else(|_| die("a text of a test's is no UTF-8"))
}

/// Returns null, or the error. Leaks a few bytes each time.
fn told(outcome: Result<(), String>) -> *const c_char {
    let lost = |why: String| CString::new(why).unwrap_or_default().into_raw().cast_const();
    outcome.err().map_or(std::ptr::null(), lost)
}

/// A misspelt name must not count as zero.
fn point(name: &str) -> &'static str {
    points::point(name).unwrap_or_else(|| die(&format!("no function is called {name}"))).name
}

fn kind(name: &str) -> Option<Kind> {
    let kind = KINDS.iter().find(|row| row.1 == name).map(|row| row.0);
    if kind.is_none() && name != "all" {
        die(&format!("no kind of object is called {name}"));
    }
    kind
}

/// Sets the fault plan. Returns null, or the error; then nothing has changed.
///
/// # Safety
/// `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fake_set_plan(text: *const c_char) -> *const c_char {
    told(world::set_plan(unsafe { words(text) }))
}

/// Sets the function table that `GetPjrtApi` returns from now on. Returns null, or the error.
///
/// # Safety
/// `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fake_set_table(text: *const c_char) -> *const c_char {
    told(table::set(unsafe { words(text) }))
}

/// Removes the plan, releases hanging threads, and resets the call counts. Object counts continue.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_fake_reset() {
    world::reset();
}

/// The number of live objects of a kind (`all`: of all kinds).
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fake_live(name: *const c_char) -> u64 {
    let (created, destroyed) = registry::count(kind(unsafe { words(name) }));
    created - destroyed
}

/// The number of objects of a kind that were ever made.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fake_created(name: *const c_char) -> u64 {
    registry::count(kind(unsafe { words(name) })).0
}

/// The number of calls of a function, or of work at a point, since the latest reset.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fake_calls(name: *const c_char) -> u64 {
    world::calls(point(unsafe { words(name) }))
}

/// How many of them triggered a planned fault.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_fake_fired(name: *const c_char) -> u64 {
    world::fired(point(unsafe { words(name) }))
}

/// Releases the threads that hang now.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_fake_release() {
    world::release();
}

/// The number of hanging threads.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_fake_hanging() -> u64 {
    world::hanging()
}

/// The number of running client threads.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_fake_threads() -> u64 {
    event::threads()
}
