//! What lies in the folders and was not made by a process of this user: told apart, and taken out
//! of the way.
//!
//! Input: a folder and a name in it. Output: why it is of no use; or a folder in which the name is
//! free.

use std::io;
use std::os::fd::OwnedFd;

use super::dirs::Dirs;
use super::files::{Files, Stat};
use super::random_name;

/// The bit of a mode that lets a file's user read it.
pub(super) const OWNER_READS: u32 = 0o400;

/// Why what is under a name is nothing that this process has made or could read.
pub(super) fn unusable(stat: &Stat, user: u32) -> Option<&'static str> {
    if !stat.is_file {
        return Some("it is not a regular file");
    }
    if stat.owner != user {
        return Some("it belongs to another user");
    }
    (stat.mode & OWNER_READS == 0).then_some("its own user may not read it")
}

/// Clears what is under the name of an entry, whatever it is. A folder with something in it is put
/// aside, where it does no harm.
pub(super) fn clear(files: &dyn Files, dirs: &Dirs, name: &str) -> io::Result<()> {
    clear_in(files, dirs, &dirs.entries, name)
}

/// The same in any of the folders.
fn clear_in(files: &dyn Files, dirs: &Dirs, at: &OwnedFd, name: &str) -> io::Result<()> {
    let removed = files.unlink(at, name);
    let Err(error) = &removed else { return removed };
    // What POSIX says of a folder, and what Linux says.
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

/// Clears what is under a name if no process of this user could have made it: it would be in the
/// way for ever. Whether it was so.
pub(super) fn clear_strange(files: &dyn Files, dirs: &Dirs, at: &OwnedFd, name: &str) -> bool {
    let is_strange = files.stat_at(at, name).is_ok_and(|stat| unusable(&stat, files.user()).is_some());
    is_strange && clear_in(files, dirs, at, name).is_ok()
}
