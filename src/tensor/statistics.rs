//! Functions composed of reductions: means, variances, indices of extremes.

use fuseline_fusion::op::{Comparison, attrs, neutral};
use fuseline_fusion::{Attrs, Body, DType, Graph, Literal, OpCode, OpError, TensorType};
use fuseline_runtime::Result;
use fuseline_runtime::internals::bug;

use super::array::axis_of;
use super::reduce::body_of;
use super::{Tensor, here};

impl Tensor {
    /// Number of elements over the given dimensions, which exist.
    #[track_caller]
    fn count(&self, axes: &[i64]) -> Result<usize> {
        let axes = self.axes_of(axes, &here())?;
        Ok(axes.iter().map(|&axis| self.dims()[axis as usize]).product())
    }

    /// The mean over the given dimensions, which disappear; NaN if they are empty. Floats below 32
    /// bits are summed in `f32`.
    ///
    /// # Errors
    /// When a dimension does not exist or the elements are not floats.
    #[track_caller]
    pub fn mean(&self, axes: &[i64]) -> Result<Tensor> {
        let count = self.count(axes)?;
        let wide = self.widened()?;
        // The count follows from the shape, which is part of the key anyway, so it may be a
        // constant.
        wide.sum(axes)?.over(count as f64)?.narrowed(self.dtype())
    }

    /// The variance over the given dimensions, which disappear: the squared distances from the
    /// mean, summed and divided by the number of elements minus `ddof`. Use 0 for the variance of a
    /// population and 1 for the unbiased estimate from a sample. With `ddof` elements or fewer the
    /// result is NaN.
    ///
    /// Computed in two passes, so that nothing cancels: `sum((x - mean)^2)`. Floats below 32 bits
    /// are computed in `f32`.
    ///
    /// # Errors
    /// When a dimension does not exist or the elements are not floats.
    #[track_caller]
    pub fn var(&self, axes: &[i64], ddof: usize) -> Result<Tensor> {
        let count = self.count(axes)?;
        let wide = self.widened()?;
        let centered = wide.sub(&wide.mean(axes)?.expand_dims(axes)?)?;
        let divisor = if count > ddof { (count - ddof) as f64 } else { f64::NAN };
        centered.mul(&centered)?.sum(axes)?.over(divisor)?.narrowed(self.dtype())
    }

    /// The standard deviation over the given dimensions: the root of [`Tensor::var`].
    ///
    /// # Errors
    /// When a dimension does not exist or the elements are not floats.
    #[track_caller]
    pub fn std(&self, axes: &[i64], ddof: usize) -> Result<Tensor> {
        self.var(axes, ddof)?.sqrt()
    }

    /// The index of the largest element along dimension `axis`, as `i32`; the first one of several.
    /// NaN counts as largest.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn argmax(&self, axis: i64) -> Result<Tensor> {
        self.place_of(OpCode::Maximum, Comparison::Gt, axis)
    }

    /// The index of the smallest element along dimension `axis`, as `i32`; the first one of
    /// several. NaN counts as smallest.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn argmin(&self, axis: i64) -> Result<Tensor> {
        self.place_of(OpCode::Minimum, Comparison::Lt, axis)
    }

    #[track_caller]
    fn place_of(&self, extreme: OpCode, better: Comparison, axis: i64) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::Reduce, axis, self.rank(), &site)? as i64;
        let dtype = self.dtype();
        let iota = attrs::iota(DType::I32, self.shape().clone(), axis);
        let places = self.record(OpCode::Iota, iota, &[], site.clone())?;
        let body = body_of(("place", better as u8), dtype, &site, || place_body(dtype, better))?;
        let worst = self.constant_like(neutral(extreme, dtype), &site)?;
        let none = self.constant_like(Literal::scalar(i32::MAX), &site)?;
        let operands = [self, &places, &worst, &none];
        let mut results =
            self.record_all(OpCode::Reduce, attrs::dimensions(&[axis]), &[body], &operands, site)?;
        results.pop().ok_or_else(|| bug!("reduce has two results"))
    }

    /// The tensor divided by a fixed number of the function.
    #[track_caller]
    fn over(&self, number: f64) -> Result<Tensor> {
        self.div(&super::constant_like(self, number)?)
    }

    /// This tensor in a type that is wide enough for sums: `f32` for narrower floats, `i32` for
    /// bool, else itself.
    #[track_caller]
    pub(crate) fn widened(&self) -> Result<Tensor> {
        match self.dtype() {
            DType::Bool => self.convert(DType::I32),
            dtype if dtype.is_float() && dtype.size() < 4 => self.convert(DType::F32),
            _ => Ok(self.clone()),
        }
    }

    /// This tensor, which came from [`Tensor::widened`], in the float type it had before.
    #[track_caller]
    pub(crate) fn narrowed(&self, before: DType) -> Result<Tensor> {
        if before.is_float() && self.dtype() != before { self.convert(before) } else { Ok(self.clone()) }
    }
}

/// The body that selects one of two (value, index) pairs: the one with the better value, where NaN
/// is best, or the smaller index if the values are equal.
fn place_body(dtype: DType, better: Comparison) -> Result<Body, OpError> {
    use Comparison::{Eq, Lt, Ne};
    let mut graph = Graph::new();
    let value = TensorType::scalar(dtype);
    let place = TensorType::scalar(DType::I32);
    let (a, i) = (graph.param(value.clone()), graph.param(place.clone()));
    let (b, j) = (graph.param(value), graph.param(place));
    let mut op = |code, attrs, operands: &[_]| Ok::<_, OpError>(graph.push(code, attrs, &[], operands)?[0]);
    let compare = |direction| attrs::compare_for(direction, dtype);
    // `a` wins if it is better or NaN ...
    let is_better = op(OpCode::Compare, compare(better), &[a, b])?;
    let nan = op(OpCode::Compare, compare(Ne), &[a, a])?;
    let wins = op(OpCode::Or, Attrs::none(), &[is_better, nan])?;
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
    Ok(Body::new(graph, &[value, place]).expect("bug: the selections are missing from their graph"))
}
