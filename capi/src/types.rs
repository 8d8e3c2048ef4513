//! Element types and shapes.

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use engine::{DType, TensorType};

use crate::error::{Fault, Result, c_text, guarded};

/// An element type, by a number that never changes.
pub type fuseline_dtype = u32;

/// One byte, 0 or 1.
pub const FUSELINE_BOOL: fuseline_dtype = 1;
/// Signed, 8 bits.
pub const FUSELINE_I8: fuseline_dtype = 2;
/// Signed, 16 bits.
pub const FUSELINE_I16: fuseline_dtype = 3;
/// Signed, 32 bits.
pub const FUSELINE_I32: fuseline_dtype = 4;
/// Signed, 64 bits.
pub const FUSELINE_I64: fuseline_dtype = 5;
/// Unsigned, 8 bits.
pub const FUSELINE_U8: fuseline_dtype = 6;
/// Unsigned, 16 bits.
pub const FUSELINE_U16: fuseline_dtype = 7;
/// Unsigned, 32 bits.
pub const FUSELINE_U32: fuseline_dtype = 8;
/// Unsigned, 64 bits.
pub const FUSELINE_U64: fuseline_dtype = 9;
/// IEEE half precision.
pub const FUSELINE_F16: fuseline_dtype = 10;
/// Brain float: the upper half of single precision.
pub const FUSELINE_BF16: fuseline_dtype = 11;
/// IEEE single precision.
pub const FUSELINE_F32: fuseline_dtype = 12;
/// IEEE double precision.
pub const FUSELINE_F64: fuseline_dtype = 13;
/// Two of single precision: real and imaginary part.
pub const FUSELINE_C64: fuseline_dtype = 18;
/// Two of double precision.
pub const FUSELINE_C128: fuseline_dtype = 19;
/// Other types, of 8 bits and fewer, have no constant: fuseline_dtype_name(2) to (28) list all.
/// Types of fewer than 8 bits take one byte per element.
pub const FUSELINE_DTYPE_LAST: fuseline_dtype = 28;

/// The largest number of dimensions of a tensor.
pub const FUSELINE_MAX_RANK: usize = 16;

const _: () = assert!(FUSELINE_MAX_RANK == engine::fusion::limits::MAX_RANK);

/// Element type and shape of a tensor. Data is dense, row-major and little-endian.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fuseline_type {
    /// The element type.
    pub dtype: fuseline_dtype,
    /// The number of dimensions, at most FUSELINE_MAX_RANK.
    pub rank: u32,
    /// Their sizes. Entries after `rank` are ignored.
    pub dims: [u64; FUSELINE_MAX_RANK],
}

/// A tensor's data on the host.
#[repr(C)]
pub struct fuseline_tensor {
    /// Element type and shape.
    pub r#type: fuseline_type,
    /// The elements.
    pub data: *const u8,
    /// The number of bytes, which must match the type.
    pub size: usize,
}

pub(crate) fn dtype(code: fuseline_dtype) -> Result<DType> {
    u8::try_from(code).ok().and_then(DType::from_code).ok_or_else(|| {
        Fault::invalid(format!(
            "{code} is not an element type; the types are 1 to {FUSELINE_DTYPE_LAST} (FUSELINE_F32 and so on)"
        ))
    })
}

impl fuseline_type {
    pub(crate) fn read(&self) -> Result<TensorType> {
        let rank = self.rank as usize;
        let dims = self.dims.get(..rank).ok_or_else(|| {
            Fault::invalid(format!(
                "a type has {rank} dimensions, but at most {FUSELINE_MAX_RANK} are allowed"
            ))
        })?;
        TensorType::of(dtype(self.dtype)?, dims).map_err(|error| Fault::invalid(error.to_string()))
    }

    pub(crate) fn of(ty: &TensorType) -> fuseline_type {
        let mut dims = [0; FUSELINE_MAX_RANK];
        dims[..ty.rank()].copy_from_slice(ty.dims());
        fuseline_type { dtype: u32::from(ty.dtype().code()), rank: ty.rank() as u32, dims }
    }
}

/// The name of an element type, as StableHLO writes it; null if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_dtype_name(dtype: fuseline_dtype) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    guarded(std::ptr::null(), || {
        let names = NAMES.get_or_init(|| DType::ALL.iter().map(|dtype| c_text(dtype.mlir())).collect());
        let place = DType::ALL.iter().position(|known| u32::from(known.code()) == dtype);
        place.and_then(|place| names.get(place)).map_or(std::ptr::null(), |name| name.as_ptr())
    })
}

/// The number of bytes that a tensor of this type takes on the host; 0 for an invalid type.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_type_size(r#type: Option<&fuseline_type>) -> u64 {
    guarded(0, || r#type.and_then(|ty| ty.read().ok()).map_or(0, |ty| ty.bytes().0))
}

const _: () = {
    let pairs = [
        (FUSELINE_BOOL, DType::Bool),
        (FUSELINE_I8, DType::I8),
        (FUSELINE_I16, DType::I16),
        (FUSELINE_I32, DType::I32),
        (FUSELINE_I64, DType::I64),
        (FUSELINE_U8, DType::U8),
        (FUSELINE_U16, DType::U16),
        (FUSELINE_U32, DType::U32),
        (FUSELINE_U64, DType::U64),
        (FUSELINE_F16, DType::F16),
        (FUSELINE_BF16, DType::BF16),
        (FUSELINE_F32, DType::F32),
        (FUSELINE_F64, DType::F64),
        (FUSELINE_C64, DType::C64),
        (FUSELINE_C128, DType::C128),
        (FUSELINE_DTYPE_LAST, DType::F4E2M1FN),
    ];
    let mut place = 0;
    while place < pairs.len() {
        assert!(pairs[place].0 == pairs[place].1.code() as u32);
        place += 1;
    }
    assert!(DType::ALL.len() == FUSELINE_DTYPE_LAST as usize);
};
