//! Matrix products and convolutions of `f32` at the speed of the processor, for the interpreter
//! tier.
//!
//! Input: a `dot_general` or a `convolution` whose sums may be in any order
//! ([`SumOrder::AnyOrder`](super::SumOrder)). Output: its result. `matrixmultiply`, a library of
//! packed, blocked loops, multiplies the matrices through the safe interface of `ndarray`. A
//! convolution is a product too: the input under the window at each position is a row of one
//! matrix, and the kernel is the other (Chellapilla, Puri, Simard, High performance convolutional
//! neural networks for document processing, 2006: "unrolling"). Rows are built in blocks of
//! [`BLOCK`] elements, so memory does not grow with the images.
//!
//! Invariants:
//! - INTERP-4: the result is that of the general path, except for the order of sums and for
//!   products that are added without rounding. In particular, padding is multiplied like any zero.
//!
//! `cost_model.rs` has the costs, and the test that measures them.

use fuseline_fusion::Literal;
use fuseline_fusion::op::dims::{ConvDims, WindowDim, conv_attr, conv_window};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};
use smallvec::SmallVec;

use super::index::{Indices, Walk, strides};
use super::{EvalCall, SumOrder, fast_f32};

/// Elements of the unrolled matrix that are built at a time: half a megabyte, which fits in a
/// core's own cache.
const BLOCK: usize = 128 << 10;

/// Minimum number of rows and columns. For fewer, a library that packs matrices is slower than a
/// plain loop.
const FEW: usize = 4;

/// Minimum number of products, for the same reason.
const SMALL: usize = 4_096;

/// Consecutive matrices.
pub(super) struct Matrices {
    pub(super) data: Vec<f32>,
    /// Whether the data is column-major.
    pub(super) is_turned: bool,
}

impl Matrices {
    /// The matrix of `rows` rows and `columns` columns that begins at element `first`.
    fn view(&self, first: usize, rows: usize, columns: usize) -> ArrayView2<'_, f32> {
        view(&self.data[first..][..rows * columns], rows, columns, self.is_turned)
    }
}

fn view(data: &[f32], rows: usize, columns: usize, is_turned: bool) -> ArrayView2<'_, f32> {
    let view = match is_turned {
        true => ArrayView2::from_shape((rows, columns).f(), data),
        false => ArrayView2::from_shape((rows, columns), data),
    };
    view.expect("bug: the sizes of a matrix do not match its data")
}

/// Whether the library is faster for a product of these sizes.
pub(super) fn pays([rows, depth, columns]: [usize; 3]) -> bool {
    rows.min(columns) >= FEW && rows.saturating_mul(depth).saturating_mul(columns) >= SMALL
}

/// Products of `batch` matrices: `rows` by `depth`, and `depth` by `columns`.
pub(super) fn product(lhs: &Matrices, rhs: &Matrices, [batch, rows, depth, columns]: [usize; 4]) -> Vec<f32> {
    let mut results = vec![0.0; batch * rows * columns];
    for (index, results) in results.chunks_exact_mut((rows * columns).max(1)).enumerate() {
        let lhs = lhs.view(index * rows * depth, rows, depth);
        let rhs = rhs.view(index * depth * columns, depth, columns);
        multiply(lhs, rhs, results);
    }
    results
}

/// Overwrites a row-major matrix with a product.
fn multiply(lhs: ArrayView2<'_, f32>, rhs: ArrayView2<'_, f32>, result: &mut [f32]) {
    let sizes = (lhs.nrows(), rhs.ncols());
    let mut result =
        ArrayViewMut2::from_shape(sizes, result).expect("bug: the sizes of a product do not match its data");
    general_mat_mul(1.0, &lhs, &rhs, 0.0, &mut result);
}

/// A convolution as matrix products, one for each group of features or of the batch.
pub(super) fn convolution(call: &EvalCall<'_>) -> Literal {
    let unrolled = Unrolled::of(call);
    let (inputs, kernel) = (floats(call.operand(0)), floats(call.operand(1)));
    let mut results = vec![0.0; call.result().elems().get()];
    for group in 0..unrolled.groups {
        unrolled.convolve(group, &inputs, &kernel, &mut results);
    }
    fast_f32::of_floats(call.result(), results.into_iter())
}

fn floats(literal: &Literal) -> Vec<f32> {
    fast_f32::floats(literal, Walk::new(0, [literal.ty().elems().get() as u64], [1]))
}

/// A convolution as a product: window positions by terms of a sum, times terms by output features.
struct Unrolled {
    groups: usize,
    /// Output features per group.
    columns: usize,
    /// Input features that a sum covers at each element of the window, and their stride.
    depth: usize,
    depth_step: usize,
    /// Sizes of the result: its batch, and its spatial dimensions.
    positions: SmallVec<[u64; 6]>,
    /// Strides of these in the result.
    result_steps: SmallVec<[isize; 6]>,
    result_feature_step: usize,
    /// Stride of the images in the input.
    image_step: usize,
    /// Stride of the groups in the input.
    group_step: usize,
    /// Indices of the elements of the window, concatenated over the elements.
    taps: Vec<usize>,
    /// For each spatial dimension, by window position and element: the input offset along this
    /// dimension.
    places: Vec<Vec<Option<usize>>>,
    /// Window sizes.
    sizes: SmallVec<[usize; 6]>,
    /// The kernel as terms by features: its start, its sizes without the features, and its strides.
    kernel_first: usize,
    kernel_sizes: SmallVec<[u64; 6]>,
    kernel_steps: SmallVec<[isize; 6]>,
    kernel_feature_step: isize,
}

impl Unrolled {
    fn of(call: &EvalCall<'_>) -> Unrolled {
        let checked = call.signature.call();
        let dims = ConvDims::of(&checked).expect("bug: checked dimension numbers are rejected");
        let window = conv_window(&checked, &dims).expect("bug: a checked window is rejected");
        let reversal = call.attr().bools(conv_attr::REVERSAL);
        let feature_groups = call.attr().int(conv_attr::FEATURE_GROUPS) as usize;
        let batch_groups = call.attr().int(conv_attr::BATCH_GROUPS) as usize;
        let (lhs, rhs, result) = (call.operand(0).dims(), call.operand(1).dims(), call.result().dims());
        let (lhs_steps, rhs_steps, result_steps) = (strides(lhs), strides(rhs), strides(result));
        // The table allows only one of the two to be above 1.
        let groups = feature_groups.max(batch_groups);
        let depth = rhs[dims.kernel_input_feature] as usize;
        let image_step = lhs_steps[dims.input_batch] as usize;
        let depth_step = lhs_steps[dims.input_feature] as usize;
        let batch = result[dims.output_batch];
        let group_step = match feature_groups > 1 {
            true => depth * depth_step,
            false => batch as usize * image_step,
        };

        let sizes: SmallVec<[u64; 6]> = window.iter().map(|dim| dim.size).collect();
        let mut taps = Vec::new();
        let mut indices = Indices::below(&sizes);
        while let Some(index) = indices.advance() {
            taps.extend(index.iter().map(|&index| index as usize));
        }
        let places = window.iter().enumerate().map(|(axis, dim)| {
            let along = dims.input_spatial[axis];
            places(dim, result[dims.output_spatial[axis]], lhs[along], lhs_steps[along] as usize)
        });

        let mut kernel_first = 0;
        let mut kernel_steps: SmallVec<[isize; 6]> = SmallVec::new();
        for (axis, dim) in window.iter().enumerate() {
            let step = rhs_steps[dims.kernel_spatial[axis]];
            if reversal[axis] {
                kernel_first += dim.size.saturating_sub(1) as usize * step as usize;
            }
            kernel_steps.push(if reversal[axis] { -step } else { step });
        }
        kernel_steps.push(rhs_steps[dims.kernel_input_feature]);

        let of_result = || std::iter::once(dims.output_batch).chain(dims.output_spatial.iter().copied());
        Unrolled {
            groups,
            columns: rhs[dims.kernel_output_feature] as usize / groups.max(1),
            depth,
            depth_step,
            positions: of_result().map(|axis| result[axis]).collect(),
            result_steps: of_result().map(|axis| result_steps[axis]).collect(),
            result_feature_step: result_steps[dims.output_feature] as usize,
            image_step,
            group_step,
            taps,
            places: places.collect(),
            kernel_first,
            kernel_sizes: sizes.iter().copied().chain([depth as u64]).collect(),
            sizes: sizes.iter().map(|&size| size as usize).collect(),
            kernel_steps,
            kernel_feature_step: rhs_steps[dims.kernel_output_feature],
        }
    }

    /// Terms of each sum.
    fn terms(&self) -> usize {
        self.kernel_sizes.iter().product::<u64>() as usize
    }

    fn convolve(&self, group: usize, inputs: &[f32], kernel: &[f32], results: &mut [f32]) {
        let (terms, columns) = (self.terms(), self.columns);
        let rows = self.positions.iter().product::<u64>() as usize;
        if terms == 0 || rows == 0 || columns == 0 {
            return;
        }
        let first = self.kernel_first + group * columns * self.kernel_feature_step as usize;
        let sizes = self.kernel_sizes.iter().copied().chain([columns as u64]);
        let steps = self.kernel_steps.iter().copied().chain([self.kernel_feature_step]);
        let kernel: Vec<f32> = Walk::new(first, sizes, steps).map(|place| kernel[place]).collect();

        let block = (BLOCK / terms).clamp(1, rows);
        let mut seen = vec![0.0; block * terms];
        let mut products = vec![0.0; block * columns];
        let mut positions = Indices::below(&self.positions);
        let steps = self.result_steps.iter().copied();
        let mut places = Walk::new(0, self.positions.iter().copied(), steps);
        let first_feature = group * columns * self.result_feature_step;
        for done in (0..rows).step_by(block) {
            let block = block.min(rows - done);
            let (seen, products) = (&mut seen[..block * terms], &mut products[..block * columns]);
            for row in seen.chunks_exact_mut(terms) {
                let position = positions.advance().expect("bug: fewer positions than rows");
                self.see(position, &inputs[group * self.group_step..], row);
            }
            if pays([block, terms, columns]) {
                multiply(view(seen, block, terms, false), view(&kernel, terms, columns, false), products);
            } else {
                let sizes = [1, block, terms, columns];
                products.copy_from_slice(&fast_f32::product(seen, &kernel, sizes, SumOrder::AnyOrder));
            }
            for (row, place) in products.chunks_exact(columns).zip(&mut places) {
                for (feature, &sum) in row.iter().enumerate() {
                    results[place + first_feature + feature * self.result_feature_step] = sum;
                }
            }
        }
    }

    /// Collects the input under the window at a position: all input features of its first element,
    /// of its second, and so on.
    fn see(&self, position: &[u64], inputs: &[f32], row: &mut [f32]) {
        let (image, position) = position.split_first().expect("bug: a result without a batch");
        let first = *image as usize * self.image_step;
        let rank = self.sizes.len();
        for (index, seen) in row.chunks_exact_mut(self.depth).enumerate() {
            let tap = &self.taps[index * rank..][..rank];
            let along =
                |axis: usize| self.places[axis][position[axis] as usize * self.sizes[axis] + tap[axis]];
            match (0..rank).try_fold(first, |place, axis| Some(place + along(axis)?)) {
                Some(place) if self.depth_step == 1 => seen.copy_from_slice(&inputs[place..][..self.depth]),
                Some(place) => {
                    let inputs = inputs[place..].iter().step_by(self.depth_step);
                    seen.iter_mut().zip(inputs).for_each(|(seen, &input)| *seen = input);
                }
                None => seen.fill(0.0),
            }
        }
    }
}

/// The input offsets along one dimension, by window position and element. `None` for padding.
fn places(dim: &WindowDim, positions: u64, input: u64, step: usize) -> Vec<Option<usize>> {
    let of = |position| {
        (0..dim.size).map(move |offset| dim.element(position, offset, input).map(|index| index * step))
    };
    (0..positions).flat_map(of).collect()
}
