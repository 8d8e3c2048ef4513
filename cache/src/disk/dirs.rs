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
//!   exchange what is in it. It is opened once; everything else is named relative to what was opened, and no link is followed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::files::{Files, Stat};
use super::{Off, Why, is_absent, is_link};
use crate::sealed::FORMAT;

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

impl Dirs {
    /// Opens the folders below `root`.
    pub(super) fn open(files: &dyn Files, root: &Path, missing: Missing) -> Result<Dirs, Off> {
        let top = open_private(files, root, missing)?;
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
            check(files, &dir, &path, made)?;
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

/// Opens a folder that only the user may use, by path; makes it, and those above it, if it is not there and may be made.
pub(super) fn open_private(files: &dyn Files, path: &Path, missing: Missing) -> Result<OwnedFd, Off> {
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
    check(files, &dir, path, made)?;
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

fn check(files: &dyn Files, dir: &OwnedFd, path: &Path, made: bool) -> Result<(), Off> {
    let broken = |error| Off::io("look at", path.to_owned(), error);
    if made {
        // Whatever mask the process has.
        files.set_mode(dir, 0o700).map_err(broken)?;
    }
    let stat = files.stat(dir).map_err(broken)?;
    match private(&stat, files.user()) {
        _ if !stat.is_dir => Err(Off { path: path.to_owned(), why: Why::NoFolder }),
        Some(why) => Err(Off { path: path.to_owned(), why }),
        None => Ok(()),
    }
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
