//! `fuseline probe`: loads one plugin, reports on it, and may compute something with it.
//!
//! `doctor` runs it in a process of its own, because a plugin may crash, hang or keep a device. The
//! answer is one line of JSON after a marker, so other output of the plugin does not matter.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fuseline::pjrt::{OpenFault, Plugin};
use fuseline::{Engine, EngineConfig, Result};
use serde_json::{Value, json};

use crate::Status;
use crate::capabilities::capabilities_json;
use crate::cli::ProbeArgs;
use crate::devices::client_json;
use crate::text::{milliseconds, say};

/// The marker before the answer.
const MARK: &str = "fuseline-probe:";

/// The longest time for a plugin. GPU and TPU clients take up to half a minute to start on a cold
/// machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &ProbeArgs, out: &mut String) -> Status {
    let answer = look(&args.plugin, args.smoke);
    say!(out, "\n{MARK}{answer}");
    Status::Good
}

fn look(path: &Path, smoke: bool) -> Value {
    let unusable =
        |problem: String, advice: &str| json!({"usable": false, "problem": problem, "advice": advice});
    if let Err(error) = Plugin::open(path) {
        return unusable(error.to_string(), advice(error.fault()));
    }
    let engine =
        match EngineConfig::new().interpret_cold_regions(false).quick_compiles(false).plugin(path).build() {
            Ok(engine) => engine,
            Err(error) => {
                let advice = "check that the device is present, that its driver is loaded, and that \
                          no other process uses it";
                return unusable(format!("{} could not start a client: {error}", path.display()), advice);
            }
        };
    let Some(device) = engine.pjrt_device() else {
        return unusable(format!("{} has no device", path.display()), "choose another plugin");
    };
    let mut answer = json!({
        "usable": true,
        "client": client_json(device.client()),
        "capabilities": capabilities_json(&engine),
    });
    if smoke {
        let start = Instant::now();
        answer["smoke"] = match compute(&engine) {
            Ok(None) => json!({"passed": true, "ms": milliseconds(start.elapsed())}),
            Ok(Some(wrong)) => json!({"passed": false, "problem": wrong}),
            Err(error) => json!({"passed": false, "problem": error.to_string()}),
        };
    }
    answer
}

/// A product, a sum and a maximum of small integers, which every device computes exactly. Returns
/// what is wrong, if anything.
fn compute(engine: &Engine) -> Result<Option<String>> {
    let left = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let right = engine.tensor(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0], &[3, 2])?;
    let product = left.matmul(&right)?;
    let total = (&product * &product)?.sum(&[0])?;
    let greatest = product.max(&[0, 1])?;
    let actual = (product.to_vec::<f32>()?, total.to_vec::<f32>()?, greatest.to_vec::<f32>()?);
    let expected = (vec![4.0, 5.0, 10.0, 11.0], vec![116.0, 146.0], vec![11.0]);
    Ok((actual != expected).then(|| format!("it computed {actual:?}, expected {expected:?}")))
}

/// Advice about a file that cannot be used.
pub(crate) fn advice(fault: &OpenFault) -> &'static str {
    match fault {
        OpenFault::Missing(_) => "correct the path, or install the plugin there",
        OpenFault::NotALibrary => {
            "name the plugin's shared library itself, or reinstall it if this is its library"
        }
        OpenFault::CannotLoad(_) => {
            "install the libraries that the problem names, or add their folder to LD_LIBRARY_PATH"
        }
        OpenFault::NoEntryPoint => "name a library that is a PJRT plugin",
        OpenFault::BadTable(_) => {
            "reinstall the plugin; if that does not help, report the problem to its developers"
        }
        OpenFault::Version { .. } => "install a plugin of another version",
        OpenFault::Initialise(_) => {
            "check that the device is present, that its driver is loaded, and that no other process uses it"
        }
        _ => "choose another plugin",
    }
}

/// Probes a plugin in a process of its own.
pub(crate) fn ask(path: &Path, smoke: bool) -> Value {
    let failed = |problem: String| {
        let advice =
            "run `fuseline devices --device` with TF_CPP_MIN_LOG_LEVEL=0 to see what the plugin prints";
        json!({"usable": false, "problem": problem, "advice": advice})
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(format!("cannot find the path of this program: {error}")),
    };
    let mut command = Command::new(program);
    command.arg("probe").args(smoke.then_some("--smoke")).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot start a process: {error}")),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (ended, stdout, stderr) = std::thread::scope(|scope| {
        let stdout = scope.spawn(|| read(stdout));
        let stderr = scope.spawn(|| read(stderr));
        let ended = wait(&mut child);
        (ended, stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default())
    });
    let answer = stdout.lines().find_map(|line| line.strip_prefix(MARK));
    if let Some(answer) = answer.and_then(|answer| serde_json::from_str(answer).ok()) {
        return answer;
    }
    let shown = path.display();
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.map(|line| format!("; its last output: {}", line.trim())).unwrap_or_default();
    match ended {
        Some(status) => failed(format!("{shown} crashed its process ({status}){last}")),
        None => failed(format!("{shown} did not answer within {} seconds{last}", LIMIT.as_secs())),
    }
}

fn read(from: Option<impl std::io::Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // Keep what was read before an error.
        drop(from.read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a process with a time limit, and kills it after that.
fn wait(child: &mut std::process::Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => break,
        }
    }
    drop(child.kill());
    drop(child.wait());
    None
}
