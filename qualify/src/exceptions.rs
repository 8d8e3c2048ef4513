//! Differences of XLA's CPU backend, and why they are accepted.

use fuseline::fusion::DTypeSet;
use fuseline::{DType, Engine, OpCode};

use crate::calls::Pair;
use crate::compare::Case;

use crate::judge::Float;

/// Pairs that may differ in one way. Each of its ops needs the exception.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// The ops.
    pub ops: &'static [OpCode],
    /// The element types.
    pub dtypes: DTypeSet,
    /// Selects the elements that may differ.
    pub excuses: fn(&Case) -> bool,
    /// The PJRT API versions of the builds that need it; empty for all.
    pub builds: &'static [&'static str],
    /// The reason.
    pub why: &'static str,
}

/// Whether the plugin of a device has one of these PJRT API versions. An empty list means all.
#[must_use]
pub fn is_listed(device: &Engine, builds: &[&str]) -> bool {
    let version = device.pjrt_device().map(|device| device.client().plugin().api_version().to_string());
    builds.is_empty() || version.is_some_and(|version| builds.contains(&version.as_str()))
}

impl Exception {
    /// Whether it is about a pair.
    #[must_use]
    pub fn covers(&self, pair: &Pair) -> bool {
        self.ops.contains(&pair.def.code)
            && (self.dtypes.contains(pair.dtype)
                || pair.other.is_some_and(|other| self.dtypes.contains(other)))
    }
}

/// Floats that are not wider than the type they are computed in.
const LONG: DTypeSet = DTypeSet::of(&[DType::F32, DType::F64]).or(DTypeSet::COMPLEX);

/// The accepted differences.
pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        ops: &[OpCode::Maximum, OpCode::Minimum],
        dtypes: DTypeSet::COMPLEX,
        excuses: has_subnormal,
        builds: &[],
        why: "parts are compared with subnormal numbers as zero, and one of the operands is the result, as it is",
    },
    Exception {
        ops: &[
            OpCode::Add,
            OpCode::Atan2,
            OpCode::Cbrt,
            OpCode::Convert,
            OpCode::Divide,
            OpCode::DynamicIota,
            OpCode::ErfInv,
            OpCode::Iota,
            OpCode::Lgamma,
            OpCode::Multiply,
            OpCode::Power,
            OpCode::Rsqrt,
            OpCode::Sqrt,
            OpCode::ReduceWindow,
            OpCode::SelectAndScatter,
        ],
        dtypes: DTypeSet::of(&[DType::F8E8M0FNU]),
        excuses: is_about_zero,
        builds: &[],
        why: "its least number is a subnormal f32, and it has no zero: what rounds to zero in one and not in the other is NaN",
    },
    Exception {
        ops: &[
            OpCode::Abs,
            OpCode::Acos,
            OpCode::Acosh,
            OpCode::Asin,
            OpCode::Asinh,
            OpCode::Atan,
            OpCode::Atan2,
            OpCode::Atanh,
            OpCode::Cosh,
            OpCode::Cosine,
            OpCode::Divide,
            OpCode::ExponentialMinusOne,
            OpCode::Log,
            OpCode::LogPlusOne,
            OpCode::Logistic,
            OpCode::Multiply,
            OpCode::Power,
            OpCode::Rsqrt,
            OpCode::Sine,
            OpCode::Sinh,
            OpCode::Sqrt,
            OpCode::Square,
        ],
        dtypes: DTypeSet::COMPLEX,
        excuses: gives_not_finite,
        builds: &[],
        why: "which parts of a function of complex infinities and NaN are NaN is not specified",
    },
    Exception {
        ops: &[
            OpCode::Acos,
            OpCode::Acosh,
            OpCode::Atan2,
            OpCode::Cbrt,
            OpCode::Divide,
            OpCode::Logistic,
            OpCode::Power,
            OpCode::Rsqrt,
            OpCode::Sign,
        ],
        dtypes: DTypeSet::COMPLEX,
        excuses: is_extreme,
        builds: &[],
        why: "what is made of the parts on the way, squares and exponentials, overflows or underflows",
    },
    Exception {
        ops: &[OpCode::Atan, OpCode::Atanh, OpCode::ExponentialMinusOne, OpCode::LogPlusOne],
        dtypes: DTypeSet::COMPLEX,
        excuses: |case| is_extreme(case) && found_overflows(case),
        builds: &[],
        why: "a square or an exponential of the parts overflows, or its logarithm does",
    },
    Exception {
        ops: &[OpCode::Cbrt],
        dtypes: LONG,
        // The power is the exponential of a product, whose relative error becomes an absolute one.
        excuses: |case| case.steps <= 4.0 + 0.1 * max_abs_log(case),
        builds: &["0.81"],
        why: "it is a power of a third, whose rounding very large and very small numbers magnify",
    },
    Exception {
        ops: &[OpCode::Power],
        dtypes: DTypeSet::COMPLEX,
        excuses: |case| case.steps <= 16.0 || case.operands[0].iter().all(|part| part.value() == 0.0),
        builds: &[],
        why: "the logarithm's rounding is magnified by the exponent, and powers of zero other than 0 are NaN",
    },
    Exception {
        ops: &[OpCode::Atan2],
        dtypes: DTypeSet::COMPLEX,
        excuses: |case| has_zero(case) || is_on_the_cut(case),
        builds: &[],
        why: "rounding takes the quotient of the operands from the branch cut to either side, and from zero",
    },
    Exception {
        ops: &[OpCode::Polygamma],
        dtypes: DTypeSet::of(&[DType::F64]),
        excuses: |case| case.steps <= 128.0 || has_huge_operand(case),
        builds: &[],
        why: "digamma cancels near its zeros, and a factorial is the exponential of its logarithm",
    },
    Exception {
        ops: &[OpCode::Zeta],
        dtypes: DTypeSet::of(&[DType::F64]),
        excuses: has_huge_operand,
        builds: &[],
        why: "the power of a huge number underflows, and its product with the sum is 0 * inf",
    },
    Exception {
        ops: &[OpCode::Convolution, OpCode::DynamicConv],
        dtypes: DTypeSet::FLOAT.or(DTypeSet::COMPLEX),
        excuses: gives_not_finite,
        builds: &[],
        why: "padding is left out, and groups are made by zeros: an infinite factor of either gives NaN or not",
    },
    Exception {
        ops: &[OpCode::Reduce],
        dtypes: DTypeSet::COMPLEX,
        excuses: gives_not_finite,
        builds: &[],
        why: "which parts of a product of complex infinities are NaN is not specified",
    },
    Exception {
        ops: &[OpCode::DotGeneral, OpCode::RaggedDot],
        dtypes: DTypeSet::COMPLEX,
        excuses: gives_not_finite,
        builds: &["0.106", "0.115"],
        why: "a complex product is a sum of real ones in another order, and some overflow",
    },
    Exception {
        ops: &[OpCode::Scan],
        dtypes: DTypeSet::of(&[DType::F8E5M2FNUZ]),
        excuses: is_below_f16,
        builds: &[],
        why: "in a loop, numbers that are subnormal in f16 become its least normal one",
    },
    Exception {
        ops: &[OpCode::BatchNormGrad, OpCode::Fft, OpCode::TriangularSolve],
        dtypes: DTypeSet::FLOAT.or(DTypeSet::COMPLEX),
        excuses: gives_not_finite,
        builds: &[],
        why: "infinities meet zeros, or each other, in an order that is not specified",
    },
    Exception {
        ops: &[OpCode::Cholesky],
        dtypes: DTypeSet::COMPLEX,
        excuses: gives_not_finite,
        builds: &[],
        why: "the diagonal of a factor that does not exist is NaN without an imaginary part",
    },
];

/// Whether a part of an operand is finite and at least 1e300.
fn has_huge_operand(case: &Case) -> bool {
    case.operands.iter().flatten().any(|part| (1e300..f64::INFINITY).contains(&part.value()))
}

/// The largest absolute value of the logarithm of a part of the operands.
fn max_abs_log(case: &Case) -> f64 {
    let logs = case.operands.iter().flatten().map(|part| part.value().abs().ln().abs());
    logs.filter(|log| log.is_finite()).fold(0.0, f64::max)
}

/// Whether the right result is below the smallest normal `f16`, and was found so.
fn is_below_f16(case: &Case) -> bool {
    const LEAST: f64 = 6.103515625e-5;
    case.floats
        .as_ref()
        .is_some_and(|(found, right)| right[0].value().abs() < LEAST && found[0].value().abs() == LEAST)
}

/// Whether only one of found and right result is NaN, or the operand is the smallest number.
fn is_about_zero(case: &Case) -> bool {
    let nan = |parts: &[Float]| parts.iter().any(|part| part.value().is_nan());
    has_subnormal(case) || case.floats.as_ref().is_some_and(|(found, right)| nan(found) != nan(right))
}

/// Whether a part of the found result is infinite or NaN.
fn found_overflows(case: &Case) -> bool {
    case.floats.iter().flat_map(|(found, _)| found).any(|part| !part.value().is_finite())
}

/// Whether a part of an operand or of the right result is infinite or NaN. For an op that is not
/// elementwise, all elements of its operands count.
#[must_use]
pub fn is_not_finite(case: &Case) -> bool {
    let right = case.floats.iter().flat_map(|(_, right)| right);
    let is_not_finite = |part: &Float| !part.value().is_finite();
    case.operands.iter().flatten().chain(right).any(is_not_finite)
        || (case.operands.is_empty() && !case.has_finite_operands)
}

/// Whether an operand is not finite, and neither is the result, found or right.
fn gives_not_finite(case: &Case) -> bool {
    let mut results = case.floats.iter().flat_map(|(found, right)| found.iter().chain(right));
    is_not_finite(case) && results.any(|part| !part.value().is_finite())
}

/// Whether a part of an operand is subnormal in the type in which it is computed.
#[must_use]
pub fn has_subnormal(case: &Case) -> bool {
    case.operands.iter().flatten().any(|part| part.is_subnormal())
}

/// Whether the real part of both results is pi, with either sign.
fn is_on_the_cut(case: &Case) -> bool {
    let is_pi = |parts: &[Float]| (parts[0].value().abs() - std::f64::consts::PI).abs() < 1e-6;
    case.floats.as_ref().is_some_and(|(found, right)| is_pi(found) && is_pi(right))
}

/// Whether the square of a part of an operand or of the right result overflows or underflows.
#[must_use]
pub fn is_extreme(case: &Case) -> bool {
    let sides = |part: &Float| {
        let x = part.value().abs();
        let (least, most) = if part.dtype == DType::F64 { (1e-150, 1e150) } else { (1e-18, 1e18) };
        x != 0.0 && !(least..most).contains(&x)
    };
    let right = case.floats.iter().flat_map(|(_, right)| right);
    case.operands.iter().flatten().chain(right).any(sides)
}

/// Whether a part of an operand is zero.
#[must_use]
pub fn has_zero(case: &Case) -> bool {
    case.operands.iter().flatten().any(|part| part.value() == 0.0)
}

/// The index of the exception that excuses a difference of a pair; `None` if there is none.
#[must_use]
pub fn excuse(pair: &Pair, case: &Case) -> Option<usize> {
    EXCEPTIONS.iter().position(|exception| exception.covers(pair) && (exception.excuses)(case))
}
