//! Threads for foreground work, which somebody waits for, and threads for background work.
//!
//! Each kind has its own queue and threads. Background threads run at low priority, so background
//! compiles use the cores that the program leaves. On Linux every thread may lower its priority,
//! but none may raise it again without a privilege. So one thread cannot do both kinds: after its
//! first background work it would do foreground work at low priority, or it would compete with the
//! program for work that nobody waits for. There are half as many background threads, rounded up,
//! in addition to the others.
//!
//! Threads that a compiler creates keep their own priority. XLA's CPU plugin generates code on as
//! many threads as there are cores. The first compile of the process creates them, with the
//! priority of its thread, and three quarters of a compile's time is spent there (110 of 145 ms for
//! six products, API 0.81, 2026-11-23). All compiles share these threads, so they must not be
//! niced. With background compiles, a recording loop runs at 0.69 of its normal speed, and at 0.56
//! if nothing is niced (mean of six pairs in one run on 2 cores, with other work beside).
//!
//! Invariants:
//! - POOL-3: foreground work is never queued behind background work and runs at the program's own
//!   priority, with one exception:
//! - POOL-4: background work that has begun, and that somebody waits for since, ends on its thread.
//!   Work that is only queued is moved ([`CompilePool::hasten`]).
//! - POOL-5: a thread that does not return is abandoned after a time: another replaces it, and
//!   whoever waits for its work is told. If too many are stuck, no refusable work begins until one
//!   returns. It is refused at once.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use super::pool::{Item, Pool, Priority, Refusal, Refused, Stuck};

/// Identifies work for which somebody may begin to wait.
type Tag = [u8; 32];

/// A piece of work, which may be refusable.
pub struct Work {
    run: Box<dyn FnOnce() + Send>,
    refusal: Option<Refusal>,
}

impl Work {
    /// `refusal` is called instead of the rest of `run` if that takes too long, or instead of all
    /// of it.
    pub fn refusable(
        run: impl FnOnce() + Send + 'static,
        refusal: impl FnOnce(Refused) + Send + 'static,
    ) -> Work {
        Work { run: Box::new(run), refusal: Some(Box::new(refusal)) }
    }

    /// Does the work.
    pub fn run(self) {
        (self.run)();
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("is_refusable", &self.is_refusable()).finish_non_exhaustive()
    }
}

impl<F: FnOnce() + Send + 'static> From<F> for Work {
    fn from(run: F) -> Work {
        Work { run: Box::new(run), refusal: None }
    }
}

impl Item for Work {
    fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    fn is_refusable(&self) -> bool {
        self.refusal.is_some()
    }
}

impl<T: Item> Item for (Option<Tag>, T) {
    fn take_refusal(&mut self) -> Option<Refusal> {
        self.1.take_refusal()
    }

    fn is_refusable(&self) -> bool {
        self.1.is_refusable()
    }
}

/// The two kinds of threads.
#[derive(Debug)]
pub struct CompilePool<T> {
    awaited: Pool<T>,
    background: Pool<(Option<Tag>, T)>,
    /// Number of stuck threads at which no more refusable work begins.
    most_stuck: usize,
}

impl<T: Item> CompilePool<T> {
    /// Starts `threads` foreground threads, named `fuseline-NAME-0` and so on, and the background
    /// threads, `fuseline-later-0` and so on.
    pub fn start(
        name: &str,
        threads: usize,
        most_stuck: usize,
        run: impl Fn(T) + Clone + Send + Sync + 'static,
    ) -> std::io::Result<CompilePool<T>> {
        let awaited = Pool::start(name, threads, Priority::Normal, run.clone())?;
        let background =
            Pool::start("bg-compile", threads.div_ceil(2), Priority::Low, move |(_, item)| run(item));
        match background {
            Ok(background) => Ok(CompilePool { awaited, background, most_stuck }),
            Err(error) => {
                awaited.shut_down();
                Err(error)
            }
        }
    }

    /// Adds foreground work. After [`CompilePool::shut_down`] it is dropped.
    pub fn push(&self, item: T) {
        if let Some(item) = self.unless_closed(item) {
            self.awaited.push(item);
        }
    }

    /// Adds background work. [`CompilePool::hasten`] with its tag moves it to the foreground. If it
    /// has not begun by [`CompilePool::shut_down`], it is dropped.
    pub fn push_background(&self, tag: Option<Tag>, item: T) {
        if let Some(item) = self.unless_closed(item) {
            self.background.push((tag, item));
        }
    }

    /// Returns the refusal if too many threads are stuck (POOL-5).
    fn closed(&self) -> Option<Refused> {
        let stuck = self.awaited.stuck() + self.background.stuck();
        (stuck >= self.most_stuck).then_some(Refused::Closed(stuck))
    }

    /// Returns the item, unless it is refused.
    fn unless_closed(&self, mut item: T) -> Option<T> {
        if item.is_refusable()
            && let Some(refused) = self.closed()
            && let Some(refusal) = item.take_refusal()
        {
            drop(item);
            refusal(refused);
            return None;
        }
        Some(item)
    }

    /// Abandons threads that have worked on one item for `limit` or longer ([`Pool::give_up`]). If
    /// too many are stuck then, refuses what is queued. `report` is called for each abandoned
    /// thread, `report_closed` when no more tasks begin.
    pub fn give_up(
        &self,
        now: Instant,
        limit: Duration,
        report: impl Fn(&'static str, Stuck),
        report_closed: impl FnOnce(usize),
    ) -> Option<Instant> {
        let was_closed = self.closed().is_some();
        // The last of them is replaced too, because there is other work.
        let most = self.most_stuck;
        // Queued items are taken before another thread exists that could begin them.
        let taken = RefCell::new((None, Vec::new()));
        let take = || {
            if let Some(refused) = self.closed() {
                let (why, items) = &mut *taken.borrow_mut();
                *why = Some(refused);
                items.extend(self.awaited.take_back(Item::is_refusable));
                items.extend(self.background.take_back(Item::is_refusable).into_iter().map(|(_, item)| item));
            }
        };
        let awaited = self.awaited.give_up(now, limit, most, take, |stuck| report("compile", stuck));
        let background = self.background.give_up(now, limit, most, take, |stuck| report("bg-compile", stuck));
        take();
        if let (Some(refused @ Refused::Closed(stuck)), items) = taken.into_inner() {
            if !was_closed {
                report_closed(stuck);
            }
            for mut item in items {
                let refusal = item.take_refusal();
                drop(item);
                if let Some(refusal) = refusal {
                    refusal(refused);
                }
            }
        }
        awaited.into_iter().chain(background).min()
    }

    /// Somebody now waits for the work with this tag.
    pub fn hasten(&self, tag: &Tag) {
        for (_, item) in self.background.take_back(|(other, _)| other.as_ref() == Some(tag)) {
            self.awaited.push(item);
        }
    }

    /// Begins no more background work. [`CompilePool::hasten`] still finds it.
    pub fn pause_background(&self) {
        self.background.pause();
    }

    /// Finishes the work that has begun and the foreground work, ends the threads and waits for
    /// them. If one of them calls this, it is not waited for.
    pub fn shut_down(&self) {
        drop(self.background.take_back(|_| true));
        self.background.shut_down();
        self.awaited.shut_down();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;
    use crate::thread;

    type Task = Box<dyn FnOnce() + Send>;

    fn workers() -> CompilePool<Task> {
        CompilePool::start("test", 1, 2, |task: Task| task()).expect("threads")
    }

    /// A task that reports that it has begun and waits until it may end.
    fn stay() -> (Task, Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        let task = move || {
            begun.send(()).expect("it is waited for");
            let _ = may_end.recv();
        };
        (Box::new(task), has_begun, end)
    }

    /// A task that reports its thread.
    fn send_name(to: &Sender<String>) -> Task {
        let to = to.clone();
        let name = || thread::current().name().unwrap_or_default().to_owned();
        Box::new(move || to.send(name()).expect("somebody listens"))
    }

    /// POOL-3, POOL-4.
    #[test]
    fn what_is_waited_for_waits_for_nothing_else() {
        let workers = workers();
        let (send, told) = mpsc::channel();
        let (task, has_begun, end) = stay();
        workers.push_background(None, task);
        has_begun.recv().unwrap();
        // Its thread is busy.
        workers.push_background(Some([1; 32]), send_name(&send));
        workers.push_background(Some([2; 32]), send_name(&send));
        workers.push_background(None, send_name(&send));
        workers.push(send_name(&send));
        assert_eq!(told.recv().unwrap(), "fuseline-test-0");
        workers.hasten(&[3; 32]);
        workers.hasten(&[2; 32]);
        assert_eq!(told.recv().unwrap(), "fuseline-test-0");
        assert!(told.try_recv().is_err(), "the others are not hastened");
        end.send(()).unwrap();
        assert_eq!(
            [told.recv().unwrap(), told.recv().unwrap()],
            ["fuseline-bg-compile-0", "fuseline-bg-compile-0"]
        );
        workers.shut_down();
    }

    #[test]
    fn paused_work_runs_when_somebody_waits_for_it() {
        let workers = workers();
        let (send, told) = mpsc::channel();
        workers.pause_background();
        workers.push_background(Some([1; 32]), send_name(&send));
        workers.push_background(Some([2; 32]), send_name(&send));
        workers.hasten(&[2; 32]);
        assert_eq!(told.recv().unwrap(), "fuseline-test-0");
        workers.shut_down();
        assert!(told.try_recv().is_err(), "nobody waits for the other");
    }

    #[test]
    fn at_the_end_what_nobody_waits_for_is_dropped() {
        let workers = workers();
        let (send, told) = mpsc::channel();
        let (awaited, awaited_has_begun, end_awaited) = stay();
        let (background, background_has_begun, end_background) = stay();
        workers.push(awaited);
        workers.push_background(None, background);
        awaited_has_begun.recv().unwrap();
        background_has_begun.recv().unwrap();
        workers.push(send_name(&send));
        drop(send);
        let (send, never_told) = mpsc::channel();
        workers.push_background(None, send_name(&send));
        drop(send);
        let closing = thread::spawn("closing".to_owned(), move || workers.shut_down()).unwrap();
        assert!(never_told.recv().is_err());
        drop((end_awaited, end_background));
        assert_eq!(told.iter().collect::<Vec<_>>(), ["fuseline-test-0"]);
        closing.join().unwrap();
    }
}
