//! `fuseline devices`, and descriptions of clients and devices for other commands.

use std::process::Command;

use fuseline::pjrt::{Client, Device, MemoryStats};
use serde_json::{Value, json};

use crate::cli::DevicesArgs;
use crate::device::{Watch, Watched};
use crate::failure::Failure;
use crate::options::{Contract, DeviceChoice};
use crate::text::say;
use crate::{Mode, Status};

pub(crate) fn run(args: &DevicesArgs, out: &mut String) -> Result<Status, Failure> {
    match &args.place.device {
        Some(DeviceChoice::Reference) => list(args, out),
        _ if args.here => list(args, out),
        device => in_a_child(device.as_ref()),
    }
}

/// Lists the devices in a process of its own, with the same output, because a plugin may end its
/// process when its client starts.
fn in_a_child(device: Option<&DeviceChoice>) -> Result<Status, Failure> {
    let program = std::env::current_exe().map_err(Failure::run)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--here");
    let status = command.status().map_err(Failure::run)?;
    match status.code() {
        Some(0) => Ok(Status::Good),
        Some(_) => Ok(Status::Bad),
        None => {
            let plugin = match device {
                Some(DeviceChoice::Plugin(path)) => path.display().to_string(),
                _ => "the plugin".to_owned(),
            };
            Err(Failure::Run(format!(
                "{plugin} crashed its process ({status}); `fuseline doctor` shows why, as far as the plugin tells"
            )))
        }
    }
}

fn list(args: &DevicesArgs, out: &mut String) -> Result<Status, Failure> {
    let watched = Watched::afresh(&args.place, Contract::default(), Mode::Fused, Watch::default())?;
    let document = match watched.engine.pjrt_device() {
        Some(device) => client_json(device.client()),
        None => json!({
            "platform": "reference",
            "devices": [{"id": 0, "kind": "reference interpreter", "addressable": true, "memories": []}],
        }),
    };
    if args.json {
        say!(out, "{document:#}");
    } else {
        say!(out, "{}", client_words(&document));
        device_words(&document, "", out);
    }
    Ok(Status::Good)
}

/// A client with its plugin and devices, as JSON.
pub(crate) fn client_json(client: &Client) -> Value {
    let plugin = client.plugin();
    let extensions = plugin.extensions().iter().map(|extension| match extension.name {
        Some(name) => name.to_owned(),
        None => format!("number {}", extension.number),
    });
    let version = |version: Option<[i64; 3]>| version.map(|[a, b, c]| format!("{a}.{b}.{c}"));
    json!({
        "platform": client.platform_name(),
        "platform_version": client.platform_version(),
        "plugin": plugin.path(),
        "api_version": plugin.api_version().to_string(),
        "notes": plugin.version_notes(),
        "stablehlo": {
            "current": version(plugin.stablehlo_current_version()),
            "oldest": version(plugin.stablehlo_minimum_version()),
        },
        "extensions": extensions.collect::<Vec<_>>(),
        "devices": client.devices().iter().map(device_json).collect::<Vec<_>>(),
    })
}

fn device_json(device: &Device) -> Value {
    let default = device.default_memory();
    let memories = device.memories();
    let memories = memories.iter().map(
        |memory| json!({"id": memory.id(), "kind": memory.kind(), "default": default.as_ref() == Some(memory)}),
    );
    json!({
        "id": device.id(),
        "kind": device.kind(),
        "process": device.process_index(),
        "hardware": device.local_hardware_id(),
        "addressable": device.is_addressable(),
        "memories": memories.collect::<Vec<_>>(),
        // Not every platform reports memory statistics.
        "memory_stats": device.memory_stats().ok().map(|stats| stats_json(&stats)),
    })
}

fn stats_json(stats: &MemoryStats) -> Value {
    json!({
        "bytes_in_use": stats.bytes_in_use,
        "peak_bytes_in_use": stats.peak_bytes_in_use,
        "bytes_limit": stats.bytes_limit,
        "largest_alloc_size": stats.largest_alloc_size,
        "num_allocs": stats.num_allocs,
        "pool_bytes": stats.pool_bytes,
    })
}

/// `cpu, API 0.81, from plugin.so`.
pub(crate) fn client_words(client: &Value) -> String {
    let mut words = client["platform"].as_str().unwrap_or_default().to_owned();
    if let Some(version) = client["api_version"].as_str() {
        words += &format!(", API {version}");
    }
    if let Some(plugin) = client["plugin"].as_str() {
        words += &format!(", from {plugin}");
    }
    words
}

/// Writes a line for each device of the result of [`client_json`].
pub(crate) fn device_words(client: &Value, indent: &str, out: &mut String) {
    for device in client["devices"].as_array().into_iter().flatten() {
        let mut line = format!("device {}: {}", device["id"], device["kind"].as_str().unwrap_or_default());
        if let Some(hardware) = device["hardware"].as_i64() {
            line += &format!(", hardware {hardware}");
        }
        if device["addressable"] == false {
            line += &format!(", of process {}", device["process"]);
        }
        let memories = device["memories"].as_array().into_iter().flatten();
        let memories: Vec<String> = memories
            .map(|memory| {
                let mark = if memory["default"] == true { " (default)" } else { "" };
                format!("{}{mark}", memory["kind"].as_str().unwrap_or_default())
            })
            .collect();
        if !memories.is_empty() {
            line += &format!("; memory {}", memories.join(", "));
        }
        let size = |key: &str| device["memory_stats"][key].as_u64().map(fuseline::Bytes);
        match (size("bytes_in_use"), size("bytes_limit")) {
            (Some(used), Some(limit)) => line += &format!("; {used} of {limit} in use"),
            (Some(used), None) => line += &format!("; {used} in use"),
            _ => {}
        }
        say!(out, "{indent}{line}");
    }
}
