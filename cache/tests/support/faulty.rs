//! A file system with injected failures and a controlled clock.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fuseline_cache::disk::{Files, Stat, System};
use rustix::io::Errno;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    OpenRoot,
    MakeRoot,
    OpenDir,
    MakeDir,
    SetMode,
    Create,
    OpenOrCreate,
    Open,
    OpenToLock,
    Stat,
    StatLink,
    ReadLink,
    StatAt,
    Read,
    Write,
    WriteAt,
    Sync,
    Rename,
    Link,
    Unlink,
    RemoveDir,
    List,
    Touch,
    TryLock,
}

/// Which calls fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// None.
    Works,
    /// The call with this number, counted from 0.
    At(u64, Errno),
    /// All of one kind.
    SealedKind(Call, Errno),
    /// All.
    All(Errno),
    /// All from this number on: the process is gone. If the last call is a write, half of it is
    /// done.
    Dead(u64),
    /// None, but at most this many bytes are read or written at once.
    Short(usize),
    /// Locks of files that are open read-only, as on NFS.
    LocksNeedWriting,
}

struct State {
    plan: Plan,
    calls: Vec<Call>,
    passed: Duration,
    began: Instant,
    process: u32,
    /// Called before each call with its kind.
    hook: Option<Hook>,
}

type Hook = Arc<dyn Fn(Call) + Send + Sync>;

/// See the [module](self).
pub struct Faulty(Mutex<State>);

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    pub fn new(plan: Plan) -> Arc<Faulty> {
        let (calls, passed, process) = (Vec::new(), Duration::ZERO, std::process::id());
        let state = State { plan, calls, passed, began: Instant::now(), process, hook: None };
        Arc::new(Faulty(Mutex::new(state)))
    }

    /// Sets another plan, and counts from 0 again.
    pub fn plan(&self, plan: Plan) {
        let mut state = self.0.lock().unwrap();
        (state.plan, state.calls) = (plan, Vec::new());
    }

    /// The calls since the latest plan.
    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().calls.clone()
    }

    pub fn kinds(&self) -> HashSet<Call> {
        self.calls().into_iter().collect()
    }

    pub fn let_pass(&self, time: Duration) {
        self.0.lock().unwrap().passed += time;
    }

    /// From now on it belongs to another process.
    pub fn fork(&self) {
        self.0.lock().unwrap().process += 1;
    }

    pub fn before(&self, hook: impl Fn(Call) + Send + Sync + 'static) {
        self.0.lock().unwrap().hook = Some(Arc::new(hook));
    }

    fn call(&self, call: Call) -> io::Result<()> {
        let (error, hook) = {
            let mut state = self.0.lock().unwrap();
            let number = state.calls.len() as u64;
            state.calls.push(call);
            let error = match state.plan {
                Plan::At(at, errno) => (at == number).then_some(errno),
                Plan::SealedKind(kind, errno) => (kind == call).then_some(errno),
                Plan::All(errno) => Some(errno),
                Plan::Dead(from) => (number >= from).then_some(Errno::IO),
                Plan::Works | Plan::Short(_) | Plan::LocksNeedWriting => None,
            };
            (error, state.hook.clone())
        };
        if let Some(hook) = hook {
            hook(call);
        }
        error.map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn most(&self, len: usize) -> usize {
        match self.0.lock().unwrap().plan {
            Plan::Short(most) => most.min(len),
            _ => len,
        }
    }
}

impl Files for Faulty {
    fn user(&self) -> u32 {
        System.user()
    }

    fn process(&self) -> u32 {
        self.0.lock().unwrap().process
    }

    fn now(&self) -> SystemTime {
        SystemTime::now() + self.0.lock().unwrap().passed
    }

    /// Advances only when a test says so, so a busy machine makes no difference.
    fn instant(&self) -> Instant {
        let state = self.0.lock().unwrap();
        state.began + state.passed
    }

    fn open_root(&self, path: &Path) -> io::Result<OwnedFd> {
        self.call(Call::OpenRoot)?;
        System.open_root(path)
    }

    fn make_root(&self, path: &Path) -> io::Result<()> {
        self.call(Call::MakeRoot)?;
        System.make_root(path)
    }

    fn open_dir(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        self.call(Call::OpenDir)?;
        System.open_dir(at, name)
    }

    fn make_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        self.call(Call::MakeDir)?;
        System.make_dir(at, name)
    }

    fn set_mode(&self, fd: &OwnedFd, mode: u32) -> io::Result<()> {
        self.call(Call::SetMode)?;
        System.set_mode(fd, mode)
    }

    fn create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        self.call(Call::Create)?;
        System.create(at, name)
    }

    fn open_or_create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        self.call(Call::OpenOrCreate)?;
        System.open_or_create(at, name)
    }

    fn open(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        self.call(Call::Open)?;
        System.open(at, name)
    }

    fn open_to_lock(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        self.call(Call::OpenToLock)?;
        System.open_to_lock(at, name)
    }

    fn stat(&self, fd: &OwnedFd) -> io::Result<Stat> {
        self.call(Call::Stat)?;
        System.stat(fd)
    }

    fn stat_link(&self, path: &Path) -> io::Result<Stat> {
        self.call(Call::StatLink)?;
        System.stat_link(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<(PathBuf, Stat)> {
        self.call(Call::ReadLink)?;
        System.read_link(path)
    }

    fn stat_at(&self, at: &OwnedFd, name: &str) -> io::Result<Stat> {
        self.call(Call::StatAt)?;
        System.stat_at(at, name)
    }

    fn read(&self, fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
        self.call(Call::Read)?;
        let most = self.most(into.len());
        System.read(fd, &mut into[..most])
    }

    fn write(&self, fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.call(Call::Write) {
            let state = self.0.lock().unwrap();
            if matches!(state.plan, Plan::Dead(from) if from + 1 == state.calls.len() as u64) {
                System.write(fd, &bytes[..bytes.len() / 2]).unwrap();
            }
            return Err(error);
        }
        System.write(fd, &bytes[..self.most(bytes.len())])
    }

    fn write_at(&self, fd: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.call(Call::WriteAt)?;
        System.write_at(fd, bytes, offset)
    }

    /// Does not sync, which would take most of the time of these tests: the call itself is what
    /// counts.
    fn sync(&self, _: &OwnedFd) -> io::Result<()> {
        self.call(Call::Sync)
    }

    fn rename(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()> {
        self.call(Call::Rename)?;
        System.rename(from, to)
    }

    fn link(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()> {
        self.call(Call::Link)?;
        System.link(from, to)
    }

    fn unlink(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        self.call(Call::Unlink)?;
        System.unlink(at, name)
    }

    fn remove_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        self.call(Call::RemoveDir)?;
        System.remove_dir(at, name)
    }

    fn list(&self, dir: &OwnedFd) -> io::Result<Vec<String>> {
        self.call(Call::List)?;
        System.list(dir)
    }

    fn touch(&self, fd: &OwnedFd) -> io::Result<()> {
        self.call(Call::Touch)?;
        System.touch(fd)
    }

    fn try_lock(&self, fd: &OwnedFd) -> io::Result<bool> {
        self.call(Call::TryLock)?;
        let reads_only = rustix::fs::fcntl_getfl(fd)?.intersection(rustix::fs::OFlags::RWMODE).is_empty();
        if self.0.lock().unwrap().plan == Plan::LocksNeedWriting && reads_only {
            return Err(Errno::BADF.into());
        }
        System.try_lock(fd)
    }
}
