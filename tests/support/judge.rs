//! How far what a plugin computes may be from what the reference interpreter does, number by number.
//!
//! An op that rounds may be off by some units in the last place, any other op gives the same number. NaN equals NaN, and
//! where the table calls an op exact, the sign of zero counts.
//!
//! XLA's CPU backend reads subnormal numbers of `bf16`, `f32` and `f64` as zero and writes zero in their place, also of what
//! it computes on the way; the shorter floats it computes in longer ones, in which all of theirs are normal. So a result of
//! subnormal operands may be anything between the right one and that of zeros of their signs where these two are next to
//! each other, or where a list says that the op is far off; and for a result below four times the least normal number any
//! smaller one of its sign will do.

use fuseline::fusion::FloatFormat;
use fuseline::fusion::op::Rounding;
use fuseline::{DType, OpCode};

/// Ops that are good to an absolute error only where they are near zero, and why.
pub(crate) const NEAR_ZERO: &[(OpCode, f64, &str)] = &[
    (OpCode::Digamma, 1e-6, "near its zeros it is a difference of large terms in f32"),
    (OpCode::Lgamma, 2e-6, "near its zeros it is a difference of large terms in f32"),
];

/// Ops of one operand that are far off for subnormal operands, which are read as zero, with what becomes of them.
pub(crate) const READS_ZERO: &[(OpCode, &str)] = &[
    (OpCode::Cbrt, "9e-16 at most in place of up to 2e-13"),
    (OpCode::Digamma, "the NaN of the pole in place of numbers past 8e37"),
    (OpCode::Lgamma, "the infinity of the pole in place of 87 to 92"),
    (OpCode::Log, "the negative infinity in place of -87 to -92, and in place of NaN"),
    (OpCode::Rsqrt, "an infinity in place of 9e18 to 1e20, and in place of NaN"),
    (OpCode::Sign, "zero in place of one"),
    (OpCode::Sqrt, "zero in place of up to 1e-19, and in place of NaN"),
];

/// How far the results for a subnormal operand and for zero may be apart to count as next to each other.
const NEXT: f64 = 1e-30;

/// Whether XLA's CPU backend takes subnormal numbers of a type for zero.
pub(crate) fn is_flushed(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F32 | DType::F64)
}

/// A float of any type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float {
    pub(crate) dtype: DType,
    pub(crate) bits: u64,
}

impl Float {
    fn format(self) -> FloatFormat {
        self.dtype.float_format().expect("a float")
    }

    pub(crate) fn value(self) -> f64 {
        self.format().decode(self.bits)
    }

    pub(crate) fn magnitude(self) -> u64 {
        self.bits & !self.format().sign()
    }

    fn is_negative(self) -> bool {
        self.bits != self.magnitude()
    }

    /// The bits of the least normal number; those of four times it are three times as many.
    fn least_normal(self) -> u64 {
        1 << self.format().mantissa
    }

    /// Whether it is subnormal where XLA's CPU backend computes with it: the least `f8E8M0FNU` is a subnormal `f32`.
    pub(crate) fn is_subnormal(self) -> bool {
        match self.dtype {
            DType::F8E8M0FNU => self.bits == 0,
            _ => is_flushed(self.dtype) && (1..self.least_normal()).contains(&self.magnitude()),
        }
    }

    /// The number, or zero of its sign in place of a subnormal one that is taken for it. There is no zero to take for the
    /// least `f8E8M0FNU`.
    pub(crate) fn flushed(self) -> Float {
        if self.is_subnormal() && self.dtype != DType::F8E8M0FNU {
            Float { bits: self.bits & self.format().sign(), ..self }
        } else {
            self
        }
    }

    /// Whether it lies between two others, or is one of them.
    fn is_between(self, a: Float, b: Float) -> bool {
        let (low, high) = (a.value().min(b.value()), a.value().max(b.value()));
        (low..=high).contains(&self.value()) || [a, b].iter().any(|end| self.steps(*end) == Some(0))
    }

    /// Number of steps from one number to another; `None` when one of them is NaN and the other is not.
    pub(crate) fn steps(self, other: Float) -> Option<u64> {
        let (a, b) = (self.magnitude(), other.magnitude());
        match (self.value().is_nan(), other.value().is_nan()) {
            (true, true) => Some(0),
            (false, false) if self.is_negative() == other.is_negative() => Some(a.abs_diff(b)),
            (false, false) => Some(a.saturating_add(b)),
            _ => None,
        }
    }
}

/// What an op may do with its results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) rounding: Rounding,
    /// Units in the last place that a result may be off by where the op rounds.
    pub(crate) steps: u64,
    /// How far it may be off in absolute terms.
    pub(crate) absolute: f64,
    /// Whether subnormal operands may count as zero however far off the result is then.
    pub(crate) reads_zero: bool,
}

/// What is to say of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Right, but for rounding by so many units in the last place.
    Right(u64),
    /// Right with a subnormal number read or written as zero.
    Flushed,
    /// Right only because of [`Rule::absolute`] or [`Rule::reads_zero`].
    Excepted,
    Wrong,
}

impl Rule {
    /// Compares a result with the right one, and with that of zeros in place of subnormal operands.
    pub(crate) fn judge(&self, found: Float, right: Float, at_zero: Float) -> Verdict {
        let passes = |right: Float| {
            let steps = found.steps(right);
            match self.rounding {
                Rounding::Exact => steps == Some(0),
                Rounding::Step => steps == Some(0) || found.value() == right.value(),
                Rounding::Rounded => steps.is_some_and(|steps| steps <= self.steps),
            }
        };
        if passes(right) {
            let steps = if self.rounding == Rounding::Rounded { found.steps(right) } else { None };
            return Verdict::Right(steps.unwrap_or(0));
        }
        let is_next = (at_zero.value() - right.value()).abs() <= NEXT;
        let as_zero =
            at_zero.steps(right) != Some(0) && (found.is_between(at_zero, right) || passes(at_zero));
        // Zero becomes NaN in the type without zero.
        let written_as_zero = match right.dtype {
            DType::F8E8M0FNU => right.bits == 0 && found.value().is_nan(),
            _ => {
                is_flushed(right.dtype)
                    && right.magnitude() < 3 * right.least_normal()
                    && found.magnitude() <= right.magnitude()
                    && found.is_negative() == right.is_negative()
            }
        };
        if (as_zero && is_next) || written_as_zero {
            Verdict::Flushed
        } else if (as_zero && self.reads_zero) || (found.value() - right.value()).abs() <= self.absolute {
            Verdict::Excepted
        } else {
            Verdict::Wrong
        }
    }
}
