//! Tensors on a device.
//!
//! Invariants:
//! - BUF-1. The plugin's buffer object is destroyed once, by the [`Buffer`] that owns it, and the
//!   client outlives it.
//! - BUF-2. Type and device are stored here, so they are known after a delete or donation too.
//! - BUF-3. After a delete or donation every other use is an error, not undefined behavior: the
//!   plugin's object lives on and rejects it.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use fuseline_fusion::{DType, TensorType};
use fuseline_sync::{Mutex, MutexGuard, Rank};
use pjrt_sys::*;
use smallvec::{SmallVec, smallvec};

use super::api::{Api, call, list};
use super::client::Client;
use super::device::{Device, Memory};
use super::error::{Code, Error, count_destroy};
use super::event::Event;
use super::types::{dtype, tensor_type};

/// The client and the types, which the outputs of an execution share, so that each output needs no
/// allocation.
pub(super) struct Home {
    pub(super) client: Client,
    pub(super) types: SmallVec<[TensorType; 1]>,
}

/// A tensor on a device, or on its way there: calls return before the data has arrived, and the
/// plugin orders them.
///
/// `Send + Sync`. Dropping it frees the device memory once no started work uses it, without
/// waiting; but see below.
///
/// # Donation
///
/// An execution may reuse the memory of an argument for an output, if the module marks the
/// parameter so (`tf.aliasing_output`, `jax.buffer_donor`) and the call does not veto it
/// ([`super::ExecuteOptions::non_donatable`]). The buffer is then *donated*: [`Buffer::is_deleted`]
/// is true from the moment `execute` returns, every other use of it is an error, and it is dropped
/// as usual. With XLA:CPU the drop waits until the execution has run, so it must not happen on a
/// thread that the plugin needs for that ([`Event::on_ready`]). Copies to the host or to other
/// devices that were started before are not affected.
///
/// The plugin does not donate a buffer with an [`ExternalReference`], nor one that uses host data
/// in place without [`super::HostSemantics::MutableZeroCopy`]: it copies, and the output has its
/// own memory. (In the first case the buffer stays usable.) A call that takes the same buffer
/// twice, once for donation, is an error, and nothing is donated. This layer never decides about
/// donation.
pub struct Buffer {
    raw: NonNull<PJRT_Buffer>,
    home: Arc<Home>,
    /// Index of the type in `home`.
    index: u32,
    /// Slot of the device in the client.
    device: u32,
    /// Held during calls that are not thread-safe; see [`Buffer::alone`].
    alone: Mutex<()>,
}

// SAFETY: holds because PJRT buffers may be used and destroyed on any thread, several threads at a
// time (see the thread-safety section of the module `pjrt`), and the rest of the struct is `Send +
// Sync` by itself.
unsafe impl Send for Buffer {}
// SAFETY: holds for the same reason.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes over a buffer that a call returned.
    ///
    /// # Safety
    /// `raw` is null or a buffer of `home`'s client that nobody else owns, of type
    /// `home.types[index]`.
    #[inline]
    pub(super) unsafe fn from_raw(
        raw: *mut PJRT_Buffer,
        home: &Arc<Home>,
        index: u32,
        device: u32,
        function: &'static str,
    ) -> Result<Buffer, Error> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::layer(Code::Internal, function, "the plugin returned no buffer"));
        };
        Ok(Buffer { raw, home: Arc::clone(home), index, device, alone: Mutex::new(Rank::BufferCalls, ()) })
    }

    /// [`Buffer::from_raw`] for a buffer without siblings. Without `device` the plugin is asked for
    /// it.
    ///
    /// # Safety
    /// `raw` is null or a buffer of `client` that nobody else owns, of type `ty`.
    pub(super) unsafe fn single(
        raw: *mut PJRT_Buffer,
        client: &Client,
        ty: &TensorType,
        device: Option<&Device>,
        function: &'static str,
    ) -> Result<Buffer, Error> {
        let home = Arc::new(Home { client: client.clone(), types: smallvec![ty.clone()] });
        let slot = device.map_or(0, Device::slot);
        // SAFETY: holds because the caller guarantees the requirements on `raw`.
        let mut buffer = unsafe { Buffer::from_raw(raw, &home, 0, slot, function) }?;
        if device.is_none() {
            // SAFETY: holds because `buffer` is alive.
            let out = unsafe { call!(client.api(), PJRT_Buffer_Device_Args { buffer: buffer.raw() }) }?;
            buffer.device = client.device_slot(out.device, "PJRT_Buffer_Device")?;
        }
        Ok(buffer)
    }

    /// Lock for calls that access external references or the layout. XLA's implementation of the C
    /// API keeps both in the buffer, in a list and an optional value without a lock. When two
    /// threads read a buffer at once, a reference was lost, and the process ended when the buffer
    /// was destroyed (API 0.81).
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock()
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut PJRT_Buffer {
        self.raw.as_ptr()
    }

    #[inline]
    pub(super) fn api(&self) -> &'static Api {
        self.home.client.api()
    }

    /// The plugin's own handle, a `PJRT_Buffer *`, for other code that uses the plugin. It may be
    /// read while this lives, and must never be destroyed.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut c_void {
        self.raw.as_ptr().cast()
    }

    /// The client of the buffer.
    #[must_use]
    #[inline]
    pub fn client(&self) -> &Client {
        &self.home.client
    }

    /// Element type and dimensions. For a dimension of dynamic size, its bound.
    #[must_use]
    #[inline]
    pub fn ty(&self) -> &TensorType {
        &self.home.types[self.index as usize]
    }

    /// Element type.
    #[must_use]
    #[inline]
    pub fn dtype(&self) -> DType {
        self.ty().dtype()
    }

    /// Sizes of the dimensions, outermost first.
    #[must_use]
    #[inline]
    pub fn dims(&self) -> &[u64] {
        self.ty().dims()
    }

    /// The device whose memory the buffer lies in.
    #[must_use]
    #[inline]
    pub fn device(&self) -> Device {
        Device::new(&self.home.client, self.device)
    }

    /// The memory the buffer lies in.
    ///
    /// # Errors
    /// When the plugin has no such function, or the buffer is deleted.
    pub fn memory(&self) -> Result<Memory, Error> {
        const FUNCTION: &str = "PJRT_Buffer_Memory";
        // SAFETY: holds because `self` keeps the buffer alive.
        let out = unsafe { call!(self.api(), PJRT_Buffer_Memory_Args { buffer: self.raw() }) }?;
        let memories = self.client().memory_entries();
        let slot = memories.iter().position(|entry| std::ptr::eq(entry.raw.as_ptr(), out.memory));
        let text = "the plugin named a memory that it did not list";
        let slot = slot.ok_or_else(|| Error::layer(Code::Internal, FUNCTION, text))?;
        Ok(Memory::new(self.client(), slot as u32))
    }

    /// Bytes the buffer takes on the device, padding included.
    ///
    /// # Errors
    /// When the plugin has no such function, or the buffer is deleted.
    pub fn on_device_size(&self) -> Result<u64, Error> {
        // SAFETY: holds because `self` keeps the buffer alive.
        let out = unsafe { call!(self.api(), PJRT_Buffer_OnDeviceSizeInBytes_Args { buffer: self.raw() }) }?;
        Ok(out.on_device_size_in_bytes as u64)
    }

    /// An event that is ready once the data is available, or once its computation has failed.
    ///
    /// For a deleted or donated buffer it is ready and failed. A later delete does not affect an
    /// event taken before.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn ready_event(&self) -> Result<Event, Error> {
        const FUNCTION: &str = "PJRT_Buffer_ReadyEvent";
        // SAFETY: holds because `self` keeps the buffer alive.
        let out = unsafe { call!(self.api(), PJRT_Buffer_ReadyEvent_Args { buffer: self.raw() }) }?;
        // SAFETY: holds because the call gave us the event.
        let event = unsafe { Event::from_raw(out.event, self.client()) };
        event.ok_or_else(|| Error::layer(Code::Internal, FUNCTION, "the plugin returned no event"))
    }

    /// Frees the device memory now, though handles remain. Started work still finishes. A second
    /// call is no error.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn delete(&self) -> Result<(), Error> {
        // SAFETY: holds because `self` keeps the buffer alive.
        unsafe { call!(self.api(), PJRT_Buffer_Delete_Args { buffer: self.raw() }) }.map(drop)
    }

    /// True after [`Buffer::delete`] and after a donation.
    ///
    /// # Errors
    /// When the plugin cannot determine it.
    pub fn is_deleted(&self) -> Result<bool, Error> {
        // SAFETY: holds because `self` keeps the buffer alive.
        let out = unsafe { call!(self.api(), PJRT_Buffer_IsDeleted_Args { buffer: self.raw() }) }?;
        Ok(out.is_deleted)
    }

    /// Copies the buffer to another device of the same client, asynchronously.
    ///
    /// # Errors
    /// When the buffer is deleted, the device is of another client, or the plugin fails.
    pub fn copy_to_device(&self, device: &Device) -> Result<Buffer, Error> {
        const FUNCTION: &str = "PJRT_Buffer_CopyToDevice";
        if device.client() != self.client() {
            return Err(Error::invalid(FUNCTION, "the device belongs to another client than the buffer"));
        }
        // SAFETY: holds because buffer and device are alive, and of the same client.
        let out = unsafe {
            call!(self.api(), PJRT_Buffer_CopyToDevice_Args { buffer: self.raw(), dst_device: device.raw() })
        }?;
        // SAFETY: holds because the call gave us the copy, which has the same type.
        unsafe { Buffer::single(out.dst_buffer, self.client(), self.ty(), Some(device), FUNCTION) }
    }

    /// Copies the buffer to another memory of the same client, asynchronously.
    ///
    /// # Errors
    /// When the buffer is deleted, the memory is of another client, or the plugin fails or has no
    /// such function.
    pub fn copy_to_memory(&self, memory: &Memory) -> Result<Buffer, Error> {
        const FUNCTION: &str = "PJRT_Buffer_CopyToMemory";
        if memory.client() != self.client() {
            return Err(Error::invalid(FUNCTION, "the memory belongs to another client than the buffer"));
        }
        // SAFETY: holds because buffer and memory are alive, and of the same client.
        let out = unsafe {
            call!(self.api(), PJRT_Buffer_CopyToMemory_Args { buffer: self.raw(), dst_memory: memory.raw() })
        }?;
        // SAFETY: holds because the call gave us the copy, which has the same type.
        unsafe { Buffer::single(out.dst_buffer, self.client(), self.ty(), None, FUNCTION) }
    }

    /// True when the buffer lies in memory that the host can access directly.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn is_on_cpu(&self) -> Result<bool, Error> {
        // SAFETY: holds because `self` keeps the buffer alive.
        let out = unsafe { call!(self.api(), PJRT_Buffer_IsOnCpu_Args { buffer: self.raw() }) }?;
        Ok(out.is_on_cpu)
    }

    /// Address of the buffer's data, as the platform sees it. On XLA:CPU a host address.
    ///
    /// Only a number: the data may be moved or freed at any time unless an [`ExternalReference`] is
    /// held, and is not available before [`Buffer::ready_event`].
    ///
    /// # Errors
    /// When the buffer is deleted or the plugin has no such function.
    pub fn unsafe_pointer(&self) -> Result<usize, Error> {
        // SAFETY: holds because `self` keeps the buffer alive.
        let out = unsafe { call!(self.api(), PJRT_Buffer_UnsafePointer_Args { buffer: self.raw() }) }?;
        Ok(out.buffer_pointer)
    }

    /// True when the buffer uses the host memory at `data` in place, rather than a copy of it.
    ///
    /// # Errors
    /// As [`Buffer::unsafe_pointer`].
    pub fn aliases(&self, data: *const u8) -> Result<bool, Error> {
        Ok(self.unsafe_pointer()? == data.addr())
    }
}

impl Device {
    /// Takes over a buffer on this device that other code made with the same client. The plugin
    /// reports its type.
    ///
    /// # Safety
    /// `raw` is null or a `PJRT_Buffer *` of the plugin of this device's client, alive, which
    /// nobody else owns, deletes, donates or destroys from now on, with the plugin's default
    /// layout.
    ///
    /// # Errors
    /// When the buffer is on another device or client, or its type has no name here. Then the
    /// caller still owns it.
    pub unsafe fn adopt_buffer(&self, raw: *mut c_void) -> Result<Buffer, Error> {
        const FUNCTION: &str = "PJRT_Buffer_Device";
        let raw: *mut PJRT_Buffer = raw.cast();
        if raw.is_null() {
            return Err(Error::invalid(FUNCTION, "the pointer to the buffer is null"));
        }
        let api = self.client().api();
        // SAFETY: holds because the caller says that the buffer is alive.
        let on = unsafe { call!(api, PJRT_Buffer_Device_Args { buffer: raw }) }?.device;
        if !std::ptr::eq(on, self.raw()) {
            return Err(Error::invalid(FUNCTION, format!("the buffer is not on {self:?} of this client")));
        }
        // SAFETY: holds because the caller says that the buffer is alive.
        let element = unsafe { call!(api, PJRT_Buffer_ElementType_Args { buffer: raw }) }?.type_;
        let element = dtype(element, "PJRT_Buffer_ElementType")?;
        // SAFETY: holds because the caller says that the buffer is alive.
        let out = unsafe { call!(api, PJRT_Buffer_Dimensions_Args { buffer: raw }) }?;
        // SAFETY: holds because the call gave us that many sizes, which live as long as the buffer.
        let dims = unsafe { list(out.dims, out.num_dims) };
        let ty = tensor_type(element, dims, "PJRT_Buffer_Dimensions")?;
        // SAFETY: holds because the buffer is on a device of this client, of that type, and the
        // caller gives it away.
        unsafe { Buffer::single(raw, self.client(), &ty, Some(self), FUNCTION) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: holds because this handle is the only owner (BUF-1).
        let outcome = unsafe { call!(self.api(), PJRT_Buffer_Destroy_Args { buffer: self.raw() }) };
        count_destroy(outcome.map(drop));
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} on {:?})", self.ty(), self.device())
    }
}

/// Tells the plugin that outside code uses a buffer's memory, and provides its address.
///
/// While it lives, the plugin neither frees, moves nor donates the memory. `B` is any handle on the
/// buffer: a reference, or an `Arc` to pass on.
pub struct ExternalReference<B: Deref<Target = Buffer>> {
    buffer: B,
    address: usize,
}

impl<B: Deref<Target = Buffer>> ExternalReference<B> {
    /// Takes a reference on `buffer`'s memory.
    ///
    /// # Errors
    /// When the buffer is deleted or the plugin does not share its memory.
    pub fn new(buffer: B) -> Result<ExternalReference<B>, Error> {
        let api = buffer.api();
        let raw = buffer.raw();
        let alone = buffer.alone();
        // SAFETY: holds because `buffer` is alive, and no other thread is in such a call.
        unsafe { call!(api, PJRT_Buffer_IncreaseExternalReferenceCount_Args { buffer: raw }) }?;
        drop(alone);
        let mut reference = ExternalReference { buffer, address: 0 };
        // SAFETY: holds because `buffer` is alive.
        let out = unsafe { call!(api, PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args { buffer: raw }) }?;
        reference.address = out.device_memory_ptr.expose_provenance();
        Ok(reference)
    }

    /// The buffer.
    #[must_use]
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Address of the data on the device, in the device's layout. The data is available once
    /// [`Buffer::ready_event`] is ready.
    #[must_use]
    #[inline]
    pub fn pointer(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

impl<B: Deref<Target = Buffer>> Drop for ExternalReference<B> {
    fn drop(&mut self) {
        let buffer = &*self.buffer;
        let _alone = buffer.alone();
        // SAFETY: holds because `buffer` is alive, `new` took the reference that is given back, and
        // no other thread is in such a call.
        let outcome = unsafe {
            call!(buffer.api(), PJRT_Buffer_DecreaseExternalReferenceCount_Args { buffer: buffer.raw() })
        };
        count_destroy(outcome.map(drop));
    }
}

impl<B: Deref<Target = Buffer>> fmt::Debug for ExternalReference<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalReference({:?} at {:#x})", self.buffer(), self.address)
    }
}
