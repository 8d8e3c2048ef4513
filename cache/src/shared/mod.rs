//! The shared tier: entries in an object store, for a fleet of machines.
//!
//! Input: requests, and records that were made here. Output: records that were made by a machine with the same key, or the reason
//! why there is none. It is never waited for longer than its caller likes, and whatever the store does costs time at most.
//!
//! # Racing it with a compile
//!
//! A read takes as long as a network takes; the caller goes on meanwhile and takes what is first:
//!
//! ```
//! # use fuseline_cache::shared::{Fetched, Offered, SharedCache};
//! # use fuseline_cache::{Record, Request};
//! fn get(shared: &SharedCache, request: &Request<'_>, compile: impl FnOnce(&dyn Fn() -> bool) -> Option<Record>) -> Option<Record> {
//!     let fetch = shared.fetch(request); // starts; returns at once
//!     // The compile looks now and then whether it is still wanted, where it can be stopped.
//!     let is_here = || matches!(fetch.poll(), Some(Fetched::Hit(_)));
//!     let compiled = compile(&is_here);
//!     if let Some(Fetched::Hit(record)) = fetch.poll() {
//!         return Some(Record::clone(&record));
//!     }
//!     // Dropping the fetch gives it up. What was made here is offered to the others.
//!     compiled.inspect(|record| {
//!         let _queued = shared.offer(record.clone());
//!     })
//! }
//! ```
//!
//! A compile that cannot be stopped runs on another thread; [`Fetch::subscribe`] has a function called by which the fetch competes
//! with it for one place (keep the [`Fetch`] alive meanwhile). Where a compile is known to take longer than a read of the store usually
//! does, [`Fetch::within`] waits so long before the compile begins.
//!
//! # Objects
//!
//! The entry of name N is `PREFIX/v1/N`, N in 64 hexadecimal digits; its bytes are those of a [`Sealer`](crate::Sealer) with the fleet's
//! key. The store needs to be trusted with nothing but the time that it takes.
//!
//! # Threads
//!
//! One thread, `fuseline-shared`, with a runtime of its own; the runtime starts up to [`HELPERS`] more for name look-up and for files.
//! Callbacks and events are called on it (an event of the queue on the thread that offers); they must not block. No lock is held then.
//!
//! # Invariants
//! - S1: a hit was sealed with the fleet's key, under this name, whole, and answers exactly the request.
//! - S2: opening, fetching, offering and dropping a fetch wait for nobody. Flushing and shutting down wait no longer than they are
//!   told to, dropping no longer than [`DROP`].
//! - S3: memory is bounded: entries that wait to be written by count and bytes, reads by count and by the bytes that came, everything
//!   that is remembered by count.
//! - S4: after some failures in a row the store is left alone, longer and longer; then one request finds out whether it is back. Reads
//!   and writes each have their own count, so that a full or read-only store still serves.
//! - S5: a damaged entry is a miss and an event, and is written over by the next good one: once, not in read-only mode, and not if it
//!   looks as if this process had the wrong key.
//! - S6: nothing that is printed, logged or returned holds credentials.
//!
//! Deliberately not here: what is worth sharing, how long it is kept (the store's own rules), and finding out what is in a store.

mod breaker;
mod config;
mod fetch;
mod flight;
mod memo;
mod read;
mod report;
mod store;
#[cfg(test)]
mod tests;
mod tier;
mod trouble;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::{Builder, Handle};

pub use breaker::Backoff;
pub use config::{SharedConfig, SharedError};
pub use fetch::Fetch;
pub use flight::Fetched;
pub use report::{SharedEvent, SharedStats};
pub use tier::Offered;
pub use trouble::{SharedDamage, Trouble, TroubleKind};

use self::read::Read;
use self::store::Place;
use self::tier::Tier;
use crate::name::Request;
use crate::sealed::Record;

/// How long dropping a cache waits for its thread, at most.
pub const DROP: Duration = Duration::from_secs(1);

/// Most threads that look up names and read and write files.
pub const HELPERS: usize = 4;

/// Entries that are written at once.
const WRITERS: usize = 2;

/// The shared tier; see the [module](self).
pub struct SharedCache {
    tier: Arc<Tier>,
    runtime: Handle,
}

impl SharedCache {
    /// Sets up the client and starts the thread. Does not touch network or store: a store that is not there is found out by the first
    /// fetch, and costs nothing but that.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn open(
        config: SharedConfig,
        on_event: impl Fn(SharedEvent) + Send + Sync + 'static,
    ) -> Result<SharedCache, SharedError> {
        let place = store::open(&config)?;
        SharedCache::start(config, place, Box::new(on_event))
    }

    /// As [`open`](SharedCache::open), with a client that was made by the caller; the URL is only shown.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn open_store(
        config: SharedConfig,
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        on_event: impl Fn(SharedEvent) + Send + Sync + 'static,
    ) -> Result<SharedCache, SharedError> {
        SharedCache::start(
            config,
            Place { store, prefix, is_folder: false, scrub: Default::default() },
            Box::new(on_event),
        )
    }

    fn start(
        config: SharedConfig,
        place: Place,
        on_event: Box<dyn Fn(SharedEvent) + Send + Sync>,
    ) -> Result<SharedCache, SharedError> {
        let failed = |error: std::io::Error| SharedError::Thread(error.to_string());
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(HELPERS)
            .thread_name("fuseline-shared")
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let tier = Arc::new(Tier::new(config, place, on_event));
        let shared = Arc::clone(&tier);
        let run = move || {
            let _stopped = Stopped(Arc::clone(&shared));
            shared.thread_started();
            for _ in 0..WRITERS {
                runtime.spawn(write::run(Arc::clone(&shared)));
            }
            runtime.block_on(shared.stop.notified());
            // Gives up what is under way; does not wait for helpers, which may hang in a system call.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("fuseline-shared".to_owned()).spawn(run).map_err(failed)?;
        Ok(SharedCache { tier, runtime: handle })
    }

    /// Starts to look for the entry that answers a request. Fetches of one entry share a read.
    pub fn fetch(&self, request: &Request<'_>) -> Fetch {
        let (fetch, read) = Fetch::of(&self.tier, request);
        if let Some((flight, admission)) = read {
            // If the thread has ended this drops it, and that answers.
            self.runtime.spawn(Read::new(Arc::clone(&self.tier), flight, admission).run());
        }
        fetch
    }

    /// Has an entry written, later. If too many wait already, the oldest of them is given up.
    pub fn offer(&self, record: impl Into<Arc<Record>>) -> Offered {
        self.tier.offer(record.into())
    }

    /// Waits until everything that was offered is written, at most so long, and not if the store takes nothing at present.
    /// Whether it is.
    #[must_use]
    pub fn flush(&self, most: Duration) -> bool {
        let now = Instant::now();
        self.tier.flush(now.checked_add(most).unwrap_or(now + Duration::from_secs(86_400)))
    }

    /// [Flushes](SharedCache::flush), then ends the thread. Whether everything was written.
    pub fn shut_down(self, most: Duration) -> bool {
        self.flush(most)
    }

    /// Counts, and what is the case.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        self.tier.stats()
    }
}

impl Drop for SharedCache {
    fn drop(&mut self) {
        self.tier.close();
        self.tier.await_stop(DROP);
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCache").field("tier", &self.tier).finish_non_exhaustive()
    }
}

/// Tells that the thread is gone.
struct Stopped(Arc<Tier>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.thread_stopped();
    }
}
