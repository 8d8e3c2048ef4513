//! A queue and the threads that empty it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// What a pool's threads get of the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// As much as the thread that started them.
    Normal,
    /// Little while others want to run ([`thread::lower_priority`]).
    Low,
}

/// A fixed number of threads that call a function on the items pushed, in order. A panic in the function is caught: the item is
/// lost, the thread lives on.
pub(crate) struct Pool<T> {
    shared: Arc<Shared<T>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts the threads, named `fuseline-NAME-0` and so on.
    pub(crate) fn start(
        name: &str,
        threads: usize,
        priority: Priority,
        run: impl Fn(T) + Send + Sync + 'static,
    ) -> std::io::Result<Pool<T>> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { items: VecDeque::new(), closed: false }),
            changed: Condvar::new(),
        });
        let pool = Pool { shared, threads: Mutex::new(Vec::new()) };
        let run = Arc::new(run);
        for index in 0..threads {
            let (shared, run) = (pool.shared.clone(), run.clone());
            let work = move || {
                if priority == Priority::Low {
                    thread::lower_priority();
                }
                while let Some(item) = shared.next() {
                    // What the function works on says in its own state that it was left half done; see `execute`.
                    let _ = catch_unwind(AssertUnwindSafe(|| run(item)));
                }
            };
            match thread::spawn(format!("fuseline-{name}-{index}"), work) {
                Ok(handle) => pool.threads.lock().push(handle),
                Err(error) => {
                    pool.shut_down();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Hands an item to the threads. After [`Pool::shut_down`] it is dropped.
    pub(crate) fn push(&self, item: T) {
        let mut state = self.shared.state.lock();
        if state.closed {
            drop(state);
            return;
        }
        state.items.push_back(item);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Takes back what is queued and not begun, as far as `is_wanted`.
    pub(crate) fn take_back(&self, is_wanted: impl Fn(&T) -> bool) -> VecDeque<T> {
        let mut state = self.shared.state.lock();
        if !state.items.iter().any(&is_wanted) {
            return VecDeque::new();
        }
        let (taken, left) = std::mem::take(&mut state.items).into_iter().partition(is_wanted);
        state.items = left;
        taken
    }

    /// Lets the threads finish what is queued and end, and waits for them. A thread of the pool itself may call this: it is not
    /// waited for.
    pub(crate) fn shut_down(&self) {
        self.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = thread::current().id();
        for handle in threads {
            if handle.thread().id() != me {
                let _ = handle.join();
            }
        }
    }

    /// Lets the threads end when they have finished what is queued.
    fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl<T> Shared<T> {
    fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            let item = state.items.pop_front();
            if item.is_some() {
                return item;
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}
