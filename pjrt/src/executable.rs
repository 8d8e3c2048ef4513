//! Compiled and loaded programs: their parameters, outputs and costs.
//!
//! `execute` runs them.
//!
//! Invariants:
//! - EXE-1. Both plugin objects (the loaded one and its description) are destroyed once, after
//!   every handle is gone, and before the client. Executions in flight finish.
//! - EXE-2. Number, types and devices of inputs and outputs are queried once, when the executable
//!   is created.

use std::ffi::c_char;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use fuseline_fusion::TensorType;
use pjrt_sys::protos::xla::{ProgramShapeProto, ShapeProto};
use pjrt_sys::*;
use prost::Message;
use smallvec::SmallVec;

use super::abi::Call;
use super::api::{Api, call, list, text};
use super::buffer::Home;
use super::client::Client;
use super::device::Device;
use super::error::{Code, Error, count_destroy, optional};
use super::types::{dtype, primitive_dtype, tensor_type};
use super::value::{Value, read_named_values};

/// A program that was compiled for, or loaded onto, devices of a client. Clones are the same
/// executable.
///
/// `Send + Sync`: any number of threads may run it at once.
#[derive(Clone)]
pub struct Executable(Arc<Inner>);

pub(super) struct Inner {
    pub(super) raw: RawExecutable,
    /// The client and the output types.
    pub(super) home: Arc<Home>,
    /// `None` when the plugin does not report them.
    pub(super) parameters: Option<Box<[TensorType]>>,
    /// Slots of the devices of this process that it runs on, in order; empty for a portable one.
    pub(super) devices: SmallVec<[u32; 1]>,
    pub(super) name: String,
}

/// Destroys the plugin's objects when dropped.
pub(super) struct RawExecutable {
    client: Client,
    pub(super) loaded: NonNull<PJRT_LoadedExecutable>,
    program: *mut PJRT_Executable,
}

// SAFETY: holds because PJRT executables may be used and destroyed on any thread, several threads
// at a time (see the thread-safety section of the module `pjrt`).
unsafe impl Send for RawExecutable {}
// SAFETY: holds for the same reason.
unsafe impl Sync for RawExecutable {}

impl Drop for RawExecutable {
    fn drop(&mut self) {
        let api = self.client.api();
        if !self.program.is_null() {
            // SAFETY: holds because this is the only owner, at its end (EXE-1).
            unsafe { destroy(api, self.program) };
        }
        let loaded = self.loaded.as_ptr();
        // SAFETY: holds because this is the only owner, at its end (EXE-1).
        let outcome = unsafe { call!(api, PJRT_LoadedExecutable_Destroy_Args { executable: loaded }) };
        count_destroy(outcome.map(drop));
    }
}

/// The bytes of an executable.
///
/// # Safety
/// `program` is an executable of this plugin, and lives through the call.
pub(super) unsafe fn serialize(api: &Api, program: *mut PJRT_Executable) -> Result<Vec<u8>, Error> {
    // SAFETY: holds because the caller guarantees that the executable is alive.
    let out = unsafe { call!(api, PJRT_Executable_Serialize_Args { executable: program }) }?;
    // SAFETY: holds because the bytes live until the deleter is called, below.
    let bytes = unsafe { list(out.serialized_bytes.cast::<u8>(), out.serialized_bytes_size) }.to_vec();
    if let Some(delete) = out.serialized_executable_deleter {
        // SAFETY: holds because that is the object the deleter came with, and it is called once.
        unsafe { delete(out.serialized_executable) };
    }
    Ok(bytes)
}

/// Destroys an executable.
///
/// # Safety
/// `program` is an executable of this plugin that nobody else has or destroys.
pub(super) unsafe fn destroy(api: &Api, program: *mut PJRT_Executable) {
    // SAFETY: holds because the caller guarantees that the executable is alive and not shared.
    let outcome = unsafe { call!(api, PJRT_Executable_Destroy_Args { executable: program }) };
    count_destroy(outcome.map(drop));
}

/// Memory that one execution needs, in bytes, as the compiler planned it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompiledMemoryStats {
    /// Machine code.
    pub generated_code: i64,
    /// All arguments.
    pub arguments: i64,
    /// All outputs.
    pub outputs: i64,
    /// The part of the outputs that lies in the memory of arguments.
    pub aliased: i64,
    /// Scratch.
    pub temporaries: i64,
    /// The same on the host.
    pub host_generated_code: i64,
    /// The same on the host.
    pub host_arguments: i64,
    /// The same on the host.
    pub host_outputs: i64,
    /// The same on the host.
    pub host_aliased: i64,
    /// The same on the host.
    pub host_temporaries: i64,
    /// Maximum in use at any one time; `None` from plugins older than the field.
    pub peak: Option<i64>,
}

/// A program after the compiler's passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizedProgram {
    /// `hlo` (a serialized `HloModuleProto`) or `hlo_with_config` (`HloModuleProtoWithConfig`).
    pub format: String,
    /// The serialized program.
    pub bytes: Vec<u8>,
}

impl Executable {
    /// Takes over an executable that `function` returned.
    ///
    /// # Safety
    /// `loaded` is null or an executable of `client` that nobody else owns.
    pub(super) unsafe fn from_raw(
        client: &Client,
        loaded: *mut PJRT_LoadedExecutable,
        function: &'static str,
        parameters: Parameters,
    ) -> Result<Executable, Error> {
        let Some(loaded) = NonNull::new(loaded) else {
            return Err(Error::layer(Code::Internal, function, "the plugin returned no executable"));
        };
        let api = client.api();
        // From here on the objects are destroyed on every path.
        let mut raw = RawExecutable { client: client.clone(), loaded, program: std::ptr::null_mut() };
        // SAFETY: holds because `raw` keeps the executable alive.
        let out = unsafe {
            call!(api, PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: loaded.as_ptr() })
        }?;
        if out.executable.is_null() {
            const FUNCTION: &str = PJRT_LoadedExecutable_GetExecutable_Args::FUNCTION;
            return Err(Error::layer(
                Code::Internal,
                FUNCTION,
                "the plugin returned no description of the executable",
            ));
        }
        raw.program = out.executable;
        let types = raw.output_types()?;
        let devices = raw.devices()?;
        let parameters = match parameters {
            Parameters::Asked => raw.parameters()?,
            Parameters::Known(types) => Some(types),
        };
        let name = optional(raw.name())?.unwrap_or_default();
        let home = Arc::new(Home { client: client.clone(), types });
        Ok(Executable(Arc::new(Inner { raw, home, parameters, devices, name })))
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }

    /// The client the executable belongs to.
    #[must_use]
    #[inline]
    pub fn client(&self) -> &Client {
        &self.0.home.client
    }

    /// Name of the module.
    #[must_use]
    #[inline]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Types of the outputs, in order.
    #[must_use]
    #[inline]
    pub fn outputs(&self) -> &[TensorType] {
        &self.0.home.types
    }

    /// Number of outputs.
    #[must_use]
    #[inline]
    pub fn num_outputs(&self) -> usize {
        self.outputs().len()
    }

    /// Types of the parameters, in order. `None` when the plugin does not show the program. Known
    /// types are checked before every execution.
    #[must_use]
    #[inline]
    pub fn parameters(&self) -> Option<&[TensorType]> {
        self.0.parameters.as_deref()
    }

    /// The devices of this process that the executable runs on, in the order of the argument lists.
    /// Empty for a portable executable, if the plugin supports that.
    #[must_use]
    pub fn addressable_devices(&self) -> Vec<Device> {
        self.0.devices.iter().map(|slot| Device::new(self.client(), *slot)).collect()
    }

    /// Number of replicas that it was compiled for.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn num_replicas(&self) -> Result<usize, Error> {
        let (api, program) = self.0.raw.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_NumReplicas_Args { executable: program }) }?;
        Ok(out.num_replicas)
    }

    /// Number of partitions that it was compiled for.
    ///
    /// # Errors
    /// When the plugin has no such function.
    pub fn num_partitions(&self) -> Result<usize, Error> {
        let (api, program) = self.0.raw.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_NumPartitions_Args { executable: program }) }?;
        Ok(out.num_partitions)
    }

    /// Size of the machine code in bytes.
    ///
    /// # Errors
    /// When the plugin has no such function or does not know it.
    pub fn generated_code_size(&self) -> Result<i64, Error> {
        let (api, program) = self.0.raw.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out =
            unsafe { call!(api, PJRT_Executable_SizeOfGeneratedCodeInBytes_Args { executable: program }) }?;
        Ok(out.size_in_bytes)
    }

    /// A fingerprint that is equal for equal compiles, as opaque bytes.
    ///
    /// # Errors
    /// When the plugin has no such function or does not know it.
    pub fn fingerprint(&self) -> Result<Vec<u8>, Error> {
        let (api, program) = self.0.raw.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_Fingerprint_Args { executable: program }) }?;
        let start = out.executable_fingerprint.cast::<u8>();
        // SAFETY: holds because the fingerprint lives as long as the executable.
        Ok(unsafe { list(start, out.executable_fingerprint_size) }.to_vec())
    }

    /// The compiler's estimates of cost, such as `flops` and `bytes accessed`.
    ///
    /// # Errors
    /// When the plugin has no such function or does not estimate.
    pub fn cost_analysis(&self) -> Result<Vec<(String, Value)>, Error> {
        let (api, program) = self.0.raw.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_GetCostAnalysis_Args { executable: program }) }?;
        // SAFETY: holds because the list lives as long as the executable.
        Ok(unsafe { read_named_values(out.properties, out.num_properties) })
    }

    /// The memory that one execution needs.
    ///
    /// # Errors
    /// When the plugin has no such function or does not know it.
    pub fn memory_stats(&self) -> Result<CompiledMemoryStats, Error> {
        /// No plugin reports this value. If it is unchanged after the call, the plugin is older
        /// than the field.
        const UNTOUCHED: i64 = i64::MIN;
        let (api, program) = self.0.raw.parts();
        let mut args = api.block::<PJRT_Executable_GetCompiledMemoryStats_Args>();
        args.executable = program;
        args.tail.peak_memory_in_bytes = UNTOUCHED;
        // SAFETY: holds because `self` keeps the executable alive.
        unsafe { api.call(&mut args) }?;
        let peak = args.tail.peak_memory_in_bytes;
        Ok(CompiledMemoryStats {
            generated_code: args.generated_code_size_in_bytes,
            arguments: args.argument_size_in_bytes,
            outputs: args.output_size_in_bytes,
            aliased: args.alias_size_in_bytes,
            temporaries: args.temp_size_in_bytes,
            host_generated_code: args.host_generated_code_size_in_bytes,
            host_arguments: args.host_argument_size_in_bytes,
            host_outputs: args.host_output_size_in_bytes,
            host_aliased: args.host_alias_size_in_bytes,
            host_temporaries: args.host_temp_size_in_bytes,
            peak: (peak != UNTOUCHED).then_some(peak),
        })
    }

    /// The executable as bytes for [`Client::deserialize`] under the same plugin file on a similar
    /// machine.
    ///
    /// # Errors
    /// When the plugin has no such function or cannot serialize this program.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let (api, program) = self.0.raw.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        unsafe { serialize(api, program) }
    }

    /// The program after the compiler's passes.
    ///
    /// # Errors
    /// When the plugin has no such function or does not keep the program.
    pub fn optimized_program(&self) -> Result<OptimizedProgram, Error> {
        self.0.raw.optimized_program()
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({}: ", self.name())?;
        match self.parameters() {
            Some(parameters) => write!(f, "{parameters:?}")?,
            None => f.write_str("?")?,
        }
        write!(f, " -> {:?})", self.outputs())
    }
}

/// How to find out the parameters of a new executable.
#[derive(Debug)]
pub enum Parameters {
    /// Ask the plugin. For that it prints its program twice, which takes a tenth of the time of a
    /// load (0.35 of 3.8 ms for 200 ops, 5 of 47 ms for 418).
    Asked,
    /// The types are known from the module that it is compiled from.
    Known(Box<[TensorType]>),
}

/// `HloModuleProto` with only its signature. The rest of the module is skipped, not decoded.
#[derive(Clone, PartialEq, Message)]
struct Signature {
    #[prost(message, optional, tag = "4")]
    host_program_shape: Option<ProgramShapeProto>,
}

/// `HloModuleProtoWithConfig`.
#[derive(Clone, PartialEq, Message)]
struct SignatureWithConfig {
    #[prost(message, optional, tag = "1")]
    hlo_module: Option<Signature>,
}

impl RawExecutable {
    fn parts(&self) -> (&'static Api, *mut PJRT_Executable) {
        (self.client.api(), self.program)
    }

    fn name(&self) -> Result<String, Error> {
        let (api, program) = self.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_Name_Args { executable: program }) }?;
        // SAFETY: holds because the name lives as long as the executable.
        Ok(unsafe { text(out.executable_name, out.executable_name_size) })
    }

    fn output_types(&self) -> Result<SmallVec<[TensorType; 1]>, Error> {
        const TYPES: &str = PJRT_Executable_OutputElementTypes_Args::FUNCTION;
        const DIMS: &str = PJRT_Executable_OutputDimensions_Args::FUNCTION;
        let (api, program) = self.parts();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_NumOutputs_Args { executable: program }) }?;
        let count = out.num_outputs;
        // SAFETY: holds because `self` keeps the executable alive.
        let types = unsafe { call!(api, PJRT_Executable_OutputElementTypes_Args { executable: program }) }?;
        // SAFETY: holds because the list lives as long as the executable.
        let dtypes = unsafe { list(types.output_types, types.num_output_types) };
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe { call!(api, PJRT_Executable_OutputDimensions_Args { executable: program }) }?;
        // SAFETY: holds because the list lives as long as the executable.
        let ranks = unsafe { list(out.dim_sizes, out.num_outputs) };
        if dtypes.len() != count || ranks.len() != count {
            let text = format!("{count} outputs, but {} types and {} shapes", dtypes.len(), ranks.len());
            return Err(Error::layer(Code::Internal, DIMS, text));
        }
        // SAFETY: holds because the list, as long as all ranks together, lives as long as the
        // executable.
        let mut dims = unsafe { list(out.dims, ranks.iter().sum()) };
        let types = dtypes.iter().zip(ranks).map(|(number, rank)| {
            let (these, rest) = dims.split_at_checked(*rank).unwrap_or((dims, &[]));
            dims = rest;
            tensor_type(dtype(*number, TYPES)?, these, DIMS)
        });
        types.collect()
    }

    fn devices(&self) -> Result<SmallVec<[u32; 1]>, Error> {
        const FUNCTION: &str = PJRT_LoadedExecutable_AddressableDevices_Args::FUNCTION;
        let loaded = self.loaded.as_ptr();
        // SAFETY: holds because `self` keeps the executable alive.
        let out = unsafe {
            call!(self.client.api(), PJRT_LoadedExecutable_AddressableDevices_Args { executable: loaded })
        }?;
        // SAFETY: holds because the list lives as long as the executable.
        let raws = unsafe { list(out.addressable_devices, out.num_addressable_devices) };
        raws.iter().map(|raw| self.client.device_slot(*raw, FUNCTION)).collect()
    }

    /// Parameter types from the optimized program. The C API has no function for them.
    fn parameters(&self) -> Result<Option<Box<[TensorType]>>, Error> {
        let Some(program) = optional(self.optimized_program())? else { return Ok(None) };
        let bytes = program.bytes.as_slice();
        let module = match program.format.as_str() {
            "hlo" => Signature::decode(bytes).ok(),
            "hlo_with_config" => SignatureWithConfig::decode(bytes).ok().and_then(|both| both.hlo_module),
            _ => None,
        };
        let shape = module.and_then(|module| module.host_program_shape);
        // If a parameter is not an array of a known type, nothing is known.
        Ok(shape.and_then(|shape| shape.parameters.iter().map(parameter_type).collect()))
    }

    fn optimized_program(&self) -> Result<OptimizedProgram, Error> {
        let (api, executable) = self.parts();
        let mut program = api.block::<PJRT_Program>();
        // SAFETY: holds because `self` keeps the executable alive, and the program requests only
        // its size.
        unsafe {
            call!(
                api,
                PJRT_Executable_OptimizedProgram_Args {
                    executable: executable,
                    program: program.as_mut_ptr(),
                }
            )
        }?;
        let mut bytes = vec![0u8; program.code_size];
        program.code = bytes.as_mut_ptr().cast::<c_char>();
        // SAFETY: holds because `self` keeps the executable alive, and `code` has room for the
        // reported size.
        unsafe {
            call!(
                api,
                PJRT_Executable_OptimizedProgram_Args {
                    executable: executable,
                    program: program.as_mut_ptr(),
                }
            )
        }?;
        bytes.truncate(program.code_size);
        // SAFETY: holds because the plugin's names of formats are static.
        let format = unsafe { text(program.format, program.format_size) };
        Ok(OptimizedProgram { format, bytes })
    }
}

fn parameter_type(shape: &ShapeProto) -> Option<TensorType> {
    let dtype = primitive_dtype(shape.element_type)?;
    if !shape.tuple_shapes.is_empty() || shape.is_dynamic_dimension.contains(&true) {
        return None;
    }
    tensor_type(dtype, &shape.dimensions, "PJRT_Executable_OptimizedProgram").ok()
}
