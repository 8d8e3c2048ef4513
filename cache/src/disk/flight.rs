//! Single flight among processes: one compiles an artifact, the others wait for it, for a bounded
//! time.
//!
//! A process that is about to compile an artifact locks a file with its name. The lock ends with
//! the process, however that ends, so nothing has to be cleaned up, and no clock decides which
//! processes are alive. The lock holder removes the file. A process that locks a file that has lost
//! its name since tries again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dirs::Dirs;
use super::files::Files;
use super::{DiskCache, clear_strange, is_absent, is_folder_removed};
use crate::name::{Name, Request};
use crate::sealed::Record;

/// The intervals of polling another process: short at first.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(20);

/// The right to compile an artifact, among all processes that share the folder. Dropping it lets
/// the others continue.
#[derive(Debug)]
pub struct Flight {
    files: Arc<dyn Files>,
    dirs: Arc<Dirs>,
    name: String,
    process: u32,
    _lock: OwnedFd,
}

/// The outcome of joining a flight.
#[derive(Debug)]
pub enum JoinOutcome {
    /// No other process is compiling it: the caller does.
    Leader(Flight),
    /// Another process has compiled it.
    Ready(Record),
    /// Another process takes so long that the caller should compile it too, or locks do not work
    /// here.
    NoLock,
}

/// Whether a process holds the lock of this name.
pub(super) fn is_held(files: &dyn Files, dirs: &Dirs, name: &str) -> io::Result<bool> {
    match files.open_to_lock(&dirs.flights, name) {
        Ok(file) => files.try_lock(&file).map(|free| !free),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks a name, unless it is locked.
pub(super) fn take(files: &Arc<dyn Files>, dirs: &Arc<Dirs>, name: String) -> io::Result<Option<Flight>> {
    // Each further attempt means that another flight has just ended.
    for _ in 0..100 {
        let lock = match files.open_or_create(&dirs.flights, &name) {
            // A foreign file is not a flight.
            Err(_) if clear_strange(&**files, dirs, &dirs.flights, &name) => continue,
            lock => lock?,
        };
        if !files.try_lock(&lock)? {
            return Ok(None);
        }
        if files.stat(&lock)?.links > 0 {
            let (files, dirs, process) = (files.clone(), dirs.clone(), files.process());
            return Ok(Some(Flight { files, dirs, name, process, _lock: lock }));
        }
    }
    Ok(None)
}

/// Locks an existing file. `None` if another process holds the lock, or held it and has removed the
/// file. While the result lives, no other process uses or removes the file.
pub(super) fn take_abandoned(files: &dyn Files, dir: &OwnedFd, name: &str) -> io::Result<Option<OwnedFd>> {
    let file = match files.open_to_lock(dir, name) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    // A file without links is not the one that has this name now, which may be in use.
    Ok((files.try_lock(&file)? && files.stat(&file)?.links > 0).then_some(file))
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.files.process() == self.process {
            // While it is locked, because a file without a name is locked by nobody. If this fails,
            // the sweep removes it.
            drop(self.files.unlink(&self.dirs.flights, &self.name));
        }
    }
}

impl DiskCache {
    /// Requests the right to compile an entry that was not found. Waits at most `patience` for
    /// another process that compiles it; does not wait in a read-only tier.
    pub fn join(&self, request: &Request<'_>, patience: Duration) -> JoinOutcome {
        if self.config.read_only {
            return JoinOutcome::NoLock;
        }
        let name = request.name();
        let since = Instant::now();
        let mut pause = FIRST_LOOK;
        let mut reopened = false;
        loop {
            let dirs = self.dirs();
            match take(self.files(), &dirs, name.to_string()) {
                Ok(Some(flight)) => {
                    // The previous holder may have finished between two polls.
                    return match self.look_again(request, &name) {
                        Some(record) => JoinOutcome::Ready(record),
                        None => JoinOutcome::Leader(flight),
                    };
                }
                Ok(None) => {}
                Err(error) if is_folder_removed(&error) && !reopened => {
                    reopened = true;
                    self.reopen();
                    continue;
                }
                Err(error) => {
                    self.trouble("lock a flight", &error);
                    return JoinOutcome::NoLock;
                }
            }
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return JoinOutcome::NoLock;
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LAST_LOOK);
            if let Some(record) = self.look_again(request, &name) {
                return JoinOutcome::Ready(record);
            }
        }
    }

    fn look_again(&self, request: &Request<'_>, name: &Name) -> Option<Record> {
        match self.files().stat_at(&self.dirs().entries, &name.to_string()) {
            Ok(_) => self.load(request).found(),
            Err(_) => None,
        }
    }
}
