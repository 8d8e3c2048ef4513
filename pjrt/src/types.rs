//! Converts element types and shapes to and from the numbers of the C API.

use fuseline_fusion::{DType, TensorType};
use pjrt_sys::*;
use smallvec::SmallVec;

use super::error::{Code, Error};

// Numbers of `PJRT_Buffer_Type` from headers newer than that of `pjrt-sys`.
const BUFFER_TYPE_F8E4M3: PJRT_Buffer_Type = 26;
const BUFFER_TYPE_F8E3M4: PJRT_Buffer_Type = 27;
const BUFFER_TYPE_F8E8M0FNU: PJRT_Buffer_Type = 28;
const BUFFER_TYPE_F4E2M1FN: PJRT_Buffer_Type = 29;

/// Every element type with its numbers in `PJRT_Buffer_Type` and in XLA's `PrimitiveType`, which
/// differ.
const TYPES: [(DType, PJRT_Buffer_Type, i32); 28] = [
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
    (DType::I2, PJRT_Buffer_Type_PJRT_Buffer_Type_S2, 26),
    (DType::I4, PJRT_Buffer_Type_PJRT_Buffer_Type_S4, 21),
    (DType::U2, PJRT_Buffer_Type_PJRT_Buffer_Type_U2, 27),
    (DType::U4, PJRT_Buffer_Type_PJRT_Buffer_Type_U4, 22),
    (DType::C64, PJRT_Buffer_Type_PJRT_Buffer_Type_C64, 15),
    (DType::C128, PJRT_Buffer_Type_PJRT_Buffer_Type_C128, 18),
    (DType::F8E4M3FN, PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3FN, 20),
    (DType::F8E5M2, PJRT_Buffer_Type_PJRT_Buffer_Type_F8E5M2, 19),
    (DType::F8E4M3, BUFFER_TYPE_F8E4M3, 28),
    (DType::F8E3M4, BUFFER_TYPE_F8E3M4, 29),
    (DType::F8E4M3FNUZ, PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3FNUZ, 25),
    (DType::F8E5M2FNUZ, PJRT_Buffer_Type_PJRT_Buffer_Type_F8E5M2FNUZ, 24),
    (DType::F8E4M3B11FNUZ, PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3B11FNUZ, 23),
    (DType::F8E8M0FNU, BUFFER_TYPE_F8E8M0FNU, 33),
    (DType::F4E2M1FN, BUFFER_TYPE_F4E2M1FN, 32),
];

pub(super) fn buffer_type(dtype: DType) -> PJRT_Buffer_Type {
    TYPES[dtype as usize - 1].1
}

/// Inverse of [`buffer_type`].
pub(super) fn dtype(number: PJRT_Buffer_Type, function: &'static str) -> Result<DType, Error> {
    TYPES.iter().find(|row| row.1 == number).map(|row| row.0).ok_or_else(|| {
        let text = format!("element type {number} of PJRT_Buffer_Type is not supported");
        Error::layer(Code::Unimplemented, function, text)
    })
}

/// The element type with this number in XLA's `PrimitiveType`.
pub(super) fn primitive_dtype(number: i32) -> Option<DType> {
    TYPES.iter().find(|row| row.2 == number).map(|row| row.0)
}

/// Dimensions in the form of the C API. A [`TensorType`] has at most `i64::MAX` elements even
/// without its zero dimensions, so each dimension fits.
pub(super) fn raw_dims(ty: &TensorType) -> SmallVec<[i64; 8]> {
    ty.dims().iter().map(|dim| *dim as i64).collect()
}

/// A type from the numbers of the C API.
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
        assert!(dtype(PJRT_Buffer_Type_PJRT_Buffer_Type_TOKEN, "f").is_err());
        assert_eq!(primitive_dtype(0), None);
    }

    #[test]
    fn the_numbers_are_those_of_the_protos() {
        use fuseline_fusion::DTypeSet;
        use pjrt_sys::protos::xla::PrimitiveType;
        for row in TYPES {
            let Ok(primitive) = PrimitiveType::try_from(row.2) else {
                assert!(row.1 >= BUFFER_TYPE_F8E4M3, "{:?} is unknown to the protos", row.0);
                continue;
            };
            let name = primitive.as_str_name();
            let ours = match row.0 {
                DType::Bool => "PRED".to_owned(),
                signed if DTypeSet::SIGNED.contains(signed) => signed.mlir().replace('i', "S"),
                other => other.to_string().to_uppercase(),
            };
            assert_eq!(name, ours);
        }
    }
}
