//! What a call of the library can fail with.
//!
//! An [`Error`] is written for the person who made the call: what happened, at which op and where it was recorded, and
//! what to do. The precise kind is private; the accessors answer the questions on which callers decide.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::handler::TargetError;
use fuseline_fusion::program::ProgramError;
use fuseline_fusion::text::TextError;
use fuseline_fusion::{LiteralError, OpCode, OpError, RegionSeq, ShapeError, Site, StreamId};

use crate::pjrt;

/// Result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in the life of an op a failure came up.
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

/// Which region something happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRef {
    /// The stream.
    pub stream: StreamId,
    /// The region's number within the stream.
    pub seq: RegionSeq,
    /// Its key.
    pub key: RegionKey,
    /// Number of its ops.
    pub ops: usize,
}

impl fmt::Display for RegionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}.{} (key {}, {} ops)", self.stream, self.seq, self.key.short(), self.ops)
    }
}

/// A failure on the device, with its address. Shared by every value that it poisons.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    /// The op that failed, or the last one of the region where it is not known which.
    pub(crate) op: Option<OpCode>,
    pub(crate) site: Site,
    pub(crate) region: Option<RegionRef>,
    pub(crate) message: String,
    pub(crate) resource_exhausted: bool,
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

#[derive(Debug)]
enum Kind {
    Op { error: OpError, site: Site },
    Literal(LiteralError),
    Program(ProgramError),
    Text(TextError),
    Plugin(pjrt::OpenError),
    Setup { message: String, resource_exhausted: bool },
    NoPlugin(String),
    Device(Arc<Failure>),
    NonFinite { failure: Failure, nans: usize, infinities: usize },
    Misuse { message: String, site: Site },
    Timeout { waited: Duration, what: String },
    Abandoned,
    Bug { message: String, place: &'static str },
}

/// Why a call failed.
pub struct Error(Box<Kind>);

impl Error {
    #[cold]
    pub(crate) fn op(error: OpError, site: Site) -> Error {
        Error(Box::new(Kind::Op { error, site }))
    }

    #[cold]
    pub(crate) fn device(failure: Arc<Failure>) -> Error {
        Error(Box::new(Kind::Device(failure)))
    }

    #[cold]
    pub(crate) fn non_finite(failure: Failure, nans: usize, infinities: usize) -> Error {
        Error(Box::new(Kind::NonFinite { failure, nans, infinities }))
    }

    #[cold]
    pub(crate) fn misuse(message: impl Into<String>, site: Site) -> Error {
        Error(Box::new(Kind::Misuse { message: message.into(), site }))
    }

    #[cold]
    pub(crate) fn setup(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Setup { message: message.into(), resource_exhausted: false }))
    }

    #[cold]
    pub(crate) fn cache_only(why: &str) -> Error {
        Error::setup(format!(
            "nothing but what the disk cache has may run (EngineConfig::cache_only or FUSELINE_CACHE=only), and the disk cache is off: {why}"
        ))
    }

    #[cold]
    pub(crate) fn no_plugin(what_was_tried: impl Into<String>) -> Error {
        Error(Box::new(Kind::NoPlugin(what_was_tried.into())))
    }

    #[cold]
    pub(crate) fn timeout(waited: Duration, what: impl Into<String>) -> Error {
        Error(Box::new(Kind::Timeout { waited, what: what.into() }))
    }

    #[cold]
    pub(crate) fn abandoned() -> Error {
        Error(Box::new(Kind::Abandoned))
    }

    #[cold]
    pub(crate) fn bug(message: impl Into<String>, place: &'static str) -> Error {
        Error(Box::new(Kind::Bug { message: message.into(), place }))
    }

    fn failure(&self) -> Option<&Failure> {
        match &*self.0 {
            Kind::Device(failure) => Some(failure),
            Kind::NonFinite { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// Where in the life of an op it came up.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match &*self.0 {
            Kind::Op { .. } | Kind::Literal(_) | Kind::Misuse { .. } | Kind::Program(_) | Kind::Text(_) => {
                Stage::Record
            }
            Kind::Plugin(_) | Kind::Setup { .. } | Kind::NoPlugin(_) => Stage::Setup,
            Kind::Device(failure) => failure.stage,
            Kind::NonFinite { .. } => Stage::Execute,
            Kind::Timeout { .. } | Kind::Abandoned | Kind::Bug { .. } => Stage::Wait,
        }
    }

    /// Who has to act on it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match &*self.0 {
            Kind::Op { .. } | Kind::Literal(_) | Kind::Misuse { .. } | Kind::Program(_) | Kind::Text(_) => {
                Origin::User
            }
            Kind::NonFinite { .. } => Origin::User,
            Kind::Plugin(_) | Kind::NoPlugin(_) | Kind::Setup { .. } => Origin::Environment,
            Kind::Device(_) | Kind::Timeout { .. } => Origin::Device,
            Kind::Abandoned => Origin::User,
            Kind::Bug { .. } => Origin::Engine,
        }
    }

    /// The op concerned, if there is one.
    #[must_use]
    pub fn op_name(&self) -> Option<&'static str> {
        match &*self.0 {
            Kind::Op { error, .. } => Some(error.op()),
            _ => self.failure()?.op.map(OpCode::name),
        }
    }

    /// The rule that an op call broke, if that is what happened.
    #[must_use]
    pub fn op_error(&self) -> Option<&OpError> {
        match &*self.0 {
            Kind::Op { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Where the op concerned was recorded.
    #[must_use]
    pub fn site(&self) -> Option<&Site> {
        match &*self.0 {
            Kind::Op { site, .. } | Kind::Misuse { site, .. } => Some(site),
            _ => self.failure().map(|failure| &failure.site),
        }
    }

    /// The region concerned, if it got that far.
    #[must_use]
    pub fn region(&self) -> Option<&RegionRef> {
        self.failure()?.region.as_ref()
    }

    /// A deadline passed; the value may still come.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(*self.0, Kind::Timeout { .. })
    }

    /// Memory ran out on the device or on the host.
    #[must_use]
    pub fn is_resource_exhausted(&self) -> bool {
        match &*self.0 {
            Kind::Setup { resource_exhausted, .. } => *resource_exhausted,
            _ => self.failure().is_some_and(|failure| failure.resource_exhausted),
        }
    }

    /// The value holds NaN or infinities, which a Debug stream was asked to refuse.
    #[must_use]
    pub fn is_non_finite(&self) -> bool {
        matches!(*self.0, Kind::NonFinite { .. })
    }

    /// The value was given up: its stream or engine is gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(*self.0, Kind::Abandoned)
    }

    /// Doing the same again may work.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_timeout() || self.is_resource_exhausted()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Op { error, site } => match site {
                Site::Unknown => error.fmt(f),
                site => write!(f, "{error} (at {site})"),
            },
            Kind::Literal(error) => error.fmt(f),
            Kind::Program(error) => error.fmt(f),
            Kind::Text(error) => error.fmt(f),
            Kind::Plugin(error) => error.fmt(f),
            Kind::Setup { message, .. } => f.write_str(message),
            Kind::NoPlugin(tried) => write!(
                f,
                "no PJRT plugin was found: {tried}; set FUSELINE_PJRT_PLUGIN to the path of one, or install the Python \
                 package xla-cpu-pjrt"
            ),
            Kind::Device(failure) => failure.fmt(f),
            Kind::NonFinite { failure, nans, infinities } => write!(
                f,
                "{}, recorded at {}, gave {nans} NaN and {infinities} infinite elements: {}",
                failure.op.map_or("an op", OpCode::name),
                failure.site,
                failure.message
            ),
            Kind::Misuse { message, site } => match site {
                Site::Unknown => f.write_str(message),
                site => write!(f, "{message} (at {site})"),
            },
            Kind::Timeout { waited, what } => write!(f, "waited {waited:?} for {what}; it may still come"),
            Kind::Abandoned => f.write_str(
                "the value was given up: its stream and engine were dropped before it was computed",
            ),
            Kind::Bug { message, place } => {
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

impl std::error::Error for Error {}

impl From<LiteralError> for Error {
    fn from(error: LiteralError) -> Error {
        Error(Box::new(Kind::Literal(error)))
    }
}

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Error {
        Error::from(LiteralError::Shape(error))
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error(Box::new(Kind::Program(error)))
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Error {
        Error(Box::new(Kind::Text(error)))
    }
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Error {
        Error::misuse(format!("handler: {error}"), Site::Unknown)
    }
}

impl From<pjrt::OpenError> for Error {
    fn from(error: pjrt::OpenError) -> Error {
        Error(Box::new(Kind::Plugin(error)))
    }
}

impl From<pjrt::Error> for Error {
    fn from(error: pjrt::Error) -> Error {
        let resource_exhausted = error.is_resource_exhausted();
        Error(Box::new(Kind::Setup { message: error.to_string(), resource_exhausted }))
    }
}

/// "Cannot happen" turned into an error with its place: a panic in builds with debug assertions, where tests see it, and
/// an error in others, where a user is better served by a failed value than by an abort.
macro_rules! bug {
    ($($message:tt)*) => {{
        let message = format!($($message)*);
        if cfg!(debug_assertions) {
            panic!("bug: {message}");
        }
        $crate::error::Error::bug(message, concat!(file!(), ":", line!()))
    }};
}
pub(crate) use bug;
