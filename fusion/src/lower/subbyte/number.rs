//! Arithmetic on carried numbers: bringing results back into the range of the narrow type, and
//! conversion from and to its bits.

use std::sync::Arc;

use super::Carrying;
use crate::attr::Attrs;
use crate::dtype::{DType, DTypeClass};
use crate::error::OpError;
use crate::ir::{OpCode, Ref};
use crate::literal::Literal;
use crate::op::{Comparison, attrs};

/// Bits of a byte.
const BYTE: u32 = 8;

impl Carrying {
    fn plain(&mut self, op: OpCode, operands: &[Ref]) -> Result<Ref, OpError> {
        self.op(op, Attrs::none(), operands)
    }

    fn compare(&mut self, direction: Comparison, lhs: Ref, rhs: Ref) -> Result<Ref, OpError> {
        let compare = attrs::compare_for(direction, self.dtype(lhs));
        self.op(OpCode::Compare, compare, &[lhs, rhs])
    }

    fn scalar(&mut self, value: f64, dtype: DType) -> Result<Ref, OpError> {
        self.op(OpCode::Constant, attrs::constant(Arc::new(Literal::of_f64(dtype, value))), &[])
    }

    /// A tensor of the type of `like` with a number in every element.
    pub(super) fn number(&mut self, value: f64, like: Ref) -> Result<Ref, OpError> {
        let ty = self.ty(like).clone();
        let scalar = self.scalar(value, ty.dtype())?;
        if ty.rank() == 0 {
            return Ok(scalar);
        }
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(ty.shape().clone(), &[]), &[scalar])
    }

    /// `op` with a number as its second operand.
    fn by(&mut self, op: OpCode, value: Ref, number: f64) -> Result<Ref, OpError> {
        let number = self.number(number, value)?;
        self.plain(op, &[value, number])
    }

    /// The low bits of carried integers, zero-extended.
    pub(super) fn with_zeros(&mut self, value: Ref, narrow: DType) -> Result<Ref, OpError> {
        self.by(OpCode::And, value, f64::from((1u32 << narrow.bits()) - 1))
    }

    /// The low bits of carried integers, sign-extended.
    pub(super) fn with_sign(&mut self, value: Ref, narrow: DType) -> Result<Ref, OpError> {
        let unused = f64::from(BYTE - narrow.bits());
        let high = self.by(OpCode::ShiftLeft, value, unused)?;
        self.by(OpCode::ShiftRightArithmetic, high, unused)
    }

    /// Maps a result computed in the carrier to a number of the narrow type; for `f4E2M1FN` also a
    /// result computed in `f64`.
    pub(super) fn in_range(&mut self, value: Ref, narrow: DType) -> Result<Ref, OpError> {
        match narrow.class() {
            DTypeClass::Signed => self.with_sign(value, narrow),
            DTypeClass::Float => self.rounded(value),
            _ => self.with_zeros(value, narrow),
        }
    }

    /// Clamps bytes to the range of a narrow integer.
    pub(super) fn clamped(&mut self, value: Ref, narrow: DType) -> Result<Ref, OpError> {
        let (carrier, range) = (self.dtype(value), 1i32 << narrow.bits());
        let (least, greatest) = match narrow.class() {
            DTypeClass::Signed => (-range / 2, range / 2 - 1),
            _ => (0, range - 1),
        };
        let (least, greatest) = (self.scalar(least.into(), carrier)?, self.scalar(greatest.into(), carrier)?);
        self.plain(OpCode::Clamp, &[least, value, greatest])
    }

    /// Rounds floats to numbers of `f4E2M1FN`, ties to even: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 of
    /// either sign. Larger numbers become 6, NaN becomes -0.
    ///
    /// Numbers with an odd pattern are odd multiples of the step, which is 1/2 below 2, 1 below 4
    /// and 2 above. Rounding to an even number of steps is therefore rounding to an even pattern.
    fn rounded(&mut self, value: Ref) -> Result<Ref, OpError> {
        let magnitude = self.plain(OpCode::Abs, &[value])?;
        let (two, four) = (self.number(2.0, value)?, self.number(4.0, value)?);
        let below_two = self.compare(Comparison::Lt, magnitude, two)?;
        let below_four = self.compare(Comparison::Lt, magnitude, four)?;
        let from_four = self.compare(Comparison::Ge, magnitude, four)?;
        let (half, one) = (self.number(0.5, value)?, self.number(1.0, value)?);
        let step = self.plain(OpCode::Select, &[below_four, one, two])?;
        let step = self.plain(OpCode::Select, &[below_two, half, step])?;
        let per_step = self.plain(OpCode::Select, &[below_four, one, half])?;
        let per_step = self.plain(OpCode::Select, &[below_two, two, per_step])?;
        // Scaling by powers of two is exact.
        let steps = self.plain(OpCode::Multiply, &[value, per_step])?;
        let steps = self.plain(OpCode::RoundNearestEven, &[steps])?;
        let nearest = self.plain(OpCode::Multiply, &[steps, step])?;
        let dtype = self.dtype(value);
        let (least, greatest) = (self.scalar(-6.0, dtype)?, self.scalar(6.0, dtype)?);
        let nearest = self.plain(OpCode::Clamp, &[least, nearest, greatest])?;
        // The compiler would fold a comparison of a value with itself.
        let is_number = self.plain(OpCode::Or, &[below_four, from_four])?;
        let minus_zero = self.number(-0.0, value)?;
        let result = self.plain(OpCode::Select, &[is_number, nearest, minus_zero])?;
        self.in_type(result, DType::F32)
    }

    /// The four bits of a carried `f4E2M1FN`, in `u8`.
    ///
    /// The highest nine bits of an `f32`, without its sign, are 252 for 0.5 and 254 for 1. From 1
    /// on they grow by one per number.
    pub(super) fn encoded(&mut self, value: Ref) -> Result<Ref, OpError> {
        let word = self.op(OpCode::BitcastConvert, attrs::convert(DType::U32), &[value])?;
        let sign = self.by(OpCode::ShiftRightLogical, word, 31.0)?;
        let sign = self.by(OpCode::ShiftLeft, sign, 3.0)?;
        let high = self.by(OpCode::ShiftRightLogical, word, 22.0)?;
        let high = self.by(OpCode::And, high, 511.0)?;
        let edge = self.number(252.0, high)?;
        let from_one = self.compare(Comparison::Gt, high, edge)?;
        let place = self.plain(OpCode::Subtract, &[high, edge])?;
        let below_one = self.by(OpCode::Minimum, high, 1.0)?;
        let place = self.plain(OpCode::Select, &[from_one, place, below_one])?;
        let bits = self.plain(OpCode::Or, &[sign, place])?;
        self.in_type(bits, DType::U8)
    }

    /// The carrier of the `f4E2M1FN` with the low four bits of a `u8`: the inverse of
    /// [`Carrying::encoded`].
    pub(super) fn decoded(&mut self, bits: Ref) -> Result<Ref, OpError> {
        let bits = self.in_type(bits, DType::U32)?;
        let sign = self.by(OpCode::ShiftRightLogical, bits, 3.0)?;
        let sign = self.by(OpCode::ShiftLeft, sign, 31.0)?;
        let place = self.by(OpCode::And, bits, 7.0)?;
        let one = self.number(1.0, place)?;
        let from_one = self.compare(Comparison::Gt, place, one)?;
        let high = self.by(OpCode::Add, place, 252.0)?;
        let below_one = self.by(OpCode::Multiply, place, 252.0)?;
        let high = self.plain(OpCode::Select, &[from_one, high, below_one])?;
        let magnitude = self.by(OpCode::ShiftLeft, high, 22.0)?;
        let word = self.plain(OpCode::Or, &[sign, magnitude])?;
        self.op(OpCode::BitcastConvert, attrs::convert(DType::F32), &[word])
    }
}
