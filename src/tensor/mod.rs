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

use std::sync::Arc;

use fuseline_fusion::limits::MAX_CONSTANT_BYTES;
use fuseline_fusion::op::Effect;
use fuseline_fusion::{Attrs, Body, DType, Literal, OpCode, OpError, Shape, Site, TensorType, ValueId};

pub use order::{Order, Unique};
pub use read::Read;

use fuseline_runtime::internals::{RecordCall, ValueCell, here};
use fuseline_runtime::{Error, Result};

use crate::handle::{Tensor, Tensors, handles, record};
use crate::promote::Number;
use crate::stream::Stream;

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

impl Tensor {
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

    /// Whether it is a lifted number ([`Stream::lift`]), so that its data is known.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.cell().is_scalar()
    }

    /// The stream whose op produces the value.
    #[must_use]
    pub fn on_stream(&self) -> Stream {
        Stream::of(self.stream().clone())
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
        let call = RecordCall {
            op,
            attrs: &attrs,
            bodies,
            operands: handles(operands),
            effect: Effect::Pure,
            site: &site,
        };
        record(self.stream(), call)
    }

    /// Records an op with one result and without attributes on the fast path of the trace cache
    /// (`StreamShared::record_fast`), if it is the expected op.
    #[inline(always)]
    fn record_fast(&self, op: OpCode, operands: &[&Tensor], site: &Site) -> Option<Tensor> {
        self.stream()
            .record_fast(&RecordCall::new(op, &NO_ATTRS, handles(operands), site))
            .map(Tensor::from_handle)
    }

    /// Records an op with one result and without attributes.
    #[inline(always)]
    fn record_plain(&self, op: OpCode, operands: &[&Tensor], site: &Site) -> Result<Tensor> {
        self.stream().record_one(RecordCall::new(op, &NO_ATTRS, handles(operands), site), Tensor::from_handle)
    }

    /// Records an op with one result.
    #[inline(never)]
    fn record_call(&self, call: &RecordCall<'_>) -> Result<Tensor> {
        self.stream().record_one(*call, Tensor::from_handle)
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
        let call = RecordCall {
            op,
            attrs: &attrs,
            bodies,
            operands: handles(operands),
            effect: Effect::Pure,
            site: &site,
        };
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
