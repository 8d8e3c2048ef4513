//! A queue and the threads that empty it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::atomic::{AtomicU32, Ordering};
use crate::lock_rank::before_end;
use crate::thread::{self, JoinHandle};
use crate::{Condvar, Mutex, Rank};

/// What the threads of a pool work on.
pub trait Item: Send + 'static {
    /// Takes what is to be called if the item is not worked on to its end: by the thread that gives
    /// it up.
    fn take_refusal(&mut self) -> Option<Refusal> {
        None
    }

    /// Whether there is that.
    fn is_refusable(&self) -> bool {
        false
    }
}

impl Item for Box<dyn FnOnce() + Send> {}

/// A stream, which is not refused: the plugin has its driver.
impl<T: Send + Sync + 'static> Item for Arc<T> {}

#[cfg(test)]
impl Item for u32 {}

/// Called when an item is given up.
pub type Refusal = Box<dyn FnOnce(Refused) + Send>;

/// Why an item is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A thread has been at it for so long.
    Late(Duration),
    /// It was not begun: so many threads are stuck that no more is.
    Closed(usize),
}

/// A thread of a pool, as the others see it.
#[derive(Default)]
struct Seat {
    /// When it began what it works on.
    since: Option<Instant>,
    refusal: Option<Refusal>,
    /// It is stuck, and ends when it comes back.
    is_given_up: bool,
}

struct State<T> {
    items: VecDeque<T>,
    seats: Vec<Seat>,
    /// Whether items stay in the queue.
    paused: bool,
    closed: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Threads that were given up and have not come back.
    stuck: AtomicU32,
}

/// What a pool's threads get of the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// As much as the thread that started them.
    Normal,
    /// Little while others want to run ([`thread::lower_priority`]).
    Low,
}

/// A thread was given up.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// How long it has been at one item.
    pub took: Duration,
    /// Threads of the pool that are.
    pub stuck: usize,
    /// Whether another one took its place.
    pub is_replaced: bool,
}

/// Starts the thread of a seat.
type StartThread = Box<dyn Fn(usize) -> std::io::Result<JoinHandle<()>> + Send + Sync>;

/// A number of threads that call a function on the items pushed, in order. A panic in the function
/// is caught: the item is lost, the thread lives on.
///
/// A thread that does not come back from an item, because the plugin does not, can be given up
/// ([`Pool::give_up`]): another takes its place, and it ends if it comes back after all. Nobody
/// waits for it at the end.
pub struct Pool<T> {
    shared: Arc<Shared<T>>,
    /// Each with its seat.
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
        let state = State { items: VecDeque::new(), seats: Vec::new(), paused: false, closed: false };
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
                    // What the function works on says in its own state that it was left half done;
                    // see `execute`.
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

    /// Hands an item to the threads. After [`Pool::shut_down`] it is dropped.
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
            // Without another thread it waits for one of the others.
            let _ = self.add_thread();
        }
        self.push(item);
    }

    /// Takes back what is queued and not begun, as far as `is_wanted`.
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

    /// Threads that were given up and have not come back.
    pub fn stuck(&self) -> usize {
        self.shared.stuck.load(Ordering::Relaxed) as usize
    }

    /// Gives up the threads that have been at one item for `limit` or longer: each is replaced, as
    /// long as no more than `most` are stuck, then told, and its item refused. `before` is called
    /// when they count as stuck and none is replaced yet. Returns when the next of those at work
    /// will be late.
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

    /// Lets the threads finish what is queued and end, and waits for them. A thread of the pool
    /// itself may call this: it is not waited for, nor is one that is stuck.
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
    /// The thread of this seat has finished what it had; the next item for it, or none if it is to
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
