//! Stores sets of named tensors in files of the `safetensors` format.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use fuseline::{DType, Engine, Literal, Shape, Tensor, TensorType};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Returns the format's name of an element type.
///
/// # Errors
/// If there is none: integers of 2 and 4 bits, most floats of 8 bits and fewer, the wider complex
/// numbers.
pub(crate) fn to_safetensors(dtype: DType) -> anyhow::Result<Dtype> {
    Ok(match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::C64 => Dtype::C64,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E4M3FN => Dtype::F8_E4M3,
        other => bail!("the safetensors format does not support elements of type {other}"),
    })
}

/// Returns the element type of a format's name.
///
/// # Errors
/// If there is none: floats of 4 and 6 bits, 8-bit exponents.
pub(crate) fn from_safetensors(dtype: Dtype) -> anyhow::Result<DType> {
    Ok(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::C64 => DType::C64,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::F8_E4M3 => DType::F8E4M3FN,
        other => bail!("Fuseline does not support elements of type {other:?}"),
    })
}

/// Serializes tensors to the bytes of a file. Reads all of them at once, so pending ops are
/// computed together.
pub(crate) fn to_bytes<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> anyhow::Result<Vec<u8>> {
    let reads: Vec<_> = tensors.into_iter().map(|(name, tensor)| (name, tensor.read())).collect();
    let mut data = Vec::with_capacity(reads.len());
    for (name, read) in reads {
        let literal = super::block_on(read).with_context(|| format!("reading `{name}`"))?;
        data.push((name, literal));
    }
    let views = data
        .iter()
        .map(|(name, literal)| {
            let (dtype, dims) = (to_safetensors(literal.dtype())?, literal.sizes().to_vec());
            let view = TensorView::new(dtype, dims, literal.bytes())?;
            Ok((*name, view))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(safetensors::serialize(views, None)?)
}

/// Uploads the tensors of a file's bytes to the device.
pub(crate) fn from_bytes(engine: &Engine, bytes: &[u8]) -> anyhow::Result<BTreeMap<String, Tensor>> {
    let file = SafeTensors::deserialize(bytes)?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let tensor = tensor_of(engine, &view).with_context(|| format!("loading `{name}`"))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

fn tensor_of(engine: &Engine, view: &TensorView<'_>) -> anyhow::Result<Tensor> {
    let ty = TensorType::new(from_safetensors(view.dtype())?, Shape::try_from(view.shape())?);
    Ok(engine.from_literal(&Literal::from_bytes(ty, view.data().to_vec())?)?)
}

/// Writes tensors to a file.
pub(crate) fn save<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> anyhow::Result<()> {
    std::fs::write(path, to_bytes(tensors)?).with_context(|| format!("writing {}", path.display()))
}

/// Reads the tensors of a file.
pub(crate) fn load(engine: &Engine, path: &Path) -> anyhow::Result<BTreeMap<String, Tensor>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    from_bytes(engine, &bytes).with_context(|| format!("cannot load {}", path.display()))
}
