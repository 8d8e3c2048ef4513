//! Every call that the disk tier makes of the file system.
//!
//! One trait, so that tests can let any call fail, tear or be the last one of the process, and let
//! time pass. All paths but the root's are names in an open folder: what somebody does to a path
//! meanwhile changes nothing.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags, Timestamps};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// What is known of an open file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// It is a regular file.
    pub is_file: bool,
    /// It is a folder.
    pub is_dir: bool,
    /// Its owner.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Who may do what, as the lowest twelve bits of its mode.
    pub mode: u32,
    /// Names that it has.
    pub links: u64,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written to or touched.
    pub modified: SystemTime,
    /// Which file it is: device and number.
    pub identity: (u64, u64),
}

/// Calls of the operating system; they fail as it does.
pub trait Files: Send + Sync + fmt::Debug {
    /// The user whose files may be trusted.
    fn user(&self) -> u32;

    /// This process. One that was forked is another: what it has copies of is not its own.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// The time of day, which the times of files are compared with.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// The time that passes, whatever the clock is set to.
    fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Opens a folder by path; the last part must not be a link.
    ///
    /// # Errors
    /// The operating system's.
    fn open_root(&self, path: &Path) -> io::Result<OwnedFd>;

    /// Makes a folder that only its owner may use, by path.
    ///
    /// # Errors
    /// The operating system's.
    fn make_root(&self, path: &Path) -> io::Result<()>;

    /// Opens a folder in a folder; it must not be a link.
    ///
    /// # Errors
    /// The operating system's.
    fn open_dir(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Makes a folder that only its owner may use.
    ///
    /// # Errors
    /// The operating system's.
    fn make_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()>;

    /// Says who may do what, whatever mask the process has.
    ///
    /// # Errors
    /// The operating system's.
    fn set_mode(&self, fd: &OwnedFd, mode: u32) -> io::Result<()>;

    /// Makes a file that was not there, for its owner alone, to write to.
    ///
    /// # Errors
    /// The operating system's.
    fn create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Opens a file, or makes it, for its owner alone; it must not be a link.
    ///
    /// # Errors
    /// The operating system's.
    fn open_or_create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Opens a file to read; it must not be a link, and a pipe is not waited for.
    ///
    /// # Errors
    /// The operating system's.
    fn open(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Opens a file that is there, to lock it and to read it; it must not be a link or a folder. On
    /// a file system that is another machine's only what may be written to can be locked.
    ///
    /// # Errors
    /// The operating system's.
    fn open_to_lock(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// What an open file is.
    ///
    /// # Errors
    /// The operating system's.
    fn stat(&self, fd: &OwnedFd) -> io::Result<Stat>;

    /// What is under a path; a link is not followed.
    ///
    /// # Errors
    /// The operating system's.
    fn stat_link(&self, path: &Path) -> io::Result<Stat>;

    /// The target of a link, and the metadata of that link.
    ///
    /// # Errors
    /// The operating system's; `InvalidInput` for what is no link.
    fn read_link(&self, path: &Path) -> io::Result<(PathBuf, Stat)>;

    /// Whether nobody but the user is in a group, as far as can be told. Who runs with a group of
    /// their own lets it write to their folders.
    fn is_private_group(&self, group: u32) -> bool {
        is_private_group(self.user(), group)
    }

    /// What is under a name; a link is not followed.
    ///
    /// # Errors
    /// The operating system's.
    fn stat_at(&self, at: &OwnedFd, name: &str) -> io::Result<Stat>;

    /// Reads some bytes; none at the end.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&self, fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn write(&self, fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize>;

    /// Writes bytes at a place, all of them or none.
    ///
    /// # Errors
    /// The operating system's.
    fn write_at(&self, fd: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Waits until the bytes of a file, or the names in a folder, are on the disk.
    ///
    /// # Errors
    /// The operating system's.
    fn sync(&self, fd: &OwnedFd) -> io::Result<()>;

    /// Puts a file in the place of another one, or of none.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()>;

    /// Gives a file a second name, if nothing has it.
    ///
    /// # Errors
    /// The operating system's.
    fn link(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()>;

    /// Takes a file's name away.
    ///
    /// # Errors
    /// The operating system's.
    fn unlink(&self, at: &OwnedFd, name: &str) -> io::Result<()>;

    /// Takes the name of a folder away in which there is nothing.
    ///
    /// # Errors
    /// The operating system's.
    fn remove_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()>;

    /// The names in a folder.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self, dir: &OwnedFd) -> io::Result<Vec<String>>;

    /// Says that a file is used now.
    ///
    /// # Errors
    /// The operating system's.
    fn touch(&self, fd: &OwnedFd) -> io::Result<()>;

    /// Takes the lock of a file if nobody has it; whether it did. It is given back when the file is
    /// closed, at the latest when the process ends.
    ///
    /// # Errors
    /// The operating system's.
    fn try_lock(&self, fd: &OwnedFd) -> io::Result<bool>;
}

/// The operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// A call that a signal may interrupt.
fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Reads a link and its metadata from one open link: others may exchange what is under the path.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_link_with_stat(path: &Path) -> io::Result<(CString, Stat)> {
    // The common case is no link, and needs one call.
    again(|| fs::readlink(path, Vec::new()))?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = again(|| fs::open(path, flags, Mode::empty()))?;
    let stat = again(|| fs::fstat(&link)).map(|stat| stat_of(&stat))?;
    if stat.is_file || stat.is_dir {
        return Err(Errno::INVAL.into());
    }
    let target = again(|| fs::readlinkat(&link, "", Vec::new()));
    // Linux returns ENOENT for an open file that is no link.
    target.map(|target| (target, stat)).map_err(|_| Errno::INVAL.into())
}

/// Reads a link, its metadata, and the link again, where a link cannot be opened. Both reads have
/// to give the same target.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read_link_with_stat(path: &Path) -> io::Result<(CString, Stat)> {
    let target = again(|| fs::readlink(path, Vec::new()))?;
    let stat = again(|| fs::lstat(path)).map(|stat| stat_of(&stat))?;
    match again(|| fs::readlink(path, Vec::new()))? == target {
        true => Ok((target, stat)),
        false => Err(Errno::LOOP.into()),
    }
}

#[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "the types differ between systems")]
fn stat_of(stat: &fs::Stat) -> Stat {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let modified = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos)).unwrap_or(UNIX_EPOCH);
    Stat {
        is_file: kind == FileType::RegularFile,
        is_dir: kind == FileType::Directory,
        owner: stat.st_uid,
        group: stat.st_gid,
        mode: stat.st_mode as u32 & 0o7777,
        links: stat.st_nlink as u64,
        size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
        modified,
        identity: (stat.st_dev as u64, stat.st_ino as u64),
    }
}

/// Whether a group is the user's alone: it has the user's number, the process runs with it, and no
/// member is listed.
fn is_private_group(user: u32, group: u32) -> bool {
    if group != user || group != rustix::process::getegid().as_raw() {
        return false;
    }
    let listed = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let has_members = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let is_it = fields.next().is_some_and(|number| number.parse() == Ok(group));
        is_it && fields.next().is_some_and(|members| !members.trim().is_empty())
    };
    !listed.lines().any(has_members)
}

/// Refuses a write that ends behind where a file of this process may end (`ulimit -f`). The system
/// would refuse it too, and send a signal that ends the process; what it does about signals is not
/// a library's to change.
///
/// # Errors
/// `EFBIG`.
pub(crate) fn check_limit(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if end > limit => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// The same for so many bytes that are written where a file is at.
pub(super) fn check_limit_of(file: impl AsFd, len: usize) -> io::Result<()> {
    if getrlimit(Resource::Fsize).current.is_none() {
        return Ok(());
    }
    let stat = fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let at = match fs::fcntl_getfl(&file)?.contains(OFlags::APPEND) {
        true => u64::try_from(stat.st_size).unwrap_or(u64::MAX),
        false => fs::tell(&file)?,
    };
    check_limit(at.saturating_add(len as u64))
}

impl Files for System {
    fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn open_root(&self, path: &Path) -> io::Result<OwnedFd> {
        again(|| fs::open(path, DIR, Mode::empty()))
    }

    fn make_root(&self, path: &Path) -> io::Result<()> {
        again(|| fs::mkdir(path, Mode::RWXU))
    }

    fn open_dir(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        again(|| fs::openat(at, name, DIR, Mode::empty()))
    }

    fn make_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        again(|| fs::mkdirat(at, name, Mode::RWXU))
    }

    fn set_mode(&self, fd: &OwnedFd, mode: u32) -> io::Result<()> {
        again(|| fs::fchmod(fd, Mode::from_bits_truncate(mode as _)))
    }

    fn create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE;
        again(|| fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR))
    }

    fn open_or_create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | SAFE;
        again(|| fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR))
    }

    fn open(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        again(|| fs::openat(at, name, OFlags::RDONLY | SAFE, Mode::empty()))
    }

    fn open_to_lock(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        again(|| fs::openat(at, name, OFlags::RDWR | SAFE, Mode::empty()))
    }

    fn stat(&self, fd: &OwnedFd) -> io::Result<Stat> {
        again(|| fs::fstat(fd)).map(|stat| stat_of(&stat))
    }

    fn stat_link(&self, path: &Path) -> io::Result<Stat> {
        again(|| fs::lstat(path)).map(|stat| stat_of(&stat))
    }

    fn read_link(&self, path: &Path) -> io::Result<(PathBuf, Stat)> {
        let (target, stat) = read_link_with_stat(path)?;
        Ok((std::ffi::OsString::from_vec(target.into_bytes()).into(), stat))
    }

    fn stat_at(&self, at: &OwnedFd, name: &str) -> io::Result<Stat> {
        again(|| fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)).map(|stat| stat_of(&stat))
    }

    fn read(&self, fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
        again(|| rustix::io::read(fd, &mut *into))
    }

    fn write(&self, fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        check_limit_of(fd, bytes.len())?;
        again(|| rustix::io::write(fd, bytes))
    }

    fn write_at(&self, fd: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()> {
        check_limit(offset.saturating_add(bytes.len() as u64))?;
        let written = again(|| rustix::io::pwrite(fd, bytes, offset))?;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn sync(&self, fd: &OwnedFd) -> io::Result<()> {
        // What the library does for each system is enough: the name comes after.
        File::from(fd.try_clone()?).sync_data()
    }

    fn rename(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()> {
        again(|| fs::renameat(from.0, from.1, to.0, to.1))
    }

    fn link(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()> {
        again(|| fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty()))
    }

    fn unlink(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        again(|| fs::unlinkat(at, name, AtFlags::empty()))
    }

    fn remove_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        again(|| fs::unlinkat(at, name, AtFlags::REMOVEDIR))
    }

    fn list(&self, dir: &OwnedFd) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(dir.as_fd())? {
            // What has a name that is no text is none of ours.
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn touch(&self, fd: &OwnedFd) -> io::Result<()> {
        let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        again(|| fs::futimens(fd, &Timestamps { last_access: now, last_modification: now }))
    }

    fn try_lock(&self, fd: &OwnedFd) -> io::Result<bool> {
        match again(|| fs::flock(fd, FlockOperation::NonBlockingLockExclusive)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            result => result.map(|()| true),
        }
    }
}
