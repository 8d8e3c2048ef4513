//! What makes executables of a client: compiling a module, and loading what was compiled before.

use std::ffi::c_char;

use fuseline_sync::rank::before;
use pjrt_sys::*;

use super::api::call;
use super::client::Client;
use super::error::Error;
use super::executable::{Executable, Parameters};
use super::options::CompileOptions;

impl Client {
    /// Compiles a StableHLO module, as text or as bytecode, and loads the result.
    ///
    /// Blocks for as long as the compiler runs (tens of milliseconds and more). The module runs as native code: one
    /// with custom calls is to be trusted like the plugin.
    ///
    /// # Errors
    /// The compiler's words; also when the module returns a type that [`fuseline_fusion::DType`] has no name for.
    pub fn compile(&self, module: impl AsRef<[u8]>, options: &CompileOptions) -> Result<Executable, Error> {
        self.compile_as(module.as_ref(), options, Parameters::Asked)
    }

    /// As [`Client::compile`], by who knows the module's parameters.
    #[doc(hidden)]
    pub fn compile_as(
        &self,
        module: &[u8],
        options: &CompileOptions,
        parameters: Parameters,
    ) -> Result<Executable, Error> {
        const FORMAT: &str = "mlir";
        before("has the plugin compile");
        let options = options.to_bytes();
        let api = self.api();
        let mut program = api.block::<PJRT_Program>();
        // The field is in and out in C; `PJRT_Client_Compile` takes the program as const.
        program.code = module.as_ptr().cast::<c_char>().cast_mut();
        program.code_size = module.len();
        program.format = FORMAT.as_ptr().cast();
        program.format_size = FORMAT.len();
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

    /// Loads what [`Executable::serialize`] wrote. `options` replaces the compile options stored with it.
    ///
    /// # Safety
    /// The bytes are native code and are checked weakly or not at all. The caller vouches that they came, unchanged,
    /// from [`Executable::serialize`] under the same plugin file on a machine with the same processor features.
    ///
    /// # Errors
    /// Whatever the plugin notices, and as [`Client::compile`].
    pub unsafe fn deserialize(
        &self,
        bytes: &[u8],
        options: Option<&CompileOptions>,
    ) -> Result<Executable, Error> {
        // SAFETY: holds because the caller vouches for the bytes.
        unsafe { self.deserialize_as(bytes, options, Parameters::Asked) }
    }

    /// As [`Client::deserialize`], by who knows the module's parameters.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
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
        // SAFETY: holds because the client lives, the bytes outlive the call, and the caller vouches for them.
        unsafe { api.call(&mut args) }?;
        // SAFETY: holds because the call gave us the executable.
        unsafe {
            let function = "PJRT_Executable_DeserializeAndLoad";
            Executable::from_raw(self, args.loaded_executable, function, parameters)
        }
    }
}
