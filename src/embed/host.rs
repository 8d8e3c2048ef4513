//! Between values and the host: readiness, reads, borrowed buffers.

use std::ffi::c_void;
use std::fmt;
use std::time::{Duration, Instant};

use fuseline_fusion::{Literal, Site};
use fuseline_runtime::{Error, Result};

use super::report::told;
use super::{Session, ValueHandle, asking};
use crate::handle::Tensor;
use crate::pjrt;

/// A value's PJRT buffer, lent to other code. As long as this lives, the value is alive and its
/// memory is not reused.
#[derive(Debug)]
pub struct BorrowedBuffer {
    tensor: Tensor,
}

impl BorrowedBuffer {
    /// The buffer. Its data may not be ready yet: order reads after [`pjrt::Buffer::ready_event`].
    ///
    /// # Errors
    /// When the value failed, or has no buffer.
    pub fn buffer(&self) -> Result<&pjrt::Buffer> {
        self.tensor.handle().pjrt_buffer()
    }

    /// The `PJRT_Buffer *`. It may be read, but never destroyed, deleted or donated.
    ///
    /// # Errors
    /// As [`BorrowedBuffer::buffer`].
    pub fn as_ptr(&self) -> Result<*mut c_void> {
        Ok(self.buffer()?.as_ptr())
    }
}

impl Session {
    /// Whether the outcome of a value is known. Never waits and starts nothing.
    ///
    /// # Errors
    /// When the id is invalid.
    pub fn is_resolved(&self, value: ValueHandle) -> Result<bool> {
        told(self.tensor(value, "is_resolved")).map(|tensor| tensor.is_resolved())
    }

    /// Starts the computation of a value, and calls `callback` when its data is ready, or with the
    /// error when it cannot be computed. See the module on where callbacks run. The call is about
    /// the value that the id refers to now; later replacements have no effect.
    ///
    /// # Errors
    /// When the id is invalid; `callback` is dropped.
    pub fn on_ready(
        &self,
        value: ValueHandle,
        callback: impl FnOnce(ValueHandle, Result<()>) + Send + 'static,
    ) -> Result<()> {
        told(self.tensor(value, "on_ready")).map(|tensor| {
            tensor.handle().on_computed(move |outcome| callback(value, outcome));
        })
    }

    /// Waits at most for `timeout` until a value has been computed, without copying it.
    ///
    /// # Errors
    /// When the id is invalid, the value failed, the timeout has passed, or in a callback.
    pub fn wait(&self, value: ValueHandle, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        told(self.tensor(value, "wait").and_then(|tensor| tensor.handle().wait_until(deadline, &asking())))
    }

    /// Reads a value on the first replica. Waits until it has been computed.
    ///
    /// # Errors
    /// When the id is invalid, the value failed (the error names op, call site and region), or in a
    /// callback.
    pub fn read(&self, value: ValueHandle) -> Result<Literal> {
        told(self.tensor(value, "read").and_then(|tensor| tensor.handle().literal_at(asking())))
    }

    /// Reads a value on each replica, in their order. Waits until all have computed it.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn read_replicas(&self, value: ValueHandle) -> Result<Vec<Literal>> {
        told(
            self.tensor(value, "read_replicas")
                .and_then(|tensor| tensor.handle().read_replicas_at(&asking())),
        )
    }

    /// Reads a value, dense and row-major, into the caller's memory. Waits until it has been
    /// computed.
    ///
    /// # Errors
    /// As [`Session::read`], and when the length does not match the type.
    pub fn read_into(&self, value: ValueHandle, out: &mut [u8]) -> Result<()> {
        told(self.tensor(value, "read_into").and_then(|tensor| {
            let wanted = tensor.ty().bytes().0;
            if wanted != out.len() as u64 {
                let message = format!(
                    "read_into: {value} is {} and takes {wanted} bytes, but the output has {} bytes",
                    tensor.ty(),
                    out.len()
                );
                return Err(Error::misuse(message, Site::Unknown));
            }
            out.copy_from_slice(tensor.handle().literal_at(asking())?.bytes());
            Ok(())
        }))
    }

    /// Reads several values, in order. Everything that they need is handed to the device before the
    /// first wait.
    ///
    /// # Errors
    /// As [`Session::read`]: the first error.
    pub fn read_all(&self, values: &[ValueHandle]) -> Result<Vec<Literal>> {
        self.flush_values(values)?;
        told(self.tensors(values, "read_all"))?
            .iter()
            .map(|tensor| told(tensor.handle().literal_at(asking())))
            .collect()
    }

    /// Starts reading a value; `callback` gets its data. See the module on where callbacks run.
    ///
    /// # Errors
    /// When the id is invalid; `callback` is dropped.
    pub fn read_async(
        &self,
        value: ValueHandle,
        callback: impl FnOnce(ValueHandle, Result<Literal>) + Send + 'static,
    ) -> Result<()> {
        told(self.tensor(value, "read_async")).map(|tensor| {
            let telemetry = tensor.stream().engine().telemetry().clone();
            tensor
                .handle()
                .deliver(asking(), move |data| telemetry.call_back("read", || callback(value, data)));
        })
    }

    /// Lends a value's PJRT buffer. Waits until the op that computes it has been handed to the
    /// device, not for the data.
    ///
    /// # Errors
    /// When the id is invalid, the value failed or is a lifted scalar, the engine has no plugin or
    /// several replicas, or in a callback.
    pub fn lend(&self, value: ValueHandle) -> Result<BorrowedBuffer> {
        told(self.tensor(value, "lend").and_then(|tensor| {
            let lent = BorrowedBuffer { tensor };
            lent.buffer()?;
            Ok(lent)
        }))
    }
}

impl fmt::Display for BorrowedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the buffer of {:?}", self.tensor)
    }
}
