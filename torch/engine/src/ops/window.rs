//! A window that moves over the last dimensions of a tensor, split into its places.
//!
//! For each place in the window, the elements under it at all window positions are a strided slice
//! of the padded tensor. A reduction over windows is therefore elementwise over these slices. Its
//! gradient puts slices back, with gaps between their elements.

use fuseline::Tensor;

use crate::call::Result;

/// The largest number of places of a window that is split.
pub(crate) const MAX_PLACES: i64 = 64;

/// A window and the sizes that it moves over, one entry for each of the last dimensions.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) size: Vec<i64>,
    pub(crate) stride: Vec<i64>,
    /// Padding before the first element. After the last, padding extends as far as the windows
    /// reach.
    pub(crate) padding: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) input: Vec<i64>,
    pub(crate) output: Vec<i64>,
}

impl Window {
    /// The places in row-major order.
    pub(crate) fn places(&self) -> Vec<Vec<i64>> {
        let mut places = vec![Vec::new()];
        for &size in &self.size {
            places =
                places.iter().flat_map(|place| (0..size).map(|at| [&place[..], &[at]].concat())).collect();
        }
        places
    }

    /// The extent of the elements that the windows see at one place.
    fn span(&self, axis: usize) -> i64 {
        (self.output[axis] - 1) * self.stride[axis] + 1
    }

    /// One number per dimension of a tensor; `others` for dimensions that the window does not move
    /// over.
    fn for_all(&self, rank: usize, others: i64, each: impl Fn(usize) -> i64) -> Vec<i64> {
        let leading = rank - self.size.len();
        (0..rank).map(|axis| if axis < leading { others } else { each(axis - leading) }).collect()
    }

    /// The padded tensor, cropped to what the windows reach.
    pub(crate) fn padded(&self, x: &Tensor, padding: &Tensor) -> Result<Tensor> {
        let low = self.for_all(x.rank(), 0, |axis| self.padding[axis]);
        let high = self.for_all(x.rank(), 0, |axis| {
            let reach = self.span(axis) + (self.size[axis] - 1) * self.dilation[axis];
            reach - self.padding[axis] - self.input[axis]
        });
        Ok(x.pad(padding, &low, &high, &vec![0; x.rank()])?)
    }

    /// The elements that all windows see at a place.
    pub(crate) fn seen(&self, padded: &Tensor, place: &[i64]) -> Result<Tensor> {
        let (rank, dims) = (padded.rank(), padded.dims());
        let leading = rank - place.len();
        let start = |axis: usize| place[axis] * self.dilation[axis];
        let starts = self.for_all(rank, 0, start);
        let mut limits = self.for_all(rank, 0, |axis| start(axis) + self.span(axis));
        limits[..leading].iter_mut().zip(dims).for_each(|(limit, &dim)| *limit = dim as i64);
        Ok(padded.slice(&starts, &limits, &self.for_all(rank, 1, |axis| self.stride[axis]))?)
    }

    /// The inverse of `seen`: the elements at their positions in the tensor, and zeros elsewhere.
    pub(crate) fn put_back(&self, seen: &Tensor, place: &[i64], zero: &Tensor) -> Result<Tensor> {
        let first = |axis: usize| place[axis] * self.dilation[axis] - self.padding[axis];
        let low = self.for_all(seen.rank(), 0, first);
        let high = self.for_all(seen.rank(), 0, |axis| self.input[axis] - first(axis) - self.span(axis));
        Ok(seen.pad(zero, &low, &high, &self.for_all(seen.rank(), 0, |axis| self.stride[axis] - 1))?)
    }
}
