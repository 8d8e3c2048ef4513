//! The reference device: the reference interpreter runs regions at once, on the calling thread.

use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::{Literal, Scalar, TensorType};
use fuseline_interp::{self as interp, Arithmetic, EvalError};

use super::buffer::Data;
use super::{Buffer, Cause, DeviceError, Executed, LiveMemory, PerReplica, Result};
use crate::error::Stage;

pub(super) fn upload(ty: &TensorType, parts: &mut dyn Iterator<Item = &[u8]>) -> Result<Data> {
    let upload = |part: &[u8]| Literal::from_bytes(ty.clone(), part.to_vec()).map(Arc::new);
    let each: std::result::Result<PerReplica<_>, _> = parts.map(upload).collect();
    each.map(Data::Reference).map_err(|error| DeviceError::new(Stage::Transfer, error.to_string()))
}

/// The parameters of a region on one replica.
fn params(
    region: &CanonRegion,
    args: &[&Buffer],
    scalars: &[Scalar],
    replica: usize,
) -> Result<Vec<Arc<Literal>>> {
    let (mut tensors, mut scalars) = (args.iter(), scalars.iter());
    let param = |&lifted: &bool| {
        let data = if lifted {
            scalars.next().map(|scalar| Arc::new(scalar.to_literal()))
        } else {
            match tensors.next().map(|buffer| buffer.data()) {
                Some(Data::Reference(each)) => each.get(replica).cloned(),
                _ => None,
            }
        };
        data.ok_or_else(|| DeviceError::new(Stage::Execute, "an argument is missing or of another device"))
    };
    region.lifted().iter().map(param).collect()
}

pub(super) fn execute(
    region: &CanonRegion,
    outputs: &[u32],
    args: &[&Buffer],
    scalars: impl Iterator<Item = Scalar>,
    replicas: usize,
    live: &Arc<LiveMemory>,
) -> Result<Executed> {
    let scalars: Vec<Scalar> = scalars.collect();
    let params = (0..replicas).map(|replica| params(region, args, &scalars, replica));
    let params = params.collect::<Result<Vec<_>>>()?;
    let results =
        interp::run_replicated(Arithmetic::REFERENCE, region.graph(), &params).map_err(|error| {
            let cause = match error {
                EvalError::TooLarge { .. } => Cause::Memory,
                _ => Cause::Other,
            };
            DeviceError { cause, ..DeviceError::new(Stage::Execute, error.to_string()) }
        })?;
    let data = |output: u32| results.iter().map(|each| each[output as usize].clone()).collect();
    let output = |&output: &u32| Buffer::of(Data::Reference(data(output)), live);
    Ok(Executed { outputs: outputs.iter().map(output).collect(), done: None, mark: None })
}
