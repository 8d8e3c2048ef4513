//! Errors of a store, as messages without secrets.
//!
//! Input: errors of the client. Output: a [`Trouble`]: its kind, and the server's message if it is
//! short.
//!
//! An error of the client contains the URL, which for some stores contains a signature, and the
//! body of the answer, which may repeat what was sent. Only the status, the error code (`<Code>`,
//! one word) and the innermost cause are kept, and every secret of the options is redacted in them.

use std::error::Error as StdError;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

use object_store::client::{HttpError, HttpErrorKind};

use crate::sealed::Damage;

/// Why a request to the store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TroubleKind {
    /// No server answers at the address.
    Unreachable,
    /// There was no complete answer within the time limit of a request.
    TimedOut,
    /// The store rejects the credentials, or they do not permit this.
    Refused,
    /// There is no such bucket, container or folder.
    NoStore,
    /// The store has no room, or the quota is used up.
    Full,
    /// The store reports overload.
    Busy,
    /// The answer was truncated.
    CutOff,
    /// The server redirects in a loop.
    Redirects,
    /// Anything else.
    Other,
}

/// A problem with the store, and the store's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind of problem.
    pub kind: TroubleKind,
    /// The status, the error's code or its cause.
    pub said: Arc<str>,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = &self.said;
        match self.kind {
            TroubleKind::Unreachable => {
                write!(f, "it cannot be reached ({said}): check the address and the network")
            }
            TroubleKind::TimedOut => write!(f, "it does not answer in time ({said})"),
            TroubleKind::Refused => write!(
                f,
                "it refuses the request ({said}): check that the credentials allow reading and \
                 listing this prefix, and writing unless the cache is read-only"
            ),
            TroubleKind::NoStore => {
                write!(f, "there is no such bucket or folder ({said}): check the URL, or create it")
            }
            TroubleKind::Full => write!(f, "it is full ({said}): remove old entries or raise the quota"),
            TroubleKind::Busy => write!(f, "it is overloaded ({said})"),
            TroubleKind::CutOff => write!(f, "its answer was cut off ({said})"),
            TroubleKind::Redirects => write!(f, "it redirects requests in a loop ({said}): check the URL"),
            TroubleKind::Other => write!(f, "it failed ({said})"),
        }
    }
}

impl StdError for Trouble {}

/// The problem of an object in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedDamage {
    /// It is not a valid entry.
    Entry(Damage),
    /// It is longer than it says, or than the limit of an entry.
    TooLong,
    /// A server answers, but does not deliver it completely.
    Answer(Trouble),
}

impl fmt::Display for SharedDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedDamage::Entry(damage) => damage.fmt(f),
            SharedDamage::TooLong => f.write_str("it is longer than allowed"),
            SharedDamage::Answer(trouble) => trouble.fmt(f),
        }
    }
}

impl StdError for SharedDamage {}

/// Values to redact.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Vec<String>);

impl Redactor {
    /// Adds the value of an option if its name is that of a secret. Short values are skipped,
    /// because redacting them would remove too much.
    pub(crate) fn add(&mut self, key: &str, value: &str) {
        const SECRET: [&str; 8] =
            ["secret", "key", "token", "password", "sas", "credential", "authorization", "proxy"];
        let key = key.to_ascii_lowercase();
        if value.len() >= 4
            && SECRET.iter().any(|word| key.contains(word))
            && !self.0.iter().any(|v| v == value)
        {
            self.0.push(value.to_owned());
            self.0.sort_by_key(|value| std::cmp::Reverse(value.len()));
        }
    }

    /// Adds a secret.
    pub(crate) fn add_secret(&mut self, value: &str) {
        self.add("secret", value);
    }

    pub(crate) fn clean(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "[secret]"))
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrub(..)")
    }
}

/// Explains an error of the client.
pub(crate) fn explain(error: &object_store::Error, scrub: &Redactor) -> Trouble {
    let trouble = |kind, said: &str| Trouble { kind, said: short(&scrub.clean(said)).into() };
    let causes = || std::iter::successors(Some(error as &dyn StdError), |error| (*error).source());
    let last = causes().last().map(ToString::to_string).unwrap_or_default();
    if causes().any(|cause| is_redirect(&cause.to_string())) {
        return trouble(TroubleKind::Redirects, "too many redirects");
    }
    if let Some(http) = causes().find_map(|cause| cause.downcast_ref::<HttpError>()) {
        let kind = match http.kind() {
            HttpErrorKind::Timeout => return trouble(TroubleKind::TimedOut, "timed out"),
            HttpErrorKind::Connect => TroubleKind::Unreachable,
            // The connection was lost during a request or an answer.
            HttpErrorKind::Request | HttpErrorKind::Interrupted | HttpErrorKind::Decode => {
                TroubleKind::CutOff
            }
            _ => TroubleKind::Other,
        };
        return trouble(kind, &last);
    }
    if let Some(io) = causes().find_map(|cause| cause.downcast_ref::<std::io::Error>()) {
        let kind = match io.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => TroubleKind::Full,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => TroubleKind::Refused,
            ErrorKind::NotFound => TroubleKind::NoStore,
            ErrorKind::TimedOut => TroubleKind::TimedOut,
            ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::StaleNetworkFileHandle => TroubleKind::Unreachable,
            _ => TroubleKind::Other,
        };
        return trouble(kind, &io.to_string());
    }
    let text = causes().map(|cause| cause.to_string()).max_by_key(String::len).unwrap_or_default();
    let (status, code) = (status(&text), code(&text));
    let said = match (status, code) {
        (Some(status), Some(code)) => format!("{status} {code}"),
        (Some(status), None) => status.to_string(),
        (None, Some(code)) => code.to_owned(),
        (None, None) => last,
    };
    trouble(kind(error, status, code.unwrap_or_default()), &said)
}

fn kind(error: &object_store::Error, status: Option<u16>, code: &str) -> TroubleKind {
    const NO_STORE: [&str; 4] =
        ["NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "ContainerBeingDeleted"];
    const FULL: [&str; 5] =
        ["QuotaExceeded", "XMinioStorageFull", "StorageFull", "InsufficientCapacity", "InsufficientStorage"];
    const BUSY: [&str; 4] = ["SlowDown", "ServerBusy", "Throttling", "RequestLimitExceeded"];
    if NO_STORE.contains(&code) {
        return TroubleKind::NoStore;
    }
    if FULL.contains(&code) || status == Some(507) {
        return TroubleKind::Full;
    }
    if BUSY.contains(&code) || matches!(status, Some(429 | 503)) {
        return TroubleKind::Busy;
    }
    match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            TroubleKind::Refused
        }
        _ if matches!(status, Some(401 | 403)) => TroubleKind::Refused,
        object_store::Error::NotFound { .. } => TroubleKind::NoStore,
        _ => match status {
            Some(404) => TroubleKind::NoStore,
            Some(408 | 504) => TroubleKind::TimedOut,
            Some(300..=399) => TroubleKind::Redirects,
            _ => TroubleKind::Other,
        },
    }
}

fn is_redirect(text: &str) -> bool {
    text.contains("too many redirects") || text.contains("Received redirect without LOCATION")
}

/// The status in `... status code: 403 Forbidden: ...`.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The word in `<Code>AccessDenied</Code>`.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    (code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'))
        .then_some(code)
}

/// Whether the store has no object with this name, according to the client.
pub(crate) fn is_absent(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotFound { source, .. }
        if !matches!(code(&source.to_string()), Some("NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted")))
}

/// Whether this is the denial that some stores return for an absent object if listing is not
/// allowed.
pub(crate) fn is_access_denied(trouble: &Trouble) -> bool {
    trouble.kind == TroubleKind::Refused
        && (trouble.said.ends_with("AccessDenied") || trouble.said.as_ref() == "403")
}

/// Whether the store does not support writes that fail if the object exists.
pub(crate) fn is_unsupported(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => true,
        object_store::Error::Generic { source, .. } => status(&source.to_string()) == Some(501),
        _ => false,
    }
}

/// Shortens a message to one short, printable line.
fn short(text: &str) -> String {
    let line: String =
        text.chars().take_while(|c| *c != '\n').filter(|c| !c.is_control()).take(160).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn a_status_and_a_code_say_whose_fault_it_is() {
        let body = |status: &str, code: &str| {
            generic(&format!(
                "Error performing PUT http://there/x?sig=abc in 1ms - Server returned non-2xx status code: {status}: \
                 <Error><Code>{code}</Code><Message>hunter22 abc</Message></Error>"
            ))
        };
        for (status, code, kind) in [
            ("507 Insufficient Storage", "InsufficientStorage", TroubleKind::Full),
            ("403 Forbidden", "QuotaExceeded", TroubleKind::Full),
            ("503 Service Unavailable", "SlowDown", TroubleKind::Busy),
            ("403 Forbidden", "SignatureDoesNotMatch", TroubleKind::Refused),
            ("404 Not Found", "NoSuchBucket", TroubleKind::NoStore),
            ("500 Internal Server Error", "InternalError", TroubleKind::Other),
        ] {
            let trouble = explain(&body(status, code), &Redactor::default());
            assert_eq!(trouble.kind, kind, "{status} {code}");
            assert_eq!(*trouble.said, format!("{} {code}", &status[..3]));
        }
    }

    #[test]
    fn secrets_are_struck_out_and_urls_are_not_repeated() {
        let mut scrub = Redactor::default();
        scrub.add("aws_secret_access_key", "hunter22");
        scrub.add("aws_secret_access_key", "hunter22hunter22");
        scrub.add("region", "here");
        assert_eq!(
            explain(&generic("here: hunter22hunter22 and hunter22"), &scrub).said.as_ref(),
            "here: [secret] and [secret]"
        );
        assert_eq!(format!("{scrub:?}"), "Scrub(..)");
    }

    #[test]
    fn what_a_server_says_stays_on_one_short_line() {
        assert_eq!(short("a\u{1b}[31mb\nc"), "a[31mb");
        assert_eq!(short(&"x".repeat(1000)).len(), 160);
        assert_eq!(code("<Code>a b</Code>"), None);
        assert_eq!(status("status code: 4"), None);
    }
}
