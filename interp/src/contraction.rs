//! Products summed over dimensions: `dot_general` and `convolution`.
//!
//! The result's element type decides the arithmetic. A sum of `f32` is accumulated in `f32`, in
//! order. Executors that are compared with it also accumulate in `f32`, in some order. If terms
//! cancel, a sum that is rounded once would be further from theirs than they are from each other.
//! Sums of other floats are accumulated in `f64` and rounded once. Integer sums are computed modulo
//! 2^64, which gives the sum in any result type, because wrapping commutes with sums and products.
//! A `bool` sum is an `or` of `and`s. The precision attribute of a call therefore has no effect
//! here.

use fuseline_fusion::element::{
    Bits, Complex64, Elements, Store, from_complex, from_f64, from_int, to_complex, to_f64, to_int,
};
use fuseline_fusion::op::dims::{ConvDims, DotDims, conv_attr, conv_window};
use fuseline_fusion::{DType, DTypeClass, Literal};
use num_complex::Complex;

use super::index::{Indices, Walk, strides};
use super::{EvalCall, EvalError, SumOrder, check_steps, fast_f32, gemm};

/// A number in the arithmetic of a contraction.
pub(super) trait Term: Copy {
    const ZERO: Self;
    fn read(dtype: DType, bits: Bits) -> Self;
    /// `self + a * b`.
    fn plus(self, a: Self, b: Self) -> Self;
    fn write(self, dtype: DType) -> Bits;
}

impl Term for f64 {
    const ZERO: f64 = 0.0;
    fn read(dtype: DType, bits: Bits) -> f64 {
        to_f64(dtype, bits)
    }
    fn plus(self, a: f64, b: f64) -> f64 {
        self + a * b
    }
    fn write(self, dtype: DType) -> Bits {
        from_f64(dtype, self)
    }
}

impl Term for f32 {
    const ZERO: f32 = 0.0;
    fn read(dtype: DType, bits: Bits) -> f32 {
        to_f64(dtype, bits) as f32
    }
    fn plus(self, a: f32, b: f32) -> f32 {
        self + a * b
    }
    fn write(self, dtype: DType) -> Bits {
        from_f64(dtype, f64::from(self))
    }
}

impl Term for i64 {
    const ZERO: i64 = 0;
    fn read(dtype: DType, bits: Bits) -> i64 {
        to_int(dtype, bits) as i64
    }
    fn plus(self, a: i64, b: i64) -> i64 {
        self.wrapping_add(a.wrapping_mul(b))
    }
    fn write(self, dtype: DType) -> Bits {
        from_int(dtype, self.into())
    }
}

impl Term for bool {
    const ZERO: bool = false;
    fn read(_dtype: DType, bits: Bits) -> bool {
        bits != 0
    }
    fn plus(self, a: bool, b: bool) -> bool {
        self | (a & b)
    }
    fn write(self, _dtype: DType) -> Bits {
        self.into()
    }
}

impl Term for Complex<f32> {
    const ZERO: Complex<f32> = Complex::new(0.0, 0.0);
    fn read(dtype: DType, bits: Bits) -> Complex<f32> {
        let value = to_complex(dtype, bits);
        Complex::new(value.re as f32, value.im as f32)
    }
    fn plus(self, a: Complex<f32>, b: Complex<f32>) -> Complex<f32> {
        self + a * b
    }
    fn write(self, dtype: DType) -> Bits {
        from_complex(dtype, Complex::new(self.re.into(), self.im.into()))
    }
}

impl Term for Complex64 {
    const ZERO: Complex64 = Complex64::new(0.0, 0.0);
    fn read(dtype: DType, bits: Bits) -> Complex64 {
        to_complex(dtype, bits)
    }
    fn plus(self, a: Complex64, b: Complex64) -> Complex64 {
        self + a * b
    }
    fn write(self, dtype: DType) -> Bits {
        from_complex(dtype, self)
    }
}

/// The elements of a literal at the offsets of a walk.
fn terms<T: Term>(literal: &Literal, walk: Walk) -> Vec<T> {
    let elements = Elements::of(literal);
    walk.map(|offset| T::read(literal.dtype(), elements.get(offset))).collect()
}

/// All elements, in order.
pub(super) fn all_terms<T: Term>(literal: &Literal) -> Vec<T> {
    let elements = Elements::of(literal);
    (0..elements.len()).map(|index| T::read(literal.dtype(), elements.get(index))).collect()
}

/// Runs a contraction in the arithmetic for its result's element type.
macro_rules! contract {
    ($contraction:ident, $call:expr) => {
        match $call.result().dtype().class() {
            DTypeClass::Float if $call.result().dtype() == DType::F32 => $contraction::<f32>($call),
            DTypeClass::Float => $contraction::<f64>($call),
            DTypeClass::Complex if $call.result().dtype() == DType::C64 => {
                $contraction::<num_complex::Complex<f32>>($call)
            }
            DTypeClass::Complex => $contraction::<num_complex::Complex<f64>>($call),
            DTypeClass::Bool => $contraction::<bool>($call),
            DTypeClass::Signed | DTypeClass::Unsigned => $contraction::<i64>($call),
        }
    };
}
pub(super) use contract;

/// `dot_general`.
///
/// # Errors
/// If there are too many products.
pub(super) fn dot_general(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    match call.result().dtype() {
        DType::F32 => dot_f32(call),
        _ => contract!(dot, call),
    }
}

/// An operand of a dot.
struct Side<'a> {
    operand: &'a Literal,
    batch: &'a [i64],
    contract: &'a [i64],
    rest: Vec<i64>,
}

impl<'a> Side<'a> {
    fn new(operand: &'a Literal, batch: &'a [i64], contract: &'a [i64]) -> Side<'a> {
        let used = |axis: &i64| batch.contains(axis) || contract.contains(axis);
        let rest = (0..operand.ty().rank() as i64).filter(|axis| !used(axis)).collect();
        Side { operand, batch, contract, rest }
    }

    /// Both operands, and the number of matrices, their rows, terms per sum, and columns.
    ///
    /// # Errors
    /// If there are too many products.
    fn both(call: &EvalCall<'a>) -> Result<([Side<'a>; 2], [usize; 4]), EvalError> {
        let dims = DotDims::of(call.attr());
        let lhs = Side::new(call.operand(0), dims.lhs_batch, dims.lhs_contract);
        let rhs = Side::new(call.operand(1), dims.rhs_batch, dims.rhs_contract);
        let summed: Vec<u64> = lhs.contract.iter().map(|&axis| lhs.operand.dims()[axis as usize]).collect();
        check_steps(call, &[call.result().dims(), &summed])?;
        let sizes = [lhs.size(lhs.batch), lhs.size(&lhs.rest), lhs.size(lhs.contract), rhs.size(&rhs.rest)];
        Ok(([lhs, rhs], sizes))
    }

    /// The product of the sizes of some axes.
    fn size(&self, axes: &[i64]) -> usize {
        axes.iter().map(|&axis| self.operand.dims()[axis as usize] as usize).product()
    }

    /// A walk by batch, then through a matrix whose rows are the result's rows.
    fn by_rows(&self) -> Walk {
        self.walk(self.rest.iter().chain(self.contract))
    }

    /// The same with a matrix whose columns are the result's columns.
    fn by_columns(&self) -> Walk {
        self.walk(self.contract.iter().chain(&self.rest))
    }

    fn walk<'b>(&'b self, matrix: impl Iterator<Item = &'b i64> + Clone) -> Walk {
        let (dims, strides) = (self.operand.dims(), strides(self.operand.dims()));
        let order = self.batch.iter().chain(matrix).map(|&axis| axis as usize);
        Walk::new(0, order.clone().map(|axis| dims[axis]), order.map(|axis| strides[axis]))
    }

    /// The matrices, with the result's rows as rows or its columns as columns. If one of the two
    /// orders is that of memory, it is used.
    fn matrices(&self, by_rows: bool) -> gemm::Matrices {
        let other_way = match by_rows {
            true => self.batch.iter().chain(self.contract).chain(&self.rest),
            false => self.batch.iter().chain(&self.rest).chain(self.contract),
        };
        let is_turned = other_way.is_sorted();
        let walk = if by_rows != is_turned { self.by_rows() } else { self.by_columns() };
        gemm::Matrices { data: self.floats(walk), is_turned }
    }

    fn floats(&self, walk: Walk) -> Vec<f32> {
        match self.operand.dtype() {
            DType::F32 => fast_f32::floats(self.operand, walk),
            _ => terms(self.operand, walk),
        }
    }
}

/// Minimum number of results in a row for computing them in parallel.
const FEW: usize = 4;

/// The same sums as [`dot`], with the results of a row or column computed in parallel.
fn dot_f32(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let ([lhs, rhs], [batch, rows, depth, columns]) = Side::both(call)?;
    let ty = call.result();
    if call.arithmetic.sums == SumOrder::AnyOrder && gemm::pays([rows, depth, columns]) {
        let results = gemm::product(&lhs.matrices(true), &rhs.matrices(false), [batch, rows, depth, columns]);
        return Ok(vec![fast_f32::of_floats(ty, results.into_iter())]);
    }
    if columns >= FEW || rows < FEW {
        let (lhs, rhs) = (lhs.floats(lhs.by_rows()), rhs.floats(rhs.by_columns()));
        let results = fast_f32::product(&lhs, &rhs, [batch, rows, depth, columns], call.arithmetic.sums);
        return Ok(vec![fast_f32::of_floats(ty, results.into_iter())]);
    }
    let (lhs, rhs) = (lhs.floats(lhs.by_columns()), rhs.floats(rhs.by_rows()));
    let turned = fast_f32::product(&rhs, &lhs, [batch, columns, depth, rows], call.arithmetic.sums);
    let sizes = [batch, rows, columns].map(|size| size as u64);
    let walk = Walk::new(0, sizes, [(columns * rows) as isize, 1, rows as isize]);
    Ok(vec![fast_f32::of_floats(ty, walk.map(|place| turned[place]))])
}

pub(super) fn dot<T: Term>(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (ty, dtype) = (call.result().clone(), call.result().dtype());
    let ([lhs, rhs], [batch, rows, depth, columns]) = Side::both(call)?;
    let lhs: Vec<T> = terms(lhs.operand, lhs.by_rows());
    let rhs: Vec<T> = terms(rhs.operand, rhs.by_rows());
    let mut store = Store::filled(ty, 0);
    let mut place = 0;
    for batch in 0..batch {
        for row in 0..rows {
            let left = &lhs[(batch * rows + row) * depth..][..depth];
            for column in 0..columns {
                let right = &rhs[(batch * columns + column) * depth..][..depth];
                let sum = left.iter().zip(right).fold(T::ZERO, |sum, (&a, &b)| sum.plus(a, b));
                store.set(place, sum.write(dtype));
                place += 1;
            }
        }
    }
    Ok(vec![store.finish()])
}

/// `convolution`.
///
/// # Errors
/// If there are too many products.
pub(super) fn convolution(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let checked = call.signature.call();
    let dims = ConvDims::of(&checked).expect("bug: checked dimension numbers are rejected");
    let kernel = call.operand(1).dims();
    let summed: Vec<u64> = dims.kernel_spatial.iter().map(|&axis| kernel[axis]).collect();
    check_steps(call, &[call.result().dims(), &summed, &[kernel[dims.kernel_input_feature]]])?;
    if call.arithmetic.sums == SumOrder::AnyOrder && is_f32(call) {
        return Ok(vec![gemm::convolution(call)]);
    }
    contract!(convolve, call)
}

/// Whether operands and result are `f32`.
fn is_f32(call: &EvalCall<'_>) -> bool {
    let operands = call.operands.iter().map(|operand| operand.dtype());
    operands.chain([call.result().dtype()]).all(|dtype| dtype == DType::F32)
}

fn convolve<T: Term>(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let checked = call.signature.call();
    let dims = ConvDims::of(&checked).expect("bug: checked dimension numbers are rejected");
    let window = conv_window(&checked, &dims).expect("bug: a checked window is rejected");
    let reversal = call.attr().bools(conv_attr::REVERSAL);
    let feature_groups = call.attr().int(conv_attr::FEATURE_GROUPS) as u64;
    let batch_groups = call.attr().int(conv_attr::BATCH_GROUPS) as u64;
    let (lhs, rhs, ty) = (call.operand(0), call.operand(1), call.result());
    let (input_strides, kernel_strides) = (strides(lhs.dims()), strides(rhs.dims()));
    let depth = rhs.dims()[dims.kernel_input_feature];
    let sizes: Vec<u64> = window.iter().map(|dim| dim.size).collect();
    let (inputs, kernel): (Vec<T>, Vec<T>) = (all_terms(lhs), all_terms(rhs));
    // Each group of output features has its own input: a part of the features, or of the batch.
    let outputs = rhs.dims()[dims.kernel_output_feature];
    let per_feature_group = (outputs / feature_groups).max(1);
    let per_batch_group = (outputs / batch_groups).max(1);
    let batch = ty.dims()[dims.output_batch];
    let input_feature_step = input_strides[dims.input_feature] as usize;
    let kernel_feature_step = kernel_strides[dims.kernel_input_feature] as usize;

    let mut store = Store::filled(ty.clone(), 0);
    let mut positions = Indices::below(ty.dims());
    let mut place = 0;
    while let Some(position) = positions.advance() {
        let feature = position[dims.output_feature];
        let input_batch = feature / per_batch_group * batch + position[dims.output_batch];
        let first = input_batch as usize * input_strides[dims.input_batch] as usize
            + (feature / per_feature_group * depth) as usize * input_feature_step;
        let filter = feature as usize * kernel_strides[dims.kernel_output_feature] as usize;
        let mut sum = T::ZERO;
        let mut offsets = Indices::below(&sizes);
        while let Some(offset) = offsets.advance() {
            let (mut input, mut weight) = (Some(first), filter);
            for (axis, dim) in window.iter().enumerate() {
                let along = dims.input_spatial[axis];
                let at = position[dims.output_spatial[axis]];
                let index = dim.element(at, offset[axis], lhs.dims()[along]);
                let step = input_strides[along] as usize;
                input = input.zip(index).map(|(input, index)| input + index * step);
                let tap = if reversal[axis] { dim.size - 1 - offset[axis] } else { offset[axis] };
                weight += tap as usize * kernel_strides[dims.kernel_spatial[axis]] as usize;
            }
            for channel in 0..depth as usize {
                // Padding is multiplied like any zero, so an infinite or NaN weight propagates.
                let element = input.map_or(T::ZERO, |input| inputs[input + channel * input_feature_step]);
                sum = sum.plus(element, kernel[weight + channel * kernel_feature_step]);
            }
        }
        store.set(place, sum.write(ty.dtype()));
        place += 1;
    }
    Ok(vec![store.finish()])
}
