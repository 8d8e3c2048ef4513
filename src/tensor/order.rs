//! Sorting, and what is computed by sorting: the largest elements, the median, the distinct
//! elements.
//!
//! NaN counts as larger than every number, as in NumPy, PyTorch and JAX; zeros of either sign are
//! equal. Every sort is stable: equal elements stay in their order, in both directions.

use fuseline_fusion::op::attrs::IndexDimensionNumbers;
use fuseline_fusion::op::{Comparison, attrs};
use fuseline_fusion::{
    Attrs, Body, DType, DTypeClass, Graph, OpCode, OpError, OpErrorKind, Site, TensorType,
};
use fuseline_runtime::Result;
use fuseline_runtime::internals::bug;

use super::array::axis_of;
use super::reduce::{body_of, combiner};
use super::{Tensor, constant_like, here, scalar_as, times};
use crate::promote::Number;

/// Which elements come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The smallest.
    #[default]
    Ascending,
    /// The largest.
    Descending,
}

/// The result of [`Tensor::unique`]. The lists have the requested size.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The distinct elements in ascending order, then the filling.
    pub values: Tensor,
    /// How often each occurs, as `i32`; 0 for the filling.
    pub counts: Tensor,
    /// The row-major index of the first occurrence of each, as `i32`; the number of elements for
    /// the filling.
    pub places: Tensor,
    /// For each element, the index of its distinct value, as `i32`; in the shape of the tensor.
    pub inverse: Tensor,
    /// The number of distinct elements, an `i32` scalar; may be more than the requested size.
    pub count: Tensor,
}

impl Tensor {
    /// The elements in order along dimension `axis`.
    ///
    /// # Errors
    /// When the dimension does not exist or the elements are complex.
    #[track_caller]
    pub fn sort(&self, axis: i64, order: Order) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::Sort, axis, self.rank(), &site)? as i64;
        let dtype = self.dtype();
        let body = body_of(("sort", order as u8), dtype, &site, || before(dtype, order, 0))?;
        self.record_with(OpCode::Sort, attrs::sort(axis, true), &[body], &[self], site)
    }

    /// The indices along dimension `axis` that sort the elements, as `i32` (`argsort`).
    ///
    /// # Errors
    /// When the dimension does not exist or the elements are complex.
    #[track_caller]
    pub fn argsort(&self, axis: i64, order: Order) -> Result<Tensor> {
        Ok(self.sort_with_places(axis, order)?.1)
    }

    /// The sorted elements along dimension `axis`, and their original indices, as `i32`.
    ///
    /// # Errors
    /// When the dimension does not exist or the elements are complex.
    #[track_caller]
    pub fn sort_with_places(&self, axis: i64, order: Order) -> Result<(Tensor, Tensor)> {
        let site = here();
        let axis = axis_of(OpCode::Sort, axis, self.rank(), &site)? as i64;
        let dtype = self.dtype();
        let iota = attrs::iota(DType::I32, self.shape().clone(), axis);
        let places = self.record(OpCode::Iota, iota, &[], site.clone())?;
        let body = body_of(("sort_with_places", order as u8), dtype, &site, || before(dtype, order, 1))?;
        let operands = [self, &places];
        let mut results = self.record_all(OpCode::Sort, attrs::sort(axis, true), &[body], &operands, site)?;
        match (results.pop(), results.pop()) {
            (Some(places), Some(sorted)) => Ok((sorted, places)),
            _ => Err(bug!("a sort of two operands has two results")),
        }
    }

    /// The `k` largest elements along dimension `axis`, the largest first, and their indices, as
    /// `i32`. Equal elements keep their order. One op for the last dimension.
    ///
    /// # Errors
    /// When the dimension does not exist or has fewer elements.
    #[track_caller]
    pub fn topk(&self, k: usize, axis: i64) -> Result<(Tensor, Tensor)> {
        let site = here();
        let axis = axis_of(OpCode::TopK, axis, self.rank(), &site)?;
        let last = axis + 1 == self.rank();
        let rows = if last { self.clone() } else { self.swap_axes(axis as i64, -1)? };
        let k = i64::try_from(k).unwrap_or(i64::MAX);
        let mut results = rows.record_all(OpCode::TopK, attrs::top_k(k), &[], &[&rows], site)?;
        match (results.pop(), results.pop()) {
            (Some(places), Some(values)) if last => Ok((values, places)),
            (Some(places), Some(values)) => {
                Ok((values.swap_axes(axis as i64, -1)?, places.swap_axes(axis as i64, -1)?))
            }
            _ => Err(bug!("top_k has two results")),
        }
    }

    /// The median along dimension `axis`, which disappears: the middle element, or the mean of the
    /// two middle ones. NaN if any element is NaN.
    ///
    /// # Errors
    /// When the dimension does not exist or is empty, or the elements are not floats.
    #[track_caller]
    pub fn median(&self, axis: i64) -> Result<Tensor> {
        self.quantile(0.5, axis)
    }

    /// The quantile `share` along dimension `axis`, which disappears: the linear interpolation at
    /// index `share * (size - 1)` of the sorted elements (NumPy's `linear`). NaN if any element is
    /// NaN.
    ///
    /// # Errors
    /// When the share is not from 0 to 1, the dimension does not exist or is empty, or the elements
    /// are not floats.
    #[track_caller]
    pub fn quantile(&self, share: f64, axis: i64) -> Result<Tensor> {
        let site = here();
        let place = axis_of(OpCode::Sort, axis, self.rank(), &site)?;
        let size = self.dims()[place];
        if !self.dtype().is_float() || size == 0 || !(0.0..=1.0).contains(&share) {
            let given = format!("the quantile {share} along dimension {axis} of {} was requested", self.ty());
            let rule =
                "it must be from 0 to 1, the elements must be floats, and the dimension must not be empty";
            return Err(Tensor::refuse(OpError::new("sort", OpErrorKind::Attribute, given, rule), site));
        }
        let axis = place as i64;
        let sorted = self.widened()?.sort(axis, Order::Ascending)?;
        let at = share * (size - 1) as f64;
        let (below, rest) = (at.floor() as i64, at.fract());
        let mut value = sorted.narrow(axis, below, below + 1)?;
        if rest > 0.0 {
            let above = sorted.narrow(axis, below + 1, below + 2)?;
            value = times(&value, 1.0 - rest)?.add(&times(&above, rest)?)?;
        }
        // NaN sorts last.
        let last = sorted.narrow(axis, size as i64 - 1, size as i64)?;
        let value = last.not_equal(&last)?.select(&last, &value)?;
        value.squeeze(axis)?.narrowed(self.dtype())
    }

    /// The distinct elements, in ascending order; NaN counts as one. Shapes are static, so the
    /// caller gives the number of returned elements, `size`. If there are fewer, `fill` follows; if
    /// there are more, the largest are left out.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[3i32, 1, 3, 2, 1, 3], &[6])?;
    /// let found = x.unique(4, 0)?;
    /// assert_eq!(found.values.to_vec::<i32>()?, [1, 2, 3, 0]);
    /// assert_eq!(found.counts.to_vec::<i32>()?, [2, 1, 3, 0]);
    /// assert_eq!(found.inverse.to_vec::<i32>()?, [2, 0, 2, 1, 0, 2]);
    /// assert_eq!(found.count.item::<i32>()?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the elements are complex, or their type does not hold `fill`: integers hold whole
    /// numbers of their range, bools 0 and 1, and floats any real number, rounded.
    #[track_caller]
    pub fn unique(&self, size: usize, fill: impl Into<Number>) -> Result<Unique> {
        let site = here();
        let (number, dtype) = (fill.into(), self.dtype());
        if dtype.is_complex() {
            let given = format!("the tensor is {}", self.ty());
            let error = OpError::new("sort", OpErrorKind::DType, given, "complex numbers have no order");
            return Err(Tensor::refuse(error, site));
        }
        let fill = scalar_as(self, number, dtype).filter(|_| fills(number, dtype));
        let Some(fill) = fill else {
            let given = format!("{number} was given as the padding value of {dtype}");
            let error =
                OpError::new("sort", OpErrorKind::DType, given, "the element type must hold it exactly");
            return Err(Tensor::refuse(error, site));
        };
        let total = self.ty().elems().get();
        let flat = self.reshape(&[total])?;
        let stream = self.on_stream();
        let zeros = stream.zeros(DType::I32, &[size])?;
        let nowhere = constant_like(&zeros, total as f64)?.broadcast_to(&[size])?;
        let values = fill.broadcast_to(&[size])?;
        if total == 0 {
            let inverse = stream.zeros(DType::I32, self.dims())?;
            let count = stream.zeros(DType::I32, &[])?;
            return Ok(Unique { values, counts: zeros, places: nowhere, inverse, count });
        }
        let (sorted, places) = flat.sort_with_places(0, Order::Ascending)?;
        // An element begins a group if it differs from the one before; one NaN does not differ from
        // another.
        let (these, those) = (sorted.narrow(0, 1, total as i64)?, sorted.narrow(0, 0, total as i64 - 1)?);
        let both_nan = these.not_equal(&these)?.and(&those.not_equal(&those)?)?;
        let begins = these.not_equal(&those)?.and(&both_nan.not()?)?;
        let zero = stream.zeros(DType::I32, &[1])?;
        let groups = Tensor::concatenate(&[&zero, &begins.convert(DType::I32)?.cumsum(0)?], 0)?;
        let ones = constant_like(&groups, 1.0)?.broadcast_to(&[total])?;
        let last = groups.narrow(0, total as i64 - 1, total as i64)?.reshape(&[])?;
        let all = stream.zeros(DType::I32, &[total])?;
        Ok(Unique {
            values: values.scattered(None, &groups, &sorted)?,
            counts: zeros.scattered(Some(OpCode::Add), &groups, &ones)?,
            places: nowhere.scattered(Some(OpCode::Minimum), &groups, &places)?,
            inverse: all.scattered(None, &places, &groups)?.reshape(self.dims())?,
            count: super::plus(&last, 1.0)?,
        })
    }

    /// This vector with the elements at `places` combined with `updates` by an op, or replaced by
    /// them. Indices out of range are skipped.
    #[track_caller]
    fn scattered(&self, op: Option<OpCode>, places: &Tensor, updates: &Tensor) -> Result<Tensor> {
        let site = here();
        let dtype = self.dtype();
        let body = match op {
            Some(op) => combiner(op, dtype, &site)?,
            None => body_of(("second", 0), dtype, &site, || Ok(second(dtype)))?,
        };
        let dims = IndexDimensionNumbers {
            collapsed: &[0],
            index_map: &[0],
            index_vector: 1,
            ..IndexDimensionNumbers::default()
        };
        let attrs = attrs::scatter(dims, false, false);
        self.record_with(OpCode::Scatter, attrs, &[body], &[self, places, updates], site)
    }

    /// For each element of `indices`, the element of this tensor at the same position, except that
    /// the index along dimension `axis` is that element: NumPy's `take_along_axis`. The result has
    /// the shape of `indices`, which has the sizes of this tensor in the other dimensions. An index
    /// out of range is clamped, or is an error
    /// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)). One `gather`.
    ///
    /// # Errors
    /// When the dimension does not exist, the shapes do not fit or the indices are not integers; in
    /// Debug mode, when one is out of range.
    #[track_caller]
    pub fn take_along(&self, indices: &Tensor, axis: i64) -> Result<Tensor> {
        self.taken_along(indices, axis, true, here())
    }

    /// [`Tensor::take_along`] with indices that are known to be in range.
    #[track_caller]
    pub(crate) fn take_along_inside(&self, indices: &Tensor, axis: i64) -> Result<Tensor> {
        self.taken_along(indices, axis, false, here())
    }

    fn taken_along(&self, indices: &Tensor, axis: i64, is_checked: bool, site: Site) -> Result<Tensor> {
        let place = axis_of(OpCode::Gather, axis, self.rank(), &site)?;
        let others: Vec<i64> =
            (0..self.rank()).filter(|&axis| axis != place).map(|axis| axis as i64).collect();
        let fits = indices.rank() == self.rank()
            && others.iter().all(|&axis| indices.dims()[axis as usize] == self.dims()[axis as usize]);
        if !fits {
            let given = format!("the tensor is {} and the indices {}", self.ty(), indices.ty());
            let rule = format!("they must have the same sizes in all dimensions but {axis}");
            return Err(Tensor::refuse(OpError::new("gather", OpErrorKind::Shape, given, rule), site));
        }
        if is_checked {
            indices.check_where_asked(self.dims()[place], "take_along", &site)?;
        }
        let dims = IndexDimensionNumbers {
            collapsed: &[place as i64],
            operand_batching: &others,
            indices_batching: &others,
            index_map: &[place as i64],
            index_vector: indices.rank() as i64,
            ..IndexDimensionNumbers::default()
        };
        let mut sizes = vec![1; self.rank()];
        for (size, &dim) in sizes.iter_mut().zip(self.dims()) {
            *size = dim.min(1) as i64;
        }
        self.record(OpCode::Gather, attrs::gather(dims, &sizes, false), &[self, indices], site)
    }
}

/// Whether a number can be the filling for an element type: any real number for floats, which round
/// it; otherwise only a number that the type holds exactly.
fn fills(number: Number, dtype: DType) -> bool {
    let value = match number {
        Number::Complex(_) => return false,
        _ if dtype.is_float() => return true,
        // The conversion checks whether an integer type holds an integer.
        Number::Int(value) => return dtype != DType::Bool || matches!(value, 0 | 1),
        Number::Float(value) => value,
    };
    let power = |bits: u32| 2f64.powi(bits as i32);
    let (low, high) = match dtype.class() {
        DTypeClass::Bool => (0.0, 2.0),
        DTypeClass::Signed => (-power(dtype.bits() - 1), power(dtype.bits() - 1)),
        _ => (0.0, power(dtype.bits())),
    };
    value.fract() == 0.0 && low <= value && value < high
}

/// The comparator of a sort: `a < b` or its reverse, with NaN above everything. It ignores the
/// elements of the `along` further operands, which are `i32`.
fn before(dtype: DType, order: Order, along: usize) -> Result<Body, OpError> {
    let mut graph = Graph::new();
    let (a, b) = (graph.param(TensorType::scalar(dtype)), graph.param(TensorType::scalar(dtype)));
    for _ in 0..2 * along {
        graph.param(TensorType::scalar(DType::I32));
    }
    let (a, b) = match order {
        Order::Ascending => (a, b),
        Order::Descending => (b, a),
    };
    let mut op = |code, attrs, operands: &[_]| Ok::<_, OpError>(graph.push(code, attrs, &[], operands)?[0]);
    let compare = |direction| attrs::compare_for(direction, dtype);
    let less = op(OpCode::Compare, compare(Comparison::Lt), &[a, b])?;
    let result = if dtype.is_float() {
        let number = op(OpCode::Compare, compare(Comparison::Eq), &[a, a])?;
        let nan = op(OpCode::Compare, compare(Comparison::Ne), &[b, b])?;
        let below_nan = op(OpCode::And, Attrs::none(), &[number, nan])?;
        op(OpCode::Or, Attrs::none(), &[less, below_nan])?
    } else {
        less
    };
    Ok(Body::new(graph, &[result]).expect("bug: the comparison is missing from its graph"))
}

/// The body that returns the second of two elements.
fn second(dtype: DType) -> Body {
    let mut graph = Graph::new();
    graph.param(TensorType::scalar(dtype));
    let second = graph.param(TensorType::scalar(dtype));
    Body::new(graph, &[second]).expect("bug: the parameter is missing from its graph")
}
