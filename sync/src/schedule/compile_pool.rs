//! Threads for work that somebody waits for, and others for work that nobody waits for.
//!
//! Each kind has a queue and threads of its own, and those of the second run at low priority: compiles in the background take what cores
//! the program leaves. Linux lets every thread lower its priority and none raise it again without a privilege, so a thread cannot
//! take both kinds: after its first piece of unhurried work it would let somebody wait at low priority, or it would compete with the program for
//! what the program does not wait for. There are half as many of the second kind, rounded up, on top of the others, which they take nothing
//! from.
//!
//! What a compiler does on threads of its own keeps their priority. XLA's CPU plugin generates code on as many threads as there are cores, made by the
//! first compile of the process, with the priority of whoever asked for that, and three quarters of a compile's time is spent there (110 of
//! 145 ms for six products, API 0.81, 2026-11-23). All compiles share them, so they must not be niced. So beside compiles in the background a recording
//! loop got 0.69 of what it gets without, and 0.56 if nothing is niced (mean of six pairs in one run on 2 cores, other work beside).
//!
//! Invariants:
//! - A3: what is waited for is never queued behind what is not, and is run at the program's own priority; but for
//! - A4: what was begun when nobody waited for it, and is waited for since, ends where it is. What is only queued is moved
//!   ([`Workers::hasten`]).
//! - A5: a thread that does not come back is given up after a time: another takes its place, and who waits for its work is told. With so many
//!   stuck, no work is begun that could end so until one comes back; it is refused at once.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use super::pool::{Item, Pool, Priority, Refusal, Refused, Stuck};

/// Says for which piece of work somebody has begun to wait.
type Tag = [u8; 32];

/// Work that can be refused, and other work that cannot.
pub struct Work {
    run: Box<dyn FnOnce() + Send>,
    refusal: Option<Refusal>,
}

impl Work {
    /// `refusal` is called instead of the rest of `run`, if that takes too long, or instead of all of it.
    pub fn refusable(
        run: impl FnOnce() + Send + 'static,
        refusal: impl FnOnce(Refused) + Send + 'static,
    ) -> Work {
        Work { run: Box::new(run), refusal: Some(Box::new(refusal)) }
    }

    /// Does it.
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
pub struct Workers<T> {
    awaited: Pool<T>,
    unhurried: Pool<(Option<Tag>, T)>,
    /// With so many stuck no more is begun.
    most_stuck: usize,
}

impl<T: Item> Workers<T> {
    /// Starts `threads` for what is waited for, named `fuseline-NAME-0` and so on, and the others, `fuseline-later-0` and so on.
    pub fn start(
        name: &str,
        threads: usize,
        most_stuck: usize,
        run: impl Fn(T) + Clone + Send + Sync + 'static,
    ) -> std::io::Result<Workers<T>> {
        let awaited = Pool::start(name, threads, Priority::Normal, run.clone())?;
        let unhurried = Pool::start("later", threads.div_ceil(2), Priority::Low, move |(_, item)| run(item));
        match unhurried {
            Ok(unhurried) => Ok(Workers { awaited, unhurried, most_stuck }),
            Err(error) => {
                awaited.shut_down();
                Err(error)
            }
        }
    }

    /// Hands over work that somebody waits for. After [`Workers::shut_down`] it is dropped.
    pub fn push(&self, item: T) {
        if let Some(item) = self.unless_closed(item) {
            self.awaited.push(item);
        }
    }

    /// Hands over work that nobody waits for, unless [`Workers::hasten`] says otherwise of its tag. It is dropped if its turn has not come
    /// at [`Workers::shut_down`].
    pub fn push_unhurried(&self, tag: Option<Tag>, item: T) {
        if let Some(item) = self.unless_closed(item) {
            self.unhurried.push((tag, item));
        }
    }

    /// So many threads are stuck that no more is begun (A5).
    fn closed(&self) -> Option<Refused> {
        let stuck = self.awaited.stuck() + self.unhurried.stuck();
        (stuck >= self.most_stuck).then_some(Refused::Closed(stuck))
    }

    /// The item, unless it is refused.
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

    /// Gives up what has taken `limit` or longer ([`Pool::give_up`]), and then, if that is too much, refuses what is queued. `tell` is told
    /// which threads are given up, `tell_closed` that nothing more is begun.
    pub fn give_up(
        &self,
        now: Instant,
        limit: Duration,
        tell: impl Fn(&'static str, Stuck),
        tell_closed: impl FnOnce(usize),
    ) -> Option<Instant> {
        let was_closed = self.closed().is_some();
        // The last of them is replaced too: there is other work.
        let most = self.most_stuck;
        // What is queued is taken before there is another thread that would begin it.
        let taken = RefCell::new((None, Vec::new()));
        let take = || {
            if let Some(refused) = self.closed() {
                let (why, items) = &mut *taken.borrow_mut();
                *why = Some(refused);
                items.extend(self.awaited.take_back(Item::is_refusable));
                items.extend(self.unhurried.take_back(Item::is_refusable).into_iter().map(|(_, item)| item));
            }
        };
        let awaited = self.awaited.give_up(now, limit, most, take, |stuck| tell("compile", stuck));
        let unhurried = self.unhurried.give_up(now, limit, most, take, |stuck| tell("later", stuck));
        take();
        if let (Some(refused @ Refused::Closed(stuck)), items) = taken.into_inner() {
            if !was_closed {
                tell_closed(stuck);
            }
            for mut item in items {
                let refusal = item.take_refusal();
                drop(item);
                if let Some(refusal) = refusal {
                    refusal(refused);
                }
            }
        }
        awaited.into_iter().chain(unhurried).min()
    }

    /// Somebody waits for the work of this tag now.
    pub fn hasten(&self, tag: &Tag) {
        for (_, item) in self.unhurried.take_back(|(other, _)| other.as_ref() == Some(tag)) {
            self.awaited.push(item);
        }
    }

    /// Begins no more of the work that nobody waits for. [`Workers::hasten`] still finds it.
    pub fn pause_unhurried(&self) {
        self.unhurried.pause();
    }

    /// Lets the threads finish what they have begun and what is waited for, and end; waits for them. One of them may call this: it is not
    /// waited for.
    pub fn shut_down(&self) {
        drop(self.unhurried.take_back(|_| true));
        self.unhurried.shut_down();
        self.awaited.shut_down();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;
    use crate::thread;

    type Task = Box<dyn FnOnce() + Send>;

    fn workers() -> Workers<Task> {
        Workers::start("test", 1, 2, |task: Task| task()).expect("threads")
    }

    /// A task that says when it has begun and waits until it may end.
    fn stay() -> (Task, Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        let task = move || {
            begun.send(()).expect("it is waited for");
            let _ = may_end.recv();
        };
        (Box::new(task), has_begun, end)
    }

    /// A task that says which thread it is on.
    fn tell(to: &Sender<String>) -> Task {
        let to = to.clone();
        let name = || thread::current().name().unwrap_or_default().to_owned();
        Box::new(move || to.send(name()).expect("somebody listens"))
    }

    /// A3, A4.
    #[test]
    fn what_is_waited_for_waits_for_nothing_else() {
        let workers = workers();
        let (send, told) = mpsc::channel();
        let (task, has_begun, end) = stay();
        workers.push_unhurried(None, task);
        has_begun.recv().unwrap();
        // The thread for it is taken.
        workers.push_unhurried(Some([1; 32]), tell(&send));
        workers.push_unhurried(Some([2; 32]), tell(&send));
        workers.push_unhurried(None, tell(&send));
        workers.push(tell(&send));
        assert_eq!(told.recv().unwrap(), "fuseline-test-0");
        workers.hasten(&[3; 32]);
        workers.hasten(&[2; 32]);
        assert_eq!(told.recv().unwrap(), "fuseline-test-0");
        assert!(told.try_recv().is_err(), "the others are not hastened");
        end.send(()).unwrap();
        assert_eq!([told.recv().unwrap(), told.recv().unwrap()], ["fuseline-later-0", "fuseline-later-0"]);
        workers.shut_down();
    }

    #[test]
    fn paused_work_runs_when_somebody_waits_for_it() {
        let workers = workers();
        let (send, told) = mpsc::channel();
        workers.pause_unhurried();
        workers.push_unhurried(Some([1; 32]), tell(&send));
        workers.push_unhurried(Some([2; 32]), tell(&send));
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
        let (unhurried, unhurried_has_begun, end_unhurried) = stay();
        workers.push(awaited);
        workers.push_unhurried(None, unhurried);
        awaited_has_begun.recv().unwrap();
        unhurried_has_begun.recv().unwrap();
        workers.push(tell(&send));
        drop(send);
        let (send, never_told) = mpsc::channel();
        workers.push_unhurried(None, tell(&send));
        drop(send);
        let closing = thread::spawn("closing".to_owned(), move || workers.shut_down()).unwrap();
        assert!(never_told.recv().is_err());
        drop((end_awaited, end_unhurried));
        assert_eq!(told.iter().collect::<Vec<_>>(), ["fuseline-test-0"]);
        closing.join().unwrap();
    }
}
