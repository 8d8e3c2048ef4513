//! The CHLO ops.

use crate::dtype::{DType, DTypeSet};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Dialect, Fusibility, OpDef, Operands, Rounding};
use crate::op::infer::{chlo, elementwise};
use crate::op::legalize;

/// Calls a macro with the dialect and the list of CHLO's elementwise unary ops, as
/// [`for_each_unary_op`](crate::for_each_unary_op) does.
#[macro_export]
macro_rules! for_each_chlo_unary_op {
    ($callback:ident) => {
        $callback! {
            Chlo;
            (Acos, acos, "acos", FLOAT_COMPLEX, Rounded, "The angle whose cosine each element is, in radians; NaN outside of -1 to 1."),
            (Acosh, acosh, "acosh", FLOAT_COMPLEX, Rounded, "The inverse hyperbolic cosine of each element; NaN below 1."),
            (Asin, asin, "asin", FLOAT_COMPLEX, Rounded, "The angle whose sine each element is, in radians; NaN outside of -1 to 1."),
            (Asinh, asinh, "asinh", FLOAT_COMPLEX, Rounded, "The inverse hyperbolic sine of each element."),
            (Atan, atan, "atan", FLOAT_COMPLEX, Rounded, "The angle whose tangent each element is, in radians."),
            (Atanh, atanh, "atanh", FLOAT_COMPLEX, Rounded, "The inverse hyperbolic tangent of each element; NaN outside of -1 to 1."),
            (BesselI1e, bessel_i1e, "bessel_i1e", FLOAT, Rounded, "The modified Bessel function of the first kind of order 1 of each element `x`, times `exp(-|x|)`."),
            (Conj, conj, "conj", FLOAT_COMPLEX, Exact, "The conjugate of each element, the sign of its imaginary part changed; a float is its own."),
            (Cosh, cosh, "cosh", FLOAT_COMPLEX, Rounded, "The hyperbolic cosine of each element."),
            (Digamma, digamma, "digamma", FLOAT, Rounded, "The logarithmic derivative of the gamma function at each element; NaN at its poles."),
            (Erf, erf, "erf", FLOAT, Rounded, "The error function of each element."),
            (ErfInv, erf_inv, "erf_inv", FLOAT, Rounded, "The number whose error function each element is; NaN outside of -1 to 1."),
            (Erfc, erfc, "erfc", FLOAT, Rounded, "One minus the error function of each element, without cancellation."),
            (Lgamma, lgamma, "lgamma", FLOAT, Rounded, "The logarithm of the absolute value of the gamma function of each element; infinite at its poles."),
            (Sinh, sinh, "sinh", FLOAT_COMPLEX, Rounded, "The hyperbolic sine of each element."),
            (Square, square, "square", FLOAT_COMPLEX, Rounded, "Each element times itself."),
        }
    };
}

/// Calls a macro with the dialect and the list of CHLO's elementwise ops of two operands of one
/// type, as [`for_each_binary_op`](crate::for_each_binary_op) does.
#[macro_export]
macro_rules! for_each_chlo_binary_op {
    ($callback:ident) => {
        $callback! {
            Chlo;
            (Mulhi, mulhi, "mulhi", INT, Exact, "The upper half of the product of the elements, which has twice their bits."),
            (NextAfter, next_after, "next_after", WIDE_FLOAT, Step, "The neighbour of the left element towards the right one, which may be subnormal."),
            (Polygamma, polygamma, "polygamma", FLOAT, Rounded, "The derivative of the digamma function at the right element; the left one is its order, which is not negative."),
            (Zeta, zeta, "zeta", FLOAT, Rounded, "The Hurwitz zeta function: the sum of `(rhs + k)^-lhs` over all `k` from 0 on; NaN for orders below 1."),
        }
    };
}

for_each_chlo_unary_op!(unary_rows);
for_each_chlo_binary_op!(binary_rows);

/// Defaults for the rows below.
const ROW: OpDef = OpDef { dialect: Dialect::Chlo, ..super::ROW };

/// A row of a predicate on one float.
const fn predicate(code: OpCode, name: &'static str, summary: &'static str) -> OpDef {
    OpDef {
        code,
        name,
        summary,
        rule: "The result is bool, of the operand's shape.",
        dtypes: DTypeSet::FLOAT,
        rounding: Rounding::Step,
        infer: elementwise::predicate,
        ..ROW
    }
}

pub(super) const ROWS: &[OpDef] = &[
    predicate(OpCode::IsInf, "is_inf", "Whether each element is infinite."),
    predicate(OpCode::IsNegInf, "is_neg_inf", "Whether each element is the negative infinity."),
    predicate(OpCode::IsPosInf, "is_pos_inf", "Whether each element is the positive infinity."),
    OpDef {
        code: OpCode::TopK,
        name: "top_k",
        summary: "The k greatest elements along the last dimension, greatest first, and where they stand; of equal ones the first.",
        rule: "`k` is 0 to the size of the last dimension, which it replaces. The results are the values, of the operand's element type, and their places, i32.",
        attrs: &attrs::TOP_K,
        dtypes: DTypeSet::ORDERED,
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Step,
        infer: chlo::top_k,
        lower: legalize::top_k,
        ..ROW
    },
    OpDef {
        code: OpCode::RaggedDot,
        name: "ragged_dot",
        summary: "Products of lhs and rhs summed over the contracting dimensions, a dimension of lhs falling into groups: rows with a rhs of their own each, or sums with a result of their own each.",
        rule: "`group_sizes` are integers with one element per group. The ragged dimension is one of lhs: kept, contracting or batching; where it is kept, rhs has a dimension of groups, where it is contracting, the result has one in front.",
        operands: Operands::Fixed(&["lhs", "rhs", "group_sizes"]),
        attrs: &attrs::RAGGED_DOT,
        // Elements outside of all groups are zero, which that type lacks.
        dtypes: DTypeSet::ANY.without(DType::F8E8M0FNU),
        fusibility: Fusibility::Contraction,
        rounding: Rounding::Rounded,
        infer: chlo::ragged_dot,
        lower: legalize::ragged_dot,
        ..ROW
    },
    OpDef {
        code: OpCode::Scan,
        name: "scan",
        summary: "The body applied to one slice of the inputs after the other along a dimension, with values carried from each to the next; returns its outputs, and the values carried last.",
        rule: "The inputs have one size along `dimension`; the body sees a slice of each without it. The results are the outputs with that dimension, then the carried values.",
        operands: Operands::Rest { fixed: &[], rest: "inputs and inits", min: 1 },
        attrs: &attrs::SCAN,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "body",
            rule: "a slice of each input and the carried values to a slice of each output and the carried values",
        }]),
        fusibility: Fusibility::Reduction,
        rounding: Rounding::Rounded,
        infer: chlo::scan,
        lower: legalize::scan,
        ..ROW
    },
];
