//! The op table: one row per op.
//!
//! Elementwise ops with one or two operands of one type differ only in name, element types and arithmetic. Their rows
//! come from two lists, [`for_each_unary_op`](crate::for_each_unary_op) and
//! [`for_each_binary_op`](crate::for_each_binary_op), from which the engine also generates the methods of its tensor
//! type: an entry there is all that such an op needs besides its arithmetic in the interpreter.

use super::attrs;
use super::code::OpCode;
use super::def::{BodyDef, Effect, Fusibility, Numerics, OpDef, OperandGroup, Operands};
use super::expand;
use super::rules::{contraction, elementwise, indexing, movement, reduction, source};
use super::sample;
use crate::dtype::DTypeSet;
use crate::interp;

/// Calls a macro with the list of elementwise ops of one operand:
/// `(opcode, method, StableHLO name, element types, numerics, what it computes)`.
#[macro_export]
macro_rules! for_each_unary_op {
    ($callback:ident) => {
        $callback! {
            (Abs, abs, "abs", SIGNED_FLOAT, Exact, "The absolute value of each element."),
            (Cbrt, cbrt, "cbrt", FLOAT, Rounded, "The cube root of each element."),
            (Ceil, ceil, "ceil", FLOAT, Step, "The least integer not below each element."),
            (CountLeadingZeros, count_leading_zeros, "count_leading_zeros", INT, Exact, "The number of zero bits above the highest set bit of each element."),
            (Cosine, cos, "cosine", FLOAT, Rounded, "The cosine of each element, in radians."),
            (Exponential, exp, "exponential", FLOAT, Rounded, "e to the power of each element."),
            (ExponentialMinusOne, expm1, "exponential_minus_one", FLOAT, Rounded, "e to the power of each element, minus one, without cancellation near zero."),
            (Floor, floor, "floor", FLOAT, Step, "The greatest integer not above each element."),
            (Log, log, "log", FLOAT, Rounded, "The natural logarithm of each element."),
            (LogPlusOne, log1p, "log_plus_one", FLOAT, Rounded, "The natural logarithm of one plus each element, without cancellation near zero."),
            (Logistic, logistic, "logistic", FLOAT, Rounded, "The logistic function `1 / (1 + exp(-x))` of each element."),
            (Negate, neg, "negate", NUMBER, Exact, "Each element with its sign changed; unsigned integers wrap."),
            (Not, not, "not", INT_BOOL, Exact, "Each element with every bit turned; logical not of `bool`."),
            (Popcnt, popcnt, "popcnt", INT, Exact, "The number of set bits of each element."),
            (RoundNearestAfz, round, "round_nearest_afz", FLOAT, Step, "The nearest integer to each element, ties away from zero."),
            (RoundNearestEven, round_even, "round_nearest_even", FLOAT, Step, "The nearest integer to each element, ties to the even one."),
            (Rsqrt, rsqrt, "rsqrt", FLOAT, Rounded, "One over the square root of each element."),
            (Sign, sign, "sign", SIGNED_FLOAT, Step, "-1, 0 or 1 by the sign of each element; NaN and zeros of floats stay."),
            (Sine, sin, "sine", FLOAT, Rounded, "The sine of each element, in radians."),
            (Sqrt, sqrt, "sqrt", FLOAT, Rounded, "The square root of each element."),
            (Tan, tan, "tan", FLOAT, Rounded, "The tangent of each element, in radians."),
            (Tanh, tanh, "tanh", FLOAT, Rounded, "The hyperbolic tangent of each element."),
        }
    };
}

/// Calls a macro with the list of elementwise ops of two operands of one type:
/// `(opcode, method, StableHLO name, element types, numerics, what it computes)`.
#[macro_export]
macro_rules! for_each_binary_op {
    ($callback:ident) => {
        $callback! {
            (Add, add, "add", ANY, Rounded, "The sum of the elements; logical or of `bool`. Integers wrap."),
            (And, and, "and", INT_BOOL, Exact, "The bitwise and of the elements; logical and of `bool`."),
            (Atan2, atan2, "atan2", FLOAT, Rounded, "The angle of the point (rhs, lhs), in radians."),
            (Divide, div, "divide", NUMBER, Rounded, "The quotient of the elements; integers round towards zero, and by zero give all bits set."),
            (Maximum, maximum, "maximum", ANY, Exact, "The larger of the elements; NaN if either is NaN."),
            (Minimum, minimum, "minimum", ANY, Exact, "The smaller of the elements; NaN if either is NaN."),
            (Multiply, mul, "multiply", ANY, Rounded, "The product of the elements; logical and of `bool`. Integers wrap."),
            (Or, or, "or", INT_BOOL, Exact, "The bitwise or of the elements; logical or of `bool`."),
            (Power, pow, "power", NUMBER, Rounded, "The left element to the power of the right one."),
            (Remainder, rem, "remainder", NUMBER, Step, "What the truncated division leaves; it has the sign of the left element."),
            (ShiftLeft, shl, "shift_left", INT, Exact, "The left element shifted left by the right one; 0 from the bit width on."),
            (ShiftRightArithmetic, shr_arithmetic, "shift_right_arithmetic", INT, Exact, "The left element shifted right by the right one, the sign bit repeated."),
            (ShiftRightLogical, shr_logical, "shift_right_logical", INT, Exact, "The left element shifted right by the right one, zeros moved in."),
            (Subtract, sub, "subtract", NUMBER, Rounded, "The difference of the elements. Integers wrap."),
            (Xor, xor, "xor", INT_BOOL, Exact, "The bitwise exclusive or of the elements."),
        }
    };
}

/// Defaults for the rows below.
const ROW: OpDef = OpDef {
    code: OpCode::Abs,
    name: "",
    summary: "",
    operands: Operands::Fixed(&["operand"]),
    attrs: &[],
    bodies: &[],
    dtypes: DTypeSet::ANY,
    fusibility: Fusibility::Elementwise,
    numerics: Numerics::Exact,
    effect: Effect::Pure,
    infer: elementwise::unary,
    lower: expand::itself,
    eval: interp::elementwise::map,
    sample: sample::elementwise::unary,
};

macro_rules! unary_rows {
    ($(($code:ident, $method:ident, $name:literal, $dtypes:ident, $numerics:ident, $summary:literal)),* $(,)?) => {
        const UNARY: &[OpDef] = &[$(OpDef {
            code: OpCode::$code,
            name: $name,
            summary: $summary,
            dtypes: DTypeSet::$dtypes,
            numerics: Numerics::$numerics,
            lower: expand::unary,
            ..ROW
        }),*];
    };
}

macro_rules! binary_rows {
    ($(($code:ident, $method:ident, $name:literal, $dtypes:ident, $numerics:ident, $summary:literal)),* $(,)?) => {
        const BINARY: &[OpDef] = &[$(OpDef {
            code: OpCode::$code,
            name: $name,
            summary: $summary,
            operands: Operands::Fixed(&["lhs", "rhs"]),
            dtypes: DTypeSet::$dtypes,
            numerics: Numerics::$numerics,
            infer: elementwise::binary,
            lower: expand::binary,
            sample: sample::elementwise::binary,
            ..ROW
        }),*];
    };
}

for_each_unary_op!(unary_rows);
for_each_binary_op!(binary_rows);

/// A body that combines two elements into one.
const COMBINER: &str = "two scalars per operand to one, of the operand's type or a wider one";

const OTHER: &[OpDef] = &[
    OpDef {
        code: OpCode::IsFinite,
        name: "is_finite",
        summary: "Whether each element is neither infinite nor NaN.",
        dtypes: DTypeSet::FLOAT,
        numerics: Numerics::Step,
        infer: elementwise::predicate,
        ..ROW
    },
    OpDef {
        code: OpCode::Compare,
        name: "compare",
        summary: "Whether the elements stand in the given relation.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::COMPARE,
        numerics: Numerics::Step,
        infer: elementwise::compare,
        sample: sample::elementwise::compare,
        ..ROW
    },
    OpDef {
        code: OpCode::Select,
        name: "select",
        summary: "The element of `on_true` where `pred` is true, else that of `on_false`.",
        operands: Operands::Fixed(&["pred", "on_true", "on_false"]),
        dtypes: DTypeSet::BOOL,
        infer: elementwise::select,
        sample: sample::elementwise::select,
        ..ROW
    },
    OpDef {
        code: OpCode::Clamp,
        name: "clamp",
        summary: "Each element of `operand`, raised to `min` and then lowered to `max`.",
        operands: Operands::Fixed(&["min", "operand", "max"]),
        infer: elementwise::clamp,
        sample: sample::elementwise::clamp,
        ..ROW
    },
    OpDef {
        code: OpCode::Convert,
        name: "convert",
        summary: "The same values in another element type.",
        attrs: &attrs::DTYPE,
        numerics: Numerics::Step,
        infer: elementwise::convert,
        sample: sample::elementwise::convert,
        ..ROW
    },
    OpDef {
        code: OpCode::BitcastConvert,
        name: "bitcast_convert",
        summary: "The same bits as another element type.",
        attrs: &attrs::DTYPE,
        fusibility: Fusibility::Movement,
        numerics: Numerics::Step,
        infer: elementwise::bitcast_convert,
        lower: expand::bitcast_convert,
        eval: interp::elementwise::bitcast_convert,
        sample: sample::elementwise::bitcast_convert,
        ..ROW
    },
    OpDef {
        code: OpCode::ReducePrecision,
        name: "reduce_precision",
        summary: "Each element rounded to fewer exponent and mantissa bits.",
        attrs: &attrs::REDUCE_PRECISION,
        dtypes: DTypeSet::FLOAT,
        numerics: Numerics::Step,
        infer: elementwise::reduce_precision,
        lower: expand::reduce_precision,
        sample: sample::elementwise::reduce_precision,
        ..ROW
    },
    OpDef {
        code: OpCode::Constant,
        name: "constant",
        summary: "The given data, which is part of the key.",
        operands: Operands::Fixed(&[]),
        attrs: &attrs::CONSTANT,
        fusibility: Fusibility::Source,
        infer: source::constant,
        lower: expand::constant,
        eval: interp::source::constant,
        sample: sample::source::constant,
        ..ROW
    },
    OpDef {
        code: OpCode::Iota,
        name: "iota",
        summary: "0, 1, 2, ... along one dimension.",
        operands: Operands::Fixed(&[]),
        attrs: &attrs::IOTA,
        dtypes: DTypeSet::NUMBER,
        fusibility: Fusibility::Source,
        infer: source::iota,
        eval: interp::source::iota,
        sample: sample::source::iota,
        ..ROW
    },
    OpDef {
        code: OpCode::BroadcastInDim,
        name: "broadcast_in_dim",
        summary: "The operand repeated along new dimensions and along those of size 1.",
        attrs: &attrs::BROADCAST_IN_DIM,
        fusibility: Fusibility::Movement,
        infer: movement::broadcast_in_dim,
        eval: interp::movement::broadcast_in_dim,
        sample: sample::movement::broadcast_in_dim,
        ..ROW
    },
    OpDef {
        code: OpCode::Reshape,
        name: "reshape",
        summary: "The same elements in row-major order under another shape.",
        attrs: &attrs::RESHAPE,
        fusibility: Fusibility::Movement,
        infer: movement::reshape,
        eval: interp::movement::reshape,
        sample: sample::movement::reshape,
        ..ROW
    },
    OpDef {
        code: OpCode::Transpose,
        name: "transpose",
        summary: "The dimensions in another order.",
        attrs: &attrs::TRANSPOSE,
        fusibility: Fusibility::Movement,
        infer: movement::transpose,
        eval: interp::movement::transpose,
        sample: sample::movement::transpose,
        ..ROW
    },
    OpDef {
        code: OpCode::Slice,
        name: "slice",
        summary: "Every so many elements between two fixed places of each dimension.",
        attrs: &attrs::SLICE,
        fusibility: Fusibility::Movement,
        infer: movement::slice,
        lower: expand::slice,
        eval: interp::movement::slice,
        sample: sample::movement::slice,
        ..ROW
    },
    OpDef {
        code: OpCode::Concatenate,
        name: "concatenate",
        summary: "The operands one after the other along one dimension.",
        operands: Operands::Rest { fixed: &[], rest: "inputs", min: 1 },
        attrs: &attrs::DIMENSION,
        fusibility: Fusibility::Movement,
        infer: movement::concatenate,
        eval: interp::movement::concatenate,
        sample: sample::movement::concatenate,
        ..ROW
    },
    OpDef {
        code: OpCode::Pad,
        name: "pad",
        summary: "The operand with `padding_value` added at the edges and between neighbours.",
        operands: Operands::Fixed(&["operand", "padding_value"]),
        attrs: &attrs::PAD,
        fusibility: Fusibility::Movement,
        infer: movement::pad,
        eval: interp::movement::pad,
        sample: sample::movement::pad,
        ..ROW
    },
    OpDef {
        code: OpCode::Reverse,
        name: "reverse",
        summary: "The order of the elements turned around along some dimensions.",
        attrs: &attrs::DIMENSIONS,
        fusibility: Fusibility::Movement,
        infer: movement::reverse,
        eval: interp::movement::reverse,
        sample: sample::movement::reverse,
        ..ROW
    },
    OpDef {
        code: OpCode::DynamicSlice,
        name: "dynamic_slice",
        summary: "A window of fixed size at a computed place, moved inside where it would stick out.",
        operands: Operands::Rest { fixed: &["operand"], rest: "start_indices", min: 0 },
        attrs: &attrs::DYNAMIC_SLICE,
        fusibility: Fusibility::Indexing,
        infer: movement::dynamic_slice,
        eval: interp::movement::dynamic_slice,
        sample: sample::movement::dynamic_slice,
        ..ROW
    },
    OpDef {
        code: OpCode::DynamicUpdateSlice,
        name: "dynamic_update_slice",
        summary: "The operand with a window at a computed place replaced by the update.",
        operands: Operands::Rest { fixed: &["operand", "update"], rest: "start_indices", min: 0 },
        fusibility: Fusibility::Indexing,
        infer: movement::dynamic_update_slice,
        eval: interp::movement::dynamic_update_slice,
        sample: sample::movement::dynamic_update_slice,
        ..ROW
    },
    OpDef {
        code: OpCode::Reduce,
        name: "reduce",
        summary: "The elements along some dimensions combined by the body, in an order left open.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs"), OperandGroup::Many("init_values")]),
        attrs: &attrs::DIMENSIONS,
        bodies: &[BodyDef { name: "body", rule: COMBINER }],
        fusibility: Fusibility::Reduction,
        numerics: Numerics::Rounded,
        infer: reduction::reduce,
        lower: expand::combined,
        eval: interp::reduction::reduce,
        sample: sample::reduction::reduce,
        ..ROW
    },
    OpDef {
        code: OpCode::DotGeneral,
        name: "dot_general",
        summary: "Products of lhs and rhs summed over the contracting dimensions, for each batch index.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::DOT_GENERAL,
        fusibility: Fusibility::Contraction,
        numerics: Numerics::Rounded,
        infer: contraction::dot_general,
        eval: interp::contraction::dot_general,
        sample: sample::contraction::dot_general,
        ..ROW
    },
    OpDef {
        code: OpCode::Convolution,
        name: "convolution",
        summary: "Products of a kernel with the part of the input under it, summed over window and features.",
        operands: Operands::Fixed(&["lhs", "rhs"]),
        attrs: &attrs::CONVOLUTION,
        fusibility: Fusibility::Contraction,
        numerics: Numerics::Rounded,
        infer: contraction::convolution,
        lower: expand::convolution,
        eval: interp::contraction::convolution,
        sample: sample::contraction::convolution,
        ..ROW
    },
    OpDef {
        code: OpCode::ReduceWindow,
        name: "reduce_window",
        summary: "The elements under each position of a window combined by the body.",
        operands: Operands::Groups(&[OperandGroup::Many("inputs"), OperandGroup::Many("init_values")]),
        attrs: &attrs::REDUCE_WINDOW,
        bodies: &[BodyDef { name: "body", rule: COMBINER }],
        fusibility: Fusibility::Reduction,
        numerics: Numerics::Rounded,
        infer: reduction::reduce_window,
        lower: expand::reduce_window,
        eval: interp::reduction::reduce_window,
        sample: sample::reduction::reduce_window,
        ..ROW
    },
    OpDef {
        code: OpCode::SelectAndScatter,
        name: "select_and_scatter",
        summary: "Each source element combined into the operand place that its window selects.",
        operands: Operands::Fixed(&["operand", "source", "init_value"]),
        attrs: &attrs::SELECT_AND_SCATTER,
        bodies: &[
            BodyDef { name: "select", rule: "two scalars of the operand's type to bool" },
            BodyDef { name: "scatter", rule: COMBINER },
        ],
        fusibility: Fusibility::Reduction,
        numerics: Numerics::Step,
        infer: reduction::select_and_scatter,
        lower: expand::select_and_scatter,
        eval: interp::reduction::select_and_scatter,
        sample: sample::reduction::select_and_scatter,
        ..ROW
    },
    OpDef {
        code: OpCode::Gather,
        name: "gather",
        summary: "For each index vector, the slice of the operand that starts there, moved inside.",
        operands: Operands::Fixed(&["operand", "start_indices"]),
        attrs: &attrs::GATHER,
        fusibility: Fusibility::Indexing,
        infer: indexing::gather,
        eval: interp::indexing::gather,
        sample: sample::indexing::gather,
        ..ROW
    },
    OpDef {
        code: OpCode::Scatter,
        name: "scatter",
        summary: "The inputs with each update combined into the place its index vector names.",
        operands: Operands::Groups(&[
            OperandGroup::Many("inputs"),
            OperandGroup::One("scatter_indices"),
            OperandGroup::Many("updates"),
        ]),
        attrs: &attrs::SCATTER,
        bodies: &[BodyDef { name: "update_computation", rule: COMBINER }],
        fusibility: Fusibility::Indexing,
        numerics: Numerics::Rounded,
        infer: indexing::scatter,
        lower: expand::combined,
        eval: interp::indexing::scatter,
        sample: sample::indexing::scatter,
        ..ROW
    },
    OpDef {
        code: OpCode::RngBitGenerator,
        name: "rng_bit_generator",
        summary: "The next state of a counter-based generator and uniformly distributed bits.",
        operands: Operands::Fixed(&["initial_state"]),
        attrs: &attrs::RNG_BIT_GENERATOR,
        dtypes: DTypeSet::of(&[crate::DType::U64]),
        fusibility: Fusibility::Opaque,
        infer: source::rng_bit_generator,
        lower: expand::rng_bit_generator,
        eval: interp::source::rng_bit_generator,
        sample: sample::source::rng_bit_generator,
        ..ROW
    },
    OpDef {
        code: OpCode::OptimizationBarrier,
        name: "optimization_barrier",
        summary: "The operands, across which the compiler moves and computes nothing.",
        operands: Operands::Groups(&[OperandGroup::Many("operand")]),
        fusibility: Fusibility::Opaque,
        infer: movement::optimization_barrier,
        eval: interp::movement::optimization_barrier,
        sample: sample::movement::optimization_barrier,
        ..ROW
    },
];

const COUNT: usize = UNARY.len() + BINARY.len() + OTHER.len();

/// Every op the library knows.
pub static OPS: [OpDef; COUNT] = {
    let mut rows = [ROW; COUNT];
    let mut i = 0;
    while i < COUNT {
        rows[i] = if i < UNARY.len() {
            UNARY[i]
        } else if i < UNARY.len() + BINARY.len() {
            BINARY[i - UNARY.len()]
        } else {
            OTHER[i - UNARY.len() - BINARY.len()]
        };
        i += 1;
    }
    rows
};
