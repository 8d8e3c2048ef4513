//! Reading values on the host: blocking, with a deadline, as a future, by callback.

use std::time::{Duration, Instant};

use fuseline_fusion::{Element, Literal};
pub use fuseline_runtime::Read;
use fuseline_runtime::internals::{bug, here, may_wait};
use fuseline_runtime::{Error, Result};

use super::Tensor;

impl Tensor {
    /// The data, row-major. Waits until it has been computed. With several replicas, this is the
    /// data of the first; [`Tensor::read_replicas`] returns all.
    ///
    /// # Errors
    /// When the op that produces the value, or one it depends on, failed: the error names the op
    /// and its call site. When called from an event sink or callback, which must not wait.
    #[track_caller]
    pub fn to_literal(&self) -> Result<Literal> {
        self.handle().literal_at(here())
    }

    /// The data of each replica, in their order. Waits until all of them have computed it.
    ///
    /// # Errors
    /// As [`Tensor::to_literal`].
    #[track_caller]
    pub fn read_replicas(&self) -> Result<Vec<Literal>> {
        self.handle().read_replicas_at(&here())
    }

    /// As [`Tensor::to_literal`], waiting for at most `timeout`. After that the value is still
    /// computed.
    ///
    /// # Errors
    /// As [`Tensor::to_literal`], and when `timeout` has passed ([`Error::is_timeout`]).
    #[track_caller]
    pub fn to_literal_for(&self, timeout: Duration) -> Result<Literal> {
        may_wait()?;
        // A deadline that overflows the clock is no deadline.
        self.handle().literal_until(Instant::now().checked_add(timeout), here())
    }

    /// The elements, row-major. Waits until they have been computed.
    ///
    /// # Errors
    /// As [`Tensor::to_literal`], and when the element type differs.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect_dtype::<T>()?;
        self.handle().elements_at(here())
    }

    /// The only element of a tensor that has one. Waits until it has been computed.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], and when there is not exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        self.expect_dtype::<T>()?;
        if self.ty().elems().0 != 1 {
            let message = format!("item of {}: the tensor must have exactly one element", self.ty());
            return Err(Error::misuse(message, here()));
        }
        self.to_vec()?.pop().ok_or_else(|| bug!("one element was expected"))
    }

    fn expect_dtype<T: Element>(&self) -> Result<()> {
        let (stored, asked) = (self.dtype(), T::DTYPE);
        if stored == asked {
            Ok(())
        } else {
            Err(fuseline_fusion::LiteralError::DType { stored, asked }.into())
        }
    }

    /// Starts to read the value and does not wait. The result is a future, which any executor may
    /// poll.
    #[track_caller]
    pub fn read(&self) -> Read {
        self.handle().read_at(here())
    }

    /// Starts to read the value. `put` gets its data or the error, on any thread, possibly before
    /// this returns. `put` must not wait for a stream. A panic in it is caught, counted and
    /// reported as [`crate::Event::Panicked`].
    #[track_caller]
    pub fn read_with(&self, put: impl FnOnce(Result<Literal>) + Send + 'static) {
        let telemetry = self.stream().engine().telemetry().clone();
        self.handle().deliver(here(), move |data| telemetry.call_back("read", || put(data)));
    }

    /// Demands the value and calls `callback` when its outcome is known: the computation has been
    /// handed to the device, or has failed. `callback` runs on any thread, and at once if the
    /// outcome is known already. It must not wait for a stream. A panic in it is caught, counted
    /// and reported as [`crate::Event::Panicked`].
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        self.handle().on_ready(callback);
    }

    /// Waits until the value has been computed, without copying it to the host.
    ///
    /// # Errors
    /// As [`Tensor::to_literal`].
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.handle().wait_until(None, &here())
    }

    /// Whether the outcome of the value is known. Never waits and demands nothing.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.cell().outcome().get().is_some()
    }
}
