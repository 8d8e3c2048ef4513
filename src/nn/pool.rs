//! Pooling: combines the elements under each position of a window.

use fuseline_fusion::{DType, Literal, OpCode, TensorType};
use fuseline_runtime::Result;

use super::{Layout, unfit, unset};
use crate::handle::Tensor;
use crate::tensor::dims::literal;
use crate::tensor::{constant_like, plain, times};

/// A window and how it moves, with one entry per spatial dimension. The conventions are PyTorch's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Elements in the window.
    pub size: Vec<usize>,
    /// Steps between two positions.
    pub stride: Vec<usize>,
    /// Padding at either edge, at most half of the window. It is never the maximum.
    pub padding: Vec<usize>,
    /// Distance between neighbours in the window.
    pub dilation: Vec<usize>,
    /// The last position may extend beyond the far edge if it begins inside the tensor or the near
    /// padding.
    pub ceil_mode: bool,
    /// Padding counts as zeros in a mean. Otherwise it is ignored.
    pub count_padding: bool,
    /// Where the features are.
    pub layout: Layout,
}

impl Pool {
    /// A window that moves by its own size: no padding, no dilation, features first.
    #[must_use]
    pub fn new(size: &[usize]) -> Pool {
        Pool {
            size: size.to_vec(),
            stride: size.to_vec(),
            padding: vec![0; size.len()],
            dilation: vec![1; size.len()],
            ceil_mode: false,
            count_padding: true,
            layout: Layout::default(),
        }
    }
}

/// The positions of a window along one dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions {
    /// Elements of the dimension.
    length: i64,
    size: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    /// Number of positions.
    count: i64,
    /// The padding that they need at the far edge.
    high: i64,
}

impl Positions {
    /// The number of elements under each position, with or without those of the padding.
    fn elements(&self, count_padding: bool) -> Vec<i64> {
        let margin = if count_padding { self.padding } else { 0 };
        let inside = |place: &i64| (-margin..self.length + margin).contains(place);
        (0..self.count)
            .map(|position| {
                let first = position * self.stride - self.padding;
                (0..self.size).map(|i| first + i * self.dilation).filter(inside).count() as i64
            })
            .collect()
    }
}

/// The positions along each spatial dimension.
#[track_caller]
pub(super) fn positions(op: &'static str, x: &TensorType, pool: &Pool) -> Result<Vec<Positions>> {
    let space = pool.size.len();
    let lists = [&pool.stride, &pool.padding, &pool.dilation];
    if x.shape().rank() != space + 2 || space == 0 || lists.iter().any(|list| list.len() != space) {
        let given = format!("the tensor is {x} and the pool {pool:?}");
        let rule = "the tensor needs batch, feature and spatial dimensions, and each list one \
                    entry per spatial dimension";
        return Err(unfit(op, given, rule));
    }
    let mut all = Vec::with_capacity(space);
    for i in 0..space {
        let axis = pool.layout.first_spatial() + i;
        let fits = |number: usize| i64::try_from(number).ok().filter(|&number| number < 1 << 31);
        let numbers =
            (fits(pool.size[i]), fits(pool.stride[i]), fits(pool.padding[i]), fits(pool.dilation[i]));
        let (Some(size), Some(stride), Some(padding), Some(dilation)) = numbers else {
            return Err(unset(op, format!("the pool is {pool:?}"), "sizes must be below 2^31"));
        };
        if size < 1 || stride < 1 || dilation < 1 || padding > size / 2 {
            let given =
                format!("size {size}, stride {stride}, padding {padding}, dilation {dilation} were given");
            let rule =
                "size, stride and dilation must be at least 1, and the padding at most half of the size";
            return Err(unset(op, given, rule));
        }
        let length = x.dims()[axis] as i64;
        let span = dilation * (size - 1) + 1;
        let room = length + 2 * padding - span;
        if length == 0 || room < 0 {
            let given = format!("dimension {axis} of {x} has {length} elements, but a window spans {span}");
            return Err(unfit(
                op,
                given,
                format!("a window must fit with a padding of {padding} at either edge"),
            ));
        }
        let mut count = room / stride + 1;
        if pool.ceil_mode && room % stride != 0 && count * stride < length + padding {
            count += 1;
        }
        let high = padding.max((count - 1) * stride + span - length - padding);
        all.push(Positions { length, size, stride, padding, dilation, count, high });
    }
    Ok(all)
}

/// A window in the form of the ops: one entry per dimension of the tensor.
pub(super) struct Windows {
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    pub(super) padding: Vec<(i64, i64)>,
    /// Number of positions; `None` for dimensions that are not spatial.
    counts: Vec<Option<i64>>,
}

impl Windows {
    pub(super) fn new(rank: usize, pool: &Pool, positions: &[Positions]) -> Windows {
        let ones = vec![1; rank];
        let mut windows = Windows {
            sizes: ones.clone(),
            strides: ones.clone(),
            dilations: ones,
            padding: vec![(0, 0); rank],
            counts: vec![None; rank],
        };
        for (axis, at) in (pool.layout.first_spatial()..).zip(positions) {
            windows.sizes[axis] = at.size;
            windows.strides[axis] = at.stride;
            windows.dilations[axis] = at.dilation;
            windows.padding[axis] = (at.padding, at.high);
            windows.counts[axis] = Some(at.count);
        }
        windows
    }

    /// Elements from the first to the last of the window along a dimension.
    pub(super) fn span(&self, axis: usize) -> i64 {
        (self.sizes[axis] - 1) * self.dilations[axis] + 1
    }

    /// Sizes of the result for those of the operand.
    pub(super) fn result(&self, dims: &[usize]) -> Vec<usize> {
        dims.iter().zip(&self.counts).map(|(&dim, count)| count.map_or(dim, |count| count as usize)).collect()
    }

    /// The elements under each position, combined by `op`.
    #[track_caller]
    fn combine(&self, x: &Tensor, op: OpCode) -> Result<Tensor> {
        x.reduce_dilated_window(op, &self.sizes, &self.strides, &self.dilations, &self.padding)
    }
}

/// The largest element under each position, of tensors `[batch, features, space...]`; NaN if any
/// element is NaN. One `reduce_window`.
///
/// # Errors
/// When the window does not fit the tensor.
#[track_caller]
pub fn max_pool(x: &Tensor, pool: &Pool) -> Result<Tensor> {
    Windows::new(x.rank(), pool, &positions("max_pool", x.ty(), pool)?).combine(x, OpCode::Maximum)
}

/// The mean of the elements under each position. One `reduce_window`, and a division by the number
/// of elements, which depends on [`Pool::count_padding`] and [`Pool::ceil_mode`].
///
/// # Errors
/// When the window does not fit the tensor, or the elements are not floats.
#[track_caller]
pub fn avg_pool(x: &Tensor, pool: &Pool) -> Result<Tensor> {
    let positions = positions("avg_pool", x.ty(), pool)?;
    let total = Windows::new(x.rank(), pool, &positions).combine(&x.widened()?, OpCode::Add)?;
    divided(&total, pool, &positions)?.narrowed(x.dtype())
}

/// A value at each position, divided by the number of elements that count there.
#[track_caller]
pub(super) fn divided(total: &Tensor, pool: &Pool, positions: &[Positions]) -> Result<Tensor> {
    let counts: Vec<Vec<i64>> = positions.iter().map(|at| at.elements(pool.count_padding)).collect();
    let mut uniform = 1;
    let mut varying: Option<Tensor> = None;
    for (i, counts) in counts.iter().enumerate() {
        if counts.iter().all(|count| count == &counts[0]) {
            uniform *= counts[0];
            continue;
        }
        let numbers: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        let axis = pool.layout.first_spatial() + i;
        let factor = along(total, axis, &numbers)?;
        varying = Some(match varying {
            Some(product) => product.mul(&factor)?,
            None => factor,
        });
    }
    let divisor = match varying {
        Some(varying) if uniform == 1 => varying,
        Some(varying) => times(&varying, uniform as f64)?,
        None => constant_like(total, uniform as f64)?,
    };
    total.div(&divisor)
}

/// The `p`-th root of the sum of the `p`-th powers of the absolute elements under each position.
/// Where a window extends beyond the edge ([`Pool::ceil_mode`]), only existing elements are summed;
/// PyTorch scales the sum up to a whole window.
///
/// # Errors
/// When the window does not fit the tensor, `p` is not positive, or the elements are not floats.
#[track_caller]
pub fn lp_pool(x: &Tensor, p: f64, pool: &Pool) -> Result<Tensor> {
    if p.is_nan() || p <= 0.0 {
        return Err(unset("lp_pool", format!("p is {p}"), "it must be positive"));
    }
    let windows = Windows::new(x.rank(), pool, &positions("lp_pool", x.ty(), pool)?);
    let wide = x.widened()?.abs()?;
    let powers = wide.pow(&constant_like(&wide, p)?)?;
    let total = windows.combine(&powers, OpCode::Add)?;
    total.pow(&constant_like(&total, 1.0 / p)?)?.narrowed(x.dtype())
}

/// A vector along dimension `axis` of `like`, in its element type, as a constant with size 1
/// elsewhere.
#[track_caller]
pub(super) fn along(like: &Tensor, axis: usize, numbers: &[f64]) -> Result<Tensor> {
    let mut dims = vec![1; like.rank() - axis];
    dims[0] = numbers.len();
    plain(like, &numbers_of(like.dtype(), numbers, &dims)?)
}

/// A literal with these numbers, in an element type of at least 32 bits.
fn numbers_of(dtype: DType, numbers: &[f64], dims: &[usize]) -> Result<Literal> {
    Ok(match dtype {
        DType::F64 => literal(dims, numbers)?,
        _ => {
            let narrow: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
            literal(dims, &narrow)?
        }
    })
}

/// The half-open ranges of `count` stretches that cover `length` elements: from
/// `floor(i length / count)` to `ceil((i + 1) length / count)`.
pub(super) fn stretches(length: usize, count: usize) -> Vec<(usize, usize)> {
    (0..count).map(|i| (i * length / count, ((i + 1) * length).div_ceil(count))).collect()
}

/// The elements of each stretch along dimension `axis`, which becomes two dimensions: stretches,
/// and positions in them. Shorter stretches repeat their last element. Also returns the number of
/// elements of each.
#[track_caller]
fn stretched(x: &Tensor, axis: usize, count: usize) -> Result<(Tensor, Vec<f64>)> {
    let length = x.dims()[axis];
    if length.is_multiple_of(count) {
        let split = [&x.dims()[..axis], &[count, length / count], &x.dims()[axis + 1..]].concat();
        return Ok((x.reshape(&split)?, vec![(length / count) as f64; count]));
    }
    let stretches = stretches(length, count);
    let widest = stretches.iter().map(|(first, end)| end - first).max().unwrap_or(1);
    let places: Vec<i32> = stretches
        .iter()
        .flat_map(|&(first, end)| (0..widest).map(move |i| (first + i).min(end - 1) as i32))
        .collect();
    let places = plain(x, &literal(&[count, widest], &places)?)?;
    let counts = stretches.iter().map(|(first, end)| (end - first) as f64).collect();
    Ok((x.take_inside(&places, axis as i64)?, counts))
}

#[track_caller]
pub(super) fn check_sizes(op: &'static str, x: &Tensor, sizes: &[usize]) -> Result<()> {
    if x.rank() != sizes.len() + 2 || sizes.contains(&0) || x.dims().contains(&0) {
        let given = format!("the tensor is {} and the sizes {sizes:?}", x.ty());
        let rule = "the tensor needs batch, feature and spatial dimensions, none of them empty, \
                    and the sizes one entry per spatial dimension";
        return Err(unfit(op, given, rule));
    }
    Ok(())
}

/// Pools to the given sizes by the mean of equal stretches, which overlap if the sizes do not
/// divide evenly: PyTorch's `adaptive_avg_pool`. Pools one dimension after the other.
///
/// # Errors
/// When there is not one size per spatial dimension, or the elements are not floats.
#[track_caller]
pub fn adaptive_avg_pool(x: &Tensor, sizes: &[usize], layout: Layout) -> Result<Tensor> {
    check_sizes("adaptive_avg_pool", x, sizes)?;
    let mut result = x.widened()?;
    for (axis, &size) in (layout.first_spatial()..).zip(sizes) {
        if result.dims()[axis] == size {
            continue;
        }
        let (parts, counts) = stretched(&result, axis, size)?;
        let widest = parts.dims()[axis + 1];
        // Shorter stretches repeat their last element; the repetitions have weight 0.
        let weights: Vec<f64> = counts
            .iter()
            .flat_map(|&count| (0..widest).map(move |i| if (i as f64) < count { 1.0 / count } else { 0.0 }))
            .collect();
        result = if counts.iter().all(|&count| count == widest as f64) {
            parts.mean(&[axis as i64 + 1])?
        } else {
            let mut dims = vec![1; parts.rank() - axis];
            (dims[0], dims[1]) = (size, widest);
            let weights = plain(&parts, &numbers_of(parts.dtype(), &weights, &dims)?)?;
            parts.mul(&weights)?.sum(&[axis as i64 + 1])?
        };
    }
    result.narrowed(x.dtype())
}

/// Pools to the given sizes by the maximum of equal stretches: PyTorch's `adaptive_max_pool`. Pools
/// one dimension after the other.
///
/// # Errors
/// When there is not one size per spatial dimension.
#[track_caller]
pub fn adaptive_max_pool(x: &Tensor, sizes: &[usize], layout: Layout) -> Result<Tensor> {
    check_sizes("adaptive_max_pool", x, sizes)?;
    let mut result = x.clone();
    for (axis, &size) in (layout.first_spatial()..).zip(sizes) {
        if result.dims()[axis] != size {
            result = stretched(&result, axis, size)?.0.max(&[axis as i64 + 1])?;
        }
    }
    Ok(result)
}
