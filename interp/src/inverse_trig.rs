//! Inverse trigonometric and hyperbolic functions of complex numbers, in `f64`.
//!
//! `asin` and `acos` follow T. Hull, T. Fairgrieve and P. Tang, "Implementing the complex arcsine
//! and arccosine functions using exception handling" (1997), which loses no digits of either part.
//! `acosh` and `asinh` are rotations of these, and `atanh` is from W. Kahan, "Branch Cuts for
//! Complex Elementary Functions" (1987). Signs of zeros distinguish the sides of a branch cut.

use std::f64::consts::{FRAC_PI_2, LN_2, PI};

use fuseline_fusion::element::Complex64;

/// The parts of `asin` and `acos` for the magnitudes of real and imaginary part.
struct Kernel {
    /// Real part of `asin`.
    asin: f64,
    /// Real part of `acos`.
    acos: f64,
    /// Magnitude of the imaginary part of both.
    im: f64,
}

/// Beyond this a square overflows, and adding 1 changes nothing.
const HUGE: f64 = 1e150;

impl Kernel {
    /// For `x + i y`, both non-negative.
    fn of(x: f64, y: f64) -> Kernel {
        if x.is_nan() || y.is_nan() {
            return Kernel { asin: f64::NAN, acos: f64::NAN, im: f64::NAN };
        }
        if x > HUGE || y > HUGE {
            // The logarithm of twice the magnitude, and the direction.
            let (large, small) = (x.max(y), x.min(y));
            let ratio = if large.is_infinite() { 0.0 } else { small / large };
            return Kernel {
                asin: x.atan2(y),
                acos: y.atan2(x),
                im: large.ln() + LN_2 + 0.5 * (ratio * ratio).ln_1p(),
            };
        }
        // Distances to the branch points -1 and 1, and half of their sum: the semi-major axis of
        // the ellipse through the number.
        let (far, near) = ((x + 1.0).hypot(y), (x - 1.0).hypot(y));
        let axis = 0.5 * (far + near);
        let ratio = x / axis;
        let square = y * y;
        // Parts of `axis - 1` and of the semi-minor axis, where the naive difference would cancel.
        let beyond_far = square / (far + (x + 1.0));
        let (asin, acos) = if ratio <= 0.6417 {
            (ratio.asin(), ratio.acos())
        } else {
            let sum = axis + x;
            let other = if x <= 1.0 {
                (0.5 * sum * (beyond_far + (near + (1.0 - x)))).sqrt()
            } else {
                y * (0.5 * (sum / (far + (x + 1.0)) + sum / (near + (x - 1.0)))).sqrt()
            };
            (x.atan2(other), other.atan2(x))
        };
        let im = if y <= f64::EPSILON * (x - 1.0).abs() {
            // On the real axis, to working precision.
            if x < 1.0 {
                y / ((1.0 - x) * (1.0 + x)).sqrt()
            } else {
                ((x - 1.0) + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p()
            }
        } else if axis <= 1.5 {
            let above_one = if x < 1.0 {
                0.5 * (beyond_far + square / (near + (1.0 - x)))
            } else {
                0.5 * (beyond_far + (near + (x - 1.0)))
            };
            (above_one + (above_one * (axis + 1.0)).sqrt()).ln_1p()
        } else {
            (axis + ((axis - 1.0) * (axis + 1.0)).sqrt()).ln()
        };
        Kernel { asin, acos, im }
    }
}

pub(super) fn asin(z: Complex64) -> Complex64 {
    let Kernel { asin, im, .. } = Kernel::of(z.re.abs(), z.im.abs());
    Complex64::new(asin.copysign(z.re), im.copysign(z.im))
}

pub(super) fn acos(z: Complex64) -> Complex64 {
    let Kernel { acos, im, .. } = Kernel::of(z.re.abs(), z.im.abs());
    let re = if z.re.is_sign_negative() { PI - acos } else { acos };
    Complex64::new(re, -im.copysign(z.im))
}

/// `acos(z)` rotated by a right angle, to the side with a non-negative real part.
pub(super) fn acosh(z: Complex64) -> Complex64 {
    let turned = acos(z);
    Complex64::new(turned.im.abs(), turned.re.copysign(z.im))
}

/// `-i asin(i z)`.
pub(super) fn asinh(z: Complex64) -> Complex64 {
    let turned = asin(Complex64::new(-z.im, z.re));
    Complex64::new(turned.im, -turned.re)
}

pub(super) fn atanh(z: Complex64) -> Complex64 {
    let (x, y) = (z.re.abs(), z.im);
    if x > HUGE || y.abs() > HUGE {
        // About 1 / z, next to a right angle.
        let (large, small) = (x.max(y.abs()), x.min(y.abs()));
        let ratio = if large.is_infinite() { 0.0 } else { small / large };
        let re = x / large / large / (1.0 + ratio * ratio);
        let re = if re.is_nan() { 0.0 } else { re };
        return Complex64::new(re.copysign(z.re), FRAC_PI_2.copysign(y));
    }
    let square = (1.0 - x) * (1.0 - x) + y * y;
    // From the ratio of the distances to -1 and 1. It is infinite at these points.
    let re = 0.25 * (4.0 * x / square).ln_1p();
    let im = 0.5 * (2.0 * y).atan2((1.0 - x) * (1.0 + x) - y * y);
    Complex64::new(re.copysign(z.re), im)
}

/// `-i atanh(i z)`.
pub(super) fn atan(z: Complex64) -> Complex64 {
    let turned = atanh(Complex64::new(-z.im, z.re));
    Complex64::new(turned.im, -turned.re)
}
