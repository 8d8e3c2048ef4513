//! Reads and writes through strided views of a storage, as ops.
//!
//! A storage is one value, of the shape it was written in, in row-major order. A view is an element
//! type, sizes, strides and an offset, in elements of that type. There are three cases:
//!
//! - If the sorted strides divide one another, as those of slices, transposes and split heads do,
//!   the view is a *box*: one slice of the storage as a grid.
//! - If the strides only *nest* (each is at least the extent of the smaller ones), the view is
//!   split level by level into slices and reshapes.
//! - Otherwise a read is a gather, and a write a scatter.
//!
//! The offset is a run-time number: a loop that walks through a batch or fills a cache is one
//! program.
//!
//! ```text
//! box:   storage ─► [n / s1, s1 / s2, .., sk] ─► a slice of it ─► transposed, repeated
//! nest:  [n] ─► from the offset on ─► [.., L] ─► [.., size * stride] ─► [.., size, stride] ─► ..
//!        ─► [.., size] ─► transposed, repeated
//! ```
//!
//! - VIEW-1: a write leaves every element of the storage that the view does not contain unchanged.

use fuseline::fusion::{DType, TensorType};
use fuseline::{Stream, Tensor, unchecked};
use smallvec::SmallVec;

use crate::call::{Result, unsupported};
use crate::ops::{cast, flat, put as put_rows};

/// A strided view of a storage.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Element type and sizes.
    pub ty: &'a TensorType,
    /// The distance between consecutive elements, in elements, for each dimension.
    pub strides: &'a [i64],
    /// The position of the first element.
    pub offset: i64,
}

/// A dimension of a view with more than one element and a nonzero stride.
#[derive(Clone, Copy, Debug)]
struct Level {
    axis: usize,
    size: i64,
    stride: i64,
}

/// A view as a box in a grid.
struct Grid {
    /// Sizes of the grid, one for each level, and one more if elements of the last level have gaps.
    dims: SmallVec<[usize; 8]>,
    /// The start of the box.
    starts: SmallVec<[i64; 8]>,
    /// The sizes of the box.
    sizes: SmallVec<[i64; 8]>,
}

impl Grid {
    /// The grid for a storage with this many elements, if the view is a box.
    fn of(levels: &[Level], offset: i64, elems: i64) -> Option<Grid> {
        let mut grid = Grid { dims: SmallVec::new(), starts: SmallVec::new(), sizes: SmallVec::new() };
        let (mut above, mut rest) = (elems, offset);
        for level in levels {
            if above % level.stride != 0 {
                return None;
            }
            grid.push(above / level.stride, rest / level.stride, level.size)?;
            (above, rest) = (level.stride, rest % level.stride);
        }
        if above > 1 {
            grid.push(above, rest, 1)?;
        }
        (!levels.is_empty()).then_some(grid)
    }

    fn push(&mut self, dim: i64, start: i64, size: i64) -> Option<()> {
        self.dims.push(dim as usize);
        self.starts.push(start);
        self.sizes.push(size);
        (start + size <= dim).then_some(())
    }

    fn is_whole(&self) -> bool {
        self.dims.iter().zip(&self.sizes).all(|(dim, size)| *dim as i64 == *size)
    }

    /// The storage reshaped to the grid.
    fn reshaped(&self, base: &Tensor) -> Result<Tensor> {
        Ok(if base.dims() == self.dims.as_slice() { base.clone() } else { base.reshape(&self.dims)? })
    }

    /// The start of the box: run-time numbers, except for dimensions that the box fills.
    fn starts(&self, stream: &Stream) -> Result<SmallVec<[Tensor; 8]>> {
        let zero = stream.zeros(DType::I64, &[])?;
        let each = self.dims.iter().zip(&self.starts).zip(&self.sizes);
        Ok(each
            .map(|((dim, start), size)| match *dim as i64 == *size {
                true => zero.clone(),
                false => stream.lift(fuseline::fusion::Scalar::new(*start)),
            })
            .collect())
    }

    fn read(&self, base: &Tensor) -> Result<Tensor> {
        let whole = self.reshaped(base)?;
        if self.is_whole() {
            return Ok(whole);
        }
        let starts = self.starts(&base.on_stream())?;
        Ok(whole.dynamic_slice(&starts.iter().collect::<SmallVec<[&Tensor; 8]>>(), &self.sizes)?)
    }

    fn write(&self, base: &Tensor, value: &Tensor) -> Result<Tensor> {
        let sizes: SmallVec<[usize; 8]> = self.sizes.iter().map(|&size| size as usize).collect();
        let value = if value.dims() == sizes.as_slice() { value.clone() } else { value.reshape(&sizes)? };
        if self.is_whole() {
            return Ok(value);
        }
        let starts = self.starts(&base.on_stream())?;
        let starts: SmallVec<[&Tensor; 8]> = starts.iter().collect();
        Ok(self.reshaped(base)?.dynamic_update_slice(&value, &starts)?)
    }
}

impl View<'_> {
    fn elems(&self) -> u64 {
        self.ty.elems().0
    }

    /// Whether the view is in row-major order without gaps.
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let dims = self.ty.sizes().iter().zip(self.strides).rev();
        dims.filter(|(size, _)| **size != 1).all(|(size, stride)| {
            let is_so = *stride == expected;
            expected *= *size as i64;
            is_so
        })
    }

    /// The levels, the largest stride first, if they nest.
    fn levels(&self) -> Option<SmallVec<[Level; 6]>> {
        let dims = self.ty.sizes().iter().zip(self.strides).enumerate();
        let mut levels: SmallVec<[Level; 6]> = dims
            .filter(|(_, (size, stride))| **size > 1 && **stride != 0)
            .map(|(axis, (size, stride))| Level { axis, size: *size as i64, stride: *stride })
            .collect();
        levels.sort_by_key(|level| std::cmp::Reverse(level.stride));
        let mut extent = 1;
        for level in levels.iter().rev() {
            if level.stride < extent {
                return None;
            }
            extent += (level.size - 1) * level.stride;
        }
        Some(levels)
    }
}

/// The storage as a vector of elements of a type.
fn row(base: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut flat = flat(base)?;
    if flat.dtype() == dtype {
        return Ok(flat);
    }
    // A complex number is two adjacent parts.
    if flat.dtype().is_complex() {
        let len = flat.dims()[0];
        let parts = [flat.real()?, flat.imag()?].map(|part| part.reshape(&[len, 1]));
        let [re, im] = parts;
        flat = Tensor::concatenate(&[&re?, &im?], 1)?.reshape(&[2 * len])?;
    }
    if dtype.is_complex() {
        let parts = row(&flat, dtype.part())?;
        let pairs = parts.dims()[0] / 2;
        let parts = parts.narrow(0, 0, 2 * pairs as i64)?.reshape(&[pairs, 2])?;
        let part = |at: i64| -> Result<Tensor> { Ok(parts.narrow(1, at, at + 1)?.reshape(&[pairs])?) };
        return Ok(part(0)?.with_imag(&part(1)?)?);
    }
    if flat.dtype() == dtype {
        return Ok(flat);
    }
    // A bool is a byte in PyTorch and a bit here.
    let flat = if flat.dtype() == DType::Bool { flat.convert(DType::U8)? } else { flat };
    let wanted = if dtype == DType::Bool { DType::U8 } else { dtype };
    let (from, to) = (flat.dtype().size(), wanted.size());
    let cast_to =
        |value: &Tensor| if value.dtype() == wanted { Ok(value.clone()) } else { value.bitcast(wanted) };
    let len = flat.dims()[0];
    let bits = if from < to {
        let per = to / from;
        // A partial element at the end is not visible.
        let whole = flat.narrow(0, 0, (len / per * per) as i64)?;
        cast_to(&whole.reshape(&[len / per, per])?)?
    } else {
        let bits = cast_to(&flat)?;
        if from > to { bits.reshape(&[len * (from / to)])? } else { bits }
    };
    cast(&bits, dtype)
}

/// The last dimension cut or zero-padded to this length.
fn resized(value: &Tensor, length: i64) -> Result<Tensor> {
    let rank = value.rank();
    let has = value.dims()[rank - 1] as i64;
    if has == length {
        return Ok(value.clone());
    }
    if has > length {
        return Ok(value.narrow(rank as i64 - 1, 0, length)?);
    }
    let mut dims = value.dims().to_vec();
    dims[rank - 1] = (length - has) as usize;
    let zeros = value.on_stream().zeros(value.dtype(), &dims)?;
    Ok(Tensor::concatenate(&[value, &zeros], rank as i64 - 1)?)
}

/// The last dimension split into this many blocks of this length.
fn split(value: &Tensor, size: i64, stride: i64) -> Result<Tensor> {
    let mut dims = value.dims().to_vec();
    dims.pop();
    dims.extend([size as usize, stride as usize]);
    Ok(resized(value, size * stride)?.reshape(&dims)?)
}

/// The positions of a view's elements, in the order of the view.
fn places(view: &View<'_>, stream: &Stream) -> Result<Tensor> {
    let dims = view.ty.sizes();
    let mut places = stream.lift(fuseline::fusion::Scalar::new(view.offset)).broadcast_to(dims)?;
    for (axis, &stride) in
        view.strides.iter().enumerate().filter(|(axis, stride)| dims[*axis] > 1 && **stride != 0)
    {
        let along = stream.iota(DType::I64, dims, axis as i64)?;
        places = places
            .add(&along.mul(&stream.lift(fuseline::fusion::Scalar::new(stride)).broadcast_to(dims)?)?)?;
    }
    flat(&places)
}

/// How many elements a view spans from its offset.
fn reach(view: &View<'_>) -> i64 {
    let dims = view.ty.sizes().iter().zip(view.strides);
    1 + dims.map(|(size, stride)| (*size as i64 - 1) * stride).sum::<i64>()
}

fn check(view: &View<'_>, base: &Tensor) -> Result<()> {
    let has = base.shape().elems().0 as i64;
    if view.offset < 0 || view.strides.iter().any(|stride| *stride < 0) || view.offset + reach(view) > has {
        return unsupported(format!(
            "a view spans {} elements from offset {}, but the storage has {has}",
            reach(view),
            view.offset
        ));
    }
    Ok(())
}

/// Reads a storage through a view.
///
/// # Errors
/// If the view reaches beyond the storage, and the engine's errors.
pub fn read(base: &Tensor, view: &View<'_>) -> Result<Tensor> {
    let dims = view.ty.sizes();
    if view.elems() == 0 {
        return Ok(base.on_stream().zeros(view.ty.dtype(), dims)?);
    }
    if view.offset == 0
        && view.is_contiguous()
        && base.dtype() == view.ty.dtype()
        && base.shape().elems().0 == view.elems()
    {
        return Ok(if base.dims() == dims { base.clone() } else { base.reshape(dims)? });
    }
    let base = if base.dtype() == view.ty.dtype() { base.clone() } else { row(base, view.ty.dtype())? };
    check(view, &base)?;
    let Some(levels) = view.levels() else {
        let places = places(view, &base.on_stream())?;
        let base = flat(&base)?;
        return Ok(unchecked(|| base.take(&places, 0))?.reshape(dims)?);
    };
    let value = match Grid::of(&levels, view.offset, base.shape().elems().0 as i64) {
        Some(grid) => grid.read(&base)?,
        None => {
            // Up to the end of the last block, as far as the storage reaches.
            let length = levels.first().map_or(1, |level| level.size * level.stride);
            let mut value = from(&flat(&base)?, view.offset, length)?;
            for (at, level) in levels.iter().enumerate() {
                value = match levels.get(at + 1) {
                    Some(_) => split(&value, level.size, level.stride)?,
                    None if level.stride == 1 => resized(&value, level.size)?,
                    None => {
                        let rank = value.rank() + 1;
                        split(&value, level.size, level.stride)?.narrow(rank as i64 - 1, 0, 1)?
                    }
                };
            }
            value
        }
    };
    if view.is_contiguous() {
        return Ok(if value.dims() == dims { value } else { value.reshape(dims)? });
    }
    let mut value = value;
    // The value has the levels in order; a dimension of size one may remain at the end.
    let sizes: Vec<usize> = levels.iter().map(|level| level.size as usize).collect();
    if value.dims() != sizes {
        value = value.reshape(&sizes)?;
    }
    let mut order: Vec<usize> = (0..levels.len()).collect();
    order.sort_by_key(|&at| levels[at].axis);
    if order.iter().enumerate().any(|(at, from)| at != *from) {
        value = value.transpose(&order.iter().map(|&at| at as i64).collect::<Vec<_>>())?;
    }
    let mut axes: Vec<i64> = levels.iter().map(|level| level.axis as i64).collect();
    axes.sort_unstable();
    let whole: Vec<usize> =
        (0..dims.len()).map(|axis| if axes.contains(&(axis as i64)) { dims[axis] } else { 1 }).collect();
    let is_repeated = whole != dims;
    if is_repeated {
        return Ok(value.broadcast_in_dim(dims, &axes)?);
    }
    Ok(if value.dims() == dims { value } else { value.reshape(dims)? })
}

/// A slice of a vector.
fn from(row: &Tensor, offset: i64, length: i64) -> Result<Tensor> {
    let has = row.dims()[0] as i64;
    let length = length.min(has - offset);
    if length == has {
        return Ok(row.clone());
    }
    let start = row.on_stream().lift(fuseline::fusion::Scalar::new(offset));
    Ok(row.dynamic_slice(&[&start], &[length])?)
}

/// Writes a storage through a view. The value has the view's type.
///
/// # Errors
/// If the view reaches beyond the storage or repeats a dimension, and the engine's errors.
pub fn write(base: &Tensor, view: &View<'_>, value: &Tensor) -> Result<Tensor> {
    if view.elems() == 0 {
        return Ok(base.clone());
    }
    let bytes = |tensor: &Tensor| tensor.shape().elems().0 * tensor.dtype().size() as u64;
    if view.offset == 0 && view.is_contiguous() && bytes(base) == bytes(value) {
        return Ok(value.clone());
    }
    let base = if base.dtype() == view.ty.dtype() { base.clone() } else { row(base, view.ty.dtype())? };
    check(view, &base)?;
    if view.ty.sizes().iter().zip(view.strides).any(|(size, stride)| *size > 1 && *stride == 0) {
        return unsupported("a view with overlapping elements cannot be written to");
    }
    let Some(levels) = view.levels() else {
        let places = places(view, &base.on_stream())?;
        return put_rows(&flat(&base)?, &places, &flat(value)?, |_, new| Ok(new));
    };
    // To the order of the levels, without dimensions of one element.
    let mut order: Vec<i64> = levels.iter().map(|level| level.axis as i64).collect();
    order.extend(
        (0..view.ty.rank() as i64).filter(|axis| levels.iter().all(|level| level.axis as i64 != *axis)),
    );
    let is_moved = order.iter().enumerate().any(|(at, axis)| at as i64 != *axis);
    let sorted = if is_moved { value.transpose(&order)? } else { value.clone() };
    let sizes: Vec<usize> = levels.iter().map(|level| level.size as usize).collect();
    let sorted = if sorted.dims() == sizes { sorted } else { sorted.reshape(&sizes)? };
    let has = base.shape().elems().0 as i64;
    if let Some(grid) = Grid::of(&levels, view.offset, has) {
        return grid.write(&base, &sorted);
    }
    let row = flat(&base)?;
    let length = levels.first().map_or(1, |level| level.size * level.stride).min(has - view.offset);
    let old = from(&row, view.offset, length)?;
    let new = put(&old, &levels, &sorted)?;
    if length == has {
        return Ok(new);
    }
    let start = row.on_stream().lift(fuseline::fusion::Scalar::new(view.offset));
    Ok(row.dynamic_update_slice(&new, &[&start])?)
}

/// The blocks `[.., L]` after a write. `value` has the sizes of the blocks, then those of the
/// levels.
fn put(old: &Tensor, levels: &[Level], value: &Tensor) -> Result<Tensor> {
    let rank = old.rank();
    let last = rank as i64 - 1;
    let length = old.dims()[rank - 1] as i64;
    let Some((level, below)) = levels.split_first() else {
        // The write covers one element, the first of each block.
        let mut dims = value.dims().to_vec();
        dims.push(1);
        let first = value.reshape(&dims)?;
        if length == 1 {
            return Ok(first);
        }
        return Ok(Tensor::concatenate(&[&first, &old.narrow(last, 1, length)?], last)?);
    };
    if below.is_empty() && level.stride == 1 && level.size == length {
        return Ok(value.clone());
    }
    let blocks = split(old, level.size, level.stride)?;
    let blocks = put(&blocks, below, value)?;
    let mut dims = old.dims().to_vec();
    dims[rank - 1] = (level.size * level.stride) as usize;
    let new = blocks.reshape(&dims)?;
    let covered = (level.size * level.stride).min(length);
    let new = resized(&new, covered)?;
    if covered == length {
        return Ok(new);
    }
    Ok(Tensor::concatenate(&[&new, &old.narrow(last, covered, length)?], last)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuseline::{Engine, Shape};

    /// The elements that a view contains if the storage holds the numbers from 0 on.
    fn seen(dims: &[usize], strides: &[i64], offset: i64) -> Vec<i32> {
        let mut all = vec![offset];
        for (size, stride) in dims.iter().zip(strides) {
            all = all.iter().flat_map(|at| (0..*size as i64).map(move |i| at + i * stride)).collect();
        }
        all.into_iter().map(|at| at as i32).collect()
    }

    #[test]
    fn views_see_and_change_what_they_name() -> Result<()> {
        let engine = Engine::reference();
        let numbers: Vec<i32> = (0..60).collect();
        let cases: [(&[usize], &[i64], i64); 17] = [
            (&[60], &[1], 0),
            (&[3, 20], &[20, 1], 0),
            (&[20, 3], &[1, 20], 0),
            (&[2, 3], &[20, 1], 7),
            (&[3, 4, 5], &[20, 5, 1], 0),
            (&[5, 3, 4], &[1, 20, 5], 0),
            (&[3, 2], &[20, 3], 4),
            (&[10], &[6], 1),
            (&[2, 2], &[3, 2], 50),
            (&[], &[], 17),
            (&[1, 1], &[9, 9], 59),
            (&[4, 1, 3], &[2, 7, 20], 1),
            (&[2, 0], &[1, 1], 0),
            (&[6, 6], &[7, 1], 0),
            (&[3, 20], &[1, 3], 0),
            (&[2], &[59], 0),
            (&[2, 3], &[3, 2], 1),
        ];
        for base_dims in [&[60][..], &[3, 20], &[5, 3, 4]] {
            let base = engine.tensor(&numbers, base_dims)?;
            for (dims, strides, offset) in cases {
                let ty = TensorType::new(DType::I32, Shape::try_from(dims).expect("small"));
                let view = View { ty: &ty, strides, offset };
                let names = seen(dims, strides, offset);
                let value = read(&base, &view)?;
                assert_eq!((value.dims(), value.to_vec::<i32>()?), (dims, names.clone()), "{view:?}");
                let new: Vec<i32> = (0..names.len() as i32).map(|i| -1 - i).collect();
                let changed = write(&base, &view, &engine.tensor(&new, dims)?)?;
                let mut wanted = numbers.clone();
                names.iter().zip(&new).for_each(|(at, new)| wanted[*at as usize] = *new);
                assert_eq!(changed.to_vec::<i32>()?, wanted, "{view:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn views_that_overlap_are_read_and_those_that_repeat_are_not_written() -> Result<()> {
        let engine = Engine::reference();
        let base = engine.tensor(&[0i32, 1, 2, 3, 4, 5], &[6])?;
        for (dims, strides) in [([3, 4], [1i64, 1]), ([4, 3], [0, 2]), ([2, 3], [2, 1])] {
            let ty = TensorType::new(DType::I32, Shape::try_from(&dims[..]).expect("small"));
            let view = View { ty: &ty, strides: &strides, offset: 0 };
            let value = read(&base, &view)?;
            assert_eq!(value.to_vec::<i32>()?, seen(&dims, &strides, 0), "{view:?}");
            let is_repeated = strides.contains(&0);
            assert_eq!(write(&base, &view, &value).is_err(), is_repeated, "{view:?}");
        }
        Ok(())
    }

    #[test]
    fn bytes_are_seen_as_other_types() -> Result<()> {
        let engine = Engine::reference();
        let base = engine.tensor(&[1.0f32, -2.0], &[2])?;
        let ty = TensorType::of(DType::U8, &[8]).expect("small");
        let bytes = read(&base, &View { ty: &ty, strides: &[1], offset: 0 })?.to_vec::<u8>()?;
        assert_eq!(bytes, [0, 0, 128, 63, 0, 0, 0, 192]);
        let ty = TensorType::of(DType::I64, &[1]).expect("small");
        let wide = read(&base, &View { ty: &ty, strides: &[1], offset: 0 })?.to_vec::<i64>()?;
        assert_eq!(wide, [i64::from_le_bytes(bytes.try_into().expect("eight"))]);
        let ty = TensorType::of(DType::C64, &[1]).expect("small");
        let pair = read(&base, &View { ty: &ty, strides: &[1], offset: 0 })?;
        assert_eq!(pair.to_vec::<fuseline::Complex<f32>>()?, [fuseline::Complex::new(1.0, -2.0)]);
        let ty = TensorType::of(DType::F32, &[2]).expect("small");
        assert_eq!(read(&pair, &View { ty: &ty, strides: &[1], offset: 0 })?.to_vec::<f32>()?, [1.0, -2.0]);
        Ok(())
    }
}
