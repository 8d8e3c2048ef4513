//! Elementwise ops. Those with one or two operands of one type differ only in name, element types
//! and arithmetic. Two lists per dialect define their rows:
//! [`for_each_unary_op`](crate::for_each_unary_op),
//! [`for_each_binary_op`](crate::for_each_binary_op) and their counterparts for CHLO. The engine
//! generates the methods of its tensor type from the same lists. Such an op needs only an entry
//! there and its arithmetic in the interpreter.

use super::ROW;
use crate::dtype::{DType, DTypeSet};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Dialect, Fusibility, OpDef, Operands, Rounding};
use crate::op::infer::elementwise;
use crate::op::legalize;

/// Calls a macro with the dialect and the list of the specification's elementwise ops of one
/// operand: `(opcode, method, name, element types, rounding, what it computes)`.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_unary_op {
    ($callback:ident) => {
        $callback! {
            Stablehlo;
            (Abs, abs, "abs", SIGNED_NUMBER, Exact,
             "The absolute value of each element. For a complex element this is its magnitude, a \
              float."),
            (Cbrt, cbrt, "cbrt", FLOAT_COMPLEX, Rounded, "The cube root of each element."),
            (Ceil, ceil, "ceil", FLOAT, Step, "Each element rounded up to an integer."),
            (CountLeadingZeros, count_leading_zeros, "count_leading_zeros", INT, Exact,
             "The number of zero bits above the highest set bit of each element."),
            (Cosine, cos, "cosine", FLOAT_COMPLEX, Rounded, "The cosine of each element, in radians."),
            (Exponential, exp, "exponential", FLOAT_COMPLEX, Rounded, "e to the power of each element."),
            (ExponentialMinusOne, expm1, "exponential_minus_one", FLOAT_COMPLEX, Rounded,
             "`exp(x) - 1` for each element `x`, accurate near zero."),
            (Floor, floor, "floor", FLOAT, Step, "Each element rounded down to an integer."),
            (Log, log, "log", FLOAT_COMPLEX, Rounded, "The natural logarithm of each element."),
            (LogPlusOne, log1p, "log_plus_one", FLOAT_COMPLEX, Rounded,
             "`log(1 + x)` for each element `x`, accurate near zero."),
            (Logistic, logistic, "logistic", FLOAT_COMPLEX, Rounded,
             "The logistic function `1 / (1 + exp(-x))` of each element."),
            (Negate, neg, "negate", NUMBER, Exact, "The negative of each element. Unsigned integers wrap."),
            (Not, not, "not", INT_BOOL, Exact,
             "The bitwise not of each element; for `bool` the logical not."),
            (Popcnt, popcnt, "popcnt", INT, Exact, "The number of set bits of each element."),
            (RoundNearestAfz, round, "round_nearest_afz", FLOAT, Step,
             "Each element rounded to the nearest integer, ties away from zero."),
            (RoundNearestEven, round_even, "round_nearest_even", FLOAT, Step,
             "Each element rounded to the nearest integer, ties to even."),
            (Rsqrt, rsqrt, "rsqrt", FLOAT_COMPLEX, Rounded,
             "The reciprocal of the square root of each element."),
            (Sign, sign, "sign", SIGNED_NUMBER, Step,
             "The sign of each element: -1, 0 or 1. Float zeros keep their sign, and NaN stays \
              NaN. A complex element is divided by its absolute value."),
            (Sine, sin, "sine", FLOAT_COMPLEX, Rounded, "The sine of each element, in radians."),
            (Sqrt, sqrt, "sqrt", FLOAT_COMPLEX, Rounded, "The square root of each element."),
            (Tan, tan, "tan", FLOAT_COMPLEX, Rounded, "The tangent of each element, in radians."),
            (Tanh, tanh, "tanh", FLOAT_COMPLEX, Rounded, "The hyperbolic tangent of each element."),
        }
    };
}

/// Calls a macro with the dialect and the list of the specification's elementwise ops of two
/// operands of one type: `(opcode, method, name, element types, rounding, what it computes)`.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_binary_op {
    ($callback:ident) => {
        $callback! {
            Stablehlo;
            (Add, add, "add", ANY, Rounded,
             "The sum of the elements; for `bool` the logical or. Integers wrap."),
            (And, and, "and", INT_BOOL, Exact,
             "The bitwise and of the elements; for `bool` the logical and."),
            (Atan2, atan2, "atan2", FLOAT_COMPLEX, Rounded,
             "The angle of the point `(rhs, lhs)`, in radians."),
            (Divide, div, "divide", NUMBER, Rounded,
             "The quotient of the elements. Integers round towards zero. An integer divided by \
              zero gives a number with all bits set."),
            (Maximum, maximum, "maximum", ANY, Exact,
             "The larger of the two elements; NaN if either is NaN. Complex elements are ordered \
              by real part, then by imaginary part."),
            (Minimum, minimum, "minimum", ANY, Exact,
             "The smaller of the two elements; NaN if either is NaN. Complex elements are \
              ordered by real part, then by imaginary part."),
            (Multiply, mul, "multiply", ANY, Rounded,
             "The product of the elements; for `bool` the logical and. Integers wrap."),
            (Or, or, "or", INT_BOOL, Exact, "The bitwise or of the elements; for `bool` the logical or."),
            (Power, pow, "power", NUMBER, Rounded, "`lhs` to the power of `rhs`."),
            (Remainder, rem, "remainder", REAL, Step,
             "The remainder of a division that rounds towards zero. It has the sign of `lhs`."),
            (ShiftLeft, shl, "shift_left", INT, Exact,
             "`lhs` shifted left by `rhs` bits. The result is 0 if `rhs` is at least the bit \
              width."),
            (ShiftRightArithmetic, shr_arithmetic, "shift_right_arithmetic", INT, Exact,
             "`lhs` shifted right by `rhs` bits, filled with copies of the sign bit."),
            (ShiftRightLogical, shr_logical, "shift_right_logical", INT, Exact,
             "`lhs` shifted right by `rhs` bits, filled with zeros."),
            (Subtract, sub, "subtract", NUMBER, Rounded, "The difference of the elements. Integers wrap."),
            (Xor, xor, "xor", INT_BOOL, Exact,
             "The bitwise exclusive or of the elements; for `bool` the logical exclusive or."),
        }
    };
}

macro_rules! unary_rows {
    ($dialect:ident; $((
        $code:ident, $method:ident, $name:literal, $dtypes:ident, $rounding:ident, $summary:literal
    )),* $(,)?) => {
        pub(super) const UNARY: &[OpDef] = &[$(OpDef {
            code: OpCode::$code,
            dialect: Dialect::$dialect,
            name: $name,
            summary: $summary,
            dtypes: DTypeSet::$dtypes,
            rounding: Rounding::$rounding,
            lower: legalize::unary,
            ..ROW
        }),*];
    };
}

macro_rules! binary_rows {
    ($dialect:ident; $((
        $code:ident, $method:ident, $name:literal, $dtypes:ident, $rounding:ident, $summary:literal
    )),* $(,)?) => {
        pub(super) const BINARY: &[OpDef] = &[$(OpDef {
            code: OpCode::$code,
            dialect: Dialect::$dialect,
            name: $name,
            summary: $summary,
            operands: Operands::Fixed(&["lhs", "rhs"]),
            dtypes: DTypeSet::$dtypes,
            rounding: Rounding::$rounding,
            rule: "Both operands and the result have the same type.",
            infer: elementwise::binary,
            lower: legalize::binary,
            ..ROW
        }),*];
    };
}

for_each_unary_op!(unary_rows);
for_each_binary_op!(binary_rows);

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::IsFinite,
        name: "is_finite",
        summary: "Whether each element is finite, that is neither infinite nor NaN.",
        rule: "The result is bool and has the operand's shape.",
        dtypes: DTypeSet::FLOAT,
        rounding: Rounding::Step,
        infer: elementwise::predicate,
        ..ROW
    },
    OpDef {
        code: OpCode::Complex,
        name: "complex",
        summary: "Complex numbers with the real parts `lhs` and the imaginary parts `rhs`.",
        rule: "Both operands have the same type, f32 or f64. The result is complex and has their shape.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        dtypes: DTypeSet::of(&[DType::F32, DType::F64]),
        infer: elementwise::complex,
        ..ROW
    },
    OpDef {
        code: OpCode::Real,
        name: "real",
        summary: "The real part of each element. The real part of a float is the float itself.",
        rule: "The result has the operand's shape. Its element type is float, with half the bits \
               of a complex operand.",
        dtypes: DTypeSet::FLOAT_COMPLEX,
        infer: elementwise::part,
        lower: legalize::part,
        ..ROW
    },
    OpDef {
        code: OpCode::Imag,
        name: "imag",
        summary: "The imaginary part of each element. The imaginary part of a float is 0.",
        rule: "The result has the operand's shape. Its element type is float, with half the bits \
               of a complex operand.",
        dtypes: DTypeSet::FLOAT_COMPLEX,
        infer: elementwise::part,
        lower: legalize::part,
        ..ROW
    },
    OpDef {
        code: OpCode::Compare,
        name: "compare",
        summary: "The elements compared by `comparison_direction`.",
        rule: "Both operands have the same type. The result is bool and has their shape. \
               `compare_type` follows from the element type, except that floats allow FLOAT and \
               TOTALORDER. Complex numbers can be compared only by EQ and NE.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::COMPARE,
        rounding: Rounding::Step,
        infer: elementwise::compare,
        ..ROW
    },
    OpDef {
        code: OpCode::Select,
        name: "select",
        summary: "The element of `on_true` where `pred` is true, and of `on_false` elsewhere.",
        rule: "`on_true`, `on_false` and the result have the same type. `pred` is bool and has \
               their shape or is a scalar.",
        operands: Operands::Fixed(&["pred", "on_true", "on_false"]),
        dtypes: DTypeSet::BOOL,
        infer: elementwise::select,
        ..ROW
    },
    OpDef {
        code: OpCode::Clamp,
        name: "clamp",
        summary: "Each element of `operand` limited to the range from `min` to `max`. If `min` is \
                  above `max`, the result is `max`.",
        rule: "All operands have the same element type. `min` and `max` have the shape of \
               `operand` or are scalars. The result has the type of `operand`.",
        operands: Operands::Fixed(&["min", "operand", "max"]),
        infer: elementwise::clamp,
        lower: legalize::clamp,
        ..ROW
    },
    OpDef {
        code: OpCode::Convert,
        name: "convert",
        summary: "Each element converted to another element type.",
        rule: "The result has the operand's shape and the element type `dtype`. Conversions to \
               floats round to nearest, ties to even. Conversions from floats to integers round \
               towards zero and saturate, and NaN becomes 0. Conversions from complex numbers use \
               the real part.",
        attrs: &attrs::DTYPE,
        rounding: Rounding::Step,
        infer: elementwise::convert,
        lower: legalize::convert,
        ..ROW
    },
    OpDef {
        code: OpCode::BitcastConvert,
        name: "bitcast_convert",
        summary: "The bits of the elements read as another element type.",
        rule: "If both types have the same width, the shape does not change. To a narrower type, \
               each element becomes a new last dimension of its parts, lowest bits first. To a \
               wider type, the last dimension holds the parts of one element and disappears. \
               Complex numbers convert to complex numbers only.",
        attrs: &attrs::DTYPE,
        fusibility: Fusibility::Movement,
        rounding: Rounding::Step,
        infer: elementwise::bitcast_convert,
        lower: legalize::bitcast_convert,
        ..ROW
    },
    OpDef {
        code: OpCode::ReducePrecision,
        name: "reduce_precision",
        summary: "Each element rounded to fewer exponent and mantissa bits.",
        rule: "`exponent_bits` is at least 1 and `mantissa_bits` at least 0. The result has the \
               operand's type.",
        attrs: &attrs::REDUCE_PRECISION,
        dtypes: DTypeSet::WIDE_FLOAT,
        rounding: Rounding::Step,
        infer: elementwise::reduce_precision,
        lower: legalize::reduce_precision,
        ..ROW
    },
];
