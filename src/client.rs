//! Starts the plugin's client of an engine, with no more devices than the engine needs.
//!
//! An option that the user has not set limits the client's devices. Only a client reports its
//! platform, but the option is needed to create the client. So the name of the plugin's file
//! decides. Plugins reject options that they do not know. A client is then started without it.

use fuseline_runtime::internals::{PerReplica, Settings};
use fuseline_runtime::{Error, Result};

use crate::pjrt::{ClientOptions, Code, Device, Plugin, Value};

/// An option that limits the devices of a client.
#[derive(Clone, Debug, PartialEq)]
struct Limit {
    name: &'static str,
    value: Value,
    /// The position of the engine's first device among those that are left.
    first: usize,
}

/// The devices of an engine, one for each replica, as a new client has them.
pub(crate) fn start_devices(plugin: Plugin, settings: &Settings) -> Result<PerReplica<Device>> {
    if let Some(limit) = limit(&plugin, settings) {
        let options = settings.client_options.clone().set(limit.name, limit.value);
        match plugin.client(&options) {
            Ok(client) => return take(client.addressable_devices(), limit.first, settings),
            // Perhaps the plugin does not know the option.
            Err(error) if error.code() == Code::InvalidArgument => {}
            Err(error) => return Err(error.into()),
        }
    }
    let client = plugin.client(&settings.client_options)?;
    take(client.addressable_devices(), settings.device, settings)
}

/// The position of an engine's first device among those of its client, if the plugin knows the
/// option that limits them.
pub(crate) fn first_device(plugin: &Plugin, settings: &Settings) -> usize {
    limit(plugin, settings).map_or(settings.device, |limit| limit.first)
}

fn limit(plugin: &Plugin, settings: &Settings) -> Option<Limit> {
    let file = plugin.path().file_name()?.to_string_lossy().into_owned();
    let limit = limit_for(&file, settings.device, settings.replicas)?;
    is_free(&settings.client_options, limit.name).then_some(limit)
}

fn is_free(options: &ClientOptions, name: &str) -> bool {
    options.values().iter().all(|(given, _)| given != name)
}

/// The option for a plugin with this file name.
fn limit_for(file: &str, device: usize, replicas: usize) -> Option<Limit> {
    let end = i64::try_from(device.checked_add(replicas)?).ok()?;
    if file.contains("cuda") || file.contains("rocm") {
        // By default, XLA's client for GPUs takes 75 % of the memory of every visible GPU. It
        // numbers those that are left anew.
        let start = i64::try_from(device).ok()?;
        return Some(Limit {
            name: "visible_devices",
            value: Value::IntList((start..end).collect()),
            first: 0,
        });
    }
    // By default, XLA's CPU plugin creates several devices (4 on 2 cores). The threads of the
    // unused ones would only compete for the cores.
    file.contains("cpu").then_some(Limit { name: "cpu_device_count", value: Value::Int(end), first: device })
}

/// The devices from `first` on.
fn take(devices: Vec<Device>, first: usize, settings: &Settings) -> Result<PerReplica<Device>> {
    // Those before the engine's first device are there too, if the client has them or not.
    let count = devices.len() + settings.device - first;
    let devices: PerReplica<Device> = devices.into_iter().skip(first).take(settings.replicas).collect();
    if devices.len() == settings.replicas {
        return Ok(devices);
    }
    let asked = match settings.replicas {
        1 => format!("device {} was", settings.device),
        replicas => format!("{replicas} replicas from device {} on were", settings.device),
    };
    Err(Error::setup(format!("{asked} asked for, but the plugin has {count} devices here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_asks_for_the_devices_that_it_uses() {
        let limit = |file: &str| limit_for(file, 2, 3).map(|limit| (limit.name, limit.value, limit.first));
        let gpus = Some(("visible_devices", Value::IntList(vec![2, 3, 4]), 0));
        assert_eq!(limit("xla_cuda_plugin.so"), gpus);
        assert_eq!(limit("xla_rocm_plugin.so"), gpus);
        assert_eq!(limit("xla_cpu_pjrt.so"), Some(("cpu_device_count", Value::Int(5), 2)));
        assert_eq!(limit("libtpu.so"), None);
        assert_eq!(limit_for("xla_cuda_plugin.so", usize::MAX, 1), None);
    }
}
