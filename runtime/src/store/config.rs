//! The user's configuration of the disk cache and the shared cache.

use std::ffi::OsString;
#[cfg(feature = "shared-cache")]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use fuseline_cache::Secret;
use fuseline_cache::disk::{DiskConfig, SecretSource};
#[cfg(feature = "shared-cache")]
use fuseline_cache::shared::SharedConfig;
use fuseline_fusion::Bytes;

/// The stores that an engine uses.
#[derive(Debug)]
pub struct StoreConfig {
    /// The disk cache, if any, or why there is none.
    pub(crate) disk: Result<Option<DiskConfig>, String>,
    /// The shared cache, if any, or why there is none.
    #[cfg(feature = "shared-cache")]
    pub(crate) shared: Result<Option<SharedConfig>, String>,
}

/// Configures the disk cache, for `EngineConfig::disk_cache`.
///
/// By default, entries are in `$XDG_CACHE_HOME/fuseline`, or `~/.cache/fuseline`, and the key that
/// seals them is in `$XDG_STATE_HOME/fuseline/cache.key`, or `~/.local/state/fuseline/cache.key`.
/// `SECURITY.md` describes what the seal guarantees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCacheConfig {
    folder: Option<PathBuf>,
    key: Option<SecretSource>,
    max_size: Option<Bytes>,
    max_age: Option<Duration>,
    sync: bool,
    read_only: bool,
}

impl DiskCacheConfig {
    /// The defaults: 2 GiB, 90 days.
    #[must_use]
    pub fn new() -> DiskCacheConfig {
        DiskCacheConfig::default()
    }

    /// Sets the folder. It is created if it does not exist. Nobody but the user may have access to
    /// it.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> DiskCacheConfig {
        self.folder = Some(folder.into());
        self
    }

    /// Sets the file of the key. It is created with 32 random bytes if it does not exist. Nobody
    /// but the user may read it. It should not be in the folder of the cache.
    #[must_use]
    pub fn key_file(mut self, file: impl Into<PathBuf>) -> DiskCacheConfig {
        self.key = Some(SecretSource::File(file.into()));
        self
    }

    /// Sets the key: 32 random bytes. Whoever has them can make programs execute any code.
    #[must_use]
    pub fn key(mut self, key: [u8; 32]) -> DiskCacheConfig {
        self.key = Some(SecretSource::Given(Secret::new(key)));
        self
    }

    /// Sets the maximum size of all entries; the least recently used are evicted. Default: 2 GiB.
    #[must_use]
    pub fn max_size(mut self, size: Bytes) -> DiskCacheConfig {
        self.max_size = Some(size);
        self
    }

    /// Sets how long an unused entry is kept. Default: 90 days.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> DiskCacheConfig {
        self.max_age = Some(age);
        self
    }

    /// Sets whether entries are flushed to the disk (`fsync`), which costs 10 ms each on a compile
    /// thread. Default: no. A power cut may then lose the latest entries, but never leaves a broken
    /// one that is used.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> DiskCacheConfig {
        self.sync = sync;
        self
    }

    /// Sets whether entries are only read and none is written. Default: no.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> DiskCacheConfig {
        self.read_only = read_only;
        self
    }

    /// The environment variables with which another process uses the same entries. A key that was
    /// given as bytes is not passed on.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![("FUSELINE_CACHE", if self.read_only { "read-only" } else { "on" }.into())];
        if let Some(folder) = &self.folder {
            variables.push(("FUSELINE_CACHE_DIR", folder.into()));
        }
        if let Some(SecretSource::File(file)) = &self.key {
            variables.push(("FUSELINE_CACHE_KEY_FILE", file.into()));
        }
        variables
    }

    /// Reads the environment variables. `None` if they turn the cache off.
    pub(crate) fn of_variables(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<DiskCacheConfig>, String> {
        let mut config = DiskCacheConfig::new();
        match variable("FUSELINE_CACHE").as_ref().map(|value| value.to_string_lossy()) {
            None => {}
            Some(value) => match &*value {
                // The engine handles the other effects of these values.
                "" | "on" | "1" | "only" => {}
                "off" | "0" => return Ok(None),
                "read-only" => config.read_only = true,
                other => {
                    return Err(format!(
                        "FUSELINE_CACHE is `{other}`; it can be `on`, `off`, `read-only` or `only`"
                    ));
                }
            },
        }
        if let Some(folder) = variable("FUSELINE_CACHE_DIR").filter(|value| !value.is_empty()) {
            config.folder = Some(folder.into());
        }
        if let Some(file) = variable("FUSELINE_CACHE_KEY_FILE").filter(|value| !value.is_empty()) {
            config.key = Some(SecretSource::File(file.into()));
        }
        if let Some(size) = variable("FUSELINE_CACHE_MAX_BYTES").filter(|value| !value.is_empty()) {
            let size = size.to_string_lossy();
            let bytes = size
                .parse()
                .map_err(|_| format!("FUSELINE_CACHE_MAX_BYTES is `{size}`, not a number of bytes"))?;
            config.max_size = Some(Bytes(bytes));
        }
        Ok(Some(config))
    }

    /// Whether the variables allow stored executables only.
    pub(crate) fn is_only(variable: impl Fn(&str) -> Option<OsString>) -> bool {
        variable("FUSELINE_CACHE").is_some_and(|value| value == "only")
    }

    /// The folder that environment variables name, or the default one, for tools that manage it.
    /// Ignores whether programs use the cache.
    ///
    /// # Errors
    /// When a variable cannot be understood.
    pub fn of_environment() -> crate::error::Result<DiskCacheConfig> {
        let but_whether = |name: &str| if name == "FUSELINE_CACHE" { None } else { std::env::var_os(name) };
        let config = DiskCacheConfig::of_variables(but_whether).map_err(crate::error::Error::setup)?;
        Ok(config.unwrap_or_default())
    }

    /// Fills in the user's default folders.
    #[doc(hidden)]
    pub fn resolve(&self, variable: impl Fn(&str) -> Option<OsString>) -> Result<DiskConfig, String> {
        // The XDG Base Directory Specification says that relative paths are ignored.
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let under = |name: &str, home: &str| {
            let folder = absolute(name).or_else(|| absolute("HOME").map(|path| path.join(home)))?;
            Some(folder.join("fuseline"))
        };
        let none = |what: &str, name: &str| {
            format!("there is no place for the {what}: neither {name} nor HOME is an absolute path")
        };
        let root = match &self.folder {
            Some(folder) => folder.clone(),
            None => under("XDG_CACHE_HOME", ".cache").ok_or_else(|| none("cache", "XDG_CACHE_HOME"))?,
        };
        let secret = match &self.key {
            Some(secret) => secret.clone(),
            None => {
                let folder = under("XDG_STATE_HOME", ".local/state");
                let folder = folder.ok_or_else(|| none("key of the cache", "XDG_STATE_HOME"))?;
                SecretSource::File(folder.join("cache.key"))
            }
        };
        let defaults = DiskConfig::new(root, secret);
        Ok(DiskConfig {
            max_bytes: self.max_size.map_or(defaults.max_bytes, |size| size.0),
            max_age: self.max_age.unwrap_or(defaults.max_age),
            sync: self.sync,
            read_only: self.read_only,
            ..defaults
        })
    }
}

/// Reads the shared cache from environment variables. `None` if they name none.
#[cfg(feature = "shared-cache")]
pub(crate) fn shared_of_variables(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<SharedConfig>, String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let Some(url) = set("FUSELINE_SHARED_CACHE") else { return Ok(None) };
    let url = url.into_string().map_err(|_| "FUSELINE_SHARED_CACHE is no text".to_owned())?;
    let Some(file) = set("FUSELINE_SHARED_CACHE_KEY_FILE") else {
        return Err(
            "FUSELINE_SHARED_CACHE needs FUSELINE_SHARED_CACHE_KEY_FILE: a file with the 32 bytes of \
                    the fleet's key"
                .to_owned(),
        );
    };
    let key = fuseline_cache::disk::read_key(Path::new(&file))
        .map_err(|off| format!("the shared cache has no key: {off}"))?;
    let mut config = SharedConfig::new(url, Secret::new(key));
    config.read_only = set("FUSELINE_SHARED_CACHE_READ_ONLY").is_some_and(|value| value != "0");
    Ok(Some(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into())
    }

    #[test]
    fn places_follow_the_specification() {
        let resolve = |set: &[(&str, &str)]| DiskCacheConfig::new().resolve(variables(set));
        let at = |root: &str, key: &str| Ok(DiskConfig::new(root.into(), SecretSource::File(key.into())));
        assert_eq!(
            resolve(&[("HOME", "/h")]),
            at("/h/.cache/fuseline", "/h/.local/state/fuseline/cache.key")
        );
        let set = [("HOME", "/h"), ("XDG_CACHE_HOME", "/c"), ("XDG_STATE_HOME", "relative")];
        assert_eq!(resolve(&set), at("/c/fuseline", "/h/.local/state/fuseline/cache.key"));
        assert!(resolve(&[("XDG_CACHE_HOME", "/c")]).unwrap_err().contains("XDG_STATE_HOME"));
        assert!(resolve(&[]).unwrap_err().contains("XDG_CACHE_HOME"));
    }

    #[test]
    fn variables_are_read() {
        let of = |set: &[(&str, &str)]| DiskCacheConfig::of_variables(variables(set));
        assert_eq!(of(&[]), Ok(Some(DiskCacheConfig::new())));
        assert_eq!(of(&[("FUSELINE_CACHE", "only")]), Ok(Some(DiskCacheConfig::new())));
        let only = |value| DiskCacheConfig::is_only(variables(&[("FUSELINE_CACHE", value)]));
        assert!(only("only") && !only("on") && !DiskCacheConfig::is_only(variables(&[])));
        assert_eq!(of(&[("FUSELINE_CACHE", "off")]), Ok(None));
        assert_eq!(of(&[("FUSELINE_CACHE", "read-only")]), Ok(Some(DiskCacheConfig::new().read_only(true))));
        let set = [
            ("FUSELINE_CACHE_DIR", "/d"),
            ("FUSELINE_CACHE_KEY_FILE", "/k"),
            ("FUSELINE_CACHE_MAX_BYTES", "7"),
        ];
        let expected = DiskCacheConfig::new().folder("/d").key_file("/k").max_size(Bytes(7));
        assert_eq!(of(&set), Ok(Some(expected)));
        assert!(of(&[("FUSELINE_CACHE", "maybe")]).unwrap_err().contains("maybe"));
        assert!(of(&[("FUSELINE_CACHE_MAX_BYTES", "7G")]).unwrap_err().contains("7G"));
    }
}
