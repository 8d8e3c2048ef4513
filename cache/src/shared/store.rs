//! The client of a store, created from a URL and options.
//!
//! It never retries: a read races with a compile, and the queue retries writes. Error bodies are
//! truncated after [`MAX_ERROR_BODY`] bytes, because a malicious server may send them without an
//! end.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::{Position, Url};

use super::config::{SharedConfig, SharedError, shown};
use super::trouble::Redactor;

/// Maximum number of bytes of an error body.
const MAX_ERROR_BODY: usize = 64 << 10;

/// A store, and the prefix of the entries in it.
pub(crate) struct StoreLocation {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// Whether it is a folder of this machine (or a mounted one).
    pub(crate) is_folder: bool,
    pub(crate) scrub: Redactor,
}

/// Creates the client. Does not contact the network or the store.
pub(crate) fn open(config: &SharedConfig) -> Result<StoreLocation, SharedError> {
    let bad_url = |why: String| SharedError::Url { url: shown(&config.url), why };
    let url = Url::parse(&config.url).map_err(|error| bad_url(error.to_string()))?;
    let (scheme, prefix) = ObjectStoreScheme::parse(&url)
        .map_err(|_| bad_url("its scheme is not that of an object store".to_owned()))?;
    let is_folder = matches!(scheme, ObjectStoreScheme::Local);
    let scrub = redactor(config, &url);
    let store = client(config, &scheme, &url, &scrub)?;
    Ok(StoreLocation { store, prefix, is_folder, scrub })
}

/// Knows the secrets in the URL, the environment and the options.
fn redactor(config: &SharedConfig, url: &Url) -> Redactor {
    let mut scrub = Redactor::default();
    if let Some(password) = url.password() {
        scrub.add_secret(password);
    }
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix)));
    for (name, value) in environment.chain(config.options.iter().cloned()) {
        scrub.add(&name, &value);
    }
    scrub
}

/// Creates the client of a store.
fn client(
    config: &SharedConfig,
    scheme: &ObjectStoreScheme,
    url: &Url,
    scrub: &Redactor,
) -> Result<Arc<dyn ObjectStore>, SharedError> {
    let client = ClientOptions::new()
        .with_timeout(config.timeout)
        .with_connect_timeout(config.timeout.min(Duration::from_secs(5)));
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let failed = |error: object_store::Error| SharedError::Store {
        url: shown(&config.url),
        why: scrub.clean(&error.to_string()),
    };
    Ok(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let mut builder = AmazonS3Builder::from_env()
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(Connector)
                .with_url(url.as_str());
            for (name, value) in options(config, "S3", AmazonS3ConfigKey::from_str)? {
                builder = builder.with_config(name, value);
            }
            if builder
                .get_config_value(&AmazonS3ConfigKey::Endpoint)
                .is_some_and(|at| at.starts_with("http:"))
                && !is_allowed(
                    &builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)),
                )
            {
                return Err(unencrypted(config));
            }
            Arc::new(builder.build().map_err(failed)?)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(Connector)
                .with_url(url.as_str());
            for (name, value) in options(config, "Google Cloud Storage", GoogleConfigKey::from_str)? {
                builder = builder.with_config(name, value);
            }
            Arc::new(builder.build().map_err(failed)?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(Connector)
                .with_url(url.as_str());
            for (name, value) in options(config, "Azure", AzureConfigKey::from_str)? {
                builder = builder.with_config(name, value);
            }
            Arc::new(builder.build().map_err(failed)?)
        }
        ObjectStoreScheme::Http => {
            // An http:// URL is deliberate; entries are authenticated in any case.
            let client = client.with_allow_http(url.scheme() == "http");
            let mut builder = HttpBuilder::new()
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(Connector)
                .with_url(&url[..Position::BeforePath]);
            for (name, value) in options(config, "HTTP", ClientConfigKey::from_str)? {
                builder = builder.with_config(name, value);
            }
            Arc::new(builder.build().map_err(failed)?)
        }
        ObjectStoreScheme::Local => {
            if let Some((name, _)) = config.options.first() {
                return Err(SharedError::Option { name: name.clone(), store: "a folder" });
            }
            Arc::new(LocalFileSystem::new())
        }
        _ => {
            let why = format!("{} is not a store that machines can share", url.scheme());
            return Err(SharedError::Url { url: shown(&config.url), why });
        }
    })
}

impl StoreLocation {
    /// Why the object at a path of a folder is not opened, if it is not a file. Opening a pipe
    /// could block a thread for ever.
    pub(crate) fn refuses(&self, path: &Path) -> Option<&'static str> {
        let at = self.is_folder.then(|| std::path::Path::new("/").join(path.as_ref()))?;
        let metadata = std::fs::metadata(at).ok()?;
        (!metadata.is_file()).then_some("it is not a regular file")
    }
}

/// The options, under the names of the store.
fn options<K, E>(
    config: &SharedConfig,
    store: &'static str,
    parse: impl Fn(&str) -> Result<K, E>,
) -> Result<Vec<(K, String)>, SharedError> {
    let named = |(name, value): &(String, String)| match parse(&name.to_ascii_lowercase()) {
        Ok(key) => Ok((key, value.clone())),
        Err(_) => Err(SharedError::Option { name: name.clone(), store }),
    };
    config.options.iter().map(named).collect()
}

fn is_allowed(value: &Option<String>) -> bool {
    value
        .as_deref()
        .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
}

fn unencrypted(config: &SharedConfig) -> SharedError {
    SharedError::Store {
        url: shown(&config.url),
        why: "its endpoint is http://, which is refused unless the option allow_http is true".to_owned(),
    }
}

/// Creates clients with bounded error bodies.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Ending(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Ending(HttpClient);

#[async_trait]
impl HttpService for Ending {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_get = request.method().as_str() == "GET";
        let answer = self.0.execute(request).await?;
        if is_get && answer.status().is_success() {
            // An object; its reader counts the bytes.
            return Ok(answer);
        }
        Ok(answer.map(|body| HttpResponseBody::new(Cut { body, left: MAX_ERROR_BODY })))
    }
}

/// The beginning of a body.
struct Cut {
    body: HttpResponseBody,
    left: usize,
}

impl Body for Cut {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|mut data| {
                    data.truncate(self.left);
                    self.left -= data.len();
                    data
                })
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed::Secret;

    fn refused(url: &str, options: &[(&str, &str)]) -> String {
        let mut config = SharedConfig::new(url, Secret::new([0; 32]));
        config.options.extend(options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        match open(&config) {
            Ok(_) => panic!("{url} was opened"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_cannot_be_right_is_told_before_anything_is_asked() {
        for (url, options, says) in [
            ("", &[][..], "cannot be used"),
            ("ftp://there/cache", &[], "cannot be used"),
            ("memory:///cache", &[], "not a store that machines can share"),
            ("s3://bucket/cache", &[("regoin", "x")], "`regoin` is not an option of S3"),
            ("file:///cache", &[("region", "x")], "`region` is not an option of a folder"),
            ("s3://bucket/cache", &[("region", "x"), ("endpoint", "http://there")], "allow_http"),
            (
                "https://there/cache",
                &[("secret_access_key", "hunter22")],
                "`secret_access_key` is not an option of HTTP",
            ),
            ("az://container/cache", &[("access_key", "hunter22")], "cannot be set up"),
        ] {
            let said = refused(url, options);
            assert!(said.contains(says), "{url}: {said}");
            assert!(!said.contains("hunter22"), "{said}");
        }
    }

    #[test]
    fn every_kind_of_store_can_be_made() {
        let s3 = [("region", "here"), ("access_key_id", "me"), ("secret_access_key", "hunter22")];
        let azure = [("account_name", "me"), ("use_emulator", "true")];
        for (url, options) in [
            ("s3://bucket/a/b", &s3[..]),
            ("gs://bucket/a/b", &[("skip_signature", "true")]),
            ("az://container/a/b", &azure),
            ("https://there/a/b", &[]),
            ("http://there/a/b", &[]),
            ("file:///a/b", &[]),
        ] {
            let mut config = SharedConfig::new(url, Secret::new([0; 32]));
            config
                .options
                .extend(options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            match open(&config) {
                Ok(place) => assert_eq!(place.prefix.as_ref(), "a/b", "{url}"),
                Err(error) => panic!("{url}: {error}"),
            }
        }
    }
}
