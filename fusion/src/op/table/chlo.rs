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
#[rustfmt::skip]
macro_rules! for_each_chlo_unary_op {
    ($callback:ident) => {
        $callback! {
            Chlo;
            (Acos, acos, "acos", FLOAT_COMPLEX, Rounded,
             "The inverse cosine of each element, in radians; NaN for floats outside the range \
              from -1 to 1."),
            (Acosh, acosh, "acosh", FLOAT_COMPLEX, Rounded,
             "The inverse hyperbolic cosine of each element; NaN for floats below 1."),
            (Asin, asin, "asin", FLOAT_COMPLEX, Rounded,
             "The inverse sine of each element, in radians; NaN for floats outside the range \
              from -1 to 1."),
            (Asinh, asinh, "asinh", FLOAT_COMPLEX, Rounded, "The inverse hyperbolic sine of each element."),
            (Atan, atan, "atan", FLOAT_COMPLEX, Rounded, "The inverse tangent of each element, in radians."),
            (Atanh, atanh, "atanh", FLOAT_COMPLEX, Rounded,
             "The inverse hyperbolic tangent of each element; NaN for floats outside the range \
              from -1 to 1."),
            (BesselI1e, bessel_i1e, "bessel_i1e", FLOAT, Rounded,
             "`exp(-|x|) * I1(x)` for each element `x`, where `I1` is the modified Bessel \
              function of the first kind of order 1."),
            (Conj, conj, "conj", FLOAT_COMPLEX, Exact,
             "The complex conjugate of each element. The conjugate of a float is the float \
              itself."),
            (Cosh, cosh, "cosh", FLOAT_COMPLEX, Rounded, "The hyperbolic cosine of each element."),
            (Digamma, digamma, "digamma", FLOAT, Rounded,
             "The digamma function of each element, the logarithmic derivative of the gamma \
              function; NaN at its poles."),
            (Erf, erf, "erf", FLOAT, Rounded, "The error function of each element."),
            (ErfInv, erf_inv, "erf_inv", FLOAT, Rounded,
             "The inverse error function of each element; NaN outside the range from -1 to 1."),
            (Erfc, erfc, "erfc", FLOAT, Rounded,
             "The complementary error function of each element: one minus the error function, \
              computed without cancellation."),
            (Lgamma, lgamma, "lgamma", FLOAT, Rounded,
             "The logarithm of the absolute value of the gamma function of each element; \
              infinite at its poles."),
            (Sinh, sinh, "sinh", FLOAT_COMPLEX, Rounded, "The hyperbolic sine of each element."),
            (Square, square, "square", FLOAT_COMPLEX, Rounded, "The square of each element."),
        }
    };
}

/// Calls a macro with the dialect and the list of CHLO's elementwise ops of two operands of one
/// type, as [`for_each_binary_op`](crate::for_each_binary_op) does.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_chlo_binary_op {
    ($callback:ident) => {
        $callback! {
            Chlo;
            (Mulhi, mulhi, "mulhi", INT, Exact,
             "The upper half of the double-width product of the elements."),
            (NextAfter, next_after, "next_after", WIDE_FLOAT, Step,
             "The next representable number after `lhs` in the direction of `rhs`. It may be \
              subnormal."),
            (Polygamma, polygamma, "polygamma", FLOAT, Rounded,
             "The polygamma function of order `lhs` at `rhs`: derivative number `lhs` of the \
              digamma function. The order is not negative."),
            (Zeta, zeta, "zeta", FLOAT, Rounded,
             "The Hurwitz zeta function: the sum of `(rhs + k)^-lhs` over all integers `k >= 0`; \
              NaN if `lhs` is below 1."),
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
        rule: "The result is bool and has the operand's shape.",
        dtypes: DTypeSet::FLOAT,
        rounding: Rounding::Step,
        infer: elementwise::predicate,
        ..ROW
    }
}

pub(super) const ROWS: &[OpDef] = &[
    predicate(OpCode::IsInf, "is_inf", "Whether each element is infinite."),
    predicate(OpCode::IsNegInf, "is_neg_inf", "Whether each element is negative infinity."),
    predicate(OpCode::IsPosInf, "is_pos_inf", "Whether each element is positive infinity."),
    OpDef {
        code: OpCode::TopK,
        name: "top_k",
        summary: "The `k` largest elements along the last dimension, in descending order, and \
                  their indices. Among equal elements the lower index comes first.",
        rule: "`k` is at least 0 and at most the size of the last dimension. In the results, the \
               last dimension has size `k`. The first result has the operand's element type, the \
               second has the indices as i32.",
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
        summary: "A dot product in which one dimension of `lhs` is divided into groups. If that \
                  dimension is free, each group is multiplied by its own part of `rhs`. If it is \
                  contracting, each group has its own result.",
        rule: "`group_sizes` has one integer per group. `lhs` has one ragged dimension, which is \
               free, contracting or batching. If it is free, `rhs` has a group dimension. If it \
               is contracting, the result has a leading group dimension.",
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
        summary: "The body applied to each slice of the inputs along a dimension, in order. \
                  Carried values pass from each step to the next. The results are the outputs of \
                  all steps and the final carried values.",
        rule: "All inputs have the same size along `dimension`. The body takes a slice of each \
               input, without that dimension. The results are the outputs, with that dimension, \
               and then the carried values.",
        operands: Operands::Rest { fixed: &[], rest: "inputs and inits", min: 1 },
        attrs: &attrs::SCAN,
        bodies: Bodies::Fixed(&[BodyDef {
            name: "body",
            rule: "takes a slice of each input and the carried values; returns a slice of each \
                   output and the next carried values",
        }]),
        fusibility: Fusibility::Reduction,
        rounding: Rounding::Rounded,
        infer: chlo::scan,
        lower: legalize::scan,
        ..ROW
    },
];
