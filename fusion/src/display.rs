//! `Display` of literals.

use std::fmt;

use crate::dtype::{DType, DTypeClass};
use crate::element::{self, Bits, Elements};
use crate::literal::Literal;

/// Literals with more elements than this are abbreviated.
const MOST: usize = 1_000;

/// How many elements an abbreviated literal shows at each end of a dimension.
const EDGE: u64 = 3;

/// Writes the type and the elements, with a bracket per dimension. A literal of more than 1,000
/// elements shows the first and last three along each dimension. A float has as many digits as
/// distinguish it from its neighbours.
///
/// ```
/// use fuseline_fusion::Literal;
///
/// let literal = Literal::from_slice(&[2, 2], &[0.5f32, 1.0, f32::NAN, -0.0])?;
/// assert_eq!(literal.to_string(), "f32[2, 2] [[0.5, 1], [NaN, -0]]");
/// # Ok::<(), fuseline_fusion::LiteralError>(())
/// ```
impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = Elements::of(self);
        write!(f, "{} ", self.ty())?;
        dimension(self, &elements, self.dims(), 0, f)
    }
}

/// Writes the elements of these dimensions, from an index on.
fn dimension(
    literal: &Literal,
    elements: &Elements<'_>,
    dims: &[u64],
    from: usize,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Some((&size, inner)) = dims.split_first() else {
        return element(literal.dtype(), elements.get(from), f);
    };
    let step = inner.iter().product::<u64>() as usize;
    let in_part = (elements.len() > MOST || size > MOST as u64) && size > 2 * EDGE;
    f.write_str("[")?;
    for index in 0..size {
        if in_part && (EDGE + 1..size - EDGE).contains(&index) {
            continue;
        }
        if index > 0 {
            f.write_str(", ")?;
        }
        if in_part && index == EDGE {
            f.write_str("...")?;
        } else {
            dimension(literal, elements, inner, from + index as usize * step, f)?;
        }
    }
    f.write_str("]")
}

fn element(dtype: DType, bits: Bits, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match dtype.class() {
        DTypeClass::Bool => write!(f, "{}", bits != 0),
        DTypeClass::Signed | DTypeClass::Unsigned => write!(f, "{}", element::to_int(dtype, bits)),
        DTypeClass::Float => float(dtype, element::to_f64(dtype, bits), f),
        DTypeClass::Complex => {
            let value = element::to_complex(dtype, bits);
            let part = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            float(part, value.re, f)?;
            if value.im.is_nan() || value.im.is_sign_positive() {
                f.write_str("+")?;
            }
            float(part, value.im, f)?;
            f.write_str("i")
        }
    }
}

/// Writes a float. Types narrower than `f32` are written as the `f32` of the same value.
fn float(dtype: DType, value: f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_plain = value == 0.0 || !value.is_finite() || (1e-5..1e16).contains(&value.abs());
    match (dtype, is_plain) {
        (DType::F64, true) => write!(f, "{value}"),
        (DType::F64, false) => write!(f, "{value:e}"),
        (_, true) => write!(f, "{}", value as f32),
        (_, false) => write!(f, "{:e}", value as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::TensorType;

    #[test]
    fn elements_of_every_class() {
        let shown = |dtype, bytes: &[u8]| {
            let ty = TensorType::scalar(dtype);
            Literal::from_bytes(ty, bytes.to_vec()).expect("a scalar").to_string()
        };
        assert_eq!(shown(DType::Bool, &[1]), "bool[] true");
        assert_eq!(shown(DType::I4, &[0xff]), "i4[] -1");
        assert_eq!(shown(DType::U64, &[0xff; 8]), "u64[] 18446744073709551615");
        assert_eq!(shown(DType::BF16, &[0x80, 0x7f]), "bf16[] inf");
        assert_eq!(shown(DType::F32, &0.1f32.to_le_bytes()), "f32[] 0.1");
        assert_eq!(shown(DType::F64, &1e-300f64.to_le_bytes()), "f64[] 1e-300");
        let complex = [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat();
        assert_eq!(shown(DType::C64, &complex), "c64[] 1.5-2i");
    }

    #[test]
    fn large_literals_are_shown_in_part() {
        let data: Vec<i32> = (0..2_000).collect();
        let shown = Literal::from_slice(&[2, 1_000], &data).expect("it fits").to_string();
        assert_eq!(
            shown,
            "i32[2, 1000] [[0, 1, 2, ..., 997, 998, 999], [1000, 1001, 1002, ..., 1997, 1998, 1999]]"
        );
        let empty = Literal::from_slice::<f32>(&[2, 0], &[]).expect("it fits").to_string();
        assert_eq!(empty, "f32[2, 0] [[], []]");
    }
}
