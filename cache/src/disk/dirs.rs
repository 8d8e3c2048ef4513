//! The folders of the disk tier, opened once.
//!
//! ```text
//! ROOT/v1/           of one user, for nobody else
//!   entries/NAME     sealed entries
//!   temp/            entries that are being written, each locked by who writes it
//!   flights/NAME     locked by who makes the artifact of that name
//!   marks/           one file for each process, locked as long as it lives: what it is about to try for the first time
//!   quarantine/NAME  what ended a process
//! ```
//!
//! Invariants:
//! - DK3: a folder is used only if it is the user's own and nobody else may look into it or change it, and if none of those above it lets others
//!   exchange what is in it. It is opened once; everything else is named relative to what was opened, and no link is followed. The folder of the
//!   key's file may be looked into by others, and may be root's: what they may not is change it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::files::{Files, Stat};
use super::{Off, Why, is_absent, is_link};
use crate::sealed::FORMAT;

/// Who may do everything anyway.
pub(super) const ROOT: u32 = 0;

/// The open folders.
#[derive(Debug)]
pub(super) struct Dirs {
    pub(super) entries: OwnedFd,
    pub(super) temp: OwnedFd,
    pub(super) flights: OwnedFd,
    pub(super) marks: OwnedFd,
    pub(super) quarantine: OwnedFd,
}

/// Whether what is not there is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Refuse,
}

/// What others may do in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Nothing, and it is the user's own.
    Nothing,
    /// Look into it; and it may be root's.
    Look,
}

impl Dirs {
    /// Opens the folders below `root`.
    pub(super) fn open(files: &dyn Files, root: &Path, missing: Missing) -> Result<Dirs, Off> {
        let top = open_folder(files, root, missing, Others::Nothing)?;
        let within = |at: &OwnedFd, above: &Path, name: &str| {
            let path = above.join(name);
            let made = match missing {
                Missing::Refuse => false,
                Missing::Make => match files.make_dir(at, name) {
                    Ok(()) => true,
                    Err(error) if is_there(&error) => false,
                    Err(error) => return Err(Off::io("make", path, error)),
                },
            };
            let dir = files.open_dir(at, name).map_err(|error| not_opened(path.clone(), error))?;
            check(files, &dir, &path, made, Others::Nothing)?;
            Ok(dir)
        };
        let name = format!("v{FORMAT}");
        let (version, path) = (within(&top, root, &name)?, root.join(&name));
        let within = |name| within(&version, &path, name);
        Ok(Dirs {
            entries: within("entries")?,
            temp: within("temp")?,
            flights: within("flights")?,
            marks: within("marks")?,
            quarantine: within("quarantine")?,
        })
    }
}

fn is_there(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}

/// What the operating system says of what is no folder, or a link to one.
fn not_opened(path: PathBuf, error: io::Error) -> Off {
    match error.kind() {
        io::ErrorKind::NotADirectory => Off { path, why: Why::NoFolder },
        _ if is_link(&error) => Off { path, why: Why::NoFolder },
        _ => Off::io("open", path, error),
    }
}

/// Opens a folder that others may not change, by path; makes it, and those above it, if it is not there and may be made.
pub(super) fn open_folder(
    files: &dyn Files,
    path: &Path,
    missing: Missing,
    others: Others,
) -> Result<OwnedFd, Off> {
    let made = match missing {
        Missing::Make => make(files, path).map_err(|error| Off::io("make", path.to_owned(), error))?,
        Missing::Refuse => false,
    };
    // Whoever may rename things in a folder above could put another one here.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|error| Off::io("look at", parent.to_owned(), error))?;
    for above in parent.ancestors() {
        let stat = files.stat_path(above).map_err(|error| Off::io("look at", above.to_owned(), error))?;
        let (others_write, sticky) = (stat.mode & 0o002 != 0, stat.mode & 0o1000 != 0);
        if others_write && !sticky {
            return Err(Off { path: above.to_owned(), why: Why::OthersWrite });
        }
    }
    let dir = files.open_root(path).map_err(|error| not_opened(path.to_owned(), error))?;
    check(files, &dir, path, made, others)?;
    Ok(dir)
}

/// Whether the folder was made: it was not there.
fn make(files: &dyn Files, path: &Path) -> io::Result<bool> {
    match files.make_root(path) {
        Ok(()) => Ok(true),
        Err(error) if is_there(&error) => Ok(false),
        Err(error) if is_absent(&error) => {
            let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
                return Err(error);
            };
            make(files, parent)?;
            match files.make_root(path) {
                Err(error) if is_there(&error) => Ok(false),
                result => result.map(|()| true),
            }
        }
        Err(error) => Err(error),
    }
}

fn check(files: &dyn Files, dir: &OwnedFd, path: &Path, made: bool, others: Others) -> Result<(), Off> {
    let broken = |error| Off::io("look at", path.to_owned(), error);
    if made {
        // Whatever mask the process has.
        files.set_mode(dir, 0o700).map_err(broken)?;
    }
    let stat = files.stat(dir).map_err(broken)?;
    let why = match others {
        _ if !stat.is_dir => Some(Why::NoFolder),
        Others::Nothing => private(&stat, files.user()),
        Others::Look if stat.owner != files.user() && stat.owner != ROOT => {
            Some(Why::Owner { owner: stat.owner, user: files.user() })
        }
        Others::Look => (stat.mode & 0o022 != 0).then_some(Why::OthersChange(stat.mode)),
    };
    why.map_or(Ok(()), |why| Err(Off { path: path.to_owned(), why }))
}

/// Why a file or folder is not the user's alone.
pub(super) fn private(stat: &Stat, user: u32) -> Option<Why> {
    if stat.owner != user {
        return Some(Why::Owner { owner: stat.owner, user });
    }
    (stat.mode & 0o077 != 0).then_some(Why::Mode(stat.mode))
}

/// Splits a path into the folder and the name in it.
pub(super) fn split(path: &Path) -> Option<(PathBuf, &str)> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some((parent.unwrap_or(Path::new(".")).to_owned(), name))
}
