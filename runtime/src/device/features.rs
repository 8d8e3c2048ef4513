//! The optional features of a plugin, as small computations show them.
//!
//! A plugin may lack any of these. The engine finds out at the first use and goes on without. This
//! module asks for all of them at once, for reports ([`Features`]).

use fuseline_fusion::{DType, DTypeSet, TensorType};
use fuseline_pjrt::{Client, CompileOptions, Device, Error, ExecuteOptions};

/// The number of the extension through which compiled code calls functions of the host.
const FFI_EXTENSION: u32 = 5;

/// An addition in place: the result may take the memory of the argument.
const IN_PLACE: &str = r#"module {
  func.func public @main(%a: tensor<16xf32> {tf.aliasing_output = 0 : i32}) -> tensor<16xf32> {
    %0 = stablehlo.add %a, %a : tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}"#;

/// What a plugin can do beside compiling and running code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// A result takes the memory of an argument, and the argument is gone afterwards. Otherwise
    /// updates in place need twice the memory.
    pub donation: bool,
    /// Executables can be serialized. Otherwise the disk cache stays empty.
    pub serialization: bool,
    /// The plugin reports the memory that an execution needs. Otherwise the engine estimates it.
    pub memory_plans: bool,
    /// The device reports how much memory is in use.
    pub memory_statistics: bool,
    /// Compiled code can call functions of the host. Otherwise such ops fail.
    pub host_functions: bool,
    /// The element types that the device takes and returns unchanged.
    pub dtypes: DTypeSet,
}

impl Features {
    /// Asks a device.
    ///
    /// # Errors
    /// When the plugin does not compile or run the smallest programs.
    pub(super) fn of(client: &Client, device: &Device, options: &CompileOptions) -> Result<Features, Error> {
        let executable = client.compile(IN_PLACE, options)?;
        let ty = TensorType::of(DType::F32, &[16]).expect("16 elements");
        let argument = client.buffer_from_host(&ty, &[0; 64], device)?;
        executable.execute(&[&argument], &ExecuteOptions::default())?;
        let extensions = client.plugin().extensions();
        Ok(Features {
            donation: argument.is_deleted()?,
            serialization: executable.serialize().is_ok(),
            memory_plans: executable.memory_stats().is_ok(),
            memory_statistics: device.memory_stats().is_ok(),
            host_functions: extensions.iter().any(|extension| extension.number == FFI_EXTENSION),
            dtypes: round_trips(client, device),
        })
    }
}

/// The element types of which a device returns data unchanged.
fn round_trips(client: &Client, device: &Device) -> DTypeSet {
    let is_unchanged = |dtype: DType| {
        let ty = TensorType::of(dtype, &[2]).ok()?;
        let data = vec![1; 2 * dtype.size()];
        let buffer = client.buffer_from_host(&ty, &data, device).ok()?;
        Some(buffer.to_host().ok()? == data)
    };
    let taken = DType::ALL.into_iter().filter(|&dtype| is_unchanged(dtype) == Some(true));
    taken.fold(DTypeSet::NONE, |set, dtype| set.or(DTypeSet::of(&[dtype])))
}
