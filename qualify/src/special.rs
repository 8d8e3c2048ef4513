//! The special values of each element type.

use fuseline::fusion::{DTypeClass, FloatFormat};
use fuseline::{DType, Literal, TensorType};

/// Numbers at which functions of floats change, overflow, underflow or lose bits, and the limits of
/// the integer types.
const MAGNITUDES: [f64; 26] = [
    1.0,
    0.5,
    2.0,
    2.5,
    3.0,
    std::f64::consts::FRAC_PI_2,
    1.5,
    0.75,
    0.1,
    1e-5,
    10.0,
    100.0,
    88.75,
    127.5,
    128.5,
    255.0,
    709.75,
    65_504.0,
    65_520.0,
    16_777_217.0,
    2_147_483_648.0,
    4_294_967_296.0,
    9_223_372_036_854_775_808.0,
    18_446_744_073_709_551_616.0,
    1e-30,
    1e30,
];

/// Bits of elements as the host stores them: all patterns of a type of up to 16 bits with at most
/// `most` patterns, otherwise up to `most` values, the most special ones first.
#[must_use]
pub fn specials(dtype: DType, most: usize) -> Vec<u128> {
    let all = 1u64 << dtype.bits().min(32);
    let mut bits: Vec<u128> = match dtype.class() {
        DTypeClass::Bool => vec![0, 1],
        _ if dtype.bits() <= 16 && all as usize <= most => match dtype.class() {
            DTypeClass::Signed => {
                let half = all as i128 / 2;
                (-half..half).map(|value| value as u128).collect()
            }
            // The payload of a NaN has no meaning; its sign does.
            DTypeClass::Float => {
                let format = dtype.float_format().expect("a float");
                let plain = |bits: &u64| !format.is_nan(*bits) || format.nan() == Some(bits & !format.sign());
                (0..all).filter(|bits| format.nan() == Some(*bits) || plain(bits)).map(u128::from).collect()
            }
            _ => (0..all.into()).collect(),
        },
        DTypeClass::Signed | DTypeClass::Unsigned => integers(dtype),
        DTypeClass::Float => floats(dtype),
        DTypeClass::Complex => {
            let part = dtype.part();
            let side = (most as f64).sqrt() as usize;
            let parts: Vec<u128> = floats(part).into_iter().take(side).collect();
            let joined = |im: u128| parts.iter().map(move |re| re | im << (8 * part.size()));
            parts.iter().flat_map(|&im| joined(im)).collect()
        }
    };
    let mask = u128::MAX >> (128 - 8 * dtype.size());
    bits.iter_mut().for_each(|bits| *bits &= mask);
    distinct(bits, most)
}

fn distinct(bits: Vec<u128>, most: usize) -> Vec<u128> {
    let mut seen = std::collections::HashSet::new();
    bits.into_iter().filter(|bits| seen.insert(*bits)).take(most).collect()
}

fn integers(dtype: DType) -> Vec<u128> {
    let bits = dtype.bits();
    let signed = dtype.class() == DTypeClass::Signed;
    let greatest = (1i128 << (bits - u32::from(signed))) - 1;
    let least = if signed { -greatest - 1 } else { 0 };
    let (half, bits) = (1i128 << (bits / 2), i128::from(bits));
    let alternating = 0x5555_5555_5555_5555 & greatest;
    [
        [0, 1, -1, greatest, least, 2, -2, bits - 1, bits].as_slice(),
        &[bits + 1, 3, -3, 7, -7, 10, least + 1, greatest - 1, greatest / 2, greatest / 2 + 1, least / 2],
        &[half, half - 1, half / 2, -half, alternating, !alternating, 2 * alternating, 5, 6, 9, 11, 13],
        &[31, 33, 63, 64, 65, 127, 128, 129, 255, 256, -64, -65, -128, 46_341, 65_535, 3_037_000_500],
    ]
    .concat()
    .into_iter()
    .filter(|value| (least..=greatest).contains(value))
    .map(|value| value as u128)
    .collect()
}

fn floats(dtype: DType) -> Vec<u128> {
    let format: FloatFormat = dtype.float_format().expect("a float");
    let normal = 1 << format.mantissa;
    let one = format.encode(1.0);
    let patterns = [
        vec![0, one],
        format.infinity().into_iter().chain(format.nan()).collect(),
        vec![format.greatest(), 1, normal, format.encode(2.5), format.encode(0.5), normal - 1, normal + 1],
        vec![one - 1, one + 1, format.greatest() - 1],
        MAGNITUDES.iter().map(|&value| format.encode(value)).collect(),
    ];
    patterns.concat().into_iter().flat_map(|bits| [bits, bits | format.sign()]).map(u128::from).collect()
}

/// A literal with elements given by their bits.
///
/// # Panics
/// If the number of patterns is not the number of elements of the type.
pub fn of_bits(ty: TensorType, bits: impl Iterator<Item = u128>) -> Literal {
    let size = ty.dtype().size();
    let bytes = bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect();
    Literal::from_bytes(ty, bytes).expect("one pattern per element")
}
