//! Errors of the library.
//!
//! An [`Error`] is written for the person who made the call: what happened, at which op, where that
//! was recorded, and what to do. The precise kind is private. Accessors answer the questions on
//! which callers decide.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fuseline_fusion::handler::TargetError;
use fuseline_fusion::program::ProgramError;
use fuseline_fusion::text::TextError;
use fuseline_fusion::{LiteralError, OpCode, OpError, Printable, ShapeError, Site};
use fuseline_sync::fork::is_forked;

use crate::region::{RegionRef, Wait};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The stage in the life of an op at which a failure occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Setting up: configuration, plugin, device.
    Setup,
    /// Recording: operand types, shapes, attributes.
    Record,
    /// Compiling a region.
    Compile,
    /// Running a region on the device.
    Execute,
    /// Moving data between host and device.
    Transfer,
    /// Waiting for a result.
    Wait,
}

/// Who has to act on a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The program: it asked for something impossible.
    User,
    /// The plugin or the device.
    Device,
    /// The machine: a missing file, a missing plugin.
    Environment,
    /// This library: please report it.
    Engine,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Setup => "setting up",
            Stage::Record => "recording",
            Stage::Compile => "compiling",
            Stage::Execute => "executing",
            Stage::Transfer => "transferring",
            Stage::Wait => "waiting",
        })
    }
}

/// A failure on the device, with its address. Shared by every value that it poisons.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The stage that failed.
    pub stage: Stage,
    /// The op that failed, or the last one of the region if that is unknown.
    pub op: Option<OpCode>,
    /// Where the op was called.
    pub site: Site,
    /// The region of the op.
    pub region: Option<RegionRef>,
    /// What happened.
    pub message: String,
    /// Whether memory or another resource ran out.
    pub resource_exhausted: bool,
    /// The error of the plugin's call, if one failed.
    pub plugin: Option<fuseline_pjrt::Error>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some(op) => write!(f, "{op}, recorded at {}, failed while {}", self.site, self.stage)?,
            None => write!(f, "failed while {}", self.stage)?,
        }
        if let Some(region) = &self.region {
            write!(f, " in {region}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// What a region was doing when a wait timed out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Activity {
    Waits(Wait),
    Executed,
    Copied,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activity::Waits(Wait::Compile) => "is compiling",
            Activity::Waits(Wait::Interpreter) => "is running in the interpreter",
            Activity::Waits(Wait::Input) => "waits for an input from another stream",
            Activity::Waits(Wait::InFlight) => "waits for earlier regions in flight on the device",
            Activity::Executed => "is executing on the device",
            Activity::Copied => "has a result that is being computed or copied to the host",
        })
    }
}

/// The state of a stream when a wait timed out.
#[derive(Clone, Debug)]
pub struct StallReport {
    pub(crate) doing: Activity,
    pub(crate) region: RegionRef,
    /// The op that computes the value, or the region's last one.
    pub(crate) op: Option<OpCode>,
    pub(crate) site: Site,
    /// Time since then.
    pub(crate) since: Duration,
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StallReport { doing, region, op, site, since } = self;
        write!(f, "{region}, recorded up to ")?;
        if let Some(op) = op {
            write!(f, "{op} at ")?;
        }
        write!(f, "{site}, {doing}, without progress for {}", Took(*since))
    }
}

#[derive(Debug)]
enum ErrorKind {
    Op { error: OpError, site: Site },
    Literal(LiteralError),
    Program(ProgramError),
    Text(TextError),
    Plugin(fuseline_pjrt::OpenError),
    Setup { message: String, plugin: Option<fuseline_pjrt::Error> },
    NoPlugin(String),
    Device(Arc<Failure>),
    NonFinite { failure: Failure, nans: usize, infinities: usize },
    Check { op: &'static str, site: Site, what: String, is_late: bool },
    Misuse { message: String, site: Site },
    Timeout { waited: Duration, what: String, stand: Option<StallReport> },
    Abandoned,
    Forked { site: Site },
    Bug { message: String, place: &'static str },
}

/// Why a call failed.
pub struct Error(Box<ErrorKind>);

impl Error {
    /// The op table refuses a call.
    #[cold]
    #[doc(hidden)]
    pub fn op(error: OpError, site: Site) -> Error {
        Error(Box::new(ErrorKind::Op { error, site }))
    }

    /// A value failed.
    #[cold]
    #[doc(hidden)]
    pub fn device(failure: Arc<Failure>) -> Error {
        Error(Box::new(ErrorKind::Device(failure)))
    }

    #[cold]
    pub(crate) fn non_finite(failure: Failure, nans: usize, infinities: usize) -> Error {
        Error(Box::new(ErrorKind::NonFinite { failure, nans, infinities }))
    }

    /// With `is_late`, later ops have already used the results of the op.
    #[cold]
    #[doc(hidden)]
    pub fn failed_check(op: &'static str, site: Site, what: String, is_late: bool) -> Error {
        Error(Box::new(ErrorKind::Check { op, site, what, is_late }))
    }

    /// A call is invalid.
    #[cold]
    #[doc(hidden)]
    pub fn misuse(message: impl Into<String>, site: Site) -> Error {
        Error(Box::new(ErrorKind::Misuse { message: message.into(), site }))
    }

    /// The engine cannot be built as requested.
    #[cold]
    #[doc(hidden)]
    pub fn setup(message: impl Into<String>) -> Error {
        Error(Box::new(ErrorKind::Setup { message: message.into(), plugin: None }))
    }

    #[cold]
    pub(crate) fn cache_only(why: &str) -> Error {
        Error::setup(format!(
            "only executables from the disk cache may run (EngineConfig::cache_only or \
             FUSELINE_CACHE=only), but the disk cache is off: {why}"
        ))
    }

    /// No plugin is usable.
    #[cold]
    #[doc(hidden)]
    pub fn no_plugin(what_was_tried: impl Into<String>) -> Error {
        Error(Box::new(ErrorKind::NoPlugin(what_was_tried.into())))
    }

    /// A wait took too long.
    #[cold]
    #[doc(hidden)]
    pub fn timeout(waited: Duration, what: impl Into<String>, stand: Option<StallReport>) -> Error {
        Error(Box::new(ErrorKind::Timeout { waited, what: what.into(), stand }))
    }

    /// A value will never be computed.
    #[cold]
    #[doc(hidden)]
    pub fn abandoned() -> Error {
        Error(Box::new(ErrorKind::Abandoned))
    }

    /// Returns an error if this process is a child that cannot use the library
    /// ([`fuseline_sync::fork`]).
    #[inline]
    #[doc(hidden)]
    pub fn unless_forked(site: &Site) -> Result<()> {
        if is_forked() { Err(Error::forked(site.clone())) } else { Ok(()) }
    }

    /// The process is a fork of the one that made the engine.
    #[cold]
    #[doc(hidden)]
    pub fn forked(site: Site) -> Error {
        Error(Box::new(ErrorKind::Forked { site }))
    }

    /// A state that cannot happen.
    #[cold]
    #[doc(hidden)]
    pub fn bug(message: impl Into<String>, place: &'static str) -> Error {
        Error(Box::new(ErrorKind::Bug { message: message.into(), place }))
    }

    fn failure(&self) -> Option<&Failure> {
        match &*self.0 {
            ErrorKind::Device(failure) => Some(failure),
            ErrorKind::NonFinite { failure, .. } => Some(failure),
            _ => None,
        }
    }

    fn stand(&self) -> Option<&StallReport> {
        match &*self.0 {
            ErrorKind::Timeout { stand, .. } => stand.as_ref(),
            _ => None,
        }
    }

    /// The stage at which the error occurred.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match &*self.0 {
            ErrorKind::Op { .. }
            | ErrorKind::Literal(_)
            | ErrorKind::Misuse { .. }
            | ErrorKind::Program(_)
            | ErrorKind::Text(_) => Stage::Record,
            ErrorKind::Plugin(_)
            | ErrorKind::Setup { .. }
            | ErrorKind::NoPlugin(_)
            | ErrorKind::Forked { .. } => Stage::Setup,
            ErrorKind::Device(failure) => failure.stage,
            ErrorKind::NonFinite { .. } | ErrorKind::Check { .. } => Stage::Execute,
            ErrorKind::Timeout { .. } | ErrorKind::Abandoned | ErrorKind::Bug { .. } => Stage::Wait,
        }
    }

    /// Who has to act on the error.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match &*self.0 {
            ErrorKind::Op { .. }
            | ErrorKind::Literal(_)
            | ErrorKind::Misuse { .. }
            | ErrorKind::Program(_)
            | ErrorKind::Text(_) => Origin::User,
            ErrorKind::NonFinite { .. } | ErrorKind::Check { .. } => Origin::User,
            ErrorKind::Plugin(_) | ErrorKind::NoPlugin(_) | ErrorKind::Setup { .. } => Origin::Environment,
            ErrorKind::Device(_) | ErrorKind::Timeout { .. } => Origin::Device,
            ErrorKind::Abandoned | ErrorKind::Forked { .. } => Origin::User,
            ErrorKind::Bug { .. } => Origin::Engine,
        }
    }

    /// The op concerned, if any.
    #[must_use]
    pub fn op_name(&self) -> Option<&'static str> {
        match &*self.0 {
            ErrorKind::Op { error, .. } => Some(error.op()),
            ErrorKind::Timeout { stand, .. } => stand.as_ref()?.op.map(OpCode::name),
            ErrorKind::Check { op, .. } => Some(op),
            _ => self.failure()?.op.map(OpCode::name),
        }
    }

    /// The rule that an op call broke, if that is the error.
    #[must_use]
    pub fn op_error(&self) -> Option<&OpError> {
        match &*self.0 {
            ErrorKind::Op { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Call site of the op concerned.
    #[must_use]
    pub fn site(&self) -> Option<&Site> {
        match &*self.0 {
            ErrorKind::Op { site, .. }
            | ErrorKind::Misuse { site, .. }
            | ErrorKind::Check { site, .. }
            | ErrorKind::Forked { site } => Some(site),
            ErrorKind::Timeout { stand, .. } => stand.as_ref().map(|stand| &stand.site),
            _ => self.failure().map(|failure| &failure.site),
        }
    }

    /// The region concerned, if the op was in one. For a timeout, the region that it was waiting
    /// for at the end.
    #[must_use]
    pub fn region(&self) -> Option<&RegionRef> {
        self.stand().map(|stand| &stand.region).or_else(|| self.failure()?.region.as_ref())
    }

    /// Whether a deadline passed. The value may still become available.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(*self.0, ErrorKind::Timeout { .. })
    }

    /// Whether memory ran out on the device or on the host.
    #[must_use]
    pub fn is_resource_exhausted(&self) -> bool {
        match &*self.0 {
            ErrorKind::Setup { plugin, .. } => {
                plugin.as_ref().is_some_and(fuseline_pjrt::Error::is_resource_exhausted)
            }
            _ => self.failure().is_some_and(|failure| failure.resource_exhausted),
        }
    }

    /// Whether the value has NaN or infinite elements, which Debug mode was configured to reject.
    #[must_use]
    pub fn is_non_finite(&self) -> bool {
        matches!(*self.0, ErrorKind::NonFinite { .. })
    }

    /// Whether an index was out of range, or another condition on data did not hold
    /// (`EngineConfig::check_indices`).
    #[must_use]
    pub fn is_failed_check(&self) -> bool {
        matches!(*self.0, ErrorKind::Check { .. })
    }

    /// Whether the value was abandoned: its stream or engine is gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(*self.0, ErrorKind::Abandoned)
    }

    /// Whether this process was forked from one that had an engine, whose threads it does not have.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        matches!(*self.0, ErrorKind::Forked { .. })
    }

    /// Whether a retry may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_timeout() || self.is_resource_exhausted()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(DisplayError(&self.0)).fmt(f)
    }
}

/// An error as text. Control characters from plugins, files and programs are escaped.
struct DisplayError<'a>(&'a ErrorKind);

impl fmt::Display for DisplayError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ErrorKind::Op { error, site } => match site {
                Site::Unknown => error.fmt(f),
                site => write!(f, "{error} (at {site})"),
            },
            ErrorKind::Literal(error) => error.fmt(f),
            ErrorKind::Program(error) => error.fmt(f),
            ErrorKind::Text(error) => error.fmt(f),
            ErrorKind::Plugin(error) => error.fmt(f),
            ErrorKind::Setup { message, .. } => f.write_str(message),
            ErrorKind::NoPlugin(tried) => write!(
                f,
                "no PJRT plugin was found: {tried}; set FUSELINE_PJRT_PLUGIN to the path of one, or install the Python \
                 package xla-cpu-pjrt"
            ),
            ErrorKind::Device(failure) => failure.fmt(f),
            ErrorKind::NonFinite { failure, nans, infinities } => write!(
                f,
                "{}, recorded at {}, produced {nans} NaN and {infinities} infinite elements: {}",
                failure.op.map_or("an op", OpCode::name),
                failure.site,
                failure.message
            ),
            ErrorKind::Check { op, site, what, is_late } => {
                write!(f, "{op}, recorded at {site}: {what}")?;
                match is_late {
                    true => {
                        f.write_str(" (found at a later read: values computed from its result are wrong too)")
                    }
                    false => Ok(()),
                }
            }
            ErrorKind::Misuse { message, site } => match site {
                Site::Unknown => f.write_str(message),
                site => write!(f, "{message} (at {site})"),
            },
            ErrorKind::Timeout { waited, what, stand } => {
                write!(f, "timed out after {} waiting for {what}", Took(*waited))?;
                if let Some(stand) = stand {
                    write!(f, ": {stand}")?;
                }
                f.write_str(
                    "; it may still arrive: wait again, or drop it; if the device hangs, \
                     everything that depends on it hangs too",
                )
            }
            ErrorKind::Abandoned => f.write_str(
                "the value was abandoned: its stream and engine were dropped before it was computed",
            ),
            ErrorKind::Forked { site } => {
                f.write_str(
                    "forked: this process is a copy of one that had an engine, without the \
                     engine's threads; create the first engine after the fork, or start a new \
                     program instead (in Python, use the start method \"spawn\")",
                )?;
                if *site == Site::Unknown { Ok(()) } else { write!(f, " (at {site})") }
            }
            ErrorKind::Bug { message, place } => {
                write!(f, "bug in fuseline at {place}: {message}; please report it")
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {
    /// The error of the layer below: of the op table, of a file's format, or of the PJRT call that
    /// failed ([`fuseline_pjrt::Error`], which has its status code). The message of this error
    /// includes it.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            ErrorKind::Op { error, .. } => Some(error),
            ErrorKind::Literal(error) => Some(error),
            ErrorKind::Program(error) => Some(error),
            ErrorKind::Text(error) => Some(error),
            ErrorKind::Plugin(error) => Some(error),
            ErrorKind::Setup { plugin, .. } => plugin.as_ref().map(|error| error as _),
            ErrorKind::Device(failure) => failure.plugin.as_ref().map(|error| error as _),
            ErrorKind::NonFinite { failure, .. } => failure.plugin.as_ref().map(|error| error as _),
            ErrorKind::NoPlugin(_)
            | ErrorKind::Check { .. }
            | ErrorKind::Misuse { .. }
            | ErrorKind::Timeout { .. }
            | ErrorKind::Abandoned
            | ErrorKind::Forked { .. }
            | ErrorKind::Bug { .. } => None,
        }
    }
}

impl From<LiteralError> for Error {
    fn from(error: LiteralError) -> Error {
        Error(Box::new(ErrorKind::Literal(error)))
    }
}

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Error {
        Error::from(LiteralError::Shape(error))
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error(Box::new(ErrorKind::Program(error)))
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Error {
        Error(Box::new(ErrorKind::Text(error)))
    }
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Error {
        Error::misuse(format!("handler: {error}"), Site::Unknown)
    }
}

impl From<fuseline_pjrt::OpenError> for Error {
    fn from(error: fuseline_pjrt::OpenError) -> Error {
        Error(Box::new(ErrorKind::Plugin(error)))
    }
}

impl From<fuseline_pjrt::Error> for Error {
    fn from(error: fuseline_pjrt::Error) -> Error {
        Error(Box::new(ErrorKind::Setup { message: error.to_string(), plugin: Some(error) }))
    }
}

/// Creates the error for a state that cannot happen, with its place in the source. Panics in builds
/// with debug assertions, where tests see it. In other builds a failed value serves a user better
/// than an abort.
#[doc(hidden)]
#[macro_export]
macro_rules! bug {
    ($($message:tt)*) => {{
        let message = format!($($message)*);
        if cfg!(debug_assertions) {
            panic!("bug: {message}");
        }
        $crate::Error::bug(message, concat!(file!(), ":", line!()))
    }};
}
#[doc(hidden)]
pub use bug;

/// A duration with three digits, for people.
#[derive(Clone, Copy)]
pub(crate) struct Took(pub(crate) Duration);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (value, unit) = match seconds {
            s if s >= 1.0 => (s, "s"),
            s if s >= 1e-3 => (s * 1e3, "ms"),
            s => (s * 1e6, "µs"),
        };
        match value {
            v if v >= 100.0 => write!(f, "{v:.0} {unit}"),
            v if v >= 10.0 => write!(f, "{v:.1} {unit}"),
            v => write!(f, "{v:.2} {unit}"),
        }
    }
}
