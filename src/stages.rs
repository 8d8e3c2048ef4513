//! The stages of the engine one at a time, for `benches/micro`.

use std::ops::{Deref, DerefMut};

use fuseline_fusion::Signature;
use fuseline_runtime::Result;
use fuseline_runtime::internals::stages;
pub use fuseline_runtime::internals::stages::{BoundRegion, Executed, Handles, InferredCall, Sealed, Work};
use fuseline_runtime::internals::{TensorHandle, TensorHandles};

use crate::handle::{Tensor, handles};
use crate::stream::Stream;

/// A stream whose driver stages are called one at a time.
#[derive(Debug)]
pub struct BenchDriver {
    driver: stages::BenchDriver,
    stream: Stream,
}

impl BenchDriver {
    /// Takes over a new stream, with this number of drivers.
    ///
    /// # Panics
    /// When a thread works on the stream.
    #[must_use]
    pub fn new(stream: Stream, drivers: usize) -> BenchDriver {
        BenchDriver { driver: stages::BenchDriver::new(stream.shared().clone(), drivers), stream }
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the signature of a call that this thread has made before, as a steady loop finds it.
    ///
    /// # Errors
    /// When the op table refuses the call.
    pub fn rule(&self, call: &Signature, operands: &[&Tensor]) -> Result<InferredCall> {
        self.driver.rule(call, handles(operands))
    }

    /// Appends a call to the log.
    ///
    /// # Errors
    /// When an operand belongs to another engine.
    pub fn record(
        &self,
        call: InferredCall,
        operands: &[&Tensor],
        results: Handles,
    ) -> Result<TensorHandles> {
        self.driver.record(call, handles(operands), results)
    }
}

/// The tensor of a handle.
#[must_use]
pub fn tensor(handle: TensorHandle) -> Tensor {
    Tensor::from_handle(handle)
}

impl Deref for BenchDriver {
    type Target = stages::BenchDriver;

    fn deref(&self) -> &stages::BenchDriver {
        &self.driver
    }
}

impl DerefMut for BenchDriver {
    fn deref_mut(&mut self) -> &mut stages::BenchDriver {
        &mut self.driver
    }
}
