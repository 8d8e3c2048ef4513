//! Ops with a scalar function that is recorded from a closure: reductions, maps, sorts, scatters.
//!
//! The closure gets placeholders of rank 0 and uses the ordinary methods and operators of tensors.
//! It is called once, when the op is recorded. The function that it describes is part of the key,
//! so numbers in it are constants. It may use no outside tensors, only numbers ([`crate::trace`],
//! T4).

use fuseline_fusion::op::attrs::{self, IndexDimensionNumbers};
use fuseline_fusion::{Attrs, OpCode, OpError, OpErrorKind, Site, TensorType};
use fuseline_runtime::internals::{RecordCall, bug};
use fuseline_runtime::{Error, Result};

use super::array::axis_of;
use super::{Tensor, here};
use crate::handle::{Tensors, handles};
use crate::trace::{self, Open, Recorded, TensorTree, with_tensors};

/// A call with scalar functions.
struct Applied<'a, T> {
    op: OpCode,
    /// The operands whose elements the functions get.
    inputs: &'a T,
    tensors: Vec<Tensor>,
    site: Site,
}

impl<'a, T: TensorTree> Applied<'a, T> {
    fn new(op: OpCode, inputs: &'a T, site: Site) -> Result<Applied<'a, T>> {
        let tensors = inputs.tensors();
        if tensors.is_empty() {
            let rule = "there must be at least one";
            let error = OpError::new(op.name(), OpErrorKind::Arity, "no tensors were given", rule);
            return Err(Error::op(error, site));
        }
        Ok(Applied { op, inputs, tensors, site })
    }

    fn first(&self) -> &Tensor {
        &self.tensors[0]
    }

    fn begin(&self, what: &'static str) -> Open {
        Open::begin(self.first().stream(), self.op, what, &self.site)
    }

    /// Placeholders for one element of each input.
    fn elements(&self, body: &Open) -> Result<T> {
        let element = |input: &Tensor| body.param(TensorType::scalar(input.dtype()));
        with_tensors(self.inputs, self.tensors.iter().map(element).collect::<Result<Vec<_>>>()?)
    }

    /// The function of two elements of each input that returns one of each.
    fn combiner(&self, what: &'static str, combine: impl FnOnce(T, T) -> Result<T>) -> Result<Recorded> {
        let body = self.begin(what);
        let combined = combine(self.elements(&body)?, self.elements(&body)?)?.tensors();
        if combined.len() != self.tensors.len() {
            let given = format!("{what} returns {} values", combined.len());
            let rule = format!("it must return one element of each operand, which is {}", self.tensors.len());
            return Err(self.refuse(given, rule, None));
        }
        for (place, (input, value)) in self.tensors.iter().zip(&combined).enumerate() {
            let wanted = TensorType::scalar(input.dtype());
            if *value.ty() != wanted {
                let given = format!("{what} returns {} for operand {place}, {}", value.ty(), input.ty());
                let rule = format!("it must return an element of the operand, {wanted}");
                let convert = format!("convert it to {} before returning it", input.dtype());
                return Err(self.refuse(given, rule, (value.rank() == 0).then_some(convert)));
            }
        }
        body.end(&combined)
    }

    fn refuse(&self, given: String, rule: String, hint: Option<String>) -> Error {
        let error = OpError::new(self.op.name(), OpErrorKind::Body, given, rule);
        Error::op(hint.into_iter().fold(error, OpError::hint), self.site.clone())
    }

    /// Records the op on the inputs and these further operands.
    fn record(&self, attrs: Attrs, more: &[Tensor], bodies: Vec<Recorded>) -> Result<Tensors> {
        let operands: Vec<&Tensor> = self.tensors.iter().chain(more).collect();
        let call = RecordCall::new(self.op, &attrs, handles(&operands), &self.site);
        trace::record_with(self.first().stream(), call, bodies)
    }

    /// As [`Applied::record`], for an op with a result for each input.
    fn record_each(&self, attrs: Attrs, more: &[Tensor], body: Recorded) -> Result<T> {
        with_tensors(self.inputs, self.record(attrs, more, vec![body])?)
    }

    /// As [`Applied::record`], for an op with one result.
    fn record_one(&self, attrs: Attrs, more: &[Tensor], bodies: Vec<Recorded>) -> Result<Tensor> {
        let result = self.record(attrs, more, bodies)?.pop();
        result.ok_or_else(|| bug!("{} has no result", self.op))
    }
}

/// Ops whose function is a closure on scalars. It is called once, with placeholders for one element
/// of each tensor.
impl Tensor {
    /// Combines the elements of one or several tensors of one shape along the given dimensions,
    /// which disappear; negative ones count from the back. `combine` makes one element of two,
    /// beginning with `inits`, one scalar per tensor. The order is unspecified, so `combine` should
    /// be associative and commutative, and `inits` its identity.
    ///
    /// The largest element of each row and its index:
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// use fuseline::{DType, Engine, Tensor};
    ///
    /// let engine = Engine::reference();
    /// let x = engine.tensor(&[3.0f32, 9.0, 4.0, 7.0, 7.0, 1.0], &[2, 3])?;
    /// let places = engine.stream().iota(DType::I32, &[2, 3], 1)?;
    /// let least = (engine.scalar(f32::NEG_INFINITY), engine.scalar(i32::MAX));
    /// let (largest, place) = Tensor::reduce_with(&(x, places), &least, &[1], |(a, i), (b, j)| {
    ///     let first = (a.greater(&b)? | (a.equal(&b)? & i.less(&j)?)?)?;
    ///     Ok((first.select(&a, &b)?, first.select(&i, &j)?))
    /// })?;
    /// assert_eq!(largest.to_vec::<f32>()?, [9.0, 7.0]);
    /// assert_eq!(place.to_vec::<i32>()?, [1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes differ, a dimension does not exist, or `combine` fails, returns other types than
    /// its elements have or uses an outside tensor.
    #[track_caller]
    pub fn reduce_with<T: TensorTree>(
        inputs: &T,
        inits: &T,
        axes: &[i64],
        combine: impl FnOnce(T, T) -> Result<T>,
    ) -> Result<T> {
        let call = Applied::new(OpCode::Reduce, inputs, here())?;
        let axes = call.first().axes_of(axes, &call.site)?;
        let body = call.combiner("the function of reduce_with", combine)?;
        call.record_each(attrs::dimensions(&axes), &inits.tensors(), body)
    }

    /// Combines the elements of one or several tensors of one shape under each position of a
    /// window: one size, stride and padding per dimension, padded with `inits`. Otherwise as
    /// [`Tensor::reduce_with`].
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::Tensor;
    ///
    /// let x = engine.tensor(&[1i32, -4, 2, 3], &[4])?;
    /// let zero = engine.scalar(0i32);
    /// let largest = Tensor::reduce_window_with(&x, &zero, &[2], &[1], &[(0, 0)], |a, b| {
    ///     a.abs()?.maximum(&b.abs()?)
    /// })?;
    /// assert_eq!(largest.to_vec::<i32>()?, [4, 4, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::reduce_with`], and when the lists do not have one entry per dimension.
    #[track_caller]
    pub fn reduce_window_with<T: TensorTree>(
        inputs: &T,
        inits: &T,
        sizes: &[i64],
        strides: &[i64],
        padding: &[(i64, i64)],
        combine: impl FnOnce(T, T) -> Result<T>,
    ) -> Result<T> {
        let call = Applied::new(OpCode::ReduceWindow, inputs, here())?;
        let body = call.combiner("the function of reduce_window_with", combine)?;
        call.record_each(attrs::reduce_window(sizes, strides, padding), &inits.tensors(), body)
    }

    /// One or several tensors of one shape, with `updates`, one per tensor, combined into the
    /// elements at `indices`, which are integers; see [`IndexDimensionNumbers`] for the roles of
    /// the dimensions. `combine` gets the old element and the update. The order is unspecified
    /// where an index occurs twice. An update out of range is skipped, or is an error
    /// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices), and in Debug mode),
    /// except within [`unchecked`](crate::unchecked), which permits it.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::Tensor;
    /// use fuseline::fusion::op::attrs::IndexDimensionNumbers;
    ///
    /// let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
    /// let places = engine.tensor(&[2i32, 0, 2, 7], &[4, 1])?;
    /// let updates = engine.tensor(&[5.0f32, 0.5, 4.0, 9.0], &[4])?;
    /// let dims = IndexDimensionNumbers { collapsed: &[0], index_map: &[0], index_vector: 1, ..Default::default() };
    /// let y = fuseline::unchecked(|| {
    ///     Tensor::scatter_with(&x, &places, &updates, dims, |old, new| old.maximum(&new))
    /// })?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 5.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the shapes or dimension numbers do not fit, or `combine` fails, returns other types
    /// than its elements have or uses an outside tensor.
    #[track_caller]
    pub fn scatter_with<T: TensorTree>(
        inputs: &T,
        indices: &Tensor,
        updates: &T,
        dims: IndexDimensionNumbers<'_>,
        combine: impl FnOnce(T, T) -> Result<T>,
    ) -> Result<T> {
        let call = Applied::new(OpCode::Scatter, inputs, here())?;
        let body = call.combiner("the function of scatter_with", combine)?;
        let updates = updates.tensors();
        if let Some(update) = updates.first() {
            scatter_inside(call.first(), indices, update, &dims, &call.site)?;
        }
        let more = [vec![indices.clone()], updates].concat();
        call.record_each(attrs::scatter(dims, false, false), &more, body)
    }

    /// Selects an element under each position of a window by `select`, which returns whether the
    /// first of two elements is kept. Then combines the element of `source` for that position into
    /// the selected element's place by `scatter`, beginning with `init`, a scalar. With `>=` and
    /// `+` this is the gradient of max pooling ([`Tensor::max_pool_gradient`]).
    ///
    /// # Errors
    /// When the shapes do not fit, or a closure fails, returns a wrong type or uses an outside
    /// tensor.
    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "they are the op's")]
    pub fn select_and_scatter_with(
        &self,
        source: &Tensor,
        init: &Tensor,
        sizes: &[i64],
        strides: &[i64],
        padding: &[(i64, i64)],
        select: impl FnOnce(Tensor, Tensor) -> Result<Tensor>,
        scatter: impl FnOnce(Tensor, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let call = Applied::new(OpCode::SelectAndScatter, self, here())?;
        let body = call.begin("the selection of select_and_scatter_with");
        let selection = body.end(&[select(call.elements(&body)?, call.elements(&body)?)?])?;
        let scatter = call.combiner("the function of select_and_scatter_with", scatter)?;
        let attrs = attrs::select_and_scatter(sizes, strides, padding);
        call.record_one(attrs, &[source.clone(), init.clone()], vec![selection, scatter])
    }

    /// Applies `f` to the elements of one or several tensors of one shape. Elementwise methods
    /// compile faster; use this for a function that is given on scalars.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::Tensor;
    ///
    /// let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
    /// let y = engine.tensor(&[0.5f32, 0.0, -1.0], &[3])?;
    /// let z = Tensor::map_with(&(x, y), |(a, b)| (a * b)? + 1.0)?;
    /// assert_eq!(z.to_vec::<f32>()?, [1.5, 1.0, -2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes differ, or `f` fails, returns no scalar or uses an outside tensor.
    #[track_caller]
    pub fn map_with<T: TensorTree>(inputs: &T, f: impl FnOnce(T) -> Result<Tensor>) -> Result<Tensor> {
        let call = Applied::new(OpCode::Map, inputs, here())?;
        let body = call.begin("the function of map_with");
        let body = body.end(&[f(call.elements(&body)?)?])?;
        let all: Vec<i64> = (0..call.first().rank() as i64).collect();
        call.record_one(attrs::dimensions(&all), &[], vec![body])
    }

    /// One or several tensors of one shape sorted together along a dimension, negative counting
    /// from the back: `before` gets the elements of each tensor at two indices and returns, as one
    /// bool, whether the first comes before the second. It must be a strict weak order (`less`, not
    /// `less_equal`). With `stable`, equivalent elements keep their order.
    ///
    /// Names by descending score, equal scores in their order:
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::Tensor;
    ///
    /// let scores = engine.tensor(&[2.0f32, 5.0, 2.0, 9.0], &[4])?;
    /// let names = engine.tensor(&[10i32, 11, 12, 13], &[4])?;
    /// let (_, names) = Tensor::sort_with(&(scores, names), 0, true, |(a, _), (b, _)| a.greater(&b))?;
    /// assert_eq!(names.to_vec::<i32>()?, [13, 11, 10, 12]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes differ, the dimension does not exist, or `before` fails, returns anything but
    /// one bool or uses an outside tensor.
    #[track_caller]
    pub fn sort_with<T: TensorTree>(
        inputs: &T,
        axis: i64,
        stable: bool,
        before: impl FnOnce(T, T) -> Result<Tensor>,
    ) -> Result<T> {
        let call = Applied::new(OpCode::Sort, inputs, here())?;
        let axis = axis_of(OpCode::Sort, axis, call.first().rank(), &call.site)?;
        let body = call.begin("the order of sort_with");
        // The body's parameters interleave the two elements of each tensor.
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for input in &call.tensors {
            left.push(body.param(TensorType::scalar(input.dtype()))?);
            right.push(body.param(TensorType::scalar(input.dtype()))?);
        }
        let body = body.end(&[before(with_tensors(inputs, left)?, with_tensors(inputs, right)?)?])?;
        call.record_each(attrs::sort(axis as i64, stable), &[], body)
    }
}

/// Checks the indices of a scatter, if checks are on. The op itself rejects shapes that do not fit.
fn scatter_inside(
    input: &Tensor,
    indices: &Tensor,
    update: &Tensor,
    dims: &IndexDimensionNumbers<'_>,
    site: &Site,
) -> Result<()> {
    if !indices.on_stream().checks_indices() {
        return Ok(());
    }
    // The dimensions of a window in order, and its sizes.
    let windowed = (0..input.rank() as i64)
        .filter(|axis| !dims.collapsed.contains(axis) && !dims.operand_batching.contains(axis));
    let windows: Vec<(i64, usize)> = windowed
        .zip(dims.window)
        .map(|(axis, &from)| (axis, update.dims().get(from as usize).copied().unwrap_or(1)))
        .collect();
    let vector = usize::try_from(dims.index_vector).unwrap_or(usize::MAX);
    for (at, &axis) in dims.index_map.iter().enumerate() {
        let Some(&size) = input.dims().get(axis as usize) else { return Ok(()) };
        let window = windows.iter().find(|(windowed, _)| *windowed == axis).map_or(1, |&(_, length)| length);
        let places = size.saturating_sub(window.max(1)) + usize::from(size >= window.max(1));
        let each = match indices.dims().get(vector) {
            Some(&count) if count > 1 && at < count => {
                &indices.narrow(vector as i64, at as i64, at as i64 + 1)?
            }
            _ => indices,
        };
        each.check_where_asked(places, "scatter_with", site)?;
    }
    Ok(())
}
