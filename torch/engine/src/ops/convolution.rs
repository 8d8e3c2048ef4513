//! Convolutions and their gradients: over one to three dimensions, grouped, transposed.
//!
//! A transposed convolution is the gradient of a convolution with respect to its input (Dumoulin
//! and Visin, "A guide to convolution arithmetic for deep learning", 2016), so three functions
//! cover six cases. They are computed with the features last, which XLA's CPU backend computes
//! fast.
//!
//! If a kernel has more features than there are output positions, as in the last stages of a
//! network, transposing the kernel costs more than the sums. Then the patches of the image are laid
//! out (im2col), and all three are matrix products with the kernel as it lies in memory
//! (Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
//! processing", 2006).

use fuseline::Tensor;
use fuseline::nn::grad::Convolution;

use super::networks::{output_mask, per_channel};
use super::window::{MAX_PLACES, Window};
use super::{cast, fitted, result};
use crate::call::{Call, Result, Results, Row, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "convolution", lower: convolution },
    Row { name: "convolution_backward", lower: convolution_backward },
];

/// Moves the features from the second to the last dimension, or back.
fn moved(x: &Tensor, is_last: bool) -> Result<Tensor> {
    let rank = x.rank() as i64;
    let order: Vec<i64> = match is_last {
        false => std::iter::once(0).chain(2..rank).chain([1]).collect(),
        true => [0, rank - 1].into_iter().chain(1..rank - 1).collect(),
    };
    Ok(x.transpose(&order)?)
}

/// The sizes of a tensor with its features last.
fn moved_dims(dims: &[usize]) -> Vec<usize> {
    [&dims[..1], &dims[2..], &dims[1..2]].concat()
}

/// Transposes a kernel from `[out, in, space..]` to `[space.., in, out]`.
fn kernel_to_hlo(kernel: &Tensor) -> Result<Tensor> {
    let rank = kernel.rank() as i64;
    Ok(kernel.transpose(&(2..rank).chain([1, 0]).collect::<Vec<_>>())?)
}

fn kernel_dims_to_hlo(dims: &[usize]) -> Vec<usize> {
    [&dims[2..], &[dims[1], dims[0]]].concat()
}

/// The inverse of `kernel_to_hlo`.
fn kernel_from_hlo(kernel: &Tensor) -> Result<Tensor> {
    let rank = kernel.rank() as i64;
    Ok(kernel.transpose(&[rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect::<Vec<_>>())?)
}

/// The window, and whether it is transposed. The arguments from `at` on are stride, padding,
/// dilation, transposed, output padding, groups.
fn window(call: &Call<'_>, at: usize, rank: usize) -> Result<(Convolution, bool)> {
    if rank < 3 {
        return unsupported("a convolution needs at least one spatial dimension");
    }
    let whole = |at| -> Result<Vec<i64>> {
        let given = call.ints(at)?;
        Ok(if given.len() == 1 { vec![given[0]; rank - 2] } else { given.to_vec() })
    };
    let mut window = Convolution::new(rank - 2);
    window.stride = whole(at)?;
    window.padding = whole(at + 1)?.into_iter().map(|pad| (pad, pad)).collect();
    window.dilation = whole(at + 2)?;
    window.groups = call.int(at + 5)?;
    Ok((window, call.flag(at + 3)?))
}

/// A convolution as matrix products: the image `[batch, in, space..]` as patches
/// `[in * taps, batch * positions]`, the kernel as `[out, in * taps]`.
struct Patches {
    window: Window,
    /// Batch, input features, output features.
    batch: usize,
    features: [usize; 2],
}

impl Patches {
    /// The patches for these sizes of image, kernel and result, if this method is better.
    fn of(convolution: &Convolution, image: &[usize], kernel: &[usize], result: &[usize]) -> Option<Patches> {
        let whole = |dims: &[usize]| dims[2..].iter().map(|&dim| dim as i64).collect::<Vec<i64>>();
        let window = Window {
            size: whole(kernel),
            stride: convolution.stride.clone(),
            padding: convolution.padding.iter().map(|pair| pair.0).collect(),
            dilation: convolution.dilation.clone(),
            input: whole(image),
            output: whole(result),
        };
        let is_better = result[0] * result[2..].iter().product::<usize>() < kernel[0]
            && convolution.groups == 1
            && window.size.iter().product::<i64>() <= MAX_PLACES;
        is_better.then_some(Patches { window, batch: image[0], features: [image[1], kernel[0]] })
    }

    /// Two sizes followed by those of the positions.
    fn with_positions(&self, first: &[usize]) -> Vec<usize> {
        first.iter().copied().chain(self.window.output.iter().map(|&size| size as usize)).collect()
    }

    /// The sizes of the patches with separate dimensions: `[in, taps, batch, positions..]`.
    fn dims(&self) -> Vec<usize> {
        let taps = self.window.size.iter().product::<i64>() as usize;
        self.with_positions(&[self.features[0], taps, self.batch])
    }

    fn matrix(&self) -> [usize; 2] {
        let dims = self.dims();
        [dims[0] * dims[1], dims[2..].iter().product()]
    }

    fn lay_out(&self, call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
        let padded = self.window.padded(x, &call.constant(0.0, x.dtype())?)?;
        let tap = |place: &Vec<i64>| Ok(self.window.seen(&padded, place)?.unsqueeze(2)?);
        let parts: Vec<Tensor> = self.window.places().iter().map(tap).collect::<Result<_>>()?;
        let all = Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 2)?;
        // `[batch, in, taps, positions..]`
        let order: Vec<i64> = [1, 2, 0].into_iter().chain(3..all.rank() as i64).collect();
        Ok(all.transpose(&order)?.reshape(&self.matrix())?)
    }

    /// Sums overlapping patches into the sizes of the image.
    fn put_back(&self, call: &Call<'_>, patches: &Tensor) -> Result<Tensor> {
        let apart = patches.reshape(&self.dims())?;
        let zero = call.constant(0.0, patches.dtype())?;
        let mut sum: Option<Tensor> = None;
        for (at, place) in self.window.places().iter().enumerate() {
            // `[in, batch, positions..]`
            let part = apart.narrow(1, at as i64, at as i64 + 1)?.squeeze(1)?;
            let part = self.window.put_back(&part, place, &zero)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => sum.add(&part)?,
            });
        }
        match sum {
            Some(sum) => Ok(sum.swap_axes(0, 1)?),
            None => unsupported("the kernel is empty"),
        }
    }

    /// A result `[batch, out, positions..]` as `[out, batch * positions]`.
    fn rows(&self, result: &Tensor) -> Result<Tensor> {
        Ok(result.swap_axes(0, 1)?.reshape(&[self.features[1], self.matrix()[1]])?)
    }

    fn apply(&self, call: &Call<'_>, x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let rows = kernel.reshape(&[self.features[1], self.matrix()[0]])?.matmul(&self.lay_out(call, x)?)?;
        Ok(rows.reshape(&self.with_positions(&[self.features[1], self.batch]))?.swap_axes(0, 1)?)
    }

    fn input_gradient(&self, call: &Call<'_>, kernel: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let kernel = kernel.reshape(&[self.features[1], self.matrix()[0]])?;
        self.put_back(call, &kernel.swap_axes(0, 1)?.matmul(&self.rows(gradient)?)?)
    }

    fn kernel_gradient(&self, call: &Call<'_>, x: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let patches = self.lay_out(call, x)?.swap_axes(0, 1)?;
        Ok(self.rows(gradient)?.matmul(&patches)?)
    }
}

/// XLA has no convolutions without summands or results.
fn not_empty(tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().any(|tensor| tensor.shape().elems().0 == 0) {
        true => unsupported("convolutions of empty tensors are not supported"),
        false => Ok(()),
    }
}

fn convolution(call: &Call<'_>) -> Result<Results> {
    let (x, kernel) = (call.tensor(0)?, call.tensor(1)?);
    not_empty(&[&x, &kernel])?;
    let (window, is_transposed) = window(call, 3, x.rank())?;
    let dims = call.out(0)?.sizes();
    let y = match Patches::of(&window, x.dims(), kernel.dims(), dims) {
        Some(patches) if !is_transposed => patches.apply(call, &x, &kernel)?,
        _ => {
            let (x, kernel) = (moved(&x, false)?, kernel_to_hlo(&kernel)?);
            let y = match is_transposed {
                false => window.apply(&x, &kernel)?,
                true => window.input_gradient(&moved_dims(dims), &kernel, &x)?,
            };
            moved(&y, true)?
        }
    };
    let y = match call.maybe_tensor(2)? {
        Some(bias) => y.add(&per_channel(&cast(&bias, y.dtype())?, y.dims())?)?,
        None => y,
    };
    result(call, y)
}

fn convolution_backward(call: &Call<'_>) -> Result<Results> {
    let (grad, x, kernel) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    not_empty(&[&grad, &x, &kernel])?;
    let (window, is_transposed) = window(call, 4, x.rank())?;
    let mask = output_mask(call, 10)?;
    let mut outs = call.outs.iter();
    let mut results = Results::new();
    let mut give = |value: Tensor| -> Result<()> {
        match outs.next() {
            Some(ty) => results.push(fitted(&value, ty)?),
            None => return unsupported("there are more gradients than result types"),
        }
        Ok(())
    };
    match Patches::of(&window, x.dims(), kernel.dims(), grad.dims()) {
        Some(patches) if !is_transposed => {
            if mask[0] {
                give(patches.input_gradient(call, &kernel, &grad)?)?;
            }
            if mask[1] {
                give(patches.kernel_gradient(call, &x, &grad)?)?;
            }
        }
        _ => {
            let (x_last, grad_last) = (moved(&x, false)?, moved(&grad, false)?);
            if mask[0] {
                let kernel_last = kernel_to_hlo(&kernel)?;
                let of_input = match is_transposed {
                    false => window.input_gradient(x_last.dims(), &kernel_last, &grad_last)?,
                    true => {
                        // Output padding may leave room for another window.
                        let all = window.apply(&grad_last, &kernel_last)?;
                        let limits: Vec<i64> = x_last.dims().iter().map(|&dim| dim as i64).collect();
                        all.slice(&vec![0; limits.len()], &limits, &vec![1; limits.len()])?
                    }
                };
                give(moved(&of_input, true)?)?;
            }
            if mask[1] {
                // A transposed convolution moves its window over its result.
                let (wide, narrow) =
                    if is_transposed { (&grad_last, &x_last) } else { (&x_last, &grad_last) };
                give(kernel_from_hlo(&window.kernel_gradient(
                    wide,
                    &kernel_dims_to_hlo(kernel.dims()),
                    narrow,
                )?)?)?;
            }
        }
    }
    if mask[2] {
        let axes: Vec<i64> = (0..grad.rank() as i64).filter(|axis| *axis != 1).collect();
        give(grad.sum(&axes)?)?;
    }
    Ok(results)
}
