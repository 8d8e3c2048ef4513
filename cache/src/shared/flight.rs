//! A read in progress: its request, its answer and its subscribers.
//!
//! Input: the findings of the tier's thread. Output: the answer, and calls of the callbacks.
//!
//! Invariants:
//! - FLIGHT-1: every flight gets exactly one answer, even if the thread ends, the task panics or
//!   the cache is dropped.
//! - FLIGHT-2: a callback is called exactly once, unless it was removed before the answer arrived.
//! - FLIGHT-3: no callback is called with a lock held.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::trouble::{SharedDamage, Trouble};
use crate::name::Name;
use crate::sealed::Record;
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// The outcome of a fetch. Only [`Hit`](Fetched::Hit) has an entry; the others give the reason why
/// there is none.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fetched {
    /// An entry that was sealed with the fleet's key and matches the request. It may be of any
    /// [`SealedKind`](crate::SealedKind).
    Hit(Arc<Record>),
    /// There is no entry.
    Miss,
    /// The object is not a valid entry.
    Damaged(SharedDamage),
    /// The request failed.
    Failed(Trouble),
    /// Requests to the store are paused, or the cache is shut down.
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

/// Shows an entry by its name and length, because it may have megabytes.
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

/// A read, shared by all fetches of its entry.
pub(crate) struct Flight {
    pub(crate) name: Name,
    /// The request, which is compared with the answer, and with other requests of the same name.
    pub(crate) region: crate::Key,
    pub(crate) environment: crate::Fingerprint,
    pub(crate) request: Vec<u8>,
    state: Mutex<FlightState>,
    answered: Condvar,
    /// No handles are left.
    abandoned: AtomicBool,
    pub(crate) wake: Notify,
}

#[derive(Default)]
struct FlightState {
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

    /// Its request.
    pub(crate) fn request(&self) -> crate::Request<'_> {
        crate::Request { region: self.region, environment: self.environment, bytes: &self.request }
    }

    /// Sets the answer, if there is none yet.
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

    /// The answer, if it has arrived.
    pub(super) fn poll(&self) -> Option<Fetched> {
        self.state.lock().answer.clone()
    }

    /// The answer, if it arrives within this time.
    pub(super) fn within(&self, time: Duration) -> Option<Fetched> {
        let now = Instant::now();
        // A time that overflows counts as a day.
        let end = now.checked_add(time).unwrap_or(now + Duration::from_secs(86_400));
        let mut state = self.state.lock();
        while state.answer.is_none() && Instant::now() < end {
            self.answered.wait_until(&mut state, end);
        }
        state.answer.clone()
    }

    /// Calls a function with the answer, at once if it has arrived. `handle` identifies it for
    /// [`Flight::unsubscribe`].
    pub(super) fn subscribe(&self, handle: u64, callback: impl FnOnce(&Fetched) + Send + 'static) {
        let answer = {
            let mut state = self.state.lock();
            match &state.answer {
                Some(answer) => answer.clone(),
                None => return state.callbacks.push((handle, Box::new(callback))),
            }
        };
        call(Box::new(callback), &answer);
    }

    /// Removes the callbacks of a handle.
    pub(super) fn unsubscribe(&self, handle: u64) {
        let gone: Vec<(u64, Callback)> = {
            let mut state = self.state.lock();
            state.callbacks.extract_if(.., |(other, _)| *other == handle).collect()
        };
        // Dropped without a lock, because they own user data.
        drop(gone);
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.state.lock().answer.is_some()
    }

    /// The last handle is gone. The task checks this while it waits for its turn or for more bytes.
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

/// Calls a callback. The panic hook has reported a panic; the tier continues.
fn call(callback: Callback, answer: &Fetched) {
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| callback(answer)));
}
