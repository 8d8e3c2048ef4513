//! The promised values of an engine that have no data yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuseline_fusion::{Site, TensorType, ValueId};
use fuseline_sync::{Mutex, Rank};

use super::value::{Outcome, ValueCell, ValuePromise};
use crate::error::Took;

/// The promised values of an engine that have no data yet.
#[derive(Debug, Clone)]
pub struct Promises(Arc<Mutex<HashMap<ValueId, Due>>>);

#[derive(Debug)]
struct Due {
    ty: TensorType,
    /// The call site of the promise.
    site: Site,
    /// Since when a stream has been blocked by it.
    since: Option<Instant>,
}

impl Promises {
    pub(crate) fn new() -> Promises {
        Promises(Arc::new(Mutex::new(Rank::Promises, HashMap::new())))
    }

    /// Lists a promise until it is resolved or dropped.
    pub fn list(&self, promise: ValuePromise, site: Site) -> PromiseGuard {
        let (id, ty) = (promise.holder().id(), promise.holder().ty().clone());
        self.0.lock().insert(id, Due { ty, site, since: None });
        PromiseGuard { promise: Some(promise), id, promises: self.clone() }
    }

    /// Notes that a stream is blocked by this value, which may be a promised one.
    pub(crate) fn note_awaited(&self, value: ValueId) {
        if let Some(due) = self.0.lock().get_mut(&value) {
            due.since.get_or_insert_with(Instant::now);
        }
    }

    /// A description of the promise that has blocked a stream longest, if that is at least `most`.
    ///
    /// # Errors
    /// Returns the earliest time at which a promise can be overdue.
    pub(crate) fn overdue(&self, most: Duration) -> Result<String, Instant> {
        let listed = self.0.lock();
        let awaited = listed.values().filter_map(|due| due.since.map(|since| (since, due)));
        let now = Instant::now();
        let Some((since, due)) = awaited.min_by_key(|&(since, _)| since) else {
            return Err(after(now, most));
        };
        match after(since, most) {
            end if end <= now => Ok(format!(
                "waits for {}, promised at {} and not delivered for {}; keep the promise or break \
                 it, on another thread if this thread was to do that, or record fewer ops that \
                 depend on it (Deadlines::promise sets the limit)",
                due.ty,
                due.site,
                Took(now - since)
            )),
            end => Err(end),
        }
    }
}

/// The time `time` after `start`, or one day after it if that overflows.
pub(crate) fn after(start: Instant, time: Duration) -> Instant {
    start.checked_add(time).unwrap_or_else(|| start + Duration::from_secs(86_400))
}

/// A promise that is listed in `Promises` until it is resolved or dropped.
#[derive(Debug)]
pub struct PromiseGuard {
    /// Present until then.
    promise: Option<ValuePromise>,
    id: ValueId,
    promises: Promises,
}

impl PromiseGuard {
    /// The promised value.
    pub fn value(&self) -> Option<&Arc<ValueCell>> {
        self.promise.as_ref().map(ValuePromise::holder)
    }

    /// Resolves the promise and takes it off the list.
    pub fn resolve(mut self, outcome: Outcome) {
        if let Some(promise) = self.promise.take() {
            drop(promise.resolve(outcome));
        }
    }
}

impl Drop for PromiseGuard {
    fn drop(&mut self) {
        let gone = self.promises.0.lock().remove(&self.id);
        drop(gone);
    }
}
