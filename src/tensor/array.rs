//! Ops that move elements: shapes, slices, concatenation, indexing.

use fuseline_fusion::op::attrs::{self, IndexDimensionNumbers};
use fuseline_fusion::{DType, DTypeClass, OpCode, OpError, OpErrorKind, Shape, Site};
use fuseline_runtime::{Error, Result};

use super::promote::{common_dtype, promote_types};
use super::{Tensor, here};

/// A dimension counted from the front, or from the back if negative, as an index.
pub(super) fn axis_of(op: OpCode, axis: i64, rank: usize, site: &Site) -> Result<usize> {
    let from_front = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(from_front) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => {
            let rule = match rank {
                0 => "a scalar has no dimensions".to_owned(),
                _ => format!("dimensions are 0 to {}, or -{rank} to -1 from the back", rank - 1),
            };
            let given = format!("dimension {axis} of a tensor of rank {rank} was given");
            Err(Error::op(OpError::new(op.name(), OpErrorKind::Attribute, given, rule), site.clone()))
        }
    }
}

impl Tensor {
    /// The same elements, in row-major order, with another shape.
    ///
    /// # Errors
    /// When the number of elements differs.
    #[track_caller]
    pub fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        self.reshape_at(dims, here())
    }

    pub(crate) fn reshape_at(&self, dims: &[usize], site: Site) -> Result<Tensor> {
        self.record(OpCode::Reshape, attrs::reshape(Shape::try_from(dims)?), &[self], site)
    }

    /// Adds a dimension of size 1 in front of dimension `axis`, which may be the rank, or negative
    /// to count from the back (-1 appends).
    ///
    /// # Errors
    /// When `axis` is out of range.
    #[track_caller]
    pub fn unsqueeze(&self, axis: i64) -> Result<Tensor> {
        let site = here();
        let place = axis_of(OpCode::Reshape, axis, self.rank() + 1, &site)?;
        let mut dims = self.dims().to_vec();
        dims.insert(place, 1);
        self.reshape_at(&dims, site)
    }

    /// Adds dimensions of size 1, so that they are dimensions `axes` of the result; negative ones
    /// count from its back. The result of a reduction over `axes` then broadcasts to the reduced
    /// tensor.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[1.0f32, 2.0, 3.0, 6.0], &[2, 2])?;
    /// let centered = x.sub(&x.mean(&[-1])?.expand_dims(&[-1])?)?;
    /// assert_eq!(centered.to_vec::<f32>()?, [-0.5, 0.5, -1.5, 1.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a place does not exist or is named twice.
    #[track_caller]
    pub fn expand_dims(&self, axes: &[i64]) -> Result<Tensor> {
        let site = here();
        let rank = self.rank() + axes.len();
        let mut added = vec![false; rank];
        for &axis in axes {
            let place = axis_of(OpCode::Reshape, axis, rank, &site)?;
            if std::mem::replace(&mut added[place], true) {
                let given = format!("dimension {axis} appears twice in {axes:?}");
                let error = OpError::new(
                    "reshape",
                    OpErrorKind::Attribute,
                    given,
                    "each dimension can be added only once",
                );
                return Err(Tensor::refuse(error, site));
            }
        }
        let mut own = self.dims().iter();
        let dims: Vec<usize> =
            added.iter().map(|&added| if added { 1 } else { own.next().copied().unwrap_or(1) }).collect();
        self.reshape_at(&dims, site)
    }

    /// Removes dimension `axis`, which must have size 1; negative counts from the back.
    ///
    /// # Errors
    /// When the dimension does not exist or has another size.
    #[track_caller]
    pub fn squeeze(&self, axis: i64) -> Result<Tensor> {
        let site = here();
        let place = axis_of(OpCode::Reshape, axis, self.rank(), &site)?;
        let mut dims = self.dims().to_vec();
        if dims.remove(place) != 1 {
            let given = format!("dimension {axis} of {} cannot be removed", self.ty());
            let error = OpError::new("reshape", OpErrorKind::Shape, given, "its size must be 1");
            return Err(Tensor::refuse(error, site));
        }
        self.reshape_at(&dims, site)
    }

    /// Repeats along missing dimensions and those of size 1, by NumPy's rule.
    ///
    /// # Errors
    /// When this shape does not broadcast to the given one.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Result<Tensor> {
        let site = here();
        let shape = Shape::try_from(dims)?;
        if shape.rank() < self.rank() {
            let given = format!("{} cannot be broadcast to {shape}", self.ty());
            let rule = "the target must have at least as many dimensions";
            return Err(Tensor::refuse(
                OpError::new("broadcast_in_dim", OpErrorKind::Shape, given, rule),
                site,
            ));
        }
        self.stretched(&shape, self, &site)
    }

    /// Repeats: dimension `i` becomes dimension `broadcast_dimensions[i]` of the result, the others
    /// are new.
    ///
    /// # Errors
    /// When the dimensions do not fit.
    #[track_caller]
    pub fn broadcast_in_dim(&self, dims: &[usize], broadcast_dimensions: &[i64]) -> Result<Tensor> {
        let attrs = attrs::broadcast_in_dim(Shape::try_from(dims)?, broadcast_dimensions);
        self.record(OpCode::BroadcastInDim, attrs, &[self], here())
    }

    /// The tensor with its dimensions in another order: dimension `i` of the result is dimension
    /// `permutation[i]` of `self`.
    ///
    /// # Errors
    /// When `permutation` is not a permutation of the dimensions.
    #[track_caller]
    pub fn transpose(&self, permutation: &[i64]) -> Result<Tensor> {
        self.record(OpCode::Transpose, attrs::transpose(permutation), &[self], here())
    }

    /// Two dimensions exchanged; negative ones count from the back.
    ///
    /// # Errors
    /// When one of them does not exist.
    #[track_caller]
    pub fn swap_axes(&self, a: i64, b: i64) -> Result<Tensor> {
        let site = here();
        let a = axis_of(OpCode::Transpose, a, self.rank(), &site)?;
        let b = axis_of(OpCode::Transpose, b, self.rank(), &site)?;
        let mut permutation: Vec<i64> = (0..self.rank() as i64).collect();
        permutation.swap(a, b);
        self.record(OpCode::Transpose, attrs::transpose(&permutation), &[self], site)
    }

    /// The elements whose indices in the two dimensions are equal. Those two dimensions disappear,
    /// and the diagonal is the last dimension of the result. This moves elements twice and does no
    /// arithmetic.
    ///
    /// # Errors
    /// When a dimension does not exist, or both are the same or have different sizes.
    #[track_caller]
    pub fn diagonal(&self, first: i64, second: i64) -> Result<Tensor> {
        let site = here();
        let (a, b) = (
            axis_of(OpCode::Slice, first, self.rank(), &site)?,
            axis_of(OpCode::Slice, second, self.rank(), &site)?,
        );
        let size = self.dims()[a];
        if a == b || self.dims()[b] != size {
            let given =
                format!("the diagonal of dimensions {first} and {second} of {} was requested", self.ty());
            let error = OpError::new(
                "slice",
                OpErrorKind::Shape,
                given,
                "it needs two different dimensions of the same size",
            );
            return Err(Tensor::refuse(error, site));
        }
        let mut order: Vec<i64> =
            (0..self.rank() as i64).filter(|&axis| axis != a as i64 && axis != b as i64).collect();
        let kept: Vec<usize> = order.iter().map(|&axis| self.dims()[axis as usize]).collect();
        order.extend([a as i64, b as i64]);
        let square = if order.is_sorted() { self.clone() } else { self.transpose(&order)? };
        // In row-major order, neighbours on the diagonal are one row and one element apart.
        let flat = square.reshape(&[kept.as_slice(), &[size * size]].concat())?;
        let mut limits: Vec<i64> = flat.dims().iter().map(|&dim| dim as i64).collect();
        let mut strides = vec![1; limits.len()];
        strides[kept.len()] = size as i64 + 1;
        limits[kept.len()] = (size * size) as i64;
        flat.slice(&vec![0; limits.len()], &limits, &strides)
    }

    /// Every `strides`-th element from `starts` up to, not including, `limits`: one of each per
    /// dimension.
    ///
    /// # Errors
    /// When an index is out of range, or a stride is below 1.
    #[track_caller]
    pub fn slice(&self, starts: &[i64], limits: &[i64], strides: &[i64]) -> Result<Tensor> {
        self.record(OpCode::Slice, attrs::slice(starts, limits, strides), &[self], here())
    }

    /// Elements `start` to `limit`, not included, of dimension `axis`, and all of the others.
    ///
    /// # Errors
    /// When the dimension does not exist or a limit is out of range.
    #[track_caller]
    pub fn narrow(&self, axis: i64, start: i64, limit: i64) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::Slice, axis, self.rank(), &site)?;
        let mut starts = vec![0; self.rank()];
        let mut limits: Vec<i64> = self.dims().iter().map(|&dim| dim as i64).collect();
        (starts[axis], limits[axis]) = (start, limit);
        let strides = vec![1; self.rank()];
        self.record(OpCode::Slice, attrs::slice(&starts, &limits, &strides), &[self], site)
    }

    /// Tensors one after the other along dimension `axis`; negative counts from the back. Element
    /// types promote.
    ///
    /// # Errors
    /// When there is none, the element types do not promote, or sizes differ elsewhere than along
    /// that dimension.
    #[track_caller]
    pub fn concatenate(tensors: &[&Tensor], axis: i64) -> Result<Tensor> {
        let site = here();
        let Some(first) = tensors.first() else {
            let rule = "there must be at least one";
            let error = OpError::new("concatenate", OpErrorKind::Arity, "no tensors were given", rule);
            return Err(Tensor::refuse(error, site));
        };
        let axis = axis_of(OpCode::Concatenate, axis, first.rank(), &site)?;
        let mut dtype = first.dtype();
        for tensor in tensors {
            dtype = match promote_types(dtype, tensor.dtype()) {
                Some(dtype) => dtype,
                None => common_dtype("concatenate", [("the first", first), ("a later one", tensor)], &site)?,
            };
        }
        let parts: Vec<Tensor> =
            tensors.iter().map(|tensor| tensor.as_dtype(dtype, first, &site)).collect::<Result<_>>()?;
        let parts: Vec<&Tensor> = parts.iter().collect();
        first.record(OpCode::Concatenate, attrs::concatenate(axis as i64), &parts, site)
    }

    /// Adds `value`, a scalar, at the edges and between neighbours: `low`, `high` and `interior`
    /// per dimension. Negative amounts at the edges remove elements.
    ///
    /// # Errors
    /// When the lists do not have one entry per dimension, or a size would become negative.
    #[track_caller]
    pub fn pad(&self, value: &Tensor, low: &[i64], high: &[i64], interior: &[i64]) -> Result<Tensor> {
        self.record(OpCode::Pad, attrs::pad(low, high, interior), &[self, value], here())
    }

    /// The elements in reverse order along the given dimensions.
    ///
    /// # Errors
    /// When a dimension does not exist.
    #[track_caller]
    pub fn reverse(&self, dimensions: &[i64]) -> Result<Tensor> {
        self.record(OpCode::Reverse, attrs::dimensions(dimensions), &[self], here())
    }

    /// A window of fixed sizes at a computed position: one integer scalar per dimension. A window
    /// that would extend beyond the tensor is moved inside.
    ///
    /// # Errors
    /// When there is not one start per dimension, or a size is too large.
    #[track_caller]
    pub fn dynamic_slice(&self, starts: &[&Tensor], sizes: &[i64]) -> Result<Tensor> {
        let operands: Vec<&Tensor> = [self].into_iter().chain(starts.iter().copied()).collect();
        self.record(OpCode::DynamicSlice, attrs::dynamic_slice(sizes), &operands, here())
    }

    /// This tensor with a window at a computed position replaced by `update`. A window that would
    /// extend beyond the tensor is moved inside.
    ///
    /// # Errors
    /// When there is not one start per dimension, or the update is too large.
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: &Tensor, starts: &[&Tensor]) -> Result<Tensor> {
        let operands: Vec<&Tensor> = [self, update].into_iter().chain(starts.iter().copied()).collect();
        self.record(OpCode::DynamicUpdateSlice, fuseline_fusion::Attrs::none(), &operands, here())
    }

    /// The slices of dimension `axis` at `indices`, integers of any shape: an embedding lookup. The
    /// result has the shape of `indices` in place of that dimension. An index out of range is
    /// clamped, or is an error
    /// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)).
    ///
    /// # Errors
    /// When the dimension does not exist or the indices are not integers; in Debug mode, when one
    /// is outside.
    #[track_caller]
    pub fn take(&self, indices: &Tensor, axis: i64) -> Result<Tensor> {
        let site = here();
        let place = axis_of(OpCode::Gather, axis, self.rank(), &site)?;
        indices.check_where_asked(self.dims()[place], "take", &site)?;
        self.take_inside(indices, axis)
    }

    /// [`Tensor::take`] of indices that are known to be in range.
    #[track_caller]
    pub(crate) fn take_inside(&self, indices: &Tensor, axis: i64) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::Gather, axis, self.rank(), &site)?;
        let (rank, extra) = (self.rank(), indices.rank());
        // Result: dimensions before the axis, those of the indices, dimensions after the axis.
        let window: Vec<i64> =
            (0..axis).chain(axis + extra..rank - 1 + extra).map(|dim| dim as i64).collect();
        let mut sizes: Vec<i64> = self.dims().iter().map(|&dim| dim as i64).collect();
        sizes[axis] = 1.min(sizes[axis]);
        let axis = axis as i64;
        let dims = IndexDimensionNumbers {
            window: &window,
            collapsed: &[axis],
            index_map: &[axis],
            index_vector: extra as i64,
            ..IndexDimensionNumbers::default()
        };
        self.record(OpCode::Gather, attrs::gather(dims, &sizes, false), &[self, indices], site)
    }

    /// The tensor repeated along a new last dimension.
    fn expand_last(&self, shape: &Shape, site: &Site) -> Result<Tensor> {
        let map: Vec<i64> = (0..self.rank() as i64).collect();
        let attrs = attrs::broadcast_in_dim(shape.clone(), &map);
        self.record(OpCode::BroadcastInDim, attrs, &[self], site.clone())
    }

    /// 1 at the index that each element, an integer, gives along a new last dimension of the given
    /// size, and 0 elsewhere. An element out of range gives zeros, or is an error
    /// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)).
    ///
    /// # Errors
    /// When the elements are not integers; in Debug mode, when one is out of range.
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        self.check_where_asked(classes, "one_hot", &here())?;
        self.one_hot_or_none(classes, dtype)
    }

    /// [`Tensor::one_hot`] of elements that may be out of range.
    #[track_caller]
    pub(crate) fn one_hot_or_none(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        let site = here();
        if !matches!(self.dtype().class(), DTypeClass::Signed | DTypeClass::Unsigned) {
            let given = format!("{} was given", self.ty());
            let error = OpError::new("one_hot", OpErrorKind::DType, given, "class indices must be integers");
            return Err(Tensor::refuse(error, site));
        }
        let mut dims = self.dims().to_vec();
        dims.push(classes);
        let shape = Shape::try_from(dims.as_slice())?;
        let last = self.rank() as i64;
        // The indices have the type of the elements if that type is wide enough.
        let bits = self.dtype().bits() - u32::from(self.dtype().class() == DTypeClass::Signed);
        let fits = bits >= 63 || classes <= 1 << bits;
        let wanted = if fits { self.clone() } else { self.as_dtype(DType::I64, self, &site)? };
        let iota = attrs::iota(wanted.dtype(), shape.clone(), last);
        let places = self.record(OpCode::Iota, iota, &[], site.clone())?;
        let wanted = wanted.expand_last(&shape, &site)?;
        let compare = attrs::compare_for(fuseline_fusion::op::Comparison::Eq, wanted.dtype());
        let hot = self.record(OpCode::Compare, compare, &[&wanted, &places], site.clone())?;
        hot.as_dtype(dtype, self, &site)
    }
}
