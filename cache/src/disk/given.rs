//! Files that a user names: bundles, manifests, programs, pages.
//!
//! Input: a path. Output: an open regular file with its length, or a file that was written. The
//! rules are those of the folders: a link that another user made in a folder where others may write
//! is not followed, opening does not wait for the other end of a pipe, and a write beyond `ulimit
//! -f` is an error instead of the end of the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::dirs::{Way, follow};
use super::files::{System, check_limit, check_limit_of};

/// How often [`open`] retries if others replace the file meanwhile.
const MAX_ATTEMPTS: u32 = 8;

/// Opens a regular file for reading; returns its length too.
///
/// # Errors
/// The operating system's; if it is not a regular file; if another user made a link in its path.
pub fn open_given(path: &Path) -> io::Result<(File, u64)> {
    let file = open(OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32), path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok((file, metadata.len()))
}

/// Writes a file and replaces its contents; it may be a terminal or a pipe.
///
/// # Errors
/// The operating system's; if another user made a link in its path.
pub fn write_given(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if !std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        // Before the file is created or truncated.
        check_limit(bytes.len() as u64)?;
    }
    let file = open(OpenOptions::new().write(true).create(true).truncate(false), path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Output::new(file).write_all(bytes)
}

/// Resolves the links in the path of a file that is to be created.
///
/// # Errors
/// The operating system's; if another user made a link in the path of its folder.
pub fn resolve_new(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(resolve(folder.unwrap_or(Path::new(".")))?.join(name))
}

/// Resolves the links in a path.
///
/// # Errors
/// The operating system's; if another user made one of them.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    follow(&System, path, Way::Links).map_err(|off| match off.why {
        super::Reason::Io { error, .. } => error,
        _ => io::Error::new(io::ErrorKind::PermissionDenied, off.to_string()),
    })
}

/// Opens a file, unless another user made a link in its path. The path is resolved again after the
/// file is open, and has to lead to the open file.
fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    resolve(path)?;
    for _ in 0..MAX_ATTEMPTS {
        let file = options.open(path)?;
        let opened = file.metadata()?;
        // `/dev/stdout` may be a terminal or a pipe, which has no path to compare.
        if !opened.is_file() {
            return Ok(file);
        }
        let is_same = std::fs::symlink_metadata(resolve(path)?)
            .is_ok_and(|found| (found.dev(), found.ino()) == (opened.dev(), opened.ino()));
        if is_same {
            return Ok(file);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "another process keeps replacing the file while it is opened",
    ))
}

/// A file for writing. A write beyond `ulimit -f` is an error.
#[derive(Debug)]
pub struct Output(File);

impl Output {
    /// Writes to a file at its current offset, or at its end in append mode.
    #[must_use]
    pub fn new(file: File) -> Output {
        Output(file)
    }

    /// Opens a regular file for appending and reading; creates it if it does not exist.
    ///
    /// # Errors
    /// The operating system's; if it is not a regular file; if another user made a link in its
    /// path.
    pub fn append(path: &Path) -> io::Result<Output> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = open(&options, path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(Output(file))
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check_limit_of(&self.0, bytes.len())?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
