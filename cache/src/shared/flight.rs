//! A read that is under way: what is asked, what came, and who is to be told.
//!
//! Input: what the tier's thread finds out. Output: the answer, and calls of the callbacks.
//!
//! Invariants:
//! - F1: every flight gets exactly one answer, also if the thread ends, the task panics or the cache is dropped.
//! - F2: a callback is called exactly once, unless it was taken back before the answer was there.
//! - F3: no callback is called with a lock held.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

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

    /// The answer, if it is there.
    pub(super) fn poll(&self) -> Option<Fetched> {
        self.state.lock().answer.clone()
    }

    /// The answer, if it comes within this time.
    pub(super) fn within(&self, time: Duration) -> Option<Fetched> {
        let now = Instant::now();
        // A time beyond what can be told is a day.
        let end = now.checked_add(time).unwrap_or(now + Duration::from_secs(86_400));
        let mut state = self.state.lock();
        while state.answer.is_none() && Instant::now() < end {
            self.answered.wait_until(&mut state, end);
        }
        state.answer.clone()
    }

    /// Has a function called with the answer, at once if it is there. `handle` is what [`Flight::unsubscribe`] takes.
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

    /// Takes the callbacks of a handle back.
    pub(super) fn unsubscribe(&self, handle: u64) {
        let gone: Vec<(u64, Callback)> = {
            let mut state = self.state.lock();
            state.callbacks.extract_if(.., |(other, _)| *other == handle).collect()
        };
        // What they own is dropped without a lock.
        drop(gone);
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
