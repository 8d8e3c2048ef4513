//! The numerics contract, on the plugin that is found: with [`Numerics::Exact`] regions have the
//! bits of their ops, run one by one.
//!
//! Each test compares Fused with Strict mode on an engine with the same contract. The differential
//! check is off, so that it hides nothing (for its tests see `tests/engine/shadow.rs`).
//! `FUSELINE_PROGRAMS` multiplies the number of programs, `FUSELINE_SEED` changes them, and
//! `FUSELINE_PROGRAM` selects the one with a number that a test has printed.

mod expressions;
mod programs;
mod steady;
mod tiers;

use fuseline::{DType, Engine, Literal, Numerics, Result, Tensor};
use fuseline_testgen::{Entropy, Seeded};

use crate::support::{self, number};

/// An engine with a contract, on the plugin. Prints a message if there is none. With fast numerics
/// the interpreter, which runs a region as its ops, would hide what exact numerics avoid.
fn engine(numerics: Numerics) -> Option<Engine> {
    support::plugin(support::compiled_first().numerics(numerics).compare_regions(false))
}

/// The numbers of a test's programs.
fn programs(count: u64) -> std::ops::Range<u64> {
    if let Some(only) = number("FUSELINE_PROGRAM") {
        return only..only + 1;
    }
    let first = number::<u64>("FUSELINE_SEED").unwrap_or(0) * 1_000_000;
    first..first + count * number("FUSELINE_PROGRAMS").unwrap_or(1)
}

/// The number of elements with different bits; all NaN are equal.
fn different(a: &Literal, b: &Literal) -> usize {
    assert_eq!(a.ty(), b.ty());
    let size = a.dtype().size();
    let part = a.dtype().part();
    let is_nan = |bytes: &[u8]| {
        let Some(format) = part.float_format() else { return false };
        bytes.chunks(part.size()).any(|bytes| {
            let mut wide = [0; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            format.decode(u64::from_le_bytes(wide)).is_nan()
        })
    };
    let pairs = a.bytes().chunks(size).zip(b.bytes().chunks(size));
    pairs.filter(|(a, b)| a != b && !(is_nan(a) && is_nan(b))).count()
}

/// Numbers from -2 to 2.
fn uniform(engine: &Engine, random: &mut Seeded, dims: &[usize], dtype: DType) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let data: Vec<f32> = (0..count).map(|_| random.draw(2_000_001) as f32 / 500_000.0 - 2.0).collect();
    engine.tensor(&data, dims)?.convert(dtype)
}
