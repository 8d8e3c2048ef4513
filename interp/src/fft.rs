//! Fourier transforms by definition: each element of a line is a sum over the whole line, in `f64`.

use std::f64::consts::TAU;

use fuseline_fusion::Literal;
use fuseline_fusion::element::{Complex64, Elements, Store, from_complex, from_f64, to_complex};
use fuseline_fusion::op::FftType;

use super::{EvalCall, EvalError, check_steps};

/// The transform of a line: sums with rotating factors. The inverse rotates backwards and omits the
/// scale.
fn transformed(line: &[Complex64], inverse: bool) -> Vec<Complex64> {
    let size = line.len();
    let turn = if inverse { TAU } else { -TAU };
    let turns: Vec<Complex64> =
        (0..size).map(|k| Complex64::from_polar(1.0, turn * k as f64 / size as f64)).collect();
    let sum = |place: usize| {
        let terms = line.iter().enumerate().map(|(k, &x)| {
            // The product of two positions may exceed the index type.
            let turned = (place as u128 * k as u128 % size as u128) as usize;
            x * turns[turned]
        });
        terms.sum()
    };
    (0..size).map(sum).collect()
}

/// `size` real numbers from the first half of their transform plus one element. Imaginary parts
/// that must be zero are ignored.
fn reals(half: &[Complex64], size: usize) -> Vec<Complex64> {
    let whole: Vec<Complex64> = (0..size)
        .map(|k| match k {
            _ if 2 * k % size == 0 => Complex64::new(half[k].re, 0.0),
            _ if 2 * k < size => half[k],
            _ => half[size - k].conj(),
        })
        .collect();
    inverse(&whole).iter().map(|x| Complex64::new(x.re, 0.0)).collect()
}

fn inverse(line: &[Complex64]) -> Vec<Complex64> {
    let size = line.len() as f64;
    transformed(line, true).iter().map(|x| x / size).collect()
}

/// A tensor during a transform.
struct Block {
    dims: Vec<u64>,
    elements: Vec<Complex64>,
}

impl Block {
    /// Replaces each line along a dimension by `change` of it, which has `size` elements.
    fn along(self, axis: usize, size: u64, change: impl Fn(&[Complex64]) -> Vec<Complex64>) -> Block {
        let mut dims = self.dims;
        let from = std::mem::replace(&mut dims[axis], size) as usize;
        let step = dims[axis + 1..].iter().product::<u64>() as usize;
        let mut elements = vec![Complex64::default(); dims.iter().product::<u64>() as usize];
        let lines = elements.len().checked_div(size as usize).unwrap_or(0);
        for line in 0..lines {
            let (outer, inner) = (line / step, line % step);
            let place = |size: usize, index: usize| (outer * size + index) * step + inner;
            let before: Vec<Complex64> = (0..from).map(|index| self.elements[place(from, index)]).collect();
            for (index, element) in change(&before).into_iter().enumerate() {
                elements[place(size as usize, index)] = element;
            }
        }
        Block { dims, elements }
    }
}

/// `fft` of all types. The last dimension is transformed first, or last for the inverse.
///
/// # Errors
/// If it takes too long.
pub(super) fn fft(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (operand, ty) = (call.operand(0), call.result());
    let lengths: Vec<u64> = call.attr().ints(1).iter().map(|&length| length as u64).collect();
    let first = ty.rank() - lengths.len();
    let last = ty.rank() - 1;
    for length in &lengths {
        check_steps(call, &[operand.dims(), &[*length]])?;
        check_steps(call, &[ty.dims(), &[*length]])?;
    }
    let elements = Elements::of(operand);
    let read = |index| to_complex(operand.dtype(), elements.get(index));
    let mut block =
        Block { dims: operand.dims().to_vec(), elements: (0..elements.len()).map(read).collect() };
    let (kind, size) = (call.attr().member(0), ty.dims()[last]);
    match kind {
        code if code == FftType::Fft as u8 || code == FftType::Rfft as u8 => {
            block = block.along(last, size, |line| {
                let mut line = transformed(line, false);
                line.truncate(size as usize);
                line
            });
            for (axis, &length) in lengths.iter().enumerate().rev().skip(1) {
                block = block.along(first + axis, length, |line| transformed(line, false));
            }
        }
        _ => {
            for (axis, &length) in lengths[..lengths.len() - 1].iter().enumerate() {
                block = block.along(first + axis, length, inverse);
            }
            let real = kind == FftType::Irfft as u8;
            block =
                block.along(last, size, |line| if real { reals(line, size as usize) } else { inverse(line) });
        }
    }
    let write = |x: &Complex64| {
        if ty.dtype().is_complex() { from_complex(ty.dtype(), *x) } else { from_f64(ty.dtype(), x.re) }
    };
    Ok(vec![Store::collect(ty.clone(), block.elements.iter().map(write)).finish()])
}
