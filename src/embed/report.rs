//! Errors as plain data.

use std::cell::RefCell;
use std::fmt;

use fuseline_runtime::{Error, Origin, RegionRef, Result, Stage};

/// An [`Error`] as plain data: for a foreign interface, a log, or another thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// The message for the user: all fields in one sentence.
    pub message: String,
    /// The stage at which the error occurred.
    pub stage: Stage,
    /// Who has to act on the error.
    pub origin: Origin,
    /// Name of the op concerned, if any.
    pub op: Option<String>,
    /// Call site of that op.
    pub site: Option<String>,
    /// The region concerned, if the op was in one.
    pub region: Option<RegionRef>,
    /// Whether a retry may succeed.
    pub retryable: bool,
}

impl From<&Error> for ErrorReport {
    fn from(error: &Error) -> ErrorReport {
        ErrorReport {
            message: error.to_string(),
            stage: error.stage(),
            origin: error.origin(),
            op: error.op_name().map(str::to_owned),
            site: error.site().map(ToString::to_string),
            region: error.region().copied(),
            retryable: error.is_retryable(),
        }
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

fuseline_sync::thread_local! {
    static LAST: RefCell<Option<ErrorReport>> = const { RefCell::new(None) };
}

/// Takes the error of the calling thread's latest failed [`super::Session`] call, for interfaces
/// that return codes.
#[must_use]
pub fn take_last_error() -> Option<ErrorReport> {
    LAST.try_with(|last| last.borrow_mut().take()).ok().flatten()
}

/// Stores an error for [`take_last_error`].
pub(super) fn told<R>(result: Result<R>) -> Result<R> {
    if let Err(error) = &result {
        let report = ErrorReport::from(error);
        let _ = LAST.try_with(|last| *last.borrow_mut() = Some(report));
    }
    result
}
