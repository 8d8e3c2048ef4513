//! A read, as one who waits for it has it: a handle, to be looked at, waited for or called back by.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::breaker::Admission;
use super::flight::{Fetched, Flight};
use super::tier::{Joined, Tier};
use crate::name::{Name, Request};

/// A read of one entry. When it is dropped, nobody waits for it: it is given up, and its callback is not called.
#[must_use = "a fetch that is dropped is given up"]
pub struct Fetch {
    flight: Arc<Flight>,
    /// Where its handles are counted; none for one that was answered at once.
    tier: Option<Arc<Tier>>,
    /// Tells the callbacks of the handles of one flight apart.
    handle: u64,
}

impl Fetch {
    /// A handle of a read, and the read itself if it is to be started.
    pub(super) fn of(tier: &Arc<Tier>, request: &Request<'_>) -> (Fetch, Option<(Arc<Flight>, Admission)>) {
        match tier.join(request) {
            Joined::Answered(answer) => {
                let flight = Flight::new(request, request.name());
                flight.answer(answer);
                (Fetch { flight: Arc::new(flight), tier: None, handle: 0 }, None)
            }
            Joined::Flight { flight, handle, admission } => {
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

    /// The answer, if it is there. Does not wait.
    #[must_use]
    pub fn poll(&self) -> Option<Fetched> {
        self.flight.poll()
    }

    /// The answer, if it comes within this time.
    #[must_use]
    pub fn within(&self, time: Duration) -> Option<Fetched> {
        self.flight.within(time)
    }

    /// Has a function called with the answer: at once, on this thread, if it is there; else on the tier's thread, where it must
    /// not block. It is not called once this fetch is dropped (it may still be running then).
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
