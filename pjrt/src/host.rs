//! Transfers host data to a device, and makes buffers of foreign device memory.
//!
//! The host semantics are named as in the C header. A borrowed slice is copied before the call
//! returns ([`Client::buffer_from_host`]). Owned data ([`HostData`]) is kept until the transfer is
//! done, or, where the plugin can use host memory in place, until the buffer is gone
//! ([`Client::buffer_from_owned`]).
//!
//! - HOST-1: owned data is dropped exactly once, and not before the plugin says that it is done
//!   with it. If the plugin cannot report that, it is never dropped.

use std::ffi::c_void;
use std::fmt;

use fuseline_fusion::literal::check_range;
use fuseline_fusion::{Element, TensorType};
use pjrt_sys::*;

use super::buffer::Buffer;
use super::callback::shield;
use super::client::Client;
use super::device::{Device, Memory};
use super::error::{Error, leak};
use super::event::Event;
use super::types::{buffer_type, raw_dims};

/// Alignment, in bytes, that host data needs for XLA:CPU to use it in place. Other data is copied.
pub const ZERO_COPY_ALIGN: usize = 64;

const FUNCTION: &str = "PJRT_Client_BufferFromHostBuffer";

/// The destination of a new buffer.
#[derive(Clone, Copy, Debug)]
pub enum Placement<'a> {
    /// The device's default memory.
    Device(&'a Device),
    /// This memory.
    Memory(&'a Memory),
}

impl<'a> From<&'a Device> for Placement<'a> {
    fn from(device: &'a Device) -> Placement<'a> {
        Placement::Device(device)
    }
}

impl<'a> From<&'a Memory> for Placement<'a> {
    fn from(memory: &'a Memory) -> Placement<'a> {
        Placement::Memory(memory)
    }
}

impl<'a> Placement<'a> {
    fn client(self) -> &'a Client {
        match self {
            Placement::Device(device) => device.client(),
            Placement::Memory(memory) => memory.client(),
        }
    }

    fn device(self) -> Option<&'a Device> {
        match self {
            Placement::Device(device) => Some(device),
            Placement::Memory(_) => None,
        }
    }

    fn raw(self) -> (*mut PJRT_Device, *mut PJRT_Memory) {
        match self {
            Placement::Device(device) => (device.raw(), std::ptr::null_mut()),
            Placement::Memory(memory) => (std::ptr::null_mut(), memory.raw()),
        }
    }
}

/// What the plugin may do with owned host data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSemantics {
    /// Read it until the transfer is done.
    UntilTransferred,
    /// Use it in place, read-only, until the buffer is gone.
    ZeroCopy,
    /// Use it in place until the buffer is gone, and overwrite it when the buffer is donated.
    /// Plugins of devices other than the CPU treat it as [`HostSemantics::UntilTransferred`].
    MutableZeroCopy,
}

/// Host data with its owner, which lives until the plugin is done with the data.
///
/// The owner may be dropped on a thread of the plugin. A panic of its destructor is caught and
/// counted there.
pub struct HostData {
    start: *const u8,
    len: usize,
    semantics: HostSemantics,
    owner: Owner,
}

// SAFETY: holds because `start` points to memory that the owner keeps, and the owner is `Send`.
unsafe impl Send for HostData {}

/// A box that is never moved as a box, so that pointers into its contents stay valid.
struct Owner(*mut dyn Send);

// SAFETY: holds because the boxed value is `Send`.
unsafe impl Send for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: holds because the pointer came from `Box::into_raw` and nobody else frees it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl HostData {
    /// Data that the plugin reads until the transfer is done.
    pub fn until_transferred<O: AsRef<[u8]> + Send + 'static>(owner: O) -> HostData {
        HostData::shared(owner, HostSemantics::UntilTransferred)
    }

    /// Data that the plugin may use in place, read-only.
    pub fn zero_copy<O: AsRef<[u8]> + Send + 'static>(owner: O) -> HostData {
        HostData::shared(owner, HostSemantics::ZeroCopy)
    }

    /// Data that the plugin may use in place and overwrite.
    pub fn mutable_zero_copy<O: AsMut<[u8]> + Send + 'static>(owner: O) -> HostData {
        let raw = Box::into_raw(Box::new(owner));
        let owner = Owner(raw);
        // SAFETY: holds because `raw` is a live box that only `owner` refers to.
        let data = unsafe { &mut *raw }.as_mut();
        HostData {
            start: data.as_mut_ptr(),
            len: data.len(),
            semantics: HostSemantics::MutableZeroCopy,
            owner,
        }
    }

    /// The elements of a vector.
    #[must_use]
    pub fn elements<T: Element>(mut elements: Vec<T>, semantics: HostSemantics) -> HostData {
        let (start, len) = (elements.as_mut_ptr().cast(), size_of_val(elements.as_slice()));
        // The vector is not accessed before it is dropped.
        HostData { start, len, semantics, owner: Owner(Box::into_raw(Box::new(elements))) }
    }

    /// The slice stays valid after this returns, because it could have been borrowed until just
    /// before the owner is dropped: the owner is neither moved nor accessed in between.
    fn shared<O: AsRef<[u8]> + Send + 'static>(owner: O, semantics: HostSemantics) -> HostData {
        let raw = Box::into_raw(Box::new(owner));
        let owner = Owner(raw);
        // SAFETY: holds because `raw` is a live box that only `owner` refers to.
        let data = unsafe { &*raw }.as_ref();
        HostData { start: data.as_ptr(), len: data.len(), semantics, owner }
    }

    /// Foreign memory that the plugin may use in place, read-only. `release` is called, on any
    /// thread, when the plugin is done with it.
    ///
    /// # Safety
    /// `start` is the address of `len` readable bytes, which stay valid and unchanged until
    /// `release` is called.
    pub unsafe fn foreign(start: *const u8, len: usize, release: impl FnOnce() + Send + 'static) -> HostData {
        struct Release<F: FnOnce()>(Option<F>);
        impl<F: FnOnce()> Drop for Release<F> {
            fn drop(&mut self) {
                if let Some(release) = self.0.take() {
                    release();
                }
            }
        }
        let owner = Owner(Box::into_raw(Box::new(Release(Some(release)))));
        // Zero bytes need no memory, and a null pointer is no valid address.
        let start = if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { start };
        HostData { start, len, semantics: HostSemantics::ZeroCopy, owner }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: holds because the owner keeps `len` bytes there, and nobody writes to them before
        // the plugin has them.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Address of the data.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Number of bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for HostData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostData({} bytes, {:?})", self.len, self.semantics)
    }
}

/// Bytes aligned to [`ZERO_COPY_ALIGN`], so that XLA:CPU can use them in place.
#[derive(Clone, Default)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ZERO_COPY_ALIGN]);

impl AlignedBytes {
    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> AlignedBytes {
        let mut aligned = AlignedBytes::zeros(bytes.len());
        aligned.as_mut().copy_from_slice(bytes);
        aligned
    }

    /// `len` zeros.
    #[must_use]
    pub fn zeros(len: usize) -> AlignedBytes {
        AlignedBytes { lines: vec![Line([0; ZERO_COPY_ALIGN]); len.div_ceil(ZERO_COPY_ALIGN)], len }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: holds because the lines are dense bytes, at least `len` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl AsMut<[u8]> for AlignedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: holds because the lines are dense bytes, at least `len` of them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// The bytes of elements, for [`Client::buffer_from_host`].
#[must_use]
pub fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: holds because the element types have no padding, and any of their bytes is a `u8`.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

impl Client {
    /// Creates a buffer of the given type from dense, row-major bytes, which are copied before this
    /// returns.
    ///
    /// # Errors
    /// When the length does not match the type, a `bool` byte is neither 0 nor 1, the place belongs
    /// to another client, or the plugin fails (out of memory).
    pub fn buffer_from_host<'p>(
        &self,
        ty: &TensorType,
        bytes: &[u8],
        place: impl Into<Placement<'p>>,
    ) -> Result<Buffer, Error> {
        const SEMANTICS: PJRT_HostBufferSemantics =
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
        let place = place.into();
        let data = (bytes.as_ptr(), bytes.len());
        // SAFETY: holds because the slice outlives the call, and the plugin does not access it
        // afterwards.
        let (raw, done) = unsafe { self.send(ty, data, SEMANTICS, place) }?;
        drop(done);
        // SAFETY: holds because `send` gave us the buffer, of that type.
        unsafe { Buffer::single(raw, self, ty, place.device(), FUNCTION) }
    }

    /// Creates a buffer of the given type from owned, dense, row-major data. Its [`HostSemantics`]
    /// determine what the plugin may do with it and for how long.
    ///
    /// [`Buffer::aliases`] tells whether the plugin uses the data in place; XLA:CPU does if it is
    /// aligned to [`ZERO_COPY_ALIGN`]. The owner is dropped when the plugin is done, or here after
    /// an error.
    ///
    /// # Errors
    /// As [`Client::buffer_from_host`].
    pub fn buffer_from_owned<'p>(
        &self,
        ty: &TensorType,
        data: HostData,
        place: impl Into<Placement<'p>>,
    ) -> Result<Buffer, Error> {
        let HostData { start, len, semantics, owner } = data;
        let semantics = match semantics {
            HostSemantics::UntilTransferred => {
                PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes
            }
            HostSemantics::ZeroCopy => PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableZeroCopy,
            HostSemantics::MutableZeroCopy => {
                PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kMutableZeroCopy
            }
        };
        let place = place.into();
        // SAFETY: holds because the owner keeps `len` bytes at `start`, is itself kept until the
        // plugin says that it is done (TOPOLOGY-1), and allows writing to the data where the
        // semantics do.
        let (raw, done) = unsafe { self.send(ty, (start, len), semantics, place) }?;
        match done {
            None => leak(owner),
            Some(done) => {
                if let Err((_, owner)) = done.register(owner, |owner, _| drop(owner)) {
                    leak(owner);
                }
            }
        }
        // SAFETY: holds because `send` gave us the buffer, of that type.
        unsafe { Buffer::single(raw, self, ty, place.device(), FUNCTION) }
    }

    /// Implements both functions above. Returns the new buffer, which the caller owns, and the
    /// event that signals that the plugin is done with the data.
    ///
    /// # Safety
    /// `data`, a start and a length, is readable, and stays readable, and writable, as `semantics`
    /// require.
    unsafe fn send(
        &self,
        ty: &TensorType,
        (start, len): (*const u8, usize),
        semantics: PJRT_HostBufferSemantics,
        place: Placement<'_>,
    ) -> Result<(*mut PJRT_Buffer, Option<Event>), Error> {
        if len as u64 != ty.bytes().0 {
            let text = format!("{ty} takes {} bytes of data, but {len} were given", ty.bytes().0);
            return Err(Error::invalid(FUNCTION, text));
        }
        if ty.dtype().bits() < 8 {
            // SAFETY: holds because the caller says that the data is readable, and nobody writes to
            // it yet.
            let bytes = unsafe { std::slice::from_raw_parts(start, len) };
            check_range(ty.dtype(), bytes).map_err(|error| Error::invalid(FUNCTION, error.to_string()))?;
        }
        if place.client() != self {
            return Err(Error::invalid(
                FUNCTION,
                "the target device or memory of the buffer belongs to another client",
            ));
        }
        let api = self.api();
        let dims = raw_dims(ty);
        let mut args = api.block::<PJRT_Client_BufferFromHostBuffer_Args>();
        args.client = self.raw();
        args.data = start.cast();
        args.type_ = buffer_type(ty.dtype());
        args.dims = dims.as_ptr();
        args.num_dims = dims.len();
        args.host_buffer_semantics = semantics;
        (args.device, args.memory) = place.raw();
        // SAFETY: holds because client, place and dims are alive during the call, and the caller
        // guarantees the requirements on the data.
        unsafe { api.call(&mut args) }?;
        // SAFETY: holds because the call gave us the event.
        let done = unsafe { Event::from_raw(args.done_with_host_buffer, self) };
        Ok((args.buffer, done))
    }

    /// Creates a buffer of foreign memory on a device (from another framework through DLPack, for
    /// example). `on_delete` runs on any thread once the plugin does not need the memory any more;
    /// rules as for [`Event::on_ready`]. It does not run after an error.
    ///
    /// # Safety
    /// `pointer` is an address on that device, aligned as the platform requires, of dense,
    /// row-major data of type `ty`, which is complete. It stays valid, and nobody else writes to
    /// it, until `on_delete` runs. If the buffer is donated, the plugin writes to it.
    ///
    /// # Errors
    /// When the place belongs to another client, or the plugin fails or has no such function.
    pub unsafe fn adopt<'p, F>(
        &self,
        pointer: *mut c_void,
        ty: &TensorType,
        place: impl Into<Placement<'p>>,
        on_delete: F,
    ) -> Result<Buffer, Error>
    where
        F: FnOnce() + Send + 'static,
    {
        const FUNCTION: &str = "PJRT_Client_CreateViewOfDeviceBuffer";
        let place = place.into();
        if place.client() != self {
            return Err(Error::invalid(FUNCTION, "the device of the memory belongs to another client"));
        }
        let api = self.api();
        let dims = raw_dims(ty);
        let state = Box::into_raw(Box::new(on_delete));
        let mut args = api.block::<PJRT_Client_CreateViewOfDeviceBuffer_Args>();
        args.client = self.raw();
        args.device_buffer_ptr = pointer;
        args.dims = dims.as_ptr();
        args.num_dims = dims.len();
        args.element_type = buffer_type(ty.dtype());
        args.on_delete_callback = Some(on_delete_callback::<F>);
        args.on_delete_callback_arg = state.cast();
        (args.device, args.tail.memory) = place.raw();
        // SAFETY: holds because client, place and dims are alive during the call, `state` is what
        // the callback expects, and the caller guarantees the requirements on the memory.
        if let Err(error) = unsafe { api.call(&mut args) } {
            // SAFETY: holds because a refused view never calls back.
            drop(unsafe { Box::from_raw(state) });
            return Err(error);
        }
        // SAFETY: holds because the call gave us the buffer, of the type that was asked for.
        unsafe { Buffer::single(args.buffer, self, ty, place.device(), FUNCTION) }
    }
}

unsafe extern "C" fn on_delete_callback<F: FnOnce()>(_pointer: *mut c_void, state: *mut c_void) {
    shield(|| {
        // SAFETY: holds because `adopt` made the box for this one call.
        let on_delete = unsafe { Box::from_raw(state.cast::<F>()) };
        on_delete();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_bytes_are_aligned_and_complete() {
        for len in [0, 1, 63, 64, 65, 1_000] {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let aligned = AlignedBytes::copy_of(&data);
            assert_eq!(aligned.as_ref(), data);
            assert_eq!(aligned.as_ref().as_ptr().addr() % ZERO_COPY_ALIGN, 0);
        }
    }

    #[test]
    fn host_data_points_into_its_owner() {
        let data = HostData::zero_copy([1u8, 2, 3]);
        // SAFETY: holds because the owner is alive.
        assert_eq!(unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) }, [1, 2, 3]);
        assert_eq!(HostData::elements(vec![1.0f32, 2.0], HostSemantics::ZeroCopy).len(), 8);
        assert!(HostData::until_transferred(Vec::new()).is_empty());
    }
}
