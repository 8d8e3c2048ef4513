//! The reference device: regions run by the reference interpreter, at once, on the calling thread.

use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::{Literal, Scalar, TensorType, interp};

use super::{Buffer, DeviceError, Executed, Result};
use crate::error::Stage;

fn refuse(stage: Stage, message: impl Into<String>) -> DeviceError {
    DeviceError { stage, message: message.into(), resource_exhausted: false }
}

pub(super) fn upload(ty: &TensorType, bytes: &[u8]) -> Result<Buffer> {
    match Literal::from_bytes(ty.clone(), bytes.to_vec()) {
        Ok(data) => Ok(Buffer::Reference(Arc::new(data))),
        Err(error) => Err(refuse(Stage::Transfer, error.to_string())),
    }
}

pub(super) fn execute(
    region: &CanonRegion,
    outputs: &[u32],
    args: &[&Buffer],
    mut scalars: impl Iterator<Item = Scalar>,
) -> Result<Executed> {
    let mut tensors = args.iter();
    let mut params = Vec::with_capacity(region.lifted().len());
    for &lifted in region.lifted() {
        let data = if lifted {
            scalars.next().map(|scalar| Arc::new(scalar.to_literal()))
        } else {
            match tensors.next() {
                Some(Buffer::Reference(data)) => Some(data.clone()),
                _ => None,
            }
        };
        params
            .push(data.ok_or_else(|| refuse(Stage::Execute, "an argument is missing or of another device"))?);
    }
    let results = interp::run(region.graph(), &params).map_err(|error| DeviceError {
        resource_exhausted: true,
        ..refuse(Stage::Execute, error.to_string())
    })?;
    let outputs = outputs.iter().map(|&output| Buffer::Reference(results[output as usize].clone())).collect();
    Ok(Executed { outputs, done: None })
}
