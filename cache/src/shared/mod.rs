//! The shared tier: entries in an object store, for a fleet of machines.
//!
//! Input: requests, and records of this process. Output: records of a machine with the same key, or
//! the reason why there is none. Callers decide how long they wait, and the store can only cost
//! time.
//!
//! # Racing it with a compile
//!
//! A read takes as long as the network does. Meanwhile the caller compiles, and uses what is ready
//! first:
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
//! A compile that cannot be stopped runs on another thread. [`Fetch::subscribe`] calls a function
//! when the fetch completes (keep the [`Fetch`] alive meanwhile). If a compile is known to take
//! longer than a read of the store, [`Fetch::within`] waits before the compile begins.
//!
//! # Objects
//!
//! The entry with name N is `PREFIX/v1/N`, with N in 64 hexadecimal digits. Its bytes are those of
//! a [`Sealer`](crate::Sealer) with the fleet's key. The store is not trusted with anything except
//! the time that it takes.
//!
//! # Threads
//!
//! One thread, `fuseline-shared`, with a runtime of its own. The runtime starts up to [`HELPERS`]
//! more for name resolution and for files. Callbacks and events run on it (an event of the queue on
//! the thread that offers), without a lock held; they must not block.
//!
//! # Invariants
//! - SHARED-1: a hit was sealed with the fleet's key, under this name, is complete, and matches the
//!   request exactly.
//! - SHARED-2: opening, fetching, offering and dropping a fetch never wait. Flushing and shutting
//!   down wait no longer than the caller allows, dropping no longer than [`DROP`].
//! - SHARED-3: memory is bounded: the write queue by entries and bytes, reads by number and by
//!   received bytes, all other state by number.
//! - SHARED-4: after several consecutive failures requests are paused, longer each time; then one
//!   request finds out whether the store is back. Reads and writes are counted separately, so that
//!   a full or read-only store still serves reads.
//! - SHARED-5: a damaged entry is a miss and an event, and the next good one overwrites it: once,
//!   not in read-only mode, and not if this process seems to have the wrong key.
//! - SHARED-6: nothing that is printed, logged or returned contains credentials.
//!
//! Deliberately not here: what is worth sharing, how long it is kept (the store's own rules), and
//! listing a store.

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
use self::store::StoreLocation;
use self::tier::Tier;
use crate::name::Request;
use crate::sealed::Record;

/// How long dropping a cache waits for its thread at most.
pub const DROP: Duration = Duration::from_secs(1);

/// Maximum number of threads that resolve names and access files.
pub const HELPERS: usize = 4;

/// Number of concurrent writes.
const WRITERS: usize = 2;

/// The shared tier; see the [module](self).
pub struct SharedCache {
    tier: Arc<Tier>,
    runtime: Handle,
}

impl SharedCache {
    /// Creates the client and starts the thread. Does not contact the network or the store: the
    /// first fetch finds out if the store is missing, and fails.
    ///
    /// # Errors
    /// The problem with the settings.
    pub fn open(
        config: SharedConfig,
        on_event: impl Fn(SharedEvent) + Send + Sync + 'static,
    ) -> Result<SharedCache, SharedError> {
        let place = store::open(&config)?;
        SharedCache::start(config, place, Box::new(on_event))
    }

    /// As [`open`](SharedCache::open), with a client that the caller created; the URL is only for
    /// display.
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
            StoreLocation { store, prefix, is_folder: false, scrub: Default::default() },
            Box::new(on_event),
        )
    }

    fn start(
        config: SharedConfig,
        place: StoreLocation,
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
            // Aborts what is in progress; does not wait for helpers, which may hang in a system
            // call.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("fuseline-shared".to_owned()).spawn(run).map_err(failed)?;
        Ok(SharedCache { tier, runtime: handle })
    }

    /// Starts to look for the entry of a request. Fetches of one entry share a read.
    pub fn fetch(&self, request: &Request<'_>) -> Fetch {
        let (fetch, read) = Fetch::of(&self.tier, request);
        if let Some((flight, admission)) = read {
            // If the thread has ended, this drops the read, which answers the fetch.
            self.runtime.spawn(Read::new(Arc::clone(&self.tier), flight, admission).run());
        }
        fetch
    }

    /// Queues an entry for writing. If the queue is full, its oldest entry is dropped.
    pub fn offer(&self, record: impl Into<Arc<Record>>) -> Offered {
        self.tier.offer(record.into())
    }

    /// Waits until everything offered is written, for at most `most`. Does not wait while writes
    /// are paused. Returns whether everything is written.
    #[must_use]
    pub fn flush(&self, most: Duration) -> bool {
        let now = Instant::now();
        self.tier.flush(now.checked_add(most).unwrap_or(now + Duration::from_secs(86_400)))
    }

    /// [Flushes](SharedCache::flush), then ends the thread. Returns whether everything was written.
    pub fn shut_down(self, most: Duration) -> bool {
        self.flush(most)
    }

    /// Counters and current state.
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

/// Notes on drop that the thread has ended.
struct Stopped(Arc<Tier>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.thread_stopped();
    }
}
