//! Replaces ops that a plugin computes in two ways.
//!
//! XLA's CPU backend (API 0.81) computes `exponential` and `log` of `f32` by polynomials in vectors
//! of 4 and 8, and by the C library where a vector of 2 is left over at the end of a row. It
//! computes `log_plus_one` by one polynomial in vectors and by another in scalars, and `rsqrt` by
//! an approximation in some vectors and by a root and a division elsewhere. Which code an element
//! gets depends on the shape and on the rest of the kernel, so equal elements of one tensor can
//! have different results. (Each elementwise op on rows of 1 to 80 numbers against rows of 80,
//! 2026-11-22; `f64` only `rsqrt`. Ops that the plugin expands into these are
//! [`super::context_dependent_op`].) Newer versions (API 0.106 and 0.115) also compute `erf` of
//! `f32` by other code at the end of a row.
//!
//! This module expands them into ops that IEEE 754 rounds in exactly one way, with fences between
//! them. Results are accurate to 2 units in the last place, those of `erf` to 3.

use std::sync::Arc;

use smallvec::smallvec;

use crate::attr::Attrs;
use crate::dtype::{DType, RealElement};
use crate::ir::{OpCode, Ref, Signature};
use crate::literal::Scalar;
use crate::lower::legalized::{Plain, Writer};
use crate::lower::unsteady::is_unsteady;
use crate::op::{Comparison, attrs};
use crate::shape::Shape;

/// The function with its unsteady ops expanded.
#[must_use]
pub fn steady(plain: Plain) -> Plain {
    let graph = plain.function.graph();
    if !graph.nodes().iter().any(|node| is_unsteady(node.signature())) {
        return plain;
    }
    plain.rewritten(
        |_| (),
        |writer, (), node, operands| {
            let results = if is_unsteady(node.signature()) {
                smallvec![writer.steady(node.signature(), operands[0])]
            } else {
                writer.graph.push_signature(node.signature().clone(), operands)
            };
            results.into_iter().map(|result| (result, result)).collect()
        },
    )
}

impl Writer {
    fn plain(&mut self, op: OpCode, operands: &[Ref]) -> Ref {
        self.op(op, Attrs::none(), operands)
    }

    fn splat<T: RealElement>(&mut self, value: T, shape: &Shape) -> Ref {
        let scalar =
            self.op(OpCode::Constant, attrs::constant(Arc::new(Scalar::new(value).to_literal())), &[]);
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &[]), &[scalar])
    }

    fn is(&mut self, comparison: Comparison, a: Ref, b: Ref) -> Ref {
        let dtype = self.type_of(a).dtype();
        self.op(OpCode::Compare, attrs::compare_for(comparison, dtype), &[a, b])
    }

    /// `a * b + c`, rounded twice.
    fn multiplied_and_added(&mut self, a: Ref, b: Ref, c: Ref) -> Ref {
        let product = self.plain(OpCode::Multiply, &[a, b]);
        self.plain(OpCode::Add, &[product, c])
    }

    /// A polynomial by Horner's rule, from the coefficient of the highest power.
    fn polynomial(&mut self, x: Ref, coefficients: &[f32], shape: &Shape) -> Ref {
        let mut terms = coefficients.iter();
        let first = terms.next().copied().unwrap_or_default();
        let mut sum = self.splat(first, shape);
        for &term in terms {
            let term = self.splat(term, shape);
            sum = self.multiplied_and_added(sum, x, term);
        }
        sum
    }

    /// The expansion of an unsteady op.
    fn steady(&mut self, signature: &Signature, x: Ref) -> Ref {
        let ty = self.type_of(x);
        let (dtype, shape) = (ty.dtype(), ty.shape());
        if signature.op() == OpCode::Rsqrt && dtype.bits() > 32 {
            let one = self.splat(1.0f64, shape);
            let root = self.plain(OpCode::Sqrt, &[x]);
            return self.plain(OpCode::Divide, &[one, root]);
        }
        // Short floats are computed in `f32`, as the plugin does.
        let wide = match dtype {
            DType::F32 => x,
            _ => self.op(OpCode::Convert, attrs::convert(DType::F32), &[x]),
        };
        let result = match signature.op() {
            OpCode::Rsqrt => {
                let one = self.splat(1.0f32, shape);
                let root = self.plain(OpCode::Sqrt, &[wide]);
                self.plain(OpCode::Divide, &[one, root])
            }
            OpCode::Erf => self.erf(wide, shape),
            OpCode::Exponential => self.exponential(wide, shape),
            OpCode::Log => self.log(wide, shape),
            _ => self.log_plus_one(wide, shape),
        };
        match dtype {
            DType::F32 => result,
            _ => self.op(OpCode::Convert, attrs::convert(dtype), &[result]),
        }
    }

    /// `2^n * e^r` with integral `n` and `|r| <= log(2) / 2`. `log(2)` is subtracted in two parts;
    /// products of the first with `n` are exact. Reduction and polynomial are those of `expf` in
    /// the Cephes library (Moshier, 1992).
    fn exponential(&mut self, x: Ref, shape: &Shape) -> Ref {
        let (least, most) = (self.splat(-88.376_26f32, shape), self.splat(88.8f32, shape));
        // Clamps operands whose result is zero or infinite. NaN passes.
        let below = self.is(Comparison::Lt, x, least);
        let above = self.is(Comparison::Gt, x, most);
        let held = self.plain(OpCode::Select, &[below, least, x]);
        let held = self.plain(OpCode::Select, &[above, most, held]);
        let (log2e, half) = (self.splat(std::f32::consts::LOG2_E, shape), self.splat(0.5f32, shape));
        let n = self.multiplied_and_added(held, log2e, half);
        let n = self.plain(OpCode::Floor, &[n]);
        let (first, rest) = (self.splat(-0.693_359_4f32, shape), self.splat(2.121_944_4e-4f32, shape));
        let r = self.multiplied_and_added(n, first, held);
        let r = self.multiplied_and_added(n, rest, r);
        let coefficients = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
        let series = self.polynomial(r, &coefficients, shape);
        let square = self.plain(OpCode::Multiply, &[r, r]);
        let sum = self.multiplied_and_added(series, square, r);
        let one = self.splat(1.0f32, shape);
        let sum = self.plain(OpCode::Add, &[sum, one]);
        // As two factors, because `2^128` and `2^-127` are not normal numbers of this type.
        let half_n = self.plain(OpCode::Multiply, &[n, half]);
        let n1 = self.plain(OpCode::Floor, &[half_n]);
        let n2 = self.plain(OpCode::Subtract, &[n, n1]);
        let (p1, p2) = (self.power_of_two(n1, shape), self.power_of_two(n2, shape));
        let scaled = self.plain(OpCode::Multiply, &[sum, p1]);
        let scaled = self.plain(OpCode::Multiply, &[scaled, p2]);
        let zero = self.splat(0.0f32, shape);
        self.plain(OpCode::Select, &[below, zero, scaled])
    }

    /// A polynomial in the square for magnitudes up to 1; from there on `1 - erfc(|x|)` with the
    /// sign of `x`, where `erfc(x)` is `exp(-x^2) / x` times a polynomial in `1 / x^2`. The
    /// polynomials are those of `erff` and `erfcf` in the Cephes library (Moshier, 1992).
    fn erf(&mut self, x: Ref, shape: &Shape) -> Ref {
        const NEAR: [f32; 7] = [
            7.853_861e-5,
            -8.010_193_6e-4,
            5.188_327_7e-3,
            -2.685_381_2e-2,
            1.128_358_5e-1,
            -3.761_262_6e-1,
            std::f32::consts::FRAC_2_SQRT_PI,
        ];
        const BELOW_TWO: [f32; 9] = [
            2.326_82e-2,
            -1.387_039_4e-1,
            3.687_424_7e-1,
            -5.824_733e-1,
            6.210_005e-1,
            -4.944_515_3e-1,
            3.404_88e-1,
            -2.741_127e-1,
            5.638_259_4e-1,
        ];
        const FROM_TWO: [f32; 8] = [
            -10.477_664,
            12.977_2,
            -7.495_518_7,
            2.921_019,
            -1.015_265_3,
            4.218_463_4e-1,
            -2.820_767_5e-1,
            5.641_896e-1,
        ];
        let (zero, one, two) =
            (self.splat(0.0f32, shape), self.splat(1.0f32, shape), self.splat(2.0f32, shape));
        let magnitude = self.plain(OpCode::Abs, &[x]);
        let square = self.plain(OpCode::Multiply, &[x, x]);
        let near = self.polynomial(square, &NEAR, shape);
        let near = self.plain(OpCode::Multiply, &[x, near]);
        let inverse = self.plain(OpCode::Divide, &[one, magnitude]);
        let inverse_square = self.plain(OpCode::Multiply, &[inverse, inverse]);
        let below_two = self.polynomial(inverse_square, &BELOW_TWO, shape);
        let from_two = self.polynomial(inverse_square, &FROM_TWO, shape);
        let is_below_two = self.is(Comparison::Lt, magnitude, two);
        let series = self.plain(OpCode::Select, &[is_below_two, below_two, from_two]);
        let exponent = self.plain(OpCode::Negate, &[square]);
        let tail = self.exponential(exponent, shape);
        let tail = self.plain(OpCode::Multiply, &[tail, inverse]);
        let tail = self.plain(OpCode::Multiply, &[tail, series]);
        let far = self.plain(OpCode::Subtract, &[one, tail]);
        let negated = self.plain(OpCode::Negate, &[far]);
        let is_negative = self.is(Comparison::Lt, x, zero);
        let far = self.plain(OpCode::Select, &[is_negative, negated, far]);
        let is_near = self.is(Comparison::Le, magnitude, one);
        self.plain(OpCode::Select, &[is_near, near, far])
    }

    /// `2^n` for integers from -126 to 127.
    fn power_of_two(&mut self, n: Ref, shape: &Shape) -> Ref {
        let n = self.op(OpCode::Convert, attrs::convert(DType::I32), &[n]);
        let (bias, places) = (self.splat(127i32, shape), self.splat(23i32, shape));
        let exponent = self.plain(OpCode::Add, &[n, bias]);
        let bits = self.plain(OpCode::ShiftLeft, &[exponent, places]);
        self.op(OpCode::BitcastConvert, attrs::convert(DType::F32), &[bits])
    }

    /// `e * log(2) + log(m)` with `m` from `sqrt(1/2)` to `sqrt(2)`. Reduction and polynomial are
    /// those of `logf` in the Cephes library (Moshier, 1992). Subnormal numbers count as zero, as
    /// in the plugin.
    fn log(&mut self, x: Ref, shape: &Shape) -> Ref {
        let bits = self.op(OpCode::BitcastConvert, attrs::convert(DType::U32), &[x]);
        let (places, bias) = (self.splat(23u32, shape), self.splat(126.0f32, shape));
        let exponent = self.plain(OpCode::ShiftRightLogical, &[bits, places]);
        let exponent = self.op(OpCode::Convert, attrs::convert(DType::F32), &[exponent]);
        let exponent = self.plain(OpCode::Subtract, &[exponent, bias]);
        let (mantissa, halves) = (self.splat(0x007f_ffffu32, shape), self.splat(0x3f00_0000u32, shape));
        let m = self.plain(OpCode::And, &[bits, mantissa]);
        let m = self.plain(OpCode::Or, &[m, halves]);
        let m = self.op(OpCode::BitcastConvert, attrs::convert(DType::F32), &[m]);
        let root = self.splat(std::f32::consts::FRAC_1_SQRT_2, shape);
        let is_low = self.is(Comparison::Lt, m, root);
        let (one, zero) = (self.splat(1.0f32, shape), self.splat(0.0f32, shape));
        let (added, taken) = (
            self.plain(OpCode::Select, &[is_low, m, zero]),
            self.plain(OpCode::Select, &[is_low, one, zero]),
        );
        let e = self.plain(OpCode::Subtract, &[exponent, taken]);
        let m = self.plain(OpCode::Add, &[m, added]);
        let m = self.plain(OpCode::Subtract, &[m, one]);
        let coefficients = [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_7e-1,
            2.000_071_4e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ];
        let series = self.polynomial(m, &coefficients, shape);
        let square = self.plain(OpCode::Multiply, &[m, m]);
        let cube = self.plain(OpCode::Multiply, &[m, square]);
        let sum = self.plain(OpCode::Multiply, &[series, cube]);
        let (rest, first) = (self.splat(-2.121_944_4e-4f32, shape), self.splat(0.693_359_4f32, shape));
        let sum = self.multiplied_and_added(e, rest, sum);
        let half = self.splat(-0.5f32, shape);
        let sum = self.multiplied_and_added(square, half, sum);
        let sum = self.plain(OpCode::Add, &[m, sum]);
        let result = self.multiplied_and_added(e, first, sum);
        // Infinity and NaN are returned unchanged. A negative number has no logarithm.
        let infinity = self.splat(f32::INFINITY, shape);
        let is_finite = self.is(Comparison::Lt, x, infinity);
        let result = self.plain(OpCode::Select, &[is_finite, result, x]);
        let (least, nothing) = (self.splat(f32::MIN_POSITIVE, shape), self.splat(f32::NEG_INFINITY, shape));
        let is_zero = self.is(Comparison::Lt, x, least);
        let result = self.plain(OpCode::Select, &[is_zero, nothing, result]);
        let negative = self.splat(-f32::MIN_POSITIVE, shape);
        let is_negative = self.is(Comparison::Le, x, negative);
        let nan = self.splat(f32::NAN, shape);
        self.plain(OpCode::Select, &[is_negative, nan, result])
    }

    /// `log(1 + x)`, corrected for the digits that `1 + x` loses: `log(u) * x / (u - 1)` with `u =
    /// 1 + x`, and `x` if `u` is 1 (HP-15C Advanced Functions Handbook, 1982, appendix; Higham,
    /// Accuracy and Stability of Numerical Algorithms, 2nd edition, 1.14.1).
    fn log_plus_one(&mut self, x: Ref, shape: &Shape) -> Ref {
        let (one, infinity) = (self.splat(1.0f32, shape), self.splat(f32::INFINITY, shape));
        let u = self.plain(OpCode::Add, &[x, one]);
        let log = self.log(u, shape);
        let rest = self.plain(OpCode::Subtract, &[u, one]);
        let lost = self.plain(OpCode::Divide, &[x, rest]);
        let result = self.plain(OpCode::Multiply, &[log, lost]);
        let is_infinite = self.is(Comparison::Eq, u, infinity);
        let result = self.plain(OpCode::Select, &[is_infinite, u, result]);
        let is_small = self.is(Comparison::Eq, u, one);
        self.plain(OpCode::Select, &[is_small, x, result])
    }
}
