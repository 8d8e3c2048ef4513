//! The numerics contract, on the plugin that is found: with [`Numerics::Exact`] regions have the
//! bits of their ops, one by one.
//!
//! Each test compares Fused with Strict on an engine of the same contract; the shadow check is off,
//! so that nothing hides what regions compute (`tests/engine/shadow.rs` has it).
//! `FUSELINE_PROGRAMS` multiplies the number of programs, `FUSELINE_SEED` makes other ones,
//! `FUSELINE_PROGRAM` makes only the one of a number that a test has printed.

mod expressions;
mod programs;
mod steady;
mod tiers;

use fuseline::{DType, Engine, Literal, Numerics, Result, Tensor};
use fuseline_testgen::{Entropy, Seeded};

use crate::support::{self, number};

/// An engine of a contract, on the plugin; says so loudly where there is none.
fn engine(numerics: Numerics) -> Option<Engine> {
    support::plugin(support::config().numerics(numerics).compare_regions(false))
}

/// How many programs a test makes, and the number of the first.
fn programs(count: u64) -> std::ops::Range<u64> {
    if let Some(only) = number("FUSELINE_PROGRAM") {
        return only..only + 1;
    }
    let first = number::<u64>("FUSELINE_SEED").unwrap_or(0) * 1_000_000;
    first..first + count * number("FUSELINE_PROGRAMS").unwrap_or(1)
}

/// Elements whose bits differ; NaN is NaN.
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
