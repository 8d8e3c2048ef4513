//! Resizing of images.

use fuseline_runtime::Result;
use fuseline_runtime::internals::bug;

use super::pool::along;
use super::{Layout, unfit};
use crate::handle::Tensor;
use crate::tensor::dims::literal;
use crate::tensor::plain;

/// The interpolation method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The element at `floor(i * from / to)`: PyTorch's `nearest`.
    #[default]
    Nearest,
    /// The element at `floor((i + 1/2) * from / to)`: PyTorch's `nearest-exact`, Pillow's nearest.
    NearestExact,
    /// Linear interpolation between the two neighbours: bilinear in two dimensions, trilinear in
    /// three.
    Linear,
    /// Cubic convolution of the four neighbours (Keys, ("Cubic convolution interpolation for
    /// digital image processing", 1981), with `a = -0.75`: PyTorch's `bicubic`.
    Cubic,
}

/// Settings of [`resize`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resize {
    /// The interpolation method.
    pub method: Method,
    /// Aligns the centres of the corner elements instead of the corners. Not for
    /// [`Method::Nearest`] and [`Method::NearestExact`].
    pub align_corners: bool,
    /// Where the features are.
    pub layout: Layout,
}

/// For each element of the result along one dimension, the index of one input element and its
/// weight.
pub(super) struct Tap {
    pub(super) places: Vec<i32>,
    pub(super) weights: Vec<f64>,
}

/// The taps along a dimension that goes from `from` to `to` elements.
pub(super) fn taps(settings: Resize, from: usize, to: usize) -> Vec<Tap> {
    let last = from as i64 - 1;
    let tap = |place: &dyn Fn(usize) -> (i64, f64)| {
        let (places, weights) =
            (0..to).map(place).map(|(at, weight)| (at.clamp(0, last) as i32, weight)).unzip();
        Tap { places, weights }
    };
    // The position of element `i` of the result in the input, as integer and fraction.
    let source = |i: usize, clamped: bool| {
        let at = match (settings.align_corners, to) {
            (true, 1) => 0.0,
            (true, _) => i as f64 * last as f64 / (to - 1) as f64,
            (false, _) => (i as f64 + 0.5) * from as f64 / to as f64 - 0.5,
        };
        let at = if clamped { at.max(0.0) } else { at };
        (at.floor() as i64, at - at.floor())
    };
    let cubic = |distance: f64| {
        let (a, x) = (-0.75, distance);
        if x <= 1.0 {
            ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        } else {
            ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
        }
    };
    match settings.method {
        Method::Nearest => vec![tap(&|i| ((i * from / to) as i64, 1.0))],
        Method::NearestExact => vec![tap(&|i| (((2 * i + 1) * from / (2 * to)) as i64, 1.0))],
        Method::Linear => vec![
            tap(&|i| (source(i, true).0, 1.0 - source(i, true).1)),
            tap(&|i| (source(i, true).0 + 1, source(i, true).1)),
        ],
        Method::Cubic => (-1..=2)
            .map(|offset| {
                tap(&|i| {
                    let (at, rest) = source(i, false);
                    (at + offset, cubic((offset as f64 - rest).abs()))
                })
            })
            .collect(),
    }
}

/// Resizes the spatial dimensions of a tensor to `sizes`. The conventions are those of PyTorch's
/// `interpolate` with a size given; elements beyond the edges are those at the edges.
///
/// Resizes one dimension after the other, with one gather and one product for each neighbour.
/// Floats below 32 bits are computed in `f32`.
///
/// # Errors
/// When there is not one size per spatial dimension, a dimension is empty, or the elements are not
/// floats and the method is linear or cubic.
#[track_caller]
pub fn resize(x: &Tensor, sizes: &[usize], settings: Resize) -> Result<Tensor> {
    if x.rank() != sizes.len() + 2 || sizes.contains(&0) || x.dims().contains(&0) {
        let given = format!("the tensor is {} and the sizes {sizes:?}", x.ty());
        let rule = "the tensor needs batch, feature and spatial dimensions, none of them empty, \
                    and the sizes one entry per spatial dimension";
        return Err(unfit("resize", given, rule));
    }
    let nearest = matches!(settings.method, Method::Nearest | Method::NearestExact);
    let mut result = if nearest { x.clone() } else { x.widened()? };
    for (axis, &to) in (settings.layout.first_spatial()..).zip(sizes) {
        let from = result.dims()[axis];
        if from == to {
            continue;
        }
        let mut sum: Option<Tensor> = None;
        for tap in taps(settings, from, to) {
            let places = plain(&result, &literal(&[to], &tap.places)?)?;
            let mut part = result.take_inside(&places, axis as i64)?;
            if !nearest {
                part = part.mul(&along(&part, axis, &tap.weights)?)?;
            }
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        result = sum.ok_or_else(|| bug!("every method has a tap"))?;
    }
    if nearest { Ok(result) } else { result.narrowed(x.dtype()) }
}
