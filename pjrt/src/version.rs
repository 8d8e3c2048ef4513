//! Versions of the PJRT C API.

use std::fmt;

/// The API version of the header this crate was written against.
pub const OUR_VERSION: ApiVersion = ApiVersion { major: 0, minor: 54 };

/// Version of the PJRT C API. Different major versions are incompatible; minor versions only add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiVersion {
    /// Major version. Each has its own ABI.
    pub major: i32,
    /// Minor version. It grows with every added function or field.
    pub minor: i32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
