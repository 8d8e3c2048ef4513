//! The order in which locks nest, and the check that they do.
//!
//! Input: a [`Rank`] for each lock, given where the lock is made. Output: in builds with debug assertions, the names of both locks and where they
//! were taken, where a thread breaks the order.
//!
//! - N1: a thread takes a lock only if its level is above those of all that it holds. So no two threads wait for each other.
//! - N2: code of the user's runs under the driver of a stream and the reader of its log at most ([`before_user_code`]); only drivers take
//!   readers.
//! - N3: nothing is held while a plugin compiles or loads, and while a thread waits ([`before`]), but the lock that it waits with; and, where code of
//!   the user's ends an engine, the driver and the reader that it runs under, which are another engine's ([`before_end`]).
//!
//! A violation is told on standard error, the first few, and the process goes on: it may never
//! come to a deadlock. With `FUSELINE_LOCK_ORDER=end` in the environment, as in this checkout
//! (`.cargo/config.toml`), it ends the process and does not unwind: it would be caught as a panic
//! of the user's or of a pool's thread, and go unnoticed. The locks of the cache crate have no
//! ranks: what they guard is its tables, and nothing else is taken or called while one is held,
//! which is part of N1 to N3 ([`crate::LeafGuard`]). Releases know nothing of ranks: a lock is as
//! large as without one. Nor do loom and shuttle, under which a thread of the model is no thread
//! of the system.

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
        /// The locks by name, in the only order in which they nest. Those of one level do not nest in each other.
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
        KnownKeys = "the known keys",
        KnownRegions = "the known regions",
        ColdRegions = "the cold regions",
        Foregone = "the results that the host computes",
        ShapeClasses = "the shape classes",
        Captures = "the capture of an engine",
        CustomOps = "the custom ops",
        Flows = "the list of flows",
        Streams = "the list of streams",
        Templates = "the templates and spare tapes of a stream",
        Trace = "the body that is traced",
        EmbeddedTrace = "a trace of the embedder",
        Ids = "a shard of the embedder's ids",
        Unfilled = "the placeholders that are not filled",
        Timeline = "a timeline",
        Manifest = "the manifest that is written",
        Plugins = "the list of plugins",
    }
    4: {
        Flow = "the flow of a stream",
        Permits = "the permits of a gate",
        Donated = "the donated buffers of a stream",
        Askers = "who asks for values of a stream",
        Checks = "the checks of a stream",
        Reading = "what is known of a check",
        Verdict = "what checks come to",
        Standing = "what a stream is at",
        CompileSlot = "the slot of a compile",
        Landing = "the end of a compile",
        ReadSlot = "the slot of a read",
        CallSlot = "the slot of a call with a deadline",
        InterpreterSlot = "the slot of a region that is interpreted",
        Failures = "the latest failures",
        Promises = "the promises of data from outside",
        Room = "where the end of what was in flight is told",
        Habit = "the habit of an executable",
        Trial = "the trial of an executable",
        Surplus = "the surplus of an executable",
        Undonated = "the undonated inputs of an executable",
        Packed = "the packed scalars of an executable",
        Arrivals = "what arrives from several replicas",
        Copied = "the copy that arrived from a replica",
        Launch = "the launches of several replicas",
        BufferCalls = "calls on a buffer that are made one by one",
        Handlers = "the handlers that a plugin knows",
        Queue = "the queue of a pool",
        Threads = "the threads of a pool",
        Watch = "whether the watch is to end",
        WatchThread = "the thread of the watch",
        UnderWay = "what is under way to the store",
        Ending = "whether an end has come",
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

    /// Most that a thread holds at once; the levels are fewer.
    const MOST: usize = 8;

    type Place = &'static Location<'static>;

    /// What a thread holds, in the order in which it was taken.
    #[derive(Default)]
    pub(super) struct Stack {
        held: [Option<(Rank, Place)>; MOST],
        count: usize,
    }

    thread_local! {
        // Nothing of it is dropped, so it is there until the thread is gone.
        static STACK: RefCell<Stack> = const { RefCell::new(Stack { held: [None; MOST], count: 0 }) };
        /// Whether this thread is ending the process for a violation.
        static IS_OVER: Cell<bool> = const { Cell::new(false) };
    }

    const WHAT_TO_DO: &str = "Locks nest in the order of ARCHITECTURE.md, \"Threads and locks\": let go of the one that is held first, or do \
        what needs it before. If the order is wrong, change it there and in sync/src/rank.rs.";

    impl Stack {
        fn held(&self) -> impl Iterator<Item = (Rank, Place)> {
            self.held[..self.count].iter().flatten().copied()
        }

        /// N1.
        pub(super) fn take(&mut self, rank: Rank, place: Place) -> Result<(), String> {
            if rank == Rank::Test {
                return Ok(());
            }
            if let Some((other, there)) = self.held().find(|(other, _)| other.parts().0 >= rank.parts().0) {
                return Err(format!(
                    "lock order: at {place} this thread takes {rank:?}, and it holds {other:?} since {there}. {WHAT_TO_DO}"
                ));
            }
            self.held[self.count] = Some((rank, place));
            self.count += 1;
            Ok(())
        }

        pub(super) fn give(&mut self, rank: Rank) {
            let is_it = |held: &Option<(Rank, Place)>| held.is_some_and(|(other, _)| other == rank);
            if let Some(at) = self.held[..self.count].iter().rposition(is_it) {
                self.held[at..self.count].rotate_left(1);
                self.count -= 1;
            }
        }

        /// Whether all that is held but `except` is of this level at most.
        pub(super) fn holds_at_most(
            &self,
            most: u8,
            except: Option<Rank>,
            before: &str,
            place: Place,
        ) -> Result<(), String> {
            match self.held().find(|&(rank, _)| rank.parts().0 > most && Some(rank) != except) {
                None => Ok(()),
                Some((rank, there)) => Err(format!(
                    "lock order: at {place} this thread {before}, and it holds {rank:?} since {there}. {WHAT_TO_DO}"
                )),
            }
        }
    }

    /// How many violations are told.
    const MOST_TOLD: u32 = 8;

    /// Tells, or ends the process. Not through `eprintln`, which tests catch.
    fn refuse(message: &str) {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let goes_on = std::env::var_os("FUSELINE_LOCK_ORDER").is_none_or(|way| way != "end");
        if goes_on && TOLD.fetch_add(1, Ordering::Relaxed) >= MOST_TOLD {
            return;
        }
        IS_OVER.set(!goes_on);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = std::backtrace::Backtrace::capture();
        let _ = writeln!(std::io::stderr(), "\nthread {name}: {message}\n{trace}");
        if !goes_on {
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
                "lock order: at {} this thread {before}, and it holds a lock of the cache. {WHAT_TO_DO}",
                Location::caller()
            ));
        }
    }

    /// What a lock knows of its rank.
    #[derive(Clone, Copy)]
    pub(crate) struct Ranked(Rank);

    impl Ranked {
        pub(crate) const fn new(rank: Rank) -> Ranked {
            Ranked(rank)
        }

        /// The lock is about to be taken: a deadlock is told rather than waited for.
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
        /// This thread is about to wait, and lets go of this lock meanwhile (N3).
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

    /// This thread is about to do something that may take long or come back to us, in words ("waits"): nothing may be held (N3).
    #[track_caller]
    pub fn before(what: &str) {
        let place = Location::caller();
        unless_in_cache(what);
        look(|stack| stack.holds_at_most(0, None, what, place));
    }

    /// This thread is about to wait for the end of an engine. It may be in code of the user's, under the driver of another engine's stream: one of
    /// this engine's would keep it from ending.
    #[track_caller]
    pub fn before_end(what: &str) {
        let place = Location::caller();
        let (most, _) = Rank::Reader.parts();
        unless_in_cache(what);
        look(|stack| stack.holds_at_most(most, None, what, place));
    }

    /// This thread is about to call code of the user's (N2).
    #[track_caller]
    pub fn before_user_code() {
        let place = Location::caller();
        let (most, _) = Rank::Reader.parts();
        unless_in_cache("calls code of the user's");
        look(|stack| stack.holds_at_most(most, None, "calls code of the user's", place));
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn here() -> Place {
            Location::caller()
        }

        #[test]
        fn levels_rise_and_both_locks_are_named_where_they_do_not() {
            let mut stack = Stack::default();
            for rank in [Rank::Driver, Rank::Templates, Rank::Queue, Rank::LogRoom] {
                stack.take(rank, here()).unwrap();
            }
            stack.give(Rank::LogRoom);
            stack.give(Rank::Templates);
            // The queue is still held, by which a lock of an earlier level and one of its own are refused.
            for rank in [Rank::Templates, Rank::Flow, Rank::Queue] {
                let message = stack.take(rank, here()).unwrap_err();
                assert!(message.contains(&format!("takes {rank:?}")), "{message}");
                assert!(
                    message.contains("holds the queue of a pool (level 4) since sync/src/rank.rs"),
                    "{message}"
                );
                assert!(message.contains("ARCHITECTURE.md"), "{message}");
            }
            stack.give(Rank::Queue);
            stack.take(Rank::Templates, here()).unwrap();
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
            assert!(message.contains("waits, and it holds the driver of a stream (level 1)"), "{message}");
            stack.take(Rank::Flow, here()).unwrap();
            assert!(stack.holds_at_most(user, None, "calls", here()).is_err());
            // The lock that is waited with is let go of.
            stack.holds_at_most(user, Some(Rank::Flow), "waits", here()).unwrap();
        }

        /// In a process of its own, since it ends by it.
        #[test]
        fn two_locks_in_the_wrong_order_end_the_process() {
            const CHILD: &str = "FUSELINE_TEST_LOCK_ORDER";
            if std::env::var_os(CHILD).is_some() {
                let (flow, templates) =
                    (crate::Mutex::new(Rank::Flow, ()), crate::Mutex::new(Rank::Templates, ()));
                let _flow = flow.lock();
                let _templates = templates.lock();
                return;
            }
            let name = "rank::checked::tests::two_locks_in_the_wrong_order_end_the_process";
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").env("FUSELINE_LOCK_ORDER", "end");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{said}");
            for rank in [Rank::Flow, Rank::Templates] {
                assert!(said.contains(&format!("{rank:?}")), "{said}");
            }
        }

        #[test]
        fn a_guard_is_on_the_stack_for_as_long_as_it_lives() {
            let lock = crate::Mutex::new(Rank::Flow, 1);
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

    /// Nothing is checked.
    #[inline(always)]
    pub fn before(_what: &str) {}

    /// Nothing is checked.
    #[inline(always)]
    pub fn before_end(_what: &str) {}

    /// Nothing is checked.
    #[inline(always)]
    pub fn before_user_code() {}
}
