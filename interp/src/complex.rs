//! Functions of complex numbers, in `f64`.
//!
//! Branch cuts and special values are those of C99's Annex G where the specification names none.
//! Formulas that avoid cancellation and early overflow are from W. Kahan, "Branch Cuts for Complex
//! Elementary Functions" (1987), unless said otherwise.

use fuseline_fusion::OpCode;
use fuseline_fusion::element::Complex64;

use super::inverse_trig;

/// Unary ops; `None` for ops without a complex form. `abs` is not here, because its result is real.
pub(super) fn unary(op: OpCode, z: Complex64) -> Option<Complex64> {
    Some(match op {
        OpCode::Negate => -z,
        OpCode::Sign if z.re.is_nan() || z.im.is_nan() => Complex64::new(f64::NAN, f64::NAN),
        OpCode::Sign if z.re == 0.0 && z.im == 0.0 => z,
        OpCode::Sign => z / z.re.hypot(z.im),
        OpCode::Exponential => exp(z),
        OpCode::ExponentialMinusOne => exp_m1(z),
        OpCode::Log => Complex64::new(log_abs(z), z.im.atan2(z.re)),
        OpCode::LogPlusOne => log_1p(z),
        OpCode::Logistic => div(Complex64::new(1.0, 0.0), exp(-z) + 1.0),
        OpCode::Sqrt => sqrt(z),
        OpCode::Rsqrt => div(Complex64::new(1.0, 0.0), sqrt(z)),
        OpCode::Cbrt => cbrt(z),
        OpCode::Sine => Complex64::new(times(z.re.sin(), z.im.cosh()), z.re.cos() * z.im.sinh()),
        OpCode::Cosine => Complex64::new(z.re.cos() * z.im.cosh(), -times(z.re.sin(), z.im.sinh())),
        OpCode::Tanh => tanh(z),
        OpCode::Tan => {
            // tan z = -i tanh(i z)
            let turned = tanh(Complex64::new(-z.im, z.re));
            Complex64::new(turned.im, -turned.re)
        }
        OpCode::Acos => inverse_trig::acos(z),
        OpCode::Acosh => inverse_trig::acosh(z),
        OpCode::Asin => inverse_trig::asin(z),
        OpCode::Asinh => inverse_trig::asinh(z),
        OpCode::Atan => inverse_trig::atan(z),
        OpCode::Atanh => inverse_trig::atanh(z),
        OpCode::Conj => z.conj(),
        OpCode::Sinh => sinh(z),
        OpCode::Cosh => {
            // cosh z = -i sinh(z + i pi/2), with sine and cosine exchanged.
            let (sin, cos) = z.im.sin_cos();
            Complex64::new(times(cos, z.re.cosh()), times(sin, z.re.sinh()))
        }
        OpCode::Square => Complex64::new((z.re - z.im) * (z.re + z.im), 2.0 * z.re * z.im),
        _ => return None,
    })
}

/// A product in which zero times infinity is zero, so that the real axis stays real.
fn times(a: f64, b: f64) -> f64 {
    if a == 0.0 { a.copysign(a * b.signum()) } else { a * b }
}

fn sinh(z: Complex64) -> Complex64 {
    let (sin, cos) = z.im.sin_cos();
    Complex64::new(cos * z.re.sinh(), times(sin, z.re.cosh()))
}

/// Binary ops; `None` for ops without a complex form.
pub(super) fn binary(op: OpCode, a: Complex64, b: Complex64) -> Option<Complex64> {
    Some(match op {
        OpCode::Add => a + b,
        OpCode::Subtract => a - b,
        OpCode::Multiply => a * b,
        OpCode::Divide => div(a, b),
        OpCode::Power => pow(a, b),
        OpCode::Atan2 => atan2(a, b),
        // Ordered by real parts, then by imaginary parts.
        OpCode::Maximum => {
            if (a.re, a.im) >= (b.re, b.im) {
                a
            } else {
                b
            }
        }
        OpCode::Minimum => {
            if (a.re, a.im) <= (b.re, b.im) {
                a
            } else {
                b
            }
        }
        _ => return None,
    })
}

/// A quotient without early overflow: Smith's algorithm ("Algorithm 116: Complex division", 1962).
pub(super) fn div(a: Complex64, b: Complex64) -> Complex64 {
    if b.im == 0.0 {
        return Complex64::new(a.re / b.re, a.im / b.re);
    }
    if b.re.abs() >= b.im.abs() {
        let ratio = b.im / b.re;
        let denominator = b.re + b.im * ratio;
        Complex64::new((a.re + a.im * ratio) / denominator, (a.im - a.re * ratio) / denominator)
    } else {
        let ratio = b.re / b.im;
        let denominator = b.re * ratio + b.im;
        Complex64::new((a.re * ratio + a.im) / denominator, (a.im * ratio - a.re) / denominator)
    }
}

fn exp(z: Complex64) -> Complex64 {
    let scale = z.re.exp();
    // An infinite scale times a sine of zero would be NaN.
    let im = if z.im == 0.0 { z.im } else { scale * z.im.sin() };
    Complex64::new(if z.im == 0.0 { scale } else { scale * z.im.cos() }, im)
}

/// `exp(z) - 1`: the real part is `expm1(x) cos y - 2 sin(y/2)^2`.
fn exp_m1(z: Complex64) -> Complex64 {
    if z.im == 0.0 {
        return Complex64::new(z.re.exp_m1(), z.im);
    }
    let half = (z.im / 2.0).sin();
    Complex64::new(z.re.exp_m1() * z.im.cos() - 2.0 * half * half, z.re.exp() * z.im.sin())
}

/// `ln |z|`; near 1 it is computed from the distance to 1.
fn log_abs(z: Complex64) -> f64 {
    let (large, small) = (z.re.abs().max(z.im.abs()), z.re.abs().min(z.im.abs()));
    // `max` of NaN and a number is the number.
    let is_number = !z.re.is_nan() && !z.im.is_nan();
    if is_number && (0.5..2.0).contains(&large) && small < 2.0 {
        0.5 * ((large - 1.0) * (large + 1.0) + small * small).ln_1p()
    } else {
        z.re.hypot(z.im).ln()
    }
}

fn log_1p(z: Complex64) -> Complex64 {
    let angle = z.im.atan2(1.0 + z.re);
    let re = if z.re.abs() < 0.5 && z.im.abs() < 1e150 {
        0.5 * (z.re * (2.0 + z.re) + z.im * z.im).ln_1p()
    } else {
        log_abs(z + 1.0)
    };
    Complex64::new(re, angle)
}

pub(super) fn sqrt(z: Complex64) -> Complex64 {
    if z.re == 0.0 && z.im == 0.0 {
        return Complex64::new(0.0, z.im);
    }
    if z.im.is_infinite() {
        return Complex64::new(f64::INFINITY, z.im);
    }
    let root = (z.re.abs() / 2.0 + z.re.hypot(z.im) / 2.0).sqrt();
    if z.re >= 0.0 {
        Complex64::new(root, z.im / (2.0 * root))
    } else {
        Complex64::new(z.im.abs() / (2.0 * root), root.copysign(z.im))
    }
}

fn cbrt(z: Complex64) -> Complex64 {
    if z.re == 0.0 && z.im == 0.0 {
        return z;
    }
    Complex64::from_polar(z.re.hypot(z.im).cbrt(), z.im.atan2(z.re) / 3.0)
}

fn tanh(z: Complex64) -> Complex64 {
    // Beyond this the difference from 1 is below the last place of an `f64`.
    const FLAT: f64 = 22.0;
    let tangent = z.im.tan();
    if z.re.abs() > FLAT {
        // The imaginary part is sin(2y) / (2 sinh(x)^2), about 2 sin(2y) exp(-2|x|).
        let im = 4.0 * z.im.sin() * z.im.cos() * (-2.0 * z.re.abs()).exp();
        return Complex64::new(1f64.copysign(z.re), im);
    }
    let secant = 1.0 + tangent * tangent;
    let sinh = z.re.sinh();
    let cosh = (1.0 + sinh * sinh).sqrt();
    if tangent.is_infinite() {
        return Complex64::new(cosh / sinh, 1.0 / tangent);
    }
    let denominator = 1.0 + secant * sinh * sinh;
    Complex64::new(secant * cosh * sinh / denominator, tangent / denominator)
}

/// `exp(b ln a)`. 0 to the power of 0 is 1, to any other power 0.
fn pow(a: Complex64, b: Complex64) -> Complex64 {
    if b.re == 0.0 && b.im == 0.0 {
        return Complex64::new(1.0, 0.0);
    }
    if a.re == 0.0 && a.im == 0.0 {
        return Complex64::new(0.0, 0.0);
    }
    let angle = a.im.atan2(a.re);
    let length = log_abs(a);
    let scale = (b.re * length - b.im * angle).exp();
    let turn = b.im * length + b.re * angle;
    Complex64::new(scale * turn.cos(), scale * turn.sin())
}

/// `-i ln((x + i y) / sqrt(x^2 + y^2))`, the specification's definition for complex operands.
fn atan2(y: Complex64, x: Complex64) -> Complex64 {
    let i = Complex64::new(0.0, 1.0);
    let root = sqrt(x * x + y * y);
    let ratio = div(x + i * y, root);
    -i * Complex64::new(log_abs(ratio), ratio.im.atan2(ratio.re))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: Complex64, b: Complex64) -> bool {
        (a - b).norm() <= 4e-15 * b.norm().max(1e-300)
    }

    /// Each function agrees with an inverse or a naive formula, away from where that cancels.
    #[test]
    fn functions_agree_with_their_definitions() {
        let one = Complex64::new(1.0, 0.0);
        for (re, im) in [(0.3, 0.4), (-1.5, 0.2), (2.0, -3.0), (-0.7, -0.6), (1e-3, 2.0), (0.0, 1.0)] {
            let z = Complex64::new(re, im);
            let f = |op| unary(op, z).expect("a complex form");
            assert!(near(f(OpCode::Sqrt) * f(OpCode::Sqrt), z), "sqrt {z}");
            assert!(near(f(OpCode::Rsqrt) * f(OpCode::Sqrt), one), "rsqrt {z}");
            let root = f(OpCode::Cbrt);
            assert!(near(root * root * root, z), "cbrt {z}");
            assert!(near(exp(f(OpCode::Log)), z), "log {z}");
            assert!((f(OpCode::Exponential) - one - f(OpCode::ExponentialMinusOne)).norm() < 1e-14, "{z}");
            assert!((exp(f(OpCode::LogPlusOne)) - one - z).norm() < 1e-14, "log1p {z}");
            assert!(near(f(OpCode::Tanh), z.tanh()), "tanh {z}");
            assert!(near(f(OpCode::Tan), z.tan()), "tan {z}");
            assert!((binary(OpCode::Power, z, one * 3.0).expect("pow") - z * z * z).norm() < 1e-13, "{z}");
        }
    }

    /// C99, Annex G.
    #[test]
    fn parts_at_infinity_and_of_nan_are_those_of_the_standard() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let f = |op, re, im| unary(op, Complex64::new(re, im)).expect("a complex form");
        let log = f(OpCode::Log, nan, 1.0);
        assert!(log.re.is_nan() && log.im.is_nan(), "{log}");
        assert_eq!(f(OpCode::Log, nan, inf).re, inf);
        assert_eq!(f(OpCode::Sine, 0.0, inf), Complex64::new(0.0, inf));
        assert_eq!(f(OpCode::Cosine, 0.0, inf).re, inf);
        assert_eq!(f(OpCode::Cosine, 0.0, inf).im, 0.0);
        assert_eq!(f(OpCode::Sinh, inf, 0.0), Complex64::new(inf, 0.0));
    }

    #[test]
    fn large_and_small_arguments_do_not_overflow_early() {
        let big = Complex64::new(1e300, 1e300);
        assert!(near(div(big, big), Complex64::new(1.0, 0.0)));
        assert!(near(sqrt(big) * sqrt(big), big));
        assert_eq!(tanh(Complex64::new(800.0, 1.0)).re, 1.0);
        assert_eq!(exp(Complex64::new(f64::INFINITY, 0.0)), Complex64::new(f64::INFINITY, 0.0));
        let tiny = Complex64::new(1e-20, 1e-20);
        assert!(near(exp_m1(tiny), tiny) && near(log_1p(tiny), tiny));
    }
}
