//! Floating point formats: the meaning of the bits of a float of any width.
//!
//! The formats are those of the StableHLO specification's types, which follow IEEE 754, the OCP
//! specifications of 8-bit floating point (OFP8, 2023) and of microscaling formats (MX, 2023), and
//! "8-bit Numerical Formats for Deep Neural Networks" (Noune et al., 2022) for the types that end
//! in `UZ`.
//!
//! Every format here fits in an `f64`: [`FloatFormat::decode`] is exact, and
//! [`FloatFormat::encode`] rounds once.

/// Which bit patterns are infinities, NaNs and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// As in IEEE 754: the greatest exponent means infinity or NaN.
    Ieee,
    /// No infinity. A NaN has all bits but the sign set (`FN`). Overflow gives NaN.
    NanOnly,
    /// No infinity, and the pattern of negative zero is the NaN (`FNUZ`). Overflow gives NaN.
    NanIsNegativeZero,
    /// Finite numbers only (`f4E2M1FN`). Overflow saturates to the greatest number of the same
    /// sign, and NaN becomes negative zero.
    Finite,
    /// Exponents only, without sign and zero (`f8E8M0FNU`): every pattern is a power of two, except
    /// the greatest, which is NaN. Negative numbers, zeros and overflow become NaN. Underflow
    /// becomes the smallest power. The specification of the format leaves this open; XLA and the
    /// `ml_dtypes` package do the same.
    ExponentOnly,
}

/// The bit layout of a float: sign, exponent, mantissa, from the highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatFormat {
    /// Bits of the exponent.
    pub exponent: u32,
    /// Bits of the mantissa, without the leading one.
    pub mantissa: u32,
    /// What is subtracted from the exponent.
    pub bias: i32,
    /// Which bit patterns are infinities, NaNs and zeros.
    pub specials: Specials,
}

/// Mantissa bits of an `f64`, without the leading one.
const F64_MANTISSA: u32 = 52;

impl FloatFormat {
    /// An interchange format of IEEE 754.
    #[must_use]
    pub const fn ieee(exponent: u32, mantissa: u32) -> FloatFormat {
        FloatFormat { exponent, mantissa, bias: (1 << (exponent - 1)) - 1, specials: Specials::Ieee }
    }

    /// A format that differs from IEEE 754's in bias or special values.
    #[must_use]
    pub const fn special(exponent: u32, mantissa: u32, bias: i32, specials: Specials) -> FloatFormat {
        FloatFormat { exponent, mantissa, bias, specials }
    }

    /// The sign bit; 0 for formats without a sign.
    #[inline]
    #[must_use]
    pub const fn sign(self) -> u64 {
        match self.specials {
            Specials::ExponentOnly => 0,
            _ => 1 << (self.exponent + self.mantissa),
        }
    }

    /// Pattern of the greatest finite number.
    #[inline]
    #[must_use]
    pub const fn greatest(self) -> u64 {
        let all = (1 << (self.exponent + self.mantissa)) - 1;
        match self.specials {
            Specials::Ieee => all - (1 << self.mantissa),
            Specials::NanOnly | Specials::ExponentOnly => all - 1,
            Specials::NanIsNegativeZero | Specials::Finite => all,
        }
    }

    /// Pattern of positive infinity; `None` where there is none.
    #[inline]
    #[must_use]
    pub const fn infinity(self) -> Option<u64> {
        match self.specials {
            Specials::Ieee => Some(self.greatest() + 1),
            _ => None,
        }
    }

    /// Pattern of a quiet NaN; `None` where there is none.
    #[inline]
    #[must_use]
    pub const fn nan(self) -> Option<u64> {
        match self.specials {
            Specials::Ieee => Some(self.greatest() + 1 + (1 << (self.mantissa - 1))),
            Specials::NanOnly | Specials::ExponentOnly => Some(self.greatest() + 1),
            Specials::NanIsNegativeZero => Some(self.sign()),
            Specials::Finite => None,
        }
    }

    /// Whether the pattern is a NaN.
    #[inline]
    #[must_use]
    pub const fn is_nan(self, bits: u64) -> bool {
        match self.specials {
            Specials::Ieee => bits & (self.sign() - 1) > self.greatest() + 1,
            Specials::NanOnly => bits & (self.sign() - 1) > self.greatest(),
            Specials::ExponentOnly => bits > self.greatest(),
            Specials::NanIsNegativeZero => bits == self.sign(),
            Specials::Finite => false,
        }
    }

    /// The value of a pattern. A NaN keeps its sign and as much of its payload as `f64` can hold.
    #[must_use]
    pub fn decode(self, bits: u64) -> f64 {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & !self.sign();
        if self.is_nan(bits) {
            let payload = (magnitude & ((1 << self.mantissa) - 1)) << (F64_MANTISSA - self.mantissa);
            let nan = f64::from_bits(f64::NAN.to_bits() | payload);
            return if negative { -nan } else { nan };
        }
        let value = if self.infinity() == Some(magnitude) {
            f64::INFINITY
        } else {
            let exponent = (magnitude >> self.mantissa) as i32;
            let fraction = magnitude & ((1 << self.mantissa) - 1);
            let (significand, exponent) = match exponent {
                // A format without a sign holds only exponents and has no subnormal numbers.
                0 if self.sign() != 0 => (fraction, 1),
                _ => (fraction | 1 << self.mantissa, exponent),
            };
            significand as f64 * exp2(exponent - self.bias - self.mantissa as i32)
        };
        if negative { -value } else { value }
    }

    /// The pattern nearest to a value, ties to even. A NaN stays a NaN of the same sign if the
    /// format has one.
    #[must_use]
    pub fn encode(self, value: f64) -> u64 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let magnitude = value.to_bits() & (u64::MAX >> 1);
        if value.is_nan() {
            return match self.specials {
                Specials::Ieee => {
                    let payload = magnitude >> (F64_MANTISSA - self.mantissa) & ((1 << self.mantissa) - 1);
                    sign | self.nan().unwrap_or(0) | payload
                }
                Specials::Finite => self.sign(),
                Specials::NanOnly => sign | self.nan().unwrap_or(0),
                _ => self.nan().unwrap_or(0),
            };
        }
        if self.specials == Specials::ExponentOnly {
            return self.encode_power(value);
        }
        let rounded = self.round(magnitude);
        if rounded > self.greatest() {
            return match self.specials {
                Specials::Ieee => sign | (self.greatest() + 1),
                Specials::NanOnly => sign | self.nan().unwrap_or(0),
                Specials::Finite => sign | self.greatest(),
                _ => self.nan().unwrap_or(0),
            };
        }
        if rounded == 0 && self.specials == Specials::NanIsNegativeZero { 0 } else { sign | rounded }
    }

    /// The pattern nearest to the magnitude of an `f64`, as if the exponent had no upper limit.
    fn round(self, magnitude: u64) -> u64 {
        let exponent = (magnitude >> F64_MANTISSA) as i64;
        let biased = exponent - 1023 + i64::from(self.bias);
        let fraction = magnitude & ((1 << F64_MANTISSA) - 1);
        let significand = if exponent == 0 { fraction } else { fraction | 1 << F64_MANTISSA };
        let dropped = F64_MANTISSA - self.mantissa;
        if biased >= 1 {
            // The leading one of the significand adds the missing 1 to the exponent. A carry out of
            // the significand adds another.
            ((biased as u64 - 1) << self.mantissa) + shift_rounding(significand, dropped)
        } else {
            // A subnormal number has the exponent of the smallest normal one.
            shift_rounding(significand, dropped + u32::try_from(1 - biased).unwrap_or(u32::MAX).min(64))
        }
    }

    /// The nearest power of two; a midpoint rounds up.
    fn encode_power(self, value: f64) -> u64 {
        let nan = self.greatest() + 1;
        if value <= 0.0 || value.is_infinite() {
            return nan;
        }
        let bits = value.to_bits();
        let exponent = (bits >> F64_MANTISSA) as i64 - 1023 + i64::from(self.bias);
        let up = bits & 1 << (F64_MANTISSA - 1) != 0;
        u64::try_from(exponent + i64::from(up)).unwrap_or(0).min(nan)
    }
}

/// Two to a power. Exact in the range of `f64`, including subnormal numbers.
fn exp2(power: i32) -> f64 {
    match power {
        ..-1022 => f64::from_bits(1u64.checked_shl((power + 1074).max(0) as u32).unwrap_or(0)),
        1024.. => f64::INFINITY,
        _ => f64::from_bits(((power + 1023) as u64) << F64_MANTISSA),
    }
}

/// `value >> shift`, rounded to nearest even.
fn shift_rounding(value: u64, shift: u32) -> u64 {
    match shift {
        0 => value,
        // Less than half of the last bit that is kept.
        65.. => 0,
        _ => {
            let kept = value.checked_shr(shift).unwrap_or(0);
            let rest = value << (64 - shift);
            let half = 1 << 63;
            kept + u64::from(rest > half || (rest == half && kept & 1 == 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of `ml_dtypes.float8_e8m0fnu`.
    #[test]
    fn powers_are_rounded_up_from_half_way_and_have_no_zero() {
        let format = FloatFormat::special(8, 0, 127, Specials::ExponentOnly);
        let power = |exponent: i32| 2f64.powi(exponent);
        for (value, wanted) in [
            (0.0, 255),
            (-0.0, 255),
            (-1.0, 255),
            (f64::INFINITY, 255),
            (1.0, 127),
            (1.4, 127),
            (1.5, 128),
            (2.9, 128),
            (3.0, 129),
            (0.75, 127),
            (power(127) * 1.4, 254),
            (power(127) * 1.5, 255),
            (power(-127), 0),
            (power(-127) * 1.5, 1),
            (power(-149), 0),
        ] {
            assert_eq!(format.encode(value), wanted, "{value:e}");
        }
    }
}
