//! Special functions of one and two real numbers, in `f64`.
//!
//! Accurate to a few units in the last place of an `f64` but where a function crosses zero between two poles (`lgamma` and
//! `digamma` of negative numbers), where the error is small beside 1. What a function is at a pole, and outside of its
//! domain, is what XLA gives: NaN, but for `lgamma` and even orders of `zeta`, which are infinite there.
//!
//! Formulas are cited by their number in the NIST Digital Library of Mathematical Functions (DLMF). What the `libm` crate
//! has comes from there.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use crate::op::OpCode;

/// An op of one operand; `None` when it is not one of these.
pub(super) fn unary(op: OpCode, x: f64) -> Option<f64> {
    Some(match op {
        OpCode::Acos => x.acos(),
        OpCode::Acosh => libm::acosh(x),
        OpCode::Asin => x.asin(),
        OpCode::Asinh => libm::asinh(x),
        OpCode::Atan => x.atan(),
        OpCode::Atanh => libm::atanh(x),
        OpCode::BesselI1e => bessel_i1e(x),
        OpCode::Conj => x,
        OpCode::Cosh => x.cosh(),
        OpCode::Digamma => digamma(x),
        OpCode::Erf => libm::erf(x),
        OpCode::Erfc => libm::erfc(x),
        OpCode::ErfInv => erf_inv(x),
        OpCode::Lgamma => libm::lgamma(x),
        OpCode::Sinh => x.sinh(),
        OpCode::Square => x * x,
        _ => return None,
    })
}

/// An op of two operands; `None` when it is not one of these.
pub(super) fn binary(op: OpCode, x: f64, y: f64) -> Option<f64> {
    Some(match op {
        OpCode::Polygamma => polygamma(x, y),
        OpCode::Zeta => zeta(x, y),
        _ => return None,
    })
}

/// Bernoulli numbers `B2, B4, ...` (DLMF table 24.2.1).
const BERNOULLI: [f64; 10] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43_867.0 / 798.0,
    -174_611.0 / 330.0,
];

/// `exp(-|x|) I1(x)`, the modified Bessel function of the first kind of order 1, scaled.
fn bessel_i1e(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = match magnitude {
        // The power series (DLMF 10.25.2).
        ..=1.0 => {
            let square = magnitude * magnitude / 4.0;
            let series =
                (1..=12).rev().map(f64::from).fold(1.0, |sum, k| 1.0 + sum * square / (k * (k + 1.0)));
            magnitude / 2.0 * series * (-magnitude).exp()
        }
        // Miller's algorithm (DLMF 3.6): the recurrence 10.29.1 downwards, normalised by `exp(x) = I0 + 2 (I1 + I2 + ...)`
        // (DLMF 10.35.5).
        ..=30.0 => {
            let (mut above, mut here, mut sum) = (0.0, f64::MIN_POSITIVE, 0.0);
            for order in (1..=100).rev().map(f64::from) {
                sum += here;
                (above, here) = (here, above + 2.0 * order / magnitude * here);
            }
            above / (here + 2.0 * sum)
        }
        // The expansion for large arguments (DLMF 10.40.1).
        f64::INFINITY => 0.0,
        _ => {
            let ratio = |k: f64| (4.0 - (2.0 * k - 1.0).powi(2)) / (8.0 * k * magnitude);
            let series = (1..=24).rev().map(f64::from).fold(1.0, |sum, k| 1.0 - sum * ratio(k));
            series / (2.0 * PI * magnitude).sqrt()
        }
    };
    value.copysign(x)
}

/// The positive zero of the digamma function (DLMF 5.4.(iii)) in two parts, which together have 106 bits.
const DIGAMMA_ZERO: (f64, f64) = (1.4616321449683622, 9.549995429965697e-17);

/// The logarithmic derivative of the gamma function.
fn digamma(x: f64) -> f64 {
    if x > 0.0 {
        return digamma_of_positive(x);
    }
    if x == x.floor() {
        return f64::NAN;
    }
    // The reflection formula (DLMF 5.5.4), with the cotangent of the distance to the nearest pole.
    let distance = x - x.round();
    let cotangent = if distance.abs() <= 0.25 {
        1.0 / (PI * distance).tan()
    } else {
        (PI * (0.5 - distance.abs())).tan().copysign(distance)
    };
    digamma_of_positive(1.0 - x) - PI * cotangent
}

/// The difference from the value at [`DIGAMMA_ZERO`], which is a product with the distance `d` to it: near the zero no
/// digit is lost. Both are moved up by the recurrence (DLMF 5.5.2) to where the asymptotic expansion (DLMF 5.11.2) holds;
/// term by term, the difference of two values has the factor `d`.
fn digamma_of_positive(x: f64) -> f64 {
    const STEPS: i32 = 10;
    if x == f64::INFINITY {
        return x;
    }
    let d = (x - DIGAMMA_ZERO.0) - DIGAMMA_ZERO.1;
    let moved = (0..STEPS).rev().map(f64::from).fold(0.0, |sum, k| sum + d / (x + k) / (DIGAMMA_ZERO.0 + k));
    let zero = DIGAMMA_ZERO.0 + f64::from(STEPS);
    let (u, v) = (1.0 / (x + f64::from(STEPS)), 1.0 / zero);
    // `v^2k - u^2k` is `(v^2 - u^2) h`, and `v - u` is `d u v`.
    let (mut h, mut power, mut tail) = (1.0, 1.0, 0.0);
    for (bernoulli, k) in BERNOULLI[..8].iter().zip(1..) {
        tail += bernoulli / f64::from(2 * k) * h;
        power *= u * u;
        h = v * v * h + power;
    }
    let difference = d * u * v;
    (d * v).ln_1p() + (moved + difference * (0.5 + (u + v) * tail))
}

/// The inverse of the error function: Halley's method from an approximation by S. Winitzki ("A handy approximation for the
/// error function and its inverse", 2008). Near the ends it looks for the complement, which is exact there.
fn erf_inv(x: f64) -> f64 {
    let magnitude = x.abs();
    if x == 0.0 || magnitude.is_nan() {
        return x;
    }
    if magnitude >= 1.0 {
        return if magnitude > 1.0 { f64::NAN } else { f64::INFINITY.copysign(x) };
    }
    let mut y = if magnitude < 1e-3 {
        magnitude / FRAC_2_SQRT_PI
    } else {
        const A: f64 = 0.147;
        let log = (-magnitude * magnitude).ln_1p();
        let half = 2.0 / (PI * A) + log / 2.0;
        ((half * half - log / A).sqrt() - half).sqrt()
    };
    for _ in 0..3 {
        let above =
            if magnitude < 0.5 { libm::erf(y) - magnitude } else { (1.0 - magnitude) - libm::erfc(y) };
        let step = above / (FRAC_2_SQRT_PI * (-y * y).exp());
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// The Hurwitz zeta function of order `s` at `q` times `q^s`, for `s > 1` and `q > 0`: Euler's summation formula (DLMF
/// 25.11.28 and 2.10.1).
fn scaled_zeta(s: f64, q: f64) -> f64 {
    const TERMS: i32 = 16;
    let sum = (0..TERMS).rev().map(f64::from).fold(0.0, |sum, k| sum + (q / (q + k)).powf(s));
    let end = q + f64::from(TERMS);
    let first = (q / end).powf(s);
    if first < f64::EPSILON * f64::EPSILON {
        return sum;
    }
    let (mut factor, mut tail) = (s / (2.0 * end), 0.5);
    for (bernoulli, k) in BERNOULLI.iter().zip(1..) {
        tail += bernoulli * factor;
        let k = f64::from(2 * k);
        factor *= (s + k - 1.0) * (s + k) / ((k + 1.0) * (k + 2.0) * end * end);
    }
    sum + first * (end / (s - 1.0) + tail)
}

/// The Hurwitz zeta function: the sum of `(q + k)^-s` over all `k` from 0 on.
fn zeta(s: f64, q: f64) -> f64 {
    if s.is_nan() || q.is_nan() || s < 1.0 {
        return f64::NAN;
    }
    if s == 1.0 {
        return f64::INFINITY;
    }
    if q > 0.0 {
        return match (s == f64::INFINITY, q == f64::INFINITY) {
            (_, true) => 0.0,
            (true, _) => q.powf(-s),
            _ => q.powf(-s) * scaled_zeta(s, q),
        };
    }
    // A power of a negative number is real for an integer only.
    if s != s.floor() || s.is_infinite() || q.is_infinite() {
        return f64::NAN;
    }
    let even = s % 2.0 == 0.0;
    if q == q.floor() {
        return if even { f64::INFINITY } else { f64::NAN };
    }
    // The terms of negative base are those from `1 - fraction` to `-q` with another sign, if the order is odd.
    let (fraction, rest) = (q - q.floor(), q.floor() + 1.0 - q);
    let below = zeta(s, rest) - zeta(s, 1.0 - q);
    zeta(s, fraction) + if even { below } else { -below }
}

/// The polygamma function of order `n`: derivative `n` of the digamma function (DLMF 5.15.1 and 25.11.12).
fn polygamma(n: f64, x: f64) -> f64 {
    if n < 0.0 || n != n.floor() || n.is_infinite() {
        return f64::NAN;
    }
    if n == 0.0 {
        return digamma(x);
    }
    if x == f64::INFINITY {
        return 0.0;
    }
    let s = n + 1.0;
    let (factorial, zeta) = (libm::tgamma(s), zeta(s, x));
    let magnitude = if (factorial == f64::INFINITY || zeta == 0.0) && x > 0.0 {
        // The factors leave the range where their product need not.
        (libm::lgamma(s) - s * x.ln()).exp() * scaled_zeta(s, x)
    } else {
        factorial * zeta
    };
    if n % 2.0 == 0.0 { -magnitude } else { magnitude }
}
