//! Creates tensors from scalars, constants and host data.

use std::sync::Arc;
use std::time::Instant;

use fuseline_fusion::op::{RngAlgorithm, attrs};
use fuseline_fusion::{
    Attrs, Bytes, DType, Element, Literal, OpCode, RealElement, Scalar, Shape, TensorType,
};
use fuseline_runtime::internals::{
    Buffer, DeviceError, EngineShared, Failure, Outcome, RecordCall, ValueCell, bug,
};
use fuseline_runtime::{Error, Result};

use super::dims::type_of;
use super::{Tensor, here};
use crate::handle::{handles, record};
use crate::pjrt::{self, HostData, bytes_of};
use crate::stream::Stream;

/// The error of a transfer.
fn refused(error: DeviceError) -> Error {
    let resource_exhausted = error.is_out_of_memory();
    let DeviceError { stage, message, plugin, .. } = error;
    let site = fuseline_fusion::Site::Unknown;
    let failure = Failure { stage, op: None, site, region: None, message, resource_exhausted, plugin };
    Error::device(Arc::new(failure))
}

/// The result of an upload.
type Uploaded = std::result::Result<Buffer, DeviceError>;

fn upload_each<'a, I: Iterator<Item = &'a [u8]>>(
    engine: &EngineShared,
    ty: &TensorType,
    parts: &mut dyn FnMut() -> I,
) -> Uploaded {
    let asked = bytes_on(ty, engine.device().replicas());
    engine.with_room(asked, || engine.device().upload_each(ty, &mut parts()))
}

/// The size of a value on all replicas.
fn bytes_on(ty: &TensorType, replicas: usize) -> Bytes {
    Bytes(ty.bytes().0.saturating_mul(replicas as u64))
}

/// Checks that the number of bytes fits a type, before the device reports it as a failed transfer.
fn check_bytes(ty: &TensorType, bytes: usize) -> Result<()> {
    let (wanted, given) = (ty.bytes().0, bytes as u64);
    if wanted == given {
        return Ok(());
    }
    Err(fuseline_fusion::LiteralError::Length { ty: ty.clone(), wanted, given }.into())
}

/// The type of a tensor with these elements and sizes.
fn type_under<T: Element>(data: &[T], dims: &[usize]) -> Result<TensorType> {
    let ty = type_of(T::DTYPE, dims)?;
    if data.len() as u64 != ty.elems().0 {
        let (wanted, given) = (ty.elems().0, data.len() as u64);
        return Err(fuseline_fusion::LiteralError::Length { ty, wanted, given }.into());
    }
    Ok(ty)
}

impl Stream {
    pub(crate) fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<Tensor> {
        let buffer = self.upload_buffer(&ty, bytes)?;
        Ok(self.of_data(ty, buffer))
    }

    /// A tensor from the host data of each replica.
    pub(crate) fn upload_each(&self, ty: TensorType, parts: &[&[u8]]) -> Result<Tensor> {
        Error::unless_forked(&fuseline_fusion::Site::Unknown)?;
        let engine = self.shared().engine();
        let replicas = engine.device().replicas();
        if parts.len() != replicas {
            let message =
                format!("data for {} replicas was given, but the engine has {replicas}", parts.len());
            return Err(Error::misuse(message, fuseline_fusion::Site::Unknown));
        }
        parts.iter().try_for_each(|part| check_bytes(&ty, part.len()))?;
        engine.telemetry().note_up(parts.iter().map(|part| part.len()).sum());
        let buffer = match engine.deadline() {
            None => upload_each(engine, &ty, &mut || parts.iter().copied()),
            Some(deadline) => {
                let (ty, parts) = (ty.clone(), parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>());
                self.upload_within(deadline, ty.clone(), move |engine| {
                    upload_each(engine, &ty, &mut || parts.iter().map(Vec::as_slice))
                })?
            }
        };
        Ok(self.of_data(ty, buffer.map_err(refused)?))
    }

    /// Moves host data to the device, the same to each replica.
    pub(crate) fn upload_buffer(&self, ty: &TensorType, bytes: &[u8]) -> Result<Buffer> {
        Error::unless_forked(&fuseline_fusion::Site::Unknown)?;
        check_bytes(ty, bytes.len())?;
        let engine = self.shared().engine();
        engine.telemetry().note_up(bytes.len() * engine.device().replicas());
        let asked = bytes_on(ty, engine.device().replicas());
        let buffer = match engine.deadline() {
            None => engine.with_room(asked, || engine.device().upload(ty, bytes)),
            Some(deadline) => {
                let (ty, bytes) = (ty.clone(), bytes.to_vec());
                self.upload_within(deadline, ty.clone(), move |engine| {
                    engine.with_room(asked, || engine.device().upload(&ty, &bytes))
                })?
            }
        };
        buffer.map_err(refused)
    }

    /// Moves data of this type to the device on another thread, and waits for that until the
    /// deadline.
    fn upload_within(
        &self,
        deadline: Instant,
        ty: TensorType,
        upload: impl FnOnce(&EngineShared) -> Uploaded + Send + 'static,
    ) -> Result<Uploaded> {
        let (engine, start) = (self.shared().engine(), Instant::now());
        let owner = engine.clone();
        let uploaded =
            engine.threads().run_with_deadline(deadline, move |hand_over| hand_over(upload(&owner)));
        uploaded.ok_or_else(|| {
            Error::timeout(start.elapsed(), format!("the transfer of {ty} to the device"), None)
        })
    }

    /// A tensor from host data that the device may use in place. It is not retried when memory is
    /// short, because the attempt consumes the data.
    pub(crate) fn upload_owned(&self, ty: &TensorType, data: HostData) -> Result<Tensor> {
        Error::unless_forked(&fuseline_fusion::Site::Unknown)?;
        check_bytes(ty, data.len())?;
        let engine = self.shared().engine();
        engine.telemetry().note_up(data.len() * engine.device().replicas());
        let buffer = match engine.deadline() {
            None => engine.device().upload_owned(ty, data),
            Some(deadline) => {
                let ty = ty.clone();
                self.upload_within(deadline, ty.clone(), move |engine| {
                    engine.device().upload_owned(&ty, data)
                })?
            }
        };
        Ok(self.of_data(ty.clone(), buffer.map_err(refused)?))
    }

    /// A tensor of a buffer on the device of an engine with one replica.
    pub(crate) fn of_buffer(&self, buffer: pjrt::Buffer) -> Tensor {
        self.of_data(buffer.ty().clone(), self.shared().engine().device().adopt(buffer))
    }

    fn of_data(&self, ty: TensorType, buffer: Buffer) -> Tensor {
        let cell = ValueCell::known(ty, Outcome::Data { buffer, maker: None });
        Tensor::new(cell, self.shared().base().clone())
    }

    /// A tensor of the given sizes, outermost first, from its elements in row-major order. The data
    /// is copied.
    ///
    /// # Errors
    /// When the sizes do not fit the number of elements, or the device refuses (out of memory).
    pub fn tensor<T: Element>(&self, data: &[T], dims: &[usize]) -> Result<Tensor> {
        self.upload(type_under(data, dims)?, bytes_of(data))
    }

    /// As [`Stream::tensor`], with different elements on each replica: one slice per replica.
    ///
    /// # Errors
    /// As [`Stream::tensor`], and when there are more or fewer slices than replicas.
    pub fn tensor_per_replica<T: Element>(&self, data: &[&[T]], dims: &[usize]) -> Result<Tensor> {
        let ty = type_of(T::DTYPE, dims)?;
        for part in data {
            type_under(part, dims)?;
        }
        let parts: Vec<&[u8]> = data.iter().map(|part| bytes_of(part)).collect();
        self.upload_each(ty, &parts)
    }

    /// As [`Stream::from_literal`], with different data on each replica: one literal per replica,
    /// all of one type.
    ///
    /// # Errors
    /// When there are more or fewer than replicas, their types differ, or the device refuses (out
    /// of memory).
    pub fn from_literals(&self, data: &[Literal]) -> Result<Tensor> {
        let ty = data.first().map_or_else(|| TensorType::scalar(DType::F32), |first| first.ty().clone());
        if let Some(other) = data.iter().find(|other| *other.ty() != ty) {
            let message =
                format!("data of different types, {ty} and {}, was given for one value", other.ty());
            return Err(Error::misuse(message, fuseline_fusion::Site::Unknown));
        }
        let parts: Vec<&[u8]> = data.iter().map(Literal::bytes).collect();
        self.upload_each(ty, &parts)
    }

    /// A tensor from host data. The data is copied.
    ///
    /// # Errors
    /// When the device refuses (out of memory).
    pub fn from_literal(&self, data: &Literal) -> Result<Tensor> {
        self.upload(data.ty().clone(), data.bytes())
    }

    /// A lifted scalar: a rank-0 tensor whose value is passed to each execution as a parameter and
    /// is not part of any key. Another value, as in a learning-rate schedule, compiles nothing.
    /// That includes 0, 1 and -1, which schedules pass through. A number that the program never
    /// changes may be a [`Stream::constant`]; see also [`crate::EngineConfig::specialise_scalars`].
    #[must_use]
    pub fn scalar<T: RealElement>(&self, value: T) -> Tensor {
        self.lift(Scalar::new(value))
    }

    /// As [`Stream::scalar`], of an element type known at run time.
    #[must_use]
    pub fn lift(&self, value: Scalar) -> Tensor {
        Tensor::new(ValueCell::scalar(value), self.shared().clone())
    }

    #[track_caller]
    fn source(&self, op: OpCode, attrs: Attrs, operands: &[&Tensor]) -> Result<Tensor> {
        let effect = fuseline_fusion::op::Effect::Pure;
        let call =
            RecordCall { op, attrs: &attrs, bodies: &[], operands: handles(operands), effect, site: &here() };
        let mut results = record(self.shared(), call)?;
        results.pop().ok_or_else(|| bug!("{op} has no result"))
    }

    /// A constant: its data is part of the key and compiled in, so the compiler can compute with
    /// it. For data that varies use [`Stream::tensor`] or [`Stream::scalar`].
    ///
    /// # Errors
    /// When it has more bytes than [`fuseline_fusion::limits::MAX_CONSTANT_BYTES`].
    #[track_caller]
    pub fn constant(&self, data: Literal) -> Result<Tensor> {
        self.source(OpCode::Constant, attrs::constant(Arc::new(data)), &[])
    }

    /// A tensor of the given sizes, all of whose elements are `value`, which is a lifted scalar.
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn full<T: RealElement>(&self, value: T, dims: &[usize]) -> Result<Tensor> {
        let scalar = self.scalar(value);
        let shape = Shape::try_from(dims)?;
        self.source(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[&scalar])
    }

    /// A tensor of the given sizes, all of whose elements are 0 (`false` for bool), compiled in.
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn zeros(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.splat(Literal::zeros(TensorType::scalar(dtype)), dims)
    }

    /// A tensor of the given sizes, all of whose elements are 1 (`true` for bool), compiled in.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// assert_eq!(engine.stream().ones(DType::F32, &[2])?.to_vec::<f32>()?, [1.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn ones(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.splat(Literal::of_f64(dtype, 1.0), dims)
    }

    /// A tensor of the given sizes, all of whose elements are the constant `value`, compiled in.
    ///
    /// # Errors
    /// When `value` is no scalar or the sizes do not form a shape.
    #[track_caller]
    pub fn splat(&self, value: Literal, dims: &[usize]) -> Result<Tensor> {
        let scalar = self.constant(value)?;
        let shape = Shape::try_from(dims)?;
        self.source(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &[]), &[&scalar])
    }

    /// 0, 1, 2, ... along dimension `axis`, repeated along the others.
    ///
    /// # Errors
    /// When the sizes are not a shape, the dimension does not exist, or the element type is bool.
    #[track_caller]
    pub fn iota(&self, dtype: DType, dims: &[usize], axis: i64) -> Result<Tensor> {
        self.source(OpCode::Iota, attrs::iota(dtype, Shape::try_from(dims)?, axis), &[])
    }

    /// Uniformly distributed bits from a generator state: returns the next state and the bits. The
    /// state is a value like any other, so a program that keeps and restores it repeats its
    /// numbers.
    ///
    /// `state` is `u64[2]` for [`RngAlgorithm::ThreeFry`].
    ///
    /// # Errors
    /// When the state has another type or the sizes are not a shape.
    #[track_caller]
    pub fn random_bits(
        &self,
        algorithm: RngAlgorithm,
        state: &Tensor,
        dtype: DType,
        dims: &[usize],
    ) -> Result<(Tensor, Tensor)> {
        let attrs = attrs::rng_bit_generator(algorithm, dtype, Shape::try_from(dims)?);
        let mut results = self.record(OpCode::RngBitGenerator, attrs, &[], &[state])?;
        match (results.pop(), results.pop()) {
            (Some(bits), Some(state)) => Ok((state, bits)),
            _ => Err(bug!("rng_bit_generator has two results")),
        }
    }
}
