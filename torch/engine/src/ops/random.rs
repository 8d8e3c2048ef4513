//! Random numbers from a counter-based generator (Threefry, Salmon et al. 2011), by seed and call
//! number.
//!
//! The shim passes both in place of the generator. They are lifted, so another seed or the next
//! call does not change the program. The numbers differ from those of the CPU's generator for the
//! same seed, as on every device.

use fuseline::Tensor;
use fuseline::fusion::{DType, DTypeClass, Scalar};
use fuseline::random::Generator;

use super::{as_type, cast, fitted, number, result, stretched};
use crate::call::{Arg, Call, Result, Results, Row, one, unsupported, wrong};
use crate::graph::{self, APART};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row {
        name: "uniform",
        lower: |call| {
            let ty = call.out(0)?;
            let (start, end) = (call.float(1)?, call.float(2)?);
            let is_bound = |number: f64| match ty.dtype() {
                DType::F64 => number.is_finite(),
                _ => (number as f32).is_finite(),
            };
            holds(is_bound(start) && is_bound(end), || {
                format!("from={start} or to={end} is out of bounds for {}", ty.dtype())
            })?;
            holds(start <= end, || {
                format!("uniform_ expects to return a [from, to) range, but found from={start} > to={end}")
            })?;
            result(call, generator(call, 3)?.uniform(ty.dtype(), ty.sizes(), start, end)?)
        },
    },
    Row {
        name: "normal_functional",
        lower: |call| {
            let deviation = call.float(2)?;
            holds(deviation >= 0.0, || format!("normal expects std >= 0.0, but found std {deviation}"))?;
            around(call, Generator::normal_around)
        },
    },
    Row { name: "normal.Tensor_float", lower: around_tensors },
    Row { name: "normal.float_Tensor", lower: around_tensors },
    Row { name: "normal.Tensor_Tensor", lower: around_tensors },
    Row {
        name: "log_normal",
        lower: |call| {
            let deviation = call.float(2)?;
            holds(deviation > 0.0, || format!("log_normal_ expects std > 0.0, but found std={deviation}"))?;
            around(call, Generator::log_normal)
        },
    },
    Row {
        name: "cauchy",
        lower: |call| {
            let scale = call.float(2)?;
            holds(scale > 0.0, || format!("cauchy_ expects sigma > 0.0, but found sigma={scale}"))?;
            around(call, Generator::cauchy)
        },
    },
    Row {
        name: "geometric",
        lower: |call| {
            let (ty, share) = (call.out(0)?, call.float(1)?);
            holds(0.0 < share && share < 1.0, || {
                format!("geometric_ expects p to be in (0, 1), but got p={share}")
            })?;
            result(call, generator(call, 2)?.geometric(ty.sizes(), share)?)
        },
    },
    Row { name: "random", lower: |call| whole(call, None, None, 1) },
    Row { name: "random.to", lower: |call| whole(call, Some(0), Some(call.int(1)?), 2) },
    Row {
        name: "random.from",
        lower: |call| {
            let end = if call.is_none(2) { None } else { Some(call.int(2)?) };
            whole(call, Some(call.int(1)?), end, 3)
        },
    },
    Row { name: "randperm.generator", lower: permutation },
    Row {
        name: "exponential",
        lower: |call| {
            let ty = call.out(0)?;
            let wide = if ty.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let rate = call.float(1)?;
            holds(rate > 0.0, || format!("exponential_ expects lambda > 0.0, but found lambda={rate}"))?;
            let standard = generator(call, 2)?.exponential(wide, ty.sizes())?;
            // A division by itself has the same bits in every context.
            result(call, standard.div(&stretched(&call.number(1, wide)?, ty.sizes())?)?)
        },
    },
    Row { name: "bernoulli", lower: |call| trials(call, &call.tensor(0)?, 1) },
    Row { name: "bernoulli.Tensor", lower: |call| trials(call, &call.tensor(1)?, 2) },
    Row { name: "multinomial", lower: multinomial },
    Row {
        name: "bernoulli.p",
        lower: |call| {
            let (dims, share) = (call.out(0)?.sizes(), call.float(1)?);
            holds((0.0..=1.0).contains(&share), || {
                format!("bernoulli_ expects p to be in [0, 1], but got p={share}")
            })?;
            let trials = generator(call, 2)?.bernoulli(share, dims)?;
            one(fitted(&trials, call.out(0)?)?)
        },
    },
];

/// A random permutation of the numbers below `n`. The element type has to hold each of them.
fn permutation(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let (count, dtype) = (ty.elems().get(), ty.dtype());
    if dtype == DType::Bool {
        return unsupported("permutations of type bool are not supported");
    }
    let most = match dtype.float_format() {
        Some(format) => (1 << (format.mantissa + 1)) + 1,
        None => 1usize << (dtype.bits() - u32::from(dtype.class() == DTypeClass::Signed)).min(63),
    };
    holds(count <= most, || {
        format!("n cannot be greater than {most} for a result of {dtype}, but is {count}")
    })?;
    result(call, generator(call, 1)?.permutation(count)?)
}

fn generator(call: &Call<'_>, at: usize) -> Result<Generator> {
    let [seed, start] = match call.arg(at) {
        &Arg::Ints(&[seed, offset]) => {
            let word = |number: i64| call.stream.lift(Scalar::new(number as u64));
            [word(seed), word(offset.wrapping_mul(APART as i64))]
        }
        Arg::Draw => graph::draw()?,
        _ => return unsupported("the generator is missing"),
    };
    let state = Tensor::concatenate(&[&seed.reshape(&[1])?, &start.reshape(&[1])?], 0)?;
    Ok(Generator::from_state(state)?)
}

/// Bernoulli trials with a tensor of probabilities.
fn trials(call: &Call<'_>, probability: &Tensor, at: usize) -> Result<Results> {
    let dims = call.out(0)?.sizes();
    let wide = if probability.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    if call.stream.checks_indices() {
        let (zero, one) = (number(call, 0.0, probability)?, number(call, 1.0, probability)?);
        let is_one = probability.greater_equal(&zero)?.and(&probability.less_equal(&one)?)?;
        is_one.check_all("bernoulli", "a probability is not between 0 and 1")?;
    }
    let unit = generator(call, at)?.uniform(wide, dims, 0.0, 1.0)?;
    result(call, unit.less(&stretched(&cast(probability, wide)?, dims)?)?)
}

/// Integers from `start` to below `end`. Without limits, the range of the type; for floats, of the
/// integers that are exact.
fn whole(call: &Call<'_>, start: Option<i64>, end: Option<i64>, at: usize) -> Result<Results> {
    let ty = call.out(0)?;
    let most = match ty.dtype() {
        DType::Bool => 1,
        DType::U8 => i64::from(u8::MAX),
        DType::I8 => i64::from(i8::MAX),
        DType::I16 => i64::from(i16::MAX),
        DType::I32 => i64::from(i32::MAX),
        DType::I64 => i64::MAX - 1,
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        DType::F32 => 1 << 24,
        DType::F64 => 1 << 53,
        other => return unsupported(format!("random integers of type {other} are not supported")),
    };
    let (start, end) = (start.unwrap_or(0), end.unwrap_or(most + 1));
    if start >= end {
        return unsupported("the range is empty");
    }
    result(call, generator(call, at)?.randint(DType::I64, ty.sizes(), start, end)?)
}

/// Checks a requirement of PyTorch on the parameters of a distribution.
fn holds(is_right: bool, rule: impl FnOnce() -> String) -> Result<()> {
    if is_right { Ok(()) } else { wrong(rule()) }
}

/// A distribution with two parameters.
fn around(
    call: &Call<'_>,
    draw: fn(&mut Generator, DType, &[usize], f64, f64) -> fuseline::Result<Tensor>,
) -> Result<Results> {
    let ty = call.out(0)?;
    let (first, second) = (call.float(1)?, call.float(2)?);
    result(call, draw(&mut generator(call, 3)?, ty.dtype(), ty.sizes(), first, second)?)
}

/// Normally distributed numbers, with tensors or numbers as mean and deviation.
///
/// As with [`Generator::normal_around`], the bits do not depend on fusion. The product of two
/// numbers of 24 bits is exact in `f64`, so a fused multiply-add rounds as a multiplication and an
/// addition do. For `f64`, clearing the last bit of the product rules out a fused multiply-add.
fn around_tensors(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    if !ty.dtype().is_float() {
        return unsupported(format!("normally distributed numbers of type {} are not supported", ty.dtype()));
    }
    let wide = if ty.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let parameter = |at| stretched(&as_type(call, at, wide)?, ty.sizes());
    let (mean, deviation) = (parameter(0)?, parameter(1)?);
    if let Arg::Tensor(_) = call.arg(1) {
        if call.stream.checks_indices() {
            let is_right = deviation.greater_equal(&number(call, 0.0, &deviation)?)?;
            is_right.check_all("normal", "normal expects all elements of std >= 0.0")?;
        }
    } else {
        let given = call.float(1)?;
        holds(given >= 0.0, || format!("normal expects std >= 0.0, but found std {given}"))?;
    }
    let standard = generator(call, 2)?.normal(wide, ty.sizes())?;
    let mut product = cast(&standard, DType::F64)?.mul(&cast(&deviation, DType::F64)?)?;
    if wide == DType::F64 {
        let mask = stretched(&call.stream.lift(Scalar::new(u64::MAX - 1)), ty.sizes())?;
        product = product.bitcast(DType::U64)?.and(&mask)?.bitcast(DType::F64)?;
    }
    let value = product.add(&cast(&mean, DType::F64)?)?;
    result(call, cast(&value, wide)?)
}

/// Samples positions with the weights in the last dimension: the largest quotients of a weight and
/// an exponentially distributed number win (Efraimidis and Spirakis, "Weighted random sampling with
/// a reservoir", 2006). The only rounding is one division, so the positions do not depend on how
/// the op is compiled.
fn multinomial(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    let (count, ty) = (call.int(1)? as usize, call.out(0)?);
    let rows = cast(&x, DType::F64)?;
    let last = rows.rank() - 1;
    let (batch, size) = (rows.dims()[..last].to_vec(), rows.dims()[last]);
    if call.stream.checks_indices() {
        let (zero, most) = (number(call, 0.0, &rows)?, number(call, f64::INFINITY, &rows)?);
        let is_weight = rows.greater_equal(&zero)?.and(&rows.less(&most)?)?;
        is_weight
            .check_all("multinomial", "probability tensor contains either `inf`, `nan` or element < 0")?;
        let sums = rows.sum(&[last as i64])?;
        let is_any = sums.greater(&number(call, 0.0, &sums)?)?;
        is_any.check_all("multinomial", "invalid multinomial distribution (sum of probabilities <= 0)")?;
    }
    let mut generator = generator(call, 3)?;
    // With 32 bits of noise there would be ties.
    if call.flag_or(2, false)? {
        // Adds a dimension for the draws before that of the weights.
        let drawn = [&batch[..], &[count, size]].concat();
        let spread = rows.unsqueeze(last as i64)?.broadcast_to(&drawn)?;
        let quotients = spread.div(&generator.exponential(DType::F64, &drawn)?)?;
        return result(call, quotients.argmax(-1)?);
    }
    let quotients = rows.div(&generator.exponential(DType::F64, rows.dims())?)?;
    let places = quotients.topk(count, -1)?.1;
    one(fitted(&places, ty)?)
}
