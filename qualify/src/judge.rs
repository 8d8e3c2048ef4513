//! How far a plugin's results may be from the reference interpreter's, number by number.
//!
//! An op that rounds may differ by some units in the last place; any other op returns the same
//! number. NaN equals NaN. For ops that the table calls exact, the sign of zero counts.
//!
//! XLA's CPU backend treats subnormal numbers of `bf16`, `f32` and `f64` as zero, and so does the
//! interpreter in its place. Intermediate results are flushed too: if a rounded result is next to
//! the smallest normal number, zero with its sign is accepted, and vice versa.

use fuseline::fusion::FloatFormat;
use fuseline::fusion::op::Rounding;
use fuseline::{DType, OpCode};

/// Ops that only have a bounded absolute error near their zeros, with the reason.
pub const NEAR_ZERO: &[(OpCode, f64, &str)] = &[
    (OpCode::Digamma, 1e-6, "near its zeros it is a difference of large terms in f32"),
    (OpCode::Lgamma, 2e-6, "near its zeros it is a difference of large terms in f32"),
];

/// Whether XLA's CPU backend treats subnormal numbers of a type as zero.
#[must_use]
pub fn is_flushed(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F32 | DType::F64)
}

/// A float of any type.
#[derive(Clone, Copy, Debug)]
pub struct Float {
    /// Its element type.
    pub dtype: DType,
    /// Its bits, in the lowest places.
    pub bits: u64,
}

impl Float {
    /// The floats among the elements of a literal; two for a complex number.
    #[must_use]
    pub fn all(dtype: DType, bytes: &[u8]) -> Vec<Float> {
        let dtype = dtype.part();
        if !dtype.is_float() {
            return Vec::new();
        }
        let float = |raw: &[u8]| {
            let mut wide = [0; 8];
            wide[..raw.len()].copy_from_slice(raw);
            Float { dtype, bits: u64::from_le_bytes(wide) }
        };
        bytes.chunks_exact(dtype.size()).map(float).collect()
    }

    fn format(self) -> FloatFormat {
        self.dtype.float_format().expect("a float")
    }

    /// Its value.
    ///
    /// # Panics
    /// If the element type is no float type.
    #[must_use]
    pub fn value(self) -> f64 {
        self.format().decode(self.bits)
    }

    /// Its bits without the sign.
    #[must_use]
    pub fn magnitude(self) -> u64 {
        self.bits & !self.format().sign()
    }

    /// Whether its sign bit is set.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.bits != self.magnitude()
    }

    /// The bits of the smallest normal number; four times it has three times its bits.
    fn least_normal(self) -> u64 {
        1 << self.format().mantissa
    }

    /// Whether it is subnormal in the type in which XLA's CPU backend computes: the smallest
    /// `f8E8M0FNU` is a subnormal `f32`.
    #[must_use]
    pub fn is_subnormal(self) -> bool {
        match self.dtype {
            DType::F8E8M0FNU => self.bits == 0,
            _ => is_flushed(self.dtype) && (1..self.least_normal()).contains(&self.magnitude()),
        }
    }

    /// The number of steps from one number to another; `None` if only one of them is NaN.
    #[must_use]
    pub fn steps(self, other: Float) -> Option<u64> {
        let (a, b) = (self.magnitude(), other.magnitude());
        match (self.value().is_nan(), other.value().is_nan()) {
            (true, true) => Some(0),
            (false, false) if self.is_negative() == other.is_negative() => Some(a.abs_diff(b)),
            (false, false) => Some(a.saturating_add(b)),
            _ => None,
        }
    }
}

/// Units in the last place by which an op that rounds may differ: short floats are computed in
/// longer ones and rounded once, long ones are approximated.
#[must_use]
pub fn steps(dtype: DType) -> u64 {
    if dtype.size() <= 2 { 1 } else { 4 }
}

/// The allowed differences of an op's results.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The class of the op: whether it rounds.
    pub rounding: Rounding,
    /// Units in the last place by which a result of an op that rounds may differ.
    pub steps: u64,
    /// The allowed absolute difference.
    pub absolute: f64,
}

/// The verdict on a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Right, except for rounding by this many units in the last place.
    Right(u64),
    /// Next to the smallest normal number, with one of the two flushed.
    Flushed,
    /// Right only because of [`Rule::absolute`].
    Excepted,
    /// Anything else.
    Wrong,
}

impl Rule {
    /// Compares a result with the right one.
    #[must_use]
    pub fn judge(&self, found: Float, right: Float) -> Verdict {
        let steps = found.steps(right);
        let passes = match self.rounding {
            Rounding::Exact => steps == Some(0),
            Rounding::Step => steps == Some(0) || found.value() == right.value(),
            Rounding::Rounded => steps.is_some_and(|steps| steps <= self.steps),
        };
        if passes {
            return Verdict::Right(if self.rounding == Rounding::Rounded { steps.unwrap_or(0) } else { 0 });
        }
        // Zero becomes NaN in the type without zero.
        let is_flushed = match right.dtype {
            DType::F8E8M0FNU => right.bits == 0 && found.value().is_nan(),
            dtype => {
                let sizes = [found.magnitude(), right.magnitude()];
                self.rounding == Rounding::Rounded
                    && is_flushed(dtype)
                    && sizes.contains(&0)
                    && sizes.iter().all(|&size| size < 3 * right.least_normal())
                    && found.is_negative() == right.is_negative()
            }
        };
        if is_flushed {
            Verdict::Flushed
        } else if (found.value() - right.value()).abs() <= self.absolute {
            Verdict::Excepted
        } else {
            Verdict::Wrong
        }
    }
}
