//! The arithmetic of the elementwise ops, one element at a time.
//!
//! Input: a checked signature. Output: a [`Kernel`], which takes the bits of one element per operand to the bits of the
//! result's element. Tensors and bodies are computed with the same kernels, so that an op means the same in both.

use super::number::{float_format, float_from_int, from_f64, from_int, int_from_float, mask, to_f64, to_int};
use crate::dtype::{DType, DTypeClass};
use crate::op::{Comparison, ComparisonType, Fusibility, OpCode, Signature};

/// An elementwise op on one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernel {
    /// The bits themselves: what moving ops do to a scalar.
    Identity,
    /// An op of one operand of this type.
    Unary(OpCode, DType),
    /// An op of two operands of this type.
    Binary(OpCode, DType),
    Compare(Comparison, ComparisonType, DType),
    Select,
    /// `min`, `operand`, `max`.
    Clamp(DType),
    /// From one type to another.
    Convert(DType, DType),
    /// Exponent and mantissa bits to round to.
    ReducePrecision(DType, u32, u32),
}

#[cold]
fn missing(op: OpCode, dtype: DType) -> ! {
    panic!("bug: the op table has {op} on {dtype}, the interpreter has no arithmetic for it")
}

impl Kernel {
    /// The kernel of a call whose result elements depend on the operand elements at the same place; `None` for
    /// other ops.
    pub(super) fn of(signature: &Signature) -> Option<Kernel> {
        let attr = signature.attrs().view();
        let dtype = signature.operands().first()?.dtype();
        Some(match signature.op() {
            OpCode::Compare => {
                let direction = Comparison::ALL[usize::from(attr.member(0))];
                let total = attr.member(1) == ComparisonType::TotalOrder as u8;
                // The other orders follow from the element type.
                let order = if total { ComparisonType::TotalOrder } else { ComparisonType::Float };
                Kernel::Compare(direction, order, dtype)
            }
            OpCode::Select => Kernel::Select,
            OpCode::Clamp => Kernel::Clamp(dtype),
            OpCode::Convert => Kernel::Convert(dtype, attr.dtype(0)),
            OpCode::ReducePrecision => {
                let bits = |place| u32::try_from(attr.int(place)).unwrap_or(u32::MAX);
                Kernel::ReducePrecision(dtype, bits(0), bits(1))
            }
            OpCode::BitcastConvert if attr.dtype(0).bits() == dtype.bits() => Kernel::Identity,
            op if op.def().fusibility == Fusibility::Elementwise => match signature.operands().len() {
                1 => Kernel::Unary(op, dtype),
                _ => Kernel::Binary(op, dtype),
            },
            _ => return None,
        })
    }

    /// The result's element. Operands that the op does not have are ignored.
    pub(super) fn apply(self, [a, b, c]: [u64; 3]) -> u64 {
        match self {
            Kernel::Identity => a,
            Kernel::Unary(op, dtype) if dtype.is_float() => float_unary(op, dtype, a),
            Kernel::Unary(op, dtype) => int_unary(op, dtype, a),
            Kernel::Binary(op, dtype) if dtype.is_float() => float_binary(op, dtype, a, b),
            Kernel::Binary(op, dtype) => int_binary(op, dtype, a, b),
            Kernel::Compare(direction, order, dtype) => compare(direction, order, dtype, a, b).into(),
            Kernel::Select => {
                if a != 0 {
                    b
                } else {
                    c
                }
            }
            Kernel::Clamp(dtype) => {
                let raised = Kernel::Binary(OpCode::Maximum, dtype).apply([a, b, 0]);
                Kernel::Binary(OpCode::Minimum, dtype).apply([raised, c, 0])
            }
            Kernel::Convert(from, to) => convert(from, to, a),
            Kernel::ReducePrecision(dtype, exponent, mantissa) => {
                reduce_precision(dtype, exponent, mantissa, a)
            }
        }
    }
}

fn float_unary(op: OpCode, dtype: DType, bits: u64) -> u64 {
    let x = to_f64(dtype, bits);
    let result = match op {
        OpCode::Abs => x.abs(),
        OpCode::Cbrt => x.cbrt(),
        OpCode::Ceil => x.ceil(),
        OpCode::Cosine => x.cos(),
        OpCode::Exponential => x.exp(),
        OpCode::ExponentialMinusOne => x.exp_m1(),
        OpCode::Floor => x.floor(),
        OpCode::IsFinite => return x.is_finite().into(),
        OpCode::Log => x.ln(),
        OpCode::LogPlusOne => x.ln_1p(),
        OpCode::Logistic => 1.0 / (1.0 + (-x).exp()),
        OpCode::Negate => -x,
        OpCode::RoundNearestAfz => x.round(),
        OpCode::RoundNearestEven => x.round_ties_even(),
        OpCode::Rsqrt => 1.0 / x.sqrt(),
        OpCode::Sign if x == 0.0 || x.is_nan() => x,
        OpCode::Sign => x.signum(),
        OpCode::Sine => x.sin(),
        OpCode::Sqrt => x.sqrt(),
        OpCode::Tan => x.tan(),
        OpCode::Tanh => x.tanh(),
        _ => missing(op, dtype),
    };
    from_f64(dtype, result)
}

fn int_unary(op: OpCode, dtype: DType, bits: u64) -> u64 {
    let x = to_int(dtype, bits);
    match op {
        OpCode::Abs => from_int(dtype, x.abs()),
        OpCode::Negate => from_int(dtype, -x),
        OpCode::Sign => from_int(dtype, x.signum()),
        OpCode::Not => from_int(dtype, !x),
        OpCode::Popcnt => bits.count_ones().into(),
        OpCode::CountLeadingZeros => (bits.leading_zeros() + dtype.bits() - u64::BITS).into(),
        _ => missing(op, dtype),
    }
}

fn float_binary(op: OpCode, dtype: DType, a: u64, b: u64) -> u64 {
    let (x, y) = (to_f64(dtype, a), to_f64(dtype, b));
    let result = match op {
        OpCode::Add => x + y,
        OpCode::Subtract => x - y,
        OpCode::Multiply => x * y,
        OpCode::Divide => x / y,
        OpCode::Remainder => x % y,
        OpCode::Power => x.powf(y),
        OpCode::Atan2 => x.atan2(y),
        // IEEE 754's `maximum` and `minimum`: NaN wins, and -0 is below +0.
        OpCode::Maximum | OpCode::Minimum if x.is_nan() => x,
        OpCode::Maximum | OpCode::Minimum if y.is_nan() => y,
        OpCode::Maximum => {
            if x.total_cmp(&y).is_ge() {
                x
            } else {
                y
            }
        }
        OpCode::Minimum => {
            if x.total_cmp(&y).is_le() {
                x
            } else {
                y
            }
        }
        _ => missing(op, dtype),
    };
    from_f64(dtype, result)
}

fn int_binary(op: OpCode, dtype: DType, a: u64, b: u64) -> u64 {
    let (x, y) = (to_int(dtype, a), to_int(dtype, b));
    // A shift amount is unsigned: -1 is far above the width.
    let shift = |shifted: fn(i128, u32) -> i128, past: i128, x: i128| {
        if b < dtype.bits().into() { shifted(x, b as u32) } else { past }
    };
    let result = match op {
        OpCode::Add if dtype == DType::Bool => x | y,
        OpCode::Multiply if dtype == DType::Bool => x & y,
        OpCode::Add => x + y,
        OpCode::Subtract => x - y,
        // Two's complement: the low bits of a product do not depend on the high bits of the factors.
        OpCode::Multiply => x.wrapping_mul(y),
        OpCode::Divide if y == 0 => -1,
        OpCode::Divide => x / y,
        OpCode::Remainder if y == 0 => x,
        OpCode::Remainder => x % y,
        OpCode::Power => power(x, y),
        OpCode::Maximum => x.max(y),
        OpCode::Minimum => x.min(y),
        OpCode::And => x & y,
        OpCode::Or => x | y,
        OpCode::Xor => x ^ y,
        OpCode::ShiftLeft => shift(|x, by| x << by, 0, a.into()),
        OpCode::ShiftRightLogical => shift(|x, by| x >> by, 0, a.into()),
        OpCode::ShiftRightArithmetic => {
            let sign_extended = i128::from(((a << (64 - dtype.bits())) as i64) >> (64 - dtype.bits()));
            shift(|x, by| x >> by, sign_extended >> 64, sign_extended)
        }
        _ => missing(op, dtype),
    };
    from_int(dtype, result)
}

/// `base` to the power of `exponent`, wrapped to 128 bits. With a negative exponent it is the truncated quotient of 1 and
/// the positive power: 0 but for bases of 1 and -1. (For base 0 the specification is silent and its reference
/// implementation says 0.)
fn power(base: i128, exponent: i128) -> i128 {
    let exponent = match (base, exponent) {
        (1 | -1, _) => exponent.abs(),
        (_, ..0) => return 0,
        _ => exponent,
    };
    let (mut result, mut square, mut left) = (1i128, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    result
}

/// A number that is ordered as IEEE 754's total order orders the float.
fn total_order(dtype: DType, bits: u64) -> i128 {
    let sign = 1 << (dtype.bits() - 1);
    let magnitude = i128::from(bits & !sign);
    if bits & sign == 0 { magnitude } else { -1 - magnitude }
}

fn compare(direction: Comparison, order: ComparisonType, dtype: DType, a: u64, b: u64) -> bool {
    let ordering = match (order, dtype.class()) {
        (ComparisonType::TotalOrder, _) => Some(total_order(dtype, a).cmp(&total_order(dtype, b))),
        (_, DTypeClass::Float) => to_f64(dtype, a).partial_cmp(&to_f64(dtype, b)),
        _ => Some(to_int(dtype, a).cmp(&to_int(dtype, b))),
    };
    match (direction, ordering) {
        // Unordered: a NaN differs from everything.
        (_, None) => direction == Comparison::Ne,
        (Comparison::Eq, Some(ordering)) => ordering.is_eq(),
        (Comparison::Ne, Some(ordering)) => ordering.is_ne(),
        (Comparison::Ge, Some(ordering)) => ordering.is_ge(),
        (Comparison::Gt, Some(ordering)) => ordering.is_gt(),
        (Comparison::Le, Some(ordering)) => ordering.is_le(),
        (Comparison::Lt, Some(ordering)) => ordering.is_lt(),
    }
}

fn convert(from: DType, to: DType, bits: u64) -> u64 {
    match (from.class(), to.class()) {
        (DTypeClass::Float, DTypeClass::Bool) => (to_f64(from, bits) != 0.0).into(),
        (_, DTypeClass::Bool) => (bits != 0).into(),
        (DTypeClass::Float, DTypeClass::Float) if from == to => bits,
        (DTypeClass::Float, DTypeClass::Float) => from_f64(to, to_f64(from, bits)),
        (DTypeClass::Float, _) => int_from_float(to, to_f64(from, bits)),
        (_, DTypeClass::Float) => float_from_int(to, to_int(from, bits)),
        _ => from_int(to, to_int(from, bits)),
    }
}

/// `reduce_precision`: rounds the mantissa to nearest even, then sends exponents that the narrower format does not have to
/// infinity and zero. The narrower format has no subnormals, so this is not a conversion to it and back. Without mantissa
/// bits there is no NaN, which becomes infinity.
fn reduce_precision(dtype: DType, exponent_bits: u32, mantissa_bits: u32, bits: u64) -> u64 {
    let Some((own_exponent, own_mantissa)) = float_format(dtype) else {
        missing(OpCode::ReducePrecision, dtype)
    };
    let sign = bits & 1 << (dtype.bits() - 1);
    let infinity = mask(dtype) >> 1 & !((1 << own_mantissa) - 1);
    let mut magnitude = bits & !sign & mask(dtype);
    if magnitude > infinity {
        return if mantissa_bits == 0 { sign | infinity } else { bits };
    }
    if mantissa_bits < own_mantissa {
        // Exponent and mantissa together are a number in which a carry does the right thing.
        let last = 1u64 << (own_mantissa - mantissa_bits);
        let odd = u64::from(magnitude & last != 0);
        magnitude = (magnitude + (last >> 1) - 1 + odd) & !(last - 1);
    }
    if exponent_bits < own_exponent {
        let (own_bias, bias) = ((1u64 << (own_exponent - 1)) - 1, (1u64 << (exponent_bits - 1)) - 1);
        let exponent = magnitude >> own_mantissa;
        if exponent > own_bias + bias {
            magnitude = infinity;
        } else if exponent <= own_bias - bias {
            magnitude = 0;
        }
    }
    sign | magnitude
}
