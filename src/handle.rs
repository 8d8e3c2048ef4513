//! Tensors as handles of the runtime, and the recording of ops on them.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::{Attrs, Body, OpCode};
use fuseline_record::handle::TakeResults;
use fuseline_runtime::Result;
use fuseline_runtime::internals::{RecordCall, StreamShared, TensorHandle, ValueCell, here};
use smallvec::SmallVec;

use crate::stream::Stream;

/// A handle on a value: an n-dimensional array of elements of one type, computed or about to be.
///
/// Values never change; an op makes a new one. Cloning a handle is cheap and shares the value. When
/// the last handle is dropped, the memory is freed as soon as the last op that was recorded with it
/// is done, or that op's result reuses it.
///
/// Elementwise methods, operators and matrix products broadcast by NumPy's rule and promote element
/// types by JAX's; both are stated in [`promote`](crate::promote). Other methods, and the record
/// layer, take operands as they are.
///
/// # Operators
///
/// `+ - * / % & | ^` take tensors, references to tensors and numbers, and return a [`Result`]. Such
/// a result may stand on one side of the next operator, so an expression needs one `?`, at its end.
/// The first error is the result of the whole expression, with the call site where it arose.
///
/// Rust's orphan rule leaves two cases out: a result on both sides, and a result beside a number.
/// There, put `?` behind one of the results, or the number beside a tensor:
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// # let [a, b, c] = [1.0f32, 2.0, 3.0].map(|number| engine.scalar(number));
/// let y = (&a * &b - &c)?;
/// let z = (&a * &b + (&b * &c)?)?; // not (&a * &b + &b * &c)?
/// let w = (0.5 * &a * &b)?; // not (&a * &b * 0.5)?
/// let v = ((&a - &b)? * 0.5)?;
/// # assert_eq!([y, z, w, v].map(|t| t.item::<f32>().unwrap()), [-1.0, 8.0, 1.0, -0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Printing
///
/// [`Display`](fmt::Display) prints the elements, and waits for them; [`Debug`](fmt::Debug) prints
/// identity and type, and does not wait.
///
/// Tensors are `Send + Sync`. An op is recorded on the stream of its first operand. If an operand
/// is a placeholder of a closure that describes a loop, branch or function of elements
/// ([`Stream::while_loop`](crate::Stream::while_loop), [`Tensor::reduce_with`]), the op becomes
/// part of that body.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let row = engine.tensor(&[10.0f32, 20.0], &[2])?;
/// let y = ((&x * &row)? + 1.0)?;
/// assert_eq!(y.shape().dims(), [2, 2]);
/// assert_eq!(y.to_vec::<f32>()?, [11.0, 41.0, 31.0, 81.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[repr(transparent)]
pub struct Tensor(TensorHandle);

impl Tensor {
    /// The first handle on a new cell, which is already counted.
    #[inline(always)]
    pub(crate) fn new(cell: Arc<ValueCell>, stream: Arc<StreamShared>) -> Tensor {
        Tensor(TensorHandle::new(cell, stream))
    }

    /// Another handle on a value that has at least one.
    pub(crate) fn another(cell: &Arc<ValueCell>, stream: &Arc<StreamShared>) -> Tensor {
        Tensor(TensorHandle::another(cell, stream))
    }

    #[inline(always)]
    pub(crate) fn from_handle(handle: TensorHandle) -> Tensor {
        Tensor(handle)
    }

    #[inline(always)]
    pub(crate) fn handle(&self) -> &TensorHandle {
        &self.0
    }

    pub(crate) fn into_handle(self) -> TensorHandle {
        self.0
    }

    #[inline(always)]
    pub(crate) fn cell(&self) -> &Arc<ValueCell> {
        self.0.cell()
    }

    #[inline(always)]
    pub(crate) fn stream(&self) -> &Arc<StreamShared> {
        self.0.stream()
    }
}

impl fmt::Debug for Tensor {
    /// Prints id and type; does not wait for the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} on {})", self.cell(), self.stream().id())
    }
}

/// The handles of operands.
#[inline(always)]
pub(crate) fn handles<'a>(tensors: &'a [&'a Tensor]) -> &'a [&'a TensorHandle] {
    let first = tensors.as_ptr().cast::<&TensorHandle>();
    // SAFETY: `Tensor` is a transparent wrapper of `TensorHandle`, so a reference to either has the
    // same layout and points to the same data. Length and lifetimes are those of `tensors`.
    unsafe { std::slice::from_raw_parts(first, tensors.len()) }
}

/// The results of a recorded op.
pub type Tensors = SmallVec<[Tensor; 1]>;

/// Receives the results of an op as tensors.
struct TensorResults(Tensors);

impl TakeResults<TensorHandle> for TensorResults {
    #[inline(always)]
    fn put(&mut self, handle: TensorHandle) {
        self.0.push(Tensor(handle));
    }

    fn taken(&self) -> &[TensorHandle] {
        let first = self.0.as_ptr().cast::<TensorHandle>();
        // SAFETY: `Tensor` is a transparent wrapper of `TensorHandle`, so slices of them have the
        // same layout. Length and lifetime are those of `self.0`.
        unsafe { std::slice::from_raw_parts(first, self.0.len()) }
    }
}

/// Records an op and returns its results at once. In Debug mode it returns when they are computed
/// and checked.
pub(crate) fn record(stream: &Arc<StreamShared>, call: RecordCall<'_>) -> Result<Tensors> {
    let mut results = TensorResults(Tensors::new());
    stream.record_into(&call, &mut results)?;
    Ok(results.0)
}

impl Stream {
    /// Records an op of the op table on this stream. Every tensor method ends here.
    ///
    /// The operands may belong to any stream of this engine. This layer neither broadcasts nor
    /// promotes.
    ///
    /// # Errors
    /// When the op table refuses the call; in Debug mode, when the op fails.
    #[track_caller]
    pub fn record(
        &self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[&Tensor],
    ) -> Result<Tensors> {
        let site = here();
        let call = RecordCall {
            op,
            attrs: &attrs,
            bodies,
            operands: handles(operands),
            effect: Effect::Pure,
            site: &site,
        };
        record(self.shared(), call)
    }
}
