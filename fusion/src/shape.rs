//! Shapes and tensor types, with checked arithmetic.
//!
//! - SHAPE-1: a [`Shape`] has at most [`MAX_RANK`] dimensions and at most [`MAX_ELEMS`] elements,
//!   whose size in bytes fits in 63 bits for every element type. The constructor checks it, so no
//!   later stage can overflow.

use std::fmt;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::limits::{MAX_ELEMS, MAX_RANK};

// So that a list of sizes can be looked at as `u64` and as `usize` without a copy.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("fuseline needs a target whose `usize` has 64 bits, as sizes of dimensions have");

/// Sizes of the dimensions of a tensor, outermost first. Rank 0 is a scalar with one element.
///
/// They are `u64`, as in program files and region keys. Methods of tensors have `usize`:
/// [`Shape::sizes`] gives these, and a shape is made of them by `Shape::try_from`.
///
/// ```
/// use fuseline_fusion::Shape;
/// let rows = ["a", "b", "c"].len();
/// let shape = Shape::try_from(&[rows, 2][..])?;
/// assert_eq!((shape.dims(), shape.sizes()), (&[3u64, 2][..], &[3usize, 2][..]));
/// # Ok::<(), fuseline_fusion::ShapeError>(())
/// ```
#[derive(Eq, Default)]
pub struct Shape(SmallVec<[u64; 6]>);

/// Every recorded value has a shape, so the sizes are copied as one block.
impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Shape {
        Shape(SmallVec::from_slice(self.dims()))
    }
}

/// Compared for every operand of every recorded op. A loop over the few sizes is faster than a call
/// of `memcmp`.
impl PartialEq for Shape {
    #[inline]
    fn eq(&self, other: &Shape) -> bool {
        let (these, those) = (self.dims(), other.dims());
        these.len() == those.len() && these.iter().zip(those).all(|(this, that)| this == that)
    }
}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

/// Why a list of dimension sizes is not a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// More dimensions than [`MAX_RANK`].
    Rank {
        /// The number of dimensions given.
        rank: usize,
    },
    /// More than [`MAX_ELEMS`] elements.
    Overflow {
        /// The dimension sizes given.
        dims: Vec<u64>,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::Rank { rank } => {
                write!(f, "rank {rank} is above the limit of {MAX_RANK} dimensions")
            }
            ShapeError::Overflow { dims } => {
                write!(f, "a tensor with the sizes {dims:?} has more than 2^59 - 1 elements")
            }
        }
    }
}

impl std::error::Error for ShapeError {}

/// Number of elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Elems(pub u64);

impl Elems {
    /// The count as an index type.
    ///
    /// # Panics
    /// On a platform whose `usize` is smaller than the count; the element count of a tensor that
    /// exists in host memory always fits.
    #[inline]
    #[must_use]
    pub fn get(self) -> usize {
        usize::try_from(self.0).expect("a tensor in host memory has fewer than usize::MAX elements")
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Sum, saturating at `u64::MAX`.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// Difference, saturating at zero.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        if value < 1_024.0 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = "";
        for name in UNITS {
            if value < 1_024.0 {
                break;
            }
            value /= 1_024.0;
            unit = name;
        }
        write!(f, "{value:.1} {unit}")
    }
}

impl Shape {
    /// The shape of a scalar: no dimensions, one element.
    #[must_use]
    pub fn scalar() -> Shape {
        Shape(SmallVec::new())
    }

    /// Checks a list of sizes, outermost first.
    /// # Errors
    /// If there are more than [`MAX_RANK`] sizes or their product exceeds [`MAX_ELEMS`]. Zeros do
    /// not count in the product: `[0, 2^40, 2^40]` is rejected, because transposes and reductions
    /// of it would compute the product of the other sizes.
    pub fn new(dims: &[u64]) -> Result<Shape, ShapeError> {
        if dims.len() > MAX_RANK {
            return Err(ShapeError::Rank { rank: dims.len() });
        }
        let product = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)));
        match product {
            Some(product) if product <= MAX_ELEMS => Ok(Shape(SmallVec::from_slice(dims))),
            _ => Err(ShapeError::Overflow { dims: dims.to_vec() }),
        }
    }

    /// Sizes, outermost first.
    #[inline]
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.0
    }

    /// Sizes, outermost first, as `usize`: what methods of tensors take, and what lengths and
    /// indices of Rust's collections are.
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        bytemuck::cast_slice(self.dims())
    }

    /// Number of dimensions.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Size of dimension `axis`.
    ///
    /// # Panics
    /// If `axis` is not below the rank.
    #[inline]
    #[must_use]
    pub fn dim(&self, axis: usize) -> u64 {
        self.0[axis]
    }

    /// Number of elements.
    #[inline]
    #[must_use]
    pub fn elems(&self) -> Elems {
        Elems(self.0.iter().product())
    }

    /// Row-major strides in elements: the distance between neighbours along each dimension.
    #[must_use]
    pub fn strides(&self) -> SmallVec<[usize; 6]> {
        let mut strides = SmallVec::from_elem(1usize, self.rank());
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis] * self.0[axis].max(1) as usize;
        }
        strides
    }
}

/// As [`Shape::new`].
impl TryFrom<&[usize]> for Shape {
    type Error = ShapeError;

    fn try_from(sizes: &[usize]) -> Result<Shape, ShapeError> {
        Shape::new(bytemuck::cast_slice(sizes))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Element type and shape of a tensor.
#[derive(Clone, Eq)]
pub struct TensorType {
    shape: Shape,
    dtype: DType,
    /// A hash of element type and sizes. Most unequal types differ in it, and tables are searched
    /// by it, so the sizes are rarely compared.
    hash: u32,
}

impl PartialEq for TensorType {
    #[inline]
    fn eq(&self, other: &TensorType) -> bool {
        self.hash == other.hash && self.dtype == other.dtype && self.shape == other.shape
    }
}

impl Hash for TensorType {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.hash);
    }
}

impl TensorType {
    /// Combines an element type with a shape.
    #[must_use]
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        let mut hasher = FxHasher::default();
        hasher.write_u8(dtype.code());
        shape.hash(&mut hasher);
        TensorType { shape, dtype, hash: (hasher.finish() >> 32) as u32 }
    }

    /// A hash of element type and sizes: what [`Hash`] feeds to the hasher.
    #[inline]
    #[must_use]
    pub fn short_hash(&self) -> u32 {
        self.hash
    }

    /// Checks sizes and pairs them with an element type.
    /// Checks the sizes and combines them with an element type.
    /// # Errors
    /// As [`Shape::new`].
    pub fn of(dtype: DType, dims: &[u64]) -> Result<TensorType, ShapeError> {
        Ok(TensorType::new(dtype, Shape::new(dims)?))
    }

    /// The type of a rank-0 tensor.
    #[must_use]
    pub fn scalar(dtype: DType) -> TensorType {
        TensorType::new(dtype, Shape::scalar())
    }

    /// Element type.
    #[inline]
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Sizes of the dimensions, outermost first.
    #[inline]
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        self.shape.dims()
    }

    /// Sizes of the dimensions as `usize`; see [`Shape::sizes`].
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        self.shape.sizes()
    }

    /// Number of dimensions.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements.
    #[inline]
    #[must_use]
    pub fn elems(&self) -> Elems {
        self.shape.elems()
    }

    /// Size in host memory, row-major and dense.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.elems().0 * self.dtype.size() as u64)
    }

    /// The same shape with another element type.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType::new(dtype, self.shape.clone())
    }
}

impl fmt::Display for TensorType {
    /// `f32[2, 3]`; a scalar is `f32[]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A list of types, for messages.
pub(crate) fn listed<'a>(types: impl IntoIterator<Item = &'a TensorType>) -> String {
    let types: Vec<String> = types.into_iter().map(TensorType::to_string).collect();
    format!("({})", types.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_refused_before_anything_is_allocated() {
        for dims in [&[1 << 32, 1 << 32][..], &[0, 1 << 40, 1 << 40], &[u64::MAX]] {
            assert!(matches!(Shape::new(dims), Err(ShapeError::Overflow { .. })), "{dims:?}");
        }
        assert!(Shape::new(&[MAX_ELEMS + 1]).is_err());
    }

    #[test]
    fn the_largest_shape_has_a_size_in_bytes_with_every_element_type() {
        let shape = Shape::new(&[MAX_ELEMS]).expect("within the limit");
        for dtype in DType::ALL {
            let bytes = TensorType::new(dtype, shape.clone()).bytes().0;
            assert_eq!(Some(bytes), MAX_ELEMS.checked_mul(dtype.size() as u64), "{dtype}");
            assert!(i64::try_from(bytes).is_ok(), "{dtype}");
        }
    }

    #[test]
    fn the_rank_limit_is_reached() {
        assert!(Shape::new(&[1; MAX_RANK]).is_ok());
        assert_eq!(Shape::new(&[1; MAX_RANK + 1]), Err(ShapeError::Rank { rank: MAX_RANK + 1 }));
    }

    #[test]
    fn sizes_as_usize_are_the_same_numbers() {
        for dims in [&[][..], &[2, 0, 7], &[MAX_ELEMS]] {
            let shape = Shape::new(dims).expect("within the limit");
            let sizes: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
            assert_eq!(shape.sizes(), sizes);
            assert_eq!(Shape::try_from(sizes.as_slice()), Ok(shape.clone()));
            assert_eq!(TensorType::new(DType::F32, shape).sizes(), sizes);
        }
        let too_large = [1 << 32, 1 << 32];
        assert!(matches!(Shape::try_from(&too_large[..]), Err(ShapeError::Overflow { .. })));
    }

    #[test]
    fn strides_are_row_major() {
        let shape = Shape::new(&[2, 3, 4]).expect("small");
        assert_eq!(shape.strides().as_slice(), [12, 4, 1]);
        assert_eq!(shape.elems(), Elems(24));
        assert_eq!(Shape::scalar().elems(), Elems(1));
    }

    #[test]
    fn sizes_read_in_units() {
        assert_eq!(Bytes(12).to_string(), "12 B");
        assert_eq!(Bytes(1_536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(3 << 30).to_string(), "3.0 GiB");
    }
}
