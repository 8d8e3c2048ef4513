//! Completions that a waiting thread handles itself.
//!
//! A device reports the end of an execution by a callback on a thread of the plugin. For a region
//! of microseconds this costs much: a product of 64x64 takes 15 µs, and 24 µs with an empty
//! callback (medians of a loop of bare PJRT calls that was not kept, API 0.106, 2 cores of an Intel
//! Xeon, 2026-11-29). A probable cause is the allocator: the plugin's thread frees what the driving
//! thread has allocated.
//!
//! A thread that drives its stream while it waits for a value needs no callback. It keeps the
//! completions of its launches ([`Deferral`]), waits for them, and then does the work of the
//! callbacks.
//!
//! Invariants:
//! - DEFER-1: a thread registers its deferred callbacks before it waits for anything other than
//!   these executions.
//! - DEFER-2: at most [`MAX_DEFERRED`] completions are deferred, so that the limits on what is in
//!   flight leave room for others.

use std::cell::RefCell;
use std::marker::PhantomData;

use smallvec::SmallVec;

use crate::device::Done;

/// The largest number of deferred completions of a thread.
const MAX_DEFERRED: usize = 4;

/// The end of an execution, and the function to call then.
struct Completion {
    done: Done,
    then: Box<dyn FnOnce() + Send>,
}

type Completions = SmallVec<[Completion; MAX_DEFERRED]>;

fuseline_sync::thread_local! {
    /// The deferred completions of this thread, oldest first. `None` if it does not defer.
    static DEFERRED: RefCell<Option<Completions>> = const { RefCell::new(None) };
}

/// While it exists, the calling thread defers the completions of what it launches.
pub(crate) struct Deferral {
    /// Whether another deferral of the thread exists.
    is_nested: bool,
    /// Not `Send`: it belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Deferral {
    /// Begins to defer.
    pub(crate) fn begin() -> Deferral {
        let is_nested = DEFERRED.try_with(|deferred| {
            let mut deferred = deferred.borrow_mut();
            let is_nested = deferred.is_some();
            deferred.get_or_insert_default();
            is_nested
        });
        // A thread that is ending does not defer.
        Deferral { is_nested: is_nested.unwrap_or(true), _thread: PhantomData }
    }

    /// Waits for the deferred executions and handles their completions.
    pub(crate) fn wait(&self) {
        for Completion { done, then } in take_deferred() {
            done.wait();
            then();
        }
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        register_deferred();
        if !self.is_nested {
            let _ = DEFERRED.try_with(|deferred| deferred.borrow_mut().take());
        }
    }
}

/// Takes the deferred completions of the thread.
fn take_deferred() -> Completions {
    let taken = DEFERRED.try_with(|deferred| deferred.borrow_mut().as_mut().map(std::mem::take));
    taken.ok().flatten().unwrap_or_default()
}

/// Registers callbacks for the deferred completions of the calling thread.
pub(crate) fn register_deferred() {
    for Completion { done, then } in take_deferred() {
        done.on_ready(then);
    }
}

/// Calls `then` when an execution is done: on any thread, possibly before this returns. A thread
/// that defers makes the call itself after its wait, if `may_defer` is set.
pub(crate) fn when_done(done: Done, may_defer: bool, then: impl FnOnce() + Send + 'static) {
    let mut completion = Some((done, then));
    let defer = |deferred: &RefCell<Option<Completions>>| {
        let mut deferred = deferred.borrow_mut();
        let deferred = deferred.as_mut().filter(|deferred| deferred.len() < MAX_DEFERRED)?;
        let (done, then) = completion.take()?;
        deferred.push(Completion { done, then: Box::new(then) });
        Some(())
    };
    if may_defer {
        let _ = DEFERRED.try_with(defer);
    }
    if let Some((done, then)) = completion {
        done.on_ready(then);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::sync::Arc;

    use fuseline_sync::{Mutex, Rank};

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    fn log() -> Log {
        Arc::new(Mutex::new(Rank::Test, Vec::new()))
    }

    /// Launches an execution that is done as soon as somebody asks.
    fn launch(name: &'static str, may_defer: bool, log: &Log) {
        let (asked, handled) = (log.clone(), log.clone());
        let done = Done::Later(Arc::new(move |callback| {
            asked.lock().push(format!("{name} asked"));
            callback();
        }));
        when_done(done, may_defer, move || handled.lock().push(format!("{name} handled")));
    }

    fn told(log: &Log) -> Vec<String> {
        std::mem::take(&mut *log.lock())
    }

    #[test]
    fn a_completion_is_deferred_until_the_thread_has_waited_or_stops() {
        let log = log();
        launch("before", true, &log);
        assert_eq!(told(&log), ["before asked", "before handled"]);
        let deferral = Deferral::begin();
        launch("a", true, &log);
        launch("observed", false, &log);
        assert_eq!(told(&log), ["observed asked", "observed handled"]);
        deferral.wait();
        assert_eq!(told(&log), ["a asked", "a handled"]);
        launch("b", true, &log);
        register_deferred();
        assert_eq!(told(&log), ["b asked", "b handled"]);
        launch("c", true, &log);
        let nested = Deferral::begin();
        drop(nested);
        assert_eq!(told(&log), ["c asked", "c handled"]);
        launch("d", true, &log);
        assert!(told(&log).is_empty(), "the outer one goes on");
        drop(deferral);
        assert_eq!(told(&log), ["d asked", "d handled"]);
        launch("after", true, &log);
        assert_eq!(told(&log), ["after asked", "after handled"]);
    }

    #[test]
    fn few_completions_are_deferred() {
        let log = log();
        let deferral = Deferral::begin();
        (0..MAX_DEFERRED).for_each(|_| launch("early", true, &log));
        assert!(told(&log).is_empty());
        launch("late", true, &log);
        assert_eq!(told(&log), ["late asked", "late handled"]);
        drop(deferral);
        assert_eq!(told(&log).len(), 2 * MAX_DEFERRED);
    }
}
