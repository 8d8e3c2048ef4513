//! The handle of a read, which can be polled, waited for or subscribed to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::breaker::Admission;
use super::flight::{Fetched, Flight};
use super::tier::{JoinOutcome, Tier};
use crate::name::{Name, Request};

/// A read of one entry. Dropping it gives up the interest in the read, and its callback is not
/// called.
#[must_use = "a fetch that is dropped is given up"]
pub struct Fetch {
    flight: Arc<Flight>,
    /// The tier that counts its handles; `None` if the fetch was answered at once.
    tier: Option<Arc<Tier>>,
    /// Distinguishes the callbacks of the handles of one flight.
    handle: u64,
}

impl Fetch {
    /// A handle of a read, and the read itself if it is to be started.
    pub(super) fn of(tier: &Arc<Tier>, request: &Request<'_>) -> (Fetch, Option<(Arc<Flight>, Admission)>) {
        match tier.join(request) {
            JoinOutcome::Answered(answer) => {
                let flight = Flight::new(request, request.name());
                flight.answer(answer);
                (Fetch { flight: Arc::new(flight), tier: None, handle: 0 }, None)
            }
            JoinOutcome::Flight { flight, handle, admission } => {
                let read = admission.map(|admission| (Arc::clone(&flight), admission));
                (Fetch { flight, tier: Some(Arc::clone(tier)), handle }, read)
            }
        }
    }

    /// The name of the entry.
    #[must_use]
    pub fn name(&self) -> Name {
        self.flight.name
    }

    /// The answer, if it has arrived. Does not wait.
    #[must_use]
    pub fn poll(&self) -> Option<Fetched> {
        self.flight.poll()
    }

    /// The answer, if it arrives within this time.
    #[must_use]
    pub fn within(&self, time: Duration) -> Option<Fetched> {
        self.flight.within(time)
    }

    /// Calls a function with the answer: at once, on this thread, if it has arrived; otherwise on
    /// the tier's thread, where it must not block. It is not called after this fetch is dropped (it
    /// may still be running then).
    pub fn subscribe(&self, callback: impl FnOnce(&Fetched) + Send + 'static) {
        self.flight.subscribe(self.handle, callback);
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let Some(tier) = &self.tier else { return };
        self.flight.unsubscribe(self.handle);
        tier.leave(&self.flight);
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch").field("name", &self.flight.name).field("answer", &self.poll()).finish()
    }
}
