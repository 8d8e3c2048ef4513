//! The folders of the disk tier, opened once.
//!
//! ```text
//! ROOT/v1/           owned by one user, no access for others
//!   entries/NAME     sealed entries
//!   temp/            entries that are being written, each locked by its writer
//!   flights/NAME     locked by the process that compiles that artifact
//!   marks/           crash marks: a file for each process, locked while it lives
//!   quarantine/NAME  what crashed a process
//! ```
//!
//! Invariants:
//! - DISK-3: a folder is used only if it belongs to the user and others can neither read nor change
//!   it, and if each folder above it belongs to the user or root and others cannot replace what is
//!   in it. Nothing is created before this is checked. The folder is opened once; everything else
//!   is named relative to the open folder, and no link is followed. On the way to it, links that
//!   the user or root made are followed. The folder of the key's file may be readable for others,
//!   and may belong to root, but others must not be able to change it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use super::files::{Files, Stat};
use super::{DiskDisabled, Reason, is_absent, is_link};
use crate::sealed::FORMAT;

/// The user id of root, who has access to everything anyway.
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

/// Whether missing folders are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreatePolicy {
    Make,
    Refuse,
}

/// The permitted access of others to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// None, and the folder belongs to the user.
    Nothing,
    /// Reading; and the folder may belong to root.
    Look,
}

impl Dirs {
    /// Opens the folders below `root`.
    pub(super) fn open(files: &dyn Files, root: &Path, missing: CreatePolicy) -> Result<Dirs, DiskDisabled> {
        let top = open_folder(files, root, missing, Others::Nothing)?;
        let within = |at: &OwnedFd, above: &Path, name: &str| {
            let path = above.join(name);
            let made = match missing {
                CreatePolicy::Refuse => false,
                CreatePolicy::Make => match files.make_dir(at, name) {
                    Ok(()) => true,
                    Err(error) if already_exists(&error) => false,
                    Err(error) => return Err(DiskDisabled::io("make", path, error)),
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

fn already_exists(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}

/// The error for a path that is not a folder, or is a link to one.
fn not_opened(path: PathBuf, error: io::Error) -> DiskDisabled {
    match error.kind() {
        io::ErrorKind::NotADirectory => DiskDisabled { path, why: Reason::NoFolder },
        _ if is_link(&error) => DiskDisabled { path, why: Reason::NoFolder },
        _ => DiskDisabled::io("open", path, error),
    }
}

/// Opens a folder that others may not change, by path. Creates it and its parents if they are
/// missing and `missing` allows it.
pub(super) fn open_folder(
    files: &dyn Files,
    path: &Path,
    missing: CreatePolicy,
    others: Others,
) -> Result<OwnedFd, DiskDisabled> {
    let parent = match path.parent() {
        // The root has no parent.
        None => path,
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    // Anyone who can rename entries of a parent folder could replace this one, and the owner of a
    // link on the path decides where folders are created.
    let mut real = follow(files, parent, Way::Folders)?;
    let mut made = false;
    if missing == CreatePolicy::Make {
        // A path without a last name exists already: the root, or `..`.
        let below = |real: &Path| path.file_name().map(|name| real.join(name));
        if let Some(folder) = below(&real) {
            made = make(files, &folder).map_err(|error| DiskDisabled::io("make", path.to_owned(), error))?;
        }
        // Missing parents were created since, possibly by another process.
        real = follow(files, parent, Way::Folders)?;
    }
    let real = path.file_name().map_or_else(|| path.to_owned(), |name| real.join(name));
    let dir = files.open_root(&real).map_err(|error| not_opened(path.to_owned(), error))?;
    check(files, &dir, path, made, others)?;
    Ok(dir)
}

/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The requirements on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Nobody else may replace a folder in it, or has made a link in it.
    Folders,
    /// Nobody else has made a link in it, in a folder where others may create some.
    Links,
}

/// The path without links, as far as it exists.
pub(super) fn follow(files: &dyn Files, path: &Path, way: Way) -> Result<PathBuf, DiskDisabled> {
    let broken = |at: &Path, error| DiskDisabled::io("examine", at.to_owned(), error);
    let names = |path: &Path| -> Vec<OsString> {
        let name = |part: Component<'_>| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        };
        path.components().rev().filter_map(name).collect()
    };
    let from = match path.is_absolute() {
        true => PathBuf::new(),
        false => std::env::current_dir().map_err(|error| broken(Path::new("."), error))?,
    };
    let mut left = names(&from.join(path));
    let top = PathBuf::from("/");
    let look = |at: &Path| {
        let stat = files.stat_link(at).map_err(|error| broken(at, error))?;
        match way {
            Way::Folders => check_above(files, at, &stat).map(|()| stat),
            Way::Links => Ok(stat),
        }
    };
    let (mut at, mut within) = (top.clone(), look(&top)?);
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            within = look(&at)?;
            continue;
        }
        let next = at.join(&name);
        match files.read_link(&next) {
            Ok((target, link)) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(broken(path, rustix::io::Errno::LOOP.into()));
                }
                if may_others_add(files, &within) {
                    let owner = link.owner;
                    if owner != files.user() && owner != ROOT {
                        return Err(DiskDisabled { path: next, why: Reason::Link(owner) });
                    }
                }
                if target.is_absolute() {
                    (at, within) = (top.clone(), look(&top)?);
                }
                left.extend(names(&target));
            }
            // It is not a link.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                // The caller checks the file itself.
                if way == Way::Folders || !left.is_empty() {
                    within = look(&next)?;
                }
                at = next;
            }
            Err(error) if is_absent(&error) => {
                at = next;
                at.extend(left.iter().rev());
                return Ok(at);
            }
            Err(error) => return Err(broken(&next, error)),
        }
    }
    Ok(at)
}

/// Whether another user may create entries in a folder.
fn may_others_add(files: &dyn Files, folder: &Stat) -> bool {
    let is_safe = |owner: u32| owner == files.user() || owner == ROOT;
    !is_safe(folder.owner)
        || folder.mode & 0o002 != 0
        || (folder.mode & 0o020 != 0 && !files.is_private_group(folder.group))
}

/// Checks that nobody else may replace what is in a folder. A sticky folder, like the one for
/// temporary files, meets this, because users can only remove their own files there.
fn check_above(files: &dyn Files, path: &Path, stat: &Stat) -> Result<(), DiskDisabled> {
    let (owner, user) = (stat.owner, files.user());
    let why = if !stat.is_dir {
        let error = io::ErrorKind::NotADirectory.into();
        Some(Reason::Io { doing: "look into", error })
    } else if owner != user && owner != ROOT {
        Some(Reason::Owner { owner, user })
    } else {
        let is_sticky = stat.mode & 0o1000 != 0;
        (may_others_add(files, stat) && !is_sticky).then_some(Reason::OthersWrite)
    };
    why.map_or(Ok(()), |why| Err(DiskDisabled { path: path.to_owned(), why }))
}

/// Creates a folder and its parents; returns whether it was missing.
fn make(files: &dyn Files, path: &Path) -> io::Result<bool> {
    match files.make_root(path) {
        Ok(()) => Ok(true),
        Err(error) if already_exists(&error) => Ok(false),
        Err(error) if is_absent(&error) => {
            let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
                return Err(error);
            };
            make(files, parent)?;
            match files.make_root(path) {
                Err(error) if already_exists(&error) => Ok(false),
                result => result.map(|()| true),
            }
        }
        Err(error) => Err(error),
    }
}

fn check(
    files: &dyn Files,
    dir: &OwnedFd,
    path: &Path,
    made: bool,
    others: Others,
) -> Result<(), DiskDisabled> {
    let broken = |error| DiskDisabled::io("examine", path.to_owned(), error);
    if made {
        // Independent of the umask.
        files.set_mode(dir, 0o700).map_err(broken)?;
    }
    let stat = files.stat(dir).map_err(broken)?;
    let why = match others {
        _ if !stat.is_dir => Some(Reason::NoFolder),
        Others::Nothing => private(&stat, files.user()),
        Others::Look if stat.owner != files.user() && stat.owner != ROOT => {
            Some(Reason::Owner { owner: stat.owner, user: files.user() })
        }
        Others::Look => (stat.mode & 0o022 != 0).then_some(Reason::OthersChange(stat.mode)),
    };
    why.map_or(Ok(()), |why| Err(DiskDisabled { path: path.to_owned(), why }))
}

/// Why a file or folder is not private to the user.
pub(super) fn private(stat: &Stat, user: u32) -> Option<Reason> {
    if stat.owner != user {
        return Some(Reason::Owner { owner: stat.owner, user });
    }
    (stat.mode & 0o077 != 0).then_some(Reason::Mode(stat.mode))
}

/// Splits a path into the folder and the name in it.
pub(super) fn split(path: &Path) -> Option<(PathBuf, &str)> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some((parent.unwrap_or(Path::new(".")).to_owned(), name))
}
