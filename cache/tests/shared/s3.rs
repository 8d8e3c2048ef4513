//! An S3 server in a child process, which can be killed. `s3s` implements the protocol and checks
//! signatures, and `s3s-fs` keeps the objects in a folder. This file adds what that lacks:
//! conditional puts, the error for a missing bucket, and a quota.
//!
//! The process is this test program; a variable makes it serve. It ends with its parent, whose end
//! of a pipe it reads.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use fuseline_cache::shared::SharedConfig;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto::{
    GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, PutObjectInput, PutObjectOutput,
};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::support::{Folder, config};

const SERVE: &str = "FUSELINE_TEST_S3_FOLDER";
const PORT: &str = "FUSELINE_TEST_S3_PORT";
const READY: &str = "serving at port ";
const BUCKET: &str = "fleet";
pub(crate) const USER: &str = "worker";
pub(crate) const PASSWORD: &str = "correct horse battery staple";

/// The server and the folder of its objects, which outlives it.
#[derive(Debug)]
pub(crate) struct Server {
    folder: Folder,
    child: Mutex<Option<Child>>,
    pub(crate) port: u16,
}

impl Server {
    /// A running server.
    pub(crate) fn new() -> Server {
        let mut server = Server::stopped_at(0);
        server.port = server.start();
        server
    }

    /// A server that is not started yet.
    pub(crate) fn stopped_at(port: u16) -> Server {
        let folder = Folder::new();
        std::fs::create_dir_all(folder.0.join(BUCKET)).expect("a bucket");
        Server { folder, child: Mutex::new(None), port }
    }

    /// Starts it on its previous port. Returns the port.
    pub(crate) fn start(&self) -> u16 {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "s3::the_server_serves_until_it_is_killed", "--nocapture"]);
        command.env(SERVE, &self.folder.0).env(PORT, self.port.to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program, again");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        *self.child.lock().unwrap() = Some(child);
        let said = output.lines().map_while(Result::ok).find_map(|line| {
            // The test harness may have begun the line.
            line.split_once(READY).and_then(|(_, port)| port.trim().parse().ok())
        });
        said.expect("the server says its port")
    }

    /// Kills it, like a power failure.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().expect("a child that can be killed");
            child.wait().expect("its end");
        }
    }

    /// Sets the limit for the bytes of all objects.
    pub(crate) fn set_quota(&self, bytes: Option<u64>) {
        let quota = self.folder.0.join("quota");
        match bytes {
            Some(bytes) => std::fs::write(quota, bytes.to_string()).expect("a file"),
            None => std::fs::remove_file(quota).expect("a file that is there"),
        }
    }

    /// A configuration for it.
    pub(crate) fn config(&self) -> SharedConfig {
        self.config_at(self.port)
    }

    /// A configuration for it behind another port.
    pub(crate) fn config_at(&self, port: u16) -> SharedConfig {
        config(&format!("s3://{BUCKET}/jit cache"))
            .option("endpoint", format!("http://127.0.0.1:{port}"))
            .option("allow_http", "true")
            .option("region", "here")
            .option("access_key_id", USER)
            .option("secret_access_key", PASSWORD)
            .option("virtual_hosted_style_request", "false")
    }

    /// The files of the entries.
    pub(crate) fn objects(&self) -> Vec<PathBuf> {
        let folder = self.folder.0.join(BUCKET).join("jit cache/v1");
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.file_name().unwrap().len() == 64);
        found.sort();
        found
    }

    /// The file of one entry.
    pub(crate) fn object(&self, name: fuseline_cache::Name) -> PathBuf {
        self.folder.0.join(BUCKET).join("jit cache/v1").join(name.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Serves if the variable is set; otherwise checks that it can be started, killed and restarted.
#[test]
fn the_server_serves_until_it_is_killed() {
    if let Some(folder) = std::env::var_os(SERVE) {
        let port = std::env::var(PORT).unwrap().parse().unwrap();
        return serve(Path::new(&folder), port);
    }
    let server = Server::new();
    let status = || {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).ok()?;
        stream.write_all(b"GET /fleet HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.lines().next().map(str::to_owned)
    };
    assert!(status().expect("an answer").contains("403"), "nobody may read without a signature");
    server.kill();
    assert_eq!(status(), None);
    assert_eq!(server.start(), server.port);
    assert!(status().is_some());
}

fn serve(folder: &Path, port: u16) {
    std::thread::Builder::new()
        .spawn(|| {
            // Until the parent is gone.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        })
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let files = Files {
            folder: folder.to_owned(),
            inner: s3s_fs::FileSystem::new(folder).expect("a folder"),
            turn: tokio::sync::Mutex::new(()),
        };
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(USER, PASSWORD));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a port");
        println!("{READY}{}", listener.local_addr().unwrap().port());
        loop {
            let Ok((socket, _)) = listener.accept().await else { continue };
            let service = service.clone();
            tokio::spawn(async move {
                let _ =
                    Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
}

#[derive(Debug)]
struct Files {
    folder: PathBuf,
    inner: s3s_fs::FileSystem,
    /// Makes looking and putting one step.
    turn: tokio::sync::Mutex<()>,
}

impl Files {
    fn has_bucket(&self, bucket: &str) -> S3Result<()> {
        if bucket == BUCKET { Ok(()) } else { Err(S3Error::new(S3ErrorCode::NoSuchBucket)) }
    }

    fn used(&self) -> u64 {
        let entries = std::fs::read_dir(self.folder.join(BUCKET).join("jit cache/v1"));
        entries.into_iter().flatten().flatten().filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    }
}

#[async_trait::async_trait]
impl S3 for Files {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.has_bucket(&request.input.bucket)?;
        self.inner.get_object(request).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.inner.head_object(request).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.has_bucket(&request.input.bucket)?;
        let _turn = self.turn.lock().await;
        let at = self.folder.join(&request.input.bucket).join(&request.input.key);
        if request.input.if_none_match.is_some() && at.exists() {
            return Err(S3Error::new(S3ErrorCode::PreconditionFailed));
        }
        let quota =
            std::fs::read_to_string(self.folder.join("quota")).ok().and_then(|text| text.parse().ok());
        let wanted = self.used() + u64::try_from(request.input.content_length.unwrap_or(0)).unwrap();
        if quota.is_some_and(|quota: u64| wanted > quota) {
            // As one widely used server reports it.
            let mut error = S3Error::new(S3ErrorCode::Custom("XMinioStorageFull".into()));
            error.set_status_code(507.try_into().unwrap());
            return Err(error);
        }
        self.inner.put_object(request).await
    }
}
