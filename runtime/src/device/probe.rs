//! Asks a device at engine start how it treats subnormal numbers.
//!
//! XLA's CPU backend runs code with the processor's `FTZ` and `DAZ` on. No option and no attribute
//! of the plugin reports that. The interpreter stands in for the device and has to compute the same
//! numbers, so a small module finds out.

use fuseline_fusion::{DType, DTypeSet, TensorType};
use fuseline_pjrt::{Client, CompileOptions, Device, Error, ExecuteOptions};

/// For each float type whose subnormal numbers a processor may flush to zero: the sum of the least
/// positive number and zero, which is subnormal where they are kept. The zero is an argument,
/// because the compiler would fold a constant.
const MODULE: &str = r#"module {
  func.func public @main(%a: tensor<bf16>, %b: tensor<f32>, %c: tensor<f64>,
                       %x: tensor<bf16>, %y: tensor<f32>, %z: tensor<f64>)
      -> (tensor<bf16>, tensor<f32>, tensor<f64>) {
    %0 = stablehlo.add %a, %x : tensor<bf16>
    %1 = stablehlo.add %b, %y : tensor<f32>
    %2 = stablehlo.add %c, %z : tensor<f64>
    return %0, %1, %2 : tensor<bf16>, tensor<f32>, tensor<f64>
  }
}"#;

/// The types that [`MODULE`] probes, in its order.
pub(super) const PROBED_FLOATS: [DType; 3] = [DType::BF16, DType::F32, DType::F64];

/// The float types whose subnormal numbers the device flushes to zero.
///
/// # Errors
/// When the plugin does not run the module.
pub(super) fn flushed(client: &Client, device: &Device, options: &CompileOptions) -> Result<DTypeSet, Error> {
    let executable = client.compile(MODULE, options)?;
    let mut args = Vec::with_capacity(2 * PROBED_FLOATS.len());
    for least in [1u8, 0] {
        for dtype in PROBED_FLOATS {
            let mut bytes = vec![0; dtype.size()];
            bytes[0] = least;
            args.push(client.buffer_from_host(&TensorType::scalar(dtype), &bytes, device)?);
        }
    }
    let args: Vec<_> = args.iter().collect();
    let execution = executable.execute(&args, &ExecuteOptions::default())?;
    let mut flushed = DTypeSet::NONE;
    for (dtype, output) in PROBED_FLOATS.into_iter().zip(&execution.outputs) {
        if output.to_host()?.iter().all(|&byte| byte == 0) {
            flushed = flushed.or(DTypeSet::of(&[dtype]));
        }
    }
    Ok(flushed)
}
