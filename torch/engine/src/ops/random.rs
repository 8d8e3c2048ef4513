//! Random numbers: a counter-based generator (Threefry, Salmon et al. 2011) from a seed and the number of the call.
//!
//! The shim passes both in the place of the generator, and they are lifted: another seed, or the next call, is not another program. They are other
//! numbers than the CPU's generator gives for the same seed, as on every device.

use fuseline::Tensor;
use fuseline::fusion::Scalar;
use fuseline::random::Generator;

use super::{fitted, result};
use crate::call::{Arg, Call, Result, Row, one, unsupported};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row {
        name: "uniform",
        lower: |call| {
            let ty = call.out(0)?;
            let unit = generator(call, 3)?.uniform(ty.dtype(), ty.dims(), 0.0, 1.0)?;
            result(call, scaled(call, &unit, 1, 2, true)?)
        },
    },
    Row {
        name: "normal_functional",
        lower: |call| {
            let ty = call.out(0)?;
            let standard = generator(call, 3)?.normal(ty.dtype(), ty.dims())?;
            result(call, scaled(call, &standard, 1, 2, false)?)
        },
    },
    Row {
        name: "bernoulli.p",
        lower: |call| {
            let dims = call.out(0)?.dims();
            let trials = generator(call, 2)?.bernoulli(call.float(1)?, dims)?;
            one(fitted(&trials, call.out(0)?)?)
        },
    },
];

/// Draws of different calls are 2^32 blocks apart.
const APART: i64 = 1 << 32;

fn generator(call: &Call<'_>, at: usize) -> Result<Generator> {
    let Arg::Ints([seed, offset]) = call.arg(at) else { return unsupported("no generator") };
    let word = |number: i64| call.stream.lift(Scalar::new(number as u64)).reshape(&[1]);
    let state = Tensor::concatenate(&[&word(*seed)?, &word(offset.wrapping_mul(APART))?], 0)?;
    Ok(Generator::from_state(state)?)
}

/// From an interval of unit length to that of two arguments; or of unit spread, times the second and plus the first.
fn scaled(call: &Call<'_>, unit: &Tensor, first: usize, second: usize, is_interval: bool) -> Result<Tensor> {
    let (start, end) = (call.float(first)?, call.float(second)?);
    let spread = if is_interval { end - start } else { end };
    Ok(((unit * spread)? + start)?)
}
