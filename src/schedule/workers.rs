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

use super::pool::{Pool, Priority};

/// Says for which piece of work somebody has begun to wait.
type Tag = [u8; 32];

/// The two kinds of threads.
pub(crate) struct Workers<T> {
    awaited: Pool<T>,
    unhurried: Pool<(Option<Tag>, T)>,
}

impl<T: Send + 'static> Workers<T> {
    /// Starts `threads` for what is waited for, named `fuseline-NAME-0` and so on, and the others, `fuseline-later-0` and so on.
    pub(crate) fn start(
        name: &str,
        threads: usize,
        run: impl Fn(T) + Clone + Send + Sync + 'static,
    ) -> std::io::Result<Workers<T>> {
        let awaited = Pool::start(name, threads, Priority::Normal, run.clone())?;
        let unhurried = Pool::start("later", threads.div_ceil(2), Priority::Low, move |(_, item)| run(item));
        match unhurried {
            Ok(unhurried) => Ok(Workers { awaited, unhurried }),
            Err(error) => {
                awaited.shut_down();
                Err(error)
            }
        }
    }

    /// Hands over work that somebody waits for. After [`Workers::shut_down`] it is dropped.
    pub(crate) fn push(&self, item: T) {
        self.awaited.push(item);
    }

    /// Hands over work that nobody waits for, unless [`Workers::hasten`] says otherwise of its tag. It is dropped if its turn has not come
    /// at [`Workers::shut_down`].
    pub(crate) fn push_unhurried(&self, tag: Option<Tag>, item: T) {
        self.unhurried.push((tag, item));
    }

    /// Somebody waits for the work of this tag now.
    pub(crate) fn hasten(&self, tag: &Tag) {
        for (_, item) in self.unhurried.take_back(|(other, _)| other.as_ref() == Some(tag)) {
            self.awaited.push(item);
        }
    }

    /// Lets the threads finish what they have begun and what is waited for, and end; waits for them. One of them may call this: it is not
    /// waited for.
    pub(crate) fn shut_down(&self) {
        drop(self.unhurried.take_back(|_| true));
        self.unhurried.shut_down();
        self.awaited.shut_down();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;
    use crate::sync::thread;

    type Task = Box<dyn FnOnce() + Send>;

    fn workers() -> Workers<Task> {
        Workers::start("test", 1, |task: Task| task()).expect("threads")
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
