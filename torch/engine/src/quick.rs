//! The ops that programs call most, without inference and arguments: on tensors of one type, each
//! all of its storage (`torch/csrc/quick.cpp`). The place in a list is the number at the border.

use fuseline::Tensor;
use smallvec::SmallVec;

type Result = fuseline::Result<Tensor>;

/// Of two tensors of one type and shape, or two matrices; comparisons give `bool`.
pub(crate) const TWO: [fn(&Tensor, &Tensor) -> Result; 11] = [
    Tensor::add,
    Tensor::sub,
    Tensor::mul,
    Tensor::div,
    Tensor::equal,
    Tensor::not_equal,
    Tensor::less,
    Tensor::less_equal,
    Tensor::greater,
    Tensor::greater_equal,
    Tensor::matmul,
];

/// Of a tensor and a number, which takes the type of the tensor; for floats.
pub(crate) const NUMBER: [fn(&Tensor, f64) -> Result; 4] =
    [|a, b| a + b, |a, b| a - b, |a, b| a * b, |a, b| a / b];

/// Of one tensor of floats.
pub(crate) const ONE: [fn(&Tensor) -> Result; 9] = [
    Tensor::neg,
    Tensor::exp,
    Tensor::log,
    Tensor::sqrt,
    Tensor::rsqrt,
    Tensor::sin,
    Tensor::cos,
    Tensor::tanh,
    Tensor::logistic,
];

/// The sum over dimensions, which stay with size 1 if it keeps them.
pub(crate) fn sum(x: &Tensor, axes: &[i64], keeps: bool) -> Result {
    let sum = x.sum(axes)?;
    if !keeps {
        return Ok(sum);
    }
    let dims: SmallVec<[usize; 6]> =
        (0..).zip(x.dims()).map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect();
    sum.reshape(&dims)
}
