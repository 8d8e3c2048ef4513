//! Foreign memory and buffers, by pointer: the unsafe calls of this interface. `pjrt` has the code
//! that uses the pointers.

use std::ffi::c_void;

use fuseline_fusion::{Site, TensorType};
use fuseline_runtime::{Error, Result};

use super::{Session, StreamHandle, ValueHandle};
use crate::pjrt::HostData;

impl Session {
    /// As [`Session::upload_shared`], for memory of the caller. `release` is called, on any thread,
    /// when nothing needs the memory any more, and also when this fails.
    ///
    /// # Safety
    /// `data` is the start of `len` readable bytes, which stay valid and unchanged until `release`
    /// is called.
    ///
    /// # Errors
    /// As [`Session::upload`].
    pub unsafe fn upload_foreign(
        &self,
        stream: StreamHandle,
        ty: &TensorType,
        (data, len): (*const u8, usize),
        release: impl FnOnce() + Send + 'static,
    ) -> Result<ValueHandle> {
        let telemetry = self.0.engine.shared().telemetry().clone();
        let release = move || telemetry.call_back("release", release);
        // SAFETY: holds because the caller guarantees that the memory stays valid and unchanged
        // until `release` is called.
        let data = unsafe { HostData::foreign(data, len, release) };
        self.keep_tensor(
            self.stream(stream, "upload_foreign").and_then(|stream| stream.upload_owned(ty, data)),
        )
    }

    /// Creates a value from a buffer of the engine's own PJRT client that somebody else made. The
    /// plugin reports its type. The session owns the buffer from now on and destroys it. Its memory
    /// may be reused for results.
    ///
    /// # Safety
    /// `buffer` is a live `PJRT_Buffer *` of the plugin that the engine uses. Nobody else owns it,
    /// donates it, deletes it or destroys it, and its data has the plugin's default layout.
    ///
    /// # Errors
    /// When the id of the stream is invalid or of a trace, the engine has no plugin or several
    /// replicas, the buffer is on another client or device, or its type is not supported. Then the
    /// caller still owns it.
    pub unsafe fn adopt_buffer(&self, stream: StreamHandle, buffer: *mut c_void) -> Result<ValueHandle> {
        self.keep_tensor(self.stream(stream, "adopt_buffer").and_then(|stream| {
            let engine = stream.shared().engine();
            let Some(device) = engine.device().pjrt() else {
                let message = "adopt_buffer: the reference device has no PJRT buffers";
                return Err(Error::misuse(message, Site::Unknown));
            };
            if device.replicas() > 1 {
                let message =
                    "adopt_buffer: a value of an engine with several replicas needs one buffer per replica";
                return Err(Error::misuse(message, Site::Unknown));
            }
            // SAFETY: holds because the caller guarantees the requirements on the buffer.
            let buffer = unsafe { device.device().adopt_buffer(buffer) }
                .map_err(|error| Error::misuse(format!("adopt_buffer: {error}"), Site::Unknown))?;
            Ok(stream.of_buffer(buffer))
        }))
    }
}
