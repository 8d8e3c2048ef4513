//! Gradients with a tape: reverse-mode differentiation on top of plain tensors.
//!
//! Fuseline records ops and fuses them, but has no gradients. A front end that needs them keeps a
//! tape like this one. Each function here computes its result with ordinary tensor ops. If an input
//! needs a gradient, the function also notes how the gradient of the result becomes that of the
//! input (a *pullback*), by the rules of `fuseline::nn::grad`. [`Tape::gradients`] processes the
//! notes in reverse order. Both directions are recorded op by op and end up in the same fused
//! region.
//!
//! ```ignore
//! let tape = Tape::new();
//! let (w, b) = (tape.leaf(&weights), tape.leaf(&bias));
//! let loss = tape.constant(&images).matmul(&w)?.add(&b)?.relu()?.mean()?;
//! let gradients = tape.gradients(&loss, &[w, b])?;
//! ```

use std::cell::RefCell;

use fuseline::nn::grad::{self, Convolution, unbroadcast};
use fuseline::nn::{self, CrossEntropy, Pool, Resize};
use fuseline::random::Generator;
use fuseline::{Result, Tensor};

/// Maps the gradient of a result to that of an input.
type Pullback = Box<dyn FnOnce(&Tensor) -> Result<Tensor>>;

/// The inputs of a value, with the pullback to each. A leaf has none.
type Edges = Vec<(usize, Pullback)>;

/// Joins the gradients of parts into that of the whole.
type JoinParts = Box<dyn FnOnce(&[Option<Tensor>]) -> Result<Tensor>>;

/// An entry of the tape: how gradients are passed on.
enum Step {
    /// The gradient of one value.
    One(Edges),
    /// The gradients of the next `parts` values, which are the parts of one input.
    Parts { parts: usize, input: usize, join: JoinParts },
}

/// The computed values, in order.
#[derive(Default)]
pub(crate) struct Tape {
    steps: RefCell<Vec<Step>>,
}

/// A tensor with its history on a tape.
#[derive(Clone)]
pub(crate) struct Var<'t> {
    tape: &'t Tape,
    /// Its position on the tape; `None` if it depends on no leaf.
    place: Option<usize>,
    value: Tensor,
}

impl Tape {
    pub(crate) fn new() -> Tape {
        Tape::default()
    }

    /// A tensor that needs a gradient: a parameter.
    pub(crate) fn leaf(&self, value: &Tensor) -> Var<'_> {
        Var { tape: self, place: Some(self.push(Step::One(Vec::new()))), value: value.clone() }
    }

    /// A tensor that needs no gradient: data.
    pub(crate) fn constant(&self, value: &Tensor) -> Var<'_> {
        Var { tape: self, place: None, value: value.clone() }
    }

    fn push(&self, step: Step) -> usize {
        let mut tape = self.steps.borrow_mut();
        tape.push(step);
        tape.len() - 1
    }

    /// Records a result with its pullback to each input. Inputs that are not on the tape need none.
    fn result<const N: usize>(&self, value: Tensor, inputs: [(&Var<'_>, Pullback); N]) -> Var<'_> {
        let edges: Edges =
            inputs.into_iter().filter_map(|(input, pullback)| Some((input.place?, pullback))).collect();
        let place = if edges.is_empty() { None } else { Some(self.push(Step::One(edges))) };
        Var { tape: self, place, value }
    }

    /// Returns the gradients of `loss`, a scalar, with respect to leaves; zeros if it does not
    /// depend on them. Empties the tape.
    ///
    /// An intermediate gradient is dropped as soon as it is passed on, so that its memory can be
    /// reused.
    pub(crate) fn gradients(&self, loss: &Var<'_>, leaves: &[Var<'_>]) -> Result<Vec<Tensor>> {
        let mut steps = std::mem::take(&mut *self.steps.borrow_mut());
        let mut gradients: Vec<Option<Tensor>> = vec![None; steps.len()];
        if let Some(place) = loss.place {
            gradients[place] = Some(filled(&loss.value, 1.0)?);
        }
        let pass_on = |gradients: &mut [Option<Tensor>], input: usize, more: Tensor| -> Result<()> {
            gradients[input] = Some(match gradients[input].take() {
                None => more,
                Some(sum) => sum.add(&more)?,
            });
            Ok(())
        };
        while let Some(step) = steps.pop() {
            let place = steps.len();
            match step {
                // A leaf, or a part that is joined with others, keeps its gradient.
                Step::One(edges) if edges.is_empty() => {}
                Step::One(edges) => {
                    let Some(gradient) = gradients[place].take() else { continue };
                    for (input, pullback) in edges {
                        pass_on(&mut gradients, input, pullback(&gradient)?)?;
                    }
                }
                Step::Parts { parts, input, join } => {
                    let arrived = &mut gradients[place + 1..=place + parts];
                    if arrived.iter().all(Option::is_none) {
                        continue;
                    }
                    let whole = join(arrived)?;
                    arrived.fill(None);
                    pass_on(&mut gradients, input, whole)?;
                }
            }
        }
        let found = leaves.iter().map(|leaf| {
            let gradient = leaf.place.and_then(|place| gradients.get(place).cloned().flatten());
            gradient.map_or_else(|| filled(&leaf.value, 0.0), Ok)
        });
        found.collect()
    }
}

/// A tensor with the shape and type of another, filled with a number.
fn filled(like: &Tensor, number: f64) -> Result<Tensor> {
    let zeros = like.on_stream().zeros(like.dtype(), like.dims())?;
    if number == 0.0 { Ok(zeros) } else { &zeros + number }
}

impl<'t> Var<'t> {
    /// The tape of its history.
    pub(crate) fn tape(&self) -> &'t Tape {
        self.tape
    }

    /// The tensor.
    pub(crate) fn value(&self) -> &Tensor {
        &self.value
    }

    /// The sizes of its dimensions.
    pub(crate) fn dims(&self) -> &[usize] {
        self.value.dims()
    }

    // ----- elementwise -----

    /// The sum; shapes broadcast.
    pub(crate) fn add(&self, rhs: &Var<'t>) -> Result<Var<'t>> {
        let value = self.value.add(&rhs.value)?;
        let (a, b) = (self.dims().to_vec(), rhs.dims().to_vec());
        Ok(self.tape.result(
            value,
            [(self, Box::new(move |g| unbroadcast(&a, g))), (rhs, Box::new(move |g| unbroadcast(&b, g)))],
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
                (self, Box::new(move |g| unbroadcast(&da, &g.mul(&b)?))),
                (rhs, Box::new(move |g| unbroadcast(&db, &g.mul(&a)?))),
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
        let pull = move |g: &Tensor| grad::relu(&result, g);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// The Gaussian error linear unit in its tanh form, [`nn::gelu`].
    pub(crate) fn gelu(&self) -> Result<Var<'t>> {
        let value = nn::gelu(&self.value)?;
        let x = self.value.clone();
        let pull = move |g: &Tensor| grad::gelu(&x, g);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// The logistic function, `1 / (1 + exp(-x))`.
    pub(crate) fn logistic(&self) -> Result<Var<'t>> {
        let value = self.value.logistic()?;
        let y = value.clone();
        // g y (1 - y)
        let pull = move |g: &Tensor| {
            let share = g.mul(&y)?;
            share.sub(&share.mul(&y)?)
        };
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// The hyperbolic tangent.
    pub(crate) fn tanh(&self) -> Result<Var<'t>> {
        let value = self.value.tanh()?;
        let y = value.clone();
        // g (1 - y^2)
        let pull = move |g: &Tensor| g.sub(&g.mul(&y.mul(&y)?)?);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    // ----- shapes and sums -----

    /// The same elements in another shape.
    pub(crate) fn reshape(&self, dims: &[usize]) -> Result<Var<'t>> {
        let value = self.value.reshape(dims)?;
        let before = self.dims().to_vec();
        Ok(self.tape.result(value, [(self, Box::new(move |g| g.reshape(&before)))]))
    }

    /// Permutes the dimensions.
    pub(crate) fn transpose(&self, permutation: &[i64]) -> Result<Var<'t>> {
        let value = self.value.transpose(permutation)?;
        let mut inverse = vec![0; permutation.len()];
        for (to, &from) in permutation.iter().enumerate() {
            inverse[from as usize] = to as i64;
        }
        Ok(self.tape.result(value, [(self, Box::new(move |g| g.transpose(&inverse)))]))
    }

    /// Elements `start` to `limit`, excluding `limit`, of dimension `axis`, and all of the others.
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

    /// Splits dimension `axis` into `parts` equal parts. Their gradients are joined by one
    /// concatenation; those of [`Var::narrow`] are padded and added.
    pub(crate) fn split(&self, axis: usize, parts: usize) -> Result<Vec<Var<'t>>> {
        let width = self.dims()[axis] as i64 / parts as i64;
        let values =
            (0..parts as i64).map(|part| self.value.narrow(axis as i64, part * width, (part + 1) * width));
        let values = values.collect::<Result<Vec<Tensor>>>()?;
        let Some(input) = self.place else {
            return Ok(values.iter().map(|value| self.tape.constant(value)).collect());
        };
        let like = values.clone();
        let join = move |arrived: &[Option<Tensor>]| {
            let each = arrived.iter().zip(&like).map(|(gradient, like)| match gradient {
                Some(gradient) => Ok(gradient.clone()),
                None => filled(like, 0.0),
            });
            let each = each.collect::<Result<Vec<Tensor>>>()?;
            Tensor::concatenate(&each.iter().collect::<Vec<_>>(), axis as i64)
        };
        self.tape.push(Step::Parts { parts, input, join: Box::new(join) });
        Ok(values.iter().map(|value| self.tape.leaf(value)).collect())
    }

    /// The sum over dimensions, which are removed.
    pub(crate) fn sum(&self, axes: &[i64]) -> Result<Var<'t>> {
        let value = self.value.sum(axes)?;
        let dims = self.dims().to_vec();
        let summed = axes.to_vec();
        Ok(self.tape.result(value, [(self, Box::new(move |g| grad::sum(&dims, &summed, g)))]))
    }

    /// The mean of all elements, a scalar.
    pub(crate) fn mean(&self) -> Result<Var<'t>> {
        let axes: Vec<i64> = (0..self.value.rank() as i64).collect();
        self.sum(&axes)?.scale(1.0 / self.value.ty().elems().0 as f64)
    }

    // ----- products -----

    /// The matrix product; batches broadcast.
    pub(crate) fn matmul(&self, rhs: &Var<'t>) -> Result<Var<'t>> {
        let value = self.value.matmul(&rhs.value)?;
        let (a, b) = (self.value.clone(), rhs.value.clone());
        let (of_a, of_b) = (self.dims().to_vec(), rhs.dims().to_vec());
        Ok(self.tape.result(
            value,
            [
                (self, Box::new(move |g| grad::matmul_lhs(&of_a, &b, g))),
                (rhs, Box::new(move |g| grad::matmul_rhs(&a, &of_b, g))),
            ],
        ))
    }

    /// A two-dimensional convolution of images `[batch, height, width, in]` with a kernel `[kh, kw,
    /// in, out]`.
    pub(crate) fn conv2d(&self, kernel: &Var<'t>, stride: i64, padding: i64) -> Result<Var<'t>> {
        let conv = Convolution {
            stride: vec![stride; 2],
            padding: vec![(padding, padding); 2],
            ..Convolution::new(2)
        };
        let value = conv.apply(&self.value, &kernel.value)?;
        let (image, filter) = (self.value.clone(), kernel.value.clone());
        let (of_image, of_kernel) = (self.dims().to_vec(), kernel.dims().to_vec());
        let also = conv.clone();
        Ok(self.tape.result(
            value,
            [
                (self, Box::new(move |g| conv.input_gradient(&of_image, &filter, g))),
                (kernel, Box::new(move |g| also.kernel_gradient(&image, &of_kernel, g))),
            ],
        ))
    }

    /// The mean of each `size` by `size` square of images `[batch, height, width, features]`, whose
    /// sides `size` divides.
    pub(crate) fn mean_pool(&self, size: usize) -> Result<Var<'t>> {
        let &[batch, height, width, features] = self.dims() else {
            unreachable!("images have four dimensions: {:?}", self.dims());
        };
        let squares = [batch, height / size, size, width / size, size, features];
        self.reshape(&squares)?.sum(&[2, 4])?.scale(1.0 / (size * size) as f64)
    }

    /// [`nn::max_pool`].
    pub(crate) fn max_pool(&self, pool: &Pool) -> Result<Var<'t>> {
        let value = nn::max_pool(&self.value, pool)?;
        let (x, pool) = (self.value.clone(), pool.clone());
        Ok(self.tape.result(value, [(self, Box::new(move |g| grad::max_pool(&x, &pool, g)))]))
    }

    /// [`nn::avg_pool`].
    pub(crate) fn avg_pool(&self, pool: &Pool) -> Result<Var<'t>> {
        let value = nn::avg_pool(&self.value, pool)?;
        let (dims, pool) = (self.dims().to_vec(), pool.clone());
        Ok(self.tape.result(value, [(self, Box::new(move |g| grad::avg_pool(&dims, &pool, g)))]))
    }

    /// [`nn::resize`].
    pub(crate) fn resize(&self, sizes: &[usize], settings: Resize) -> Result<Var<'t>> {
        let value = nn::resize(&self.value, sizes, settings)?;
        let dims = self.dims().to_vec();
        Ok(self.tape.result(value, [(self, Box::new(move |g| grad::resize(&dims, settings, g)))]))
    }

    // ----- composites -----

    /// [`nn::dropout`].
    pub(crate) fn dropout(&self, rate: f64, generator: &mut Generator) -> Result<Var<'t>> {
        let before = generator.clone();
        let value = nn::dropout(&self.value, rate, generator)?;
        Ok(self.tape.result(value, [(self, Box::new(move |g| grad::dropout(rate, &before, g)))]))
    }

    /// [`nn::softmax`] along the last dimension.
    pub(crate) fn softmax(&self) -> Result<Var<'t>> {
        let value = nn::softmax(&self.value, -1)?;
        let result = value.clone();
        let pull = move |g: &Tensor| grad::softmax(&result, -1, g);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// [`nn::cross_entropy`] with integer labels.
    pub(crate) fn cross_entropy(&self, labels: &Tensor) -> Result<Var<'t>> {
        let value = nn::cross_entropy(&self.value, labels)?;
        let (logits, labels) = (self.value.clone(), labels.clone());
        let pull = move |g: &Tensor| grad::cross_entropy(&logits, &labels, &CrossEntropy::default(), g);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// [`nn::normalize`]: mean 0 and variance 1 over the given dimensions, like batch normalization
    /// in training.
    pub(crate) fn normalize(&self, axes: &[i64], epsilon: f64) -> Result<Var<'t>> {
        let (value, factor) = nn::normalize(&self.value, axes, epsilon)?;
        let (normal, axes) = (value.clone(), axes.to_vec());
        let pull = move |g: &Tensor| grad::normalize(&normal, &factor, &axes, g);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }

    /// [`nn::layer_norm`] over the last dimension.
    pub(crate) fn layer_norm(&self, gamma: &Var<'t>, beta: &Var<'t>, epsilon: f64) -> Result<Var<'t>> {
        self.normalize(&[-1], epsilon)?.mul(gamma)?.add(beta)
    }

    /// [`nn::embedding`]: rows of this table, `[words, width]`, by integer indices of any shape.
    pub(crate) fn embedding(&self, indices: &Tensor) -> Result<Var<'t>> {
        let value = nn::embedding(&self.value, indices)?;
        let (indices, words) = (indices.clone(), self.dims().first().copied().unwrap_or(0));
        let pull = move |g: &Tensor| grad::embedding(words, &indices, g);
        Ok(self.tape.result(value, [(self, Box::new(pull))]))
    }
}
