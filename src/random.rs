//! Random numbers from a generator whose state is a value.
//!
//! A [`Generator`] is a key and a counter, `u64[2]`, on the device. Drawing runs Threefry-2x32 with 20 rounds (Salmon et al.,
//! "Parallel random numbers: as easy as 1, 2, 3", 2011) over the counter and leaves the generator at the next count. So the
//! numbers are a function of the state: the same on every device and in every mode, and a program that keeps the state
//! ([`Generator::state`]) and restores it ([`Generator::from_state`]) repeats them. Drawing is recorded like any op; nothing
//! waits, and another seed compiles nothing.
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

use fuseline_fusion::op::RngAlgorithm;
use fuseline_fusion::{Fault, Literal, OpError, Site};

use crate::error::{Error, Result};
use crate::promote::Number;
use crate::stream::Stream;
use crate::tensor::{Tensor, constant_like, scalar_as, times};
use crate::trace::TensorTree;
use crate::{DType, OpCode, Order};

/// What an error of this module names as the op.
const NAME: &str = "rng_bit_generator";

/// Bit 63 of the counter, which drawing never reaches: the counts beyond belong to [`Generator::fold_in`].
const FOLD: u64 = 1 << 63;

/// A source of random numbers: a key and a counter on the device. See the [module](self).
///
/// Cloning one gives two that draw the same numbers; [`Generator::split`] gives one that draws others.
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

    /// A generator that goes on from a state.
    ///
    /// # Errors
    /// When it is no `u64[2]`.
    #[track_caller]
    pub fn from_state(state: Tensor) -> Result<Generator> {
        if (state.dtype(), state.dims()) != (DType::U64, &[2]) {
            let given = format!("the state is {}", state.ty());
            return Err(refused(OpError::new(NAME, Fault::DType, given, "a key and a counter are u64[2]")));
        }
        Ok(Generator { state })
    }

    /// Key and counter: all there is to the generator, to be kept and restored.
    #[must_use]
    pub fn state(&self) -> &Tensor {
        &self.state
    }

    /// Uniformly distributed bits, as unsigned integers of 32 or 64 bits.
    ///
    /// # Errors
    /// When the element type is another, or the sizes are not a shape.
    #[track_caller]
    pub fn bits(&mut self, dtype: DType, dims: &[u64]) -> Result<Tensor> {
        if !matches!(dtype, DType::U32 | DType::U64) {
            let given = format!("bits as {dtype} were asked for");
            return Err(refused(OpError::new(NAME, Fault::DType, given, "they come as u32 or u64")));
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

    /// The generator that belongs to a number, of a layer or a step say: a function of this one and the number. This one stays
    /// as it is. The number is a lifted scalar, so another one compiles nothing.
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

    /// Numbers from 0 up to, not including, 1, all multiples of a power of two: as many as the type has bits of precision.
    #[track_caller]
    fn unit(&mut self, dtype: DType, dims: &[u64]) -> Result<Tensor> {
        let (bits, total) = self.bits_for(dtype, dims)?;
        let digits = precision(dtype);
        let kept = bits.shr_logical(&constant_like(&bits, f64::from(total - digits))?)?;
        times(&kept.convert(dtype)?, 2f64.powi(-(digits as i32)))
    }

    /// Numbers between 0 and 1 that are neither: odd multiples of a power of two.
    #[track_caller]
    fn open_unit(&mut self, dtype: DType, dims: &[u64]) -> Result<Tensor> {
        let (bits, total) = self.bits_for(dtype, dims)?;
        // One bit less, for the half that is added must fit as well.
        let digits = precision(dtype) - 1;
        let kept = bits.shr_logical(&constant_like(&bits, f64::from(total - digits))?)?;
        let middle = crate::tensor::plus(&kept.convert(dtype)?, 0.5)?;
        times(&middle, 2f64.powi(-(digits as i32)))
    }

    /// Bits for floats of a type, and how many each element has.
    #[track_caller]
    fn bits_for(&mut self, dtype: DType, dims: &[u64]) -> Result<(Tensor, u32)> {
        match wide_of(dtype)? {
            DType::F64 => Ok((self.bits(DType::U64, dims)?, 64)),
            _ => Ok((self.bits(DType::U32, dims)?, 32)),
        }
    }

    /// Floats from `low` up to, not including, `high`, evenly distributed. The limits are lifted scalars. Rounding of
    /// `low + u (high - low)` may give `high` where the two are close to each other.
    ///
    /// # Errors
    /// When the element type is none of `f16`, `bf16`, `f32` and `f64`.
    #[track_caller]
    pub fn uniform(&mut self, dtype: DType, dims: &[u64], low: f64, high: f64) -> Result<Tensor> {
        let unit = self.unit(dtype, dims)?;
        if (low, high) == (0.0, 1.0) {
            return Ok(unit);
        }
        (unit * (high - low))? + low
    }

    /// Whether each of as many trials succeeds, with the given probability, a lifted scalar.
    ///
    /// # Errors
    /// When the probability is not from 0 to 1, or the sizes are not a shape.
    #[track_caller]
    pub fn bernoulli(&mut self, probability: f64, dims: &[u64]) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&probability) {
            let given = format!("a probability of {probability} was given");
            return Err(refused(OpError::new(NAME, Fault::Attribute, given, "it is from 0 to 1")));
        }
        // With 33 bits, 1 is a probability too.
        let threshold = (probability * 2f64.powi(32)).round() as u64;
        let bits = self.bits(DType::U32, dims)?.convert(DType::U64)?;
        bits.less(&self.state.on_stream().scalar(threshold))
    }

    /// Integers from `low` up to, not including, `high`, evenly distributed. The limits are lifted scalars.
    ///
    /// Each is 64 bits modulo the number of integers, so that some come up more often than others by a part in
    /// `2^64 / (high - low)`.
    ///
    /// # Errors
    /// When the element type is no integer, it does not hold the limits, or `low` is not below `high`.
    #[track_caller]
    pub fn randint(&mut self, dtype: DType, dims: &[u64], low: i64, high: i64) -> Result<Tensor> {
        let limits = scalar_as(&self.state, Number::Int(low), dtype);
        let largest = scalar_as(&self.state, Number::Int(high.saturating_sub(1)), dtype);
        let (Some(first), Some(_), true) = (limits, largest, dtype.is_int() && low < high) else {
            let given = format!("{dtype} from {low} to below {high} were asked for");
            let rule = "the type is one of integers that holds them, and the first limit is below the second";
            return Err(refused(OpError::new(NAME, Fault::Attribute, given, rule)));
        };
        let span = self.state.on_stream().scalar(high.wrapping_sub(low) as u64);
        let bits = self.bits(DType::U64, dims)?;
        bits.rem(&span)?.convert(dtype)?.add(&first)
    }

    /// Normally distributed numbers with mean 0 and variance 1, as `sqrt(2) erf_inv(u)` for `u` between -1 and 1.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn normal(&mut self, dtype: DType, dims: &[u64]) -> Result<Tensor> {
        let wide = wide_of(dtype)?;
        let unit = self.open_unit(wide, dims)?;
        let place = crate::tensor::plus(&times(&unit, 2.0)?, -1.0)?;
        times(&place.erf_inv()?, std::f64::consts::SQRT_2)?.narrowed(dtype)
    }

    /// Normally distributed numbers with mean 0 and variance 1 of which only those from `low` to `high` count. The limits are
    /// lifted scalars.
    ///
    /// # Errors
    /// As [`Generator::uniform`], and when `low` is not below `high`.
    #[track_caller]
    pub fn truncated_normal(&mut self, dtype: DType, dims: &[u64], low: f64, high: f64) -> Result<Tensor> {
        if low >= high || low.is_nan() || high.is_nan() {
            let given = format!("limits of {low} and {high} were given");
            return Err(refused(OpError::new(
                NAME,
                Fault::Attribute,
                given,
                "the first is below the second",
            )));
        }
        let wide = wide_of(dtype)?;
        let stream = self.state.on_stream();
        let limits = stream.scalar(low).reshape(&[1])?;
        let limits = Tensor::concatenate(&[&limits, &stream.scalar(high).reshape(&[1])?], 0)?;
        // Where the limits are between -1 and 1; in f64, whatever the type of the numbers.
        let ends = times(&limits, std::f64::consts::FRAC_1_SQRT_2)?.erf()?;
        let (first, last) = (ends.narrow(0, 0, 1)?, ends.narrow(0, 1, 2)?);
        let span = last.sub(&first)?.reshape(&[])?.convert(wide)?;
        let unit = self.open_unit(wide, dims)?;
        let place = unit.mul(&span)?.add(&first.reshape(&[])?.convert(wide)?)?;
        let numbers = times(&place.erf_inv()?, std::f64::consts::SQRT_2)?;
        // Rounding must not lead out of the range, nor to the infinities at its ends.
        let (low, high) = (stream.scalar(low).convert(wide)?, stream.scalar(high).convert(wide)?);
        numbers.clamp(&low, &high)?.narrowed(dtype)
    }

    /// The numbers 0 to below `count` in random order, as `i32`: each order is as likely as any other.
    ///
    /// They are sorted by random numbers of 64 bits, of which two are equal with a chance of `count^2 / 2^65`.
    ///
    /// # Errors
    /// When there are more numbers than `i32` has.
    #[track_caller]
    pub fn permutation(&mut self, count: u64) -> Result<Tensor> {
        if count > i32::MAX as u64 {
            let given = format!("an order of {count} numbers was asked for");
            return Err(refused(OpError::new(NAME, Fault::Limit, given, "they are i32")));
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

    /// Numbers of Gumbel's distribution, `-log(-log(u))`: what is added to logits to draw from them.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn gumbel(&mut self, dtype: DType, dims: &[u64]) -> Result<Tensor> {
        self.open_unit(dtype, dims)?.log()?.neg()?.log()?.neg()
    }

    /// Exponentially distributed numbers with mean 1, `-log(u)`.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn exponential(&mut self, dtype: DType, dims: &[u64]) -> Result<Tensor> {
        self.open_unit(dtype, dims)?.log()?.neg()
    }

    /// Classes drawn with the probabilities `softmax(logits)` along `axis`, which disappears; as `i32`. `samples` are further
    /// dimensions in front.
    ///
    /// Computed as the place of the largest of the logits plus Gumbel's noise (Maddison, Tarlow and Minka, "A* sampling", 2014).
    ///
    /// # Errors
    /// When the dimension does not exist or the logits are not floats.
    #[track_caller]
    pub fn categorical(&mut self, logits: &Tensor, axis: i64, samples: &[u64]) -> Result<Tensor> {
        let axis = logits.axis(OpCode::Reduce, axis)? as i64 - logits.rank() as i64;
        let logits = logits.widened()?;
        let noise = self.gumbel(logits.dtype(), &[samples, logits.dims()].concat())?;
        noise.add(&logits)?.argmax(axis)
    }
}

/// A loop can carry a generator.
impl TensorTree for Generator {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Generator {
        Generator { state: f(&self.state) }
    }
}

/// The type that random floats are computed in.
#[track_caller]
fn wide_of(dtype: DType) -> Result<DType> {
    match dtype {
        DType::F64 => Ok(DType::F64),
        DType::F32 | DType::F16 | DType::BF16 => Ok(DType::F32),
        _ => {
            let given = format!("random {dtype} were asked for");
            let error = OpError::new(NAME, Fault::DType, given, "they are f16, bf16, f32 or f64");
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
