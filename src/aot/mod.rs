//! Executables between processes: compiling ahead of time what a run needs, and managing the folder
//! that keeps it.
//!
//! A run finds executables of earlier runs by itself
//! ([`EngineConfig::disk_cache`](crate::EngineConfig::disk_cache)). This module is for tools that
//! manage them, such as the command `fuseline cache`.
//!
//! - A [`Manifest`] lists what a run has requested.
//!   [`EngineConfig::manifest`](crate::EngineConfig::manifest) writes it.
//! - [`Engine::warm_cache`](crate::Engine::warm_cache) compiles what is missing.
//! - [`EngineConfig::warm_cache_for`](crate::EngineConfig::warm_cache_for) does that for a
//!   [`Target`]: devices that need not be present.
//! - A [`Folder`] is the cache itself: its entries, their contents, and how to remove them.
//! - [`export`] and [`import`] carry entries from one machine to another one like it, as a bundle
//!   that is sealed with its own key.
//!
//! Nothing from a file is used unchecked: seals protect entries and bundles, and the requests of a
//! manifest are checked by the same rules as calls.

mod bundle;
mod inspect;
mod target;
mod warm;

use std::fmt;

pub use self::bundle::{BundleKey, Exported, Imported, export, import};
pub use self::inspect::{Entry, EntryFile, EntryKind, Folder, Quarantined};
pub use self::target::Target;
pub use self::warm::Warmed;
pub use fuseline_runtime::{Manifest, ManifestRegion};

use fuseline_runtime::internals::StoreEnvironment;

/// Everything outside a region that its executables depend on, by name: plugin, device, processor,
/// options.
#[derive(Clone, PartialEq, Eq)]
pub struct Environment(StoreEnvironment);

impl Environment {
    pub(crate) fn new(environment: StoreEnvironment) -> Environment {
        Environment(environment)
    }

    /// Its fingerprint, as in entries: 64 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint().to_string()
    }

    /// Its parts: names and values.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.parts().iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The parts in which two environments differ: name, value here, value in the other one.
    #[must_use]
    pub fn differences<'a>(&'a self, other: &'a Environment) -> Vec<(&'a str, &'a str, &'a str)> {
        self.0.differences(&other.0)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.parts()).finish()
    }
}
