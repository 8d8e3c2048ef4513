//! Walks over the elements of dense tensors.

use fuseline_fusion::DType;
use fuseline_fusion::element::{Bits, to_int};
use smallvec::SmallVec;

/// Offsets of the elements of a block, in row-major order of its dimensions. A permuted, sliced,
/// reversed or broadcast tensor is a walk over the elements of the stored tensor.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    dims: SmallVec<[usize; 6]>,
    strides: SmallVec<[isize; 6]>,
    index: SmallVec<[usize; 6]>,
    offset: isize,
    done: bool,
}

impl Walk {
    /// A walk from element `offset` over a block of sizes `dims`, with strides `strides` in
    /// elements.
    pub(super) fn new(
        offset: usize,
        dims: impl IntoIterator<Item = u64>,
        strides: impl IntoIterator<Item = isize>,
    ) -> Walk {
        let dims: SmallVec<[usize; 6]> = dims.into_iter().map(|dim| dim as usize).collect();
        let strides: SmallVec<[isize; 6]> = strides.into_iter().collect();
        debug_assert_eq!(dims.len(), strides.len(), "one stride per dimension");
        let done = dims.contains(&0);
        Walk { index: SmallVec::from_elem(0, dims.len()), dims, strides, offset: offset as isize, done }
    }

    /// Number of elements of a walk that has not started.
    pub(super) fn count_all(&self) -> usize {
        self.dims.iter().product()
    }

    /// Splits a walk that has not started into rows: their starts, their length, and their stride.
    pub(super) fn rows(mut self) -> (Walk, usize, isize) {
        let (len, step) = (self.dims.pop(), self.strides.pop());
        self.index.pop();
        (self, len.unwrap_or(1), step.unwrap_or(1))
    }
}

impl Iterator for Walk {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.done {
            return None;
        }
        let here = self.offset as usize;
        for axis in (0..self.dims.len()).rev() {
            self.index[axis] += 1;
            self.offset += self.strides[axis];
            if self.index[axis] < self.dims[axis] {
                return Some(here);
            }
            self.offset -= self.strides[axis] * self.dims[axis] as isize;
            self.index[axis] = 0;
        }
        self.done = true;
        Some(here)
    }
}

/// The indices of a block, in row-major order.
#[derive(Debug)]
pub(super) struct Indices {
    dims: SmallVec<[u64; 6]>,
    index: SmallVec<[u64; 6]>,
    started: bool,
}

impl Indices {
    /// The indices below the given sizes.
    pub(super) fn below(dims: &[u64]) -> Indices {
        Indices {
            dims: SmallVec::from_slice(dims),
            index: SmallVec::from_elem(0, dims.len()),
            started: false,
        }
    }

    /// The next index. Not an `Iterator`: it lends the index, because a loop over elements must not
    /// allocate.
    pub(super) fn advance(&mut self) -> Option<&[u64]> {
        if !self.started {
            self.started = true;
            return (!self.dims.contains(&0)).then_some(self.index.as_slice());
        }
        for axis in (0..self.dims.len()).rev() {
            self.index[axis] += 1;
            if self.index[axis] < self.dims[axis] {
                return Some(&self.index);
            }
            self.index[axis] = 0;
        }
        None
    }
}

/// An index component, clamped to `0..=last`.
pub(super) fn clamp_index(dtype: DType, bits: Bits, last: u64) -> u64 {
    to_int(dtype, bits).clamp(0, last.into()) as u64
}

/// Row-major strides, signed so that they can be reversed.
pub(super) fn strides(dims: &[u64]) -> SmallVec<[isize; 6]> {
    let mut strides = SmallVec::from_elem(1, dims.len());
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis].max(1) as isize;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_cover_blocks_in_row_major_order() {
        let walk = |offset, dims: &[u64], strides: &[isize]| {
            Walk::new(offset, dims.iter().copied(), strides.iter().copied()).collect::<Vec<_>>()
        };
        assert_eq!(walk(0, &[2, 3], &[3, 1]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(walk(0, &[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5], "transposed");
        assert_eq!(walk(5, &[2, 3], &[-3, -1]), [5, 4, 3, 2, 1, 0], "reversed");
        assert_eq!(walk(1, &[2, 2], &[0, 1]), [1, 2, 1, 2], "broadcast");
        assert_eq!(walk(7, &[], &[]), [7], "a scalar");
        assert!(walk(0, &[2, 0], &[0, 1]).is_empty());
    }

    #[test]
    fn indices_cover_blocks_in_row_major_order() {
        let collect = |dims: &[u64]| {
            let mut indices = Indices::below(dims);
            let mut found = Vec::new();
            while let Some(index) = indices.advance() {
                found.push(index.to_vec());
            }
            found
        };
        assert_eq!(collect(&[2, 2]), [[0, 0], [0, 1], [1, 0], [1, 1]]);
        assert_eq!(collect(&[]), [[0u64; 0]]);
        assert!(collect(&[3, 0]).is_empty());
    }
}
