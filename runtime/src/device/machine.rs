//! The devices that code is made for, present or not.

use fuseline_pjrt::{Client, Plugin, Topology};

use crate::processor;

/// The devices that code is made for, as far as code depends on them.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) plugin: Plugin,
    pub(super) platform: String,
    pub(super) version: String,
    /// Id and kind of the device of each replica; at least one.
    pub(super) devices: Vec<(i64, String)>,
    /// The number of threads that the plugin found when its client was created.
    pub(super) threads: String,
}

impl Machine {
    /// Devices that are present.
    pub(super) fn here(client: &Client, devices: &[fuseline_pjrt::Device]) -> Machine {
        Machine {
            plugin: client.plugin(),
            platform: client.platform_name().to_owned(),
            version: client.platform_version().to_owned(),
            devices: devices.iter().map(|device| (device.id(), device.kind().to_owned())).collect(),
            threads: threads(),
        }
    }

    /// `replicas` devices of a topology, from `first` on. `None` if it has too few.
    pub fn of(topology: &Topology, first: usize, replicas: usize) -> Option<Machine> {
        let devices = topology.devices().get(first..first.checked_add(replicas)?)?;
        Some(Machine {
            plugin: topology.plugin(),
            platform: topology.platform_name().to_owned(),
            version: topology.platform_version().to_owned(),
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
        let mut parts = vec![
            ("platform".to_owned(), self.platform.clone()),
            ("platform version".to_owned(), self.version.clone()),
            ("PJRT version".to_owned(), self.plugin.api_version().to_string()),
        ];
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
