//! Identity elements of ops, and the extreme values of types: initial values of reductions.

use crate::dtype::{DType, DTypeClass};
use crate::element::{Bits, Store, from_f64, from_int, joined, mask};
use crate::ir::OpCode;
use crate::literal::Literal;
use crate::shape::TensorType;

pub(in crate::op) fn scalar(dtype: DType, bits: Bits) -> Literal {
    Store::filled(TensorType::scalar(dtype), bits & mask(dtype)).finish()
}

/// The bits of the least or greatest value of a type, which is infinite if the type has infinities.
fn extreme_bits(dtype: DType, greatest: bool) -> Bits {
    let ones = mask(dtype);
    match dtype.class() {
        DTypeClass::Float => {
            let largest =
                dtype.float_format().map_or(0, |format| format.infinity().unwrap_or(format.greatest()));
            match greatest {
                true => largest.into(),
                false => dtype
                    .float_format()
                    .map_or(0, |format| if format.sign() == 0 { 0 } else { format.sign() | largest })
                    .into(),
            }
        }
        DTypeClass::Complex => {
            let part = extreme_bits(dtype.part(), greatest);
            joined(dtype, part, part)
        }
        DTypeClass::Signed if greatest => ones >> 1,
        DTypeClass::Signed => ones ^ ones >> 1,
        _ if greatest => ones,
        _ => 0,
    }
}

/// The least or greatest value of a type, rank 0, which is infinite if the type has infinities. For
/// a complex type both parts are.
#[must_use]
pub fn extreme(dtype: DType, greatest: bool) -> Literal {
    scalar(dtype, extreme_bits(dtype, greatest))
}

/// The identity element of `op`, rank 0: combining it with any value returns that value. 0 for ops
/// that have none.
#[must_use]
pub fn neutral(op: OpCode, dtype: DType) -> Literal {
    match op {
        // The real part; the imaginary part is zero.
        OpCode::Multiply if dtype.part().is_float() => scalar(dtype, from_f64(dtype.part(), 1.0)),
        OpCode::Multiply => scalar(dtype, 1),
        OpCode::And => scalar(dtype, from_int(dtype, -1)),
        OpCode::Maximum => extreme(dtype, false),
        OpCode::Minimum => extreme(dtype, true),
        _ => scalar(dtype, 0),
    }
}
