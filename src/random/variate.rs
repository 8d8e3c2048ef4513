//! Converts random bits to numbers of a distribution, in integer arithmetic.
//!
//! Input: an element of uniformly distributed bits, `u32` or `u64`. Output: a variate, `f32` or
//! `f64`, as one op whose body is the computation. A compiler's logarithm or error function has
//! different bits in another fusion, on another processor and in the interpreter. Here everything
//! that rounds is integer arithmetic, which is equal everywhere. The only float ops are
//! conversions, products with powers of two, and single divisions and square roots, which IEEE 754
//! rounds correctly. None of them is part of a product and a sum that a compiler could contract.
//!
//! Fractions are *fixed-point numbers*: `Q30` is an integer that counts units of 2^-30. A
//! polynomial is evaluated by Horner's rule in `i32` at a point between -1/2 and 1/2, a `Q32`, so
//! that each step is the upper half of a product and a sum. The coefficients interpolate the
//! functions at Chebyshev nodes (computed with 120 bits). The errors of the functions are below
//! 2^-26.
//!
//! Variates from 64 bits have 32 more bits than the accuracy of the function. These are the lowest
//! bits of the input, which have no other effect: they spread the numbers evenly between two
//! neighbours.

use std::cell::RefCell;
use std::sync::Arc;

use fuseline_fusion::op::{Comparison, attrs};
use fuseline_fusion::{
    Attrs, Body, CustomOp, DType, Graph, OpCode, OpError, RealElement, Ref, Scalar, Shape, TensorType,
};
use rustc_hash::FxHashMap;

type Result<T> = std::result::Result<T, OpError>;

/// log2(3/2 + x), `Q30`.
const LOG2: [i32; 11] = [
    628098703, 1032721359, -344240459, 152993974, -76496785, 40838260, -22690190, 12600605, -7339952,
    5809635, -3502467,
];
/// `z / (1 - 2p)`, `Q27`, by `w / 8 - 1/2`, where `w = -log2(4p (1 - p))` is below 8.
const NEAR: [i32; 11] = [
    297684158, 256927277, -29799779, -33004993, 37327561, -9750554, -13815639, 14456108, -1110103, -6585372,
    3464438,
];
/// The same by `(sqrt(w) - 3.75) / 2`, up to 4.75.
const FAR: [i32; 11] = [
    560969894, 317220864, 3733658, -4683956, 5589619, -6183626, 5146906, -2139089, -1224657, 2401938,
    -1116228,
];
/// The same by `(sqrt(w) - 6.75) / 4`, up to 8.75.
const FARTHEST: [i32; 11] =
    [1039401814, 638400903, -845867, -594858, 808127, -676064, 483220, -283911, 158311, -215801, 193270];
/// `2 v cot(pi v)`, `Q31`, by `4 v^2 - 1/2`.
const COTANGENT: [i32; 9] =
    [752482049, -1348321150, -270339960, -73718681, -20874728, -5948506, -1698862, -508702, -145340];
/// 2^(1/2 + x), `Q29`.
const EXP2: [i32; 8] = [759250125, 526272084, 182392010, 42141502, 7302487, 1012345, 117454, 11620];

/// Number of fractional bits of the logarithms that variates are made from.
const LOG_BITS: i32 = 25;

/// A kind of variate. All but [`Variate::Exp`] are made from uniform bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Variate {
    /// The quantile of the normal distribution at a probability: the bits as a fraction of 1.
    Normal,
    /// `-log(u)`, above 0.
    Exponential,
    /// `-log(-log(u))`.
    Gumbel,
    /// `tan(pi (u - 1/2))`.
    Cauchy,
    /// e to the power of a number, an `f64`.
    Exp,
}

thread_local! {
    /// The ops that this thread has made, by kind and operand type. They are few, because programs
    /// draw numbers of few shapes.
    static OPS: RefCell<FxHashMap<(Variate, TensorType), Arc<CustomOp>>> = RefCell::new(FxHashMap::default());
}

/// Number of ops that are kept.
const KEPT: usize = 256;

impl Variate {
    /// The op that makes variates from elements of a type.
    ///
    /// # Errors
    /// When the shape does not fit the limits.
    pub(super) fn op(self, ty: &TensorType) -> Result<Arc<CustomOp>> {
        let key = (self, ty.clone());
        if let Some(op) = OPS.with_borrow(|ops| ops.get(&key).cloned()) {
            return Ok(op);
        }
        let name = match self {
            Variate::Normal => "fuseline.normal",
            Variate::Exponential => "fuseline.exponential",
            Variate::Gumbel => "fuseline.gumbel",
            Variate::Cauchy => "fuseline.cauchy",
            Variate::Exp => "fuseline.exp",
        };
        let op = Arc::new(CustomOp::new(name, Arc::new(self.body(ty)?))?);
        OPS.with_borrow_mut(|ops| {
            if ops.len() >= KEPT {
                ops.clear();
            }
            ops.insert(key, op.clone());
        });
        Ok(op)
    }

    fn body(self, ty: &TensorType) -> Result<Body> {
        let mut graph = Graph::new();
        let bits = graph.param(ty.clone());
        let is_wide = ty.dtype().bits() == 64;
        let mut words = RandomWords { graph, shape: ty.shape().clone(), is_wide };
        let result = match self {
            Variate::Normal => words.normal(bits),
            Variate::Exponential => words.exponential(bits),
            Variate::Gumbel => words.gumbel(bits),
            Variate::Cauchy => words.cauchy(bits),
            Variate::Exp => words.exp(bits),
        }?;
        Ok(Body::new(words.graph, &[result]).expect("bug: a variate uses a value that was not created"))
    }
}

/// A number between 0 and 1: `top 2^-(32 + zeros)`, where the first bit of `top`, a `u32`, is set.
/// With 64 bits, `low` holds the following 32 bits, as a `u64`.
struct Unit {
    zeros: Ref,
    top: Ref,
    low: Option<Ref>,
}

/// A body under construction.
struct RandomWords {
    graph: Graph,
    shape: Shape,
    is_wide: bool,
}

impl RandomWords {
    fn op(&mut self, op: OpCode, operands: &[Ref]) -> Result<Ref> {
        self.with(op, Attrs::none(), operands)
    }

    fn with(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Result<Ref> {
        Ok(self.graph.push(op, attrs, &[], operands)?[0])
    }

    /// A number, broadcast to all elements.
    fn number<T: RealElement>(&mut self, value: T) -> Result<Ref> {
        let value = attrs::constant(Arc::new(Scalar::new(value).to_literal()));
        let value = self.with(OpCode::Constant, value, &[])?;
        self.with(OpCode::BroadcastInDim, attrs::broadcast_in_dim(self.shape.clone(), &[]), &[value])
    }

    /// An op on a value and a number.
    fn by<T: RealElement>(&mut self, op: OpCode, value: Ref, number: T) -> Result<Ref> {
        let number = self.number(number)?;
        self.op(op, &[value, number])
    }

    fn convert(&mut self, value: Ref, dtype: DType) -> Result<Ref> {
        self.with(OpCode::Convert, attrs::convert(dtype), &[value])
    }

    /// The same bits as another type.
    fn cast(&mut self, value: Ref, dtype: DType) -> Result<Ref> {
        self.with(OpCode::BitcastConvert, attrs::convert(dtype), &[value])
    }

    fn less<T: RealElement>(&mut self, value: Ref, number: T) -> Result<Ref> {
        let number = self.number(number)?;
        self.with(OpCode::Compare, attrs::compare_for(Comparison::Lt, T::DTYPE), &[value, number])
    }

    /// A polynomial at a point, a `Q32`.
    fn polynomial(&mut self, coefficients: &[Ref], place: Ref) -> Result<Ref> {
        let (&last, others) = coefficients.split_last().expect("bug: a polynomial without coefficients");
        others.iter().rev().try_fold(last, |sum, &coefficient| {
            let product = self.op(OpCode::Mulhi, &[sum, place])?;
            self.op(OpCode::Add, &[product, coefficient])
        })
    }

    fn constant_polynomial(&mut self, coefficients: &[i32], place: Ref) -> Result<Ref> {
        let coefficients: Vec<Ref> =
            coefficients.iter().map(|&coefficient| self.number(coefficient)).collect::<Result<_>>()?;
        self.polynomial(&coefficients, place)
    }

    /// `-1/2 + n 2^-32`, a `Q32`, of a `u32`.
    fn place(&mut self, number: Ref) -> Result<Ref> {
        let place = self.by(OpCode::Xor, number, 1u32 << 31)?;
        self.cast(place, DType::I32)
    }

    /// A `u32` or, with 64 bits, a `u64` below 2^63, not zero, as a fraction of 2^32 or 2^63.
    fn unit(&mut self, number: Ref) -> Result<Unit> {
        let zeros = self.op(OpCode::CountLeadingZeros, &[number])?;
        let moved = self.op(OpCode::ShiftLeft, &[number, zeros])?;
        let zeros = self.convert(zeros, DType::I32)?;
        if !self.is_wide {
            return Ok(Unit { zeros, top: moved, low: None });
        }
        let top = self.by(OpCode::ShiftRightLogical, moved, 32u64)?;
        Ok(Unit {
            zeros: self.by(OpCode::Subtract, zeros, 1i32)?,
            top: self.convert(top, DType::U32)?,
            low: Some(self.by(OpCode::And, moved, u64::from(u32::MAX))?),
        })
    }

    /// The bits without the first one, which callers use for other things, as an odd number: of 32
    /// bits for a `u32`, of 63 for a `u64`.
    fn odd(&mut self, bits: Ref) -> Result<Ref> {
        if self.is_wide {
            let bits = self.by(OpCode::And, bits, u64::MAX >> 1)?;
            return self.by(OpCode::Or, bits, 1u64);
        }
        let bits = self.by(OpCode::ShiftLeft, bits, 1u32)?;
        self.by(OpCode::Or, bits, 1u32)
    }

    /// log2 of a `u32` whose first bit is set, read as a number from 1 to below 2, with
    /// [`LOG_BITS`].
    fn log2(&mut self, top: Ref) -> Result<Ref> {
        let fraction = self.by(OpCode::ShiftLeft, top, 1u32)?;
        let place = self.place(fraction)?;
        let log = self.constant_polynomial(&LOG2, place)?;
        self.by(OpCode::ShiftRightArithmetic, log, 30 - LOG_BITS)
    }

    /// `whole - log2(top)`, of which `whole` is an `i32`.
    fn minus_log2(&mut self, whole: Ref, top: Ref) -> Result<Ref> {
        let whole = self.by(OpCode::ShiftLeft, whole, LOG_BITS)?;
        let log = self.log2(top)?;
        self.op(OpCode::Subtract, &[whole, log])
    }

    /// A fixed-point number with `bits` fractional bits as a float, extended by the bits of `low`.
    fn float(&mut self, value: Ref, bits: i32, low: Option<Ref>) -> Result<Ref> {
        let Some(low) = low else {
            let value = self.convert(value, DType::F32)?;
            return self.by(OpCode::Multiply, value, 2f32.powi(-bits));
        };
        let value = self.spread(value, low)?;
        let value = self.convert(value, DType::F64)?;
        self.by(OpCode::Multiply, value, 2f64.powi(-bits - 32))
    }

    /// An `i32` and the following 32 bits, as an `i64`.
    fn spread(&mut self, value: Ref, low: Ref) -> Result<Ref> {
        let value = self.convert(value, DType::I64)?;
        let value = self.by(OpCode::ShiftLeft, value, 32i64)?;
        let low = self.cast(low, DType::I64)?;
        self.op(OpCode::Or, &[value, low])
    }

    /// `-log2(u)` as an odd integer, which is never zero, and its number of fractional bits.
    fn exponent(&mut self, bits: Ref) -> Result<(Ref, i32)> {
        let number = match self.is_wide {
            true => self.odd(bits)?,
            false => self.by(OpCode::Or, bits, 1u32)?,
        };
        let unit = self.unit(number)?;
        let whole = self.by(OpCode::Add, unit.zeros, 1i32)?;
        let log = self.minus_log2(whole, unit.top)?;
        // Near 1 the error of the logarithm may be more than the logarithm.
        let log = self.by(OpCode::Maximum, log, 0i32)?;
        if let Some(low) = unit.low {
            let log = self.spread(log, low)?;
            return Ok((self.by(OpCode::Or, log, 1i64)?, LOG_BITS + 32));
        }
        let log = self.cast(log, DType::U32)?;
        let log = self.by(OpCode::ShiftLeft, log, 1u32)?;
        Ok((self.by(OpCode::Or, log, 1u32)?, LOG_BITS + 1))
    }

    fn exponential(&mut self, bits: Ref) -> Result<Ref> {
        let (log, point) = self.exponent(bits)?;
        // A single product without a sum, which cannot be contracted.
        let log = self.convert(log, DType::F64)?;
        let value = self.by(OpCode::Multiply, log, std::f64::consts::LN_2 * 2f64.powi(-point))?;
        self.narrowed(value)
    }

    /// An `f64` in the type of the variates.
    fn narrowed(&mut self, value: Ref) -> Result<Ref> {
        if self.is_wide { Ok(value) } else { self.convert(value, DType::F32) }
    }

    /// The logarithm of an exponential variate is the logarithm of the integer plus that of its
    /// unit.
    fn gumbel(&mut self, bits: Ref) -> Result<Ref> {
        let (log, point) = self.exponent(bits)?;
        let word = if self.is_wide { self.cast(log, DType::U64)? } else { log };
        let unit = self.unit(word)?;
        // The integer is `top 2^(length - 32 - zeros)`, and `top` is 2^31 times the argument of the
        // logarithm.
        let length = if self.is_wide { 63 } else { 32 };
        let whole = self.by(OpCode::Add, unit.zeros, point + 1 - length)?;
        let log = self.minus_log2(whole, unit.top)?;
        let of_unit = (-std::f64::consts::LN_2.log2() * 2f64.powi(LOG_BITS)).round() as i32;
        let log = self.by(OpCode::Add, log, of_unit)?;
        let (log, point) = match unit.low {
            Some(low) => (self.spread(log, low)?, LOG_BITS + 32),
            None => (log, LOG_BITS),
        };
        let log = self.convert(log, DType::F64)?;
        let value = self.by(OpCode::Multiply, log, std::f64::consts::LN_2 * 2f64.powi(-point))?;
        self.narrowed(value)
    }

    /// From `p`, the tail probability on the same side, as in Giles ("Approximating the erfinv
    /// function", 2010): the number is `1 - 2p` times a function of `4p (1 - p)` that is smooth in
    /// its logarithm.
    fn normal(&mut self, bits: Ref) -> Result<Ref> {
        let signed = if self.is_wide { DType::I64 } else { DType::I32 };
        let given = self.cast(bits, signed)?;
        let is_negative = if self.is_wide { self.less(given, 0i64)? } else { self.less(given, 0i32)? };
        // A fraction above 1/2 has its first bit set and gives a number above zero. The other side
        // is its mirror image.
        let turned = self.op(OpCode::Not, &[bits])?;
        let tail = self.op(OpCode::Select, &[is_negative, turned, bits])?;
        let number = self.odd(tail)?;
        let Unit { zeros, top, low } = self.unit(number)?;
        let shift = self.cast(zeros, DType::U32)?;
        let p = self.op(OpCode::ShiftRightLogical, &[top, shift])?;
        let none = self.number(0u32)?;
        let inner = self.op(OpCode::Subtract, &[none, p])?;
        let w = self.folded_log(zeros, top, p)?;
        let size = self.of_log(w)?;
        let size = self.cast(size, DType::U32)?;
        let size = self.op(OpCode::Mulhi, &[inner, size])?;
        let size = self.cast(size, DType::I32)?;
        let value = self.float(size, 27, low)?;
        let negative = self.op(OpCode::Negate, &[value])?;
        self.op(OpCode::Select, &[is_negative, value, negative])
    }

    /// `-log2(4p (1 - p))`, with [`LOG_BITS`], where `2p` is `top 2^-(32 + zeros)` and, to 32 bits,
    /// `p`.
    fn folded_log(&mut self, zeros: Ref, top: Ref, p: Ref) -> Result<Ref> {
        let half = self.by(OpCode::ShiftRightLogical, p, 1u32)?;
        let half = self.convert(half, DType::U64)?;
        let one = self.number(1u64 << 32)?;
        let rest = self.op(OpCode::Subtract, &[one, half])?;
        let top = self.convert(top, DType::U64)?;
        // Of 63 or 64 bits.
        let product = self.op(OpCode::Multiply, &[top, rest])?;
        let more = self.op(OpCode::CountLeadingZeros, &[product])?;
        let product = self.op(OpCode::ShiftLeft, &[product, more])?;
        let product = self.by(OpCode::ShiftRightLogical, product, 32u64)?;
        let product = self.convert(product, DType::U32)?;
        let more = self.convert(more, DType::I32)?;
        let whole = self.op(OpCode::Add, &[zeros, more])?;
        let log = self.minus_log2(whole, product)?;
        self.by(OpCode::Maximum, log, 0i32)
    }

    /// `z / (1 - 2p)`, a `Q27`, by the logarithm.
    fn of_log(&mut self, w: Ref) -> Result<Ref> {
        let unit = 1i32 << LOG_BITS;
        let is_near = self.less(w, 8 * unit)?;
        // (4.75)^2
        let is_far = self.less(w, (22.5625 * f64::from(unit)) as i32)?;
        let near = self.cast(w, DType::U32)?;
        let near = self.by(OpCode::ShiftLeft, near, 29 - LOG_BITS as u32)?;
        let near = self.place(near)?;
        let beyond = self.by(OpCode::Maximum, w, 8 * unit)?;
        let beyond = self.convert(beyond, DType::F64)?;
        let beyond = self.by(OpCode::Multiply, beyond, 2f64.powi(-LOG_BITS))?;
        let root = self.op(OpCode::Sqrt, &[beyond])?;
        let far = self.by(OpCode::Subtract, root, 3.75f64)?;
        let far = self.by(OpCode::Multiply, far, 2f64.powi(31))?;
        let farthest = self.by(OpCode::Subtract, root, 6.75f64)?;
        let farthest = self.by(OpCode::Multiply, farthest, 2f64.powi(30))?;
        let beyond = self.op(OpCode::Select, &[is_far, far, farthest])?;
        let beyond = self.convert(beyond, DType::I32)?;
        let place = self.op(OpCode::Select, &[is_near, near, beyond])?;
        let mut coefficients = Vec::with_capacity(NEAR.len());
        for ((near, far), farthest) in NEAR.into_iter().zip(FAR).zip(FARTHEST) {
            let [near, far, farthest] = [self.number(near)?, self.number(far)?, self.number(farthest)?];
            let beyond = self.op(OpCode::Select, &[is_far, far, farthest])?;
            coefficients.push(self.op(OpCode::Select, &[is_near, near, beyond])?);
        }
        self.polynomial(&coefficients, place)
    }

    /// `cot(pi v)` is a smooth function divided by `v`.
    fn cauchy(&mut self, bits: Ref) -> Result<Ref> {
        let signed = if self.is_wide { DType::I64 } else { DType::I32 };
        let given = self.cast(bits, signed)?;
        let is_negative = if self.is_wide { self.less(given, 0i64)? } else { self.less(given, 0i32)? };
        let number = self.odd(bits)?;
        let top = match self.is_wide {
            true => {
                let top = self.by(OpCode::ShiftRightLogical, number, 31u64)?;
                self.convert(top, DType::U32)?
            }
            false => number,
        };
        let square = self.op(OpCode::Mulhi, &[top, top])?;
        let place = self.place(square)?;
        let above = self.constant_polynomial(&COTANGENT, place)?;
        let above = self.by(OpCode::Maximum, above, 0i32)?;
        // Both then have the same unit up to a power of two.
        let above = self.convert(above, DType::F64)?;
        let above = self.by(OpCode::Multiply, above, if self.is_wide { 2f64.powi(32) } else { 2.0 })?;
        let below = self.convert(number, DType::F64)?;
        let value = self.op(OpCode::Divide, &[above, below])?;
        let negative = self.op(OpCode::Negate, &[value])?;
        let value = self.op(OpCode::Select, &[is_negative, negative, value])?;
        self.narrowed(value)
    }

    /// 2 to an integer power is a float exponent, and 2 to a fraction is a polynomial. The bits of
    /// the fraction beyond 32 are so small that the power is linear in them.
    fn exp(&mut self, number: Ref) -> Result<Ref> {
        let bits = 44;
        let exponent = self.by(OpCode::Multiply, number, std::f64::consts::LOG2_E)?;
        let low = self.number(-1022f64)?;
        let high = self.number(1024f64)?;
        let exponent = self.op(OpCode::Clamp, &[low, exponent, high])?;
        let exponent = self.by(OpCode::Multiply, exponent, 2f64.powi(bits))?;
        let exponent = self.convert(exponent, DType::I64)?;
        let whole = self.by(OpCode::ShiftRightArithmetic, exponent, i64::from(bits))?;
        let fraction = self.by(OpCode::And, exponent, (1i64 << bits) - 1)?;
        let top = self.by(OpCode::ShiftRightLogical, fraction, i64::from(bits - 32))?;
        let top = self.convert(top, DType::U32)?;
        let place = self.place(top)?;
        let power = self.constant_polynomial(&EXP2, place)?;
        let power = self.convert(power, DType::F64)?;
        // 2^r is 1 + r log(2) for the rest r.
        let rest = self.by(OpCode::And, fraction, (1i64 << (bits - 32)) - 1)?;
        let rest = self.by(OpCode::Multiply, rest, (std::f64::consts::LN_2 * 2f64.powi(8)) as i64)?;
        let rest = self.by(OpCode::Add, rest, 1i64 << (bits + 8))?;
        let rest = self.convert(rest, DType::F64)?;
        let power = self.op(OpCode::Multiply, &[power, rest])?;
        // The factors are 2^29 and 2^(bits + 8) too large. A power of two is an exponent; the last
        // but one is infinity.
        let power = self.by(OpCode::Multiply, power, 2f64.powi(-29 - bits - 8))?;
        let whole = self.by(OpCode::Add, whole, 1023i64)?;
        let whole = self.by(OpCode::ShiftLeft, whole, 52i64)?;
        let whole = self.cast(whole, DType::F64)?;
        let value = self.op(OpCode::Multiply, &[power, whole])?;
        let is_nan = attrs::compare_for(Comparison::Ne, DType::F64);
        let is_nan = self.with(OpCode::Compare, is_nan, &[number, number])?;
        self.op(OpCode::Select, &[is_nan, number, value])
    }
}
