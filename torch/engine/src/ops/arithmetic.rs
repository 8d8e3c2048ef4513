//! Elementwise arithmetic, comparisons, sums and matrix products.

use fuseline::fusion::DType;
use fuseline::{Mode, Tensor};

use super::{as_type, axis, cast, compared_in, number, pair, result, stretched};
use crate::call::{Arg, Call, Result, Results, Row, unsupported, wrong};
use crate::graph;

type Unary = fn(&Tensor) -> fuseline::Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> fuseline::Result<Tensor>;

macro_rules! rows {
    ($helper:ident: $($name:literal => $op:expr),* $(,)?) => {
        &[$(Row { name: $name, lower: |call| $helper(call, $op) }),*]
    };
}

/// Ops of one operand, computed in the type of the result.
pub(crate) static UNARY: &[Row] = rows! { unary:
    "sinh" => Tensor::sinh, "cosh" => Tensor::cosh, "asin" => Tensor::asin, "acos" => Tensor::acos, "atan" => Tensor::atan, "erf" => Tensor::erf,
    "erfc" => Tensor::erfc,
};

/// Ops of one real or complex operand.
pub(crate) static COMPLEX: &[Row] = rows! { any:
    "neg" => Tensor::neg, "exp" => Tensor::exp, "expm1" => Tensor::expm1, "log" => Tensor::log, "log1p" => Tensor::log1p, "sqrt" => Tensor::sqrt,
    "rsqrt" => Tensor::rsqrt, "sin" => Tensor::sin, "cos" => Tensor::cos, "tan" => Tensor::tan, "tanh" => Tensor::tanh, "sigmoid" => Tensor::logistic,
};

/// The remaining rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "floor", lower: |call| whole(call, Tensor::floor) },
    Row { name: "ceil", lower: |call| whole(call, Tensor::ceil) },
    Row { name: "round", lower: |call| whole(call, Tensor::round_even) },
    Row { name: "trunc", lower: |call| whole(call, truncated) },
    Row { name: "sign", lower: sign },
    Row { name: "abs", lower: abs },
    Row {
        name: "sgn",
        lower: |call| {
            if call.tensor(0)?.dtype().is_complex() {
                unsupported("complex numbers are not supported")
            } else {
                sign(call)
            }
        },
    },
    Row { name: "signbit", lower: sign_bit },
    Row { name: "angle", lower: angle },
    Row {
        name: "_conj_physical",
        lower: |call| {
            let x = call.tensor(0)?;
            result(call, if x.dtype().is_complex() { x.conj()? } else { x })
        },
    },
    Row { name: "fmax", lower: |call| number_of(call, Tensor::maximum) },
    Row { name: "fmin", lower: |call| number_of(call, Tensor::minimum) },
    Row { name: "hypot", lower: hypot },
    Row { name: "softshrink_backward", lower: shrunk },
    Row { name: "hardshrink_backward", lower: shrunk },
    Row { name: "dot", lower: |call| dot(call, false) },
    Row { name: "vdot", lower: |call| dot(call, true) },
    Row { name: "rsub.Tensor", lower: |call| scaled(call, 1, 0, Tensor::sub) },
    Row {
        name: "isnan",
        lower: |call| {
            let x = call.tensor(0)?;
            result(call, x.not_equal(&x)?)
        },
    },
    Row { name: "exp2", lower: |call| unary(call, |x| (x * std::f64::consts::LN_2)?.exp()) },
    Row { name: "log2", lower: |call| unary(call, |x| x.log()? / std::f64::consts::LN_2) },
    Row { name: "log10", lower: |call| unary(call, |x| x.log()? / std::f64::consts::LN_10) },
    Row { name: "asinh", lower: |call| unary(call, Tensor::asinh) },
    Row { name: "acosh", lower: |call| unary(call, Tensor::acosh) },
    Row { name: "atanh", lower: |call| unary(call, Tensor::atanh) },
    Row { name: "erfinv", lower: |call| unary(call, Tensor::erf_inv) },
    Row { name: "lgamma", lower: |call| unary(call, lgamma) },
    Row { name: "digamma", lower: |call| unary(call, digamma) },
    Row { name: "frac", lower: |call| unary(call, |x| x - &truncated(x)?) },
    Row { name: "atan2", lower: |call| binary(call, Tensor::atan2) },
    Row { name: "fmod.Tensor", lower: |call| rest(call, Tensor::rem) },
    Row { name: "remainder.Tensor", lower: |call| rest(call, remainder) },
    Row { name: "remainder.Scalar_Tensor", lower: |call| rest(call, remainder) },
    Row { name: "floor_divide", lower: |call| divide(call, Some("floor")) },
    Row {
        name: "div.Tensor_mode",
        lower: |call| {
            let mode = call.text(2)?.map(str::to_owned);
            divide(call, mode.as_deref())
        },
    },
    Row { name: "pow.Tensor_Tensor", lower: |call| powers(call) },
    Row { name: "pow.Scalar", lower: |call| powers(call) },
    Row { name: "clamp_min", lower: |call| binary(call, Tensor::maximum) },
    Row { name: "clamp_max", lower: |call| binary(call, Tensor::minimum) },
    Row { name: "clamp_min.Tensor", lower: |call| binary(call, Tensor::maximum) },
    Row { name: "clamp_max.Tensor", lower: |call| binary(call, Tensor::minimum) },
    Row { name: "logical_xor", lower: |call| logical(call, Tensor::xor) },
    Row {
        name: "reciprocal",
        lower: |call| {
            let x = as_type(call, 0, call.out(0)?.dtype())?;
            result(call, number(call, 1.0, &x)?.div(&x)?)
        },
    },
    Row { name: "isneginf", lower: |call| infinite(call, Tensor::less) },
    Row { name: "isposinf", lower: |call| infinite(call, Tensor::greater) },
    Row {
        name: "relu",
        lower: |call| {
            let x = call.tensor(0)?;
            result(call, x.maximum(&number(call, 0.0, &x)?)?)
        },
    },
    Row { name: "add.Tensor", lower: |call| scaled(call, 0, 1, Tensor::add) },
    Row { name: "mul.Tensor", lower: |call| binary(call, Tensor::mul) },
    Row { name: "lt.Tensor", lower: |call| compare(call, Tensor::less) },
    Row { name: "sub.Tensor", lower: |call| scaled(call, 0, 1, Tensor::sub) },
    Row { name: "rsub.Scalar", lower: |call| scaled(call, 1, 0, Tensor::sub) },
    Row { name: "div.Tensor", lower: |call| binary(call, Tensor::div) },
    Row { name: "maximum", lower: |call| binary(call, Tensor::maximum) },
    Row { name: "minimum", lower: |call| binary(call, Tensor::minimum) },
    Row { name: "bitwise_and.Tensor", lower: |call| binary(call, Tensor::and) },
    Row { name: "bitwise_or.Tensor", lower: |call| binary(call, Tensor::or) },
    Row { name: "bitwise_xor.Tensor", lower: |call| binary(call, Tensor::xor) },
    Row { name: "bitwise_not", lower: |call| result(call, call.tensor(0)?.not()?) },
    Row { name: "logical_not", lower: |call| result(call, cast(&call.tensor(0)?, DType::Bool)?.not()?) },
    Row { name: "logical_and", lower: |call| logical(call, Tensor::and) },
    Row { name: "logical_or", lower: |call| logical(call, Tensor::or) },
    Row { name: "eq.Tensor", lower: |call| compare(call, Tensor::equal) },
    Row { name: "ne.Tensor", lower: |call| compare(call, Tensor::not_equal) },
    Row { name: "le.Tensor", lower: |call| compare(call, Tensor::less_equal) },
    Row { name: "gt.Tensor", lower: |call| compare(call, Tensor::greater) },
    Row { name: "ge.Tensor", lower: |call| compare(call, Tensor::greater_equal) },
    Row { name: "eq.Scalar", lower: |call| compare(call, Tensor::equal) },
    Row { name: "ne.Scalar", lower: |call| compare(call, Tensor::not_equal) },
    Row { name: "lt.Scalar", lower: |call| compare(call, Tensor::less) },
    Row { name: "le.Scalar", lower: |call| compare(call, Tensor::less_equal) },
    Row { name: "gt.Scalar", lower: |call| compare(call, Tensor::greater) },
    Row { name: "ge.Scalar", lower: |call| compare(call, Tensor::greater_equal) },
    Row { name: "pow.Tensor_Scalar", lower: pow },
    Row { name: "where.self", lower: select },
    Row { name: "masked_fill.Scalar", lower: masked_fill },
    Row { name: "masked_fill.Tensor", lower: masked_fill },
    Row { name: "clamp", lower: clamp },
    Row { name: "clamp.Tensor", lower: clamp },
    Row { name: "addcmul", lower: |call| combined(call, Tensor::mul) },
    Row { name: "addcdiv", lower: |call| combined(call, Tensor::div) },
    Row { name: "lerp.Scalar", lower: lerp },
    Row { name: "fill.Scalar", lower: fill },
    Row {
        name: "zero",
        lower: |call| result(call, call.stream.zeros(call.out(0)?.dtype(), call.out(0)?.sizes())?),
    },
    Row { name: "arange.start_step", lower: arange },
    Row {
        name: "sum.dim_IntList",
        lower: |call| {
            let x = cast(&call.tensor(0)?, accumulated(call.out(0)?.dtype()))?;
            result(call, x.sum(&reduced(call, 1)?)?)
        },
    },
    Row { name: "mean.dim", lower: mean },
    Row { name: "amax", lower: |call| extreme(call, 1, "amax", Tensor::max) },
    Row { name: "amin", lower: |call| extreme(call, 1, "amin", Tensor::min) },
    Row { name: "max", lower: |call| extreme(call, 9, "max", Tensor::max) },
    Row { name: "min", lower: |call| extreme(call, 9, "min", Tensor::min) },
    Row {
        name: "any",
        lower: |call| result(call, cast(&call.tensor(0)?, DType::Bool)?.any(&reduced(call, 9)?)?),
    },
    Row {
        name: "all",
        lower: |call| result(call, cast(&call.tensor(0)?, DType::Bool)?.all(&reduced(call, 9)?)?),
    },
    Row {
        name: "any.dim",
        lower: |call| result(call, cast(&call.tensor(0)?, DType::Bool)?.any(&reduced(call, 1)?)?),
    },
    Row {
        name: "all.dim",
        lower: |call| result(call, cast(&call.tensor(0)?, DType::Bool)?.all(&reduced(call, 1)?)?),
    },
    Row { name: "cumsum", lower: cumsum },
    Row { name: "cat", lower: cat },
    Row { name: "mm", lower: |call| result(call, call.tensor(0)?.matmul(&call.tensor(1)?)?) },
    Row { name: "bmm", lower: |call| result(call, call.tensor(0)?.matmul(&call.tensor(1)?)?) },
    Row { name: "addmm", lower: |call| added(call, Tensor::matmul) },
    Row { name: "baddbmm", lower: |call| added(call, Tensor::matmul) },
    Row {
        name: "addmv",
        lower: |call| added(call, |a, x| a.matmul(&x.reshape(&[x.dims()[0], 1])?)?.reshape(&a.dims()[..1])),
    },
    Row { name: "addbmm", lower: |call| added(call, |a, b| a.matmul(b)?.sum(&[0])) },
    Row { name: "tril", lower: |call| triangle(call, true) },
    Row { name: "triu", lower: |call| triangle(call, false) },
];

/// An empty tensor has no extreme. It is an error unless there are no results either.
fn extreme(
    call: &Call<'_>,
    axes: usize,
    name: &str,
    op: fn(&Tensor, &[i64]) -> fuseline::Result<Tensor>,
) -> Result<Results> {
    let x = call.tensor(0)?;
    if x.shape().elems().0 == 0 && call.out(0)?.elems().0 > 0 {
        return wrong(format!(
            "{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with \
             the 'dim' argument."
        ));
    }
    result(call, op(&x, &reduced(call, axes)?)?)
}

fn unary(call: &Call<'_>, op: Unary) -> Result<Results> {
    let dtype = call.out(0)?.dtype();
    let given = call.tensor(0)?.dtype();
    if dtype == DType::Bool || given.is_complex() {
        return unsupported(format!("elements of type {given} are not supported"));
    }
    result(call, op(&as_type(call, 0, accumulated(dtype))?)?)
}

fn any(call: &Call<'_>, op: Unary) -> Result<Results> {
    let dtype = call.out(0)?.dtype();
    if dtype == DType::Bool {
        return unsupported("boolean elements are not supported");
    }
    result(call, op(&as_type(call, 0, accumulated(dtype))?)?)
}

/// The compiler's approximation misses the zeros at 1 and 2.
fn lgamma(x: &Tensor) -> fuseline::Result<Tensor> {
    let at = |number: f64| -> fuseline::Result<Tensor> {
        x.equal(&x.on_stream().scalar(number).convert(x.dtype())?.broadcast_to(x.dims())?)
    };
    let zeros = x.on_stream().zeros(x.dtype(), x.dims())?;
    at(1.0)?.or(&at(2.0)?)?.select(&zeros, &x.lgamma()?)
}

/// The magnitude of a complex number is real.
fn abs(call: &Call<'_>) -> Result<Results> {
    if call.tensor(0)?.dtype().is_complex() {
        result(call, call.tensor(0)?.abs()?)
    } else {
        unary(call, Tensor::abs)
    }
}

/// The larger or smaller of two elements, NaN only if both are NaN.
fn number_of(call: &Call<'_>, op: Binary) -> Result<Results> {
    let (a, b) = pair(call, call.out(0)?.dtype())?;
    let best = op(&a, &b)?;
    if !a.dtype().is_float() {
        return result(call, best);
    }
    let (no_a, no_b) = (a.not_equal(&a)?, b.not_equal(&b)?);
    result(call, no_a.select(&b, &no_b.select(&a, &best)?)?)
}

/// Computed so that squares do not overflow.
fn hypot(call: &Call<'_>) -> Result<Results> {
    let (a, b) = pair(call, call.out(0)?.dtype())?;
    let (a, b) = (a.abs()?, b.abs()?);
    let (long, short) = (a.maximum(&b)?, a.minimum(&b)?);
    let ratio = short.div(&long)?;
    let plain = long.mul(&(ratio.square()? + 1.0)?.sqrt()?)?;
    // The ratio of two zeros or two infinities is NaN. An infinity wins over a NaN.
    let infinite = number(call, f64::INFINITY, &a)?;
    let is_infinite = a.equal(&infinite)?.or(&b.equal(&infinite)?)?;
    let is_zero = long.equal(&number(call, 0.0, &a)?)?;
    result(call, is_infinite.select(&infinite, &is_zero.select(&long, &plain)?)?)
}

fn sign_bit(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    if x.dtype() == DType::Bool {
        return result(call, call.stream.zeros(DType::Bool, x.dims())?);
    }
    let zero = number(call, 0.0, &x)?;
    let is_negative = x.less(&zero)?;
    if !x.dtype().is_float() {
        return result(call, is_negative);
    }
    // Negative zero has a negative reciprocal.
    let one = number(call, 1.0, &x)?;
    let is_negative_zero = x.equal(&zero)?.and(&one.div(&x)?.less(&zero)?)?;
    result(call, is_negative.or(&is_negative_zero)?)
}

/// Zero where the operand is within the limit of zero.
fn shrunk(call: &Call<'_>) -> Result<Results> {
    let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
    let limit = stretched(&call.number(2, x.dtype())?, x.dims())?;
    let is_small = x.less_equal(&limit)?.and(&x.greater_equal(&limit.neg()?)?)?;
    result(call, is_small.select(&call.stream.zeros(grad.dtype(), grad.dims())?, &grad)?)
}

/// The angle of a complex number. For real numbers it is 0, or π if they are negative.
fn angle(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    if x.dtype().is_complex() {
        return result(call, x.imag()?.atan2(&x.real()?)?);
    }
    let x = cast(&x, call.out(0)?.dtype())?;
    let (zero, half_turn) = (number(call, 0.0, &x)?, number(call, std::f64::consts::PI, &x)?);
    let is_number = x.equal(&x)?;
    let side = x.less(&zero)?.select(&half_turn, &zero)?;
    result(call, is_number.select(&side, &x)?)
}

/// The dot product of two vectors, with the first conjugated if asked.
fn dot(call: &Call<'_>, is_conjugated: bool) -> Result<Results> {
    let (mut a, b) = (call.tensor(0)?, call.tensor(1)?);
    if is_conjugated && a.dtype().is_complex() {
        a = a.conj()?;
    }
    let (row, column) = (a.reshape(&[1, a.dims()[0]])?, b.reshape(&[b.dims()[0], 1])?);
    result(call, row.matmul(&column)?)
}

/// Rounds to a whole number. Integers already are.
fn whole(call: &Call<'_>, op: Unary) -> Result<Results> {
    if call.out(0)?.dtype().is_float() { unary(call, op) } else { result(call, call.tensor(0)?) }
}

/// The sign of NaN and of zero is 0.
fn sign(call: &Call<'_>) -> Result<Results> {
    let x = call.tensor(0)?;
    if x.dtype() == DType::Bool {
        return result(call, x);
    }
    let zero = number(call, 0.0, &x)?;
    let side = |is_on: Tensor| cast(&is_on, x.dtype());
    result(call, side(x.greater(&zero)?)?.sub(&side(x.less(&zero)?)?)?)
}

fn binary(call: &Call<'_>, op: Binary) -> Result<Results> {
    let (a, b) = pair(call, call.out(0)?.dtype())?;
    result(call, op(&a, &b)?)
}

/// Whether an element is the infinity on one side of zero.
fn infinite(call: &Call<'_>, is_beyond: Binary) -> Result<Results> {
    let x = call.tensor(0)?;
    let ty = call.out(0)?;
    if !x.dtype().is_float() {
        return result(call, call.stream.zeros(ty.dtype(), ty.sizes())?);
    }
    let zero = number(call, 0.0, &x)?;
    let is_infinite = x.abs()?.equal(&number(call, f64::INFINITY, &x)?)?;
    result(call, is_infinite.and(&is_beyond(&x, &zero)?)?)
}

fn logical(call: &Call<'_>, op: Binary) -> Result<Results> {
    let (a, b) = (cast(&call.tensor(0)?, DType::Bool)?, cast(&call.tensor(1)?, DType::Bool)?);
    let dims = call.out(0)?.sizes();
    result(call, op(&stretched(&a, dims)?, &stretched(&b, dims)?)?)
}

fn compare(call: &Call<'_>, op: Binary) -> Result<Results> {
    let (a, b) = pair(call, compared_in(call))?;
    result(call, op(&a, &b)?)
}

/// `a + alpha * b`, or another op, with the arguments in this order.
fn scaled(call: &Call<'_>, a: usize, b: usize, op: Binary) -> Result<Results> {
    let ty = call.out(0)?;
    let x = stretched(&as_type(call, a, ty.dtype())?, ty.sizes())?;
    let mut y = stretched(&as_type(call, b, ty.dtype())?, ty.sizes())?;
    if !call.is_none(2) && call.float(2)? != 1.0 {
        y = y.mul(&stretched(&call.number(2, ty.dtype())?, ty.sizes())?)?;
    }
    result(call, op(&x, &y)?)
}

/// Infinite at zero, with the opposite sign of the zero.
fn digamma(x: &Tensor) -> fuseline::Result<Tensor> {
    let zero = (x * 0.0)?;
    x.equal(&zero)?.select(&(zero + -1.0)?.div(x)?, &x.digamma()?)
}

/// Rounds toward zero.
fn truncated(x: &Tensor) -> fuseline::Result<Tensor> {
    let (down, up) = (x.floor()?, x.ceil()?);
    let zero = (x * 0.0)?;
    let value = x.less(&zero)?.select(&up, &down)?;
    // XLA compares subnormal numbers as zero, but rounds them down to -1 and up to 1.
    x.abs()?.less(&(&zero + 1.0)?)?.select(&zero, &value)
}

/// The remainder with the sign of the divisor.
fn remainder(a: &Tensor, b: &Tensor) -> fuseline::Result<Tensor> {
    let rest = a.rem(b)?;
    has_other_sign(&rest, b)?.select(&rest.add(b)?, &rest)
}

/// Whether the remainder is not zero and its sign differs from the divisor's.
fn has_other_sign(rest: &Tensor, b: &Tensor) -> fuseline::Result<Tensor> {
    let zero = b.on_stream().zeros(b.dtype(), b.dims())?;
    rest.less(&zero)?.xor(&b.less(&zero)?)?.and(&rest.not_equal(&zero)?)
}

/// The remainder. Short floats are computed in `f32`, as in PyTorch.
fn rest(call: &Call<'_>, op: Binary) -> Result<Results> {
    let dtype = call.out(0)?.dtype();
    if dtype == DType::Bool || dtype.is_complex() {
        return unsupported(format!("remainders of {dtype} are not supported"));
    }
    let (a, b) = pair(call, accumulated(dtype))?;
    divides(call, &b)?;
    result(call, op(&a, &b)?)
}

/// A rounded quotient. Integers divided by -1 and by zero have the results that the op table
/// defines, on every device; see [`divides`].
fn divide(call: &Call<'_>, mode: Option<&str>) -> Result<Results> {
    let dtype = call.out(0)?.dtype();
    if dtype == DType::Bool || dtype.is_complex() || (mode.is_none() && !dtype.is_float()) {
        return unsupported(format!("rounded quotients of {dtype} are not supported"));
    }
    let (a, b) = pair(call, accumulated(dtype))?;
    divides(call, &b)?;
    let quotient = match mode {
        None => a.div(&b)?,
        Some("trunc") if dtype.is_float() => truncated(&a.div(&b)?)?,
        Some("trunc") => a.div(&b)?,
        Some("floor") if dtype.is_float() => floor_of_quotient(&a, &b)?,
        Some("floor") => {
            let is_above = has_other_sign(&a.rem(&b)?, &b)?.and(&b.not_equal(&number(call, 0.0, &b)?)?)?;
            a.div(&b)?.sub(&cast(&is_above, dtype)?)?
        }
        Some(other) => return unsupported(format!("the rounding mode {other} is not supported")),
    };
    result(call, quotient)
}

/// Floor division of floats as in Python and PyTorch. The remainder decides, so a quotient that was
/// rounded up to a whole number is not mistaken for one. For an infinite divisor of the other sign
/// the result is -1. A zero has the sign of the quotient.
fn floor_of_quotient(a: &Tensor, b: &Tensor) -> fuseline::Result<Tensor> {
    let stream = a.on_stream();
    let number = |value: f64| stream.scalar(value).convert(a.dtype())?.broadcast_to(a.dims());
    let (plain, rest) = (a.div(b)?, a.rem(b)?);
    let whole = a.sub(&rest)?.div(b)?;
    let below = whole.sub(&number(1.0)?)?;
    let whole = has_other_sign(&rest, b)?.select(&below, &whole)?;
    let floor = whole.floor()?;
    let is_short = whole.sub(&floor)?.greater(&number(0.5)?)?;
    let floor = is_short.select(&floor.add(&number(1.0)?)?, &floor)?;
    let zero = number(0.0)?;
    let floor = whole.equal(&zero)?.select(&plain.mul(&zero)?, &floor)?;
    b.equal(&zero)?.select(&plain, &floor)
}

/// PyTorch's error for integers divided by zero.
const BY_ZERO: &str = "ZeroDivisionError: integer division by zero";

/// Integers divided by zero are an error in PyTorch. For a number the call raises it, and in debug
/// mode for data too. In the other modes `check_indices` reports it at the next read. Otherwise the
/// quotient has all bits set and the remainder is the dividend, as the op table says.
fn divides(call: &Call<'_>, b: &Tensor) -> Result<()> {
    if !b.dtype().is_int() {
        return Ok(());
    }
    let is_zero = match call.arg(1) {
        Arg::Tensor(_) if graph::recording().is_some() => false,
        Arg::Tensor(_) if call.stream.mode() == Mode::Debug => {
            let axes: Vec<i64> = (0..b.rank() as i64).collect();
            b.equal(&b.on_stream().zeros(b.dtype(), b.dims())?)?.any(&axes)?.item::<bool>()?
        }
        Arg::Tensor(_) => {
            if call.stream.checks_indices() {
                let zeros = b.on_stream().zeros(b.dtype(), b.dims())?;
                b.not_equal(&zeros)?.check_all("divide", BY_ZERO)?;
            }
            false
        }
        // PyTorch converts the divisor to the element type first: 256 is 0 in uint8.
        _ => (call.int(1)? as u64) << (64 - b.dtype().bits().min(64)) == 0,
    };
    if is_zero { wrong(BY_ZERO) } else { Ok(()) }
}

/// Powers of two tensors. A negative integer power is the truncated fraction, as on the CPU: 0
/// except for the bases 1 and -1.
fn powers(call: &Call<'_>) -> Result<Results> {
    let dtype = call.out(0)?.dtype();
    if dtype == DType::Bool || dtype.is_complex() {
        return unsupported(format!("powers of {dtype} are not supported"));
    }
    binary(call, Tensor::pow)
}

/// Powers with a small integer exponent are products, as in PyTorch. Square roots have their own
/// op.
fn pow(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let x = as_type(call, 0, ty.dtype())?;
    let exponent = call.float(1)?;
    if ty.dtype().is_complex() || ty.dtype() == DType::Bool {
        return unsupported(format!("powers of {} are not supported", ty.dtype()));
    }
    if !ty.dtype().is_float() && exponent < 0.0 {
        return wrong("Integers to negative integer powers are not allowed.");
    }
    let value = match exponent {
        0.5 => x.sqrt()?,
        whole if whole.fract() == 0.0 && (1.0..=4.0).contains(&whole) => x.powi(whole as i32)?,
        _ => x.pow(&stretched(&call.number(1, ty.dtype())?, ty.sizes())?)?,
    };
    result(call, value)
}

fn select(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, ty.dtype())?, ty.sizes()) };
    let condition = stretched(&cast(&call.tensor(0)?, DType::Bool)?, ty.sizes())?;
    result(call, condition.select(&part(1)?, &part(2)?)?)
}

fn masked_fill(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, ty.dtype())?, ty.sizes()) };
    let mask = stretched(&call.tensor(1)?, ty.sizes())?;
    result(call, mask.select(&part(2)?, &part(0)?)?)
}

/// NaN stays NaN, as in PyTorch.
fn clamp(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, ty.dtype())?, ty.sizes()) };
    let mut x = part(0)?;
    if !call.is_none(1) {
        x = x.maximum(&part(1)?)?;
    }
    if !call.is_none(2) {
        x = x.minimum(&part(2)?)?;
    }
    result(call, x)
}

/// `x + value * op(a, b)`.
fn combined(call: &Call<'_>, op: Binary) -> Result<Results> {
    let ty = call.out(0)?;
    let wide = accumulated(ty.dtype());
    let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, wide)?, ty.sizes()) };
    let mut product = op(&part(1)?, &part(2)?)?;
    if !call.is_none(3) && call.float(3)? != 1.0 {
        product = product.mul(&part(3)?)?;
    }
    result(call, part(0)?.add(&product)?)
}

/// Computed from the nearer end, as in PyTorch.
fn lerp(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let wide = accumulated(ty.dtype());
    let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, wide)?, ty.sizes()) };
    let (start, end, weight) = (part(0)?, part(1)?, call.float(2)?);
    let way = end.sub(&start)?;
    let value = if weight.abs() < 0.5 {
        start.add(&way.mul(&part(2)?)?)?
    } else {
        end.sub(&way.mul(&number(call, 1.0 - weight, &way)?)?)?
    };
    result(call, value)
}

fn fill(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    result(call, stretched(&call.number(1, ty.dtype())?, ty.sizes())?)
}

/// Computed in the widest type of its kind, so that errors do not accumulate over many steps.
fn arange(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let wide = if ty.dtype().is_float() { DType::F64 } else { DType::I64 };
    let part = |at: usize, otherwise: f64| -> Result<Tensor> {
        let number = if call.is_none(at) { call.constant(otherwise, wide)? } else { call.number(at, wide)? };
        stretched(&number, ty.sizes())
    };
    let places = call.stream.iota(wide, ty.sizes(), 0)?;
    result(call, part(0, 0.0)?.add(&places.mul(&part(2, 1.0)?)?)?)
}

/// The axes that an argument names; all of them if it is missing or empty.
pub(super) fn reduced(call: &Call<'_>, at: usize) -> Result<Vec<i64>> {
    let rank = call.tensor(0)?.rank();
    let named = call.ints(at)?;
    if named.is_empty() {
        return Ok((0..rank as i64).collect());
    }
    let mut axes: Vec<i64> = named.iter().map(|&at| axis(at, rank) as i64).collect();
    if rank == 0 {
        axes.clear();
    }
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// The type that short floats are summed in.
pub(super) fn accumulated(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

fn mean(call: &Call<'_>) -> Result<Results> {
    let dtype = accumulated(call.out(0)?.dtype());
    let x = cast(&call.tensor(0)?, dtype)?;
    let axes = reduced(call, 1)?;
    let count: usize = axes.iter().map(|&axis| x.dims()[axis as usize]).product();
    let sum = x.sum(&axes)?;
    result(call, sum.div(&number(call, count as f64, &sum)?)?)
}

fn cumsum(call: &Call<'_>) -> Result<Results> {
    let dtype = call.out(0)?.dtype();
    let x = cast(&call.tensor(0)?, accumulated(dtype))?;
    if x.rank() == 0 {
        return result(call, x);
    }
    result(call, x.cumsum(axis(call.int(1)?, x.rank()) as i64)?)
}

/// Tensors with a single dimension of size 0 are skipped, as PyTorch does for old programs.
fn cat(call: &Call<'_>) -> Result<Results> {
    let ty = call.out(0)?;
    let tensors = call.tensors(0)?;
    let is_counted = |tensor: &&Tensor| tensor.dims() != [0] || ty.rank() == 1;
    let tensors: Vec<Tensor> =
        tensors.iter().filter(is_counted).map(|tensor| cast(tensor, ty.dtype())).collect::<Result<_>>()?;
    if tensors.is_empty() {
        return result(call, call.stream.zeros(ty.dtype(), ty.sizes())?);
    }
    let all: Vec<&Tensor> = tensors.iter().collect();
    result(call, Tensor::concatenate(&all, axis(call.int_or(1, 0)?, ty.rank()) as i64)?)
}

/// `beta * x + alpha * product(a, b)`.
fn added(call: &Call<'_>, product: Binary) -> Result<Results> {
    let ty = call.out(0)?;
    let part = |at| -> Result<Tensor> { stretched(&as_type(call, at, ty.dtype())?, ty.sizes()) };
    // A factor of 0 ignores the operand, NaN included.
    let product = match if call.is_none(4) { 1.0 } else { call.float(4)? } {
        0.0 => call.stream.zeros(ty.dtype(), ty.sizes())?,
        1.0 => product(&call.tensor(1)?, &call.tensor(2)?)?,
        _ => product(&call.tensor(1)?, &call.tensor(2)?)?.mul(&part(4)?)?,
    };
    let beta = if call.is_none(3) { 1.0 } else { call.float(3)? };
    if beta == 0.0 {
        return result(call, product);
    }
    let x = if beta == 1.0 { part(0)? } else { part(0)?.mul(&part(3)?)? };
    result(call, x.add(&product)?)
}

fn triangle(call: &Call<'_>, is_lower: bool) -> Result<Results> {
    let x = call.tensor(0)?;
    let rank = x.rank() as i64;
    let rows = call.stream.iota(DType::I64, x.dims(), rank - 2)?;
    let columns = call.stream.iota(DType::I64, x.dims(), rank - 1)?;
    let shift = stretched(&call.constant(call.int_or(1, 0)? as f64, DType::I64)?, x.dims())?;
    let border = rows.add(&shift)?;
    let stays = if is_lower { columns.less_equal(&border)? } else { columns.greater_equal(&border)? };
    result(call, stays.select(&x, &call.stream.zeros(x.dtype(), x.dims())?)?)
}
