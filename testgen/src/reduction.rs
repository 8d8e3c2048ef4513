//! Ops that combine many elements into one with a body.

use std::sync::Arc;

use fuseline_fusion::element::{Store, float_from_int, from_int, joined};
use fuseline_fusion::op::attrs;
use fuseline_fusion::{AttrValue, Attrs, DType, TensorType};

use super::{Domain, Entropy as _, Sample, SampleOperand, Sampler, Seeded, axes};

/// One to three inputs of one shape with at least `min_rank` dimensions, and their element types.
pub(super) fn inputs(
    sampler: &mut Sampler<'_>,
    min_rank: u32,
) -> Option<(Vec<SampleOperand>, Vec<DType>, TensorType)> {
    let (first, ty) = sampler.operand(sampler.row_dtypes(), min_rank)?;
    let (mut operands, mut dtypes) = (vec![first], vec![ty.dtype()]);
    for _ in 0..sampler.below(4).saturating_sub(1) {
        let dtype = sampler.dtype_of(sampler.row_dtypes())?;
        operands.push(sampler.operand_of(dtype, ty.dims())?);
        dtypes.push(dtype);
    }
    Some((operands, dtypes, ty))
}

pub(crate) fn reduce(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (mut operands, dtypes, ty) = inputs(sampler, 0)?;
    // The simplest choice is all dimensions; none is the least likely.
    let count = ty.rank() - sampler.below(ty.rank() + 1);
    let dropped = sampler.permutation(ty.rank())[..count].to_vec();
    let combiner = sampler.combiner(&dtypes)?;
    operands.extend(combiner.inits);
    Some(Sample { operands, attrs: attrs::dimensions(&axes(&dropped)), bodies: vec![combiner.body] })
}

/// A window over one dimension.
struct Dim {
    size: i64,
    stride: i64,
    base_dilation: i64,
    window_dilation: i64,
    padding: (i64, i64),
}

/// Distance from the first to the last of `count` elements that are `dilation` apart, plus one.
fn spread(count: i64, dilation: i64) -> i64 {
    if count == 0 { 0 } else { (count - 1) * dilation + 1 }
}

impl Dim {
    fn padded(&self, base: u64) -> i64 {
        spread(base as i64, self.base_dilation) + self.padding.0 + self.padding.1
    }

    /// Number of positions.
    fn positions(&self, base: u64) -> u64 {
        let (padded, window) = (self.padded(base), spread(self.size, self.window_dilation));
        if padded == 0 || window > padded { 0 } else { ((padded - window) / self.stride + 1) as u64 }
    }
}

/// A window over each dimension of a base; `dilated` allows dilations.
fn window(sampler: &mut Sampler<'_>, base: &[u64], dilated: bool) -> Option<Vec<Dim>> {
    base.iter()
        .map(|&size| {
            let dilations: &[i64] = if dilated { &[1, 1, 2, 3] } else { &[1] };
            let mut dim = Dim {
                size: sampler.one_of(&[1, 2, 3])?,
                stride: sampler.one_of(&[1, 2, 3])?,
                base_dilation: sampler.one_of(dilations)?,
                window_dilation: sampler.one_of(dilations)?,
                padding: (sampler.one_of(&[0, 1, 2, -1])?, sampler.one_of(&[0, 1, 2, -1])?),
            };
            if !dilated {
                // A window that selects needs an element to select.
                let most = if size == 0 { 0 } else { dim.size - 1 };
                dim.padding = (dim.padding.0.min(most), dim.padding.1.min(most));
            }
            if dim.padded(size) < 0 {
                dim.padding = (0, 0);
            }
            Some(dim)
        })
        .collect()
}

/// One list of a window's attributes.
fn list(window: &[Dim], entry: fn(&Dim) -> i64) -> Vec<i64> {
    window.iter().map(entry).collect()
}

pub(crate) fn reduce_window(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (mut operands, dtypes, ty) = inputs(sampler, 0)?;
    let window = window(sampler, ty.dims(), true)?;
    let combiner = sampler.combiner(&dtypes)?;
    operands.extend(combiner.inits);
    let padding: Vec<(i64, i64)> = window.iter().map(|dim| dim.padding).collect();
    let attrs = Attrs::from([
        AttrValue::from(list(&window, |dim| dim.size).as_slice()),
        AttrValue::from(list(&window, |dim| dim.stride).as_slice()),
        AttrValue::from(list(&window, |dim| dim.base_dilation).as_slice()),
        AttrValue::from(list(&window, |dim| dim.window_dilation).as_slice()),
        AttrValue::from(padding.as_slice()),
    ]);
    Some(Sample { operands, attrs, bodies: vec![combiner.body] })
}

/// Data without equal elements (except for `bool`), so that a window has a unique maximum and
/// minimum.
fn distinct(sampler: &mut Sampler<'_>, ty: &TensorType) -> SampleOperand {
    let count = ty.elems().0;
    let mut random = Seeded::new(sampler.below(1 << 16) as u64);
    let mut values: Vec<u64> = (0..count).collect();
    for place in (1..values.len()).rev() {
        values.swap(place, random.draw(place as u32 + 1) as usize);
    }
    let bits = values.into_iter().map(|value| match ty.dtype() {
        dtype if dtype.is_float() => float_from_int(dtype, value.into()),
        dtype if dtype.is_complex() => joined(dtype, float_from_int(dtype.part(), value.into()), 0),
        dtype => from_int(dtype, value.into()),
    });
    SampleOperand::Given(Arc::new(Store::collect(ty.clone(), bits).finish()))
}

pub(crate) fn select_and_scatter(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (mut operand, ty) = sampler.operand(sampler.row_dtypes(), 1)?;
    if sampler.portable() && sampler.rarely(2) {
        operand = distinct(sampler, &ty);
    }
    let window = window(sampler, ty.dims(), false)?;
    let positions: Vec<u64> = window.iter().zip(ty.dims()).map(|(dim, &size)| dim.positions(size)).collect();
    let source = sampler.operand_of(ty.dtype(), &positions)?;
    let select = sampler.selector(ty.dtype())?;
    let scatter = sampler.combiner(&[ty.dtype()])?;
    let init = scatter
        .inits
        .into_iter()
        .next()
        .unwrap_or(SampleOperand::Fresh(TensorType::scalar(ty.dtype()), Domain::Any));
    let padding: Vec<(i64, i64)> = window.iter().map(|dim| dim.padding).collect();
    let attrs =
        attrs::select_and_scatter(&list(&window, |dim| dim.size), &list(&window, |dim| dim.stride), &padding);
    Some(Sample { operands: vec![operand, source, init], attrs, bodies: vec![select, scatter.body] })
}
