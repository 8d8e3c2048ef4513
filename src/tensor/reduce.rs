//! Reductions over dimensions and windows.

use std::sync::Arc;

use fuseline_fusion::op::{attrs, neutral};
use fuseline_fusion::{Body, DType, Literal, OpCode, Site, TensorType};
use smallvec::SmallVec;

use super::array::axis_of;
use super::{Tensor, here};
use crate::error::{Error, Result};
use crate::stream::Tensors;

/// Bodies of the usual reductions are made once per thread: a record then compares pointers, not graphs.
pub(super) fn combiner(op: OpCode, dtype: DType, site: &Site) -> Result<Arc<Body>> {
    use std::cell::RefCell;
    type Known = Vec<(OpCode, DType, Arc<Body>)>;
    thread_local! {
        static KNOWN: RefCell<Known> = const { RefCell::new(Vec::new()) };
    }
    let find = |known: &RefCell<Known>| {
        known.borrow().iter().find(|(o, d, _)| (*o, *d) == (op, dtype)).map(|(_, _, body)| body.clone())
    };
    if let Ok(Some(body)) = KNOWN.try_with(find) {
        return Ok(body);
    }
    let body = Body::binary(op, TensorType::scalar(dtype)).map_err(|error| Error::op(error, site.clone()))?;
    let body = Arc::new(body);
    let _ = KNOWN.try_with(|known| known.borrow_mut().push((op, dtype, body.clone())));
    Ok(body)
}

impl Tensor {
    fn axes_of(&self, axes: &[i64], site: &Site) -> Result<SmallVec<[i64; 6]>> {
        axes.iter().map(|&axis| Ok(axis_of(OpCode::Reduce, axis, self.rank(), site)? as i64)).collect()
    }

    /// A constant scalar on this tensor's stream.
    pub(super) fn constant_like(&self, value: Literal, site: &Site) -> Result<Tensor> {
        self.record(OpCode::Constant, attrs::constant(Arc::new(value)), &[], site.clone())
    }

    fn reduced(&self, op: OpCode, axes: &[i64], site: Site) -> Result<Tensor> {
        let axes = self.axes_of(axes, &site)?;
        let body = combiner(op, self.dtype(), &site)?;
        let start = self.constant_like(neutral(op, self.dtype()), &site)?;
        self.record_with(OpCode::Reduce, attrs::dimensions(&axes), &[body], &[self, &start], site)
    }

    /// Combines the elements along the given dimensions with a body of two scalars, beginning with `start`, a scalar. The
    /// order is left open, so the body should be associative and commutative.
    ///
    /// # Errors
    /// When a dimension does not exist or the body has another type.
    #[track_caller]
    pub fn reduce(&self, axes: &[i64], start: &Tensor, body: Arc<Body>) -> Result<Tensor> {
        let site = here();
        let axes = self.axes_of(axes, &site)?;
        self.record_with(OpCode::Reduce, attrs::dimensions(&axes), &[body], &[self, start], site)
    }

    /// Combines several tensors of one shape at once, such as values with their places. `body` takes one element of each,
    /// twice, and returns one of each.
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

    /// The sum over the given dimensions, which disappear; negative ones count from the back. Integers wrap.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn sum(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::Add, axes, here())
    }

    /// The product over the given dimensions.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn prod(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::Multiply, axes, here())
    }

    /// The largest element over the given dimensions; NaN if there is one.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn max(&self, axes: &[i64]) -> Result<Tensor> {
        self.reduced(OpCode::Maximum, axes, here())
    }

    /// The smallest element over the given dimensions; NaN if there is one.
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

    /// The mean over the given dimensions, which disappear.
    ///
    /// # Errors
    /// When a dimension does not exist or the elements are not floats.
    #[track_caller]
    pub fn mean(&self, axes: &[i64]) -> Result<Tensor> {
        let site = here();
        let dropped = self.axes_of(axes, &site)?;
        let count: u64 = dropped.iter().map(|&axis| self.dims()[axis as usize]).product();
        let sum = self.reduced(OpCode::Add, axes, site.clone())?;
        // The count is a constant of the shape, which is in the key anyway.
        let count = sum.constant_like(Literal::of_f64(self.dtype(), count as f64), &site)?;
        sum.binary(OpCode::Divide, fuseline_fusion::Attrs::none(), &count, site)
    }

    /// The place of the largest element along dimension `axis`, as `i32`; the first one of several. NaN counts as largest.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn argmax(&self, axis: i64) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::Reduce, axis, self.rank(), &site)? as i64;
        let dtype = self.dtype();
        let iota = attrs::iota(DType::I32, self.shape().clone(), axis);
        let places = self.record(OpCode::Iota, iota, &[], site.clone())?;
        let body = argmax_body(dtype).map_err(|error| Error::op(error, site.clone()))?;
        let least = self.constant_like(neutral(OpCode::Maximum, dtype), &site)?;
        let none = self.constant_like(Literal::scalar(i32::MAX), &site)?;
        let operands = [self, &places, &least, &none];
        let mut results =
            self.record_all(OpCode::Reduce, attrs::dimensions(&[axis]), &[Arc::new(body)], &operands, site)?;
        results.pop().ok_or_else(|| crate::error::bug!("reduce has two results"))
    }

    /// Combines the elements under each position of a window, padded with `op`'s neutral element: one size, stride and
    /// padding per dimension. With [`OpCode::Maximum`] this is max pooling.
    ///
    /// # Errors
    /// When the lists do not have one entry per dimension, or the op does not combine this element type.
    #[track_caller]
    pub fn reduce_window(
        &self,
        op: OpCode,
        sizes: &[i64],
        strides: &[i64],
        padding: &[(i64, i64)],
    ) -> Result<Tensor> {
        let site = here();
        let body = combiner(op, self.dtype(), &site)?;
        let start = self.constant_like(neutral(op, self.dtype()), &site)?;
        let attrs = attrs::reduce_window(sizes, strides, padding);
        self.record_with(OpCode::ReduceWindow, attrs, &[body], &[self, &start], site)
    }

    /// The gradient of max pooling: each element of `gradient`, which has one per window, added at the place of the largest
    /// element under its window; the first one of several.
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
        let refuse = |error| Error::op(error, site.clone());
        let select = comparison_body(fuseline_fusion::op::Comparison::Ge, self.dtype()).map_err(refuse)?;
        let add = combiner(OpCode::Add, self.dtype(), &site)?;
        let zero = self.constant_like(Literal::zeros(TensorType::scalar(self.dtype())), &site)?;
        let attrs = attrs::select_and_scatter(sizes, strides, padding);
        let bodies = [Arc::new(select), add];
        let operands = [self, gradient, &zero];
        self.record_with(OpCode::SelectAndScatter, attrs, &bodies, &operands, site)
    }
}

fn comparison_body(
    direction: fuseline_fusion::op::Comparison,
    dtype: DType,
) -> Result<Body, fuseline_fusion::OpError> {
    let mut graph = fuseline_fusion::Graph::new();
    let lhs = graph.param(TensorType::scalar(dtype));
    let rhs = graph.param(TensorType::scalar(dtype));
    let result = graph.push(OpCode::Compare, attrs::compare_for(direction, dtype), &[], &[lhs, rhs])?;
    Ok(Body::new(graph, &result).expect("bug: a comparison returns its result"))
}

/// Of two (value, place) pairs the one with the larger value, NaN being largest; of equal values the smaller place.
fn argmax_body(dtype: DType) -> Result<Body, fuseline_fusion::OpError> {
    use fuseline_fusion::op::Comparison::{Eq, Gt, Lt, Ne};
    use fuseline_fusion::{Attrs, Graph};
    let mut graph = Graph::new();
    let value = TensorType::scalar(dtype);
    let place = TensorType::scalar(DType::I32);
    let (a, i) = (graph.param(value.clone()), graph.param(place.clone()));
    let (b, j) = (graph.param(value), graph.param(place));
    let mut op = |code, attrs, operands: &[_]| Ok(graph.push(code, attrs, &[], operands)?[0]);
    let compare = |direction| attrs::compare_for(direction, dtype);
    // `a` wins if it is larger or NaN ...
    let larger = op(OpCode::Compare, compare(Gt), &[a, b])?;
    let nan = op(OpCode::Compare, compare(Ne), &[a, a])?;
    let wins = op(OpCode::Or, Attrs::none(), &[larger, nan])?;
    // ... and on a tie, two NaNs included, if it comes first.
    let equal = op(OpCode::Compare, compare(Eq), &[a, b])?;
    let other_nan = op(OpCode::Compare, compare(Ne), &[b, b])?;
    let both_nan = op(OpCode::And, Attrs::none(), &[nan, other_nan])?;
    let tie = op(OpCode::Or, Attrs::none(), &[equal, both_nan])?;
    let first = op(OpCode::Compare, attrs::compare_for(Lt, DType::I32), &[i, j])?;
    let takes_tie = op(OpCode::And, Attrs::none(), &[tie, first])?;
    let no_tie = op(OpCode::Not, Attrs::none(), &[tie])?;
    let wins = op(OpCode::And, Attrs::none(), &[wins, no_tie])?;
    let take = op(OpCode::Or, Attrs::none(), &[wins, takes_tie])?;
    let value = op(OpCode::Select, Attrs::none(), &[take, a, b])?;
    let place = op(OpCode::Select, Attrs::none(), &[take, i, j])?;
    Ok(Body::new(graph, &[value, place]).expect("bug: the selections were just made"))
}
