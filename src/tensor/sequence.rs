//! Sequences of evenly spaced numbers. They are computed on the device, so no data is copied. Start
//! and step are lifted scalars.
//!
//! Floats are computed as `start + i * step` in `f64` and rounded to the element type at the end,
//! so that errors do not add up. Integers are exact: those below 32 bits are computed in `i32`.

use fuseline_fusion::{DType, DTypeClass, OpError, OpErrorKind, RealElement, Scalar, element};
use fuseline_runtime::internals::bug;
use fuseline_runtime::{Error, Result};

use super::{Tensor, here};
use crate::stream::Stream;

/// The op that errors of this module name.
const NAME: &str = "iota";

impl Stream {
    /// `start`, `start + 1`, ... up to, not including, `end`: a tensor of shape `[n]` with the
    /// element type of the numbers. Empty if `end` is not above `start`.
    ///
    /// Another `start` compiles nothing if the number of elements stays the same.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.stream().arange(2, 5)?; // of i32
    /// assert_eq!(x.to_vec::<i32>()?, [2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the element type is bool, a limit is infinite or NaN, or there are too many elements
    /// for a shape.
    #[track_caller]
    pub fn arange<T: RealElement>(&self, start: T, end: T) -> Result<Tensor> {
        let one = Scalar::from_f64(T::DTYPE, 1.0).ok_or_else(|| bug!("a real type has a 1"))?;
        let start = Scalar::new(start);
        let count = count(start, Scalar::new(end), one)?;
        self.spaced(start, None, count)
    }

    /// `start`, `start + step`, `start + 2 step`, ... up to, not including, `end`: a tensor of
    /// shape `[n]` with the element type of the numbers. The step may be negative. Empty if it
    /// leads away from `end`.
    ///
    /// As with NumPy's `arange`, rounding decides about the last element if the step is no whole
    /// number: of floats there are `ceil((end - start) / step)`, computed in `f64`.
    /// [`Stream::linspace`] takes the number of elements instead.
    ///
    /// Another `start` or `step` compiles nothing if the number of elements stays the same.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.stream().arange_step(1.0f32, 0.0, -0.25)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 0.75, 0.5, 0.25]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the element type is bool, the step is 0, a number is infinite or NaN, or there are too
    /// many elements for a shape.
    #[track_caller]
    pub fn arange_step<T: RealElement>(&self, start: T, end: T, step: T) -> Result<Tensor> {
        let [start, end, step] = [start, end, step].map(Scalar::new);
        let count = count(start, end, step)?;
        self.spaced(start, Some(step), count)
    }

    /// `count` numbers from `start` to `end`, both included, at equal distances: a tensor of shape
    /// `[count]` with the element type of the limits, a float type. The first and the last element
    /// are the limits exactly; if `count` is 1, the only one is `start`.
    ///
    /// Other limits compile nothing.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.stream().linspace(0.0f32, 1.0, 5)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the elements are not floats, a limit is infinite or NaN, or there are too many elements
    /// for a shape.
    #[track_caller]
    pub fn linspace<T: RealElement>(&self, start: T, end: T, count: usize) -> Result<Tensor> {
        let dtype = T::DTYPE;
        let [start, end] = [start, end].map(|limit| value(Scalar::new(limit)));
        if !dtype.is_float() || !start.is_finite() || !end.is_finite() {
            let given = format!("{count} numbers of {dtype} from {start} to {end} were requested");
            return Err(refused(given, "the limits must be finite floats"));
        }
        let last = count.saturating_sub(1);
        let step = if last == 0 { 0.0 } else { (end - start) / last as f64 };
        let index = self.iota(DType::F64, &[count], 0)?;
        let inner = index.mul(&self.scalar(step))?.add(&self.scalar(start))?;
        if last == 0 {
            return rounded(&inner, dtype);
        }
        let is_last = index.equal(&self.scalar(last as f64))?;
        rounded(&is_last.select(&self.scalar(end), &inner)?, dtype)
    }

    /// `start + i * step` for each `i` below `count`; the step is 1 if none is given.
    #[track_caller]
    fn spaced(&self, start: Scalar, step: Option<Scalar>, count: usize) -> Result<Tensor> {
        let dtype = start.dtype();
        let computed = match dtype.class() {
            DTypeClass::Float => DType::F64,
            _ if dtype.bits() < 32 => DType::I32,
            _ => dtype,
        };
        // Types that are not computed in their own type are so narrow that an `f64` holds their
        // values.
        let lifted = |number: Scalar| {
            let own = Some(number).filter(|number| number.dtype() == computed);
            match own.or_else(|| Scalar::from_f64(computed, value(number))) {
                Some(number) => Ok(self.lift(number)),
                None => Err(bug!("{computed} is a real type")),
            }
        };
        let index = self.iota(computed, &[count], 0)?;
        let scaled = match step {
            Some(step) => index.mul(&lifted(step)?)?,
            None => index,
        };
        let numbers = scaled.add(&lifted(start)?)?;
        if dtype.is_float() { rounded(&numbers, dtype) } else { numbers.convert(dtype) }
    }
}

/// An `f64` in a float type. Those below 32 bits are rounded from `f32`, as everywhere.
#[track_caller]
fn rounded(numbers: &Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::F64 => Ok(numbers.clone()),
        DType::F32 => numbers.convert(dtype),
        _ => numbers.convert(DType::F32)?.convert(dtype),
    }
}

/// A number as `f64`; an integer of 64 bits is rounded.
fn value(number: Scalar) -> f64 {
    element::to_f64(number.dtype(), number.bits().into())
}

/// How many numbers there are from `start` on, `step` apart, before `end`.
#[track_caller]
fn count(start: Scalar, end: Scalar, step: Scalar) -> Result<usize> {
    let dtype = start.dtype();
    let count = match dtype.class() {
        DTypeClass::Bool => None,
        DTypeClass::Float => {
            let (start, end, step) = (value(start), value(end), value(step));
            let is_finite = start.is_finite() && end.is_finite() && step.is_finite() && step != 0.0;
            // The conversion saturates at the limits of the integers.
            is_finite.then(|| ((end - start) / step).ceil() as usize)
        }
        _ => {
            let [start, end, step] = [start, end, step].map(|n| element::to_int(dtype, n.bits().into()));
            let (span, step) = if step < 0 { (start - end, -step) } else { (end - start, step) };
            // The limit of sizes in shapes is far below that of integers.
            (step != 0).then(|| usize::try_from((span.max(0) + step - 1) / step).unwrap_or(usize::MAX))
        }
    };
    if let Some(count) = count {
        return Ok(count);
    }
    let [start, end, step] = [start, end, step].map(|number| match dtype.is_float() {
        true => format!("{:?}", value(number)),
        false => element::to_int(dtype, number.bits().into()).to_string(),
    });
    let given = format!("numbers of {dtype} from {start} to below {end} by {step} were requested");
    Err(refused(given, "they must be finite and of a type other than bool, and the step must not be 0"))
}

#[track_caller]
fn refused(given: String, rule: &str) -> Error {
    Error::op(OpError::new(NAME, OpErrorKind::Attribute, given, rule), here())
}
