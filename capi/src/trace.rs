//! Whole graphs: ops that are recorded into a program, and programs that are called.

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

/// Begins a program: ops recorded under the id returned are checked and typed as always and not
/// run. Its inputs are the placeholders made under that id, in order; scalars and constants made
/// under it keep their values.
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

/// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace stands
/// for nothing any more; the ids of its values are still to be released.
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
        // SAFETY: holds because the caller vouches for it.
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
        // SAFETY: holds because the caller vouches for it.
        let program = unsafe { text(program, "program") }?;
        let program = Program::parse(program).map_err(|error| Fault::invalid(format!("program: {error}")))?;
        put(function, "function", || Ok(session.register(program)?.to_raw()))
    })
}

/// The program of a function, in the program format, to be saved, looked at or run elsewhere. Free
/// it by fuseline_text_free.
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

/// Records a function's ops on a stream, or into a trace. Results as of fuseline_record.
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
        // SAFETY: holds because the caller vouches for it.
        let operands = unsafe { list(operands, num_operands, "operands") }?;
        // SAFETY: holds because the caller vouches for it.
        let places = unsafe { Places::of(results, types, capacity, count) }?;
        let (stream, function) = (StreamHandle::from_raw(stream), FunctionHandle::from_raw(function));
        let made = session.call(stream, function, handles(operands), self::site(site))?;
        places.fill(session, &made)
    })
}

/// Gives a function's id back.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_function_forget(
    session: Option<&fuseline_session>,
    function: fuseline_function,
) -> *mut fuseline_error {
    guard("fuseline_function_forget", || {
        Ok(self::session(session)?.forget(FunctionHandle::from_raw(function))?)
    })
}

/// Frees a text that a function gave to be freed; null is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_text_free(text: *mut c_char) {
    guarded((), || {
        if !text.is_null() {
            // SAFETY: holds because the caller vouches that a function gave it, and for nobody
            // having freed it.
            drop(unsafe { std::ffi::CString::from_raw(text) });
        }
    });
}
