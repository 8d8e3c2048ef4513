//! Asynchronous work: promises, the caller's events for them, errors, and the threads that do the
//! work.
//!
//! Invariants:
//! - FAKEEVENT-1. A promise is kept once. Each callback on it is called once, on the thread that
//!   keeps it, or at once if it was kept before. No lock is held then.
//! - FAKEEVENT-2. Threads do their work in order. A client's threads do all of it before the client
//!   is gone.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam::channel::{Sender, unbounded};
use parking_lot::{Condvar, Mutex};
use pjrt_sys::{PJRT_Error, PJRT_Event};

use crate::plan::{Failure, INTERNAL};
use crate::registry::{Handle, Kind, die, insert};

/// The outcome of work.
pub(crate) type Status = Result<(), Failure>;

/// Called with the outcome.
type Callback = Box<dyn FnOnce(&Status) + Send>;

#[derive(Default)]
struct State {
    done: Option<Status>,
    callbacks: Vec<Callback>,
}

/// Work that ends once.
#[derive(Default)]
pub(crate) struct Promise {
    state: Mutex<State>,
    kept: Condvar,
}

impl Promise {
    pub(crate) fn new() -> Arc<Promise> {
        Arc::default()
    }

    /// A promise that is kept from the start.
    pub(crate) fn kept(status: Status) -> Arc<Promise> {
        let promise = Promise::new();
        promise.keep(status);
        promise
    }

    pub(crate) fn keep(&self, status: Status) {
        let callbacks = {
            let mut state = self.state.lock();
            assert!(state.done.is_none(), "bug: a promise was kept twice");
            state.done = Some(status.clone());
            std::mem::take(&mut state.callbacks)
        };
        self.kept.notify_all();
        for callback in callbacks {
            callback(&status);
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.state.lock().done.is_some()
    }

    pub(crate) fn wait(&self) -> Status {
        let mut state = self.state.lock();
        loop {
            match &state.done {
                Some(status) => return status.clone(),
                None => self.kept.wait(&mut state),
            }
        }
    }

    pub(crate) fn when_kept(&self, callback: impl FnOnce(&Status) + Send + 'static) {
        let status = {
            let mut state = self.state.lock();
            match state.done.clone() {
                Some(status) => status,
                None => return state.callbacks.push(Box::new(callback)),
            }
        };
        callback(&status);
    }
}

/// A `PJRT_Event`, as the caller sees it.
pub(crate) struct Event {
    pub(crate) promise: Arc<Promise>,
    /// The number of registered callbacks that were not called yet.
    pub(crate) pending: Arc<AtomicU64>,
}

/// An event of a promise, for the caller.
pub(crate) fn event_of(promise: Arc<Promise>, client: Handle) -> *mut PJRT_Event {
    pointer(insert(Kind::Event, Arc::new(Event { promise, pending: Arc::default() }), client))
}

/// An error, owned by the caller.
pub(crate) fn error_of(failure: &Failure) -> *mut PJRT_Error {
    pointer(insert(Kind::Error, Arc::new(failure.clone()), 0))
}

/// A handle as a C pointer: an address where nothing is stored.
pub(crate) fn pointer<T>(handle: Handle) -> *mut T {
    std::ptr::without_provenance_mut(handle)
}

/// A callback of the caller for an event, with its argument.
pub(crate) struct Listener {
    pub(crate) function: unsafe extern "C" fn(*mut PJRT_Error, *mut c_void),
    pub(crate) argument: *mut c_void,
}

// SAFETY: the C API says that callbacks may be called on any thread.
unsafe impl Send for Listener {}

impl Listener {
    pub(crate) fn tell(self, status: &Status) {
        let error = status.as_ref().map_or_else(error_of, |()| std::ptr::null_mut());
        unsafe { (self.function)(error, self.argument) };
    }
}

/// Host memory that the caller keeps alive until an event is ready.
pub(crate) struct HostMemory {
    pub(crate) start: *mut c_char,
    pub(crate) len: usize,
}

// SAFETY: the caller allows any thread to use the memory until the event is ready.
unsafe impl Send for HostMemory {}

type Task = Box<dyn FnOnce() + Send>;

/// A thread with a queue.
pub(crate) struct Thread {
    tasks: Mutex<Option<Sender<Task>>>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// The number of running threads.
static THREADS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn threads() -> u64 {
    THREADS.load(Ordering::SeqCst)
}

impl Thread {
    pub(crate) fn start(name: &str) -> Result<Thread, Failure> {
        let (tasks, queue) = unbounded::<Task>();
        let run = move || queue.iter().for_each(|task| task());
        let handle = std::thread::Builder::new().name(name.into()).spawn(run);
        let handle = handle.map_err(|error| Failure::new(INTERNAL, format!("no thread: {error}")))?;
        THREADS.fetch_add(1, Ordering::SeqCst);
        Ok(Thread { tasks: Mutex::new(Some(tasks)), handle: Mutex::new(Some(handle)) })
    }

    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        let sent = self.tasks.lock().as_ref().is_some_and(|tasks| tasks.send(Box::new(task)).is_ok());
        assert!(sent, "bug: work for a client that is gone");
    }

    /// Finishes all work and ends the thread.
    pub(crate) fn finish(&self) {
        drop(self.tasks.lock().take());
        let Some(handle) = self.handle.lock().take() else { return };
        if handle.thread().id() == std::thread::current().id() {
            die("a client is destroyed on its own thread, which it would wait for");
        }
        if handle.join().is_err() {
            die("a thread of a client panicked");
        }
        THREADS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The message of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
