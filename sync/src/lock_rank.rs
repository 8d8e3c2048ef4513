//! The order in which locks nest, and its check.
//!
//! Input: a [`Rank`] for each lock, given where the lock is created. Output: when a thread breaks
//! the order, the names of both locks and where they were taken, in builds with debug assertions.
//!
//! - RANK-1: a thread takes a lock only if its level is above the levels of all that it holds. So
//!   no two threads wait for each other.
//! - RANK-2: user code runs at most under the driver of a stream and the reader of its log
//!   ([`before_user_code`]). Only drivers take readers.
//! - RANK-3: no lock is held while a plugin compiles or loads, or while a thread waits
//!   ([`before`]), except the lock that it waits with. Where user code drops an engine, it may run
//!   under the driver and the reader of another engine ([`before_end`]).
//!
//! The first few violations are reported on standard error, and the process goes on, because it may
//! never come to a deadlock. With `FUSELINE_LOCK_ORDER=end` in the environment, as in this checkout
//! (`.cargo/config.toml`), a violation ends the process. It does not unwind: a panic would be
//! caught as one of the user or of a pool thread, and go unnoticed. The locks of the cache crate
//! have no ranks. They guard its tables, and nothing else is taken or called while one is held,
//! which is part of RANK-1 to RANK-3 ([`crate::LeafGuard`]). Release builds have no ranks, so a
//! lock is as large as without one. Neither do loom and shuttle, under which a thread of the model
//! is no thread of the system.

use std::fmt;

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
use checked as here;
#[cfg(not(all(debug_assertions, not(any(loom, shuttle)))))]
use unchecked as here;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use here::{Held, Ranked};
pub use here::{before, before_end, before_user_code};

/// Declares the locks, level by level.
macro_rules! ranks {
    ($($level:literal: { $($name:ident = $words:literal,)+ })+) => {
        /// The locks by name, in the only order in which they nest. Locks of one level do not nest
        /// in each other.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum Rank {
            $($(#[doc = $words] $name,)+)+
        }

        impl Rank {
            const fn parts(self) -> (u8, &'static str) {
                match self {
                    $($(Rank::$name => ($level, $words),)+)+
                }
            }
        }
    };
}

// The order of ARCHITECTURE.md, "Threads and locks".
ranks! {
    0: {
        Test = "a lock of a test, which is held as a program's would be",
    }
    1: {
        Driver = "the driver of a stream",
    }
    2: {
        Reader = "the reader of the log",
    }
    3: {
        MissHistoryKeys = "the keys of the miss history",
        MissHistory = "the miss history",
        InterpreterTier = "the regions of the interpreter tier",
        HostEval = "the results that the host computes",
        ShapeClasses = "the shape classes",
        Captures = "the capture of an engine",
        CustomOps = "the custom ops",
        InFlightLists = "the list of what is in flight of each stream",
        Streams = "the list of streams",
        TemplateCache = "the template cache of a stream",
        Trace = "the body that is traced",
        EmbeddedTrace = "a trace of the embedder",
        Ids = "a shard of the embedder's ids",
        Unfilled = "the placeholders that are not filled",
        Timeline = "a timeline",
        Manifest = "the manifest that is written",
        Plugins = "the list of plugins",
    }
    4: {
        InFlight = "what is in flight of a stream",
        Permits = "the permits of a combining lock",
        DeferredFrees = "the deferred frees of a stream",
        ReadSites = "the read sites of a stream",
        Checks = "the checks of a stream",
        Reading = "what is known of a check",
        Verdict = "what checks come to",
        Activity = "the activity of a stream",
        Completion = "the completion of a compile",
        ReadSlot = "the slot of a read",
        Failures = "the latest failures",
        Promises = "the promises of data from outside",
        ScalarProfile = "the scalar profile of an executable",
        Equivalence = "the equivalence trial of an executable",
        UnusedOutputs = "the unused outputs of an executable",
        DonationProfile = "the donation profile of an executable",
        ScalarArgs = "the packed scalars of an executable",
        Arrivals = "what arrives from several replicas",
        Copied = "the copy that arrived from a replica",
        Launch = "the launches of several replicas",
        BufferCalls = "calls on a buffer that are made one by one",
        Handlers = "the handlers that a plugin knows",
        Queue = "the queue of a pool",
        Threads = "the threads of a pool",
        Watchdog = "whether the watchdog is to end",
        WatchdogThread = "the thread of the watchdog",
        UnderWay = "what is under way to the store",
        Ending = "whether an end has come",
        Oneshot = "the value of a oneshot channel",
    }
    5: {
        LogRoom = "the room of the log",
        LateEntries = "the entries beside the log",
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, words) = self.parts();
        write!(f, "{words} (level {level})")
    }
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod checked {
    #![allow(clippy::disallowed_types, reason = "no model knows ranks, and a static needs a constant")]

    use std::cell::{Cell, RefCell};
    use std::io::Write as _;
    use std::panic::Location;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Rank;

    /// Maximum number of locks that a thread holds at once. There are fewer levels.
    const MOST: usize = 8;

    type CallSite = &'static Location<'static>;

    /// The locks that a thread holds, in the order in which it took them.
    #[derive(Default)]
    pub(super) struct Stack {
        held: [Option<(Rank, CallSite)>; MOST],
        count: usize,
    }

    thread_local! {
        // Nothing in it has a destructor, so it exists until the thread is gone.
        static STACK: RefCell<Stack> = const { RefCell::new(Stack { held: [None; MOST], count: 0 }) };
        /// Whether this thread is ending the process for a violation.
        static IS_OVER: Cell<bool> = const { Cell::new(false) };
    }

    const WHAT_TO_DO: &str = "Locks nest in the order of ARCHITECTURE.md, \"Threads and locks\": \
                              release the held lock first, or do the work that needs it before. \
                              If the order is wrong, change it there and in sync/src/lock_rank.rs.";

    impl Stack {
        fn held(&self) -> impl Iterator<Item = (Rank, CallSite)> {
            self.held[..self.count].iter().flatten().copied()
        }

        /// RANK-1.
        pub(super) fn take(&mut self, rank: Rank, place: CallSite) -> Result<(), String> {
            if rank == Rank::Test {
                return Ok(());
            }
            if let Some((other, there)) = self.held().find(|(other, _)| other.parts().0 >= rank.parts().0) {
                return Err(format!(
                    "lock order: at {place} this thread takes {rank:?} while it holds {other:?}, \
                     taken at {there}. {WHAT_TO_DO}"
                ));
            }
            self.held[self.count] = Some((rank, place));
            self.count += 1;
            Ok(())
        }

        pub(super) fn give(&mut self, rank: Rank) {
            let is_it = |held: &Option<(Rank, CallSite)>| held.is_some_and(|(other, _)| other == rank);
            if let Some(at) = self.held[..self.count].iter().rposition(is_it) {
                self.held[at..self.count].rotate_left(1);
                self.count -= 1;
            }
        }

        /// Checks that all held locks except `except` have at most this level.
        pub(super) fn holds_at_most(
            &self,
            most: u8,
            except: Option<Rank>,
            before: &str,
            place: CallSite,
        ) -> Result<(), String> {
            match self.held().find(|&(rank, _)| rank.parts().0 > most && Some(rank) != except) {
                None => Ok(()),
                Some((rank, there)) => Err(format!(
                    "lock order: at {place} this thread {before} while it holds {rank:?}, taken \
                     at {there}. {WHAT_TO_DO}"
                )),
            }
        }
    }

    /// Maximum number of reported violations.
    const MAX_REPORTS: u32 = 8;

    /// Reports a violation, or ends the process. Not through `eprintln`, which tests capture.
    fn refuse(message: &str) {
        static REPORTS: AtomicU32 = AtomicU32::new(0);
        let continues = std::env::var_os("FUSELINE_LOCK_ORDER").is_none_or(|way| way != "end");
        if continues && REPORTS.fetch_add(1, Ordering::Relaxed) >= MAX_REPORTS {
            return;
        }
        IS_OVER.set(!continues);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = std::backtrace::Backtrace::capture();
        let _ = writeln!(std::io::stderr(), "\nthread {name}: {message}\n{trace}");
        if !continues {
            std::process::abort();
        }
    }

    fn look(check: impl FnOnce(&mut Stack) -> Result<(), String>) {
        if !IS_OVER.get()
            && let Err(message) = STACK.with_borrow_mut(check)
        {
            refuse(&message);
        }
    }

    #[track_caller]
    fn unless_in_cache(before: &str) {
        if crate::leaf::holds_leaf() && !IS_OVER.get() {
            refuse(&format!(
                "lock order: at {} this thread {before} while it holds a lock of the cache. {WHAT_TO_DO}",
                Location::caller()
            ));
        }
    }

    /// The rank of a lock.
    #[derive(Clone, Copy)]
    pub(crate) struct Ranked(Rank);

    impl Ranked {
        pub(crate) const fn new(rank: Rank) -> Ranked {
            Ranked(rank)
        }

        /// Called before the lock is taken, so that a deadlock is reported instead of waited for.
        #[track_caller]
        pub(crate) fn take(self) -> Held {
            let place = Location::caller();
            look(|stack| stack.take(self.0, place));
            Held(self.0)
        }
    }

    /// A lock that this thread holds.
    pub(crate) struct Held(Rank);

    impl Held {
        /// Called before this thread waits, which releases this lock meanwhile (RANK-3).
        #[track_caller]
        pub(crate) fn before_wait(&self) {
            let (rank, place) = (self.0, Location::caller());
            unless_in_cache("waits");
            // As in `before_end`.
            let (most, _) = if rank == Rank::Ending { Rank::Reader.parts() } else { (0, "") };
            look(|stack| stack.holds_at_most(most, Some(rank), "waits", place));
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            STACK.with_borrow_mut(|stack| stack.give(self.0));
        }
    }

    /// Called before this thread does something that may take long or call back. `what` describes
    /// it ("waits"). No lock may be held (RANK-3).
    #[track_caller]
    pub fn before(what: &str) {
        let place = Location::caller();
        unless_in_cache(what);
        look(|stack| stack.holds_at_most(0, None, what, place));
    }

    /// Called before this thread waits for the end of an engine. It may run user code under the
    /// driver of another engine's stream. A driver of this engine's streams would keep it from
    /// ending.
    #[track_caller]
    pub fn before_end(what: &str) {
        let place = Location::caller();
        let (most, _) = Rank::Reader.parts();
        unless_in_cache(what);
        look(|stack| stack.holds_at_most(most, None, what, place));
    }

    /// Called before this thread runs user code (RANK-2).
    #[track_caller]
    pub fn before_user_code() {
        let place = Location::caller();
        let (most, _) = Rank::Reader.parts();
        unless_in_cache("calls user code");
        look(|stack| stack.holds_at_most(most, None, "calls user code", place));
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn here() -> CallSite {
            Location::caller()
        }

        #[test]
        fn levels_rise_and_both_locks_are_named_where_they_do_not() {
            let mut stack = Stack::default();
            for rank in [Rank::Driver, Rank::TemplateCache, Rank::Queue, Rank::LogRoom] {
                stack.take(rank, here()).unwrap();
            }
            stack.give(Rank::LogRoom);
            stack.give(Rank::TemplateCache);
            // The queue is still held, so locks of an earlier level and of its own level are
            // refused.
            for rank in [Rank::TemplateCache, Rank::InFlight, Rank::Queue] {
                let message = stack.take(rank, here()).unwrap_err();
                assert!(message.contains(&format!("takes {rank:?}")), "{message}");
                assert!(
                    message.contains("holds the queue of a pool (level 4), taken at sync/src/lock_rank.rs"),
                    "{message}"
                );
                assert!(message.contains("ARCHITECTURE.md"), "{message}");
            }
            stack.give(Rank::Queue);
            stack.take(Rank::TemplateCache, here()).unwrap();
        }

        #[test]
        fn user_code_runs_under_a_driver_and_waiting_under_nothing() {
            let mut stack = Stack::default();
            let (user, nothing) = (Rank::Reader.parts().0, 0);
            stack.take(Rank::Test, here()).unwrap();
            stack.holds_at_most(nothing, None, "waits", here()).unwrap();
            stack.take(Rank::Driver, here()).unwrap();
            stack.take(Rank::Reader, here()).unwrap();
            stack.holds_at_most(user, None, "calls", here()).unwrap();
            let message = stack.holds_at_most(nothing, None, "waits", here()).unwrap_err();
            assert!(message.contains("waits while it holds the driver of a stream (level 1)"), "{message}");
            stack.take(Rank::InFlight, here()).unwrap();
            assert!(stack.holds_at_most(user, None, "calls", here()).is_err());
            // The lock that is waited with is released.
            stack.holds_at_most(user, Some(Rank::InFlight), "waits", here()).unwrap();
        }

        /// In its own process, because it ends that.
        #[test]
        fn two_locks_in_the_wrong_order_end_the_process() {
            const CHILD: &str = "FUSELINE_TEST_LOCK_ORDER";
            if std::env::var_os(CHILD).is_some() {
                let (flow, templates) =
                    (crate::Mutex::new(Rank::InFlight, ()), crate::Mutex::new(Rank::TemplateCache, ()));
                let _flow = flow.lock();
                let _templates = templates.lock();
                return;
            }
            let name = "lock_rank::checked::tests::two_locks_in_the_wrong_order_end_the_process";
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").env("FUSELINE_LOCK_ORDER", "end");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{said}");
            for rank in [Rank::InFlight, Rank::TemplateCache] {
                assert!(said.contains(&format!("{rank:?}")), "{said}");
            }
        }

        #[test]
        fn a_guard_is_on_the_stack_for_as_long_as_it_lives() {
            let lock = crate::Mutex::new(Rank::InFlight, 1);
            let count = || STACK.with_borrow(|stack| stack.count);
            let guard = lock.lock();
            assert_eq!((*guard, count()), (1, 1));
            drop(guard);
            assert_eq!(count(), 0);
        }
    }
}

#[cfg(not(all(debug_assertions, not(any(loom, shuttle)))))]
#[allow(dead_code, reason = "locks of models have no rank")]
mod unchecked {
    use super::Rank;

    #[derive(Clone, Copy)]
    pub(crate) struct Ranked;

    impl Ranked {
        pub(crate) const fn new(_rank: Rank) -> Ranked {
            Ranked
        }

        #[inline(always)]
        pub(crate) fn take(self) -> Held {
            Held
        }
    }

    pub(crate) struct Held;

    impl Held {
        #[inline(always)]
        pub(crate) fn before_wait(&self) {}
    }

    /// Checks nothing.
    #[inline(always)]
    pub fn before(_what: &str) {}

    /// Checks nothing.
    #[inline(always)]
    pub fn before_end(_what: &str) {}

    /// Checks nothing.
    #[inline(always)]
    pub fn before_user_code() {}
}
