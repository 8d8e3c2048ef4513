//! Errors of PJRT calls, and counters of failures that no caller can receive.
#![allow(
    clippy::disallowed_types,
    reason = "the counters are fuseline_sync's atomics; clippy names the std types behind the re-export"
)]

use std::fmt;
use std::sync::LazyLock;

use fuseline_fusion::Printable;
use fuseline_sync::atomic::{AtomicU64, Ordering};

/// Canonical status codes (those of abseil), as plugins report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "abseil's documentation of the canonical codes applies word for word")]
pub enum Code {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

/// Every code with its number in the C API and its name, in numeric order.
const CODES: [(Code, u32, &str); 16] = [
    (Code::Cancelled, 1, "CANCELLED"),
    (Code::Unknown, 2, "UNKNOWN"),
    (Code::InvalidArgument, 3, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, 4, "DEADLINE_EXCEEDED"),
    (Code::NotFound, 5, "NOT_FOUND"),
    (Code::AlreadyExists, 6, "ALREADY_EXISTS"),
    (Code::PermissionDenied, 7, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, 8, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, 9, "FAILED_PRECONDITION"),
    (Code::Aborted, 10, "ABORTED"),
    (Code::OutOfRange, 11, "OUT_OF_RANGE"),
    (Code::Unimplemented, 12, "UNIMPLEMENTED"),
    (Code::Internal, 13, "INTERNAL"),
    (Code::Unavailable, 14, "UNAVAILABLE"),
    (Code::DataLoss, 15, "DATA_LOSS"),
    (Code::Unauthenticated, 16, "UNAUTHENTICATED"),
];

/// Messages of a compiler that gets no memory for its code. The first may have another reason; then
/// another attempt reports it again.
const WITHOUT_MEMORY: [&str; 3] =
    ["Failed to materialize symbols", "Unable to allocate section memory", "Cannot allocate memory"];

impl Code {
    /// The code with this number. [`Code::Unknown`] for 0, because an error must not say OK, and
    /// for newer numbers.
    #[must_use]
    pub fn from_number(number: u32) -> Code {
        CODES.iter().find(|row| row.1 == number).map_or(Code::Unknown, |row| row.0)
    }

    /// The number in the C API, 1 to 16.
    #[must_use]
    pub fn number(self) -> u32 {
        self.row().1
    }

    fn row(self) -> &'static (Code, u32, &'static str) {
        &CODES[self as usize]
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().2)
    }
}

/// A failed PJRT call: function, code and message.
///
/// One pointer wide. The plugin's own error object was read and destroyed before this value was
/// created, so it can be kept, cloned and sent anywhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Repr>);

#[derive(Clone, PartialEq, Eq)]
struct Repr {
    code: Code,
    function: &'static str,
    message: String,
    from_plugin: bool,
}

impl Error {
    /// An error of the plugin, with its message.
    #[cold]
    pub(super) fn plugin(code: Code, function: &'static str, message: String) -> Error {
        Error(Box::new(Repr { code, function, message, from_plugin: true }))
    }

    /// An error of this layer, found before (or instead of) calling `function`.
    #[cold]
    pub(super) fn layer(code: Code, function: &'static str, message: impl Into<String>) -> Error {
        Error(Box::new(Repr { code, function, message: message.into(), from_plugin: false }))
    }

    /// An argument that this layer rejects.
    #[cold]
    pub(super) fn invalid(function: &'static str, message: impl Into<String>) -> Error {
        Error::layer(Code::InvalidArgument, function, message)
    }

    /// The status code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The message, without code and function.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Name of the PJRT function that failed or was not called (`PJRT_Client_Compile`).
    #[must_use]
    pub fn function(&self) -> &'static str {
        self.0.function
    }

    /// True for an error of the plugin, false if this layer rejected the call.
    #[must_use]
    pub fn is_from_plugin(&self) -> bool {
        self.0.from_plugin
    }

    /// Whether device or host memory (or another quota) ran out. Freeing some and trying again may
    /// work.
    #[must_use]
    pub fn is_resource_exhausted(&self) -> bool {
        // XLA's CPU backend reports other codes when the system gives its compiler no memory, or no
        // mapping of it.
        let says_so = |words: &&str| self.message().contains(*words);
        self.code() == Code::ResourceExhausted || self.is_from_plugin() && WITHOUT_MEMORY.iter().any(says_so)
    }

    /// Whether the plugin lacks the function, or does not support this use of it.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Code::Unimplemented
    }

    /// Whether the call was wrong, whatever the state of the device.
    #[must_use]
    pub fn is_invalid_argument(&self) -> bool {
        self.code() == Code::InvalidArgument
    }

    /// Whether the object is in the wrong state, such as a deleted buffer.
    #[must_use]
    pub fn is_failed_precondition(&self) -> bool {
        self.code() == Code::FailedPrecondition
    }

    /// Whether the work was canceled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.code(), Code::Cancelled | Code::Aborted)
    }

    /// Whether a time limit of the plugin passed.
    #[must_use]
    pub fn is_deadline_exceeded(&self) -> bool {
        self.code() == Code::DeadlineExceeded
    }

    /// Whether the service or device is temporarily unavailable.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.code() == Code::Unavailable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.function(), self.code(), Printable(self.message()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

/// Failures that no caller can receive: in `Drop` and in callbacks. Process-wide, monotonic.
///
/// All three stay at zero in a healthy process; tests assert that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Failed calls that destroy or release an object.
    pub destroy_errors: u64,
    /// Panics of user callbacks, or of destructors run in one, that were caught before they reached
    /// the plugin.
    pub callback_panics: u64,
    /// Objects leaked on purpose, because freeing them could not be shown to be safe, and shutdowns
    /// that took too long.
    pub leaks: u64,
}

// `LazyLock`: loom's atomics cannot be created in a constant.
static DESTROY_ERRORS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(0));
static CALLBACK_PANICS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(0));
static LEAKS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(0));

/// Reads the counters (relaxed: each is exact, their combination is not a snapshot).
#[must_use]
pub fn counters() -> Counters {
    Counters {
        destroy_errors: DESTROY_ERRORS.load(Ordering::Relaxed),
        callback_panics: CALLBACK_PANICS.load(Ordering::Relaxed),
        leaks: LEAKS.load(Ordering::Relaxed),
    }
}

/// Counts a failed destroy call. A `Drop` can do nothing else with its error.
pub(super) fn count_destroy(outcome: Result<(), Error>) {
    if outcome.is_err() {
        DESTROY_ERRORS.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn count_panic() {
    CALLBACK_PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Leaks `value` and counts it.
pub(super) fn leak<T>(value: T) {
    LEAKS.fetch_add(1, Ordering::Relaxed);
    std::mem::forget(value);
}

/// `None` if the plugin does not implement the call.
pub(super) fn optional<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_unimplemented() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_in_order_of_their_numbers() {
        for (index, row) in CODES.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            assert_eq!(row.1 as usize, index + 1);
            assert_eq!(Code::from_number(row.1), row.0);
        }
        assert_eq!(Code::from_number(0), Code::Unknown);
        assert_eq!(Code::from_number(17), Code::Unknown);
    }

    #[test]
    fn an_error_is_one_pointer_and_names_the_function() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
        let error = Error::invalid("PJRT_Client_Compile", "no module");
        assert_eq!(error.to_string(), "PJRT_Client_Compile: INVALID_ARGUMENT: no module");
        assert!(!error.is_from_plugin());
    }
}
