//! Random numbers from a generator whose state is a value.
//!
//! A [`Generator`] is a key and a counter, `u64[2]`, on the device. Drawing runs Threefry-2x32 with
//! 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) over the counter
//! and advances the counter. So the numbers are a function of the state: they are equal on every
//! device and in every mode. A program that saves the state ([`Generator::state`]) and restores it
//! ([`Generator::from_state`]) repeats them. Drawing is recorded like any op: it does not wait, and
//! another seed compiles nothing.
//!
//! The conversion of random bits to a distribution is reproducible too, whatever it is compiled or
//! interpreted together with. It is computed in integers (`src/random/variate.rs`). Limits or a
//! deviation add one rounding at the end.
//!
//! ```
//! # fn main() -> fuseline::Result<()> {
//! # let engine = fuseline::Engine::reference();
//! use fuseline::DType;
//! use fuseline::random::Generator;
//! let mut generator = Generator::new(engine.stream(), 42)?;
//! let before = generator.state().clone();
//! let x = generator.uniform(DType::F32, &[1000], 0.0, 1.0)?;
//! assert!((x.mean(&[0])?.item::<f32>()? - 0.5).abs() < 0.05);
//! let again = Generator::from_state(before)?.uniform(DType::F32, &[1000], 0.0, 1.0)?;
//! assert_eq!(x.to_vec::<f32>()?, again.to_vec::<f32>()?);
//! # Ok(())
//! # }
//! ```

mod variate;

use fuseline_fusion::op::RngAlgorithm;
use fuseline_fusion::{Literal, OpError, OpErrorKind, Site};
use fuseline_runtime::internals::bug;
use fuseline_runtime::{Error, Result};

use crate::handle::Tensor;
use crate::promote::Number;
use crate::stream::Stream;
use crate::tensor::{constant_like, scalar_as, times};
use crate::trace::TensorTree;
use crate::{DType, OpCode, Order};
use variate::Variate;

/// The op that errors of this module name.
const NAME: &str = "rng_bit_generator";

/// Bit 63 of the counter, which drawing never reaches. [`Generator::fold_in`] uses the counts
/// above.
const FOLD: u64 = 1 << 63;

/// A source of random numbers: a key and a counter on the device. See the [module](self).
///
/// A clone draws the same numbers; [`Generator::split`] makes a generator that draws different
/// ones.
#[derive(Clone, Debug)]
pub struct Generator {
    state: Tensor,
}

impl Generator {
    /// A generator on the given stream. The same seed gives the same numbers.
    ///
    /// # Errors
    /// When the device refuses (out of memory).
    pub fn new(stream: &Stream, seed: u64) -> Result<Generator> {
        Ok(Generator { state: stream.tensor(&[seed, 0], &[2])? })
    }

    /// A generator that continues from a state.
    ///
    /// # Errors
    /// When the state is not a `u64[2]`.
    #[track_caller]
    pub fn from_state(state: Tensor) -> Result<Generator> {
        if (state.dtype(), state.dims()) != (DType::U64, &[2]) {
            let given = format!("the state is {}", state.ty());
            return Err(refused(OpError::new(
                NAME,
                OpErrorKind::DType,
                given,
                "it must be u64[2], a key and a counter",
            )));
        }
        Ok(Generator { state })
    }

    /// Key and counter, the whole state of the generator, which may be saved and restored.
    #[must_use]
    pub fn state(&self) -> &Tensor {
        &self.state
    }

    /// Uniformly distributed bits, as unsigned integers of 32 or 64 bits.
    ///
    /// # Errors
    /// When the element type is another, or the sizes do not form a shape.
    #[track_caller]
    pub fn bits(&mut self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        if !matches!(dtype, DType::U32 | DType::U64) {
            let given = format!("bits of {dtype} were requested");
            return Err(refused(OpError::new(NAME, OpErrorKind::DType, given, "random bits are u32 or u64")));
        }
        let stream = self.state.on_stream();
        let (next, bits) = stream.random_bits(RngAlgorithm::ThreeFry, &self.state, dtype, dims)?;
        self.state = next;
        Ok(bits)
    }

    /// Another generator, whose key and counter are drawn from this one.
    ///
    /// # Errors
    /// When a Debug stream finds that an op failed.
    #[track_caller]
    pub fn split(&mut self) -> Result<Generator> {
        Ok(Generator { state: self.bits(DType::U64, &[2])? })
    }

    /// A generator derived from this one and a number, such as that of a layer or a step. This
    /// generator does not change. The number is a lifted scalar, so another one compiles nothing.
    ///
    /// # Errors
    /// When a Debug stream finds that an op failed.
    #[track_caller]
    pub fn fold_in(&self, number: u64) -> Result<Generator> {
        let stream = self.state.on_stream();
        let number = stream.scalar(number).reshape(&[1])?;
        let beyond = stream.constant(Literal::from_slice(&[1], &[FOLD])?)?;
        let change = Tensor::concatenate(&[&number, &beyond], 0)?;
        Generator { state: self.state.xor(&change)? }.split()
    }

    /// Numbers from 0 up to, not including, 1: multiples of `2^-p`, where `p` is the precision of
    /// the type in bits.
    #[track_caller]
    fn unit(&mut self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let (bits, total) = self.bits_for(dtype, dims)?;
        let digits = precision(dtype);
        let kept = bits.shr_logical(&constant_like(&bits, f64::from(total - digits))?)?;
        times(&kept.convert(dtype)?, 2f64.powi(-(digits as i32)))
    }

    /// Numbers of a distribution, in the type that random floats are computed in.
    #[track_caller]
    fn variates(&mut self, variate: Variate, wide: DType, dims: &[usize]) -> Result<Tensor> {
        let word = if wide == DType::F64 { DType::U64 } else { DType::U32 };
        let bits = self.bits(word, dims)?;
        made(variate, &bits)
    }

    /// Random bits for floats of a type, and their number per element.
    #[track_caller]
    fn bits_for(&mut self, dtype: DType, dims: &[usize]) -> Result<(Tensor, u32)> {
        match wide_of(dtype)? {
            DType::F64 => Ok((self.bits(DType::U64, dims)?, 64)),
            _ => Ok((self.bits(DType::U32, dims)?, 32)),
        }
    }

    /// Floats from `low` up to, not including, `high`, evenly distributed. The limits are lifted
    /// scalars. Rounding of `low + u (high - low)` to the type may give `high`.
    ///
    /// # Errors
    /// When the element type is not `f16`, `bf16`, `f32` or `f64`.
    #[track_caller]
    pub fn uniform(&mut self, dtype: DType, dims: &[usize], low: f64, high: f64) -> Result<Tensor> {
        let unit = self.unit(dtype, dims)?;
        if (low, high) == (0.0, 1.0) {
            return Ok(unit);
        }
        affine(&unit, high - low, low)
    }

    /// Bernoulli trials, as bools: each is true with the given probability, a lifted scalar.
    ///
    /// # Errors
    /// When the probability is not from 0 to 1, or the sizes do not form a shape.
    #[track_caller]
    pub fn bernoulli(&mut self, probability: f64, dims: &[usize]) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&probability) {
            let given = format!("a probability of {probability} was given");
            return Err(refused(OpError::new(NAME, OpErrorKind::Attribute, given, "it must be from 0 to 1")));
        }
        // With 33 bits, a probability of 1 is representable.
        let threshold = (probability * 2f64.powi(32)).round() as u64;
        let bits = self.bits(DType::U32, dims)?.convert(DType::U64)?;
        bits.less(&self.state.on_stream().scalar(threshold))
    }

    /// Integers from `low` up to, not including, `high`, evenly distributed. The limits are lifted
    /// scalars.
    ///
    /// Each is a 64-bit number modulo the number of integers, so some are more frequent than others
    /// by one part in `2^64 / (high - low)`.
    ///
    /// # Errors
    /// When the element type is not an integer or does not hold the limits, or `low` is not below
    /// `high`.
    #[track_caller]
    pub fn randint(&mut self, dtype: DType, dims: &[usize], low: i64, high: i64) -> Result<Tensor> {
        let limits = scalar_as(&self.state, Number::Int(low), dtype);
        let largest = scalar_as(&self.state, Number::Int(high.saturating_sub(1)), dtype);
        let (Some(first), Some(_), true) = (limits, largest, dtype.is_int() && low < high) else {
            let given = format!("{dtype} from {low} to below {high} were requested");
            let rule = "the type must be an integer type that holds both limits, and the first \
                        limit must be below the second";
            return Err(refused(OpError::new(NAME, OpErrorKind::Attribute, given, rule)));
        };
        let span = self.state.on_stream().scalar(high.wrapping_sub(low) as u64);
        let bits = self.bits(DType::U64, dims)?;
        bits.rem(&span)?.convert(dtype)?.add(&first)
    }

    /// Normally distributed numbers with mean 0 and variance 1: the inverse distribution function
    /// of a uniform number, with an error below 2^-25. `f32` and shorter floats take 2^32 values up
    /// to 6.2 from zero, and `f64` takes 2^64 up to 9.1.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn normal(&mut self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.variates(Variate::Normal, wide_of(dtype)?, dims)?.narrowed(dtype)
    }

    /// Normally distributed numbers with the given mean and deviation, which are lifted scalars.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn normal_around(
        &mut self,
        dtype: DType,
        dims: &[usize],
        mean: f64,
        deviation: f64,
    ) -> Result<Tensor> {
        let standard = self.normal(dtype, dims)?;
        if (mean, deviation) == (0.0, 1.0) { Ok(standard) } else { affine(&standard, deviation, mean) }
    }

    /// Log-normally distributed numbers: their logarithms have the given mean and deviation, which
    /// are lifted scalars.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn log_normal(&mut self, dtype: DType, dims: &[usize], mean: f64, deviation: f64) -> Result<Tensor> {
        let standard = self.variates(Variate::Normal, wide_of(dtype)?, dims)?;
        let exponent = affine_in_f64(&standard, standard.dtype(), deviation, mean)?;
        rounded(&made(Variate::Exp, &exponent)?, dtype)
    }

    /// Numbers of the normal distribution with mean 0 and variance 1, truncated to `low` to `high`.
    /// The limits are lifted scalars.
    ///
    /// # Errors
    /// As [`Generator::uniform`], and when `low` is not below `high`.
    #[track_caller]
    pub fn truncated_normal(&mut self, dtype: DType, dims: &[usize], low: f64, high: f64) -> Result<Tensor> {
        if low >= high || low.is_nan() || high.is_nan() {
            let given = format!("limits of {low} and {high} were given");
            return Err(refused(OpError::new(
                NAME,
                OpErrorKind::Attribute,
                given,
                "the first must be below the second",
            )));
        }
        let wide = wide_of(dtype)?;
        let stream = self.state.on_stream();
        // Far above zero, probabilities are too close to 1 to be distinguished, so use the mirror
        // image below zero.
        let is_mirrored = low > 0.0;
        let (from, to) = if is_mirrored { (-high, -low) } else { (low, high) };
        let first = probability_below(from);
        let span = stream.scalar(probability_below(to).saturating_sub(first));
        let bits = self.bits(DType::U64, dims)?;
        let place = bits.mulhi(&span.broadcast_to(dims)?)?.add(&stream.scalar(first))?;
        let mut numbers = made(Variate::Normal, &place)?;
        if is_mirrored {
            numbers = numbers.neg()?;
        }
        // Rounding to 64-bit probabilities, and rounding the limits, may give numbers beyond the
        // limits.
        let (low, high) = (stream.scalar(low).convert(wide)?, stream.scalar(high).convert(wide)?);
        numbers.convert(wide)?.clamp(&low, &high)?.narrowed(dtype)
    }

    /// A random permutation of the numbers 0 to below `count`, as `i32`. All permutations are
    /// equally likely.
    ///
    /// The numbers are sorted by random 64-bit keys. Two keys are equal with a probability of
    /// `count^2 / 2^65`.
    ///
    /// # Errors
    /// When `count` exceeds the range of `i32`.
    #[track_caller]
    pub fn permutation(&mut self, count: usize) -> Result<Tensor> {
        if count > i32::MAX as usize {
            let given = format!("a permutation of {count} numbers was requested");
            return Err(refused(OpError::new(NAME, OpErrorKind::Limit, given, "they are i32")));
        }
        self.bits(DType::U64, &[count])?.argsort(0, Order::Ascending)
    }

    /// The slices of `x` along dimension `axis` in random order.
    ///
    /// # Errors
    /// When the dimension does not exist.
    #[track_caller]
    pub fn shuffle(&mut self, x: &Tensor, axis: i64) -> Result<Tensor> {
        let place = x.axis(OpCode::Gather, axis)?;
        x.take_inside(&self.permutation(x.dims()[place])?, axis)
    }

    /// Numbers of the Gumbel distribution, `-log(-log(u))`. Adding them to logits draws a class.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn gumbel(&mut self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.variates(Variate::Gumbel, wide_of(dtype)?, dims)?.narrowed(dtype)
    }

    /// Exponentially distributed numbers with mean 1, `-log(u)`. They are never 0.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn exponential(&mut self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.variates(Variate::Exponential, wide_of(dtype)?, dims)?.narrowed(dtype)
    }

    /// Numbers of the Cauchy distribution, `tan(pi (u - 1/2))`.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn cauchy(&mut self, dtype: DType, dims: &[usize], median: f64, scale: f64) -> Result<Tensor> {
        let standard = self.variates(Variate::Cauchy, wide_of(dtype)?, dims)?;
        if (median, scale) == (0.0, 1.0) {
            return standard.narrowed(dtype);
        }
        rounded(&affine_in_f64(&standard, standard.dtype(), scale, median)?, dtype)
    }

    /// Numbers of the geometric distribution: the number of trials up to the first success, from 1
    /// on. Each trial has the given probability, a lifted scalar.
    ///
    /// # Errors
    /// When the sizes do not form a shape, or the probability is not above 0 and at most 1.
    #[track_caller]
    pub fn geometric(&mut self, dims: &[usize], probability: f64) -> Result<Tensor> {
        if !(probability > 0.0 && probability <= 1.0) {
            let given = format!("a probability of {probability} was given");
            let rule = "it must be above 0 and at most 1";
            return Err(refused(OpError::new(NAME, OpErrorKind::Attribute, given, rule)));
        }
        // A single division by a number that the host has computed, so that every compiler rounds
        // it alike.
        let rate = self.state.on_stream().scalar(-(-probability).ln_1p());
        let time = self.variates(Variate::Exponential, DType::F32, dims)?.convert(DType::F64)?;
        let trials = time.div(&rate)?.ceil()?;
        trials.maximum(&constant_like(&trials, 1.0)?.broadcast_to(dims)?)
    }

    /// Classes drawn with the probabilities `softmax(logits)` along `axis`, which disappears; as
    /// `i32`. `samples` are further dimensions in front.
    ///
    /// Computed as the index of the largest of the logits plus Gumbel noise (Maddison, Tarlow and
    /// Minka, "A* sampling", 2014).
    ///
    /// # Errors
    /// When the dimension does not exist or the logits are not floats.
    #[track_caller]
    pub fn categorical(&mut self, logits: &Tensor, axis: i64, samples: &[usize]) -> Result<Tensor> {
        let axis = logits.axis(OpCode::Reduce, axis)? as i64 - logits.rank() as i64;
        let logits = logits.widened()?;
        let noise = self.gumbel(logits.dtype(), &[samples, logits.dims()].concat())?;
        noise.add(&logits)?.argmax(axis)
    }
}

impl Stream {
    /// A generator of random numbers on this stream: [`Generator::new`].
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let order = engine.stream().generator(3)?.permutation(4)?;
    /// assert_eq!(order.sum(&[0])?.item::<i32>()?, 0 + 1 + 2 + 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the device refuses (out of memory).
    pub fn generator(&self, seed: u64) -> Result<Generator> {
        Generator::new(self, seed)
    }

    /// Normally distributed numbers with mean 0 and variance 1, of the given sizes: a function of
    /// seed, element type and sizes, the first numbers that a new [`Generator`] of this seed draws.
    /// The same seed gives the same numbers, so use another seed for each tensor, or draw them from
    /// one generator.
    ///
    /// There is no hidden global generator: the result does not depend on what other calls or
    /// threads have drawn.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// let x = engine.stream().randn(DType::F32, &[100, 100], 7)?;
    /// assert!(x.mean(&[0, 1])?.item::<f32>()?.abs() < 0.05);
    /// let same = engine.stream().generator(7)?.normal(DType::F32, &[100, 100])?;
    /// assert_eq!(x.to_vec::<f32>()?, same.to_vec::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the element type is not `f16`, `bf16`, `f32` or `f64`, the sizes do not form a shape,
    /// or the device refuses (out of memory).
    #[track_caller]
    pub fn randn(&self, dtype: DType, dims: &[usize], seed: u64) -> Result<Tensor> {
        self.generator(seed)?.normal(dtype, dims)
    }
}

/// A loop may carry a generator.
impl TensorTree for Generator {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Generator {
        Generator { state: f(&self.state) }
    }
}

/// Variates made from bits, or from numbers.
#[track_caller]
fn made(variate: Variate, of: &Tensor) -> Result<Tensor> {
    let op = variate.op(of.ty()).map_err(refused)?;
    match of.on_stream().call(&op, &[of])?.pop() {
        Some(result) => Ok(result),
        None => Err(bug!("a variate is one result")),
    }
}

/// `factor x + sum` in the type of `x`, rounded once if the type has at most 24 bits of precision.
#[track_caller]
fn affine(x: &Tensor, factor: f64, sum: f64) -> Result<Tensor> {
    rounded(&affine_in_f64(x, x.dtype(), factor, sum)?, x.dtype())
}

/// The same as `f64`, with the same bits in every fusion. The product of two 24-bit numbers is
/// exact, so it does not matter whether a compiler contracts product and sum. For longer numbers
/// the last bit of the product is cleared, which forces every compiler to round the product.
#[track_caller]
fn affine_in_f64(x: &Tensor, precision: DType, factor: f64, sum: f64) -> Result<Tensor> {
    let stream = x.on_stream();
    let number =
        |value: f64| stream.scalar(if precision == DType::F64 { value } else { f64::from(value as f32) });
    let product = x.convert(DType::F64)?.mul(&number(factor))?;
    let product = match precision {
        DType::F64 => {
            let bits = product.bitcast(DType::U64)?;
            let mask = stream.constant(Literal::scalar(u64::MAX - 1))?;
            bits.and(&mask)?.bitcast(DType::F64)?
        }
        _ => product,
    };
    product.add(&number(sum))
}

/// An `f64` in a float type. Types below 32 bits are rounded from `f32`, by every compiler.
#[track_caller]
fn rounded(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let wide = wide_of(dtype)?;
    x.narrowed(wide)?.narrowed(dtype)
}

/// The probability that a normally distributed number is below another, as a fraction of 2^64.
fn probability_below(limit: f64) -> u64 {
    // The conversion saturates at the limits of the integers.
    (libm::erfc(-limit * std::f64::consts::FRAC_1_SQRT_2) * 2f64.powi(63)) as u64
}

/// The type in which random floats are computed.
#[track_caller]
fn wide_of(dtype: DType) -> Result<DType> {
    match dtype {
        DType::F64 => Ok(DType::F64),
        DType::F32 | DType::F16 | DType::BF16 => Ok(DType::F32),
        _ => {
            let given = format!("random {dtype} numbers were requested");
            let error = OpError::new(NAME, OpErrorKind::DType, given, "they must be f16, bf16, f32 or f64");
            Err(refused(error.hint("draw one of these and convert it")))
        }
    }
}

/// Bits of precision of a float type, the leading one included.
fn precision(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

#[track_caller]
fn refused(error: OpError) -> Error {
    Error::op(error, Site::Rust(std::panic::Location::caller()))
}
