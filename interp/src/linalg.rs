//! Matrix factorisations, and ops that are defined by other ops.
//!
//! Short floats are computed in `f32`, others in their own type. A multiply-add rounds once.

use fuseline_fusion::element::{
    Bits, Complex64, Elements, Store, from_complex, from_f64, to_complex, to_f64,
};
use fuseline_fusion::op::{Lowered, Transpose};
use fuseline_fusion::{DType, Literal};

use super::complex::div;
use super::{EvalCall, EvalError, check_steps, run_body};

/// A number of a matrix, with arithmetic that rounds each part to a type.
trait Scalar: Copy {
    const ZERO: Self;
    const ONE: Self;
    const NAN: Self;
    fn read(dtype: DType, bits: Bits) -> Self;
    fn write(self, dtype: DType) -> Bits;
    fn conjugate(self) -> Self;
    fn negated(self) -> Self;
    /// `self + a * b`.
    fn plus(self, a: Self, b: Self, dtype: DType) -> Self;
    fn over(self, by: Self, dtype: DType) -> Self;
    /// The root of the real part if that is positive; otherwise `None`.
    fn real_root(self, dtype: DType) -> Option<Self>;
}

fn round(dtype: DType, x: f64) -> f64 {
    to_f64(dtype, from_f64(dtype, x))
}

impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NAN: f64 = f64::NAN;
    fn read(dtype: DType, bits: Bits) -> f64 {
        to_f64(dtype, bits)
    }
    fn write(self, dtype: DType) -> Bits {
        from_f64(dtype, self)
    }
    fn conjugate(self) -> f64 {
        self
    }
    fn negated(self) -> f64 {
        -self
    }
    fn plus(self, a: f64, b: f64, dtype: DType) -> f64 {
        round(dtype, a.mul_add(b, self))
    }
    fn over(self, by: f64, dtype: DType) -> f64 {
        round(dtype, self / by)
    }
    fn real_root(self, dtype: DType) -> Option<f64> {
        (self > 0.0).then(|| round(dtype, self.sqrt()))
    }
}

impl Scalar for Complex64 {
    const ZERO: Complex64 = Complex64::new(0.0, 0.0);
    const ONE: Complex64 = Complex64::new(1.0, 0.0);
    const NAN: Complex64 = Complex64::new(f64::NAN, f64::NAN);
    fn read(dtype: DType, bits: Bits) -> Complex64 {
        to_complex(dtype, bits)
    }
    fn write(self, dtype: DType) -> Bits {
        from_complex(dtype, self)
    }
    fn conjugate(self) -> Complex64 {
        self.conj()
    }
    fn negated(self) -> Complex64 {
        -self
    }
    fn plus(self, a: Complex64, b: Complex64, dtype: DType) -> Complex64 {
        let part = dtype.part();
        let re = self.re.plus(a.re, b.re, part).plus(-a.im, b.im, part);
        Complex64::new(re, self.im.plus(a.re, b.im, part).plus(a.im, b.re, part))
    }
    fn over(self, by: Complex64, dtype: DType) -> Complex64 {
        to_complex(dtype, from_complex(dtype, div(self, by)))
    }
    fn real_root(self, dtype: DType) -> Option<Complex64> {
        self.re.real_root(dtype.part()).map(|root| Complex64::new(root, 0.0))
    }
}

/// The type in which an element type is computed.
fn wide(dtype: DType) -> DType {
    if dtype.size() < 4 { DType::F32 } else { dtype }
}

/// A triangular matrix.
struct Triangle<T> {
    size: usize,
    lower: bool,
    elements: Vec<T>,
}

impl<T: Scalar> Triangle<T> {
    /// Reads the matrix that starts at element `first`.
    fn read(literal: &Literal, first: usize, size: usize, lower: bool) -> Triangle<T> {
        let elements = Elements::of(literal);
        let element = |index| T::read(literal.dtype(), elements.get(first + index));
        Triangle { size, lower, elements: (0..size * size).map(element).collect() }
    }

    fn zeros(size: usize, lower: bool) -> Triangle<T> {
        Triangle { size, lower, elements: vec![T::ZERO; size * size] }
    }

    fn get(&self, row: usize, column: usize) -> T {
        self.elements[row * self.size + column]
    }

    fn set(&mut self, row: usize, column: usize, value: T) {
        self.elements[row * self.size + column] = value;
    }

    /// The adjoint, which is the other triangle with the same numbers.
    fn adjoint(&self) -> Triangle<T> {
        let mut adjoint = Triangle::zeros(self.size, !self.lower);
        for row in 0..self.size {
            for column in 0..self.size {
                adjoint.set(column, row, self.get(row, column).conjugate());
            }
        }
        adjoint
    }

    /// The lower factor, column by column, of the positive definite matrix with this lower
    /// triangle; `None` if it is not positive definite.
    fn factor(&self, dtype: DType) -> Option<Triangle<T>> {
        let mut factor: Triangle<T> = Triangle::zeros(self.size, true);
        for column in 0..self.size {
            let mut root = T::ZERO;
            for row in column..self.size {
                let sum = (0..column).fold(self.get(row, column), |sum, k| {
                    sum.plus(factor.get(row, k).negated(), factor.get(column, k).conjugate(), dtype)
                });
                if row == column {
                    root = sum.real_root(dtype)?;
                    factor.set(row, column, root);
                } else {
                    factor.set(row, column, sum.over(root, dtype));
                }
            }
        }
        Some(factor)
    }

    /// The inverse, row by row. With columns scaled so that the diagonal is ones, a row of the
    /// inverse is the negated sum of the rows before, weighted with the elements of this row.
    fn inverse(&self, unit_diagonal: bool, dtype: DType) -> Triangle<T> {
        let diagonal = |place: usize| if unit_diagonal { T::ONE } else { self.get(place, place) };
        let mut scaled: Triangle<T> = Triangle::zeros(self.size, self.lower);
        for step in 0..self.size {
            let row = if self.lower { step } else { self.size - 1 - step };
            scaled.set(row, row, T::ONE);
            let columns = if self.lower { 0..row } else { row + 1..self.size };
            for column in columns {
                let between = if self.lower { column..row } else { row + 1..column + 1 };
                let sum = between.fold(T::ZERO, |sum, k| {
                    let factor = self.get(row, k).over(diagonal(k), dtype);
                    sum.plus(factor.negated(), scaled.get(k, column), dtype)
                });
                scaled.set(row, column, sum);
            }
        }
        for row in 0..self.size {
            for column in 0..self.size {
                let inside = if self.lower { column <= row } else { column >= row };
                if inside {
                    scaled.set(row, column, scaled.get(row, column).over(diagonal(row), dtype));
                }
            }
        }
        scaled
    }
}

/// `cholesky`. If a matrix is not positive definite, all elements of both triangles are NaN, as in
/// XLA; the specification leaves them open. Only the requested triangle is read.
///
/// # Errors
/// If it takes too long.
pub(super) fn cholesky(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    if call.result().dtype().is_complex() { factored::<Complex64>(call) } else { factored::<f64>(call) }
}

fn factored<T: Scalar>(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (a, lower) = (call.operand(0), call.attr().bool(0));
    let (dtype, size) = (a.dtype(), a.dims()[a.ty().rank() - 1] as usize);
    check_steps(call, &[a.dims(), &[size as u64]])?;
    let mut store = Store::filled(call.result().clone(), 0);
    let matrix = size * size;
    for first in (0..a.ty().elems().get()).step_by(matrix.max(1)) {
        let triangle: Triangle<T> = Triangle::read(a, first, size, lower);
        let factor = if lower {
            triangle.factor(wide(dtype))
        } else {
            triangle.adjoint().factor(wide(dtype)).map(|factor| factor.adjoint())
        };
        for index in 0..matrix {
            let element = factor.as_ref().map_or(T::NAN, |factor| factor.elements[index]);
            store.set(first + index, element.write(dtype));
        }
    }
    Ok(vec![store.finish()])
}

/// `triangular_solve`, through the inverse of the matrix as XLA does for up to 128 rows, because
/// third-party cases expect the rounding of that method. Terms at even and odd positions are summed
/// separately.
///
/// # Errors
/// If it takes too long.
pub(super) fn triangular_solve(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    if call.result().dtype().is_complex() { solved::<Complex64>(call) } else { solved::<f64>(call) }
}

fn solved<T: Scalar>(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (a, b, attr) = (call.operand(0), call.operand(1), call.attr());
    let (left, lower, unit_diagonal) = (attr.bool(0), attr.bool(1), attr.bool(2));
    let rank = a.ty().rank();
    let (dtype, size) = (a.dtype(), a.dims()[rank - 1] as usize);
    check_steps(call, &[a.dims(), &[size as u64]])?;
    check_steps(call, &[b.dims(), &[size as u64]])?;
    let (rows, columns) = (b.dims()[rank - 2] as usize, b.dims()[rank - 1] as usize);
    let (wide, right_hand) = (wide(dtype), Elements::of(b));
    let transposed = attr.member(3) != Transpose::No as u8;
    let mut store = Store::filled(call.result().clone(), 0);
    let count = b.ty().elems().get().checked_div(rows * columns).unwrap_or(0);
    for matrix in 0..count {
        let triangle: Triangle<T> = Triangle::read(a, matrix * size * size, size, lower);
        let inverse = triangle.inverse(unit_diagonal, wide);
        let factor = |row: usize, column: usize| match attr.member(3) {
            code if code == Transpose::No as u8 => inverse.get(row, column),
            code if code == Transpose::Adjoint as u8 => inverse.get(column, row).conjugate(),
            _ => inverse.get(column, row),
        };
        let first = matrix * rows * columns;
        let known =
            |row: usize, column: usize| T::read(dtype, right_hand.get(first + row * columns + column));
        for row in 0..rows {
            for column in 0..columns {
                // The positions of a row or column inside the triangle.
                let place = if left { row } else { column };
                let before = (lower != transposed) == left;
                let inside = if before { 0..place + 1 } else { place..size };
                let mut sums = [T::ZERO; 2];
                for k in inside {
                    let (x, y) = if left {
                        (factor(row, k), known(k, column))
                    } else {
                        (known(row, k), factor(k, column))
                    };
                    sums[k % 2] = sums[k % 2].plus(x, y, wide);
                }
                let sum = sums[0].plus(sums[1], T::ONE, wide);
                store.set(first + row * columns + column, sum.write(dtype));
            }
        }
    }
    Ok(vec![store.finish()])
}

/// An op that the specification defines by other ops: runs those ops, which are also its lowering.
///
/// # Errors
/// As those ops.
pub(super) fn by_definition(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let lowered = (call.signature.def().lower)(&call.signature.call());
    let Lowered::Body(body) = lowered else { unreachable!("bug: {:?} has no definition", call.signature) };
    let results = run_body(call.arithmetic.in_order(), &body, call.operands)?;
    Ok(results.iter().map(|result| Literal::clone(result)).collect())
}
