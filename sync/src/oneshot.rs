//! A channel for one value, as tokio's `oneshot`: one thread sends it, another takes it.
//!
//! It is a [`Once`] with an owner for its value. The receiver polls, because a job must not block
//! its driver, or waits with a deadline. A sender that is dropped closes the channel, so nobody
//! waits for a value that will not come.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::once::{Abandoned, Once, Promise};
use crate::{Mutex, Rank};

/// The value until it is taken; empty in a closed channel.
struct Message<T>(Mutex<Option<T>>);

impl<T> Abandoned for Message<T> {
    fn abandoned() -> Message<T> {
        Message(Mutex::new(Rank::Oneshot, None))
    }
}

struct Channel<T>(Once<Message<T>>);

impl<T> AsRef<Once<Message<T>>> for Channel<T> {
    fn as_ref(&self) -> &Once<Message<T>> {
        &self.0
    }
}

/// The sending end. Dropping it closes the channel.
pub struct Sender<T>(Promise<Message<T>, Channel<T>>);

/// The receiving end.
pub struct Receiver<T>(Arc<Channel<T>>);

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// None was sent yet.
    Empty,
    /// The sender was dropped, or the value was taken before.
    Closed,
}

/// Creates a channel.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (channel, promise) = Promise::new(Channel(Once::pending()));
    (Sender(promise), Receiver(channel))
}

impl<T> Sender<T> {
    /// Sends the value. The receiver may take it from now on.
    pub fn send(self, value: T) {
        drop(self.0.resolve(Message(Mutex::new(Rank::Oneshot, Some(value)))));
    }
}

impl<T> Receiver<T> {
    /// Takes the value, if it was sent.
    ///
    /// # Errors
    /// When there is no value, and whether one may still come.
    pub fn try_recv(&self) -> Result<T, RecvError> {
        take(self.0.0.get())
    }

    /// Waits for the value until `deadline`, and takes it. `None` waits for ever.
    ///
    /// # Errors
    /// When the deadline passes or the channel is closed.
    pub fn recv(&self, deadline: Option<Instant>) -> Result<T, RecvError> {
        take(self.0.0.wait(deadline))
    }
}

fn take<T>(message: Option<&Message<T>>) -> Result<T, RecvError> {
    message.ok_or(RecvError::Empty)?.0.lock().take().ok_or(RecvError::Closed)
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({})", if self.0.0.get().is_some() { "ended" } else { "open" })
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_value_is_taken_once() {
        let (sender, receiver) = channel();
        assert_eq!(receiver.try_recv(), Err(RecvError::Empty));
        sender.send(7);
        assert_eq!(receiver.try_recv(), Ok(7));
        assert_eq!(receiver.try_recv(), Err(RecvError::Closed));
    }

    #[test]
    fn a_dropped_sender_closes_the_channel() {
        let (sender, receiver) = channel::<u32>();
        drop(sender);
        assert_eq!(receiver.try_recv(), Err(RecvError::Closed));
        assert_eq!(receiver.recv(None), Err(RecvError::Closed));
    }

    #[test]
    fn a_receiver_waits_until_its_deadline() {
        let (sender, receiver) = channel();
        let soon = Instant::now().checked_add(Duration::from_millis(2));
        assert_eq!(receiver.recv(soon), Err(RecvError::Empty));
        let thread = crate::thread::spawn("sender".to_owned(), move || sender.send(7));
        assert_eq!(receiver.recv(None), Ok(7));
        thread.unwrap().join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// The receiver gets the value or sees that the channel was closed, and is never left waiting.
    #[test]
    fn loom_oneshot_value_or_closed() {
        loom::model(|| {
            let (sender, receiver) = channel();
            let thread = crate::thread::spawn("sender".to_owned(), move || sender.send(7)).unwrap();
            assert_eq!(receiver.recv(None), Ok(7));
            thread.join().unwrap();
            let (sender, receiver) = channel::<u32>();
            let thread = crate::thread::spawn("sender".to_owned(), move || drop(sender)).unwrap();
            assert_eq!(receiver.recv(None), Err(RecvError::Closed));
            thread.join().unwrap();
        });
    }
}
