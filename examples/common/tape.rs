//! Gradients by a tape: reverse-mode differentiation on top of plain tensors.
//!
//! Fuseline records ops and fuses them; it knows nothing of gradients. A front end that wants them keeps a tape like this
//! one. Each function here computes its result with ordinary tensor ops and, if a gradient is wanted of one of its inputs,
//! notes how the gradient of the result becomes that of the input (a *pullback*). [`Tape::gradients`] goes through the
//! notes from the back. Both directions are recorded op by op and end up in the same fused region.
//!
//! ```ignore
//! let tape = Tape::new();
//! let (w, b) = (tape.leaf(&weights), tape.leaf(&bias));
//! let loss = tape.constant(&images).matmul(&w)?.add(&b)?.relu()?.mean()?;
//! let gradients = tape.gradients(&loss, &[w, b])?;
//! ```

use std::cell::RefCell;

use fuseline::fusion::op::attrs::{ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
use fuseline::{Result, Tensor, nn};

/// From the gradient of a result to that of an input.
type Pullback = Box<dyn FnOnce(&Tensor) -> Result<Tensor>>;

/// How the gradient of one value is passed on: to which inputs, and as what. A leaf passes on nothing.
type Edges = Vec<(usize, Pullback)>;

/// What was computed, in order.
#[derive(Default)]
pub(crate) struct Tape {
    edges: RefCell<Vec<Edges>>,
}

/// A tensor whose history is on a tape.
#[derive(Clone)]
pub(crate) struct Var<'t> {
    tape: &'t Tape,
    /// Its place on the tape; `None` if it depends on no leaf.
    place: Option<usize>,
    value: Tensor,
}

impl Tape {
    pub(crate) fn new() -> Tape {
        Tape::default()
    }

    /// A tensor whose gradient is wanted: a parameter.
    pub(crate) fn leaf(&self, value: &Tensor) -> Var<'_> {
        Var { tape: self, place: Some(self.push(Vec::new())), value: value.clone() }
    }

    /// A tensor whose gradient is not wanted: data.
    pub(crate) fn constant(&self, value: &Tensor) -> Var<'_> {
        Var { tape: self, place: None, value: value.clone() }
    }

    fn push(&self, edges: Edges) -> usize {
        let mut tape = self.edges.borrow_mut();
        tape.push(edges);
        tape.len() - 1
    }

    /// A result, and its pullback to each input. Those to inputs without a place are dropped.
    fn result<const N: usize>(&self, value: Tensor, inputs: [(&Var<'_>, Pullback); N]) -> Var<'_> {
        let edges: Edges =
            inputs.into_iter().filter_map(|(input, pullback)| Some((input.place?, pullback))).collect();
        let place = if edges.is_empty() { None } else { Some(self.push(edges)) };
        Var { tape: self, place, value }
    }

    /// The gradients of `loss`, a scalar, with respect to leaves; zeros for those it does not depend on. Uses the tape up:
    /// a second call finds it empty.
    ///
    /// A gradient on the way is dropped as soon as it has been passed on, so that its memory can be reused.
    pub(crate) fn gradients(&self, loss: &Var<'_>, leaves: &[Var<'_>]) -> Result<Vec<Tensor>> {
        let mut edges = std::mem::take(&mut *self.edges.borrow_mut());
        let mut gradients: Vec<Option<Tensor>> = vec![None; edges.len()];
        if let Some(place) = loss.place {
            gradients[place] = Some(filled(&loss.value, 1.0)?);
        }
        while let Some(step) = edges.pop() {
            let place = edges.len();
            if step.is_empty() {
                continue;
            }
            let Some(gradient) = gradients[place].take() else { continue };
            for (input, pullback) in step {
                let more = pullback(&gradient)?;
                gradients[input] = Some(match gradients[input].take() {
                    None => more,
                    Some(sum) => sum.add(&more)?,
                });
            }
        }
        let found = leaves.iter().map(|leaf| {
            let gradient = leaf.place.and_then(|place| gradients.get(place).cloned().flatten());
            gradient.map_or_else(|| filled(&leaf.value, 0.0), Ok)
        });
        found.collect()
    }
}

/// A tensor like another one, with the same number everywhere.
fn filled(like: &Tensor, number: f64) -> Result<Tensor> {
    let zeros = like.on_stream().zeros(like.dtype(), like.dims())?;
    if number == 0.0 { Ok(zeros) } else { &zeros + number }
}

/// The gradient of an operand from that of an operation that broadcast it: the sum over what was repeated.
fn unbroadcast(gradient: &Tensor, dims: &[u64]) -> Result<Tensor> {
    let missing = gradient.rank() - dims.len();
    let repeated: Vec<i64> = (0..gradient.rank())
        .filter(|&axis| axis < missing || dims[axis - missing] != gradient.dims()[axis])
        .map(|axis| axis as i64)
        .collect();
    if repeated.is_empty() { Ok(gradient.clone()) } else { gradient.sum(&repeated)?.reshape(dims) }
}

/// Reduces over the last dimension and keeps it, with size 1.
fn keep_last(reduced: Tensor) -> Result<Tensor> {
    reduced.unsqueeze(-1)
}

/// Batched matrix products with either factor transposed, as the gradients of a product need them.
fn product(lhs: &Tensor, lhs_contracting: i64, rhs: &Tensor, rhs_contracting: i64) -> Result<Tensor> {
    let batch: Vec<i64> = (0..lhs.rank() as i64 - 2).collect();
    let from_front = |tensor: &Tensor, axis: i64| tensor.rank() as i64 + axis;
    lhs.dot_general(
        rhs,
        DotDimensionNumbers {
            lhs_batching: &batch,
            rhs_batching: &batch,
            lhs_contracting: &[from_front(lhs, lhs_contracting)],
            rhs_contracting: &[from_front(rhs, rhs_contracting)],
        },
    )
}

/// A kernel `[kh, kw, in, out]` turned around, its features exchanged.
fn turned(kernel: &Tensor) -> Result<Tensor> {
    kernel.reverse(&[0, 1])?.transpose(&[0, 1, 3, 2])
}

impl<'t> Var<'t> {
    /// The tape that its history is on.
    pub(crate) fn tape(&self) -> &'t Tape {
        self.tape
    }

    /// The tensor.
    pub(crate) fn value(&self) -> &Tensor {
        &self.value
    }

    /// Sizes of its dimensions.
    pub(crate) fn dims(&self) -> &[u64] {
        self.value.dims()
    }

    // ----- elementwise -----

    /// The sum; shapes broadcast.
    pub(crate) fn add(&self, rhs: &Var<'t>) -> Result<Var<'t>> {
        let value = self.value.add(&rhs.value)?;
        let (a, b) = (self.dims().to_vec(), rhs.dims().to_vec());
        Ok(self.tape.result(
            value,
            [(self, Box::new(move |g| unbroadcast(g, &a))), (rhs, Box::new(move |g| unbroadcast(g, &b)))],
        ))
    }

    /// The product of elements; shapes broadcast.
    pub(crate) fn mul(&self, rhs: &Var<'t>) -> Result<Var<'t>> {
        let value = self.value.mul(&rhs.value)?;
        let (a, b) = (self.value.clone(), rhs.value.clone());
        let (da, db) = (a.dims().to_vec(), b.dims().to_vec());
        Ok(self.tape.result(
            value,
            [
                (self, Box::new(move |g| unbroadcast(&g.mul(&b)?, &da))),
                (rhs, Box::new(move |g| unbroadcast(&g.mul(&a)?, &db))),
            ],
        ))
    }

    /// Times a number.
    pub(crate) fn scale(&self, number: f64) -> Result<Var<'t>> {
        let value = (&self.value * number)?;
        Ok(self.tape.result(value, [(self, Box::new(move |g| g * number))]))
    }

    /// `max(x, 0)`.
    pub(crate) fn relu(&self) -> Result<Var<'t>> {
        let value = nn::relu(&self.value)?;
        let result = value.clone();
        let pull = move |g: &Tensor| {
            let zero = filled(&result, 0.0)?;
            result.greater(&zero)?.select(g, &zero)
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// The Gaussian error linear unit in its tanh form, [`nn::gelu`].
    pub(crate) fn gelu(&self) -> Result<Var<'t>> {
        let value = nn::gelu(&self.value)?;
        let x = self.value.clone();
        // With u = c (x + a x^3) and t = tanh(u): (1 + t) / 2 + x (1 - t^2) c (1 + 3 a x^2) / 2.
        let pull = move |g: &Tensor| {
            let (a, c) = (0.044_715, (2.0 / std::f64::consts::PI).sqrt());
            let square = x.mul(&x)?;
            let t = x.mul(&((&square * (a * c))? + c)?)?.tanh()?;
            let slope = x.mul(&((&square * (1.5 * a * c))? + 0.5 * c)?)?;
            let steep = slope.mul(&(1.0 - t.mul(&t)?)?)?;
            g.mul(&((&t * 0.5)? + 0.5)?.add(&steep)?)
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    // ----- shapes and sums -----

    /// The same elements under another shape.
    pub(crate) fn reshape(&self, dims: &[u64]) -> Result<Var<'t>> {
        let value = self.value.reshape(dims)?;
        let before = self.dims().to_vec();
        Ok(self.tape.result(value, [(self, Box::new(move |g| g.reshape(&before)))]))
    }

    /// The dimensions in another order.
    pub(crate) fn transpose(&self, permutation: &[i64]) -> Result<Var<'t>> {
        let value = self.value.transpose(permutation)?;
        let mut inverse = vec![0; permutation.len()];
        for (to, &from) in permutation.iter().enumerate() {
            inverse[from as usize] = to as i64;
        }
        Ok(self.tape.result(value, [(self, Box::new(move |g| g.transpose(&inverse)))]))
    }

    /// Elements `start` to `limit`, not included, of dimension `axis`, and all of the others.
    pub(crate) fn narrow(&self, axis: usize, start: i64, limit: i64) -> Result<Var<'t>> {
        let value = self.value.narrow(axis as i64, start, limit)?;
        let (rank, size) = (self.value.rank(), self.dims()[axis] as i64);
        let pull = move |g: &Tensor| {
            let zero = g.on_stream().zeros(g.dtype(), &[])?;
            let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
            (low[axis], high[axis]) = (start, size - limit);
            g.pad(&zero, &low, &high, &vec![0; rank])
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// The sum over the given dimensions, which disappear.
    pub(crate) fn sum(&self, axes: &[i64]) -> Result<Var<'t>> {
        let value = self.value.sum(axes)?;
        let dims = self.dims().to_vec();
        let rank = dims.len() as i64;
        let summed: Vec<i64> = axes.iter().map(|&axis| axis.rem_euclid(rank)).collect();
        let kept: Vec<i64> = (0..rank).filter(|axis| !summed.contains(axis)).collect();
        Ok(self.tape.result(value, [(self, Box::new(move |g| g.broadcast_in_dim(&dims, &kept)))]))
    }

    /// The mean of all elements, a scalar.
    pub(crate) fn mean(&self) -> Result<Var<'t>> {
        let axes: Vec<i64> = (0..self.value.rank() as i64).collect();
        self.sum(&axes)?.scale(1.0 / self.value.ty().elems().0 as f64)
    }

    // ----- products -----

    /// The matrix product of two tensors of the same rank, at least 2; dimensions before the last two are batches.
    pub(crate) fn matmul(&self, rhs: &Var<'t>) -> Result<Var<'t>> {
        let value = self.value.matmul(&rhs.value)?;
        let (a, b) = (self.value.clone(), rhs.value.clone());
        Ok(self.tape.result(
            value,
            [
                (self, Box::new(move |g| product(g, -1, &b, -1))),
                (rhs, Box::new(move |g| product(&a, -2, g, -2))),
            ],
        ))
    }

    /// A two-dimensional convolution of images `[batch, height, width, in]` with a kernel `[kh, kw, in, out]`.
    pub(crate) fn conv2d(&self, kernel: &Var<'t>, stride: i64, padding: i64) -> Result<Var<'t>> {
        let dims = ConvDimensionNumbers::channels_last(2);
        let options = ConvOptions {
            window_strides: vec![stride; 2],
            padding: vec![(padding, padding); 2],
            ..ConvOptions::new(2)
        };
        let value = self.value.convolution(&kernel.value, &dims, &options)?;
        let (image, filter) = (self.value.clone(), kernel.value.clone());
        // Sizes in each spatial dimension: image, window, and the result with its elements `stride` apart.
        let size = |tensor: &Tensor, axis: usize| tensor.dims()[axis] as i64;
        let sizes =
            [0, 1].map(|i| (size(&image, i + 1), size(&filter, i), (size(&value, i + 1) - 1) * stride + 1));
        // The image's: the gradient's elements set `stride` apart, convolved with the kernel turned around, whose features
        // trade places. Dimension numbers and a reversed window could say the same without the two ops, but XLA's CPU
        // backend runs those without its fast convolutions: 1.5 ms instead of 0.25 in the demo.
        let to_image = ConvOptions {
            lhs_dilation: vec![stride; 2],
            padding: sizes
                .iter()
                .map(|&(image, window, spread)| {
                    let low = window - 1 - padding;
                    (low, image + window - 1 - spread - low)
                })
                .collect(),
            ..ConvOptions::new(2)
        };
        // The kernel's: the image convolved with the gradient as a kernel, its elements `stride` apart. The batch is what
        // is summed over, so it stands where the input features were.
        let to_kernel = ConvOptions {
            rhs_dilation: vec![stride; 2],
            padding: sizes
                .iter()
                .map(|&(image, window, spread)| (padding, window - 1 + spread - image - padding))
                .collect(),
            ..ConvOptions::new(2)
        };
        let over_batch = ConvDimensionNumbers {
            input_batch: 3,
            input_feature: 0,
            input_spatial: vec![1, 2],
            kernel_input_feature: 0,
            kernel_output_feature: 3,
            kernel_spatial: vec![1, 2],
            output_batch: 2,
            output_feature: 3,
            output_spatial: vec![0, 1],
        };
        Ok(self.tape.result(
            value,
            [
                (self, Box::new(move |g| g.convolution(&turned(&filter)?, &dims, &to_image))),
                (kernel, Box::new(move |g| image.convolution(g, &over_batch, &to_kernel))),
            ],
        ))
    }

    /// The mean of each `size` by `size` square of images `[batch, height, width, features]`, whose sides `size` divides.
    pub(crate) fn mean_pool(&self, size: u64) -> Result<Var<'t>> {
        let &[batch, height, width, features] = self.dims() else {
            unreachable!("images have four dimensions: {:?}", self.dims());
        };
        let squares = [batch, height / size, size, width / size, size, features];
        self.reshape(&squares)?.sum(&[2, 4])?.scale(1.0 / (size * size) as f64)
    }

    // ----- composites -----

    /// [`nn::softmax`] along the last dimension.
    pub(crate) fn softmax(&self) -> Result<Var<'t>> {
        let value = nn::softmax(&self.value, -1)?;
        let result = value.clone();
        let pull = move |g: &Tensor| {
            let weighted = g.mul(&result)?;
            weighted.sub(&result.mul(&keep_last(weighted.sum(&[-1])?)?)?)
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// [`nn::cross_entropy`] with integer labels.
    pub(crate) fn cross_entropy(&self, labels: &Tensor) -> Result<Var<'t>> {
        let value = nn::cross_entropy(&self.value, labels)?;
        let (logits, labels) = (self.value.clone(), labels.clone());
        let pull = move |g: &Tensor| {
            let classes = logits.dims().last().copied().unwrap_or(1);
            let count = labels.ty().elems().0.max(1) as f64;
            let hot = labels.one_hot(classes, logits.dtype())?;
            let error = nn::softmax(&logits, -1)?.sub(&hot)?;
            error.mul(&(g * (1.0 / count))?)
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// [`nn::layer_norm`] over the last dimension.
    pub(crate) fn layer_norm(&self, gamma: &Var<'t>, beta: &Var<'t>, epsilon: f64) -> Result<Var<'t>> {
        let (normal, factor) = nn::normalize(&self.value, epsilon)?;
        let value = normal.mul(&gamma.value)?.add(&beta.value)?;
        let (weights, also_normal) = (gamma.value.clone(), normal.clone());
        let (of_gamma, of_beta) = (gamma.dims().to_vec(), beta.dims().to_vec());
        let to_x = move |g: &Tensor| {
            let h = g.mul(&weights)?;
            let shift = keep_last(h.mean(&[-1])?)?;
            let tilt = keep_last(h.mul(&normal)?.mean(&[-1])?)?;
            h.sub(&shift)?.sub(&normal.mul(&tilt)?)?.mul(&factor)
        };
        Ok(self.tape.result(
            value,
            [
                (self, Box::new(to_x)),
                (gamma, Box::new(move |g| unbroadcast(&g.mul(&also_normal)?, &of_gamma))),
                (beta, Box::new(move |g| unbroadcast(g, &of_beta))),
            ],
        ))
    }

    /// Rows of this table, `[words, width]`, by integer indices of any shape. Its gradient adds up the rows' gradients by
    /// a product with the indices as rows of zeros and a one, which needs no scatter.
    pub(crate) fn embedding(&self, indices: &Tensor) -> Result<Var<'t>> {
        let value = nn::embedding(&self.value, indices)?;
        let (indices, words) = (indices.clone(), self.dims().first().copied().unwrap_or(0));
        let pull = move |g: &Tensor| {
            let hot = indices.one_hot(words, g.dtype())?;
            let places: Vec<i64> = (0..indices.rank() as i64).collect();
            let numbers = DotDimensionNumbers {
                lhs_contracting: &places,
                rhs_contracting: &places,
                ..DotDimensionNumbers::default()
            };
            hot.dot_general(g, numbers)
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }
}
