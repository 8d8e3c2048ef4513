//! Regions on a PJRT device.

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::encode::Writer;
use fuseline_fusion::lower::{self, Aliases};
use fuseline_fusion::{DType, TensorType};
use smallvec::SmallVec;

use super::{Buffer, DeviceError, Executed, Result};
use crate::error::Stage;
use crate::pjrt::{self, Client, CompileOptions, Placement};

/// A device of a PJRT client, and how to compile for it.
#[derive(Debug)]
pub(crate) struct PjrtDevice {
    device: pjrt::Device,
    /// For regions with little work in each op, and for the others; see [`PjrtDevice::options`].
    light: CompileOptions,
    heavy: CompileOptions,
}

/// Multiplications of the largest product above which it pays to split its work over threads. At 32x128x128 (0.5
/// million) handing over to another thread costs as much as the product; at 128x512x512 (34 million) it does not matter
/// (pjrt.md).
const HEAVY_PRODUCT: u128 = 4_000_000;

/// Flags of XLA's CPU compiler that order ops for memory, by age of the plugin, newest first. XLA's default order can need 34
/// times the memory of this one (pjrt.md). A plugin refuses names it does not know: API 0.81 has the second.
const MEMORY_ORDER: [(&str, fn() -> pjrt::Flag); 2] = [
    ("xla_cpu_scheduler_type", || "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED".into()),
    ("xla_cpu_enable_concurrency_optimized_scheduler", || false.into()),
];

/// The smallest module there is, to ask a compiler about its flags.
const IDENTITY: &str = "module { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }";

impl PjrtDevice {
    /// Compiles for `device`; `flags` are set on top of the platform's defaults.
    ///
    /// # Errors
    /// When the compiler refuses one of `flags`.
    pub(crate) fn new(
        device: pjrt::Device,
        flags: &[(String, pjrt::Flag)],
    ) -> std::result::Result<PjrtDevice, pjrt::Error> {
        let mut heavy = CompileOptions::new().device(device.id());
        for (name, value) in flags {
            heavy = heavy.flag(name.clone(), value.clone());
        }
        if !flags.is_empty() {
            device.client().compile(IDENTITY, &heavy)?;
        }
        let named = |name: &str| flags.iter().any(|(given, _)| given == name);
        let mut light = heavy.clone();
        if device.client().platform_name() == "cpu" {
            // What the user sets goes before what we would choose.
            for (name, value) in MEMORY_ORDER.iter().filter(|(name, _)| !named(name)) {
                let with = heavy.clone().flag(*name, value());
                if device.client().compile(IDENTITY, &with).is_ok() {
                    heavy = with;
                    break;
                }
            }
            light = heavy.clone();
            if !named("xla_cpu_multi_thread_eigen") {
                light = light.flag("xla_cpu_multi_thread_eigen", false);
            }
        }
        Ok(PjrtDevice { device, light, heavy })
    }

    pub(crate) fn device(&self) -> &pjrt::Device {
        &self.device
    }

    fn client(&self) -> &Client {
        self.device.client()
    }

    /// An injective description of everything that executables depend on.
    pub(super) fn describe(&self) -> Vec<u8> {
        let client = self.client();
        let mut out = Writer::new();
        out.bytes(client.platform_name().as_bytes());
        out.bytes(client.platform_version().as_bytes());
        let version = client.plugin().api_version();
        out.bytes(format!("{version:?}").as_bytes());
        let attributes = client.plugin().attributes();
        out.len(attributes.len());
        for (name, value) in attributes {
            out.bytes(name.as_bytes());
            out.bytes(format!("{value:?}").as_bytes());
        }
        out.bytes(self.device.kind().as_bytes());
        out.int(self.device.id());
        out.bytes(&self.light.to_bytes());
        out.bytes(&self.heavy.to_bytes());
        out.into_vec()
    }

    /// The options for a region: a function of the region, so that they need not stand in its key.
    fn options(&self, region: &CanonRegion) -> &CompileOptions {
        let largest =
            region.graph().nodes().iter().map(|node| node.signature().products()).max().unwrap_or(0);
        if largest >= HEAVY_PRODUCT { &self.heavy } else { &self.light }
    }

    pub(super) fn compile(
        &self,
        region: &CanonRegion,
        outputs: &[u32],
        aliases: &Aliases,
    ) -> Result<(pjrt::Executable, u64)> {
        let module = lower::lower(region, outputs, aliases);
        let executable = self
            .client()
            .compile(module.text(), self.options(region))
            .map_err(|error| DeviceError::pjrt(Stage::Compile, &error))?;
        // XLA:CPU reports the size of the code it made, other plugins may not; a kernel is not smaller than its text.
        let code = executable.generated_code_size().ok().and_then(|size| u64::try_from(size).ok());
        let bytes = code.unwrap_or(0).max(module.text().len() as u64);
        Ok((executable, bytes))
    }

    pub(super) fn execute(
        &self,
        executable: &pjrt::Executable,
        args: &[&Buffer],
        packed: &[u32],
        veto: &[i64],
        want_done: bool,
    ) -> Result<Executed> {
        let fail = |error: pjrt::Error| DeviceError::pjrt(Stage::Execute, &error);
        let scalars = if packed.is_empty() {
            None
        } else {
            let ty = TensorType::of(DType::U32, &[packed.len() as u64]).expect("a few words");
            let place = Placement::Device(&self.device);
            Some(self.client().buffer_from_host(&ty, pjrt::bytes_of(packed), place).map_err(fail)?)
        };
        let mut buffers: SmallVec<[&pjrt::Buffer; 32]> = SmallVec::with_capacity(args.len() + 1);
        for arg in args {
            match arg {
                Buffer::Pjrt(buffer) => buffers.push(buffer),
                Buffer::Reference(_) => {
                    let message = "an argument is on the reference device".to_owned();
                    return Err(DeviceError { stage: Stage::Execute, message, resource_exhausted: false });
                }
            }
        }
        buffers.extend(&scalars);
        let options = pjrt::ExecuteOptions {
            non_donatable: veto,
            want_completion_event: want_done,
            ..pjrt::ExecuteOptions::default()
        };
        let execution = executable.execute(&buffers, &options).map_err(fail)?;
        let outputs = execution.outputs.into_iter().map(Buffer::Pjrt).collect();
        Ok(Executed { outputs, done: execution.done })
    }

    pub(super) fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<Buffer> {
        self.client()
            .buffer_from_host(ty, bytes, Placement::Device(&self.device))
            .map(Buffer::Pjrt)
            .map_err(|error| DeviceError::pjrt(Stage::Transfer, &error))
    }
}
