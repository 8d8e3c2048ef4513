//! Reads a buffer back to the host.
//!
//! Plugins differ in whether they reorder data: XLA:CPU ignores the requested host layout and
//! copies bytes. So a copy is requested in the order of the device, which every plugin supports,
//! and converted to row-major order here. Other orders are rare (a module has to ask for one), so
//! the conversion is not optimized.
//!
//! - COPY-1: the host memory of a copy is freed only when the copy is known to be done, or never.

use std::borrow::Cow;
use std::fmt;

use fuseline_fusion::{DType, DTypeClass, DTypeSet, TensorType};
use pjrt_sys::*;
use smallvec::SmallVec;

use super::api::{call, list};
use super::buffer::{Buffer, ExternalReference};
use super::error::{Code, Error, leak, optional};
use super::event::Event;

const FUNCTION: &str = "PJRT_Buffer_ToHostBuffer";

/// A copy of a buffer on its way to the host: dense, row-major, little-endian bytes.
///
/// Dropping it abandons the copy without waiting. `Send + Sync`.
pub struct HostCopy {
    event: Event,
    target: Target,
}

/// Memory that is being written: capacity for `len` bytes, none of which counts as initialized
/// before the copy is done.
struct Target {
    bytes: Vec<u8>,
    len: usize,
    order: Option<Box<Order>>,
    dtype: DType,
}

/// Elements of fewer than 8 bits in the form of host data: signed integers are sign-extended,
/// others zero-extended. XLA's devices leave the upper bits undefined; a `bool` is a byte there.
fn extended(dtype: DType, mut bytes: Vec<u8>) -> Vec<u8> {
    if DTypeSet::NARROW.contains(dtype) {
        let unused = 8 - dtype.bits();
        let signed = dtype.class() == DTypeClass::Signed;
        bytes.iter_mut().for_each(|byte| {
            let high = *byte << unused;
            *byte = if signed { (high as i8 >> unused) as u8 } else { high >> unused };
        });
    }
    bytes
}

impl Target {
    /// Moves the memory out and leaves none.
    fn take(&mut self) -> Target {
        let (bytes, order) = (std::mem::take(&mut self.bytes), self.order.take());
        Target { bytes, len: self.len, order, dtype: self.dtype }
    }

    /// # Safety
    /// The copy is done and succeeded.
    unsafe fn filled(mut self) -> Result<Vec<u8>, Error> {
        // SAFETY: holds because the copy wrote every byte.
        unsafe { self.bytes.set_len(self.len) };
        let bytes = match self.order {
            None => self.bytes,
            Some(order) => order.to_row_major(&self.bytes)?,
        };
        Ok(extended(self.dtype, bytes))
    }
}

impl Buffer {
    /// Starts copying the buffer to the host. The result is dense and row-major, whatever the
    /// layout on the device.
    ///
    /// The buffer may be dropped before the copy is done. The copy costs one allocation of the size
    /// of the data.
    ///
    /// # Errors
    /// When the buffer is deleted or host memory runs out. The copy returns errors of the
    /// computation that produces the buffer.
    pub fn to_host_async(&self) -> Result<HostCopy, Error> {
        HostCopy::start(self, Vec::new())
    }

    /// Copies the buffer to the host and waits for it.
    ///
    /// A buffer in host memory is read in place: XLA:CPU takes 6 to 20 µs to hand even one element
    /// from thread to thread, and reading it takes less than one.
    ///
    /// # Errors
    /// When the buffer is deleted, host memory runs out, or the computation that produces the
    /// buffer failed.
    pub fn to_host(&self) -> Result<Vec<u8>, Error> {
        self.to_host_in(Vec::new())
    }

    /// [`Buffer::to_host`] into the memory of `storage`, whose contents are lost. Pays for more
    /// than 128 KiB, where fresh memory costs more than the copy.
    ///
    /// # Errors
    /// As [`Buffer::to_host`].
    pub fn to_host_in(&self, storage: Vec<u8>) -> Result<Vec<u8>, Error> {
        match HostView::of(self)? {
            Some(view) => view.copy(storage),
            None => HostCopy::start(self, storage)?.wait(),
        }
    }

    /// Waits for the data and calls `read` with it: dense, row-major, little-endian. The data is
    /// borrowed if the buffer is in host memory in this form, and a copy otherwise.
    ///
    /// # Errors
    /// As [`Buffer::to_host`].
    pub fn read<R>(&self, read: impl FnOnce(Cow<'_, [u8]>) -> R) -> Result<R, Error> {
        let view = HostView::of(self)?;
        if let Some(bytes) = view.as_ref().and_then(HostView::bytes) {
            return Ok(read(Cow::Borrowed(bytes)));
        }
        let bytes = match view {
            Some(view) => view.copy(Vec::new())?,
            None => HostCopy::start(self, Vec::new())?.wait()?,
        };
        Ok(read(Cow::Owned(bytes)))
    }
}

impl HostCopy {
    /// Starts a copy into the memory of `storage`.
    fn start(buffer: &Buffer, storage: Vec<u8>) -> Result<HostCopy, Error> {
        let api = buffer.api();
        let ty = buffer.ty();
        let mut bytes = allocate(ty, storage)?;
        let len = ty.bytes().0 as usize;
        let order = Order::of(buffer)?;
        let row_major: MinorToMajor = (0..ty.rank() as i64).rev().collect();
        let minor_to_major = order.as_ref().map_or(&row_major, |order| &order.minor_to_major);
        let mut layout = api.block::<PJRT_Buffer_MemoryLayout>();
        layout.type_ = PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled;
        layout.__bindgen_anon_1.tiled = PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE as usize,
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..Default::default()
        };
        let mut args = api.block::<PJRT_Buffer_ToHostBuffer_Args>();
        args.src = buffer.raw();
        args.host_layout = layout.as_mut_ptr();
        args.dst = bytes.as_mut_ptr().cast();
        args.dst_size = len;
        // SAFETY: holds because the buffer is alive, the layout outlives the call, and `bytes` has
        // room for `len` bytes and is not freed before the event is ready (COPY-1).
        unsafe { api.call(&mut args) }?;
        // SAFETY: holds because the call gave us the event.
        let Some(event) = (unsafe { Event::from_raw(args.event, buffer.client()) }) else {
            leak(bytes);
            return Err(Error::layer(Code::Internal, FUNCTION, "the plugin returned no event"));
        };
        Ok(HostCopy { event, target: Target { bytes, len, order, dtype: ty.dtype() } })
    }

    /// True when the copy has succeeded or failed. Never blocks.
    ///
    /// # Errors
    /// When the plugin cannot determine it.
    #[inline]
    pub fn is_ready(&self) -> Result<bool, Error> {
        self.event.is_ready()
    }

    /// Blocks until the copy is done and returns the bytes.
    ///
    /// # Errors
    /// The error of the computation that produces the buffer, or of the copy.
    pub fn wait(mut self) -> Result<Vec<u8>, Error> {
        self.event.wait()?;
        let target = self.target.take();
        // SAFETY: holds because the event is ready and says that the copy succeeded.
        unsafe { target.filled() }
    }

    /// Calls `callback` with the bytes, or the error, once the copy is done. Rules as for
    /// [`Event::on_ready`].
    pub fn on_ready<F>(mut self, callback: F)
    where
        F: FnOnce(Result<Vec<u8>, Error>) + Send + 'static,
    {
        let target = self.target.take();
        let refused = self.event.register((callback, target), |(callback, target), outcome| {
            callback(match outcome {
                // SAFETY: holds because the event is ready when this runs, and says that the copy
                // succeeded.
                Ok(()) => unsafe { target.filled() },
                Err(error) => Err(error),
            });
        });
        if let Err((error, (callback, target))) = refused {
            leak(target);
            callback(Err(error));
        }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        if self.target.bytes.capacity() == 0 || self.event.is_ready() == Ok(true) {
            return;
        }
        // COPY-1: the memory is freed after the copy.
        let bytes = std::mem::take(&mut self.target.bytes);
        if let Err((_, bytes)) = self.event.register(bytes, |bytes, _| drop(bytes)) {
            leak(bytes);
        }
    }
}

impl fmt::Debug for HostCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostCopy({} bytes, {:?})", self.target.len, self.event)
    }
}

/// The memory of a buffer whose data is complete and in host memory.
struct HostView<'a> {
    /// Keeps the memory.
    reference: ExternalReference<&'a Buffer>,
    ty: &'a TensorType,
    order: Option<Box<Order>>,
}

impl<'a> HostView<'a> {
    /// Waits for the data. `None` if it is not in host memory, or the plugin does not share it.
    fn of(buffer: &'a Buffer) -> Result<Option<HostView<'a>>, Error> {
        if optional(buffer.is_on_cpu())? != Some(true) {
            return Ok(None);
        }
        buffer.ready_event()?.wait()?;
        let Some(reference) = optional(ExternalReference::new(buffer))? else { return Ok(None) };
        let ty = buffer.ty();
        if reference.pointer().is_null() || optional(buffer.on_device_size())? != Some(ty.bytes().0) {
            return Ok(None);
        }
        Ok(Some(HostView { reference, ty, order: Order::of(buffer)? }))
    }

    /// The bytes as they are stored.
    fn stored(&self) -> &[u8] {
        // SAFETY: holds because the buffer is in host memory, that many bytes long, complete (its
        // event says so), and neither freed, moved nor written to while the reference is held.
        unsafe { list(self.reference.pointer().cast::<u8>(), self.ty.bytes().0 as usize) }
    }

    /// The bytes, if they have the form of host data.
    fn bytes(&self) -> Option<&[u8]> {
        let is_plain = self.order.is_none() && !DTypeSet::NARROW.contains(self.ty.dtype());
        is_plain.then(|| self.stored())
    }

    /// A copy of the data in the form of host data, in the memory of `storage`.
    fn copy(&self, storage: Vec<u8>) -> Result<Vec<u8>, Error> {
        let bytes = match &self.order {
            Some(order) => order.to_row_major(self.stored())?,
            None => {
                let mut bytes = allocate(self.ty, storage)?;
                bytes.extend_from_slice(self.stored());
                bytes
            }
        };
        Ok(extended(self.ty.dtype(), bytes))
    }
}

/// Reserves room in `storage` for a copy of a tensor; at least one byte, so that the pointer is
/// never dangling.
fn allocate(ty: &TensorType, mut storage: Vec<u8>) -> Result<Vec<u8>, Error> {
    storage.clear();
    let len = usize::try_from(ty.bytes().0.max(1)).ok();
    let room = len.and_then(|len| storage.try_reserve_exact(len).ok());
    room.map(|()| storage).ok_or_else(|| {
        let text = format!("the host has not enough memory for a copy of {ty}, {}", ty.bytes());
        Error::layer(Code::ResourceExhausted, FUNCTION, text)
    })
}

type MinorToMajor = SmallVec<[i64; 16]>;

/// The storage order of a tensor that is not in row-major order.
struct Order {
    ty: TensorType,
    /// Its dimensions, innermost first.
    minor_to_major: MinorToMajor,
}

impl Order {
    /// The order of the buffer on its device; `None` if that is row-major.
    fn of(buffer: &Buffer) -> Result<Option<Box<Order>>, Error> {
        let ty = buffer.ty();
        let rank = ty.rank();
        // With fewer than two dimensions there is only one order.
        if rank < 2 {
            return Ok(None);
        }
        let alone = buffer.alone();
        // SAFETY: holds because the buffer is alive, and no other thread is in such a call.
        let out = unsafe { call!(buffer.api(), PJRT_Buffer_GetMemoryLayout_Args { buffer: buffer.raw() }) };
        drop(alone);
        let Some(out) = optional(out)? else { return Ok(None) };
        if out.layout.type_ != PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled {
            return Ok(None);
        }
        // SAFETY: holds because the type says that the layout is tiled.
        let tiled = unsafe { out.layout.__bindgen_anon_1.tiled };
        // SAFETY: holds because the list lives as long as the buffer.
        let stored = unsafe { list(tiled.minor_to_major, tiled.minor_to_major_size) };
        let permutation = stored.len() == rank && (0..rank as i64).all(|axis| stored.contains(&axis));
        if !permutation || stored.iter().rev().copied().eq(0..rank as i64) {
            return Ok(None);
        }
        Ok(Some(Box::new(Order { ty: ty.clone(), minor_to_major: stored.into() })))
    }

    /// The elements of `stored` in row-major order.
    fn to_row_major(&self, stored: &[u8]) -> Result<Vec<u8>, Error> {
        let mut ordered = allocate(&self.ty, Vec::new())?;
        let size = self.ty.dtype().size();
        let dims: SmallVec<[usize; 16]> = self.ty.dims().iter().map(|dim| *dim as usize).collect();
        // The distance between neighbors along each dimension, in elements.
        let mut strides: SmallVec<[usize; 16]> = SmallVec::from_elem(1, dims.len());
        let mut stride = 1;
        for axis in &self.minor_to_major {
            strides[*axis as usize] = stride;
            stride *= dims[*axis as usize];
        }
        let mut position: SmallVec<[usize; 16]> = SmallVec::from_elem(0, dims.len());
        while ordered.len() < stored.len() {
            let element: usize = position.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            ordered.extend_from_slice(&stored[element * size..(element + 1) * size]);
            for axis in (0..dims.len()).rev() {
                position[axis] += 1;
                if position[axis] < dims[axis] {
                    break;
                }
                position[axis] = 0;
            }
        }
        Ok(ordered)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_order_of_three_dimensions_is_undone() {
        let dims = [2usize, 3, 4];
        let ty = TensorType::of(DType::U16, &[2, 3, 4]).expect("small");
        for minor_to_major in [[0i64, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut stored = vec![0u8; 48];
            let mut wanted = Vec::new();
            for i in 0..24usize {
                let at = [i / 12, i / 4 % 3, i % 4];
                let mut offset = 0;
                for axis in minor_to_major.iter().rev() {
                    offset = offset * dims[*axis as usize] + at[*axis as usize];
                }
                let bytes = (i as u16 * 257).to_le_bytes();
                stored[offset * 2..][..2].copy_from_slice(&bytes);
                wanted.extend(bytes);
            }
            let order = Order { ty: ty.clone(), minor_to_major: minor_to_major.as_slice().into() };
            assert_eq!(order.to_row_major(&stored).expect("memory"), wanted, "{minor_to_major:?}");
        }
    }
}
