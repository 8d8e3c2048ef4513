//! Reductions over dimensions and windows.

use std::sync::Arc;

use fuseline_fusion::op::{Comparison, attrs, neutral};
use fuseline_fusion::{Attrs, Body, DType, Graph, Literal, OpCode, OpError, Site, TensorType};
use fuseline_runtime::{Error, Result};
use smallvec::SmallVec;

use super::array::axis_of;
use super::{Tensor, here};
use crate::handle::Tensors;

/// The name of a common body: the function and its variant.
pub(super) type BodyName = (&'static str, u8);

/// A common body. It is made once per thread, so that comparing calls compares pointers instead of
/// graphs.
pub(super) fn body_of(
    name: BodyName,
    dtype: DType,
    site: &Site,
    make: impl FnOnce() -> Result<Body, OpError>,
) -> Result<Arc<Body>> {
    use std::cell::RefCell;
    type BodyTable = Vec<(BodyName, DType, Arc<Body>)>;
    thread_local! {
        static KNOWN: RefCell<BodyTable> = const { RefCell::new(Vec::new()) };
    }
    let find = |known: &RefCell<BodyTable>| {
        known.borrow().iter().find(|(n, d, _)| (*n, *d) == (name, dtype)).map(|(_, _, body)| body.clone())
    };
    if let Ok(Some(body)) = KNOWN.try_with(find) {
        return Ok(body);
    }
    let body = Arc::new(make().map_err(|error| Error::op(error, site.clone()))?);
    let _ = KNOWN.try_with(|known| known.borrow_mut().push((name, dtype, body.clone())));
    Ok(body)
}

/// The body that applies a binary op to two elements.
pub(super) fn combiner(op: OpCode, dtype: DType, site: &Site) -> Result<Arc<Body>> {
    body_of((op.name(), 0), dtype, site, || Body::binary(op, TensorType::scalar(dtype)))
}

/// The body that returns the greater of two elements, or the second if they are unordered.
fn greater(dtype: DType) -> Result<Body, OpError> {
    let mut graph = Graph::new();
    let (a, b) = (graph.param(TensorType::scalar(dtype)), graph.param(TensorType::scalar(dtype)));
    let compare = attrs::compare_for(Comparison::Gt, dtype);
    let is_greater = graph.push(OpCode::Compare, compare, &[], &[a, b])?[0];
    let result = graph.push(OpCode::Select, Attrs::none(), &[], &[is_greater, a, b])?[0];
    Ok(Body::new(graph, &[result]).expect("bug: the selection is missing from its graph"))
}

impl Tensor {
    pub(super) fn axes_of(&self, axes: &[i64], site: &Site) -> Result<SmallVec<[i64; 6]>> {
        axes.iter().map(|&axis| Ok(axis_of(OpCode::Reduce, axis, self.rank(), site)? as i64)).collect()
    }

    /// A constant scalar on this tensor's stream.
    pub(super) fn constant_like(&self, value: Literal, site: &Site) -> Result<Tensor> {
        self.record(OpCode::Constant, attrs::constant(Arc::new(value)), &[], site.clone())
    }

    pub(super) fn reduced(&self, op: OpCode, axes: &[i64], site: Site) -> Result<Tensor> {
        let axes = self.axes_of(axes, &site)?;
        let body = combiner(op, self.dtype(), &site)?;
        let start = self.constant_like(neutral(op, self.dtype()), &site)?;
        self.record_with(OpCode::Reduce, attrs::dimensions(&axes), &[body], &[self, &start], site)
    }

    /// Combines the elements along the given dimensions with a body of two scalars, beginning with
    /// `start`, a scalar. The order is unspecified, so the body should be associative and
    /// commutative.
    ///
    /// # Errors
    /// When a dimension does not exist or the body has another type.
    #[track_caller]
    pub fn reduce(&self, axes: &[i64], start: &Tensor, body: Arc<Body>) -> Result<Tensor> {
        let site = here();
        let axes = self.axes_of(axes, &site)?;
        self.record_with(OpCode::Reduce, attrs::dimensions(&axes), &[body], &[self, start], site)
    }

    /// Combines several tensors of one shape at once, such as values with their indices. `body`
    /// takes one element of each, twice, and returns one of each.
    ///
    /// # Errors
    /// When shapes differ, a dimension does not exist or the body has another type.
    #[track_caller]
    pub fn reduce_many(
        tensors: &[&Tensor],
        axes: &[i64],
        starts: &[&Tensor],
        body: Arc<Body>,
    ) -> Result<Tensors> {
        let site = here();
        let Some(first) = tensors.first() else {
            return Err(Error::misuse("reduce_many takes at least one tensor", site));
        };
        let axes = first.axes_of(axes, &site)?;
        let operands = [tensors, starts].concat();
        first.record_all(OpCode::Reduce, attrs::dimensions(&axes), &[body], &operands, site)
    }

    /// The sum over the given dimensions, which disappear; negative ones count from the back.
    /// Integers wrap, bool counts as `i32`, floats below 32 bits are summed in `f32` and rounded
    /// once.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn sum(&self, axes: &[i64]) -> Result<Tensor> {
        self.widened()?.reduced(OpCode::Add, axes, here())?.narrowed(self.dtype())
    }

    /// The product over the given dimensions; types as in [`Tensor::sum`].
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn prod(&self, axes: &[i64]) -> Result<Tensor> {
        self.widened()?.reduced(OpCode::Multiply, axes, here())?.narrowed(self.dtype())
    }

    /// The largest element over the given dimensions; NaN if any element is NaN.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn max(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::Maximum, axes, here())
    }

    /// The largest element over the given dimensions, for callers that detect NaN by other means:
    /// NaN may be ignored. Over a last dimension, XLA's CPU backend takes a fifth of the time of
    /// [`Tensor::max`].
    #[track_caller]
    pub(crate) fn max_of_numbers(&self, axes: &[i64]) -> Result<Tensor> {
        let (site, dtype) = (here(), self.dtype());
        let body = body_of(("max_of_numbers", 0), dtype, &site, || greater(dtype))?;
        let start = self.constant_like(neutral(OpCode::Maximum, dtype), &site)?;
        self.reduce(axes, &start, body)
    }

    /// The smallest element over the given dimensions; NaN if any element is NaN.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn min(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::Minimum, axes, here())
    }

    /// Whether all elements over the given dimensions are true, or the bitwise and of integers.
    ///
    /// # Errors
    /// When a dimension does not exist or the elements are floats.
    #[track_caller]
    pub fn all(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::And, axes, here())
    }

    /// Whether any element over the given dimensions is true, or the bitwise or of integers.
    ///
    /// # Errors
    /// When a dimension does not exist or the elements are floats.
    #[track_caller]
    pub fn any(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::Or, axes, here())
    }

    /// Combines the elements under each position of a window, padded with the identity of `op`: one
    /// size, stride and padding per dimension. With [`OpCode::Maximum`] this is max pooling.
    ///
    /// # Errors
    /// When the lists do not have one entry per dimension, or the op does not combine this element
    /// type.
    #[track_caller]
    pub fn reduce_window(
        &self,
        op: OpCode,
        sizes: &[i64],
        strides: &[i64],
        padding: &[(i64, i64)],
    ) -> Result<Tensor> {
        self.reduce_dilated_window(op, sizes, strides, &vec![1; sizes.len()], padding)
    }

    /// As [`Tensor::reduce_window`], with window elements that are `dilations` apart.
    ///
    /// # Errors
    /// As [`Tensor::reduce_window`].
    #[track_caller]
    pub fn reduce_dilated_window(
        &self,
        op: OpCode,
        sizes: &[i64],
        strides: &[i64],
        dilations: &[i64],
        padding: &[(i64, i64)],
    ) -> Result<Tensor> {
        let site = here();
        let body = combiner(op, self.dtype(), &site)?;
        let start = self.constant_like(neutral(op, self.dtype()), &site)?;
        let attrs = attrs::dilated_reduce_window(sizes, strides, dilations, padding);
        self.record_with(OpCode::ReduceWindow, attrs, &[body], &[self, &start], site)
    }

    /// The gradient of max pooling. Each element of `gradient`, which has one per window, is added
    /// at the position of the largest element under its window, or the first of several.
    ///
    /// # Errors
    /// When `gradient` does not have the shape of the pooled tensor.
    #[track_caller]
    pub fn max_pool_gradient(
        &self,
        gradient: &Tensor,
        sizes: &[i64],
        strides: &[i64],
        padding: &[(i64, i64)],
    ) -> Result<Tensor> {
        let site = here();
        let dtype = self.dtype();
        let select = body_of(("ge", 0), dtype, &site, || comparison_body(Comparison::Ge, dtype))?;
        let add = combiner(OpCode::Add, self.dtype(), &site)?;
        let zero = self.constant_like(Literal::zeros(TensorType::scalar(self.dtype())), &site)?;
        let attrs = attrs::select_and_scatter(sizes, strides, padding);
        let bodies = [select, add];
        let operands = [self, gradient, &zero];
        self.record_with(OpCode::SelectAndScatter, attrs, &bodies, &operands, site)
    }
}

fn comparison_body(direction: Comparison, dtype: DType) -> Result<Body, OpError> {
    let mut graph = Graph::new();
    let lhs = graph.param(TensorType::scalar(dtype));
    let rhs = graph.param(TensorType::scalar(dtype));
    let result = graph.push(OpCode::Compare, attrs::compare_for(direction, dtype), &[], &[lhs, rhs])?;
    Ok(Body::new(graph, &result).expect("bug: the comparison is missing from its graph"))
}
