//! A queue and the threads that empty it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

struct State<T> {
    items: VecDeque<T>,
    /// Those that nobody waits for.
    unhurried: VecDeque<T>,
    closed: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// A fixed number of threads that call a function on the items pushed, in order; on those that nobody waits for when there are no
/// others. A panic in the function is caught: the item is lost, the thread lives on.
pub(crate) struct Pool<T> {
    shared: Arc<Shared<T>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts the threads, named `fuseline-NAME-0` and so on.
    pub(crate) fn start(
        name: &str,
        threads: usize,
        run: impl Fn(T) + Send + Sync + 'static,
    ) -> std::io::Result<Pool<T>> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { items: VecDeque::new(), unhurried: VecDeque::new(), closed: false }),
            changed: Condvar::new(),
        });
        let pool = Pool { shared, threads: Mutex::new(Vec::new()) };
        let run = Arc::new(run);
        for index in 0..threads {
            let (shared, run) = (pool.shared.clone(), run.clone());
            let work = move || {
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
        self.push_to(item, |state| &mut state.items);
    }

    /// Hands over an item that nobody waits for. It is dropped if the pool is shut down before its turn.
    pub(crate) fn push_unhurried(&self, item: T) {
        self.push_to(item, |state| &mut state.unhurried);
    }

    fn push_to(&self, item: T, queue: impl FnOnce(&mut State<T>) -> &mut VecDeque<T>) {
        let mut state = self.shared.state.lock();
        if state.closed {
            drop(state);
            return;
        }
        queue(&mut state).push_back(item);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Lets the threads finish what is queued and waited for and end, and waits for them. A thread of the pool itself may call this: it
    /// is not waited for.
    pub(crate) fn shut_down(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let unhurried = std::mem::take(&mut state.unhurried);
        drop(state);
        drop(unhurried);
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = thread::current().id();
        for handle in threads {
            if handle.thread().id() != me {
                let _ = handle.join();
            }
        }
    }
}

impl<T> Shared<T> {
    fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            let item = state.items.pop_front().or_else(|| state.unhurried.pop_front());
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
