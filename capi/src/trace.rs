//! Whole graphs: ops recorded into a program, and calls of programs.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use engine::embed::{FunctionHandle, StreamHandle};
use engine::fusion::program::Program;

use crate::error::{Fault, c_text, fuseline_error, guard, guarded};
use crate::raw::{list, put, text};
use crate::record::Places;
use crate::session::{fuseline_session, fuseline_stream, fuseline_value, handles, session};
use crate::site::{fuseline_site, site};
use crate::types::fuseline_type;

/// A function of a session: a program that is called like an op. 0 is none.
pub type fuseline_function = u64;

/// Begins a program. Ops recorded under the returned id are checked and typed, but do not run.
/// Placeholders made under the id are its inputs, in order. Scalars and constants made under it
/// keep their values.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_trace_begin(
    session: Option<&fuseline_session>,
    trace: Option<&mut MaybeUninit<fuseline_stream>>,
) -> *mut fuseline_error {
    guard("fuseline_trace_begin", || {
        let session = self::session(session)?;
        put(trace, "trace", || Ok(session.begin_trace()?.to_raw()))
    })
}

/// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace becomes
/// invalid; the ids of its values still have to be released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_trace_end(
    session: Option<&fuseline_session>,
    trace: fuseline_stream,
    name: *const c_char,
    outputs: *const fuseline_value,
    count: usize,
    function: Option<&mut MaybeUninit<fuseline_function>>,
) -> *mut fuseline_error {
    guard("fuseline_trace_end", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes a text and that many elements, or null (see the header).
        let (name, outputs) = unsafe { (text(name, "name")?, list(outputs, count, "outputs")?) };
        put(function, "function", || {
            Ok(session.end_trace(StreamHandle::from_raw(trace), name, handles(outputs))?.to_raw())
        })
    })
}

/// Makes a function of a program in the program format (JSON).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_function_parse(
    session: Option<&fuseline_session>,
    program: *const c_char,
    function: Option<&mut MaybeUninit<fuseline_function>>,
) -> *mut fuseline_error {
    guard("fuseline_function_parse", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let program = unsafe { text(program, "program") }?;
        let program = Program::parse(program).map_err(|error| Fault::invalid(format!("program: {error}")))?;
        put(function, "function", || Ok(session.register(program)?.to_raw()))
    })
}

/// The program of a function in the program format, to save it, inspect it or run it elsewhere.
/// Free it with fuseline_text_free.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_function_program(
    session: Option<&fuseline_session>,
    function: fuseline_function,
    program: Option<&mut MaybeUninit<*mut c_char>>,
) -> *mut fuseline_error {
    guard("fuseline_function_program", || {
        let session = self::session(session)?;
        put(program, "program", || {
            let program = session.program(FunctionHandle::from_raw(function))?;
            Ok(c_text(program.to_json()).into_raw())
        })
    })
}

/// Records a function's ops on a stream or into a trace. Results are as for fuseline_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_function_call(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    function: fuseline_function,
    operands: *const fuseline_value,
    num_operands: usize,
    site: Option<&fuseline_site>,
    results: *mut fuseline_value,
    types: *mut fuseline_type,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> *mut fuseline_error {
    guard("fuseline_function_call", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes null or that many elements (see the header).
        let operands = unsafe { list(operands, num_operands, "operands") }?;
        // SAFETY: the caller passes null or room for `capacity` elements (see the header).
        let places = unsafe { Places::of(results, types, capacity, count) }?;
        let (stream, function) = (StreamHandle::from_raw(stream), FunctionHandle::from_raw(function));
        let made = session.call(stream, function, handles(operands), self::site(site))?;
        places.fill(session, &made)
    })
}

/// Releases a function's id.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_function_forget(
    session: Option<&fuseline_session>,
    function: fuseline_function,
) -> *mut fuseline_error {
    guard("fuseline_function_forget", || {
        Ok(self::session(session)?.forget(FunctionHandle::from_raw(function))?)
    })
}

/// Frees a text that the caller owns; null is a no-op.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_text_free(text: *mut c_char) {
    guarded((), || {
        if !text.is_null() {
            // SAFETY: the caller guarantees that a function returned it for the caller to free, and
            // that it was not freed before.
            drop(unsafe { std::ffi::CString::from_raw(text) });
        }
    });
}
