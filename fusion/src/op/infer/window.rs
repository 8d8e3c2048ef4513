//! Sliding windows, shared by convolution, `reduce_window` and `select_and_scatter`.

use smallvec::SmallVec;

use super::dim;
use crate::error::OpError;
use crate::op::def::Call;

/// One dimension of a window that slides over a padded, dilated base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowDim {
    /// Elements in the window.
    pub size: u64,
    /// Distance between two positions of the window.
    pub stride: u64,
    /// Padding before the first element; negative removes elements.
    pub low: i64,
    /// Padding after the last element; negative removes elements.
    pub high: i64,
    /// Distance between neighbours of the base after dilation.
    pub base_dilation: u64,
    /// Distance between neighbours of the window after dilation.
    pub window_dilation: u64,
}

/// The attributes of an op that describe a window, with one entry per dimension.
#[derive(Clone, Copy)]
pub(crate) struct WindowAttrs<'a> {
    pub(crate) sizes: &'a [i64],
    pub(crate) strides: &'a [i64],
    pub(crate) base_dilations: Option<&'a [i64]>,
    pub(crate) window_dilations: Option<&'a [i64]>,
    pub(crate) padding: &'a [(i64, i64)],
}

/// Checked window dimensions.
pub type Window = SmallVec<[WindowDim; 6]>;

/// Checks the window of a call over `rank` dimensions.
pub(crate) fn window(call: &Call<'_>, rank: usize, attrs: WindowAttrs<'_>) -> Result<Window, OpError> {
    let positive = |name: &str, list: &[i64]| {
        call.list_len(name, list.len(), rank, "window dimension")?;
        match list.iter().position(|&entry| entry < 1) {
            None => Ok(()),
            Some(axis) => Err(call.attr_error(
                format!("{name} of dimension {axis} is {}", list[axis]),
                "it must be at least 1",
            )),
        }
    };
    positive("window_dimensions", attrs.sizes)?;
    positive("window_strides", attrs.strides)?;
    if let Some(list) = attrs.base_dilations {
        positive("base_dilations", list)?;
    }
    if let Some(list) = attrs.window_dilations {
        positive("window_dilations", list)?;
    }
    call.list_len("padding", attrs.padding.len(), rank, "window dimension")?;
    let at = |list: Option<&[i64]>, axis: usize| list.map_or(1, |list| list[axis] as u64);
    Ok((0..rank)
        .map(|axis| WindowDim {
            size: attrs.sizes[axis] as u64,
            stride: attrs.strides[axis] as u64,
            low: attrs.padding[axis].0,
            high: attrs.padding[axis].1,
            base_dilation: at(attrs.base_dilations, axis),
            window_dilation: at(attrs.window_dilations, axis),
        })
        .collect())
}

/// Length of `size` elements that are `dilation` apart.
pub(crate) fn dilated(size: u64, dilation: u64) -> i128 {
    if size == 0 { 0 } else { (i128::from(size) - 1) * i128::from(dilation) + 1 }
}

impl WindowDim {
    /// Number of positions of the window over a base of `base` elements.
    pub(crate) fn positions(&self, call: &Call<'_>, axis: usize, base: u64) -> Result<u64, OpError> {
        let padded = dilated(base, self.base_dilation) + i128::from(self.low) + i128::from(self.high);
        dim(call, &format!("dimension {axis} of the padded operand"), padded)?;
        let window = dilated(self.size, self.window_dilation);
        if padded == 0 || window > padded {
            return Ok(0);
        }
        dim(call, &format!("dimension {axis} of the result"), (padded - window) / i128::from(self.stride) + 1)
    }

    /// The base element at `offset` in the window at `position`; `None` for padding.
    #[inline]
    #[must_use]
    pub fn element(&self, position: u64, offset: u64, base: u64) -> Option<usize> {
        let place = i128::from(position) * i128::from(self.stride)
            + i128::from(offset) * i128::from(self.window_dilation)
            - i128::from(self.low);
        // 128-bit division is slow and rarely needed.
        let (index, rest) = match u64::try_from(place) {
            Ok(place) if self.base_dilation == 1 => (place, 0),
            Ok(place) => (place / self.base_dilation, place % self.base_dilation),
            Err(_) if place < 0 => return None,
            Err(_) => {
                let dilation = i128::from(self.base_dilation);
                (u64::try_from(place / dilation).ok()?, u64::try_from(place % dilation).ok()?)
            }
        };
        (rest == 0 && index < base).then_some(index as usize)
    }
}
