//! Ids and types, which all parts of a program file share.

use super::json::At;
use super::{Problem, ProgramError, ProgramId};
use crate::dtype::DType;
use crate::shape::TensorType;

type Result<T, E = ProgramError> = std::result::Result<T, E>;

pub(super) fn id(at: &At<'_>) -> Result<ProgramId> {
    u32::try_from(at.int()?).map(ProgramId).map_err(|_| at.error("an id is an integer from 0 to 2^32 - 1"))
}

pub(super) fn dtype(at: &At<'_>) -> Result<DType> {
    let name = at.string()?;
    let unknown = || ProgramError::of(at.path.clone(), Problem::UnknownDType(name.to_owned()));
    DType::from_mlir(name).ok_or_else(unknown)
}

pub(super) fn ty(at: &At<'_>) -> Result<TensorType> {
    let dtype = dtype(&at.get("dtype")?)?;
    let shape = at.get("shape")?;
    let mut dims = Vec::new();
    for dim in shape.list()? {
        dims.push(u64::try_from(dim.int()?).map_err(|_| dim.error("sizes must be at least 0"))?);
    }
    TensorType::of(dtype, &dims).map_err(|error| shape.error(error.to_string()))
}
