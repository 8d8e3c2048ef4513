//! PyTorch's rule for the computation type of operands of several types (`torch.result_type`).
//!
//! Operands have three priorities: tensors with dimensions, rank-0 tensors, and numbers. An operand
//! of lower priority changes the type only if it has a higher category (bool, integers, floats,
//! complex numbers).

use fuseline::fusion::{DType, DTypeClass};

use crate::call::{Arg, Call};

/// The promoted type of two, of equal priority.
pub(crate) fn promoted(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    let (low, high) = if rank(a) <= rank(b) { (a, b) } else { (b, a) };
    match (low, high) {
        (F16, BF16) | (BF16, F16) => F32,
        (U8, I8) | (I8, U8) => I16,
        (F64, C64) => C128,
        (_, high) => high,
    }
}

/// The order of the types that PyTorch promotes. Types of equal rank are not ordered.
fn rank(dtype: DType) -> u8 {
    use DType::*;
    match dtype {
        Bool => 0,
        U8 | I8 => 1,
        I16 => 2,
        I32 => 3,
        I64 => 4,
        F16 | BF16 => 5,
        F32 => 6,
        F64 => 7,
        C64 => 8,
        C128 => 9,
        // Unsigned and short types, which PyTorch promotes with no other type.
        _ => 1,
    }
}

fn category(dtype: DType) -> u8 {
    match dtype.class() {
        DTypeClass::Bool => 0,
        DTypeClass::Signed | DTypeClass::Unsigned => 1,
        DTypeClass::Float => 2,
        DTypeClass::Complex => 3,
    }
}

fn combined(strong: Option<DType>, weak: Option<DType>) -> Option<DType> {
    let (Some(high), Some(low)) = (strong, weak) else { return strong.or(weak) };
    Some(match (category(high), category(low)) {
        (3, _) => high,
        (2, 3) if high == DType::F64 => DType::C128,
        (2, 3) => DType::C64,
        (2, _) => high,
        (0, _) | (_, 2 | 3) => promoted(high, low),
        _ => high,
    })
}

/// The computation type of these arguments of a call. Without operands it is `f32`.
pub(crate) fn result_type(call: &Call<'_>, args: &[usize]) -> DType {
    let mut kinds: [Option<DType>; 3] = [None; 3];
    for &at in args {
        let (kind, dtype) = match call.arg(at) {
            Arg::Tensor(tensor) => (usize::from(tensor.rank() == 0), tensor.dtype()),
            Arg::Int(_) => (2, DType::I64),
            Arg::Float(_) => (2, DType::F32),
            Arg::Bool(_) => (2, DType::Bool),
            Arg::Complex(..) => (2, DType::C64),
            _ => continue,
        };
        kinds[kind] = Some(kinds[kind].map_or(dtype, |other| promoted(other, dtype)));
    }
    combined(kinds[0], combined(kinds[1], kinds[2])).unwrap_or(DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;

    #[test]
    fn types_are_promoted_as_in_pytorch() {
        for (a, b, wanted) in [
            (Bool, U8, U8),
            (U8, I8, I16),
            (I64, F16, F16),
            (F16, BF16, F32),
            (F64, C64, C128),
            (F32, C64, C64),
        ] {
            assert_eq!((promoted(a, b), promoted(b, a)), (wanted, wanted), "{a} {b}");
        }
    }

    #[test]
    fn what_counts_less_changes_the_category_only() {
        assert_eq!(combined(Some(F32), Some(F64)), Some(F32));
        assert_eq!(combined(Some(I32), Some(I64)), Some(I32));
        assert_eq!(combined(Some(I32), Some(F64)), Some(F64));
        assert_eq!(combined(Some(Bool), Some(I64)), Some(I64));
        assert_eq!(combined(Some(F64), Some(C64)), Some(C128));
        assert_eq!(combined(None, Some(I8)), Some(I8));
    }
}
