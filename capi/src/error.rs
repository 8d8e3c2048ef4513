//! The result of a call: nothing, or an error with everything that is known about it.
//!
//! Invariants:
//! - CAPI-1. No panic leaves this library: [`guard`] wraps every function and converts panics to
//!   errors.
//! - CAPI-2. An error is complete when it is returned. Reading it never calls the engine, so it
//!   works on any thread at any time.

use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use engine::embed::ErrorReport;
use engine::fusion::Printable;
use engine::{Origin, Stage};

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

/// The kind of an error, for programs that react to it. People read the message.
pub type fuseline_code = u32;

/// No error.
pub const FUSELINE_OK: fuseline_code = 0;
/// The call is invalid: a null pointer, an unknown id, an unreadable text, or a call that waits
/// inside a callback.
pub const FUSELINE_INVALID: fuseline_code = 1;
/// The op table refuses the call: number, types or shapes of operands, attributes.
pub const FUSELINE_BAD_OP: fuseline_code = 2;
/// Setup failed: no plugin, a plugin that cannot be used, or a setting that this machine cannot
/// have.
pub const FUSELINE_SETUP: fuseline_code = 3;
/// The device or the plugin failed: in a compile, an execution, a transfer.
pub const FUSELINE_DEVICE: fuseline_code = 4;
/// Memory ran out, on the device or on the host.
pub const FUSELINE_OUT_OF_MEMORY: fuseline_code = 5;
/// The timeout of the call expired. What it waited for may still happen.
pub const FUSELINE_TIMEOUT: fuseline_code = 6;
/// A value holds NaN or infinities that a Debug stream was asked to refuse.
pub const FUSELINE_NON_FINITE: fuseline_code = 7;
/// The value was abandoned: its stream or engine was closed.
pub const FUSELINE_ABANDONED: fuseline_code = 8;
/// This process was forked from one with an engine, whose threads do not exist here.
pub const FUSELINE_FORKED: fuseline_code = 9;
/// A bug in this library: please report it.
pub const FUSELINE_INTERNAL: fuseline_code = 10;

/// The stage at which an error occurred.
pub type fuseline_stage = u32;

/// Setting up: configuration, plugin, device.
pub const FUSELINE_STAGE_SETUP: fuseline_stage = 0;
/// Recording: operand types, shapes, attributes, ids.
pub const FUSELINE_STAGE_RECORD: fuseline_stage = 1;
/// Compiling a region.
pub const FUSELINE_STAGE_COMPILE: fuseline_stage = 2;
/// Running a region on the device.
pub const FUSELINE_STAGE_EXECUTE: fuseline_stage = 3;
/// Moving data between host and device.
pub const FUSELINE_STAGE_TRANSFER: fuseline_stage = 4;
/// Waiting for a result.
pub const FUSELINE_STAGE_WAIT: fuseline_stage = 5;

/// An error. Every call that can fail returns one, or null on success. The caller owns it.
pub struct fuseline_error {
    code: fuseline_code,
    stage: fuseline_stage,
    is_retryable: bool,
    message: CString,
    op: Option<CString>,
    site: Option<CString>,
    region: Option<CString>,
}

/// The contents of an error. The texts live as long as the error.
#[repr(C)]
pub struct fuseline_error_info {
    /// The kind of error.
    pub code: fuseline_code,
    /// The stage at which it occurred.
    pub stage: fuseline_stage,
    /// Nonzero if a retry may succeed.
    pub retryable: u32,
    /// The message for the user: everything in one sentence.
    pub message: *const c_char,
    /// Name of the op concerned, or null.
    pub op: *const c_char,
    /// The call site of that op, or null.
    pub site: *const c_char,
    /// A description of the region concerned, or null.
    pub region: *const c_char,
}

/// The internal form of an error.
#[derive(Debug)]
pub(crate) enum Fault {
    Engine(engine::Error),
    Other { code: fuseline_code, message: String },
}

impl Fault {
    pub(crate) fn invalid(message: impl Into<String>) -> Fault {
        Fault::Other { code: FUSELINE_INVALID, message: message.into() }
    }

    pub(crate) fn bad_op(message: impl Into<String>) -> Fault {
        Fault::Other { code: FUSELINE_BAD_OP, message: message.into() }
    }
}

impl From<engine::Error> for Fault {
    fn from(error: engine::Error) -> Fault {
        Fault::Engine(error)
    }
}

/// A text for C. It has no zero byte, which would cut it.
pub(crate) fn c_text(text: impl Into<String>) -> CString {
    let text = text.into().replace('\0', "\u{2400}");
    CString::new(text).unwrap_or_default()
}

fn stage(stage: Stage) -> fuseline_stage {
    match stage {
        Stage::Setup => FUSELINE_STAGE_SETUP,
        Stage::Compile => FUSELINE_STAGE_COMPILE,
        Stage::Execute => FUSELINE_STAGE_EXECUTE,
        Stage::Transfer => FUSELINE_STAGE_TRANSFER,
        Stage::Wait => FUSELINE_STAGE_WAIT,
        _ => FUSELINE_STAGE_RECORD,
    }
}

fn code(error: &engine::Error) -> fuseline_code {
    if error.is_forked() {
        FUSELINE_FORKED
    } else if error.is_timeout() {
        FUSELINE_TIMEOUT
    } else if error.is_resource_exhausted() {
        FUSELINE_OUT_OF_MEMORY
    } else if error.is_non_finite() {
        FUSELINE_NON_FINITE
    } else if error.is_abandoned() {
        FUSELINE_ABANDONED
    } else if error.op_error().is_some() {
        FUSELINE_BAD_OP
    } else {
        match error.origin() {
            Origin::User => FUSELINE_INVALID,
            Origin::Device => FUSELINE_DEVICE,
            Origin::Environment => FUSELINE_SETUP,
            _ => FUSELINE_INTERNAL,
        }
    }
}

impl fuseline_error {
    fn other(code: fuseline_code, message: String) -> fuseline_error {
        let stage = FUSELINE_STAGE_RECORD;
        let (op, site, region) = (None, None, None);
        fuseline_error {
            code,
            stage,
            is_retryable: false,
            message: c_text(Printable(message).to_string()),
            op,
            site,
            region,
        }
    }

    pub(crate) fn text(&self) -> String {
        self.message.to_string_lossy().into_owned()
    }

    /// An error that was reported as data, whose kind follows from its origin alone.
    pub(crate) fn of_report(report: ErrorReport) -> fuseline_error {
        let code = match report.origin {
            Origin::User => FUSELINE_INVALID,
            Origin::Device if report.retryable => FUSELINE_OUT_OF_MEMORY,
            Origin::Device => FUSELINE_DEVICE,
            Origin::Environment => FUSELINE_SETUP,
            _ => FUSELINE_INTERNAL,
        };
        fuseline_error {
            code,
            stage: stage(report.stage),
            is_retryable: report.retryable,
            message: c_text(report.message),
            op: report.op.map(c_text),
            site: report.site.map(c_text),
            region: report.region.map(|region| c_text(region.to_string())),
        }
    }
}

impl From<&engine::Error> for fuseline_error {
    fn from(error: &engine::Error) -> fuseline_error {
        fuseline_error { code: code(error), ..fuseline_error::of_report(ErrorReport::from(error)) }
    }
}

impl From<Fault> for fuseline_error {
    fn from(fault: Fault) -> fuseline_error {
        match fault {
            Fault::Engine(error) => fuseline_error::from(&error),
            Fault::Other { code, message } => fuseline_error::other(code, message),
        }
    }
}

/// The body of every function: runs it and converts its result for C (CAPI-1).
pub(crate) fn guard(name: &'static str, call: impl FnOnce() -> Result<()>) -> *mut fuseline_error {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return ptr::null_mut(),
        Ok(Err(fault)) => {
            let fault = match fault {
                Fault::Other { code, message } => {
                    Fault::Other { code, message: format!("{name}: {message}") }
                }
                fault => fault,
            };
            fuseline_error::from(fault)
        }
        Err(panic) => {
            fuseline_error::other(FUSELINE_INTERNAL, format!("bug: {name} panicked: {}", words(&*panic)))
        }
    };
    Box::into_raw(Box::new(error))
}

/// Like [`guard`], for functions that cannot fail. A panic returns `otherwise`.
pub(crate) fn guarded<R>(otherwise: R, call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message")
}

/// The kind of an error; FUSELINE_OK for null.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_error_code(error: Option<&fuseline_error>) -> fuseline_code {
    error.map_or(FUSELINE_OK, |error| error.code)
}

/// The message for the user, in one sentence; empty for null. It lives as long as the error.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_error_message(error: Option<&fuseline_error>) -> *const c_char {
    error.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// All contents of an error.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_error_get(error: Option<&fuseline_error>) -> fuseline_error_info {
    let null = |text: Option<&CString>| text.map_or(ptr::null(), |text| text.as_ptr());
    fuseline_error_info {
        code: fuseline_error_code(error),
        stage: error.map_or(FUSELINE_STAGE_RECORD, |error| error.stage),
        retryable: u32::from(error.is_some_and(|error| error.is_retryable)),
        message: fuseline_error_message(error),
        op: null(error.and_then(|error| error.op.as_ref())),
        site: null(error.and_then(|error| error.site.as_ref())),
        region: null(error.and_then(|error| error.region.as_ref())),
    }
}

/// Frees an error; null is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_error_free(error: Option<Box<fuseline_error>>) {
    guarded((), || drop(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_goes_no_further() {
        for panics in [|| panic!("a word"), || panic!("{}", "two words")] as [fn(); 2] {
            let error = guard("fuseline_test", || {
                panics();
                Ok(())
            });
            // SAFETY: `guard` has just created it and nothing else owns it.
            let error = unsafe { Box::from_raw(error) };
            assert_eq!(fuseline_error_code(Some(&error)), FUSELINE_INTERNAL);
            assert!(error.text().starts_with("bug: fuseline_test panicked: "), "{}", error.text());
            assert!(error.text().ends_with("word") || error.text().ends_with("words"));
        }
        assert_eq!(guarded(7, || panic!("not told")), 7);
    }

    #[test]
    fn what_cannot_be_in_a_text_of_c_is_shown() {
        assert_eq!(c_text("a\0b").to_str(), Ok("a\u{2400}b"));
    }
}
