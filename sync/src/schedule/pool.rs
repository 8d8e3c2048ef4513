//! A queue and the threads that process it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::atomic::{AtomicU32, Ordering};
use crate::lock_rank::before_end;
use crate::thread::{self, JoinHandle};
use crate::{Condvar, Mutex, Rank};

/// An item that the threads of a pool process.
pub trait Item: Send + 'static {
    /// Takes the function to call if the item is not finished. The thread that abandons it calls
    /// it.
    fn take_refusal(&mut self) -> Option<Refusal> {
        None
    }

    /// Whether it has such a function.
    fn is_refusable(&self) -> bool {
        false
    }
}

impl Item for Box<dyn FnOnce() + Send> {}

/// A stream. It is not refused, because the plugin holds its driver.
impl<T: Send + Sync + 'static> Item for Arc<T> {}

#[cfg(test)]
impl Item for u32 {}

/// Called when an item is abandoned.
pub type Refusal = Box<dyn FnOnce(Refused) + Send>;

/// Why an item is abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A thread has worked on it for this long.
    Late(Duration),
    /// It was not begun, because this many threads are stuck.
    Closed(usize),
}

/// The shared state of a thread of a pool.
#[derive(Default)]
struct Seat {
    /// When it began its present item.
    since: Option<Instant>,
    refusal: Option<Refusal>,
    /// It is stuck, and ends when it returns.
    is_given_up: bool,
}

struct PoolState<T> {
    items: VecDeque<T>,
    seats: Vec<Seat>,
    /// Whether items stay in the queue.
    paused: bool,
    closed: bool,
}

struct Shared<T> {
    state: Mutex<PoolState<T>>,
    changed: Condvar,
    /// Number of threads that were abandoned and have not returned.
    stuck: AtomicU32,
}

/// The priority of a pool's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// That of the thread that started them.
    Normal,
    /// Low ([`thread::lower_priority`]).
    Low,
}

/// A thread was abandoned.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// How long it has worked on one item.
    pub took: Duration,
    /// Number of stuck threads of the pool.
    pub stuck: usize,
    /// Whether another one replaced it.
    pub is_replaced: bool,
}

/// Starts the thread of a seat.
type StartThread = Box<dyn Fn(usize) -> std::io::Result<JoinHandle<()>> + Send + Sync>;

/// Threads that call a function on the pushed items, in order. A panic in the function is caught:
/// the item is lost, and the thread goes on.
///
/// A thread that does not return from an item, because the plugin does not, can be abandoned
/// ([`Pool::give_up`]). Another replaces it. It ends if it ever returns, and nobody waits for it at
/// shutdown.
pub struct Pool<T> {
    shared: Arc<Shared<T>>,
    /// The threads with their seats.
    threads: Mutex<Vec<(usize, JoinHandle<()>)>>,
    start_thread: StartThread,
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("stuck", &self.shared.stuck).finish_non_exhaustive()
    }
}

impl<T: Item> Pool<T> {
    /// Starts the threads, named `fuseline-NAME-0` and so on.
    pub fn start(
        name: &str,
        threads: usize,
        priority: Priority,
        run: impl Fn(T) + Send + Sync + 'static,
    ) -> std::io::Result<Pool<T>> {
        let state = PoolState { items: VecDeque::new(), seats: Vec::new(), paused: false, closed: false };
        let stuck = AtomicU32::new(0);
        let shared =
            Arc::new(Shared { state: Mutex::new(Rank::Queue, state), changed: Condvar::new(), stuck });
        let (run, name, owner) = (Arc::new(run), name.to_owned(), shared.clone());
        let start_thread: StartThread = Box::new(move |seat| {
            let (shared, run) = (owner.clone(), run.clone());
            let work = move || {
                if priority == Priority::Low {
                    thread::lower_priority();
                }
                while let Some(item) = shared.next(seat) {
                    // The object that the function works on records in its own state that it was
                    // left half done; see `execute`.
                    let _ = catch_unwind(AssertUnwindSafe(|| run(item)));
                }
            };
            thread::spawn(format!("fuseline-{name}-{seat}"), work)
        });
        let pool = Pool { shared, threads: Mutex::new(Rank::Threads, Vec::new()), start_thread };
        for _ in 0..threads {
            if let Err(error) = pool.add_thread() {
                pool.shut_down();
                return Err(error);
            }
        }
        Ok(pool)
    }

    fn add_thread(&self) -> std::io::Result<()> {
        let mut state = self.shared.state.lock();
        let seat = state.seats.len();
        state.seats.push(Seat::default());
        drop(state);
        let handle = (self.start_thread)(seat)?;
        self.threads.lock().push((seat, handle));
        Ok(())
    }

    /// Adds an item to the queue. After [`Pool::shut_down`] it is dropped.
    pub fn push(&self, item: T) {
        let mut state = self.shared.state.lock();
        if state.closed {
            drop(state);
            return;
        }
        state.items.push_back(item);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// As [`Pool::push`]; starts another thread if all are busy, up to `most`.
    pub fn push_elastic(&self, item: T, most: usize) {
        let state = self.shared.state.lock();
        let idle = state.seats.iter().filter(|seat| seat.since.is_none()).count();
        let is_short = idle <= state.items.len() && state.seats.len() < most && !state.closed;
        drop(state);
        if is_short {
            // Without another thread the item waits for one of the present ones.
            let _ = self.add_thread();
        }
        self.push(item);
    }

    /// Takes back queued items for which `is_wanted` holds.
    pub fn take_back(&self, is_wanted: impl Fn(&T) -> bool) -> VecDeque<T> {
        let mut state = self.shared.state.lock();
        if !state.items.iter().any(&is_wanted) {
            return VecDeque::new();
        }
        let (taken, left) = std::mem::take(&mut state.items).into_iter().partition(is_wanted);
        state.items = left;
        taken
    }

    /// Begins no more items until [`Pool::shut_down`]. [`Pool::take_back`] still takes them.
    pub fn pause(&self) {
        self.shared.state.lock().paused = true;
    }

    /// Number of threads that were abandoned and have not returned.
    pub fn stuck(&self) -> usize {
        self.shared.stuck.load(Ordering::Relaxed) as usize
    }

    /// Abandons the threads that have worked on one item for `limit` or longer. Each is replaced,
    /// as long as at most `most` are stuck, then reported, and its item is refused. `before` is
    /// called when they count as stuck and none is replaced yet. Returns when the next working
    /// thread will be late.
    pub fn give_up(
        &self,
        now: Instant,
        limit: Duration,
        most: usize,
        before: impl FnOnce(),
        tell: impl Fn(Stuck),
    ) -> Option<Instant> {
        let (mut late, mut next) = (Vec::new(), None::<Instant>);
        let mut state = self.shared.state.lock();
        for seat in &mut state.seats {
            let Some(since) = seat.since.filter(|_| !seat.is_given_up) else { continue };
            let took = now.saturating_duration_since(since);
            if took >= limit {
                seat.is_given_up = true;
                let stuck = self.shared.stuck.fetch_add(1, Ordering::Relaxed) as usize + 1;
                late.push((took, stuck, seat.refusal.take()));
            } else if let Some(end) = since.checked_add(limit) {
                next = Some(next.map_or(end, |next| next.min(end)));
            }
        }
        drop(state);
        if !late.is_empty() {
            before();
        }
        for (took, stuck, refusal) in late {
            let is_replaced = stuck <= most && self.add_thread().is_ok();
            tell(Stuck { took, stuck, is_replaced });
            if let Some(refusal) = refusal {
                refusal(Refused::Late(took));
            }
        }
        next
    }

    /// Finishes the queued items, ends the threads and waits for them. Does not wait for the
    /// calling thread or for stuck ones.
    pub fn shut_down(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let is_stuck: Vec<bool> =
            state.seats.iter().map(|seat| seat.is_given_up && seat.since.is_some()).collect();
        drop(state);
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        before_end("waits for the threads of a pool");
        let me = thread::current().id();
        for (seat, handle) in threads {
            if handle.thread().id() != me && !is_stuck[seat] {
                let _ = handle.join();
            }
        }
    }
}

impl<T: Item> Shared<T> {
    /// Ends the item of this seat's thread and returns the next one. `None` if the thread has to
    /// end.
    fn next(&self, seat: usize) -> Option<T> {
        let mut state = self.state.lock();
        let Seat { refusal, is_given_up, .. } = std::mem::take(&mut state.seats[seat]);
        if is_given_up {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        if refusal.is_some() {
            drop(state);
            drop(refusal);
            state = self.state.lock();
        }
        loop {
            let is_paused = state.paused && !state.closed;
            if !is_paused && let Some(mut item) = state.items.pop_front() {
                let refusal = item.take_refusal();
                state.seats[seat] = Seat { since: Some(Instant::now()), refusal, is_given_up: false };
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}
