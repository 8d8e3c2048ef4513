//! Writes entries in the background, one after the other.
//!
//! Input: the queue of the [`Tier`]. Output: objects in the store.
//!
//! An entry is written only if it does not exist. If the store has no such conditional write, it is
//! looked up first. Two machines that write the same entry at once write the same data. An entry
//! that was found to be damaged is overwritten once.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::select;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use std::pin::pin;

use super::breaker::Admission;
use super::tier::{Item, Put, Task, Tier};
use super::trouble::{Trouble, TroubleKind, explain, is_absent, is_unsupported};
use crate::disk::check_limit;
use crate::sync::Ordering;

/// Writes the queue until the thread ends.
pub(super) async fn run(tier: Arc<Tier>) {
    loop {
        match tier.next_task() {
            Task::Wait => tier.work.notified().await,
            Task::WaitUntil(until) => {
                let pause = tokio::time::sleep_until(until.into());
                select(pin!(pause), pin!(tier.work.notified())).await;
            }
            Task::Write { item, admission, heals } => {
                let write = Write { tier: Arc::clone(&tier), admission, settled: false };
                // A separate task, so that a panic ends only this write. It has recorded its
                // outcome itself.
                let _ = tokio::spawn(write.run(item, heals)).await;
            }
        }
    }
}

/// A write that always ends.
struct Write {
    tier: Arc<Tier>,
    admission: Admission,
    settled: bool,
}

impl Write {
    async fn run(mut self, item: Item, heals: bool) {
        let start = Instant::now();
        let limit = self.tier.config.timeout;
        let put = match tokio::time::timeout(limit, put(&self.tier, &item, heals)).await {
            Ok(put) => put,
            Err(_) => Put::Failed(Trouble {
                kind: TroubleKind::TimedOut,
                said: format!("no answer within {limit:?}").into(),
            }),
        };
        if !matches!(put, Put::Failed(_)) {
            self.tier.counters.writes.add(start.elapsed());
        }
        self.settled = true;
        self.tier.settle_write(item, self.admission, heals, put);
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if !self.settled {
            self.tier.drop_write(self.admission);
        }
    }
}

async fn put(tier: &Tier, item: &Item, heals: bool) -> Put {
    let (store, path) = (&tier.place.store, tier.path(&item.name));
    let payload = PutPayload::from(tier.sealer.seal(&item.record));
    // Writing a file beyond the maximum size (`ulimit -f`) would end the process.
    if tier.place.is_folder
        && let Err(error) = check_limit(payload.content_length() as u64)
    {
        return Put::Failed(Trouble { kind: TroubleKind::Full, said: error.to_string().into() });
    }
    let as_mode = |mode| PutOptions { mode, ..PutOptions::default() };
    let failed = |error: &object_store::Error| Put::Failed(explain(error, &tier.place.scrub));
    if !heals && !tier.no_create.load(Ordering::Relaxed) {
        match store.put_opts(&path, payload.clone(), as_mode(PutMode::Create)).await {
            Ok(_) => return Put::Written,
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                return Put::AlreadyStored;
            }
            Err(error) if is_unsupported(&error) => tier.no_create.store(true, Ordering::Relaxed),
            Err(error) => return failed(&error),
        }
    }
    if !heals {
        match store.head(&path).await {
            Ok(_) => return Put::AlreadyStored,
            Err(error) if is_absent(&error) => {}
            Err(error) => return failed(&error),
        }
    }
    match store.put_opts(&path, payload, as_mode(PutMode::Overwrite)).await {
        Ok(_) => Put::Written,
        Err(error) => failed(&error),
    }
}
