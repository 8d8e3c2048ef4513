//! Topologies: devices that need not be present, which a plugin knows by name, and compiling for
//! them.
//!
//! Input: a name and options in the plugin's terms (`v5e:2x2` for TPUs; a target configuration for
//! GPUs). Output: serialized executables, which a client of the same plugin loads on such devices.
//!
//! Invariant:
//! - TOPOLOGY-1. The plugin's topology is destroyed once, after every compile for it has returned.
//!   Its executables are destroyed before the call that made them returns: only their bytes remain.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use fuseline_sync::lock_rank::before;
use pjrt_sys::*;

use super::abi::Call;
use super::api::{call, id, list, text};
use super::error::{Code, Error, count_destroy, optional};
use super::executable::{destroy, serialize};
use super::options::CompileOptions;
use super::plugin::Plugin;
use super::value::{Value, read_named_values};

/// A device of a [`Topology`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TargetDevice {
    /// Its id within the topology.
    pub id: i64,
    /// Name of its kind: `TPU v5 lite`, `NVIDIA H100 80GB HBM3`.
    pub kind: String,
    /// The plugin's attributes of the device, such as coordinates in a mesh. Empty if it has none.
    pub attributes: Vec<(String, Value)>,
}

/// Devices that a plugin can compile for. Clones are the same topology.
///
/// `Send + Sync`: any number of threads may compile at once.
#[derive(Clone)]
pub struct Topology(Arc<Inner>);

struct Inner {
    raw: RawTopology,
    name: String,
    platform_name: String,
    platform_version: String,
    devices: Box<[TargetDevice]>,
}

/// Destroys the topology when dropped.
struct RawTopology {
    plugin: Plugin,
    raw: NonNull<PJRT_TopologyDescription>,
}

// SAFETY: holds because a topology is not changed after it was made, and may be used and destroyed
// on any thread (see the thread-safety section of the module `pjrt`).
unsafe impl Send for RawTopology {}
// SAFETY: holds for the same reason.
unsafe impl Sync for RawTopology {}

impl Drop for RawTopology {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: holds because this is the only owner, at its end (TOPOLOGY-1).
        let outcome =
            unsafe { call!(self.plugin.api(), PJRT_TopologyDescription_Destroy_Args { topology: raw }) };
        count_destroy(outcome.map(drop));
    }
}

impl Plugin {
    /// The devices that the plugin knows by a name, with options of the plugin. An empty name is
    /// the plugin's default, if it has one.
    ///
    /// # Errors
    /// The plugin's error when it compiles only for devices of its clients (XLA's for CPUs), or
    /// knows none of that name.
    pub fn topology(self, name: &str, options: &[(String, Value)]) -> Result<Topology, Error> {
        const FUNCTION: &str = PJRT_TopologyDescription_Create_Args::FUNCTION;
        let api = self.api();
        let values: Vec<_> = options.iter().map(|(name, value)| value.to_raw(name)).collect();
        // SAFETY: holds because name and options outlive the call.
        let out = unsafe {
            call!(
                api,
                PJRT_TopologyDescription_Create_Args {
                    topology_name: name.as_ptr().cast(),
                    topology_name_size: name.len(),
                    create_options: values.as_ptr(),
                    num_options: values.len(),
                }
            )
        }?;
        let raw = NonNull::new(out.topology)
            .ok_or_else(|| Error::layer(Code::Internal, FUNCTION, "the plugin returned no topology"))?;
        self.origin().note_call();
        // From here on it is destroyed on every path.
        let raw = RawTopology { plugin: self, raw };
        let platform_name = raw.platform_name()?;
        let platform_version = optional(raw.platform_version())?.unwrap_or_default();
        let devices = raw.devices()?;
        let name = name.to_owned();
        Ok(Topology(Arc::new(Inner { raw, name, platform_name, platform_version, devices })))
    }
}

impl RawTopology {
    fn platform_name(&self) -> Result<String, Error> {
        let raw = self.raw.as_ptr();
        // SAFETY: holds because `self` keeps the topology alive.
        let out = unsafe {
            call!(self.plugin.api(), PJRT_TopologyDescription_PlatformName_Args { topology: raw })
        }?;
        // SAFETY: holds because the name lives as long as the topology.
        Ok(unsafe { text(out.platform_name, out.platform_name_size) })
    }

    fn platform_version(&self) -> Result<String, Error> {
        let raw = self.raw.as_ptr();
        // SAFETY: holds because `self` keeps the topology alive.
        let out = unsafe {
            call!(self.plugin.api(), PJRT_TopologyDescription_PlatformVersion_Args { topology: raw })
        }?;
        // SAFETY: holds because the text lives as long as the topology.
        Ok(unsafe { text(out.platform_version, out.platform_version_size) })
    }

    fn devices(&self) -> Result<Box<[TargetDevice]>, Error> {
        let (api, raw) = (self.plugin.api(), self.raw.as_ptr());
        // SAFETY: holds because `self` keeps the topology alive.
        let out =
            unsafe { call!(api, PJRT_TopologyDescription_GetDeviceDescriptions_Args { topology: raw }) }?;
        // SAFETY: holds because the list lives as long as the topology.
        let descriptions = unsafe { list(out.descriptions, out.num_descriptions) };
        let device = |&description: &*mut PJRT_DeviceDescription| {
            // SAFETY: holds because the description lives as long as the topology.
            let out =
                unsafe { call!(api, PJRT_DeviceDescription_Id_Args { device_description: description }) }?;
            let id = id(out.id);
            // SAFETY: holds because the description lives as long as the topology.
            let out =
                unsafe { call!(api, PJRT_DeviceDescription_Kind_Args { device_description: description }) }?;
            // SAFETY: holds because the kind lives as long as the topology.
            let kind = unsafe { text(out.device_kind, out.device_kind_size) };
            // SAFETY: holds because the description lives as long as the topology.
            let out = unsafe {
                call!(api, PJRT_DeviceDescription_Attributes_Args { device_description: description })
            };
            let attributes = optional(out)?.map_or_else(Vec::new, |out| {
                // SAFETY: holds because the list lives as long as the topology.
                unsafe { read_named_values(out.attributes, out.num_attributes) }
            });
            Ok(TargetDevice { id, kind, attributes })
        };
        descriptions.iter().map(device).collect()
    }
}

impl Topology {
    /// The plugin of the topology.
    #[must_use]
    pub fn plugin(&self) -> Plugin {
        self.0.raw.plugin
    }

    /// The name that was requested.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Name of the platform: `cuda`, `tpu`.
    #[must_use]
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// Version of the platform, as the plugin reports it; empty if it has none.
    #[must_use]
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// Its devices, in the plugin's order.
    #[must_use]
    pub fn devices(&self) -> &[TargetDevice] {
        &self.0.devices
    }

    /// Compiles a StableHLO module, as text or as bytecode, for the devices of the topology whose
    /// ids are in the options. Returns the executable as bytes for
    /// [`Client::deserialize`](super::Client::deserialize) under the same plugin file on such
    /// devices.
    ///
    /// Blocks for as long as the compiler runs.
    ///
    /// # Errors
    /// The error of the compiler. Also when the plugin cannot compile without a client, or cannot
    /// serialize the executable.
    pub fn compile(&self, module: impl AsRef<[u8]>, options: &CompileOptions) -> Result<Vec<u8>, Error> {
        before("has the plugin compile");
        let (module, options) = (module.as_ref(), options.to_bytes());
        let api = self.plugin().api();
        let mut program = api.program(module);
        // SAFETY: holds because the topology lives, program and options outlive the call, and the
        // client is optional.
        let out = unsafe {
            call!(
                api,
                PJRT_Compile_Args {
                    topology: self.0.raw.raw.as_ptr(),
                    program: program.as_mut_ptr(),
                    compile_options: options.as_ptr().cast(),
                    compile_options_size: options.len(),
                    client: std::ptr::null_mut(),
                }
            )
        }?;
        if out.executable.is_null() {
            let function = PJRT_Compile_Args::FUNCTION;
            return Err(Error::layer(Code::Internal, function, "the plugin returned no executable"));
        }
        self.plugin().origin().note_compile();
        // SAFETY: holds because the call gave us the executable, which lives until it is destroyed
        // below.
        let bytes = unsafe { serialize(api, out.executable) };
        // SAFETY: holds because nobody else has it (TOPOLOGY-1).
        unsafe { destroy(api, out.executable) };
        bytes
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({}, {} devices of {})", self.name(), self.devices().len(), self.platform_name())
    }
}
