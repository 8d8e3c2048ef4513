//! Settings of the shared tier: the store, the key, and limits.

use std::fmt;
use std::time::Duration;

use url::Url;

use super::breaker::Backoff;
use crate::sealed::{MAX_ENTRY, Secret};

/// Settings of a [`SharedCache`](super::SharedCache). The `Debug` output contains no credentials.
#[derive(Clone)]
#[non_exhaustive]
pub struct SharedConfig {
    /// The location of the entries: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
    /// `az://CONTAINER/PREFIX`, `http://` or `https://` with a host and a prefix (a server with
    /// `GET`, `HEAD` and `PUT`), or `file:///FOLDER`.
    pub url: String,
    /// Options of the store, such as `endpoint` and `region`, under their names in the
    /// `object_store` crate. They override the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`). An
    /// option that the store does not know is an error.
    pub options: Vec<(String, String)>,
    /// The fleet's key. Anyone with it can make entries that this process runs.
    pub secret: Secret,
    /// Whether nothing is written.
    pub read_only: bool,
    /// Time limit of a request, from its start to the last byte of the answer.
    pub timeout: Duration,
    /// Maximum number of reads in flight; the others wait for their turn.
    pub max_reads: usize,
    /// Maximum number of reads in flight or waiting. More are answered with
    /// [`Fetched::Busy`](super::Fetched::Busy).
    pub max_waiting: usize,
    /// Maximum size of an entry in bytes, read or written; at most [`MAX_ENTRY`].
    pub max_entry: u64,
    /// Maximum number of entries in the write queue. A new one replaces the oldest.
    pub max_queued: usize,
    /// Maximum number of bytes in the write queue.
    pub max_queued_bytes: u64,
    /// How long the absence of an entry is remembered.
    pub remember_misses: Duration,
    /// When requests to the store are paused, and for how long.
    pub backoff: Backoff,
}

impl SharedConfig {
    /// The defaults: 30 s for a request, 8 reads at once and 256 waiting, 256 entries and 256 MB in
    /// the write queue, misses remembered for a minute.
    #[must_use]
    pub fn new(url: impl Into<String>, secret: Secret) -> SharedConfig {
        SharedConfig {
            url: url.into(),
            options: Vec::new(),
            secret,
            read_only: false,
            timeout: Duration::from_secs(30),
            max_reads: 8,
            max_waiting: 256,
            max_entry: MAX_ENTRY,
            max_queued: 256,
            max_queued_bytes: 256 << 20,
            remember_misses: Duration::from_secs(60),
            backoff: Backoff::default(),
        }
    }

    /// Adds an option of the store.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> SharedConfig {
        self.options.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for SharedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.options.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("SharedConfig")
            .field("url", &shown(&self.url))
            .field("options", &names)
            .field("secret", &self.secret)
            .field("read_only", &self.read_only)
            .field("timeout", &self.timeout)
            .field("max_reads", &self.max_reads)
            .field("max_waiting", &self.max_waiting)
            .field("max_entry", &self.max_entry)
            .field("max_queued", &self.max_queued)
            .field("max_queued_bytes", &self.max_queued_bytes)
            .field("remember_misses", &self.remember_misses)
            .field("backoff", &self.backoff)
            .finish()
    }
}

/// A URL without its potentially secret parts: user, password and query.
pub(crate) fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "(no URL)".to_owned() };
    url.set_query(None);
    url.set_fragment(None);
    if url.password().is_some() || matches!(url.scheme(), "http" | "https") {
        // This fails only for URLs without a host, which have neither.
        let _ = url.set_password(None);
        let _ = url.set_username("");
    }
    url.to_string()
}

/// Why a shared cache cannot be opened: a problem with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedError {
    /// The URL is invalid, or its scheme is not that of a supported store.
    Url {
        /// The URL, without secrets.
        url: String,
        /// The problem.
        why: String,
    },
    /// The store has no such option.
    Option {
        /// The option's name.
        name: String,
        /// The store.
        store: &'static str,
    },
    /// The options are not valid for the client of the store.
    Store {
        /// The URL, without secrets.
        url: String,
        /// The problem.
        why: String,
    },
    /// The thread could not be started.
    Thread(String),
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedError::Url { url, why } => write!(
                f,
                "the shared cache's URL {url} cannot be used: {why}; write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
                 az://CONTAINER/PREFIX, https://HOST/PREFIX or file:///FOLDER"
            ),
            SharedError::Option { name, store } => {
                write!(f, "the shared cache's option `{name}` is not an option of {store}: check its name")
            }
            SharedError::Store { url, why } => {
                write!(
                    f,
                    "the shared cache at {url} cannot be set up: {why}; check its options and the environment"
                )
            }
            SharedError::Thread(why) => {
                write!(f, "the thread of the shared cache could not be started: {why}")
            }
        }
    }
}

impl std::error::Error for SharedError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_shown() {
        for (url, is) in [
            ("https://me:hunter22@there/cache?sig=hunter22#hunter22", "https://there/cache"),
            ("https://hunter22@there/cache", "https://there/cache"),
            ("s3://bucket/cache?x=hunter22", "s3://bucket/cache"),
            ("az://container@account/cache", "az://container@account/cache"),
            ("hunter22", "(no URL)"),
        ] {
            assert_eq!(shown(url), is);
        }
        let config =
            SharedConfig::new("s3://b/c", Secret::new([1; 32])).option("secret_access_key", "hunter22");
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter22") && shown.contains("secret_access_key"), "{shown}");
    }
}
