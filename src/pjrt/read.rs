//! Reading a buffer back to the host.
//!
//! Plugins differ in whether they reorder data: XLA:CPU ignores the host layout it is asked for and copies bytes. So
//! the copy is asked for in the order the device has, which every plugin can do, and put in order here.
//!
//! Invariant H1: the host memory that a copy writes to is freed only when the copy is known to be done, or never.

use std::fmt;

use fuseline_fusion::TensorType;
use pjrt_sys::*;
use smallvec::SmallVec;

use super::api::{call, list};
use super::buffer::Buffer;
use super::client::optional;
use super::error::{Code, Error, leak};
use super::event::Event;

const FUNCTION: &str = "PJRT_Buffer_ToHostBuffer";

/// A copy of a buffer on its way to the host: dense, row-major, little-endian bytes.
///
/// Dropping it abandons the copy without waiting. `Send + Sync`.
pub struct HostCopy {
    event: Event,
    target: Target,
}

/// Memory that is being written to: capacity for `len` bytes, of which none counts as initialised before the copy is
/// done.
#[derive(Default)]
struct Target {
    bytes: Vec<u8>,
    len: usize,
    /// What has to be put in order; `None` when the bytes come in row-major order.
    order: Option<Box<Order>>,
}

/// Type of a copy, and its dimensions as they are stored, innermost first.
struct Order {
    ty: TensorType,
    minor_to_major: MinorToMajor,
}

type MinorToMajor = SmallVec<[i64; 16]>;

impl Target {
    /// # Safety
    /// The copy is done and succeeded.
    unsafe fn filled(mut self) -> Vec<u8> {
        // SAFETY: holds because the copy wrote every byte.
        unsafe { self.bytes.set_len(self.len) };
        match self.order {
            None => self.bytes,
            Some(order) => order.to_row_major(&self.bytes),
        }
    }
}

impl Order {
    /// The elements of `stored` in row-major order.
    fn to_row_major(&self, stored: &[u8]) -> Vec<u8> {
        let size = self.ty.dtype().size();
        let dims: SmallVec<[usize; 16]> = self.ty.dims().iter().map(|dim| *dim as usize).collect();
        // How far apart neighbours along each dimension are stored, in elements.
        let mut strides: SmallVec<[usize; 16]> = SmallVec::from_elem(1, dims.len());
        let mut stride = 1;
        for axis in &self.minor_to_major {
            strides[*axis as usize] = stride;
            stride *= dims[*axis as usize];
        }
        let mut ordered = Vec::with_capacity(stored.len());
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
        ordered
    }
}

/// The order in which the device stores the buffer's dimensions, innermost first.
fn device_order(buffer: &Buffer) -> Result<MinorToMajor, Error> {
    let rank = buffer.ty().rank();
    let row_major = || (0..rank as i64).rev().collect();
    // There is only one order of fewer than two dimensions.
    if rank < 2 {
        return Ok(row_major());
    }
    // SAFETY: holds because the buffer is alive.
    let out = unsafe { call!(buffer.api(), PJRT_Buffer_GetMemoryLayout_Args { buffer: buffer.raw() }) };
    let Some(out) = optional(out)? else { return Ok(row_major()) };
    if out.layout.type_ != PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled {
        return Ok(row_major());
    }
    // SAFETY: holds because the type says that the layout is tiled.
    let tiled = unsafe { out.layout.__bindgen_anon_1.tiled };
    // SAFETY: holds because the list lives as long as the buffer.
    let order: MinorToMajor = unsafe { list(tiled.minor_to_major, tiled.minor_to_major_size) }.into();
    let permutation = order.len() == rank && (0..rank as i64).all(|axis| order.contains(&axis));
    Ok(if permutation { order } else { row_major() })
}

impl HostCopy {
    pub(super) fn start(buffer: &Buffer) -> Result<HostCopy, Error> {
        let api = buffer.api();
        let ty = buffer.ty();
        let exhausted = || {
            let text = format!("the host has no memory for a copy of {ty}, {}", ty.bytes());
            Error::layer(Code::ResourceExhausted, FUNCTION, text)
        };
        let len = usize::try_from(ty.bytes().0).map_err(|_| exhausted())?;
        let mut bytes: Vec<u8> = Vec::new();
        // One byte at least, so that the pointer is never dangling.
        bytes.try_reserve_exact(len.max(1)).map_err(|_| exhausted())?;
        let minor_to_major = device_order(buffer)?;
        let mut layout = api.block::<PJRT_Buffer_MemoryLayout>();
        layout.type_ = PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled;
        layout.__bindgen_anon_1.tiled = PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE as usize,
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..Default::default()
        };
        // SAFETY: holds because the buffer is alive, the layout outlives the call, and `bytes` has room for `len` bytes
        // and is not freed before the event is ready (H1).
        let out = unsafe {
            call!(
                api,
                PJRT_Buffer_ToHostBuffer_Args {
                    src: buffer.raw(),
                    host_layout: layout.as_mut_ptr(),
                    dst: bytes.as_mut_ptr().cast(),
                    dst_size: len,
                }
            )
        }?;
        // SAFETY: holds because the call gave us the event.
        let Some(event) = (unsafe { Event::from_raw(out.event, buffer.client()) }) else {
            leak(bytes);
            return Err(Error::layer(Code::Internal, FUNCTION, "the plugin returned no event"));
        };
        let in_order = minor_to_major.iter().rev().copied().eq(0..ty.rank() as i64);
        let order = (!in_order).then(|| Box::new(Order { ty: ty.clone(), minor_to_major }));
        Ok(HostCopy { event, target: Target { bytes, len, order } })
    }

    /// True when the copy is done, well or badly. Never blocks.
    ///
    /// # Errors
    /// When the plugin cannot tell.
    pub fn is_ready(&self) -> Result<bool, Error> {
        self.event.is_ready()
    }

    /// Blocks until the copy is done and gives the bytes.
    ///
    /// # Errors
    /// The error of the computation that makes the buffer, or of the copy.
    pub fn wait(mut self) -> Result<Vec<u8>, Error> {
        self.event.wait()?;
        let target = std::mem::take(&mut self.target);
        // SAFETY: holds because the event is ready and says so.
        Ok(unsafe { target.filled() })
    }

    /// Calls `callback` with the bytes, or the error, once the copy is done. Rules as for [`Event::on_ready`].
    pub fn on_ready<F>(mut self, callback: F)
    where
        F: FnOnce(Result<Vec<u8>, Error>) + Send + 'static,
    {
        let target = std::mem::take(&mut self.target);
        let refused = self.event.register((callback, target), |(callback, target), outcome| {
            // SAFETY: holds because the event is ready when this runs.
            callback(outcome.map(|()| unsafe { target.filled() }));
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
        // H1: the memory goes when the copy has.
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
