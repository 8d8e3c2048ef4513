//! A read that is under way, as whoever waits for it sees it.
//!
//! Input: what the tier's thread finds out. Output: a [`Fetch`], to be looked at, waited for or called back by.
//!
//! Invariants:
//! - F1: every fetch gets exactly one answer, also if the thread ends, the task panics or the cache is dropped.
//! - F2: a callback is called exactly once, unless its fetch was dropped before the answer was there.
//! - F3: no callback is called with a lock held.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::tier::Tier;
use super::trouble::{SharedDamage, Trouble};
use crate::name::Name;
use crate::sealed::Record;
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// What a fetch ended with. Only [`Hit`](Fetched::Hit) has anything to use; the others say why there is nothing.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fetched {
    /// An entry that was sealed with the fleet's key and answers the request. It may be of any [`Kind`](crate::Kind).
    Hit(Arc<Record>),
    /// There is none.
    Miss,
    /// There is something else in its place.
    Damaged(SharedDamage),
    /// The store could not be asked.
    Failed(Trouble),
    /// The store is left alone for a while, or the cache is shut down.
    Offline,
    /// Too many reads are waiting.
    Busy,
}

impl Fetched {
    /// The entry, if there is one.
    #[must_use]
    pub fn hit(&self) -> Option<&Arc<Record>> {
        match self {
            Fetched::Hit(record) => Some(record),
            _ => None,
        }
    }
}

/// An entry is shown by its name and length: it may have megabytes.
impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fetched::Hit(record) => write!(f, "Hit({:?}, {} bytes)", record.name(), record.artifact.len()),
            Fetched::Miss => f.write_str("Miss"),
            Fetched::Damaged(damage) => f.debug_tuple("Damaged").field(damage).finish(),
            Fetched::Failed(trouble) => f.debug_tuple("Failed").field(trouble).finish(),
            Fetched::Offline => f.write_str("Offline"),
            Fetched::Busy => f.write_str("Busy"),
        }
    }
}

type Callback = Box<dyn FnOnce(&Fetched) + Send>;

/// A read, shared by all who want its entry.
pub(crate) struct Flight {
    pub(crate) name: Name,
    /// What is asked, to be compared with what comes, and with what another asks that has the same name.
    pub(crate) region: crate::Key,
    pub(crate) environment: crate::Fingerprint,
    pub(crate) request: Vec<u8>,
    state: Mutex<State>,
    answered: Condvar,
    /// Nobody waits any more.
    abandoned: AtomicBool,
    pub(crate) wake: Notify,
}

#[derive(Default)]
struct State {
    answer: Option<Fetched>,
    callbacks: Vec<(u64, Callback)>,
}

impl Flight {
    pub(crate) fn new(request: &crate::Request<'_>, name: Name) -> Flight {
        Flight {
            name,
            region: request.region,
            environment: request.environment,
            request: request.bytes.to_vec(),
            state: Mutex::default(),
            answered: Condvar::default(),
            abandoned: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    /// What it asks for.
    pub(crate) fn request(&self) -> crate::Request<'_> {
        crate::Request { region: self.region, environment: self.environment, bytes: &self.request }
    }

    /// Answers, if nobody has.
    pub(crate) fn answer(&self, answer: Fetched) {
        let callbacks = {
            let mut state = self.state.lock();
            if state.answer.is_some() {
                return;
            }
            state.answer = Some(answer.clone());
            self.answered.notify_all();
            std::mem::take(&mut state.callbacks)
        };
        for (_, callback) in callbacks {
            call(callback, &answer);
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.state.lock().answer.is_some()
    }

    /// The last handle is gone. The task sees it where it waits for its turn or for more bytes.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight")
            .field("name", &self.name)
            .field("abandoned", &self.is_abandoned())
            .finish_non_exhaustive()
    }
}

/// A callback that panics has said so by the panic hook; the tier goes on.
fn call(callback: Callback, answer: &Fetched) {
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| callback(answer)));
}

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
    pub(crate) fn new(flight: Arc<Flight>, tier: Arc<Tier>, handle: u64) -> Fetch {
        Fetch { flight, tier: Some(tier), handle }
    }

    /// One that needs no read.
    pub(crate) fn answered(request: &crate::Request<'_>, name: Name, answer: Fetched) -> Fetch {
        let flight = Flight::new(request, name);
        flight.answer(answer);
        Fetch { flight: Arc::new(flight), tier: None, handle: 0 }
    }

    /// The name of the entry.
    #[must_use]
    pub fn name(&self) -> Name {
        self.flight.name
    }

    /// The answer, if it is there. Does not wait.
    #[must_use]
    pub fn poll(&self) -> Option<Fetched> {
        self.flight.state.lock().answer.clone()
    }

    /// The answer, if it comes within this time.
    #[must_use]
    pub fn within(&self, time: Duration) -> Option<Fetched> {
        let now = Instant::now();
        // A time beyond what can be told is a day.
        let end = now.checked_add(time).unwrap_or(now + Duration::from_secs(86_400));
        let mut state = self.flight.state.lock();
        while state.answer.is_none() && Instant::now() < end {
            self.flight.answered.wait_until(&mut state, end);
        }
        state.answer.clone()
    }

    /// Has a function called with the answer: at once, on this thread, if it is there; else on the tier's thread, where it must
    /// not block. It is not called once this fetch is dropped (it may still be running then).
    pub fn subscribe(&self, callback: impl FnOnce(&Fetched) + Send + 'static) {
        let answer = {
            let mut state = self.flight.state.lock();
            match &state.answer {
                Some(answer) => answer.clone(),
                None => return state.callbacks.push((self.handle, Box::new(callback))),
            }
        };
        call(Box::new(callback), &answer);
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let Some(tier) = &self.tier else { return };
        let gone: Vec<(u64, Callback)> = {
            let mut state = self.flight.state.lock();
            state.callbacks.extract_if(.., |(handle, _)| *handle == self.handle).collect()
        };
        // What they own is dropped without a lock.
        drop(gone);
        tier.leave(&self.flight);
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch").field("name", &self.flight.name).field("answer", &self.poll()).finish()
    }
}
