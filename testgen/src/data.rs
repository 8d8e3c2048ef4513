//! Data for fresh values.

use fuseline_fusion::element::{Bits, Store, from_f64, from_int, joined, to_f64};
use fuseline_fusion::{DType, DTypeClass, Literal, TensorType};

use super::{Aim, Domain, Entropy, Seeded};

/// Floats that are special cases of ops.
const SPECIAL_FLOATS: [f64; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    -f64::NAN,
    // Bounds of the integer and float types, and subnormal numbers of the latter.
    127.5,
    -128.5,
    65_504.0,
    65_520.0,
    2_147_483_648.0,
    -9_223_372_036_854_775_808.0,
    3.402_823_466_385_288_6e38,
    1.797_693_134_862_315_7e308,
    5.960_464_477_539_063e-8,
    1.401_298_464_324_817e-45,
    5e-324,
];

/// Generates the data of a value from one choice. Choice 0 makes all elements 1 (0 for indices,
/// amounts and exponents).
#[must_use]
pub fn fill(entropy: &mut dyn Entropy, ty: &TensorType, domain: Domain, aim: Aim) -> Literal {
    let seed = entropy.draw(1 << 16);
    let dtype = ty.dtype();
    let mut source =
        Source { random: Seeded::new(seed.into()), seed, domain, aim, given: Vec::new().into_iter() };
    if domain == Domain::PositiveDefinite {
        source.given = source.positive_definite(ty).into_iter();
    }
    let element = |_| match dtype.class() {
        DTypeClass::Float => source.float_of(dtype),
        DTypeClass::Complex => {
            let re = source.float_of(dtype.part());
            joined(dtype, re, source.float_of(dtype.part()))
        }
        _ => from_int(dtype, source.int(dtype).into()),
    };
    Store::collect(ty.clone(), (0..ty.elems().get()).map(element)).finish()
}

struct Source {
    random: Seeded,
    seed: u32,
    domain: Domain,
    aim: Aim,
    /// Floats that were generated in advance.
    given: std::vec::IntoIter<f64>,
}

impl Source {
    fn below(&mut self, below: u32) -> u32 {
        self.random.draw(below)
    }

    /// A float. Portable ones are finite and not zero, because executors disagree about the sign of
    /// zero. With every other seed they are multiples of a quarter, so that sums and products of a
    /// few are exact.
    fn float(&mut self) -> f64 {
        if self.seed == 0 {
            return match self.domain {
                Domain::Unit => 0.5,
                Domain::AboveOne => 2.0,
                Domain::Exponent => 0.0,
                _ => 1.0,
            };
        }
        if self.domain == Domain::Exponent {
            return self.below(9).into();
        }
        if self.aim == Aim::Everything && self.domain == Domain::Any && self.below(3) == 0 {
            return SPECIAL_FLOATS[self.below(SPECIAL_FLOATS.len() as u32) as usize];
        }
        let magnitude = if self.seed.is_multiple_of(2) {
            f64::from(1 + self.below(16)) / 4.0
        } else {
            0.25 + f64::from(self.below(1 << 30)) / f64::from(1 << 30) * 3.75
        };
        let value = match self.domain {
            Domain::Unit => magnitude * 7.0 / 32.0,
            Domain::AboveOne => magnitude + 1.0,
            _ => magnitude,
        };
        let positive = matches!(self.domain, Domain::Positive | Domain::AboveOne);
        if !positive && self.below(2) == 1 { -value } else { value }
    }

    /// Hermitian matrices, as the floats of their elements in order. Elements are eighths, at most
    /// 1/2 off the diagonal, and above the number of rows on it. The simplest choice has zeros off
    /// the diagonal.
    fn positive_definite(&mut self, ty: &TensorType) -> Vec<f64> {
        let size = ty.dims().last().map_or(1, |&dim| dim as usize);
        let parts = if ty.dtype().is_complex() { 2 } else { 1 };
        let mut all = Vec::new();
        for _ in 0..ty.elems().get() / (size * size).max(1) {
            let mut matrix = vec![0.0; size * size * parts];
            for row in 0..size {
                matrix[(row * size + row) * parts] = (size + 1) as f64;
                for column in 0..row {
                    for part in 0..parts {
                        let element = if self.seed == 0 { 0.0 } else { f64::from(self.below(8)) / 8.0 - 0.5 };
                        matrix[(row * size + column) * parts + part] = element;
                        matrix[(column * size + row) * parts + part] =
                            if part == 0 { element } else { -element };
                    }
                }
            }
            all.extend(matrix);
        }
        all
    }

    /// The bits of a float of the type. A portable one is non-zero in every type.
    fn float_of(&mut self, dtype: DType) -> Bits {
        if let Some(given) = self.given.next() {
            return from_f64(dtype, given);
        }
        let value = self.float();
        let bits = from_f64(dtype, value);
        if self.aim == Aim::Everything || (to_f64(dtype, bits) != 0.0 && !to_f64(dtype, bits).is_nan()) {
            return bits;
        }
        from_f64(dtype, 1.0)
    }

    /// The low bits of an integer of the type.
    fn int(&mut self, dtype: DType) -> i64 {
        let bits = dtype.bits();
        let signed = dtype.class() == DTypeClass::Signed;
        // The greatest value of the shortest signed type is 1.
        let most = (1 << (bits.min(8) - u32::from(signed))) - 1;
        match self.domain {
            Domain::Index { size } => {
                if self.seed == 0 || size == 0 {
                    return 0;
                }
                // One in eight is out of bounds, as far as the type permits.
                let outside = self.below(8) == 0;
                let size = u32::try_from(size).unwrap_or(u32::MAX);
                let index = i64::from(self.below(size));
                match (outside, signed) {
                    (false, _) => index,
                    (true, true) if self.below(2) == 0 => -1 - index,
                    (true, _) => index + i64::from(size),
                }
            }
            Domain::Amount | Domain::Exponent if self.seed == 0 => 0,
            Domain::Amount => self.below(bits + 1).into(),
            Domain::Exponent => i64::from(self.below(9)).min(most),
            _ if self.seed == 0 => 1,
            Domain::Positive | Domain::Unit | Domain::AboveOne => i64::from(1 + self.below(4)).min(most),
            Domain::Any | Domain::PositiveDefinite if dtype == DType::Bool => self.below(2).into(),
            Domain::Any | Domain::PositiveDefinite => match (self.below(4), self.aim) {
                // Bounds of the range, values near 0, and arbitrary bits.
                (0, Aim::Everything) => match self.below(6) {
                    0 => 0,
                    1 => -1,
                    2 if signed => i64::MIN >> (64 - bits),
                    2 => 1 << (bits - 1),
                    3 if signed => !(i64::MIN >> (64 - bits)),
                    3 => -1,
                    4 => i64::from(bits),
                    _ => i64::from(bits) - 1,
                },
                (1, _) if self.seed.is_multiple_of(3) => self.random.next_u64() as i64,
                _ => i64::from(self.below(19)) - if signed { 9 } else { 0 },
            },
        }
    }
}
