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
macro_rules! for_each_unary_op {
    ($callback:ident) => {
        $callback! {
            Stablehlo;
            (Abs, abs, "abs", SIGNED_NUMBER, Exact, "The absolute value of each element; of a complex one its distance from zero, a float."),
            (Cbrt, cbrt, "cbrt", FLOAT_COMPLEX, Rounded, "The cube root of each element."),
            (Ceil, ceil, "ceil", FLOAT, Step, "The least integer not below each element."),
            (CountLeadingZeros, count_leading_zeros, "count_leading_zeros", INT, Exact, "The number of zero bits above the highest set bit of each element."),
            (Cosine, cos, "cosine", FLOAT_COMPLEX, Rounded, "The cosine of each element, in radians."),
            (Exponential, exp, "exponential", FLOAT_COMPLEX, Rounded, "e to the power of each element."),
            (ExponentialMinusOne, expm1, "exponential_minus_one", FLOAT_COMPLEX, Rounded, "e to the power of each element, minus one, without cancellation near zero."),
            (Floor, floor, "floor", FLOAT, Step, "The greatest integer not above each element."),
            (Log, log, "log", FLOAT_COMPLEX, Rounded, "The natural logarithm of each element."),
            (LogPlusOne, log1p, "log_plus_one", FLOAT_COMPLEX, Rounded, "The natural logarithm of one plus each element, without cancellation near zero."),
            (Logistic, logistic, "logistic", FLOAT_COMPLEX, Rounded, "The logistic function `1 / (1 + exp(-x))` of each element."),
            (Negate, neg, "negate", NUMBER, Exact, "Each element with its sign changed; unsigned integers wrap."),
            (Not, not, "not", INT_BOOL, Exact, "Each element with every bit turned; logical not of `bool`."),
            (Popcnt, popcnt, "popcnt", INT, Exact, "The number of set bits of each element."),
            (RoundNearestAfz, round, "round_nearest_afz", FLOAT, Step, "The nearest integer to each element, ties away from zero."),
            (RoundNearestEven, round_even, "round_nearest_even", FLOAT, Step, "The nearest integer to each element, ties to the even one."),
            (Rsqrt, rsqrt, "rsqrt", FLOAT_COMPLEX, Rounded, "One over the square root of each element."),
            (Sign, sign, "sign", SIGNED_NUMBER, Step, "-1, 0 or 1 by the sign of each element; NaN and zeros of floats stay. A complex element is divided by its absolute value."),
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
macro_rules! for_each_binary_op {
    ($callback:ident) => {
        $callback! {
            Stablehlo;
            (Add, add, "add", ANY, Rounded, "The sum of the elements; logical or of `bool`. Integers wrap."),
            (And, and, "and", INT_BOOL, Exact, "The bitwise and of the elements; logical and of `bool`."),
            (Atan2, atan2, "atan2", FLOAT_COMPLEX, Rounded, "The angle of the point (rhs, lhs), in radians."),
            (Divide, div, "divide", NUMBER, Rounded, "The quotient of the elements; integers round towards zero, and by zero give all bits set."),
            (Maximum, maximum, "maximum", ANY, Exact, "The larger of the elements; NaN if either is NaN. Complex elements are ordered by their real, then by their imaginary parts."),
            (Minimum, minimum, "minimum", ANY, Exact, "The smaller of the elements; NaN if either is NaN. Complex elements are ordered by their real, then by their imaginary parts."),
            (Multiply, mul, "multiply", ANY, Rounded, "The product of the elements; logical and of `bool`. Integers wrap."),
            (Or, or, "or", INT_BOOL, Exact, "The bitwise or of the elements; logical or of `bool`."),
            (Power, pow, "power", NUMBER, Rounded, "The left element to the power of the right one."),
            (Remainder, rem, "remainder", REAL, Step, "What the truncated division leaves; it has the sign of the left element."),
            (ShiftLeft, shl, "shift_left", INT, Exact, "The left element shifted left by the right one; 0 from the bit width on."),
            (ShiftRightArithmetic, shr_arithmetic, "shift_right_arithmetic", INT, Exact, "The left element shifted right by the right one, the sign bit repeated."),
            (ShiftRightLogical, shr_logical, "shift_right_logical", INT, Exact, "The left element shifted right by the right one, zeros moved in."),
            (Subtract, sub, "subtract", NUMBER, Rounded, "The difference of the elements. Integers wrap."),
            (Xor, xor, "xor", INT_BOOL, Exact, "The bitwise exclusive or of the elements."),
        }
    };
}

macro_rules! unary_rows {
    ($dialect:ident; $(($code:ident, $method:ident, $name:literal, $dtypes:ident, $rounding:ident, $summary:literal)),* $(,)?) => {
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
    ($dialect:ident; $(($code:ident, $method:ident, $name:literal, $dtypes:ident, $rounding:ident, $summary:literal)),* $(,)?) => {
        pub(super) const BINARY: &[OpDef] = &[$(OpDef {
            code: OpCode::$code,
            dialect: Dialect::$dialect,
            name: $name,
            summary: $summary,
            operands: Operands::Fixed(&["lhs", "rhs"]),
            dtypes: DTypeSet::$dtypes,
            rounding: Rounding::$rounding,
            rule: "Both operands are of one type, which the result has.",
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
        summary: "Whether each element is neither infinite nor NaN.",
        rule: "The result is bool, of the operand's shape.",
        dtypes: DTypeSet::FLOAT,
        rounding: Rounding::Step,
        infer: elementwise::predicate,
        ..ROW
    },
    OpDef {
        code: OpCode::Complex,
        name: "complex",
        summary: "The complex numbers of the given real and imaginary parts.",
        rule: "Both operands are of one type, f32 or f64; the result is complex, of their shape.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        dtypes: DTypeSet::of(&[DType::F32, DType::F64]),
        infer: elementwise::complex,
        ..ROW
    },
    OpDef {
        code: OpCode::Real,
        name: "real",
        summary: "The real part of each element; a float is its own.",
        rule: "The result has the operand's shape and the type of its parts.",
        dtypes: DTypeSet::FLOAT_COMPLEX,
        infer: elementwise::part,
        lower: legalize::part,
        ..ROW
    },
    OpDef {
        code: OpCode::Imag,
        name: "imag",
        summary: "The imaginary part of each element; that of a float is 0.",
        rule: "The result has the operand's shape and the type of its parts.",
        dtypes: DTypeSet::FLOAT_COMPLEX,
        infer: elementwise::part,
        lower: legalize::part,
        ..ROW
    },
    OpDef {
        code: OpCode::Compare,
        name: "compare",
        summary: "Whether the elements stand in the given relation.",
        rule: "Both operands are of one type; the result is bool, of their shape. `compare_type` follows from the element type, with a choice for floats (FLOAT or TOTALORDER). Complex numbers can be compared by EQ and NE.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::COMPARE,
        rounding: Rounding::Step,
        infer: elementwise::compare,
        ..ROW
    },
    OpDef {
        code: OpCode::Select,
        name: "select",
        summary: "The element of `on_true` where `pred` is true, else that of `on_false`.",
        rule: "`on_true` and `on_false` are of one type, which the result has; `pred` is bool, of their shape or a scalar.",
        operands: Operands::Fixed(&["pred", "on_true", "on_false"]),
        dtypes: DTypeSet::BOOL,
        infer: elementwise::select,
        ..ROW
    },
    OpDef {
        code: OpCode::Clamp,
        name: "clamp",
        summary: "Each element of `operand`, raised to `min` and then lowered to `max`.",
        rule: "All operands have one element type; `min` and `max` have the shape of `operand` or are scalars. The result has the type of `operand`.",
        operands: Operands::Fixed(&["min", "operand", "max"]),
        infer: elementwise::clamp,
        lower: legalize::clamp,
        ..ROW
    },
    OpDef {
        code: OpCode::Convert,
        name: "convert",
        summary: "The same values in another element type.",
        rule: "The result has the operand's shape and the element type asked for. Floats are rounded to nearest even; a float becomes an integer by dropping the fraction, and the nearest end of the range where it is outside; NaN becomes 0. From a complex number the real part is taken.",
        attrs: &attrs::DTYPE,
        rounding: Rounding::Step,
        infer: elementwise::convert,
        lower: legalize::convert,
        ..ROW
    },
    OpDef {
        code: OpCode::BitcastConvert,
        name: "bitcast_convert",
        summary: "The same bits as another element type.",
        rule: "Between types of equal width the shape stays. A wider element becomes its parts along a new last dimension, lowest bits first; narrower ones along the last dimension, as many as make one, become a wider one. Complex numbers become complex numbers only.",
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
        rule: "At least 1 exponent bit and 0 mantissa bits. The result has the operand's type.",
        attrs: &attrs::REDUCE_PRECISION,
        dtypes: DTypeSet::WIDE_FLOAT,
        rounding: Rounding::Step,
        infer: elementwise::reduce_precision,
        lower: legalize::reduce_precision,
        ..ROW
    },
];
