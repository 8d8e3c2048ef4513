//! The devices that code is made for, present or not.

use fuseline_pjrt::{Client, Plugin, Topology, Value};

use crate::processor;

/// The devices that code is made for, as far as code depends on them.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) plugin: Plugin,
    pub(super) platform: String,
    /// The version of the platform. `None` where a topology reports something else than a client.
    pub(super) version: Option<String>,
    /// The place of the devices in their topology. `None` where code does not depend on that.
    pub(super) topology: Option<String>,
    /// Id and kind of the device of each replica; at least one.
    pub(super) devices: Vec<(i64, String)>,
    /// The number of threads that the plugin found when its client was created.
    pub(super) threads: String,
}

impl Machine {
    /// Devices that are present.
    pub(super) fn here(client: &Client, devices: &[fuseline_pjrt::Device]) -> Machine {
        let platform = client.platform_name();
        let attributes = devices.iter().map(|device| device.attributes().unwrap_or_default());
        Machine {
            plugin: client.plugin(),
            platform: platform.to_owned(),
            version: version(platform, client.platform_version()),
            topology: topology(platform, client.devices().len(), attributes),
            devices: devices.iter().map(|device| (device.id(), device.kind().to_owned())).collect(),
            threads: threads(),
        }
    }

    /// `replicas` devices of a topology, from `first` on. `None` if it has too few.
    pub fn of(target: &Topology, first: usize, replicas: usize) -> Option<Machine> {
        let devices = target.devices().get(first..first.checked_add(replicas)?)?;
        let platform = target.platform_name();
        let attributes = devices.iter().map(|device| device.attributes.clone());
        Some(Machine {
            plugin: target.plugin(),
            platform: platform.to_owned(),
            version: version(platform, target.platform_version()),
            topology: topology(platform, target.devices().len(), attributes),
            devices: devices.iter().map(|device| (device.id, device.kind.clone())).collect(),
            threads: threads(),
        })
    }

    pub(super) fn plugin(&self) -> Plugin {
        self.plugin
    }

    pub(super) fn platform(&self) -> &str {
        &self.platform
    }

    /// The ids of the devices.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.devices.iter().map(|device| device.0).collect()
    }

    /// The parts that capabilities depend on, by name.
    pub(super) fn parts(&self) -> Vec<(String, String)> {
        let mut parts = vec![("platform".to_owned(), self.platform.clone())];
        parts.extend(self.version.iter().map(|version| ("platform version".to_owned(), version.clone())));
        parts.push(("PJRT version".to_owned(), self.plugin.api_version().to_string()));
        for (id, kind) in &self.devices {
            parts.push(("device".to_owned(), format!("{id} {kind}")));
        }
        if self.is_host() {
            parts.extend(processor::parts());
        }
        parts
    }

    /// Whether the host's processor computes, as far as is known. Code for other devices does not
    /// depend on the host.
    pub(super) fn is_host(&self) -> bool {
        !matches!(self.platform.as_str(), "cuda" | "rocm" | "sycl" | "tpu")
    }
}

/// The version of a platform, as far as a client and a topology report the same.
///
/// XLA's client for GPUs reports the version of the toolkit that the plugin was built with. The
/// plugin's file identifies that. Its topology reports the kind of the device instead.
fn version(platform: &str, version: &str) -> Option<String> {
    (!matches!(platform, "cuda" | "rocm")).then(|| version.to_owned())
}

/// The place of devices in their topology: the number of all devices, and the coordinates of each.
///
/// XLA's clients for processors and GPUs compile for one device as for any other. Their topologies
/// need not have as many devices as the client.
fn topology(
    platform: &str,
    count: usize,
    attributes: impl Iterator<Item = Vec<(String, Value)>>,
) -> Option<String> {
    const COORDINATES: [&str; 2] = ["coords", "core_on_chip"];
    if matches!(platform, "cpu" | "cuda" | "rocm" | "sycl") {
        return None;
    }
    let places = attributes.map(|attributes| {
        let value = |name: &str| attributes.iter().find(|(given, _)| given == name);
        let given = COORDINATES.iter().filter_map(|name| value(name));
        given.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    });
    let places: Vec<String> = places.filter(|place| !place.is_empty()).collect();
    Some(format!("{count} devices; {}", places.join("; ")))
}

/// How many threads can compute: the processors that the scheduler allows this thread, which XLA
/// asks for, and what a limit of its control group leaves of them.
fn threads() -> String {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"));
    let digits = mask.into_iter().flat_map(str::chars).filter_map(|digit| digit.to_digit(16));
    match digits.map(u32::count_ones).sum::<u32>() {
        0 => available.to_string(),
        processors => format!("{available} on {processors} processors"),
    }
}
