//! Rules of spatial functions: convolution, pooling, resizing.

use fuseline_fusion::op::attrs::{ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
use fuseline_fusion::{DType, OpCode};
use fuseline_runtime::Result;
use fuseline_runtime::internals::bug;

use crate::handle::Tensor;
use crate::nn::pool::{Windows, along, check_sizes, divided, positions, stretches};
use crate::nn::resize::{Tap, taps};
use crate::nn::{self, Layout, Pool, Resize, unfit};
use crate::tensor::dims::{literal, type_of};
use crate::tensor::{constant_like, plain};

/// Fails if the shape of the gradient is not that of the result.
#[track_caller]
fn check_gradient(op: &'static str, gradient: &Tensor, result: &[usize]) -> Result<()> {
    if gradient.dims() == result {
        return Ok(());
    }
    let given = format!("the gradient is {}", gradient.ty());
    Err(unfit(op, given, format!("it must have the sizes of the result, {result:?}")))
}

// ----- pools -----

/// Of [`nn::max_pool`], to its operand: the gradient of each window goes to its largest element, or
/// the first of several. If there is a NaN under the window, its gradient goes to any of the
/// elements or to none.
///
/// One `select_and_scatter`. That op does not support dilated windows; for these, a few ops for
/// each element of the window.
///
/// # Errors
/// When the window does not fit the operand, or the gradient has other sizes than the result.
#[track_caller]
pub fn max_pool(x: &Tensor, pool: &Pool, gradient: &Tensor) -> Result<Tensor> {
    let windows = Windows::new(x.rank(), pool, &positions("max_pool", x.ty(), pool)?);
    check_gradient("max_pool", gradient, &windows.result(x.dims()))?;
    let (x_wide, wide) = (x.widened()?, gradient.widened()?);
    let result = if windows.dilations.iter().all(|&dilation| dilation == 1) {
        x_wide.max_pool_gradient(&wide, &windows.sizes, &windows.strides, &windows.padding)?
    } else {
        scattered_maxima(&x_wide, &nn::max_pool(&x_wide, pool)?, &windows, &wide)?
    };
    result.narrowed(x.dtype())
}

/// As `select_and_scatter`, one element of the window after the other: the gradient where this
/// element is the first largest one, moved back to the element's position.
#[track_caller]
fn scattered_maxima(x: &Tensor, largest: &Tensor, windows: &Windows, gradient: &Tensor) -> Result<Tensor> {
    let zero = constant_like(x, 0.0)?;
    let none = vec![0; x.rank()];
    let (low, high): (Vec<i64>, Vec<i64>) = windows.padding.iter().copied().unzip();
    // NaN is unequal to everything, so padding is never the largest.
    let padded = x.pad(&constant_like(x, f64::NAN)?, &low, &high, &none)?;
    let (mut taken, mut sum): (Option<Tensor>, Option<Tensor>) = (None, None);
    let mut offset = none.clone();
    loop {
        let first: Vec<i64> =
            offset.iter().zip(&windows.dilations).map(|(place, step)| place * step).collect();
        let spread = |axis: usize| (gradient.dims()[axis] as i64 - 1) * windows.strides[axis] + 1;
        let limits: Vec<i64> = first.iter().enumerate().map(|(axis, first)| first + spread(axis)).collect();
        let mut hit = padded.slice(&first, &limits, &windows.strides)?.equal(largest)?;
        taken = Some(match taken {
            Some(taken) => {
                hit = hit.and(&taken.not()?)?;
                taken.or(&hit)?
            }
            None => hit.clone(),
        });
        let before: Vec<i64> = first.iter().zip(&low).map(|(first, low)| first - low).collect();
        let after: Vec<i64> =
            (0..x.rank()).map(|axis| x.dims()[axis] as i64 - before[axis] - spread(axis)).collect();
        let between: Vec<i64> = windows.strides.iter().map(|stride| stride - 1).collect();
        let part = hit.select(gradient, &zero)?.pad(&zero, &before, &after, &between)?;
        let all = match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        };
        // The next element, row-major.
        let Some(axis) = (0..x.rank()).rev().find(|&axis| offset[axis] + 1 < windows.sizes[axis]) else {
            return Ok(all);
        };
        sum = Some(all);
        offset[axis] += 1;
        offset[axis + 1..].fill(0);
    }
}

/// Of [`nn::avg_pool`], to its operand, which has sizes `dims`: each element gets its share of
/// every window that covers it. The gradient is dilated by the stride and summed over a window that
/// moves by one.
///
/// # Errors
/// When the window does not fit the operand, or the gradient has other sizes than the result.
#[track_caller]
pub fn avg_pool(dims: &[usize], pool: &Pool, gradient: &Tensor) -> Result<Tensor> {
    let positions = positions("avg_pool", &type_of(gradient.dtype(), dims)?, pool)?;
    let windows = Windows::new(dims.len(), pool, &positions);
    check_gradient("avg_pool", gradient, &windows.result(dims))?;
    let shares = divided(&gradient.widened()?, pool, &positions)?;
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for (axis, (&from, &to)) in dims.iter().zip(gradient.dims()).enumerate() {
        let before = windows.span(axis) - 1 - windows.padding[axis].0;
        let spread = (to as i64 - 1) * windows.strides[axis] + 1;
        low.push(before);
        high.push(from as i64 + windows.span(axis) - 1 - spread - before);
    }
    let between: Vec<i64> = windows.strides.iter().map(|stride| stride - 1).collect();
    let spread = shares.pad(&constant_like(&shares, 0.0)?, &low, &high, &between)?;
    let (ones, none) = (vec![1; dims.len()], vec![(0, 0); dims.len()]);
    let sum = spread.reduce_dilated_window(OpCode::Add, &windows.sizes, &ones, &windows.dilations, &none)?;
    sum.narrowed(gradient.dtype())
}

/// Of [`nn::adaptive_avg_pool`], to its operand, which has sizes `dims`. One product for each
/// spatial dimension whose size changed.
///
/// # Errors
/// When the sizes do not fit each other.
#[track_caller]
pub fn adaptive_avg_pool(dims: &[usize], layout: Layout, gradient: &Tensor) -> Result<Tensor> {
    let mut result = gradient.widened()?;
    for axis in changed("adaptive_avg_pool", dims, layout, gradient)? {
        let matrix = means(&result, dims[axis], gradient.dims()[axis])?;
        result = turned_back(&result, axis, &matrix)?;
    }
    result.narrowed(gradient.dtype())
}

// ----- images of another size -----

/// Of [`nn::resize`], to its operand, which has sizes `dims`. One product for each dimension whose
/// size changed.
///
/// # Errors
/// When the sizes do not fit each other.
#[track_caller]
pub fn resize(dims: &[usize], settings: Resize, gradient: &Tensor) -> Result<Tensor> {
    let mut result = gradient.widened()?;
    for axis in changed("resize", dims, settings.layout, gradient)? {
        let (from, to) = (dims[axis], gradient.dims()[axis]);
        let matrix = weights(&result, &taps(settings, from, to), from)?;
        result = turned_back(&result, axis, &matrix)?;
    }
    result.narrowed(gradient.dtype())
}

/// The dimensions of space in which sizes differ; batch and features must not.
#[track_caller]
fn changed(op: &'static str, dims: &[usize], layout: Layout, gradient: &Tensor) -> Result<Vec<usize>> {
    let space = layout.first_spatial()..(layout.first_spatial() + gradient.rank().saturating_sub(2));
    check_sizes(op, gradient, dims.get(space.clone()).unwrap_or_default())?;
    let fits = |axis: &usize| space.contains(axis) || dims[*axis] == gradient.dims()[*axis];
    if dims.len() != gradient.rank() || !(0..dims.len()).all(|axis| fits(&axis)) {
        let given = format!("the operand has sizes {dims:?} and the gradient is {}", gradient.ty());
        return Err(unfit(op, given, "they may differ only in the spatial dimensions"));
    }
    Ok(space.filter(|&axis| dims[axis] != gradient.dims()[axis]).collect())
}

/// The matrix of a resize along one dimension, `[to, from]`, from its taps.
#[track_caller]
fn weights(like: &Tensor, taps: &[Tap], from: usize) -> Result<Tensor> {
    let mut matrix: Option<Tensor> = None;
    for tap in taps {
        let places = plain(like, &literal(&[tap.places.len()], &tap.places)?)?;
        let hot = places.one_hot_or_none(from, like.dtype())?;
        let part = hot.mul(&along(&hot, 0, &tap.weights)?)?;
        matrix = Some(match matrix {
            Some(matrix) => matrix.add(&part)?,
            None => part,
        });
    }
    matrix.ok_or_else(|| bug!("every method has a tap"))
}

/// The matrix of the means of `count` equal stretches of `length` elements, `[count, length]`.
#[track_caller]
fn means(like: &Tensor, length: usize, count: usize) -> Result<Tensor> {
    let stretches = stretches(length, count);
    let place = like.on_stream().iota(DType::I32, &[1, length], 1)?;
    let column = |numbers: Vec<i32>| literal(&[count, 1], &numbers);
    let first = plain(like, &column(stretches.iter().map(|&(first, _)| first as i32).collect())?)?;
    let end = plain(like, &column(stretches.iter().map(|&(_, end)| end as i32).collect())?)?;
    let inside = place.greater_equal(&first)?.and(&place.less(&end)?)?.convert(like.dtype())?;
    let shares: Vec<f64> = stretches.iter().map(|&(first, end)| 1.0 / (end - first) as f64).collect();
    inside.mul(&along(&inside, 0, &shares)?)
}

/// The gradient along dimension `axis` times a matrix `[to, from]`.
#[track_caller]
fn turned_back(gradient: &Tensor, axis: usize, matrix: &Tensor) -> Result<Tensor> {
    let numbers = DotDimensionNumbers {
        lhs_contracting: &[axis as i64],
        rhs_contracting: &[0],
        ..DotDimensionNumbers::default()
    };
    let last = gradient.rank() as i64 - 1;
    let axis = axis as i64;
    let order: Vec<i64> = (0..axis).chain([last]).chain(axis..last).collect();
    gradient.dot_general(matrix, numbers)?.transpose(&order)
}

// ----- convolutions -----

/// The settings of a spatial convolution, for its rules: `[batch, space..., features]` with a
/// kernel `[space..., input features of a group, output features]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Steps of the window, one per spatial dimension.
    pub stride: Vec<i64>,
    /// Padding at both edges.
    pub padding: Vec<(i64, i64)>,
    /// Distance between neighbours in the kernel.
    pub dilation: Vec<i64>,
    /// Number of groups that the features are split into. With one group per input feature the
    /// convolution is depthwise.
    pub groups: i64,
}

impl Convolution {
    /// Steps of 1, no padding, no dilation, one group.
    #[must_use]
    pub fn new(spatial: usize) -> Convolution {
        let ones = || vec![1; spatial];
        Convolution { stride: ones(), padding: vec![(0, 0); spatial], dilation: ones(), groups: 1 }
    }

    /// The convolution itself.
    ///
    /// # Errors
    /// When the sizes do not fit.
    #[track_caller]
    pub fn apply(&self, x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let options = ConvOptions {
            window_strides: self.stride.clone(),
            padding: self.padding.clone(),
            rhs_dilation: self.dilation.clone(),
            feature_group_count: self.groups,
            ..ConvOptions::new(self.stride.len())
        };
        x.convolution(kernel, &ConvDimensionNumbers::channels_last(self.stride.len()), &options)
    }

    /// Number of elements that the dilated kernel spans, and that the gradient spans when it is
    /// dilated by the stride.
    fn spans(&self, axis: usize, kernel: usize, gradient: usize) -> (i64, i64) {
        let span = |size: usize, step: i64| (size as i64 - 1) * step + 1;
        (span(kernel, self.dilation[axis]), span(gradient, self.stride[axis]))
    }

    #[track_caller]
    fn check(&self, ranks: [usize; 2]) -> Result<()> {
        let space = self.stride.len();
        if ranks != [space + 2; 2] || self.padding.len() != space || self.dilation.len() != space {
            let given = format!("tensors of rank {ranks:?} and {self:?}");
            return Err(unfit("convolution", given, "there must be one entry per spatial dimension"));
        }
        Ok(())
    }

    /// Of the convolution, to its input, which has sizes `input`: the gradient, dilated by the
    /// stride, convolved with the reversed kernel, whose input and output features are exchanged.
    ///
    /// Dimension numbers and a reversed window could express this without the two ops. But XLA's
    /// CPU backend does not use its fast convolutions for them, which takes six times as long.
    ///
    /// # Errors
    /// When the sizes do not fit.
    #[track_caller]
    pub fn input_gradient(&self, input: &[usize], kernel: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        self.check([input.len(), kernel.rank()])?;
        self.check([gradient.rank(), kernel.rank()])?;
        let space = self.stride.len();
        let padding = (0..space).map(|i| {
            let (window, spread) = self.spans(i, kernel.dims()[i], gradient.dims()[i + 1]);
            let low = window - 1 - self.padding[i].0;
            (low, input[i + 1] as i64 + window - 1 - spread - low)
        });
        let options = ConvOptions {
            lhs_dilation: self.stride.clone(),
            rhs_dilation: self.dilation.clone(),
            padding: padding.collect(),
            feature_group_count: self.groups,
            ..ConvOptions::new(space)
        };
        let over: Vec<i64> = (0..space as i64).collect();
        let turned = self.swapped(&kernel.reverse(&over)?)?;
        gradient.convolution(&turned, &ConvDimensionNumbers::channels_last(space), &options)
    }

    /// A kernel with input and output features exchanged within each group:
    /// `[space..., output features of a group, input features]`.
    #[track_caller]
    fn swapped(&self, kernel: &Tensor) -> Result<Tensor> {
        let space = kernel.rank() - 2;
        let over = 0..space as i64;
        let last = space as i64;
        if self.groups == 1 {
            return kernel.transpose(&over.chain([last + 1, last]).collect::<Vec<_>>());
        }
        let (sizes, features) = kernel.dims().split_at(space);
        let groups = self.groups.max(1) as usize;
        let [own, out] = [features[0], features[1] / groups];
        let apart = kernel.reshape(&[sizes, &[own, groups, out]].concat())?;
        let turned = apart.transpose(&over.chain([last + 2, last + 1, last]).collect::<Vec<_>>())?;
        turned.reshape(&[sizes, &[out, groups * own]].concat())
    }

    /// Of the convolution, to its kernel, which has sizes `kernel`: the input convolved with the
    /// gradient, dilated by the stride, as kernel. The sum is over the batch, so the batch takes
    /// the place of the input features.
    ///
    /// # Errors
    /// When the sizes do not fit.
    #[track_caller]
    pub fn kernel_gradient(&self, x: &Tensor, kernel: &[usize], gradient: &Tensor) -> Result<Tensor> {
        self.check([x.rank(), kernel.len()])?;
        self.check([gradient.rank(), kernel.len()])?;
        let space = self.stride.len();
        let padding = (0..space).map(|i| {
            let (window, spread) = self.spans(i, kernel[i], gradient.dims()[i + 1]);
            let low = self.padding[i].0;
            (low, window - 1 + spread - x.dims()[i + 1] as i64 - low)
        });
        let options = ConvOptions {
            window_strides: self.dilation.clone(),
            rhs_dilation: self.stride.clone(),
            padding: padding.collect(),
            // The input features, which take the place of the batch, meet only the output features
            // of their group.
            batch_group_count: self.groups,
            ..ConvOptions::new(space)
        };
        let last = space as i64 + 1;
        let numbers = ConvDimensionNumbers {
            input_batch: last,
            input_feature: 0,
            input_spatial: (1..last).collect(),
            kernel_input_feature: 0,
            kernel_output_feature: last,
            kernel_spatial: (1..last).collect(),
            output_batch: last - 1,
            output_feature: last,
            output_spatial: (0..last - 1).collect(),
        };
        x.convolution(gradient, &numbers, &options)
    }
}
