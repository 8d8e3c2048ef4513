//! The file system calls of the disk tier.
//!
//! They are a trait, so that tests can make any call fail, tear or be the last one of the process,
//! and can let time pass. All paths except the root's are names in an open folder, so replacing a
//! path meanwhile has no effect.

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

/// Metadata of an open file or folder.
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
    /// Its permissions, the lowest twelve bits of its mode.
    pub mode: u32,
    /// Number of hard links.
    pub links: u64,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written to or touched.
    pub modified: SystemTime,
    /// Its identity: device and inode.
    pub identity: (u64, u64),
}

/// Calls of the operating system, with its errors.
pub trait Files: Send + Sync + fmt::Debug {
    /// The user whose files are trusted.
    fn user(&self) -> u32;

    /// The id of this process. A forked process is another one: what it has copies of is not its
    /// own.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// Wall-clock time, which file times are compared with.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Monotonic time, which does not depend on the wall clock.
    fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Opens a folder by path; the last part must not be a link.
    ///
    /// # Errors
    /// The operating system's.
    fn open_root(&self, path: &Path) -> io::Result<OwnedFd>;

    /// Creates a folder that only its owner may access, by path.
    ///
    /// # Errors
    /// The operating system's.
    fn make_root(&self, path: &Path) -> io::Result<()>;

    /// Opens a folder inside a folder; it must not be a link.
    ///
    /// # Errors
    /// The operating system's.
    fn open_dir(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Creates a folder that only its owner may access.
    ///
    /// # Errors
    /// The operating system's.
    fn make_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()>;

    /// Sets the permissions, independent of the umask.
    ///
    /// # Errors
    /// The operating system's.
    fn set_mode(&self, fd: &OwnedFd, mode: u32) -> io::Result<()>;

    /// Creates a file that did not exist, for writing, accessible to its owner only.
    ///
    /// # Errors
    /// The operating system's.
    fn create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Opens or creates a file, accessible to its owner only; it must not be a link.
    ///
    /// # Errors
    /// The operating system's.
    fn open_or_create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Opens a file for reading; it must not be a link. Does not wait for the other end of a pipe.
    ///
    /// # Errors
    /// The operating system's.
    fn open(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Opens an existing file for locking and reading; it must not be a link or a folder. On a
    /// network file system only a writable file can be locked.
    ///
    /// # Errors
    /// The operating system's.
    fn open_to_lock(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd>;

    /// Metadata of an open file.
    ///
    /// # Errors
    /// The operating system's.
    fn stat(&self, fd: &OwnedFd) -> io::Result<Stat>;

    /// Metadata of a path; a link is not followed.
    ///
    /// # Errors
    /// The operating system's.
    fn stat_link(&self, path: &Path) -> io::Result<Stat>;

    /// The target of a link, and the metadata of that link.
    ///
    /// # Errors
    /// The operating system's; `InvalidInput` if it is not a link.
    fn read_link(&self, path: &Path) -> io::Result<(PathBuf, Stat)>;

    /// Whether a group contains only the user, as far as can be told. Users with a private group
    /// let it write to their folders.
    fn is_private_group(&self, group: u32) -> bool {
        is_private_group(self.user(), group)
    }

    /// Metadata of a name; a link is not followed.
    ///
    /// # Errors
    /// The operating system's.
    fn stat_at(&self, at: &OwnedFd, name: &str) -> io::Result<Stat>;

    /// Reads some bytes; 0 at the end of the file.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&self, fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn write(&self, fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize>;

    /// Writes all bytes at an offset, or fails.
    ///
    /// # Errors
    /// The operating system's.
    fn write_at(&self, fd: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Waits until the bytes of a file, or the names in a folder, are on disk.
    ///
    /// # Errors
    /// The operating system's.
    fn sync(&self, fd: &OwnedFd) -> io::Result<()>;

    /// Renames a file, replacing any other.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()>;

    /// Creates a hard link, if the name is free.
    ///
    /// # Errors
    /// The operating system's.
    fn link(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()>;

    /// Removes a file's name.
    ///
    /// # Errors
    /// The operating system's.
    fn unlink(&self, at: &OwnedFd, name: &str) -> io::Result<()>;

    /// Removes an empty folder.
    ///
    /// # Errors
    /// The operating system's.
    fn remove_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()>;

    /// The names in a folder.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self, dir: &OwnedFd) -> io::Result<Vec<String>>;

    /// Updates the times of a file.
    ///
    /// # Errors
    /// The operating system's.
    fn touch(&self, fd: &OwnedFd) -> io::Result<()>;

    /// Locks a file unless it is locked; returns whether it did. The lock is released when the file
    /// is closed, at the latest when the process ends.
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

/// Retries a call that a signal interrupted.
fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Reads a link and its metadata from one open link, because the path may be replaced meanwhile.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_link_with_stat(path: &Path) -> io::Result<(CString, Stat)> {
    // Usually it is not a link, which takes one call to find out.
    again(|| fs::readlink(path, Vec::new()))?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = again(|| fs::open(path, flags, Mode::empty()))?;
    let stat = again(|| fs::fstat(&link)).map(|stat| stat_of(&stat))?;
    if stat.is_file || stat.is_dir {
        return Err(Errno::INVAL.into());
    }
    let target = again(|| fs::readlinkat(&link, "", Vec::new()));
    // Linux returns ENOENT for an open file that is not a link.
    target.map(|target| (target, stat)).map_err(|_| Errno::INVAL.into())
}

/// Reads a link, its metadata, and the link again, on systems that cannot open a link. Both reads
/// have to give the same target.
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

/// Whether a group is private to the user: it has the user's number, the process runs with it, and
/// it lists no members.
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

/// Rejects a write that ends beyond the maximum file size of this process (`ulimit -f`). The system
/// would reject it too, and send a signal that ends the process; a library must not change the
/// signal's disposition.
///
/// # Errors
/// `EFBIG`.
pub(crate) fn check_limit(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if end > limit => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// The same for `len` bytes at the current offset of a file.
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
        // The standard library's call for each system suffices, because the file gets its name
        // afterwards.
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
            // A name that is not UTF-8 is not one of ours.
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
