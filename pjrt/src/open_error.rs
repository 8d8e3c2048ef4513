//! Why a file cannot be used as a plugin, with messages.

use std::fmt;
use std::path::{Path, PathBuf};

use fuseline_fusion::Printable;

use super::error::{Code, Error};
use super::version::{ApiVersion, OUR_VERSION};

/// Why a file cannot be used as a plugin.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenError(Box<(PathBuf, OpenFault)>);

/// The problem with the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenFault {
    /// The file does not exist or may not be read. Holds the message of the operating system.
    Missing(String),
    /// The file is no shared library.
    NotALibrary,
    /// The loader rejects the shared library, for example because it needs other libraries. Holds
    /// its message.
    CannotLoad(String),
    /// The library has no symbol `GetPjrtApi`.
    NoEntryPoint,
    /// `GetPjrtApi` returned something that is not a function table.
    BadTable(String),
    /// The plugin has another major version of the API, or lacks required functions.
    Version {
        /// The plugin's version.
        theirs: ApiVersion,
        /// The functions that it lacks; empty when the major versions differ.
        missing: Vec<&'static str>,
    },
    /// `PJRT_Plugin_Initialize` failed, now or when the file was first opened.
    Initialise(Error),
    /// The plugin is already open with other [`super::OpenOptions`].
    OtherOptions,
}

impl OpenError {
    #[cold]
    pub(super) fn new(path: &Path, fault: OpenFault) -> OpenError {
        OpenError(Box::new((path.to_owned(), fault)))
    }

    /// The file, as it was requested.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.0
    }

    /// The problem with the file.
    #[must_use]
    pub fn fault(&self) -> &OpenFault {
        &self.0.1
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(DisplayError(self)).fmt(f)
    }
}

/// The text of an error. Control characters in paths and messages are escaped.
struct DisplayError<'a>(&'a OpenError);

impl fmt::Display for DisplayError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.path().display();
        match self.0.fault() {
            OpenFault::Missing(words) => write!(f, "the PJRT plugin {path} cannot be read: {words}"),
            OpenFault::NotALibrary => write!(f, "the PJRT plugin {path} is not a shared library"),
            OpenFault::CannotLoad(words) => write!(f, "the PJRT plugin {path} cannot be loaded: {words}"),
            OpenFault::NoEntryPoint => {
                write!(f, "{path} is not a PJRT plugin: the library has no symbol GetPjrtApi")
            }
            OpenFault::BadTable(words) => write!(f, "the PJRT plugin {path} is broken: {words}"),
            OpenFault::Version { theirs, missing } if missing.is_empty() => write!(
                f,
                "the PJRT plugin {path} uses PJRT API {theirs}, but this build uses \
                 {OUR_VERSION}: the major versions must match"
            ),
            OpenFault::Version { theirs, missing } => {
                let shown = missing[..missing.len().min(3)].join(", ");
                let more = missing.len().saturating_sub(3);
                write!(
                    f,
                    "the PJRT plugin {path} uses PJRT API {theirs}, but this build uses \
                     {OUR_VERSION}: the plugin lacks {shown}"
                )?;
                if more > 0 { write!(f, " and {more} more functions") } else { Ok(()) }
            }
            OpenFault::Initialise(error) => {
                write!(f, "the PJRT plugin {path} could not be initialised: {error}")
            }
            OpenFault::OtherOptions => {
                write!(f, "the PJRT plugin {path} is already open with other options")
            }
        }
    }
}

impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenError({self})")
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.fault() {
            OpenFault::Initialise(error) => Some(error),
            _ => None,
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        let code = match error.fault() {
            OpenFault::Missing(_) => Code::NotFound,
            OpenFault::Initialise(error) => error.code(),
            OpenFault::Version { .. } => Code::Unimplemented,
            _ => Code::InvalidArgument,
        };
        Error::layer(code, "GetPjrtApi", error.to_string())
    }
}
