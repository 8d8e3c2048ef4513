//! Special functions of one and two real numbers, in `f64`.
//!
//! Accurate to a few units in the last place of an `f64`, except where a function crosses zero
//! between two poles (`lgamma` and `digamma` of negative numbers); there the absolute error is
//! small compared with 1. At poles and outside of the domain, values are XLA's: NaN, except for
//! `lgamma` and even orders of `zeta`, which are infinite there.
//!
//! Formulas are cited by their number in the NIST Digital Library of Mathematical Functions (DLMF).
//! Functions of the `libm` crate are used where they exist.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, PI};

use fuseline_fusion::op::{BERNOULLI, ZETA_TERMS};
use fuseline_fusion::{DType, OpCode};

/// Unary ops; `None` for other ops.
pub(super) fn unary(op: OpCode, x: f64) -> Option<f64> {
    Some(match op {
        OpCode::Acos => x.acos(),
        // `libm` (0.2.16) returns numbers for large negative operands.
        OpCode::Acosh if x < 1.0 => f64::NAN,
        OpCode::Acosh => libm::acosh(x),
        OpCode::Asin => x.asin(),
        OpCode::Asinh => libm::asinh(x),
        OpCode::Atan => x.atan(),
        OpCode::Atanh => libm::atanh(x),
        OpCode::BesselI1e => bessel_i1e(x),
        OpCode::Conj => x,
        OpCode::Digamma => digamma(x),
        OpCode::Erf => libm::erf(x),
        OpCode::Erfc => libm::erfc(x),
        OpCode::ErfInv => erf_inv(x),
        OpCode::Lgamma => libm::lgamma(x),
        OpCode::Square => x * x,
        _ => return None,
    })
}

/// `cosh` and `sinh` by the formulas of the dialect, with `e^(x + log(1/2))` and `e^(-x +
/// log(1/2))`, except for `sinh` of numbers below 1. The exponents are rounded to the element type,
/// or to `f32` if that is longer. This affects large results by up to `|x|` units in the last
/// place, also in the conformance cases.
pub(super) fn hyperbolic(op: OpCode, dtype: DType, x: f64) -> f64 {
    if op == OpCode::Sinh && x.abs() < 1.0 {
        return x.sinh();
    }
    let rounded = |value: f64| if dtype == DType::F64 { value } else { f64::from(value as f32) };
    let log_half = rounded(-LN_2);
    let (rising, falling) = (rounded(x + log_half).exp(), rounded(log_half - x).exp());
    if op == OpCode::Cosh { rising + falling } else { rising - falling }
}

/// Binary ops; `None` for other ops.
pub(super) fn binary(op: OpCode, x: f64, y: f64) -> Option<f64> {
    Some(match op {
        OpCode::Polygamma => polygamma(x, y),
        OpCode::Zeta => zeta(x, y),
        _ => return None,
    })
}

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
        // Miller's algorithm (DLMF 3.6): the recurrence 10.29.1 downwards, normalised by
        // `exp(x) = I0 + 2 (I1 + I2 + ...)` (DLMF 10.35.5).
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
            series / (2.0 * PI).sqrt() / magnitude.sqrt()
        }
    };
    value.copysign(x)
}

/// The positive zero of the digamma function (DLMF 5.4.(iii)) in two parts, which together have 106
/// bits.
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

/// The difference from the value at [`DIGAMMA_ZERO`], computed as a product with the distance `d`
/// to it, so that no digits are lost near the zero. The recurrence (DLMF 5.5.2) shifts both up to
/// where the asymptotic expansion (DLMF 5.11.2) holds. Term by term, the difference of two values
/// has the factor `d`.
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

/// The inverse of the error function: Halley's method from an approximation by S. Winitzki ("A
/// handy approximation for the error function and its inverse", 2008). Near the ends it solves for
/// the complement, which is exact there.
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

/// The Hurwitz zeta function of order `s` at `q` times `q^s`, for `s > 1` and `q > 0`: Euler's
/// summation formula (DLMF 25.11.28 and 2.10.1).
fn scaled_zeta(s: f64, q: f64) -> f64 {
    let sum = (0..ZETA_TERMS).rev().map(f64::from).fold(0.0, |sum, k| sum + (q / (q + k)).powf(s));
    let end = q + f64::from(ZETA_TERMS);
    let first = (q / end).powf(s);
    if first < f64::EPSILON * f64::EPSILON {
        return sum;
    }
    let (mut factor, mut tail) = (s / (2.0 * end), 0.5);
    for (bernoulli, k) in BERNOULLI.iter().zip(1..) {
        tail += bernoulli * factor;
        let k = f64::from(2 * k);
        factor = factor * ((s + k - 1.0) / end) * ((s + k) / end) / ((k + 1.0) * (k + 2.0));
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
    // A power of a negative number is real only for integer exponents.
    if s != s.floor() || s.is_infinite() || q.is_infinite() {
        return f64::NAN;
    }
    let even = s % 2.0 == 0.0;
    if q == q.floor() {
        return if even { f64::INFINITY } else { f64::NAN };
    }
    // The terms with a negative base are those from `1 - fraction` to `-q`, negated if the order is
    // odd.
    let (fraction, rest) = (q - q.floor(), q.floor() + 1.0 - q);
    let below = zeta(s, rest) - zeta(s, 1.0 - q);
    zeta(s, fraction) + if even { below } else { -below }
}

/// The polygamma function of order `n`: derivative `n` of the digamma function (DLMF 5.15.1 and
/// 25.11.12).
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
    let magnitude = if (factorial == f64::INFINITY || zeta < f64::MIN_POSITIVE) && x > 0.0 {
        // The factors may overflow even if their product does not.
        (libm::lgamma(s) - s * x.ln() + scaled_zeta(s, x).ln()).exp()
    } else {
        factorial * zeta
    };
    if n % 2.0 == 0.0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of steps between two numbers of the same sign.
    fn apart(a: f64, b: f64) -> u64 {
        if a == b { 0 } else { a.to_bits().abs_diff(b.to_bits()) }
    }

    fn value(op: OpCode, operands: &[f64]) -> f64 {
        let value = match *operands {
            [x] => unary(op, x),
            [x, y] => binary(op, x, y),
            _ => None,
        };
        value.expect("it has arithmetic")
    }

    /// Values computed with 200 bits (mpmath 1.3).
    #[test]
    fn functions_are_good_to_the_last_places() {
        use OpCode::{BesselI1e, Digamma, ErfInv, Polygamma, Zeta};
        for (op, operands, wanted, most) in [
            (BesselI1e, &[1e-300][..], 5e-301, 3),
            (BesselI1e, &[0.5], 0.1564208031848717, 3),
            (BesselI1e, &[1.0], 0.20791041534970844, 3),
            (BesselI1e, &[1.5], 0.21903938742092569, 3),
            (BesselI1e, &[-7.25], -0.14011851895630761, 3),
            (BesselI1e, &[29.75], 0.07221001664055529, 3),
            (BesselI1e, &[30.25], 0.07162619510912749, 3),
            (BesselI1e, &[10000.0], 0.003989273195983662, 3),
            (Digamma, &[1e-10], -10000000000.577215, 4),
            (Digamma, &[0.25], -4.2274535333762655, 4),
            (Digamma, &[1.4616321449683622], -9.241265521729427e-17, 4),
            (Digamma, &[1.4616321449683625], 1.2245374622004068e-16, 4),
            (Digamma, &[1.5], 0.03648997397857652, 4),
            (Digamma, &[3.0], 0.9227843350984671, 4),
            (Digamma, &[12.5], 2.4851956512749123, 4),
            (Digamma, &[10000000000.0], 23.025850929890456, 4),
            (Digamma, &[-0.5], 0.03648997397857652, 4),
            (Digamma, &[-1e-05], 99999.42276788563, 4),
            (Digamma, &[-2.5], 1.103156640645243, 4),
            (Digamma, &[-10.25], 5.516858419886273, 4),
            (ErfInv, &[1e-300], 8.86226925452758e-301, 2),
            (ErfInv, &[0.0005], 0.0004431134917280913, 2),
            (ErfInv, &[0.25], 0.2253120550121781, 2),
            (ErfInv, &[-0.5], -0.4769362762044699, 2),
            (ErfInv, &[0.75], 0.8134198475976185, 2),
            (ErfInv, &[0.999], 2.3267537655135246, 2),
            (ErfInv, &[0.9999999999999999], 5.8635847487551676, 2),
            (Zeta, &[1.5, 0.25], 10.213055360466601, 8),
            (Zeta, &[1.001, 3.0], 999.0776349295164, 8),
            (Zeta, &[20.0, 0.5], 1048576.0003007397, 8),
            (Zeta, &[30.0, 40.0], 1.6837009971217178e-48, 8),
            (Zeta, &[2.0, -1.5], 9.379246644989124, 8),
            (Zeta, &[3.0, -12.25], -62.009482333729295, 8),
            (Zeta, &[5.0, 1000.0], 2.50500416666375e-13, 8),
            (Polygamma, &[0.0, 2.5], 0.7031566406452432, 8),
            (Polygamma, &[1.0, 0.25], 17.19732915450711, 8),
            (Polygamma, &[2.0, 1.5], -0.82879664423432, 8),
            (Polygamma, &[3.0, -0.5], 193.40909103400244, 8),
            (Polygamma, &[6.0, 30.0], -1.8170925411158237e-07, 8),
            (Polygamma, &[200.0, 150.0], -4.3209480046542493e-63, 2000),
        ] {
            let found = value(op, operands);
            let steps = apart(found, wanted);
            assert!(steps <= most, "{op} {operands:?} is {found:e}, not {wanted:e}: {steps} steps");
        }
    }

    #[test]
    fn poles_and_ends_of_domains_are_what_xla_has_there() {
        use OpCode::{Acosh, Atanh, BesselI1e, Digamma, Erf, ErfInv, Erfc, Lgamma, Polygamma, Zeta};
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        for (op, operands, wanted) in [
            (Acosh, &[0.5][..], NAN),
            (Acosh, &[-2.0], NAN),
            (Acosh, &[-6540.0], NAN),
            (Acosh, &[1.0], 0.0),
            (Atanh, &[1.0], INF),
            (Atanh, &[1.5], NAN),
            (BesselI1e, &[-0.0], -0.0),
            (BesselI1e, &[-INF], -0.0),
            (Digamma, &[0.0], NAN),
            (Digamma, &[-3.0], NAN),
            (Digamma, &[-INF], NAN),
            (Digamma, &[INF], INF),
            (Erf, &[-INF], -1.0),
            (Erfc, &[-INF], 2.0),
            (ErfInv, &[-0.0], -0.0),
            (ErfInv, &[-1.0], -INF),
            (ErfInv, &[1.5], NAN),
            (Lgamma, &[-0.0], INF),
            (Lgamma, &[-4.0], INF),
            (Lgamma, &[-INF], INF),
            (Polygamma, &[-1.0, 2.0], NAN),
            (Polygamma, &[1.5, 2.0], NAN),
            (Polygamma, &[1.0, -2.0], INF),
            (Polygamma, &[2.0, -2.0], NAN),
            (Polygamma, &[1.0, INF], 0.0),
            (Zeta, &[1.0, 2.0], INF),
            (Zeta, &[0.5, 2.0], NAN),
            (Zeta, &[2.0, -3.0], INF),
            (Zeta, &[3.0, -3.0], NAN),
            (Zeta, &[2.5, -1.5], NAN),
            (Zeta, &[INF, 1.0], 1.0),
            (Zeta, &[INF, 2.0], 0.0),
            (Zeta, &[2.0, INF], 0.0),
        ] {
            let found = value(op, operands);
            let same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
            assert!(same, "{op} {operands:?} is {found:?}, not {wanted:?}");
        }
    }

    #[test]
    fn nan_goes_through_every_function() {
        for code in OpCode::ALL.iter().copied() {
            assert!(unary(code, f64::NAN).is_none_or(f64::is_nan), "{code}");
            for (x, y) in [(f64::NAN, 2.0), (2.0, f64::NAN)] {
                assert!(binary(code, x, y).is_none_or(f64::is_nan), "{code} {x} {y}");
            }
        }
    }
}
