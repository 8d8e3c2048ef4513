//! Promised values: tensors whose data comes from outside the stream, for example from another
//! process.
//!
//! Input: a type. Output: a tensor that ops may use at once, and a promise to deliver its data, or
//! the reason why there is none, from any thread. Ops that depend on the tensor are launched when
//! the data is there, and block their stream until then (EXEC-1).
//!
//! Only two kinds of threads wait meanwhile: a thread that reads, and a thread that records so much
//! behind the tensor that the log is full. The latter may be the thread that was to deliver the
//! data. So it waits for a bounded time ([`Deadlines::promise`](crate::Deadlines::promise)). Then
//! its call fails with an error that names the promise, which it finds in a list of them
//! (`fuseline_runtime::engine::promises`).

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::{Site, TensorType};
use fuseline_runtime::internals::{Failure, Outcome, PromiseGuard, ValueCell, here};
use fuseline_runtime::{Result, Stage};

use crate::handle::Tensor;
use crate::stream::Stream;

/// The promise to deliver the data of a tensor ([`Stream::promised`]). If it is dropped
/// unfulfilled, everything that depends on the tensor fails.
pub struct Promised {
    /// Present until the promise is kept or broken.
    promise: Option<PromiseGuard>,
    stream: Stream,
    site: Site,
}

impl Stream {
    /// A tensor whose data comes later, from any thread, and the promise to deliver it. Ops may use
    /// the tensor before. When the log of the stream is full, after some thousands of ops, calls
    /// wait for at most [`Deadlines::promise`](crate::Deadlines::promise).
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::TensorType;
    /// use fuseline::fusion::DType;
    ///
    /// let (x, promised) = engine.stream().promised(TensorType::of(DType::F32, &[2])?);
    /// let y = x.add(&x)?;
    /// let thread = std::thread::spawn(move || promised.keep(&[0, 0, 128, 63, 0, 0, 0, 64]));
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
    /// # thread.join().unwrap()
    /// # }
    /// ```
    #[track_caller]
    #[must_use]
    pub fn promised(&self, ty: TensorType) -> (Tensor, Promised) {
        let (cell, promise) = ValueCell::promised(ty);
        let tensor = Tensor::new(cell, self.shared().clone());
        let site = here();
        let promise = Some(self.shared().engine().promises().list(promise, site.clone()));
        (tensor, Promised { promise, stream: self.clone(), site })
    }
}

impl Promised {
    /// Delivers the data of the tensor: dense, row-major bytes, which are copied.
    ///
    /// # Errors
    /// When the length does not fit the type, or the device refuses the data. Then everything that
    /// depends on the tensor fails for the same reason.
    pub fn keep(mut self, bytes: &[u8]) -> Result<()> {
        let Some(promise) = self.promise.take() else { return Ok(()) };
        let Some(ty) = promise.value().map(|value| value.ty().clone()) else { return Ok(()) };
        match self.stream.upload_buffer(&ty, bytes) {
            Ok(buffer) => promise.resolve(Outcome::Data { buffer, maker: None }),
            Err(error) => {
                self.fail(promise, Stage::Transfer, error.to_string());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Breaks the promise: everything that depends on the tensor fails with this reason.
    pub fn fail_with(mut self, why: impl Into<String>) {
        if let Some(promise) = self.promise.take() {
            self.fail(promise, Stage::Execute, why.into());
        }
    }

    fn fail(&self, promise: PromiseGuard, stage: Stage, message: String) {
        let (op, region, site) = (None, None, self.site.clone());
        let (resource_exhausted, plugin) = (false, None);
        let failure = Failure { stage, op, site, region, message, resource_exhausted, plugin };
        let failure = Arc::new(failure);
        self.stream.shared().engine().keep_failure(&failure);
        promise.resolve(Outcome::Failed(failure));
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        if let Some(promise) = self.promise.take() {
            let message = "its promise was dropped before the data arrived from outside".to_owned();
            self.fail(promise, Stage::Execute, message);
        }
    }
}

impl fmt::Debug for Promised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.promise {
            Some(promise) => write!(f, "Promised({:?})", promise.value()),
            None => f.write_str("Promised(kept)"),
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use fuseline_fusion::DType;

    use super::*;
    use crate::Engine;

    /// Ops recorded after a use of a promised value on the same stream wait for it; earlier ops do
    /// not.
    #[test]
    fn only_what_comes_behind_a_promised_value_waits() {
        let engine = Engine::reference();
        let before = engine.tensor(&[1.0f32, 2.0], &[2]).unwrap().exp().unwrap();
        engine.stream().flush();
        let (x, promised) = engine.stream().promised(TensorType::of(DType::F32, &[2]).unwrap());
        let y = x.neg().unwrap();
        assert_eq!(before.to_vec::<f32>().unwrap(), [1.0f32.exp(), 2.0f32.exp()]);
        engine.stream().flush();
        assert!(!y.is_resolved());
        promised.keep(bytes_of(&[3.0, 4.0])).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [-3.0, -4.0]);
    }

    /// A promise that is broken, dropped or kept with wrong data fails everything that depends on
    /// it, with its message.
    #[test]
    fn a_broken_promise_fails_what_depends_on_it() {
        let engine = Engine::reference();
        let pair = || TensorType::of(DType::F32, &[2]).unwrap();
        let read = |x: Tensor| x.neg().unwrap().to_literal().unwrap_err().to_string();
        let (x, promised) = engine.stream().promised(pair());
        promised.fail_with("the peer is gone");
        assert!(read(x).contains("the peer is gone"));
        let (x, promised) = engine.stream().promised(pair());
        drop(promised);
        assert!(read(x).contains("its promise was dropped"));
        let (x, promised) = engine.stream().promised(pair());
        let refused = promised.keep(&[0; 3]).unwrap_err().to_string();
        assert!(read(x).contains(&refused));
    }

    fn bytes_of(data: &[f32]) -> &'static [u8] {
        data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().leak()
    }
}
