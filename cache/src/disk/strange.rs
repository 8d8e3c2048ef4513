//! Recognizes and removes files that no process of this user made.
//!
//! Input: a folder and a name in it. Output: why the file is unusable; or a folder in which the
//! name is free.

use std::io;
use std::os::fd::OwnedFd;

use super::dirs::Dirs;
use super::files::{Files, Stat};
use super::random_name;

/// The mode bit that lets a file's owner read it.
pub(super) const OWNER_READS: u32 = 0o400;

/// Why a file cannot have been made, or cannot be read, by this process.
pub(super) fn unusable(stat: &Stat, user: u32) -> Option<&'static str> {
    if !stat.is_file {
        return Some("it is not a regular file");
    }
    if stat.owner != user {
        return Some("it belongs to another user");
    }
    (stat.mode & OWNER_READS == 0).then_some("its owner has no read permission")
}

/// Clears the name of an entry, whatever is there. A folder that is not empty is moved aside, where
/// it does no harm.
pub(super) fn clear(files: &dyn Files, dirs: &Dirs, name: &str) -> io::Result<()> {
    clear_in(files, dirs, &dirs.entries, name)
}

/// The same in any of the folders.
fn clear_in(files: &dyn Files, dirs: &Dirs, at: &OwnedFd, name: &str) -> io::Result<()> {
    let removed = files.unlink(at, name);
    let Err(error) = &removed else { return removed };
    // The errors for a folder in POSIX and on Linux.
    if !matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory) {
        return removed;
    }
    match files.stat_at(at, name) {
        Ok(stat) if stat.is_dir => {
            files.remove_dir(at, name).or_else(|_| files.rename((at, name), (&dirs.temp, &random_name()?)))
        }
        _ => removed,
    }
}

/// Clears a name if no process of this user could have made what is there, which would otherwise be
/// in the way for ever. Returns whether that was so.
pub(super) fn clear_strange(files: &dyn Files, dirs: &Dirs, at: &OwnedFd, name: &str) -> bool {
    let is_strange = files.stat_at(at, name).is_ok_and(|stat| unusable(&stat, files.user()).is_some());
    is_strange && clear_in(files, dirs, at, name).is_ok()
}
