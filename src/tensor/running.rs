//! Running reductions along a dimension: element `i` of the result combines the elements 0 to `i`.
//!
//! Each is one `reduce_window` whose window reaches back to the first element.

use std::sync::Arc;

use fuseline_fusion::op::{Comparison, attrs, neutral};
use fuseline_fusion::{Attrs, Body, DType, Graph, OpCode, OpError, TensorType};
use fuseline_runtime::Result;

use super::array::axis_of;
use super::reduce::{body_of, combiner};
use super::{Tensor, here};

impl Tensor {
    /// The running sum along dimension `axis`. Integers wrap, bool counts as `i32`, floats below 32
    /// bits are summed in `f32`.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn cumsum(&self, axis: i64) -> Result<Tensor> {
        self.widened()?.scan(OpCode::Add, axis)?.narrowed(self.dtype())
    }

    /// The running product along dimension `axis`; types as in [`Tensor::cumsum`].
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn cumprod(&self, axis: i64) -> Result<Tensor> {
        self.widened()?.scan(OpCode::Multiply, axis)?.narrowed(self.dtype())
    }

    /// The largest element so far along dimension `axis`; NaN from the first NaN on.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn cummax(&self, axis: i64) -> Result<Tensor> {
        self.scan(OpCode::Maximum, axis)
    }

    /// The smallest element so far along dimension `axis`; NaN from the first NaN on.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn cummin(&self, axis: i64) -> Result<Tensor> {
        self.scan(OpCode::Minimum, axis)
    }

    /// `log(cumsum(exp(x)))` along dimension `axis`, without computing the exponentials, so that
    /// nothing overflows.
    ///
    /// # Errors
    /// When the dimension does not exist or the elements are not floats.
    #[track_caller]
    pub fn cumlogsumexp(&self, axis: i64) -> Result<Tensor> {
        let wide = self.widened()?;
        let dtype = wide.dtype();
        let body = body_of(("log_add_exp", 0), dtype, &here(), || log_add_exp(dtype))?;
        // Minus infinity, the logarithm of 0, is the identity.
        wide.scan_with(body, OpCode::Maximum, axis)?.narrowed(self.dtype())
    }

    #[track_caller]
    fn scan(&self, op: OpCode, axis: i64) -> Result<Tensor> {
        self.scan_with(combiner(op, self.dtype(), &here())?, op, axis)
    }

    /// Combines by `body`, whose identity is that of `start`.
    #[track_caller]
    fn scan_with(&self, body: Arc<Body>, start: OpCode, axis: i64) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::ReduceWindow, axis, self.rank(), &site)?;
        let size = self.dims()[axis] as i64;
        if size <= 1 {
            return Ok(self.clone());
        }
        let start = self.constant_like(neutral(start, self.dtype()), &site)?;
        let mut sizes = vec![1; self.rank()];
        let mut padding = vec![(0, 0); self.rank()];
        (sizes[axis], padding[axis]) = (size, (size - 1, 0));
        let attrs = attrs::reduce_window(&sizes, &vec![1; self.rank()], &padding);
        self.record_with(OpCode::ReduceWindow, attrs, &[body], &[self, &start], site)
    }
}

/// `log(exp(a) + exp(b))` as `max(a, b) + log1p(exp(-|a - b|))`; `a + b` where the difference is of
/// equal infinities.
fn log_add_exp(dtype: DType) -> Result<Body, OpError> {
    let mut graph = Graph::new();
    let (a, b) = (graph.param(TensorType::scalar(dtype)), graph.param(TensorType::scalar(dtype)));
    let mut op = |code, attrs, operands: &[_]| Ok::<_, OpError>(graph.push(code, attrs, &[], operands)?[0]);
    let none = Attrs::none;
    let larger = op(OpCode::Maximum, none(), &[a, b])?;
    let difference = op(OpCode::Subtract, none(), &[a, b])?;
    let distance = op(OpCode::Abs, none(), &[difference])?;
    let exponent = op(OpCode::Negate, none(), &[distance])?;
    let power = op(OpCode::Exponential, none(), &[exponent])?;
    let rest = op(OpCode::LogPlusOne, none(), &[power])?;
    let usual = op(OpCode::Add, none(), &[larger, rest])?;
    let unordered = attrs::compare_for(Comparison::Ne, dtype);
    let infinite = op(OpCode::Compare, unordered, &[difference, difference])?;
    let sum = op(OpCode::Add, none(), &[a, b])?;
    let result = op(OpCode::Select, none(), &[infinite, sum, usual])?;
    Ok(Body::new(graph, &[result]).expect("bug: the selection is missing from its graph"))
}
