//! Shared by the tests of the disk tier: folders, records, an observer that keeps events, and child
//! processes.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test program uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test, on real threads"
)]

pub mod faulty;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fuseline_cache::disk::{DiskCache, DiskConfig, DiskDisabled, DiskEvent, Files, SecretSource};
use fuseline_cache::{Fingerprint, Key, Name, Record, SealedKind, Sealer, Secret};
use tempfile::TempDir;

/// The secret of the tests that need to know it.
pub const SECRET: [u8; 32] = *b"a secret that everybody can read";

/// The events of an observer, as text.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn observer(&self) -> Arc<dyn Fn(&DiskEvent<'_>) + Send + Sync> {
        let log = self.clone();
        Arc::new(move |told: &DiskEvent<'_>| {
            log.0.lock().unwrap().push(match told {
                DiskEvent::Trouble { doing, error } => format!("trouble: {doing}: {error}"),
                DiskEvent::Damaged { name, why } => format!("damaged: {name}: {why}"),
                DiskEvent::Quarantined { name, what } => format!("quarantined: {name}: {}", what.stage),
                other => format!("{other:?}"),
            });
        })
    }

    /// The events since the previous call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A folder for a tier and one for its secret.
pub struct Root {
    pub dir: TempDir,
    pub log: Log,
}

impl Root {
    pub fn new() -> Root {
        Root { dir: tempfile::tempdir().unwrap(), log: Log::default() }
    }

    /// In memory if possible, for tests that need hundreds and test calls, not a file system.
    pub fn in_memory() -> Root {
        match tempfile::tempdir_in("/dev/shm") {
            Ok(dir) => Root { dir, log: Log::default() },
            Err(_) => Root::new(),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    pub fn key(&self) -> PathBuf {
        self.dir.path().join("state").join("cache.key")
    }

    /// A folder of the tier: `entries`, `temp`, `flights`, `marks`, `quarantine`.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.path().join("v1").join(name)
    }

    pub fn entry(&self, name: &Name) -> PathBuf {
        self.folder("entries").join(name.to_string())
    }

    /// A configuration with a secret in a file.
    pub fn config(&self) -> DiskConfig {
        DiskConfig::new(self.path(), SecretSource::File(self.key()))
    }

    /// A configuration with the secret of the tests.
    pub fn given(&self) -> DiskConfig {
        DiskConfig { secret: SecretSource::Given(Secret::new(SECRET)), ..self.config() }
    }

    pub fn open(&self) -> DiskCache {
        self.open_with(self.config()).expect("a disk tier")
    }

    pub fn open_given(&self) -> DiskCache {
        self.open_with(self.given()).expect("a disk tier")
    }

    pub fn open_with(&self, config: DiskConfig) -> Result<DiskCache, DiskDisabled> {
        DiskCache::open(config, self.log.observer())
    }

    pub fn open_on(&self, files: Arc<dyn Files>, config: DiskConfig) -> Result<DiskCache, DiskDisabled> {
        DiskCache::open_on(files, config, self.log.observer())
    }

    /// The names in a folder of the tier, sorted.
    pub fn list(&self, folder: &str) -> Vec<String> {
        list(&self.folder(folder))
    }

    /// The same, if the folder may not exist yet.
    pub fn list_or_none(&self, folder: &str) -> Vec<String> {
        if is_there(&self.folder(folder)) { self.list(folder) } else { Vec::new() }
    }

    /// Asserts that nothing was reported.
    pub fn assert_quiet(&self) {
        assert_eq!(self.log.take(), Vec::<String>::new());
    }
}

pub fn list(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub fn sealer() -> Sealer {
    Sealer::new(&Secret::new(SECRET))
}

/// A record that answers a request, in one of its versions: same name, another artifact.
pub fn version(request: &str, version: u64, len: usize) -> Record {
    let mut artifact = vec![0; len];
    let seed = blake3::hash(format!("{request} {version}").as_bytes());
    blake3::Hasher::new_keyed(seed.as_bytes()).finalize_xof().fill(&mut artifact);
    Record {
        kind: SealedKind::Artifact,
        environment: Fingerprint::of(b"here"),
        region: Key::new([1; 32]),
        made_in: Duration::from_millis(30),
        loaded_in: (version > 0).then(|| Duration::from_micros(version)),
        request: request.as_bytes().to_vec(),
        artifact,
    }
}

/// A small record.
pub fn record(request: &str) -> Record {
    version(request, 0, 200)
}

/// Whether a record is a version of the answer to its request.
pub fn is_genuine(record: &Record) -> bool {
    let request = String::from_utf8(record.request.clone()).unwrap();
    let number = record.loaded_in.map_or(0, |took| took.as_micros() as u64);
    *record == version(&request, number, record.artifact.len())
}

/// Deterministic random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Prints the line by which a skipped test is counted, with the missing prerequisite.
pub fn skip(missing: &str) {
    println!("skipped: no {missing}");
}

/// Whether the tests run as root; prints a skip line if not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("root: only root can do this");
    }
    root
}

/// The variable with the role of a child process and its arguments; see [`child`] and [`role`].
const ROLE: &str = "FUSELINE_CACHE_TEST_ROLE";

/// A child process of this test program, which runs its test `other_process` in a role.
pub fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    as_child(&mut command, role);
    command
}

/// Adds the arguments and the variable that make a command of this program a child process.
pub fn as_child(command: &mut Command, role: &str) {
    command.args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role);
}

/// The role of this process, if it is a child.
pub fn role() -> Option<Vec<String>> {
    std::env::var(ROLE).ok().map(|role| role.split('|').map(str::to_owned).collect())
}

/// Processes that are killed on drop.
#[derive(Default)]
pub struct Children(pub Vec<Child>);

impl Children {
    pub fn start(&mut self, command: &mut Command) {
        command.stdout(std::process::Stdio::null());
        self.0.push(command.spawn().unwrap());
    }

    /// Sends SIGKILL to all of them.
    pub fn kill(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
        }
        for mut child in self.0.drain(..) {
            child.wait().unwrap();
        }
    }

    /// Waits for all of them.
    pub fn wait(&mut self) -> Vec<ExitStatus> {
        self.0.drain(..).map(|mut child| child.wait().unwrap()).collect()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a condition that must become true. The timeout is against hangs.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(120), "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a path exists, without following links.
pub fn is_there(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}
