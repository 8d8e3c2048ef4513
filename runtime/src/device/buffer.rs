//! Data on a device, one part for each replica.
//!
//! A value of an engine with one replica, which is the common case, is one buffer. With several
//! replicas, each has its own buffer of the same type. The value is ready when all of them are, and
//! has failed when one has.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::{Literal, TensorType};
use fuseline_pjrt as sys;
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

use super::memory::{LiveMemory, LiveMemoryGuard};
use super::{DeviceError, Result};
use crate::error::Stage;

/// One item for each replica, in their order.
pub type PerReplica<T> = SmallVec<[T; 1]>;

/// Data on a device. Dropping it frees the memory once nothing on the device uses it.
pub struct Buffer {
    data: Data,
    /// Its share of the memory that diagnostics report.
    _share: LiveMemoryGuard,
}

/// What remains of data that an execution took. It has no memory. Destroying it may wait for the
/// execution.
#[derive(Debug)]
pub(crate) struct DonatedBuffer(#[expect(dead_code, reason = "to be dropped")] sys::Buffer);

/// Where the data is.
pub(super) enum Data {
    Pjrt(PerReplica<sys::Buffer>),
    Reference(PerReplica<Arc<Literal>>),
}

/// Returns a function that accepts `count` outcomes. After the last one it calls `callback` once,
/// with the first failure.
pub(crate) fn after<F>(count: usize, callback: F) -> impl Fn(Result<()>) + Clone + Send + 'static
where
    F: FnOnce(Result<()>) + Send + 'static,
{
    let state = Arc::new(Mutex::new(Rank::Arrivals, (count, Ok(()), Some(callback))));
    move |outcome| {
        let mut state = state.lock();
        let (left, first, callback) = &mut *state;
        *left -= 1;
        if first.is_ok() {
            *first = outcome;
        }
        if *left == 0
            && let Some(callback) = callback.take()
        {
            let outcome = std::mem::replace(first, Ok(()));
            drop(state);
            callback(outcome);
        }
    }
}

/// The error of a computation, found when its result is requested.
fn failed(error: sys::Error) -> DeviceError {
    DeviceError::pjrt(Stage::Execute, &error)
}

/// Calls back when the data of a PJRT buffer is ready.
fn when_ready(buffer: &sys::Buffer, callback: impl FnOnce(Result<()>) + Send + 'static) {
    match buffer.ready_event() {
        Ok(event) => event.on_ready(move |ready| callback(ready.map_err(failed))),
        Err(error) => callback(Err(failed(error))),
    }
}

impl Data {
    fn ty(&self) -> &TensorType {
        match self {
            Data::Pjrt(each) => each[0].ty(),
            Data::Reference(each) => each[0].ty(),
        }
    }

    fn replicas(&self) -> usize {
        match self {
            Data::Pjrt(each) => each.len(),
            Data::Reference(each) => each.len(),
        }
    }
}

impl Buffer {
    pub(super) fn of(data: Data, live: &Arc<LiveMemory>) -> Buffer {
        let bytes = data.ty().bytes().0.saturating_mul(data.replicas() as u64);
        Buffer { data, _share: LiveMemoryGuard::of(live, bytes) }
    }

    pub(super) fn data(&self) -> &Data {
        &self.data
    }

    /// The PJRT buffer of each replica; `None` on the reference device.
    pub(crate) fn pjrt(&self) -> Option<&[sys::Buffer]> {
        match &self.data {
            Data::Pjrt(each) => Some(each),
            Data::Reference(_) => None,
        }
    }

    /// Element type and shape, on each replica.
    pub(crate) fn ty(&self) -> &TensorType {
        self.data.ty()
    }

    /// Waits until the data is ready. Returns the error of the computation if that failed.
    pub(crate) fn wait(&self) -> Result<()> {
        match &self.data {
            Data::Pjrt(each) => {
                let wait = |buffer: &sys::Buffer| buffer.ready_event().and_then(|event| event.wait());
                // Wait for all, so that none is still being computed when this returns.
                let waited: Vec<_> = each.iter().map(wait).collect();
                waited.into_iter().collect::<std::result::Result<(), _>>().map_err(failed)
            }
            Data::Reference(_) => Ok(()),
        }
    }

    /// As [`Buffer::wait`], by callback: on any thread, possibly before this returns.
    pub(crate) fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        match &self.data {
            Data::Pjrt(each) => match each.as_slice() {
                [buffer] => when_ready(buffer, callback),
                several => {
                    let arrived = after(several.len(), callback);
                    several.iter().for_each(|buffer| when_ready(buffer, arrived.clone()));
                }
            },
            Data::Reference(_) => callback(Ok(())),
        }
    }

    /// What remains of the buffer after it was donated, if that has to be kept. A buffer that the
    /// plugin did not take is dropped here. So are those of several replicas: the wait separates
    /// executions that exchange data. XLA:CPU has threads for one collective at a time, and several
    /// that are launched ahead block each other (`tests/engine/collective.rs`).
    pub(crate) fn into_remains(self) -> Option<DonatedBuffer> {
        let Data::Pjrt(mut each) = self.data else { return None };
        let only = each.pop().filter(|_| each.is_empty())?;
        (only.is_deleted() == Ok(true)).then_some(DonatedBuffer(only))
    }

    /// Whether its memory was donated or deleted.
    pub(crate) fn is_gone(&self) -> bool {
        match &self.data {
            Data::Pjrt(each) => each.iter().any(|buffer| buffer.is_deleted().unwrap_or(true)),
            Data::Reference(_) => false,
        }
    }

    /// The data of one replica, dense, row-major, once all replicas have computed it. An error of
    /// the computation has [`Stage::Execute`], one of the copy [`Stage::Transfer`].
    pub(super) fn to_host(&self, replica: usize) -> Result<Vec<u8>> {
        match &self.data {
            Data::Pjrt(each) => {
                if each.len() > 1 {
                    self.wait()?;
                }
                each[replica].to_host().map_err(|error| self.not_copied(&error))
            }
            Data::Reference(each) => Ok(each[replica].bytes().to_vec()),
        }
    }

    /// Waits for the data and calls `read` with that of the first replica, in the form of
    /// [`Buffer::to_host`]. The data is borrowed if the device shares its memory.
    pub(super) fn read<R>(&self, read: impl FnOnce(Cow<'_, [u8]>) -> R) -> Result<R> {
        match &self.data {
            Data::Pjrt(each) => {
                if each.len() > 1 {
                    self.wait()?;
                }
                each[0].read(read).map_err(|error| self.not_copied(&error))
            }
            Data::Reference(each) => Ok(read(Cow::Borrowed(each[0].bytes()))),
        }
    }

    /// Why a copy failed: the error of the computation, which the buffer itself reports, or that of
    /// the copy.
    fn not_copied(&self, error: &sys::Error) -> DeviceError {
        self.wait().err().unwrap_or_else(|| DeviceError::pjrt(Stage::Transfer, error))
    }

    /// As [`Buffer::to_host`] of the first replica, without waiting: `callback` gets the data on
    /// any thread, possibly before this returns. The error does not say whether the computation or
    /// the copy failed; [`Buffer::wait`] does.
    pub(super) fn to_host_async(&self, callback: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        let each = match &self.data {
            Data::Pjrt(each) => each,
            Data::Reference(each) => return callback(Ok(each[0].bytes().to_vec())),
        };
        let copy = match each[0].to_host_async() {
            Ok(copy) => copy,
            Err(error) => return callback(Err(DeviceError::pjrt(Stage::Transfer, &error))),
        };
        let [_, others @ ..] = each.as_slice() else { return callback(Ok(Vec::new())) };
        if others.is_empty() {
            return copy.on_ready(move |bytes| callback(bytes.map_err(failed)));
        }
        let copied = Arc::new(Mutex::new(Rank::Copied, Vec::new()));
        let bytes = copied.clone();
        let arrived = after(each.len(), move |outcome| {
            callback(outcome.map(|()| std::mem::take(&mut *bytes.lock())));
        });
        others.iter().for_each(|other| when_ready(other, arrived.clone()));
        copy.on_ready(move |bytes| {
            arrived(bytes.map(|bytes| *copied.lock() = bytes).map_err(failed));
        });
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.data.replicas();
        match count {
            1 => write!(f, "Buffer({})", self.ty()),
            _ => write!(f, "Buffer({} on {count} replicas)", self.ty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_first_failure_is_told_once_after_all_outcomes() {
        let failure = |message: &str| DeviceError::new(Stage::Execute, message);
        let (send, receive) = mpsc::channel();
        let tell = after(3, move |outcome: Result<()>| {
            send.send(outcome.err().map(|error| error.message)).expect("somebody listens");
        });
        tell.clone()(Ok(()));
        tell.clone()(Err(failure("one")));
        assert!(receive.try_recv().is_err(), "one outcome is missing");
        tell(Err(failure("two")));
        assert_eq!(receive.try_recv(), Ok(Some("one".to_owned())));
        assert!(receive.try_recv().is_err(), "it was told before");
    }
}
