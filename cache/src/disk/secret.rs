//! The secret of a user: 32 random bytes in a file of their own.
//!
//! It lies outside the cache folder, so that a copy or a shared volume of the cache does not carry what its entries are sealed with. It is
//! written to a file of another name and then linked to its own: it is there whole or not at all, and of several processes that make it at
//! once all use the same.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::dirs::{open_private, private, split};
use super::files::Files;
use super::{Off, Why, random_name};
use crate::sealed::Secret;

const LEN: usize = 32;

/// Reads the secret, and makes it if it is not there and may be made.
pub(super) fn read_or_make(files: &dyn Files, path: &Path, make: bool) -> Result<Secret, Off> {
    let (folder, name) = split(path)
        .ok_or_else(|| Off { path: path.to_owned(), why: Why::KeyFile("its path has no name") })?;
    let dir = open_private(files, &folder)?;
    match read(files, &dir, name, path)? {
        Some(secret) => return Ok(secret),
        None if make => {}
        None => return Err(Off { path: path.to_owned(), why: Why::KeyFile("there is none") }),
    }
    let broken = |error| Off::io("make", path.to_owned(), error);
    let temp = format!("{name}.{}", random_name().map_err(broken)?);
    let made = write(files, &dir, &temp).and_then(|()| match files.link((&dir, &temp), (&dir, name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    });
    let removed = files.unlink(&dir, &temp);
    made.and(removed).map_err(broken)?;
    read(files, &dir, name, path)?
        .ok_or_else(|| Off { path: path.to_owned(), why: Why::KeyFile("it went away") })
}

fn write(files: &dyn Files, dir: &OwnedFd, name: &str) -> io::Result<()> {
    let mut secret = [0; LEN];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let file = files.create(dir, name)?;
    if files.write(&file, &secret)? < LEN {
        return Err(io::ErrorKind::WriteZero.into());
    }
    // Without it a power cut may leave a file of nothing, and every entry would be of no use.
    files.sync(&file)
}

fn read(files: &dyn Files, dir: &OwnedFd, name: &str, path: &Path) -> Result<Option<Secret>, Off> {
    let broken = |error| Off::io("read", path.to_owned(), error);
    let refuse = |why| Err(Off { path: path.to_owned(), why });
    let file = match files.open(dir, name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(error)),
    };
    let stat = files.stat(&file).map_err(broken)?;
    if !stat.is_file {
        return refuse(Why::KeyFile("it is not a regular file"));
    }
    if let Some(why) = private(&stat, files.user()) {
        return refuse(why);
    }
    // One more than it should have.
    let mut bytes = [0; LEN + 1];
    let mut len = 0;
    while len < bytes.len() {
        match files.read(&file, &mut bytes[len..]).map_err(broken)? {
            0 => break,
            more => len += more,
        }
    }
    match bytes[..len].try_into() {
        Ok(secret) => Ok(Some(Secret::new(secret))),
        Err(_) => refuse(Why::KeyFile("it does not have 32 bytes; remove it to have a new one made")),
    }
}
