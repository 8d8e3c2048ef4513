//! Executables between processes: what a run needs, compiled ahead of time, and the folder that
//! they are kept in.
//!
//! A run finds executables of earlier ones by itself
//! ([`EngineConfig::disk_cache`](crate::EngineConfig::disk_cache)). This module is for those who
//! look after that: the command-line tool `fuseline cache` is made of it.
//!
//! - A [`Manifest`] is what a run has asked for, written by
//!   [`EngineConfig::manifest`](crate::EngineConfig::manifest).
//! - [`Engine::warm_cache`](crate::Engine::warm_cache) compiles what of it is not there.
//! - [`EngineConfig::warm_cache_for`](crate::EngineConfig::warm_cache_for) does that for a
//!   [`Target`]: devices that need not be here.
//! - A [`Folder`] is the cache itself: its entries, what they say, and how to remove them.
//! - [`export`] and [`import`] carry entries from one machine to another one like it, as a bundle
//!   that is sealed with a key of its own.
//!
//! Nothing of a file is believed that was not checked: entries and bundles by their seals, the
//! requests of a manifest by the same rules as calls.

mod bundle;
mod inspect;
mod manifest;
mod manifest_writer;
mod target;
mod warm;

use std::fmt;

pub use self::bundle::{BundleKey, Exported, Imported, export, import};
pub use self::inspect::{Entry, EntryFile, EntryKind, Folder, Quarantined};
pub use self::manifest::{Manifest, ManifestRegion};
pub(crate) use self::manifest_writer::ManifestWriter;
pub use self::target::Target;
pub use self::warm::Warmed;

use crate::store;

/// Everything outside a region that its executables depend on, by name: plugin, device, processor,
/// options.
#[derive(Clone, PartialEq, Eq)]
pub struct Environment(store::Environment);

impl Environment {
    pub(crate) fn new(environment: store::Environment) -> Environment {
        Environment(environment)
    }

    /// Its fingerprint, as entries name it: 64 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint().to_string()
    }

    /// Its parts: their names and what they are.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.parts().iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The parts in which two differ: name, here, in the other one.
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
