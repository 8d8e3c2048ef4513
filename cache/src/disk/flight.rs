//! One process makes an artifact, the others wait for it, for a bounded time.
//!
//! A process that is about to make an artifact locks a file of its name. The lock goes with the
//! process, however that ends, so nothing has to be cleaned up, and no clock decides who is alive.
//! The file is removed by whoever held it; who got a lock on a file that has lost its name since
//! tries again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dirs::Dirs;
use super::files::Files;
use super::{DiskCache, clear_strange, is_absent, is_gone};
use crate::name::{Name, Request};
use crate::sealed::Record;

/// How often it is looked whether somebody else is done: soon at first.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(20);

/// The right to make an artifact, among all processes that share the folder. Dropping it lets the
/// others go on.
#[derive(Debug)]
pub struct Flight {
    files: Arc<dyn Files>,
    dirs: Arc<Dirs>,
    name: String,
    process: u32,
    _lock: OwnedFd,
}

/// What became of asking for a flight.
#[derive(Debug)]
pub enum JoinOutcome {
    /// Nobody else is making it.
    Leader(Flight),
    /// Somebody else has made it.
    Ready(Record),
    /// Somebody else has been making it for so long that the caller should go on without them; or
    /// locks do not work here.
    NoLock,
}

/// Whether somebody holds the lock of this name.
pub(super) fn is_held(files: &dyn Files, dirs: &Dirs, name: &str) -> io::Result<bool> {
    match files.open_to_lock(&dirs.flights, name) {
        Ok(file) => files.try_lock(&file).map(|free| !free),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the lock of a name, if nobody has it.
pub(super) fn take(files: &Arc<dyn Files>, dirs: &Arc<Dirs>, name: String) -> io::Result<Option<Flight>> {
    // Each further attempt is somebody else's flight that has just ended.
    for _ in 0..100 {
        let lock = match files.open_or_create(&dirs.flights, &name) {
            // What is there is nobody's flight.
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

/// Takes the lock of a file that is there, if nobody has it; `None` if somebody does, or did and
/// has removed the file. As long as what is returned lives nobody else uses or removes the file.
pub(super) fn take_left_behind(files: &dyn Files, dir: &OwnedFd, name: &str) -> io::Result<Option<OwnedFd>> {
    let file = match files.open_to_lock(dir, name) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    // Without a name it is not the file that now has this name, which may be somebody's.
    Ok((files.try_lock(&file)? && files.stat(&file)?.links > 0).then_some(file))
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.files.process() == self.process {
            // While it is locked: nobody has a lock on what has no name. If it stays, the sweep
            // takes it.
            drop(self.files.unlink(&self.dirs.flights, &self.name));
        }
    }
}

impl DiskCache {
    /// Asks to make what was not found. Waits for somebody else who does, `patience` at most. Who
    /// stores nothing is nobody to wait for.
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
                    // Whoever had it before may have been done between two looks.
                    return match self.look_again(request, &name) {
                        Some(record) => JoinOutcome::Ready(record),
                        None => JoinOutcome::Leader(flight),
                    };
                }
                Ok(None) => {}
                Err(error) if is_gone(&error) && !reopened => {
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
