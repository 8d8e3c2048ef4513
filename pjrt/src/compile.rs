//! Creates executables of a client: compiles a module, or loads a serialized executable.

use fuseline_sync::lock_rank::before;
use pjrt_sys::*;

use super::api::call;
use super::client::Client;
use super::error::Error;
use super::executable::{Executable, Parameters};
use super::options::CompileOptions;

impl Client {
    /// Compiles a StableHLO module, as text or as bytecode, and loads the result.
    ///
    /// Blocks for as long as the compiler runs (tens of milliseconds or more). The module runs as
    /// native code: trust a module with custom calls only as far as the plugin itself.
    ///
    /// # Errors
    /// The error of the compiler. Also when the module returns a type that
    /// [`fuseline_fusion::DType`] has no name for.
    pub fn compile(&self, module: impl AsRef<[u8]>, options: &CompileOptions) -> Result<Executable, Error> {
        self.compile_as(module.as_ref(), options, Parameters::Asked)
    }

    /// As [`Client::compile`], if the caller knows the parameters of the module.
    #[doc(hidden)]
    pub fn compile_as(
        &self,
        module: &[u8],
        options: &CompileOptions,
        parameters: Parameters,
    ) -> Result<Executable, Error> {
        before("has the plugin compile");
        let options = options.to_bytes();
        let api = self.api();
        let mut program = api.program(module);
        // SAFETY: holds because the client lives, and program and options outlive the call.
        let out = unsafe {
            call!(
                api,
                PJRT_Client_Compile_Args {
                    client: self.raw(),
                    program: program.as_mut_ptr(),
                    compile_options: options.as_ptr().cast(),
                    compile_options_size: options.len(),
                }
            )
        }?;
        self.plugin().origin().note_compile();
        // SAFETY: holds because the call gave us the executable.
        unsafe { Executable::from_raw(self, out.executable, "PJRT_Client_Compile", parameters) }
    }

    /// Loads the result of [`Executable::serialize`]. `options` replaces the compile options stored
    /// with it.
    ///
    /// # Safety
    /// The bytes are native code and are hardly checked. The caller guarantees that they come,
    /// unchanged, from [`Executable::serialize`] under the same plugin file on a machine with the
    /// same processor features.
    ///
    /// # Errors
    /// Any error that the plugin detects, and those of [`Client::compile`].
    pub unsafe fn deserialize(
        &self,
        bytes: &[u8],
        options: Option<&CompileOptions>,
    ) -> Result<Executable, Error> {
        // SAFETY: holds because the caller guarantees the origin of the bytes.
        unsafe { self.deserialize_as(bytes, options, Parameters::Asked) }
    }

    /// As [`Client::deserialize`], if the caller knows the parameters of the module.
    ///
    /// # Safety
    /// As for [`Client::deserialize`].
    ///
    /// # Errors
    /// As for [`Client::deserialize`].
    #[doc(hidden)]
    pub unsafe fn deserialize_as(
        &self,
        bytes: &[u8],
        options: Option<&CompileOptions>,
        parameters: Parameters,
    ) -> Result<Executable, Error> {
        before("has the plugin load an executable");
        let options = options.map(CompileOptions::to_bytes);
        let api = self.api();
        let mut args = api.block::<PJRT_Executable_DeserializeAndLoad_Args>();
        args.client = self.raw();
        args.serialized_executable = bytes.as_ptr().cast();
        args.serialized_executable_size = bytes.len();
        if let Some(options) = &options {
            args.tail.overridden_serialized_compile_options = options.as_ptr().cast();
            args.tail.overridden_serialized_compile_options_size = options.len();
        }
        // SAFETY: holds because the client is alive, the bytes outlive the call, and the caller
        // guarantees their origin.
        unsafe { api.call(&mut args) }?;
        // SAFETY: holds because the call gave us the executable.
        unsafe {
            let function = "PJRT_Executable_DeserializeAndLoad";
            Executable::from_raw(self, args.loaded_executable, function, parameters)
        }
    }
}
