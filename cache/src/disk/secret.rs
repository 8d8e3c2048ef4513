//! The secret of a user: 32 random bytes in a file.
//!
//! The file is outside the cache folder, so a copy or a shared volume of the cache does not contain
//! the key of its entries. It is written under another name and then linked to its own. So it
//! exists completely or not at all, and several processes that create it at once use the same one.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::crash_marks::read_up_to;
use super::dirs::{CreatePolicy, Others, ROOT, Way, follow, open_folder, private, split};
use super::files::{Files, System};
use super::{DiskDisabled, Reason, flight, is_absent, is_link, random, random_name, write_all};
use crate::sealed::Secret;

const LEN: usize = 32;

/// Each further attempt means that another process creates it too.
const ATTEMPTS: u32 = 100;

/// Reads the secret; creates it if it does not exist and `missing` allows it.
pub(super) fn read_or_make(
    files: &dyn Files,
    path: &Path,
    missing: CreatePolicy,
) -> Result<Secret, DiskDisabled> {
    let (folder, name) = split(path).ok_or_else(|| DiskDisabled {
        path: path.to_owned(),
        why: Reason::KeyFile("its path has no file name"),
    })?;
    let dir = open_folder(files, &folder, missing, Others::Look)?;
    for _ in 0..ATTEMPTS {
        match (read(files, &dir, name, path)?, missing) {
            (Some(Found { secret, links }), _) => {
                // The process that created it ended before it removed the other name.
                if links > 1 && missing == CreatePolicy::Make {
                    clear(files, &dir, name);
                }
                return Ok(secret);
            }
            (None, CreatePolicy::Refuse) => {
                return Err(DiskDisabled {
                    path: path.to_owned(),
                    why: Reason::KeyFile("the file does not exist"),
                });
            }
            (None, CreatePolicy::Make) => {}
        }
        clear(files, &dir, name);
        match make(files, &dir, name) {
            // It exists already, or another process removed the temporary file as left behind,
            // before it was locked.
            Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
            made => made.map_err(|error| DiskDisabled::io("make", path.to_owned(), error))?,
        }
    }
    Err(DiskDisabled {
        path: path.to_owned(),
        why: Reason::KeyFile("it disappears as soon as it is created"),
    })
}

fn make(files: &dyn Files, dir: &OwnedFd, name: &str) -> io::Result<()> {
    let temp = format!("{name}.{}", random_name()?);
    let made = write(files, dir, &temp).and_then(|_lock| files.link((dir, &temp), (dir, name)));
    // A leftover file does no harm.
    drop(files.unlink(dir, &temp));
    made
}

/// Writes a secret; the result holds its lock.
fn write(files: &dyn Files, dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let secret: [u8; LEN] = random()?;
    let file = files.create(dir, name)?;
    drop(files.try_lock(&file));
    write_all(files, &file, &secret)?;
    // Without this a power cut may leave an empty file, and every entry would become useless.
    files.sync(&file)?;
    Ok(file)
}

/// Removes unfinished secrets of dead processes, so that no forgotten secret remains.
fn clear(files: &dyn Files, dir: &OwnedFd, name: &str) {
    let is_temp = |other: &String| {
        let random = other.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        random.is_some_and(|random| random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for temp in files.list(dir).unwrap_or_default().iter().filter(|other| is_temp(other)) {
        if let Ok(Some(_lock)) = flight::take_abandoned(files, dir, temp) {
            drop(files.unlink(dir, temp));
        }
    }
}

/// Reads a key that was put there by other means, such as that of a fleet or of a bundle: a file of
/// 32 bytes. The path may contain links, unless other users made them. The file must belong to the
/// user, with no access for others, or to root, with at most read access for its group.
///
/// # Errors
/// If the file does not meet these rules, or cannot be read.
pub fn read_key(path: &Path) -> Result<[u8; LEN], DiskDisabled> {
    let refuse = |why| DiskDisabled { path: path.to_owned(), why };
    let broken = |error| DiskDisabled::io("read", path.to_owned(), error);
    let _ = follow(&System, path, Way::Links)?;
    // Does not wait for the other end of a pipe.
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).map_err(broken)?;
    let meta = file.metadata().map_err(broken)?;
    let (owner, mode, user) = (meta.uid(), meta.mode() & 0o7777, geteuid().as_raw());
    if !meta.is_file() {
        return Err(refuse(Reason::KeyFile("it is not a regular file")));
    }
    if owner != user && owner != ROOT {
        return Err(refuse(Reason::Owner { owner, user }));
    }
    // Secrets that are mounted for a user other than root are readable through the group.
    let others = if owner == user { 0o077 } else { 0o037 };
    if mode & others != 0 {
        return Err(refuse(Reason::Mode(mode)));
    }
    let mut bytes = Vec::with_capacity(LEN + 1);
    file.take(LEN as u64 + 1).read_to_end(&mut bytes).map_err(broken)?;
    bytes.try_into().map_err(|_| refuse(Reason::KeyFile("it does not have 32 bytes")))
}

struct Found {
    secret: Secret,
    /// Number of hard links of its file.
    links: u64,
}

fn read(files: &dyn Files, dir: &OwnedFd, name: &str, path: &Path) -> Result<Option<Found>, DiskDisabled> {
    let broken = |error| DiskDisabled::io("read", path.to_owned(), error);
    let refuse = |why| Err(DiskDisabled { path: path.to_owned(), why });
    let file = match files.open(dir, name) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) if is_link(&error) => return refuse(Reason::KeyFile("it is a link")),
        Err(error) => return Err(broken(error)),
    };
    let stat = files.stat(&file).map_err(broken)?;
    if !stat.is_file {
        return refuse(Reason::KeyFile("it is not a regular file"));
    }
    if let Some(why) = private(&stat, files.user()) {
        return refuse(why);
    }
    // One byte more than expected, to detect a longer file.
    let bytes = read_up_to(files, &file, LEN + 1).map_err(broken)?;
    match bytes.try_into() {
        Ok(secret) => Ok(Some(Found { secret: Secret::new(secret), links: stat.links })),
        Err(_) => refuse(Reason::KeyFile("it does not have 32 bytes; remove it, and a new one is created")),
    }
}
