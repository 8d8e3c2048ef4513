//! `fuseline bench --restart`: how much a second process profits from the first one's compiles.
//!
//! Each program runs twice, in two processes that share a disk cache, which is empty at first. Both
//! start the plugin, its client and its threads anew, so the ratio compares processes, not engines.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::programs::Case;
use super::{columns, progress};
use crate::Status;
use crate::cli::BenchArgs;
use crate::failure::Failure;
use crate::options::DeviceChoice;
use crate::text::{say, time};

/// The number of first steps that are compared.
const FIRST: usize = 10;

/// A program and the output of its two processes.
struct Pair<'a> {
    case: &'a Case,
    cold: Value,
    warm: Value,
}

pub(super) fn run(args: &BenchArgs, cases: &[&Case], out: &mut String) -> Result<Status, Failure> {
    if matches!(args.place.device, Some(DeviceChoice::Reference)) {
        return Err(Failure::Input("the reference interpreter compiles nothing".to_owned()));
    }
    let bar = progress(2 * cases.len());
    let mut pairs = Vec::new();
    let mut device = None;
    for &case in cases {
        let folder = tempfile::tempdir()
            .map_err(|error| Failure::Run(format!("cannot create a folder for executables: {error}")))?;
        let mut said = || -> Result<Value, Failure> {
            bar.set_message(case.name.clone());
            let mut document = process(args, case, folder.path())?;
            bar.inc(1);
            device.get_or_insert_with(|| document["device"].take());
            Ok(document["programs"][0]["measured"].take())
        };
        let (cold, warm) = (said()?, said()?);
        pairs.push(Pair { case, cold, warm });
    }
    bar.finish_and_clear();
    if args.json {
        let of = |pair: &Pair<'_>| json!({"name": pair.case.name, "cold": pair.cold, "warm": pair.warm});
        let programs: Vec<Value> = pairs.iter().map(of).collect();
        say!(out, "{:#}", json!({"status": "ok", "device": device, "programs": programs}));
    } else {
        table(&pairs, out);
    }
    Ok(Status::Good)
}

/// Runs a program like this command, in a process of its own with this disk cache. Returns its
/// output.
fn process(args: &BenchArgs, case: &Case, folder: &Path) -> Result<Value, Failure> {
    let failed = |why: String| Failure::Run(format!("{}: {why}", case.name));
    let this = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(this);
    // With the same device, options, numerics and time.
    command
        .args(std::env::args_os().skip(1).filter(|argument| argument != "--restart" && argument != "--json"));
    command.args(["--json", "--case", &case.name]);
    if args.mode.is_none() {
        command.args(["--mode", "fused"]);
    }
    command.env("FUSELINE_CACHE", "on").env("FUSELINE_CACHE_DIR", folder.join("cache"));
    command.env("FUSELINE_CACHE_KEY_FILE", folder.join("key"));
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("its process ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// The duration of the first `count` steps.
fn first(said: &Value, count: usize) -> Duration {
    let steps = said["step_ns"].as_array().into_iter().flatten();
    Duration::from_nanos(steps.take(count).filter_map(Value::as_u64).sum())
}

fn table(pairs: &[Pair<'_>], out: &mut String) {
    let head = [
        "program",
        "mode",
        "first step",
        "restarted",
        "ratio",
        "first ten",
        "restarted",
        "ratio",
        "compiles",
        "restarted",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    for pair in pairs {
        let both = |count| {
            let (cold, warm) = (first(&pair.cold, count), first(&pair.warm, count));
            [time(cold), time(warm), format!("{:.2}", warm.as_secs_f64() / cold.as_secs_f64())]
        };
        let [cold, warm, ratio] = both(1);
        let [ten_cold, ten_warm, ten_ratio] = both(FIRST);
        let compiles = |said: &Value| said["compiles"].to_string();
        let (name, mode) =
            (pair.case.name.clone(), pair.cold["mode"].as_str().unwrap_or_default().to_owned());
        let (first, second) = (compiles(&pair.cold), compiles(&pair.warm));
        lines.push([name, mode, cold, warm, ratio, ten_cold, ten_warm, ten_ratio, first, second]);
    }
    columns(&lines, out);
}
