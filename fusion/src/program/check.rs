//! How closely an output must match its expected value.

use std::fmt;

use serde_json::{Value, json};

use crate::element::{Bits, to_int};
use crate::literal::Literal;

/// A rule for comparing an output with its expected value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Equal as numbers: zeros of either sign are equal, and so are NaNs.
    Exact,
    /// At most `ulp` representable numbers apart, in the tensor's own element type.
    Close {
        /// The largest distance.
        ulp: u64,
    },
    /// At most this far apart in absolute terms; see [`Check::almost`].
    Almost(Tolerance),
}

/// A non-negative absolute tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance(u64);

impl Tolerance {
    fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The first mismatch that a check finds.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The types differ.
    Type {
        /// Type of the output.
        actual: String,
        /// Type expected.
        expected: String,
    },
    /// An element differs by more than the check allows.
    Element {
        /// Its index, row-major.
        index: usize,
        /// Its value in the output.
        actual: f64,
        /// The value expected.
        expected: f64,
        /// How many elements differ in all.
        count: usize,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Type { actual, expected } => write!(f, "the output is {actual}, expected {expected}"),
            Mismatch::Element { index, actual, expected, count } => {
                write!(f, "element {index} is {actual:?}, expected {expected:?} ({count} elements differ)")
            }
        }
    }
}

/// One element: as a number, or for floats as bits with a separate sign.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float { value: f64, magnitude: u64, negative: bool },
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float { value, .. } => value,
        }
    }
}

/// The elements; for complex ones, both parts.
fn numbers(literal: &Literal) -> impl Iterator<Item = Number> + '_ {
    let dtype = literal.dtype().part();
    literal.bytes().chunks_exact(dtype.size()).map(move |raw| {
        let mut wide = [0; 16];
        wide[..dtype.size()].copy_from_slice(raw);
        let bits = Bits::from_le_bytes(wide);
        let Some(format) = dtype.float_format() else { return Number::Int(to_int(dtype, bits)) };
        let (sign, bits) = (format.sign(), bits as u64);
        Number::Float { value: format.decode(bits), magnitude: bits & !sign, negative: bits & sign != 0 }
    })
}

impl Check {
    /// Numerically equal, or at most `tolerance` apart, computed in `f64`; NaNs equal each other.
    /// `None` for a negative or NaN tolerance.
    #[must_use]
    pub fn almost(tolerance: f64) -> Option<Check> {
        (tolerance >= 0.0).then(|| Check::Almost(Tolerance(tolerance.to_bits())))
    }

    pub(super) fn to_json(self) -> Value {
        match self {
            Check::Exact => json!({"check": "exact", "ulp": null, "tolerance": null}),
            Check::Close { ulp } => json!({"check": "close", "ulp": ulp, "tolerance": null}),
            Check::Almost(tolerance) => {
                json!({"check": "almost", "ulp": null, "tolerance": tolerance.get()})
            }
        }
    }

    fn accepts(self, actual: Number, expected: Number) -> bool {
        let (
            Number::Float { value: a, magnitude: m, negative: s },
            Number::Float { value: b, magnitude: n, negative: t },
        ) = (actual, expected)
        else {
            return match (self, actual, expected) {
                (Check::Almost(tolerance), a, b) => (a.as_f64() - b.as_f64()).abs() <= tolerance.get(),
                (_, Number::Int(a), Number::Int(b)) => a == b,
                _ => false,
            };
        };
        if a == b || (a.is_nan() && b.is_nan()) {
            return true;
        }
        if !a.is_finite() || !b.is_finite() {
            return false;
        }
        match self {
            Check::Exact => false,
            Check::Close { ulp } => {
                let distance = if s == t { m.abs_diff(n) } else { m.saturating_add(n) };
                distance <= ulp
            }
            Check::Almost(tolerance) => (a - b).abs() <= tolerance.get(),
        }
    }

    /// Compares an output with its expected value.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn compare(self, actual: &Literal, expected: &Literal) -> Result<(), Mismatch> {
        if actual.ty() != expected.ty() {
            return Err(Mismatch::Type {
                actual: actual.ty().to_string(),
                expected: expected.ty().to_string(),
            });
        }
        let parts = if actual.dtype().is_complex() { 2 } else { 1 };
        let mut differing = numbers(actual)
            .zip(numbers(expected))
            .enumerate()
            .filter(|&(_, (actual, expected))| !self.accepts(actual, expected));
        match differing.next() {
            None => Ok(()),
            Some((index, (actual, expected))) => Err(Mismatch::Element {
                index: index / parts,
                actual: actual.as_f64(),
                expected: expected.as_f64(),
                count: 1 + differing.count(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(data: &[f32]) -> Literal {
        Literal::from_slice(&[data.len() as u64], data).expect("fits")
    }

    #[test]
    fn zeros_and_nans_are_equal_in_every_check() {
        let almost = Check::almost(0.0).expect("not negative");
        for check in [Check::Exact, Check::Close { ulp: 0 }, almost] {
            let (a, b) = (f32s(&[0.0, f32::NAN, f32::INFINITY]), f32s(&[-0.0, -f32::NAN, f32::INFINITY]));
            assert_eq!(check.compare(&a, &b), Ok(()), "{check:?}");
            assert!(check.compare(&f32s(&[1.0]), &f32s(&[f32::INFINITY])).is_err(), "{check:?}");
        }
    }

    #[test]
    fn distances_are_in_the_elements_own_steps() {
        let near = f32s(&[f32::from_bits(1.0f32.to_bits() + 3)]);
        assert!(Check::Close { ulp: 3 }.compare(&near, &f32s(&[1.0])).is_ok());
        assert!(Check::Close { ulp: 2 }.compare(&near, &f32s(&[1.0])).is_err());
        // Across zero the distances to zero add up.
        let (a, b) = (f32s(&[f32::from_bits(1)]), f32s(&[-f32::from_bits(2)]));
        assert!(Check::Close { ulp: 3 }.compare(&a, &b).is_ok());
        assert!(Check::Close { ulp: 2 }.compare(&a, &b).is_err());
    }

    #[test]
    fn mismatches_say_where() {
        let error =
            Check::Exact.compare(&f32s(&[1.0, 2.0, 3.0]), &f32s(&[1.0, 5.0, 6.0])).expect_err("differ");
        assert_eq!(error, Mismatch::Element { index: 1, actual: 2.0, expected: 5.0, count: 2 });
    }
}
