//! Errors as plain data.

use std::cell::RefCell;
use std::fmt;

use crate::error::{Error, Origin, RegionRef, Result, Stage};

/// An [`Error`] as plain data: for a foreign interface, for a log, for a report to another thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// What to show to the user: everything below in one sentence.
    pub message: String,
    /// Where in the life of an op it came up.
    pub stage: Stage,
    /// Who has to act on it.
    pub origin: Origin,
    /// Name of the op concerned, if there is one.
    pub op: Option<String>,
    /// Where that op was recorded.
    pub site: Option<String>,
    /// The region concerned, if it got that far.
    pub region: Option<RegionRef>,
    /// Doing the same again may work.
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

/// The error of the calling thread's latest call of a [`super::Session`] that failed, and forgets
/// it: for interfaces that return codes.
#[must_use]
pub fn take_last_error() -> Option<ErrorReport> {
    LAST.try_with(|last| last.borrow_mut().take()).ok().flatten()
}

/// Remembers an error for [`take_last_error`].
pub(super) fn told<R>(result: Result<R>) -> Result<R> {
    if let Err(error) = &result {
        let report = ErrorReport::from(error);
        let _ = LAST.try_with(|last| *last.borrow_mut() = Some(report));
    }
    result
}
