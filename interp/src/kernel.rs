//! The arithmetic of the elementwise ops, one element at a time.
//!
//! Input: a checked signature. Output: a [`Kernel`], which maps the bits of one element per operand
//! to the bits of the result's element. Tensors and bodies use the same kernels, so an op has the
//! same meaning in both.

use std::cmp::Ordering;

use fuseline_fusion::element::{
    Bits, float_from_int, from_complex, from_f64, from_int, int_from_float, joined, mask, parts, to_complex,
    to_f64, to_int,
};
use fuseline_fusion::float::Specials;
use fuseline_fusion::op::{Comparison, ComparisonType, Fusibility};
use fuseline_fusion::{DType, DTypeClass, OpCode, Signature};

use super::{complex, special};

/// An elementwise op on one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernel {
    /// Returns the bits: the effect of moving ops on a scalar.
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
    panic!("bug: the op table has {op} on {dtype}, but the interpreter has no arithmetic for it")
}

impl Kernel {
    /// The kernel of a call whose result elements depend on the operand elements at the same
    /// position; `None` for other ops.
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

    /// The result's element. Superfluous operands are ignored.
    pub(super) fn apply(self, [a, b, c]: [Bits; 3]) -> Bits {
        match self {
            Kernel::Identity => a,
            Kernel::Unary(OpCode::Real, dtype) if dtype.is_complex() => parts(dtype, a).0,
            Kernel::Unary(OpCode::Imag, dtype) if dtype.is_complex() => parts(dtype, a).1,
            Kernel::Unary(OpCode::Real, _) => a,
            Kernel::Unary(OpCode::Imag, dtype) => from_f64(dtype, 0.0),
            Kernel::Binary(OpCode::Complex, dtype) => joined(dtype.complex().unwrap_or(dtype), a, b),
            Kernel::Unary(op, dtype) if dtype.is_complex() => complex_unary(op, dtype, a),
            Kernel::Binary(op, dtype) if dtype.is_complex() => {
                let result = complex::binary(op, to_complex(dtype, a), to_complex(dtype, b));
                from_complex(dtype, result.unwrap_or_else(|| missing(op, dtype)))
            }
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

fn complex_unary(op: OpCode, dtype: DType, bits: Bits) -> Bits {
    let z = to_complex(dtype, bits);
    if op == OpCode::Abs {
        return from_f64(dtype.part(), z.re.hypot(z.im));
    }
    from_complex(dtype, complex::unary(op, z).unwrap_or_else(|| missing(op, dtype)))
}

fn float_unary(op: OpCode, dtype: DType, bits: Bits) -> Bits {
    let x = to_f64(dtype, bits);
    let result = match op {
        OpCode::IsFinite => return x.is_finite().into(),
        OpCode::IsInf => return x.is_infinite().into(),
        OpCode::IsNegInf => return (x == f64::NEG_INFINITY).into(),
        OpCode::IsPosInf => return (x == f64::INFINITY).into(),
        OpCode::Cosh | OpCode::Sinh => special::hyperbolic(op, dtype, x),
        _ => unary_f64(op, x),
    };
    from_f64(dtype, result)
}

/// Unary float ops with a float result, for all types.
#[inline(always)]
pub(super) fn unary_f64(op: OpCode, x: f64) -> f64 {
    match op {
        OpCode::Abs => x.abs(),
        OpCode::Cbrt => x.cbrt(),
        OpCode::Ceil => x.ceil(),
        OpCode::Cosine => x.cos(),
        OpCode::Exponential => x.exp(),
        OpCode::ExponentialMinusOne => x.exp_m1(),
        OpCode::Floor => x.floor(),
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
        _ => special::unary(op, x).unwrap_or_else(|| missing(op, DType::F64)),
    }
}

fn int_unary(op: OpCode, dtype: DType, bits: Bits) -> Bits {
    let x = to_int(dtype, bits);
    match op {
        OpCode::Abs => from_int(dtype, x.abs()),
        OpCode::Negate => from_int(dtype, -x),
        OpCode::Sign => from_int(dtype, x.signum()),
        OpCode::Not => from_int(dtype, !x),
        OpCode::Popcnt => bits.count_ones().into(),
        OpCode::CountLeadingZeros => (bits.leading_zeros() + dtype.bits() - Bits::BITS).into(),
        _ => missing(op, dtype),
    }
}

fn float_binary(op: OpCode, dtype: DType, a: Bits, b: Bits) -> Bits {
    if op == OpCode::NextAfter {
        return next_after(dtype, a, b);
    }
    from_f64(dtype, binary_f64(op, to_f64(dtype, a), to_f64(dtype, b)))
}

/// Binary float ops with a float result, for all types.
#[inline(always)]
pub(super) fn binary_f64(op: OpCode, x: f64, y: f64) -> f64 {
    match op {
        OpCode::Add => x + y,
        OpCode::Subtract => x - y,
        OpCode::Multiply => x * y,
        OpCode::Divide => x / y,
        OpCode::Remainder => x % y,
        OpCode::Power => x.powf(y),
        OpCode::Atan2 => x.atan2(y),
        // IEEE 754's `maximum` and `minimum`: NaN propagates, and -0 is below +0.
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
        _ => special::binary(op, x, y).unwrap_or_else(|| missing(op, DType::F64)),
    }
}

fn int_binary(op: OpCode, dtype: DType, a: Bits, b: Bits) -> Bits {
    let (x, y) = (to_int(dtype, a), to_int(dtype, b));
    // Shift amounts are unsigned: -1 is far above the width.
    let shift = |shifted: fn(i128, u32) -> i128, past: i128, x: i128| {
        if b < dtype.bits().into() { shifted(x, b as u32) } else { past }
    };
    let result = match op {
        OpCode::Add if dtype == DType::Bool => x | y,
        OpCode::Multiply if dtype == DType::Bool => x & y,
        OpCode::Add => x + y,
        OpCode::Subtract => x - y,
        // Two's complement: the low bits of a product do not depend on the high bits of the
        // factors.
        OpCode::Multiply => x.wrapping_mul(y),
        OpCode::Mulhi => x.wrapping_mul(y) >> dtype.bits(),
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
        OpCode::ShiftLeft => shift(|x, by| x << by, 0, a as i128),
        OpCode::ShiftRightLogical => shift(|x, by| x >> by, 0, a as i128),
        OpCode::ShiftRightArithmetic => {
            let unused = Bits::BITS - dtype.bits();
            let sign_extended = (a << unused) as i128 >> unused;
            shift(|x, by| x >> by, sign_extended >> 64, sign_extended)
        }
        _ => missing(op, dtype),
    };
    from_int(dtype, result)
}

/// `base` to the power of `exponent`, wrapped to 128 bits. A negative exponent gives the truncated
/// quotient of 1 and the positive power: 0 except for bases of 1 and -1. (For base 0 the
/// specification is silent and its reference implementation returns 0.)
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

/// The neighbour of `a` towards `b`: `b` itself if they are equal as numbers, NaN if either is NaN.
fn next_after(dtype: DType, a: Bits, b: Bits) -> Bits {
    let (x, y) = (to_f64(dtype, a), to_f64(dtype, b));
    let sign = 1 << (dtype.bits() - 1);
    match x.partial_cmp(&y) {
        None if x.is_nan() => a,
        None | Some(Ordering::Equal) => b,
        // The smallest non-zero number with the sign of `b`.
        _ if x == 0.0 => b & sign | 1,
        Some(order) if order.is_lt() == (x > 0.0) => a + 1,
        _ => a - 1,
    }
}

/// A number with the order of the element: for a float IEEE 754's total order, otherwise its value.
pub(super) fn order(dtype: DType, bits: Bits) -> i128 {
    if dtype.is_float() { total_order(dtype, bits) } else { to_int(dtype, bits) }
}

/// A number in the order of IEEE 754's total order. A NaN with its sign bit set precedes all
/// numbers. That includes the NaN of formats without negative zero, whose other bits are 0.
fn total_order(dtype: DType, bits: Bits) -> i128 {
    let Some(format) = dtype.float_format() else { return bits as i128 };
    let sign = Bits::from(format.sign());
    let magnitude = match format.specials {
        Specials::NanIsNegativeZero if bits == sign => sign as i128,
        _ => (bits & !sign) as i128,
    };
    if bits & sign == 0 { magnitude } else { -1 - magnitude }
}

fn compare(direction: Comparison, order: ComparisonType, dtype: DType, a: Bits, b: Bits) -> bool {
    let ordering = match (order, dtype.class()) {
        (ComparisonType::TotalOrder, _) => Some(total_order(dtype, a).cmp(&total_order(dtype, b))),
        (_, DTypeClass::Float) => to_f64(dtype, a).partial_cmp(&to_f64(dtype, b)),
        // Only equality is requested, and an unordered, unequal number acts like a NaN.
        (_, DTypeClass::Complex) => {
            let (x, y) = (to_complex(dtype, a), to_complex(dtype, b));
            if x == y { Some(Ordering::Equal) } else { None }
        }
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

/// Converting to a complex number sets the imaginary part to zero. Converting from one drops it, as
/// the specification says, also for `bool`.
fn convert(from: DType, to: DType, bits: Bits) -> Bits {
    match (from.class(), to.class()) {
        _ if from == to => bits,
        (DTypeClass::Float, DTypeClass::Bool) => (to_f64(from, bits) != 0.0).into(),
        (DTypeClass::Complex, DTypeClass::Complex) => from_complex(to, to_complex(from, bits)),
        (DTypeClass::Complex, _) => convert(from.part(), to, parts(from, bits).0),
        (_, DTypeClass::Bool) => (bits != 0).into(),
        (_, DTypeClass::Complex) => joined(to, convert(from, to.part(), bits), 0),
        (DTypeClass::Float, DTypeClass::Float) => from_f64(to, to_f64(from, bits)),
        (DTypeClass::Float, _) => int_from_float(to, to_f64(from, bits)),
        (_, DTypeClass::Float) => float_from_int(to, to_int(from, bits)),
        _ => from_int(to, to_int(from, bits)),
    }
}

/// `reduce_precision`: rounds the mantissa to nearest even, then maps exponents that the narrower
/// format lacks to infinity and zero. The narrower format has no subnormal numbers, so this is not
/// a conversion to it and back. Without mantissa bits there is no NaN, so NaN becomes infinity.
fn reduce_precision(dtype: DType, exponent_bits: u32, mantissa_bits: u32, bits: Bits) -> Bits {
    let Some(format) = dtype.float_format() else { missing(OpCode::ReducePrecision, dtype) };
    let (own_exponent, own_mantissa) = (format.exponent, format.mantissa);
    let sign = bits & 1 << (dtype.bits() - 1);
    let infinity = mask(dtype) >> 1 & !((1 << own_mantissa) - 1);
    let mut magnitude = bits & !sign & mask(dtype);
    if magnitude > infinity {
        return if mantissa_bits == 0 { sign | infinity } else { bits };
    }
    if mantissa_bits < own_mantissa {
        // Exponent and mantissa form one number in which a carry has the right effect.
        let last = 1 << (own_mantissa - mantissa_bits);
        let odd = Bits::from(magnitude & last != 0);
        magnitude = (magnitude + (last >> 1) - 1 + odd) & !(last - 1);
    }
    if exponent_bits < own_exponent {
        let (own_bias, bias) = ((1 << (own_exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1);
        let exponent = magnitude >> own_mantissa;
        if exponent > own_bias + bias {
            magnitude = infinity;
        } else if exponent <= own_bias - bias {
            magnitude = 0;
        }
    }
    sign | magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The op on integers of a type.
    fn ints(op: OpCode, dtype: DType, operands: &[i128]) -> i128 {
        let mut bits = [0; 3];
        for (bits, &operand) in bits.iter_mut().zip(operands) {
            *bits = from_int(dtype, operand);
        }
        let kernel = if operands.len() == 1 { Kernel::Unary(op, dtype) } else { Kernel::Binary(op, dtype) };
        to_int(dtype, kernel.apply(bits))
    }

    /// The op on `f32` values.
    fn f32s(op: OpCode, operands: &[f32]) -> f32 {
        let mut bits = [0; 3];
        for (bits, operand) in bits.iter_mut().zip(operands) {
            *bits = operand.to_bits().into();
        }
        let kernel = match operands.len() {
            1 => Kernel::Unary(op, DType::F32),
            _ => Kernel::Binary(op, DType::F32),
        };
        f32::from_bits(kernel.apply(bits) as u32)
    }

    const MIN: i128 = i32::MIN as i128;
    const MAX: i128 = i32::MAX as i128;

    #[test]
    fn integers_wrap_and_division_is_total() {
        use OpCode::{Abs, Add, Divide, Multiply, Negate, Remainder, Subtract};
        for (op, operands, wanted) in [
            (Add, &[MAX, 1][..], MIN),
            (Subtract, &[MIN, 1], MAX),
            (Multiply, &[MIN, -1], MIN),
            (Multiply, &[MAX, MAX], 1),
            (Divide, &[7, -2], -3),
            (Divide, &[-7, 2], -3),
            (Divide, &[5, 0], -1),
            (Divide, &[0, 0], -1),
            (Divide, &[MIN, -1], MIN),
            (Remainder, &[7, -2], 1),
            (Remainder, &[-7, 2], -1),
            (Remainder, &[5, 0], 5),
            (Remainder, &[MIN, -1], 0),
            (Negate, &[MIN], MIN),
            (Abs, &[MIN], MIN),
        ] {
            assert_eq!(ints(op, DType::I32, operands), wanted, "{op} {operands:?}");
        }
        assert_eq!(ints(Divide, DType::U8, &[5, 0]), 255, "all bits set");
        assert_eq!(ints(Negate, DType::U8, &[1]), 255);
        let most = i128::from(u64::MAX);
        assert_eq!(ints(Multiply, DType::U64, &[most, most]), 1);
        assert_eq!(ints(Divide, DType::U64, &[most, 2]), i128::from(i64::MAX));
    }

    #[test]
    fn integer_powers_wrap_and_negative_exponents_truncate() {
        for (base, exponent, wanted) in [
            (3, 4, 81),
            (2, 31, MIN),
            (2, 32, 0),
            (7, 0, 1),
            (0, 0, 1),
            (2, -1, 0),
            (-2, -1, 0),
            (1, -5, 1),
            (-1, -5, -1),
            (-1, -4, 1),
            (-1, MIN, 1),
            (0, -1, 0),
            (3, MAX, -1_431_655_765),
        ] {
            assert_eq!(ints(OpCode::Power, DType::I32, &[base, exponent]), wanted, "{base} ^ {exponent}");
        }
        assert_eq!(ints(OpCode::Power, DType::U8, &[3, 255]), 171, "3^255 modulo 256");
    }

    #[test]
    fn shifts_past_the_width_leave_nothing_but_the_sign() {
        use OpCode::{ShiftLeft, ShiftRightArithmetic, ShiftRightLogical};
        for (op, dtype, value, by, wanted) in [
            (ShiftLeft, DType::I8, 1, 7, -128),
            (ShiftLeft, DType::I8, 1, 8, 0),
            (ShiftLeft, DType::I8, 1, -1, 0),
            (ShiftRightLogical, DType::I8, -1, 1, 127),
            (ShiftRightLogical, DType::I8, -1, 8, 0),
            (ShiftRightArithmetic, DType::I8, -128, 1, -64),
            (ShiftRightArithmetic, DType::I8, -128, 8, -1),
            (ShiftRightArithmetic, DType::I8, -128, -1, -1),
            (ShiftRightArithmetic, DType::I8, 127, 100, 0),
            (ShiftRightArithmetic, DType::U8, 0x80, 1, 0xc0),
            (ShiftRightArithmetic, DType::U64, 1 << 63, 64, u64::MAX.into()),
            (ShiftLeft, DType::U64, u64::MAX.into(), 63, 1 << 63),
        ] {
            assert_eq!(ints(op, dtype, &[value, by]), wanted, "{op} of {dtype} {value} by {by}");
        }
    }

    #[test]
    fn bits_are_counted_within_the_width() {
        for (dtype, value, zeros, ones) in [
            (DType::I8, 0, 8, 0),
            (DType::I8, -1, 0, 8),
            (DType::U16, 1, 15, 1),
            (DType::I64, -1, 0, 64),
            (DType::U64, 0, 64, 0),
        ] {
            assert_eq!(ints(OpCode::CountLeadingZeros, dtype, &[value]), zeros, "{dtype} {value}");
            // -1 as the count of ones of an i8 would be 8, which fits.
            assert_eq!(ints(OpCode::Popcnt, dtype, &[value]), ones, "{dtype} {value}");
        }
    }

    #[test]
    fn bools_add_as_or_and_multiply_as_and() {
        use OpCode::{Add, Maximum, Minimum, Multiply, Not, Xor};
        for (op, table) in [
            (Add, [0, 1, 1, 1]),
            (Multiply, [0, 0, 0, 1]),
            (Maximum, [0, 1, 1, 1]),
            (Minimum, [0, 0, 0, 1]),
            (Xor, [0, 1, 1, 0]),
        ] {
            for (index, wanted) in table.into_iter().enumerate() {
                let operands = [index as i128 / 2, index as i128 % 2];
                assert_eq!(ints(op, DType::Bool, &operands), wanted, "{op} {operands:?}");
            }
        }
        assert_eq!([0, 1].map(|x| ints(Not, DType::Bool, &[x])), [1, 0]);
    }

    /// Whether two floats have the same bits, or are both NaN.
    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    #[test]
    fn floats_follow_ieee_754_at_the_edges() {
        use OpCode::{
            Atan2, Ceil, Divide, Log, Logistic, Maximum, Minimum, Power, Remainder, RoundNearestAfz,
            RoundNearestEven, Rsqrt, Sign, Sqrt,
        };
        const INF: f32 = f32::INFINITY;
        const NAN: f32 = f32::NAN;
        const PI: f32 = std::f32::consts::PI;
        let tiny = f32::from_bits(1);
        for (op, operands, wanted) in [
            (Maximum, &[1.0, NAN][..], NAN),
            (Maximum, &[NAN, 1.0], NAN),
            (Maximum, &[-0.0, 0.0], 0.0),
            (Maximum, &[0.0, -0.0], 0.0),
            (Minimum, &[NAN, -INF], NAN),
            (Minimum, &[0.0, -0.0], -0.0),
            (Minimum, &[-0.0, 0.0], -0.0),
            (RoundNearestAfz, &[2.5], 3.0),
            (RoundNearestAfz, &[-0.5], -1.0),
            (RoundNearestAfz, &[0.499_999_97], 0.0),
            (RoundNearestEven, &[2.5], 2.0),
            (RoundNearestEven, &[3.5], 4.0),
            (RoundNearestEven, &[-0.5], -0.0),
            (Ceil, &[-0.5], -0.0),
            (Ceil, &[tiny], 1.0),
            (Sign, &[-0.0], -0.0),
            (Sign, &[-INF], -1.0),
            (Sign, &[NAN], NAN),
            (Sign, &[tiny], 1.0),
            (Rsqrt, &[0.0], INF),
            (Rsqrt, &[-0.0], -INF),
            (Rsqrt, &[-1.0], NAN),
            (Sqrt, &[-0.0], -0.0),
            (Log, &[0.0], -INF),
            (Log, &[-1.0], NAN),
            (Logistic, &[-1000.0], 0.0),
            (Logistic, &[1000.0], 1.0),
            (Divide, &[1.0, -0.0], -INF),
            (Divide, &[0.0, 0.0], NAN),
            (Remainder, &[5.5, -2.0], 1.5),
            (Remainder, &[-5.5, 2.0], -1.5),
            (Remainder, &[-4.0, 2.0], -0.0),
            (Remainder, &[1.0, INF], 1.0),
            (Remainder, &[1.0, 0.0], NAN),
            (Power, &[NAN, 0.0], 1.0),
            (Power, &[1.0, NAN], 1.0),
            (Power, &[-1.0, INF], 1.0),
            (Power, &[-8.0, 1.0 / 3.0], NAN),
            (Power, &[-0.0, -1.0], -INF),
            (Power, &[-2.0, 3.0], -8.0),
            (Atan2, &[0.0, -1.0], PI),
            (Atan2, &[-0.0, -1.0], -PI),
            (Atan2, &[-0.0, 1.0], -0.0),
            (Atan2, &[0.0, 0.0], 0.0),
            (Atan2, &[0.0, -0.0], PI),
            (Atan2, &[INF, -INF], 3.0 * PI / 4.0),
            (Atan2, &[1.0, -INF], PI),
        ] {
            let result = f32s(op, operands);
            assert!(same(result, wanted), "{op} {operands:?} is {result:?}, not {wanted:?}");
        }
        // Subnormal numbers are not flushed.
        assert_eq!(f32s(OpCode::Multiply, &[tiny, 1.0]), tiny);
        assert_eq!(f32s(Divide, &[f32::MIN_POSITIVE, 2.0]), f32::MIN_POSITIVE / 2.0);
        // NaN has a sign too.
        assert!(f32s(OpCode::Negate, &[NAN]).is_sign_negative());
        assert!(f32s(OpCode::Abs, &[-NAN]).is_sign_positive());
    }

    #[test]
    fn an_unordered_comparison_is_false_but_for_not_equal() {
        let compare = |direction, order, a: f32, b: f32| {
            Kernel::Compare(direction, order, DType::F32).apply([a.to_bits().into(), b.to_bits().into(), 0])
        };
        for direction in Comparison::ALL {
            let wanted = Bits::from(direction == Comparison::Ne);
            assert_eq!(compare(direction, ComparisonType::Float, f32::NAN, 1.0), wanted, "{direction:?}");
            assert_eq!(
                compare(direction, ComparisonType::Float, f32::NAN, f32::NAN),
                wanted,
                "{direction:?}"
            );
        }
        assert_eq!(compare(Comparison::Eq, ComparisonType::Float, 0.0, -0.0), 1);
        let ascending = [-f32::NAN, f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1.0, f32::INFINITY, f32::NAN];
        for (i, &a) in ascending.iter().enumerate() {
            for (j, &b) in ascending.iter().enumerate() {
                let total = ComparisonType::TotalOrder;
                assert_eq!(compare(Comparison::Lt, total, a, b), Bits::from(i < j), "{a} {b}");
                assert_eq!(compare(Comparison::Eq, total, a, b), Bits::from(i == j), "{a} {b}");
            }
        }
    }

    /// -1 and 1 are 0xb8 and 0x38 in a format whose NaN has the pattern of a negative zero.
    #[test]
    fn a_nan_in_the_place_of_negative_zero_comes_first() {
        let less = |a, b| {
            let kernel = Kernel::Compare(Comparison::Lt, ComparisonType::TotalOrder, DType::F8E5M2FNUZ);
            kernel.apply([a, b, 0]) == 1
        };
        let ascending = [0x80, 0xff, 0xb8, 0x81, 0x00, 0x01, 0x38, 0x7f];
        for pair in ascending.windows(2) {
            assert!(less(pair[0], pair[1]) && !less(pair[1], pair[0]), "{pair:x?}");
        }
    }

    #[test]
    fn conversions_to_bool_ask_for_zero() {
        for (from, bits, wanted) in [
            (DType::F32, (-0.0f32).to_bits().into(), 0),
            (DType::F32, f32::NAN.to_bits().into(), 1),
            (DType::F32, 1, 1),
            (DType::I8, 0x80, 1),
            (DType::U64, 0, 0),
        ] {
            assert_eq!(Kernel::Convert(from, DType::Bool).apply([bits, 0, 0]), wanted, "{from} {bits:#x}");
        }
        let narrow = Kernel::Convert(DType::I32, DType::U8);
        assert_eq!(narrow.apply([from_int(DType::I32, -1), 0, 0]), 255, "integers wrap");
    }

    #[test]
    fn reduced_precision_has_no_subnormals() {
        let reduce = |exponent, mantissa, x: f32| {
            let bits =
                Kernel::ReducePrecision(DType::F32, exponent, mantissa).apply([x.to_bits().into(), 0, 0]);
            f32::from_bits(bits as u32)
        };
        let nan = f32::from_bits(0xffc0_0001);
        for (exponent, mantissa, x, wanted) in [
            (8, 23, 1.1, 1.1),
            (11, 52, 1.1, 1.1),
            (u32::MAX, u32::MAX, 1.1, 1.1),
            // To f16: rounding to nearest even, overflow, underflow of its subnormal numbers.
            (5, 10, 1.0 + f32::EPSILON, 1.0),
            (5, 10, 2049.0, 2048.0),
            (5, 10, 2051.0, 2052.0),
            (5, 10, 65_504.0, 65_504.0),
            (5, 10, 65_520.0, f32::INFINITY),
            (5, 10, -1e6, f32::NEG_INFINITY),
            (5, 10, 6.1e-5, 0.0),
            (5, 10, 6.104e-5, 6.103_515_6e-5),
            (5, 10, -1e-20, -0.0),
            // With all exponent bits, subnormal numbers of the type itself round like others.
            (8, 7, f32::from_bits(0x0000_8000), 0.0),
            (8, 7, f32::from_bits(0x0000_8001), f32::from_bits(0x0001_0000)),
            (8, 7, f32::MAX, f32::INFINITY),
            (1, 0, 1.0, 0.0),
            (5, 10, nan, nan),
            (5, 0, nan, f32::NEG_INFINITY),
            (5, 10, f32::NEG_INFINITY, f32::NEG_INFINITY),
        ] {
            let result = reduce(exponent, mantissa, x);
            assert!(
                same(result, wanted),
                "{x:?} in {exponent} and {mantissa} bits is {result:?}, not {wanted:?}"
            );
        }
    }
}
