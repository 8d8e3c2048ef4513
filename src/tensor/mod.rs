//! Tensors: handles on values.
//!
//! A handle is complete when the call that makes it returns: type and shape are known. An invalid
//! call has failed by then, with an error that names the violated rule and the call site. The data
//! comes later. Only reading it waits.

mod array;
mod bodies;
mod checks;
mod collective;
mod combine;
mod control;
mod create;
pub(crate) mod dims;
mod display;
mod elementwise;
mod operators;
mod order;
pub mod promote;
mod read;
mod reduce;
mod running;
mod scan;
mod sequence;
mod statistics;

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::limits::MAX_CONSTANT_BYTES;
use fuseline_fusion::op::Effect;
use fuseline_fusion::{Attrs, Body, DType, Literal, OpCode, OpError, Shape, Site, TensorType, ValueId};
use fuseline_record::handle::Handle;
use fuseline_record::mode::caller;

pub use order::{Order, Unique};
pub use read::Read;
pub(crate) use read::copied;

use crate::error::{Error, Result};
use crate::promote::Number;

use crate::record::RecordCall;
use crate::stream::{Stream, StreamShared, Tensors};
use crate::value::{Outcome, ValueCell};

/// The attributes of most elementwise ops.
static NO_ATTRS: Attrs = Attrs::NONE;

/// The attributes of an op for each element type. They are made once instead of on each call.
struct AttrsByType([(DType, Attrs); DType::ALL.len()]);

impl AttrsByType {
    fn new(of: impl Fn(DType) -> Attrs) -> AttrsByType {
        AttrsByType(DType::ALL.map(|dtype| (dtype, of(dtype))))
    }

    fn of(&self, dtype: DType) -> &Attrs {
        let (known, attrs) = &self.0[usize::from(dtype.code()) - usize::from(DType::ALL[0].code())];
        debug_assert_eq!(*known, dtype, "bug: element types are not in the order of their codes");
        attrs
    }
}

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
/// ([`Stream::while_loop`], [`Tensor::reduce_with`]), the op becomes part of that body.
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

    /// Element type and shape.
    #[must_use]
    pub fn ty(&self) -> &TensorType {
        self.cell().ty()
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty().dtype()
    }

    /// Shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.ty().shape()
    }

    /// Sizes of the dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.ty().sizes()
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.ty().rank()
    }

    /// The id of the value, for logs. Never reused within the process.
    #[must_use]
    pub fn id(&self) -> ValueId {
        self.cell().id()
    }

    /// The stream whose op produces the value.
    #[must_use]
    pub fn on_stream(&self) -> Stream {
        Stream::of(self.stream.clone())
    }

    /// Records an op on this tensor's stream.
    fn record_all(
        &self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[&Tensor],
        site: Site,
    ) -> Result<Tensors> {
        let call = RecordCall { op, attrs: &attrs, bodies, operands, effect: Effect::Pure, site: &site };
        self.stream.record(call)
    }

    /// Records an op with one result and without attributes on the fast path of the trace cache
    /// ([`StreamShared::record_fast`]), if it is the expected op.
    #[inline(always)]
    fn record_fast(&self, op: OpCode, operands: &[&Tensor], site: &Site) -> Option<Tensor> {
        self.stream.record_fast(&RecordCall::new(op, &NO_ATTRS, operands, site))
    }

    /// Records an op with one result and without attributes.
    #[inline(always)]
    fn record_plain(&self, op: OpCode, operands: &[&Tensor], site: &Site) -> Result<Tensor> {
        self.stream.record_one(RecordCall::new(op, &NO_ATTRS, operands, site))
    }

    /// Records an op with one result.
    #[inline(never)]
    fn record_call(&self, call: &RecordCall<'_>) -> Result<Tensor> {
        self.stream.record_one(*call)
    }

    /// Records an op with one result.
    #[inline(always)]
    fn record(&self, op: OpCode, attrs: Attrs, operands: &[&Tensor], site: Site) -> Result<Tensor> {
        self.record_with(op, attrs, &[], operands, site)
    }

    /// Records an op with bodies and one result.
    // Inlined, so that the attributes stay where they were made instead of being moved.
    #[inline(always)]
    fn record_with(
        &self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[&Tensor],
        site: Site,
    ) -> Result<Tensor> {
        let call = RecordCall { op, attrs: &attrs, bodies, operands, effect: Effect::Pure, site: &site };
        self.record_call(&call)
    }

    /// Dimension `axis`, counted from the back if negative, as an index. Errors name `op`.
    #[track_caller]
    pub(crate) fn axis(&self, op: OpCode, axis: i64) -> Result<usize> {
        array::axis_of(op, axis, self.rank(), &here())
    }

    /// The error of a call of a method that is not an op itself.
    fn refuse(error: OpError, site: Site) -> Error {
        Error::op(error, site)
    }
}

/// A constant scalar of this tensor's element type, on its stream: for fixed numbers in the
/// definition of a function.
#[track_caller]
pub(crate) fn constant_like(like: &Tensor, value: f64) -> Result<Tensor> {
    like.constant_like(Literal::of_f64(like.dtype(), value), &here())
}

/// The tensor plus a fixed number of a function.
#[track_caller]
pub(crate) fn plus(x: &Tensor, number: f64) -> Result<Tensor> {
    x.add(&constant_like(x, number)?)
}

/// The tensor times a fixed number of a function.
#[track_caller]
pub(crate) fn times(x: &Tensor, number: f64) -> Result<Tensor> {
    x.mul(&constant_like(x, number)?)
}

/// Data of a function that depends on shapes only: a constant, or an upload if it is too large for
/// one.
#[track_caller]
pub(crate) fn plain(like: &Tensor, data: &Literal) -> Result<Tensor> {
    if data.bytes().len() as u64 > MAX_CONSTANT_BYTES {
        return like.on_stream().from_literal(data);
    }
    like.constant_like(data.clone(), &here())
}

/// A number as a lifted scalar of the given type on the stream of `like`; `None` if the type does
/// not hold it.
pub(crate) fn scalar_as(like: &Tensor, number: Number, dtype: DType) -> Option<Tensor> {
    number.element(dtype).map(|scalar| Tensor::new(ValueCell::scalar(scalar), like.stream().clone()))
}

/// The call site of a public method, or the one that the front end has set.
#[track_caller]
pub(crate) fn here() -> Site {
    match caller() {
        Some(site) => site.clone(),
        None => Site::Rust(std::panic::Location::caller()),
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
