//! Element types and shapes, to and from the numbers of the C API.

use fuseline_fusion::{DType, TensorType};
use pjrt_sys::*;
use smallvec::SmallVec;

use super::error::{Code, Error};

/// Every element type with its number in `PJRT_Buffer_Type`; XLA's own `PrimitiveType` has other numbers, so they are
/// listed too.
const TYPES: [(DType, PJRT_Buffer_Type, i32); 13] = [
    (DType::Bool, PJRT_Buffer_Type_PJRT_Buffer_Type_PRED, 1),
    (DType::I8, PJRT_Buffer_Type_PJRT_Buffer_Type_S8, 2),
    (DType::I16, PJRT_Buffer_Type_PJRT_Buffer_Type_S16, 3),
    (DType::I32, PJRT_Buffer_Type_PJRT_Buffer_Type_S32, 4),
    (DType::I64, PJRT_Buffer_Type_PJRT_Buffer_Type_S64, 5),
    (DType::U8, PJRT_Buffer_Type_PJRT_Buffer_Type_U8, 6),
    (DType::U16, PJRT_Buffer_Type_PJRT_Buffer_Type_U16, 7),
    (DType::U32, PJRT_Buffer_Type_PJRT_Buffer_Type_U32, 8),
    (DType::U64, PJRT_Buffer_Type_PJRT_Buffer_Type_U64, 9),
    (DType::F16, PJRT_Buffer_Type_PJRT_Buffer_Type_F16, 10),
    (DType::BF16, PJRT_Buffer_Type_PJRT_Buffer_Type_BF16, 16),
    (DType::F32, PJRT_Buffer_Type_PJRT_Buffer_Type_F32, 11),
    (DType::F64, PJRT_Buffer_Type_PJRT_Buffer_Type_F64, 12),
];

pub(super) fn buffer_type(dtype: DType) -> PJRT_Buffer_Type {
    TYPES[dtype as usize - 1].1
}

/// Inverse of [`buffer_type`].
pub(super) fn dtype(number: PJRT_Buffer_Type, function: &'static str) -> Result<DType, Error> {
    TYPES.iter().find(|row| row.1 == number).map(|row| row.0).ok_or_else(|| {
        let text = format!("element type {number} of PJRT_Buffer_Type has no name in this crate");
        Error::layer(Code::Unimplemented, function, text)
    })
}

/// The element type with this number in XLA's `PrimitiveType`.
pub(super) fn primitive_dtype(number: i32) -> Option<DType> {
    TYPES.iter().find(|row| row.2 == number).map(|row| row.0)
}

/// Sizes as C takes them. A [`TensorType`] has at most `i64::MAX` elements even with its zeros left out, so each size
/// fits.
pub(super) fn raw_dims(ty: &TensorType) -> SmallVec<[i64; 8]> {
    ty.dims().iter().map(|dim| *dim as i64).collect()
}

/// A type from C's numbers.
pub(super) fn tensor_type(dtype: DType, dims: &[i64], function: &'static str) -> Result<TensorType, Error> {
    let refuse = |why: &dyn std::fmt::Display| {
        Error::layer(Code::Unimplemented, function, format!("a tensor of sizes {dims:?}: {why}"))
    };
    let sizes: Result<SmallVec<[u64; 8]>, _> = dims.iter().map(|dim| u64::try_from(*dim)).collect();
    let sizes = sizes.map_err(|error| refuse(&error))?;
    TensorType::of(dtype, &sizes).map_err(|error| refuse(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_its_row() {
        for (index, row) in TYPES.iter().enumerate() {
            assert_eq!(row.0, DType::ALL[index]);
            assert_eq!(dtype(buffer_type(row.0), "f").expect("a row"), row.0);
            assert_eq!(primitive_dtype(row.2), Some(row.0));
        }
        assert!(dtype(PJRT_Buffer_Type_PJRT_Buffer_Type_C64, "f").is_err());
        assert_eq!(primitive_dtype(0), None);
    }

    #[test]
    fn the_numbers_are_those_of_the_protos() {
        use pjrt_sys::protos::xla::PrimitiveType;
        for row in TYPES {
            let name = PrimitiveType::try_from(row.2).expect("a primitive type").as_str_name();
            let ours = match row.0 {
                DType::Bool => "PRED".to_owned(),
                DType::I8 | DType::I16 | DType::I32 | DType::I64 => row.0.mlir().replace('i', "S"),
                other => other.to_string().to_uppercase(),
            };
            assert_eq!(name, ours);
        }
    }
}
