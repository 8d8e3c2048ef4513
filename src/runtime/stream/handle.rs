//! Handles on values. Their methods are those of `crate::tensor`.

use std::fmt;
use std::sync::Arc;

use fuseline_record::handle::Handle;

use super::StreamShared;
use crate::runtime::value::{Outcome, ValueCell};

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
pub struct Tensor {
    /// `None` only while the handle is being dropped.
    cell: Option<Arc<ValueCell>>,
    stream: Arc<StreamShared>,
}

impl Handle<StreamShared> for Tensor {
    type Outcome = Outcome;

    #[inline(always)]
    fn new(cell: Arc<ValueCell>, stream: Arc<StreamShared>) -> Tensor {
        Tensor { cell: Some(cell), stream }
    }

    fn another(cell: &Arc<ValueCell>, stream: &Arc<StreamShared>) -> Tensor {
        Tensor::another(cell, stream)
    }

    #[inline(always)]
    fn cell(&self) -> &Arc<ValueCell> {
        self.cell()
    }

    #[inline(always)]
    fn stream(&self) -> &Arc<StreamShared> {
        self.stream()
    }
}

impl Tensor {
    /// The first handle on a new cell, which is already counted.
    pub(crate) fn new(cell: Arc<ValueCell>, stream: Arc<StreamShared>) -> Tensor {
        Tensor { cell: Some(cell), stream }
    }

    /// Another handle on a value that has at least one.
    pub(crate) fn another(cell: &Arc<ValueCell>, stream: &Arc<StreamShared>) -> Tensor {
        cell.handles().retain();
        Tensor::new(cell.clone(), stream.clone())
    }

    pub(crate) fn cell(&self) -> &Arc<ValueCell> {
        self.cell.as_ref().expect("bug: a handle is used after it was dropped")
    }

    /// The value, still counting this handle. [`StreamShared::drop_handle`] must be called with it.
    pub(crate) fn into_cell(mut self) -> Arc<ValueCell> {
        self.cell.take().expect("bug: a handle is used after it was dropped")
    }

    pub(crate) fn stream(&self) -> &Arc<StreamShared> {
        &self.stream
    }
}

impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        Tensor::another(self.cell(), &self.stream)
    }
}

impl Drop for Tensor {
    #[inline]
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            self.stream.drop_handle(cell);
        }
    }
}

impl fmt::Debug for Tensor {
    /// Prints id and type; does not wait for the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} on {})", self.cell(), self.stream.id())
    }
}
