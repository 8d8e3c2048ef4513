//! Legalizes `zeta` and `polygamma` with the formulas of the interpreter (`interp/src/special.rs`).
//!
//! XLA's `zeta` adds nine terms and a remainder that is valid for positive numbers. It returns
//! -0.0078 instead of 9.86 for order 2 at -127.5, and NaN instead of 0 for an infinite number or
//! order. XLA's `polygamma` multiplies two factors that overflow before their product does.

use super::{Builder, Lowered, expanded};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{OpCode, Ref};
use crate::op::attrs;
use crate::op::def::Call;
use crate::op::enums::Comparison;
use crate::shape::Shape;

/// Bernoulli numbers `B2, B4, ...` (DLMF table 24.2.1).
pub const BERNOULLI: [f64; 10] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43_867.0 / 798.0,
    -174_611.0 / 330.0,
];

/// Terms of the zeta function that are summed one by one before Euler's summation formula.
pub const ZETA_TERMS: i32 = 10;

/// The expansion of a call of `zeta` or `polygamma`. Like the interpreter, it computes every type
/// in `f64`: in `f32`, factors overflow and terms cancel even if the result is a normal number.
pub(super) fn zeta_or_polygamma(call: &Call<'_>) -> Lowered {
    expanded(expansion(call))
}

fn expansion(call: &Call<'_>) -> Result<Lowered, OpError> {
    let dtype = call.operand(0).dtype();
    let (mut graph, params) = Builder::of(call);
    let order = graph.convert(params[0], dtype, DType::F64)?;
    let number = graph.convert(params[1], dtype, DType::F64)?;
    let mut writer = F64Writer { graph, shape: call.operand(0).shape() };
    let value = match call.def.code {
        OpCode::Zeta => writer.zeta(order, number)?.value,
        _ => writer.polygamma(order, number)?,
    };
    let mut graph = writer.graph;
    let result = graph.convert(value, DType::F64, dtype)?;
    Ok(graph.returning(&[result]))
}

/// The Hurwitz zeta function of order `s` at `q`.
struct Zeta {
    value: Ref,
    /// For a positive `q`, the value times `q^s`.
    scaled: Ref,
}

/// Writes elementwise ops on `f64` values of one shape.
struct F64Writer<'a> {
    graph: Builder,
    shape: &'a Shape,
}

impl F64Writer<'_> {
    fn op<const N: usize>(&mut self, op: OpCode, operands: [Ref; N]) -> Result<Ref, OpError> {
        self.graph.op(op, Attrs::none(), &operands)
    }

    fn add(&mut self, a: Ref, b: Ref) -> Result<Ref, OpError> {
        self.op(OpCode::Add, [a, b])
    }

    fn sub(&mut self, a: Ref, b: Ref) -> Result<Ref, OpError> {
        self.op(OpCode::Subtract, [a, b])
    }

    fn mul(&mut self, a: Ref, b: Ref) -> Result<Ref, OpError> {
        self.op(OpCode::Multiply, [a, b])
    }

    fn div(&mut self, a: Ref, b: Ref) -> Result<Ref, OpError> {
        self.op(OpCode::Divide, [a, b])
    }

    fn select(&mut self, condition: Ref, a: Ref, b: Ref) -> Result<Ref, OpError> {
        self.op(OpCode::Select, [condition, a, b])
    }

    fn compare(&mut self, a: Ref, comparison: Comparison, b: Ref) -> Result<Ref, OpError> {
        self.graph.op(OpCode::Compare, attrs::compare_for(comparison, DType::F64), &[a, b])
    }

    /// A number in every element.
    fn number(&mut self, value: f64) -> Result<Ref, OpError> {
        self.graph.splat(value, DType::F64, self.shape)
    }

    /// Zeta of order `s` at `q` times `q^s`, for `s > 1` and `q > 0` (DLMF 25.11.28 and 2.10.1).
    fn scaled_zeta(&mut self, s: Ref, q: Ref) -> Result<Ref, OpError> {
        let one = self.number(1.0)?;
        let mut sum = self.number(0.0)?;
        for k in (0..ZETA_TERMS).rev() {
            let k = self.number(f64::from(k))?;
            let to = self.add(q, k)?;
            let base = self.div(q, to)?;
            let term = self.op(OpCode::Power, [base, s])?;
            sum = self.add(sum, term)?;
        }
        let terms = self.number(f64::from(ZETA_TERMS))?;
        let end = self.add(q, terms)?;
        let base = self.div(q, end)?;
        let first = self.op(OpCode::Power, [base, s])?;
        let two = self.number(2.0)?;
        let ends = self.mul(end, two)?;
        let mut factor = self.div(s, ends)?;
        let mut tail = self.number(0.5)?;
        for (&bernoulli, k) in BERNOULLI.iter().zip(1..) {
            let k = f64::from(2 * k);
            let coefficient = self.number(bernoulli)?;
            let term = self.mul(coefficient, factor)?;
            tail = self.add(tail, term)?;
            for k in [k - 1.0, k] {
                let k = self.number(k)?;
                let next = self.add(s, k)?;
                let next = self.div(next, end)?;
                factor = self.mul(factor, next)?;
            }
            let divisor = self.number((k + 1.0) * (k + 2.0))?;
            factor = self.div(factor, divisor)?;
        }
        let below = self.sub(s, one)?;
        let integral = self.div(end, below)?;
        let rest = self.add(integral, tail)?;
        let rest = self.mul(first, rest)?;
        let all = self.add(sum, rest)?;
        let least = self.number(f64::EPSILON * f64::EPSILON)?;
        let is_small = self.compare(first, Comparison::Lt, least)?;
        self.select(is_small, sum, all)
    }

    /// Zeta of order `s` at `q`, for `s > 1` and `q > 0`.
    fn zeta_of_positive(&mut self, s: Ref, q: Ref) -> Result<Zeta, OpError> {
        let scaled = self.scaled_zeta(s, q)?;
        let zero = self.number(0.0)?;
        let infinity = self.number(f64::INFINITY)?;
        let order = self.op(OpCode::Negate, [s])?;
        let power = self.op(OpCode::Power, [q, order])?;
        let value = self.mul(power, scaled)?;
        let is_infinite_order = self.compare(s, Comparison::Eq, infinity)?;
        let value = self.select(is_infinite_order, power, value)?;
        let is_infinite_number = self.compare(q, Comparison::Eq, infinity)?;
        let value = self.select(is_infinite_number, zero, value)?;
        Ok(Zeta { value, scaled })
    }

    /// Whether a number is a multiple of another one. Infinities are not.
    fn is_multiple(&mut self, x: Ref, of: f64) -> Result<Ref, OpError> {
        let of = self.number(of)?;
        let zero = self.number(0.0)?;
        let rest = self.op(OpCode::Remainder, [x, of])?;
        self.compare(rest, Comparison::Eq, zero)
    }

    fn zeta(&mut self, s: Ref, q: Ref) -> Result<Zeta, OpError> {
        let [zero, one, infinity, nan] =
            [self.number(0.0)?, self.number(1.0)?, self.number(f64::INFINITY)?, self.number(f64::NAN)?];
        let is_positive = self.compare(q, Comparison::Gt, zero)?;
        let floor = self.op(OpCode::Floor, [q])?;
        let fraction = self.sub(q, floor)?;
        let base = self.select(is_positive, q, fraction)?;
        let Zeta { value: positive, scaled } = self.zeta_of_positive(s, base)?;
        // The terms with a negative base are those from `1 - fraction` to `-q`, negated if `s` is
        // odd.
        let above = self.add(floor, one)?;
        let from = self.sub(above, q)?;
        let to = self.sub(one, q)?;
        let [from, to] = [self.zeta_of_positive(s, from)?.value, self.zeta_of_positive(s, to)?.value];
        let below = self.sub(from, to)?;
        let negated = self.op(OpCode::Negate, [below])?;
        let is_even = self.is_multiple(s, 2.0)?;
        let below = self.select(is_even, below, negated)?;
        let negative = self.add(positive, below)?;
        let is_pole = self.compare(fraction, Comparison::Eq, zero)?;
        let pole = self.select(is_even, infinity, nan)?;
        let negative = self.select(is_pole, pole, negative)?;
        let is_integer = self.is_multiple(s, 1.0)?;
        let negative = self.select(is_integer, negative, nan)?;
        let least = self.number(f64::NEG_INFINITY)?;
        let is_least = self.compare(q, Comparison::Eq, least)?;
        let negative = self.select(is_least, nan, negative)?;
        let value = self.select(is_positive, positive, negative)?;
        let is_one = self.compare(s, Comparison::Eq, one)?;
        let value = self.select(is_one, infinity, value)?;
        // No comparison holds for NaN.
        let has_order = self.compare(s, Comparison::Ge, one)?;
        let is_number = self.compare(q, Comparison::Eq, q)?;
        let is_defined = self.op(OpCode::And, [has_order, is_number])?;
        let value = self.select(is_defined, value, nan)?;
        Ok(Zeta { value, scaled })
    }

    fn polygamma(&mut self, n: Ref, x: Ref) -> Result<Ref, OpError> {
        let [zero, one, infinity, nan] =
            [self.number(0.0)?, self.number(1.0)?, self.number(f64::INFINITY)?, self.number(f64::NAN)?];
        let s = self.add(n, one)?;
        let Zeta { value: zeta, scaled } = self.zeta(s, x)?;
        let logarithm = self.op(OpCode::Lgamma, [s])?;
        let factorial = self.op(OpCode::Exponential, [logarithm])?;
        let product = self.mul(factorial, zeta)?;
        // The factors may overflow even if their product does not.
        let log_x = self.op(OpCode::Log, [x])?;
        let log_power = self.mul(s, log_x)?;
        let exponent = self.sub(logarithm, log_power)?;
        let log_scaled = self.op(OpCode::Log, [scaled])?;
        let exponent = self.add(exponent, log_scaled)?;
        let from_logarithms = self.op(OpCode::Exponential, [exponent])?;
        let least = self.number(f64::MIN_POSITIVE)?;
        let (factorial_overflows, zeta_underflows) =
            (self.compare(factorial, Comparison::Eq, infinity)?, self.compare(zeta, Comparison::Lt, least)?);
        let is_out_of_range = self.op(OpCode::Or, [factorial_overflows, zeta_underflows])?;
        let is_positive = self.compare(x, Comparison::Gt, zero)?;
        let is_out_of_range = self.op(OpCode::And, [is_out_of_range, is_positive])?;
        let magnitude = self.select(is_out_of_range, from_logarithms, product)?;
        let negated = self.op(OpCode::Negate, [magnitude])?;
        let is_even = self.is_multiple(n, 2.0)?;
        let value = self.select(is_even, negated, magnitude)?;
        let is_infinite = self.compare(x, Comparison::Eq, infinity)?;
        let value = self.select(is_infinite, zero, value)?;
        let digamma = self.graph.digamma(x, DType::F64, self.shape)?;
        let is_digamma = self.compare(n, Comparison::Eq, zero)?;
        let value = self.select(is_digamma, digamma, value)?;
        let is_integer = self.is_multiple(n, 1.0)?;
        let is_nonnegative = self.compare(n, Comparison::Ge, zero)?;
        let is_defined = self.op(OpCode::And, [is_integer, is_nonnegative])?;
        self.select(is_defined, value, nan)
    }
}
